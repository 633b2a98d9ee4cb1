"""Cameras read off images: by an estimator that knows the answer, of generated views and held-out photographs."""

import argparse
import dataclasses
import json
import re
import shlex
from pathlib import Path

from graf.camera import azimuth_and_v, poses_at
from graf.commands.eval import Evaluation
from graf.config import CONFIG_DIR, load_config
from graf.data import build_dataset
from graf.errors import CheckpointError, GrafError
from graf.inversion import invert
from graf.inversion.loss import InversionSettings
from graf.metrics.shapes import Subject
from graf.models.generator import Generator
from graf.pictures.outputs import write_image
from graf.pose import accuracy as reading
from graf.pose.accuracy import accuracy, accuracy_warning, cameras_of, pose_accuracy
from graf.pose.loading import load_estimator
from tools import label_poses

import pytest
import torch
from command_line import ROOT, call

SMALL = [
    *("--device", "cpu", "--set", "data.imsize=16", "data.n_images=40", "model.d_model=16", "model.num_heads=2"),
    *("model.num_layers=1", "training.batch_size=4", "training.nworkers=0", "training.monitoring=none"),
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """The run of an estimator that has learned nothing yet."""
    folder = tmp_path_factory.mktemp("estimator")
    call("train_pose.py", *SMALL, f"data.datadir={folder / 'cars'}", "--max_steps", "1", cwd=folder)
    return folder / "results" / "pose"


def test_medians_and_the_share_within_15_degrees():
    true = poses_at(torch.zeros(3), torch.full((3,), 0.4), 3.6)
    predicted = poses_at(torch.tensor([10.0, 20.0, 350.0]), torch.full((3,), 0.4), 3.6)
    found = accuracy(predicted, true)
    assert found["azimuth_deg"] == pytest.approx(10, abs=1e-3)
    assert found["elevation_deg"] == pytest.approx(0, abs=1e-3)
    assert found["within_15_deg"] == pytest.approx(2 / 3)


def test_a_network_reads_in_eval_mode_and_is_left_as_it_was():
    network = torch.nn.Dropout(0.5).train()
    read = reading.read_cameras(network, lambda indices: torch.ones(len(indices), 40), 2, "cpu")
    assert torch.equal(read, torch.ones(2, 40)) and network.training


def test_images_of_any_size_are_brought_to_the_estimators(run_dir):
    estimator = load_estimator(run_dir)
    images = torch.rand(3, 3, 16, 16) * 2 - 1
    large = torch.nn.functional.interpolate(images, scale_factor=2, mode="nearest")
    assert cameras_of(estimator, images).shape == cameras_of(estimator, large).shape == (3, 3, 4)
    uniform = torch.full((1, 3, 16, 16), 0.25)
    large = torch.full((1, 3, 40, 40), 0.25)
    torch.testing.assert_close(cameras_of(estimator, uniform), cameras_of(estimator, large))


def test_cameras_of_generated_views_are_those_they_were_rendered_from(run_dir, smoke, monkeypatch, tmp_path):
    """The estimator reads the cameras off the order of images."""
    config = smoke(f"data.datadir={tmp_path}")
    subject = Subject(Generator(config).eval(), build_dataset(config), 0, 1.0, tmp_path, n=12)
    asked, draw = [], reading.labels_as_in_data

    def noted(*given):
        def labels(n, rng):
            found = draw(*given)(n, rng)
            asked.extend(found.pose_c2w)
            return found

        return labels

    taken = iter(range(12))
    monkeypatch.setattr(reading, "labels_as_in_data", noted)
    monkeypatch.setattr(reading, "cameras_of", lambda _, images: torch.stack([asked[next(taken)] for _ in images]))
    result = pose_accuracy(subject, load_estimator(run_dir))
    assert result["azimuth_deg"] < 1e-3 and result["rotation_deg"] < 0.1 and result["within_15_deg"] == 1
    assert result["floor_images"] == 4 and 0 <= result["floor_azimuth_deg"] <= 180
    assert json.loads(json.dumps(result)) == result


def test_images_of_the_estimator_that_are_gone_are_told_before_anything_is_rendered(run_dir, smoke, monkeypatch, tmp_path):
    estimator = load_estimator(run_dir)
    elsewhere = dataclasses.replace(estimator.config.data, type="images", datadir=(str(tmp_path / "gone"),))
    estimator = dataclasses.replace(estimator, config=dataclasses.replace(estimator.config, data=elsewhere))
    monkeypatch.setattr(reading, "fresh_renderings", lambda *_, **__: pytest.fail("rendered"))
    config = smoke(f"data.datadir={tmp_path}")
    subject = Subject(Generator(config).eval(), build_dataset(config), 0, 1.0, tmp_path, n=12)
    with pytest.raises(GrafError, match="gone: no such folder"):
        pose_accuracy(subject, estimator)


def test_a_generator_is_no_estimator(run_dir, tmp_path):
    torch.save({"generator": {}}, tmp_path / "generator.pt")
    with pytest.raises(CheckpointError, match="not a pose estimator; name a run of train_pose.py"):
        load_estimator(tmp_path / "generator.pt")


def test_inversion_begins_where_the_estimator_looked_from(smoke):
    torch.manual_seed(0)
    generator = Generator(smoke()).eval().requires_grad_(False)
    start = poses_at(torch.tensor([70.0]), torch.tensor([0.3]), 3.6)
    still = InversionSettings(search_steps=0, fit_steps=0)
    found = invert(generator, torch.zeros(1, 3, 16, 16), settings=still, start=start)
    azimuth, v = azimuth_and_v(found.pose_c2w)
    assert float(azimuth) % 180 == pytest.approx(70, abs=0.1)  # from there, or the opposite side
    assert float(v) == pytest.approx(0.3, abs=1e-3)


def test_photographs_whose_cameras_were_lost_get_a_transforms_json(run_dir, tmp_path, monkeypatch):
    cars = build_dataset(load_config(CONFIG_DIR / "smoke.yaml", [f"data.datadir={tmp_path / 'cars'}"]))
    for index in range(5):
        write_image(tmp_path / "photos" / f"{index}.png", cars.read(index)[:3])
    monkeypatch.setattr(
        label_poses, "cameras_of", lambda _, images: cars.labels.pose_c2w[: len(images)]
    )  # as if it had learned
    arguments = ["tools/label_poses.py", "photos", "--estimator", str(run_dir), "--device", "cpu"]
    said = call(*arguments, cwd=tmp_path)
    assert "the cameras of 5 photographs" in said
    (checks,) = re.findall(r"python (tools/validate_data.py --data_dir photos .*) draws them", said)
    assert "no faults" in call(*shlex.split(checks), cwd=tmp_path)
    photos = build_dataset(
        load_config(
            CONFIG_DIR / "smoke.yaml", ["data.type=images", f"data.datadir={tmp_path / 'photos'}", "training.batch_size=2"]
        )
    )
    torch.testing.assert_close(photos.labels.pose_c2w, cars.labels.pose_c2w[:5])
    assert "confidence" not in (tmp_path / "photos" / "transforms.json").read_text()  # of an estimator without a distribution
    monkeypatch.setattr(label_poses, "confidence_of", lambda _, images: torch.full((len(images),), 0.25))
    call(*arguments, "--overwrite", cwd=tmp_path)
    frames = json.loads((tmp_path / "photos" / "transforms.json").read_text())["frames"]
    assert [frame["confidence"] for frame in frames] == [0.25] * 5
    assert "--overwrite replaces it" in call(*arguments, cwd=tmp_path, status=2)


def test_a_camera_from_which_nothing_is_seen_gets_the_distance_of_the_others(run_dir, caplog):
    data, paths = load_estimator(run_dir).config.data, [Path(f"{i}.png") for i in range(5)]
    poses = poses_at(torch.arange(5.0), 0.35, torch.tensor([3.6, 3.5, 3.7, 0.4, 3.6]))
    moved = label_poses.within_reach(poses, paths, data)
    torch.testing.assert_close(moved[..., 3].norm(dim=-1), torch.tensor([3.6, 3.5, 3.7, 3.6, 3.6]))
    torch.testing.assert_close(moved[3, :, :3], poses[3, :, :3])
    assert "1 of 5 cameras were estimated at a distance from which nothing is seen, such as 0.4 of 3.png" in caplog.text
    assert label_poses.within_reach(moved, paths, data) is moved
    for distances in ([0.4] * 5, [0.4, 3.6, 0.4, 3.6, 0.4]):
        near = poses_at(torch.arange(5.0), 0.35, torch.tensor(distances))
        assert label_poses.within_reach(near, paths, data) is near


@pytest.mark.parametrize(("own_images", "n_classes"), [(0, 2), (2, 1)])
def test_photographs_in_class_folders_are_labelled_too(run_dir, tmp_path, monkeypatch, own_images, n_classes):
    image, azimuths = torch.zeros(3, 16, 16, dtype=torch.uint8), [10.0, 20.0, 30.0, 40.0, 50.0]
    monkeypatch.setattr(label_poses, "cameras_of", lambda _, images: at(azimuths[: len(images)]))  # as if it had learned
    names = ["red/a", "red/b", "blue/a", *("own_a", "own_b")[:own_images]]
    for name in names:
        write_image(tmp_path / "photos" / f"{name}.png", image)
    arguments = ["tools/label_poses.py", "photos", "--estimator", str(run_dir), "--device", "cpu"]
    assert ("become one class" in call(*arguments, cwd=tmp_path)) == bool(own_images)
    asked = ["data.type=images", f"data.datadir={tmp_path / 'photos'}", "training.batch_size=2"]
    photos = build_dataset(load_config(CONFIG_DIR / "smoke.yaml", asked))
    assert (len(photos), len(photos.class_names)) == (len(names), n_classes)
    torch.testing.assert_close(azimuth_and_v(photos.labels.pose_c2w)[0], torch.tensor(azimuths[: len(names)]))
    assert "--overwrite replaces it" in call(*arguments, cwd=tmp_path, status=2)


def test_a_file_of_cameras_above_class_folders_is_not_hidden_from_training(run_dir, tmp_path):
    """Training would read it in place of the files in them."""
    write_image(tmp_path / "photos" / "red" / "a.png", torch.zeros(3, 16, 16, dtype=torch.uint8))
    above, split = (tmp_path / "photos" / name for name in ("transforms.json", "transforms_train.json"))
    arguments = ["tools/label_poses.py", "photos", "--estimator", str(run_dir), "--device", "cpu"]
    for file in (split, above):
        file.write_text("{}")
        assert f"{file.relative_to(tmp_path)}: exists already" in call(*arguments, cwd=tmp_path, status=2)
    call(*arguments, "--overwrite", cwd=tmp_path)
    assert [frame["file_path"] for frame in json.loads(above.read_text())["frames"]] == ["red/a.png"]


def test_photographs_that_cannot_be_labelled_are_all_named(run_dir, tmp_path):
    arguments = ["tools/label_poses.py", "photos", "--estimator", str(run_dir), "--device", "cpu"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "paper.pdf").touch()
    assert "photos: no images (.png, " in call(*arguments, cwd=tmp_path, status=2)
    prepared = tmp_path / "prepared"
    write_image(prepared / "images" / "a.png", torch.zeros(3, 16, 16, dtype=torch.uint8))
    (prepared / "before_after.png").touch()
    said = call(arguments[0], "prepared", *arguments[2:], cwd=tmp_path, status=2)
    assert "was made by prepare_photos.py; its images are in prepared/images" in said
    for name in ("a.png", "b.jpg"):
        (tmp_path / "photos" / name).write_bytes(b"damaged")
    said = call(*arguments, cwd=tmp_path, status=2)
    assert "photos/a.png: " in said and "photos/b.jpg: " in said
    assert not (tmp_path / "photos" / "transforms.json").exists()


def at(azimuths_deg):
    return poses_at(torch.tensor(azimuths_deg), torch.full((len(azimuths_deg),), 0.4), 3.6)


@pytest.mark.parametrize(
    ("read", "true", "doubtful"),
    [
        ([10.0, 100.0, 190.0, 280.0], [0.0, 90.0, 180.0, 270.0], None),  # a guess has 90: of three others two are 90 away
        ([80.0, 170.0, 265.0, 345.0], [0.0, 90.0, 180.0, 270.0], "median error of 80.0 degrees"),
        ([30.0, 30.0, 30.0], [20.0, 30.0, 40.0], "median error of 10.0 degrees"),  # the mean of a narrow range: a guess has 10
    ],
)
def test_an_estimator_that_is_near_chance_is_told(run_dir, read, true, doubtful):
    estimator = load_estimator(run_dir)
    estimator = dataclasses.replace(estimator, validation={"predicted_pose": at(read), "target_pose": at(true)})
    told = accuracy_warning(estimator)
    assert (doubtful in told and "train it longer" in told and str(run_dir) in told) if doubtful else told == ""
    assert "was never validated" in accuracy_warning(dataclasses.replace(estimator, validation={}))


def test_an_estimator_that_knows_azimuths_alone_is_told(run_dir):
    """Cameras that hang upside down, at the right places."""
    true = at([0.0, 90.0, 180.0, 270.0])
    read = torch.cat([true[..., :2] * -1, true[..., 2:]], dim=-1)
    estimator = load_estimator(run_dir)
    estimator = dataclasses.replace(estimator, validation={"predicted_pose": read, "target_pose": true})
    assert "reads rotations with a median error of 180.0 degrees on its 4 validation images" in accuracy_warning(estimator)


@pytest.mark.parametrize(("n_images", "told"), [(4, True), (12, False)])
def test_an_error_that_is_of_few_images_is_told(run_dir, tmp_path, monkeypatch, n_images, told):
    write_image(tmp_path / "photos" / "a.png", torch.zeros(3, 16, 16, dtype=torch.uint8))
    true = at([30.0 * number for number in range(n_images)])
    right = dataclasses.replace(load_estimator(run_dir), validation={"predicted_pose": true, "target_pose": true})
    monkeypatch.setattr(label_poses, "load_estimator", lambda *_: right)
    said = call("tools/label_poses.py", "photos", "--estimator", str(run_dir), "--device", "cpu", cwd=tmp_path)
    assert ("its error was measured on 4 images only" in said) == told


def test_whoever_takes_cameras_of_a_bad_estimator_is_told(run_dir, tmp_path, smoke, caplog):
    """One that was trained for a single step: by label_poses.py, and by eval.py --invert and --metrics pose."""
    write_image(tmp_path / "photos" / "a.png", torch.zeros(3, 16, 16, dtype=torch.uint8))
    said = call("tools/label_poses.py", "photos", "--estimator", str(run_dir), "--device", "cpu", cwd=tmp_path)
    assert "warning: " in said and "median error of" in said
    flags = argparse.Namespace(estimator=str(run_dir), device="cpu", invert=["a.png"], metrics=None)
    assert Evaluation(flags, Generator(smoke()), 0, tmp_path, tmp_path, None).estimator is not None
    assert "median error of" in caplog.text


def test_an_estimator_from_before_a_key_was_added_is_read(run_dir, tmp_path):
    content = torch.load(run_dir / "model.pt", weights_only=True)
    del content["config"]["model"]["azimuth_bins"], content["config"]["training"]["blur"]
    torch.save(content, tmp_path / "older.pt")
    read = load_estimator(tmp_path / "older.pt").config
    assert (read.model.azimuth_bins, read.training.blur, read.model.d_model) == (0, 0.0, 16)


def test_label_poses_names_the_settings_of_the_check(run_dir):
    """It names the settings by which the estimator's cameras differ from the default, and the batch for fewer images."""
    data = dataclasses.replace(load_config(None).data, fov=38.0, radius=(2.0, 3.0), near=1.0, background=(0.0, 0.0, 0.0))
    assert label_poses.settings(data, 8) == [
        "data.background=black",
        "data.near=1.0",
        "data.radius=[2.0, 3.0]",
        "data.fov=38.0",
    ]
    assert label_poses.settings(load_config(None).data, 3) == ["training.batch_size=3"]
    assert label_poses.settings(dataclasses.replace(load_config(None).data, masks="../cut/NAME.png"), 8) == [
        "data.masks=../cut/NAME.png"
    ]


def test_an_estimator_that_nothing_uses_is_refused(tmp_path):
    weights = str(ROOT / "weights" / "toy_cars.safetensors")
    arguments = ["eval.py", "--checkpoint", weights, "--device", "cpu", "--out", str(tmp_path / "out")]
    said = call(*arguments, "--metrics", "haze", "--estimator", "results/pose", cwd=tmp_path, status=2)
    assert "use it with --metrics pose or --invert" in said
    assert "name a run of train_pose.py with --estimator" in call(*arguments, "--metrics", "pose", cwd=tmp_path, status=2)
