"""tools/validate_data.py: what it draws and where, and that training and the memory check agree with it."""

import dataclasses
import json
import logging
import math
import re
import sys
from pathlib import Path

from graf.camera import poses_at
from graf.config import CONFIG_DIR, load_config
from graf.data.car_shapes import make_car
from graf.data.toy_cars import render_cars
from graf.pose.labelling import transforms_of
from graf.runtime.console import run_script

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
import yaml
from matplotlib.axes import Axes
from test_data_images import put

ROOT = Path(__file__).parents[2]
SMOKE = ("--config", str(CONFIG_DIR / "smoke.yaml"))
ARROWS = np.array([31, 119, 180])  # matplotlib's first colour


@pytest.fixture
def program(tmp_path, monkeypatch, caplog):
    """Run a program in tmp_path, in this process: its exit status and what it logged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "tools"))

    def run(name: str, *flags: str) -> tuple[int, str]:
        caplog.clear()
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
        with caplog.at_level(logging.INFO, logger="graf"), pytest.raises(SystemExit) as ended:
            run_script(__import__(name).main)
        return ended.value.code or 0, "\n".join(caplog.messages)

    return run


def photographs(folder: Path, n: int = 8, suffix: str = "jpg") -> tuple[str, ...]:
    """The flags that name a folder of n photographs."""
    for index in range(n):
        put(folder / f"IMG_{index}.{suffix}", colour=(20 * index, 0, 0), size=(24, 16))
    return "--set", "data.type=images", f"data.datadir={json.dumps(str(folder))}"


@pytest.mark.parametrize("name", ["validate_data", "check_system"])
def test_data_dir_names_the_photographs(program, tmp_path, name):
    photographs(tmp_path / "photos")
    flags = ("--no_step", "--device", "cpu") if name == "check_system" else ()
    status, said = program(name, *SMOKE, "--data-dir", str(tmp_path / "photos"), *flags)
    assert status == 0
    assert "discriminator.condition: none" in said  # which toy cars have not


def test_unposed_photographs_are_drawn_beside_the_cameras_that_training_draws(program, tmp_path):
    status, said = program("validate_data", *SMOKE, *photographs(tmp_path / "my photos"))
    sheet = Path("results/data_check/smoke/my_photos/contact_sheet.png")
    assert status == 0
    _, summary = said.split("no faults\n")
    assert summary.startswith("what will be learned from:\n  images      8, at 16 x 16 pixels\n")
    assert "none, so they are sampled" in summary and "little to learn from: 8 different images" in summary
    assert f"8 images without cameras, classes: my photos; see {sheet}" in said
    pixels = imageio.imread(sheet)[..., :3].astype(int)
    arrows = (np.abs(pixels - ARROWS).max(-1) < 40).sum(0)  # of each column
    half = len(arrows) // 2
    assert arrows[half:].sum() > 1000 > 10 > arrows[:half].sum()


def test_each_set_has_a_sheet_of_its_own_and_a_faulty_one_has_none(program, tmp_path, monkeypatch):
    monkeypatch.setattr("validate_data.draw_sheet", lambda dataset, data, file: put(file))
    first, second = photographs(tmp_path / "chairs"), photographs(tmp_path / "tables")
    for flags in (first, second, (*second, "expname=other")):
        assert program("validate_data", *SMOKE, *flags)[0] == 0
    drawn = sorted(str(file.relative_to("results/data_check")) for file in Path("results/data_check").rglob("*.png"))
    expected = ["other/tables", "smoke/chairs", "smoke/tables"]
    assert drawn == [f"{folder}/contact_sheet.png" for folder in expected]
    (tmp_path / "tables" / "IMG_0.jpg").write_text("damaged since")
    assert program("validate_data", *SMOKE, *second)[0] == 2
    assert not Path("results/data_check/smoke/tables/contact_sheet.png").exists()
    assert Path("results/data_check/smoke/chairs/contact_sheet.png").exists()


@pytest.mark.parametrize("in_the_way", ["out", "out/contact_sheet.png"])
def test_a_sheet_that_cannot_be_written_says_what_to_do(program, tmp_path, capfd, in_the_way):
    """A file in the folder's place, or a folder in the sheet's."""
    (tmp_path / in_the_way).mkdir(parents=True) if "/" in in_the_way else (tmp_path / in_the_way).touch()
    status, _ = program("validate_data", *SMOKE, *photographs(tmp_path / "photos"), "--out", "out")
    said = capfd.readouterr().err
    assert status == 1 and "error: out/contact_sheet.png: cannot be written (" in said
    assert "; name another folder with --out" in said


def test_the_sheet_tells_how_sure_a_found_camera_is(program, tmp_path, monkeypatch):
    names, poses = ["a.png", "b.png"], poses_at(torch.tensor([0.0, 90.0]), torch.full((2,), 0.35), 3.6)
    for name in names:
        put(tmp_path / "found" / "000_cars" / name)
    (tmp_path / "found" / "000_cars" / "other").mkdir()
    (tmp_path / "found" / "000_cars" / "other" / "transforms.json").write_text("{}")  # of nobody
    titles, set_title = [], Axes.set_title
    monkeypatch.setattr(Axes, "set_title", lambda *given, **options: titles.append(set_title(*given, **options)) or titles[-1])
    flags = ("--data_dir", str(tmp_path / "found"), "--set", "data.imsize=16", "training.batch_size=2")
    for confidence in (None, torch.tensor([0.25, 0.875])):
        text = transforms_of(names, [(16, 16)] * 2, poses, load_config(None).data, names, confidence)
        (tmp_path / "found" / "000_cars" / "transforms.json").write_text(text)
        assert program("validate_data", *SMOKE, *flags)[0] == 0
    shown = [title for title in titles if title.get_text().startswith(("0°", "90°"))]
    assert {title.get_fontsize() for title in shown} == {8}
    assert [title.get_text() for title in shown] == [
        "0°, 73°",
        "90°, 73°",
        "0°, 73°, 25%",
        "90°, 73°, 88%",
    ]


def test_check_validate_and_train_tell_the_same_condition(program, tmp_path, monkeypatch):
    monkeypatch.setattr("validate_data.draw_sheet", lambda *_: None)
    flags = (*SMOKE, *photographs(tmp_path / "photos"))
    _, validated = program("validate_data", *flags)
    _, checked = program("check_system", *flags, "--no_step", "--device", "cpu", "--budget_gb", "8")
    _, tried = program("train", *flags, "--dry_run", "--device", "cpu")
    told = [{line for line in said.splitlines() if "condition" in line} for said in (validated, checked, tried)]
    assert told[0] == told[1] == told[2] and len(told[0]) == 1
    assert told[0].pop().startswith("discriminator.condition: none instead of class_and_pose")


def test_check_and_train_agree_on_labels_that_tell_nothing_apart(program, tmp_path):
    flags = (*SMOKE, *photographs(tmp_path / "photos"), "discriminator.label_loss=MCE")
    assert program("check_system", *flags, "--no_step", "--device", "cpu")[0] == 2
    assert program("train", *flags, "--device", "cpu")[0] == 2
    cars = (*SMOKE, "--set", "discriminator.label_loss=MCE", f"data.datadir={tmp_path}")
    assert program("check_system", *cars, "--device", "cpu", "--budget_gb", "64")[0] == 0


def test_a_run_on_plain_photographs_resumes_as_what_it_is(program, tmp_path):
    flags = (*SMOKE, *photographs(tmp_path / "photos"), "training.sample_every=0", "training.monitoring=none")
    assert program("train", *flags, "--device", "cpu", "--max_steps", "1")[0] == 0
    run_dir = Path("results/smoke")
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["discriminator"]["condition"] == "none"
    saved = torch.load(run_dir / "model.pt", weights_only=True)
    assert saved["config"]["discriminator"]["condition"] == "none"
    for config in (flags, ("--config", str(run_dir / "config.yaml"))):
        step = torch.load(run_dir / "model.pt", weights_only=True)["state"]["step"]
        status, said = program("train", *config, "--device", "cpu", "--max_steps", str(step + 1))
        assert status == 0 and f"from step {step}" in said
        assert "data has changed" not in said and "discriminator.condition changed" not in said


def test_faults_that_are_left_out_are_not_denied(program, tmp_path):
    flags = photographs(tmp_path / "photos")
    (tmp_path / "photos" / "IMG_0.jpg").write_text("damaged")
    status, said = program("validate_data", *SMOKE, *flags, "data.on_bad_file=skip")
    assert status == 0 and "nothing else that would stop training\nwhat will be learned from" in said
    assert "left out 1 faulty images" in said and "no faults" not in said


RINGS_DEG = (50, 62, 74)  # polar angles
TRUE_V = [round((1 - math.cos(math.radians(polar))) / 2, 4) for polar in RINGS_DEG]


@pytest.fixture(scope="module")
def car_views():
    """A toy car from 24 cameras, (4, 64, 64) in [0, 1] by ring and azimuth in degrees."""
    data = dataclasses.replace(load_config(CONFIG_DIR / "smoke.yaml").data, imsize=64)
    labels = [(ring, azimuth_deg) for azimuth_deg in range(0, 360, 45) for ring in range(3)]
    poses = poses_at(torch.tensor([float(a) for _, a in labels]), torch.tensor([TRUE_V[ring] for ring, _ in labels]), 3.6)
    views = render_cars([make_car(0, 0)] * 24, poses, data, 1)
    return dict(zip(labels, torch.cat([(views.images + 1) / 2, views.opacity[:, None]], dim=1), strict=True))


def put_car(folder: Path, car_views, named=lambda azimuth_deg: azimuth_deg, turned: int = 0) -> tuple[str, ...]:
    """The flags that name a folder of its images, with their azimuths in the names, turned by quarters counterclockwise."""
    folder.mkdir(exist_ok=True)
    for (ring, azimuth_deg), image in car_views.items():
        pixels = (np.rot90(image.permute(1, 2, 0).numpy(), turned) * 255).round().astype(np.uint8)
        imageio.imwrite(folder / f"{ring}_{named(azimuth_deg):03d}.png", pixels)
    return "--set", "data.type=images", f"data.datadir={json.dumps(str(folder))}"


@pytest.mark.parametrize("named, turned, keys, wrong, cure", [
    (lambda a: (360 - a) % 360, 0, {"data.v": TRUE_V}, "the azimuths run clockwise", {"data.azimuths": "clockwise"}),
    (lambda a: a, 1, {"data.v": TRUE_V}, "the images are turned by 90 degrees counterclockwise", {"data.roll_deg": "-90"}),
    (lambda a: a, 0, {"data.v": TRUE_V, "data.fov": 59.66}, "the focal length is about 2 times as long", {"data.fov": "32"}),
    (lambda a: a, 0, {"data.v": [0.117, 0.0585, 0.0194]}, "polar angles were taken for elevations", {"data.v": str(TRUE_V)}),
], ids=["reversed", "turned", "focal", "polar"])  # fmt: skip
def test_a_mistake_is_named_and_its_key_mends_it(program, tmp_path, monkeypatch, car_views, named, turned, keys, wrong, cure):
    monkeypatch.setattr("validate_data.draw_sheet", lambda *_: None)
    flags = put_car(tmp_path / "car", car_views, named, turned)
    status, said = program("validate_data", *SMOKE, *flags, *(f"{key}={value}" for key, value in keys.items()))
    warning = next(line for line in said.splitlines() if line.startswith("the silhouettes agree"))
    assert status == 0 and f"if {wrong}" in warning and "\nno faults but the cameras'" in said
    ((key, value),) = cure.items()
    found = re.search(rf"set {re.escape(key)}: (\[.*?\]|[\w.-]+)", warning)[1]
    if key == "data.v":
        assert json.loads(found) == pytest.approx(TRUE_V, abs=2e-3)
    else:
        assert found == value
    status, said = program("validate_data", *SMOKE, *flags, *(f"{k}={v}" for k, v in {**keys, key: found}.items()))
    assert status == 0 and "\nno faults\n" in said
    assert re.search(r"the silhouettes agree with the cameras: 0\.9\d of 1$", said, re.MULTILINE)


def test_photographs_without_silhouettes_are_not_judged(program, tmp_path, monkeypatch):
    monkeypatch.setattr("validate_data.draw_sheet", lambda *_: None)
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for azimuth_deg in range(0, 360, 40):
        imageio.imwrite(tmp_path / "photos" / f"0_{azimuth_deg:03d}.png", rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))
    flags = ("--set", "data.type=images", f"data.datadir={json.dumps(str(tmp_path / 'photos'))}", "data.v=[0.4]")
    _, said = program("validate_data", *SMOKE, *flags)
    assert "the cameras were not compared with silhouettes" in said and "\nno faults\n" in said
    assert "data.radius 3.6 with data.fov 32 shows 2.06 units across\n" in said
