"""tools/render_dataset.py: the suite reads what it writes, and it writes over nothing."""

import json
import os
from pathlib import Path

from graf.camera import sample_poses
from graf.config import load_config
from graf.data import build_dataset
from graf.errors import GrafError
from graf.rng import seeded_rng
from meshes.reading import read_mesh
from meshes.views import MeshRenderer

import pytest
import torch
import trimesh


@pytest.fixture
def tool(monkeypatch):
    """The tool's main with a command line: its exit status."""
    try:
        MeshRenderer(load_config().data)
    except GrafError as error:
        pytest.skip(str(error))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    import render_dataset

    def run(*arguments) -> int:
        monkeypatch.setattr("sys.argv", ["render_dataset.py", "--resolution", "16", *map(str, arguments)])
        return render_dataset.main()

    return run


@pytest.fixture
def models(tmp_path) -> Path:
    """Two sound models, one of them in a folder with a licence, and two that cannot be drawn."""
    folder = tmp_path / "models"
    (folder / "chairs").mkdir(parents=True)
    trimesh.creation.box((1, 2, 3)).export(folder / "chairs/Stool.obj")
    trimesh.creation.icosphere(1).export(folder / "ball.ply")
    (folder / "chairs/LICENSE.txt").write_text("by A. Carpenter")
    (folder / "notes.txt").write_text("no licence")
    (folder / "broken.glb").write_bytes(b"glTF")
    (folder / "points.ply").write_bytes(trimesh.PointCloud([[0, 0, 0], [1, 1, 1]]).export(file_type="ply"))
    return folder


def test_a_set_is_read_with_the_cameras_it_was_drawn_from(tool, models, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("graf.data.advice.warnings.FEW_IMAGES", 6)
    out = tmp_path / "set"
    assert tool(models, "--views", 3, "--out", out) == 0
    assert "2 of 4 meshes" in caplog.text and "broken.glb" in caplog.text and "points.ply" in caplog.text
    config = load_config(out / "config.yaml")
    dataset = build_dataset(config)
    assert config.training.batch_size == len(dataset) == 6
    assert config.training.max_steps == 6000
    expected = sample_poses(3, config.data, seeded_rng(0, 0))  # the first of the folder is ball.ply
    torch.testing.assert_close(dataset.labels.pose_c2w[:3], expected)
    assert not torch.isclose(dataset.labels.pose_c2w[3:], expected).all(dim=(1, 2)).any()  # another object, other cameras
    licences = (out / "LICENSES").read_text()
    assert "chairs_Stool: " + str(models / "chairs/Stool.obj") + ": licence 1" in licences
    assert "by A. Carpenter" in licences and "no licence text" in licences


def test_images_named_for_their_cameras_show_what_those_see(tool, models, tmp_path):
    out = tmp_path / "set"
    flags = ("--labels", "filename", "--views", 7, "--elevations", 30, 0, "--out", out)
    assert tool(models, "--match", "*STOOL*", *flags) == 0
    dataset = build_dataset(config := load_config(out / "config.yaml"))
    assert config.training.max_steps == load_config("few_images").training.max_steps
    assert len(dataset) == 14 and dataset.class_names == ["chairs_Stool"] and dataset.n_elevations == 2
    renderer = MeshRenderer(config.data)
    renderer.show(read_mesh(models / "chairs/Stool.obj", up="y"))
    for index in (1, 9):
        pixels = renderer.render(dataset.labels.pose_c2w[index]).float()
        alpha = pixels[..., 3:] / 255
        on_white = (alpha * pixels[..., :3] + (1 - alpha) * 255).round().movedim(-1, 0)
        image = dataset.read(index).float()
        assert (on_white - image[:3]).abs().max() <= 1 and (alpha[..., 0] * 255 - image[3]).abs().max() <= 1
    assert {"0_51.4286.png", "30_0000.png"} < {Path(file).name for file in dataset.files}


def test_the_same_command_continues_and_nothing_of_the_users_is_overwritten(tool, models, tmp_path, caplog):
    out = tmp_path / "set"
    run = (models, "--views", 2, "--out", out)
    tool(*run)
    lost, kept = out / "images/ball/001.png", out / "images/ball/000.png"
    content = lost.read_bytes()
    lost.unlink()
    os.utime(kept, (1, 1))
    assert tool(*run) == 0
    assert lost.read_bytes() == content and kept.stat().st_mtime == 1
    config = out / "config.yaml"
    assert "not overwritten" not in caplog.text
    edited = config.read_text() + "training:\n  use_amp: true\n"
    config.write_text(edited)
    assert tool(*run) == 0
    assert config.read_text() == edited
    assert f"{config}: not overwritten" in caplog.text
    config.unlink()
    assert tool(*run) == 0
    assert load_config(config).training.batch_size == 4
    with pytest.raises(GrafError, match="a set with other seed"):
        tool(*run, "--seed", 1)
    with pytest.raises(GrafError, match="a set with other meshes "):  # the next one would have the cameras of the first
        tool(*run, "--match", "chairs*")
    settings = out / "settings.json"
    kept = json.loads(settings.read_text())
    older = {name: value for name, value in kept.items() if name != "sha256"} | {"meshes": dict(kept["meshes"])}
    settings.write_text(json.dumps(older))  # as older versions wrote it
    assert tool(*run) == 0
    settings.write_text(json.dumps(kept))
    sphere = models / "ball.ply"
    content = sphere.read_bytes()
    trimesh.creation.icosphere(2).export(sphere)
    with pytest.raises(GrafError, match=r"a set with other sha256\.ball \(see settings.json\)"):
        tool(*run)
    sphere.write_bytes(content)
    assert tool(*run) == 0
    with pytest.raises(GrafError, match="was not made by this tool"):
        tool(models, "--out", models)
    assert sorted(file.name for file in models.iterdir()) == ["ball.ply", "broken.glb", "chairs", "notes.txt", "points.ply"]


def test_meshes_whose_names_differ_in_capitals_write_to_no_file_twice(tool, tmp_path):
    files = [tmp_path / name for name in ("Chair.obj", "a/chair.glb", "b/CHAIR.ply", "table.obj")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    from render_dataset import find_meshes

    assert [(source.name, source.file) for source in find_meshes(files, "*")] == [
        ("Chair", files[0]),
        ("chair_1", files[1]),
        ("CHAIR_2", files[2]),
        ("table", files[3]),
    ]


def test_frames_of_a_set_are_those_in_which_something_is_seen(tool, tmp_path):
    (tmp_path / "sheet.obj").write_text("v 0 -1 0\nv 1 -1 0\nv 1 1 0\nv 0 1 0\nf 1 2 3 4\n")  # edge-on from +-z and +-y
    out = tmp_path / "set"
    assert tool(tmp_path / "sheet.obj", "--views", 4, "--elevations", 0, "--labels", "filename", "--out", out) == 0
    assert sorted(file.name for file in (out / "sheet").iterdir()) == ["0_0000.png", "0_0180.png"]
    assert not (out / "transforms.json").exists()
    assert json.loads((out / "settings.json").read_text())["meshes"] == {"sheet": "sheet.obj"}


def test_an_elevation_from_which_nothing_is_seen_leaves_the_others_their_cameras(tool, tmp_path):
    (tmp_path / "floor.obj").write_text("v -1 0 -1\nv 1 0 -1\nv 1 0 1\nv -1 0 1\nf 1 2 3 4\n")
    out = tmp_path / "set"
    flags = ("--views", 2, "--elevations", 0, 30, "--labels", "filename", "--out", out)
    assert tool(tmp_path / "floor.obj", *flags) == 0
    assert sorted(file.name for file in (out / "floor").iterdir()) == ["30_0000.png", "30_0180.png"]
    data = load_config(out / "config.yaml").data
    assert (data.v, data.vmin, data.vmax) == ((0.25,), 0.25, 0.25)
    heights = build_dataset(load_config(out / "config.yaml")).labels.pose_c2w[:, 2, 3]
    torch.testing.assert_close(heights, torch.full((2,), 3.6 / 2))  # radius times the sine of 30 degrees
    assert tool(tmp_path / "floor.obj", *flags) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--views", 0), "--views: must be at least 1"),
        (("--radius", 1), "--radius: objects extend 1"),
        (("--resolution", 97), "--resolution: must be a multiple of 2"),
        (("--elevations", 91), "--elevations: must lie between"),
        (("--fov", 200), "data.fov"),
        (("--fov", "inf"), "data.fov"),
        (("--match", "*table*"), "that matches --match '\\*table\\*'"),
    ],
)
def test_flags_that_cannot_be_are_refused_before_anything_is_made(tool, models, tmp_path, flags, message):
    with pytest.raises(GrafError, match=message):
        tool(models, "--out", tmp_path / "set", *flags)
    assert not (tmp_path / "set").exists()


def test_without_a_mesh_that_can_be_drawn_the_exit_status_is_2(tool, models, tmp_path):
    assert tool(models / "broken.glb", "--out", tmp_path / "set") == 2
