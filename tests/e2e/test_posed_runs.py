"""Photographs with cameras of their own train as they are, without a key that says where the cameras stood."""

import json
import math
import shutil

import graf
from graf.camera import poses_at
from graf.config import config_to_dict, load_config
from graf.pose.loading import load_estimator

import pytest
import torch
import yaml
from command_line import SMOKE, call
from PIL import Image

RUN = ["train.py", *SMOKE, "--data_dir", "photos", "--set", "training.batch_size=2", "training.sample_every=0"]


def posed(folder, n, radius):
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    for i in range(n):
        Image.new("RGB", (16, 16), (20 * i, 20, 30)).save(folder / f"{i}.png")
        matrix = [*poses_at(torch.tensor(360.0 * i / n), torch.tensor(0.1), radius).tolist(), [0, 0, 0, 1]]
        frames.append({"file_path": f"{i}.png", "transform_matrix": matrix})
    content = {"camera_angle_x": math.radians(50), "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path):
    posed(tmp_path / "photos", 8, 2.0)
    said = call(*RUN, "--max_steps", "1", cwd=tmp_path)
    assert (
        "data.fov: 50, data.radius: 2, data.near: 1.067 and data.far: 2.933, by the cameras of photos/transforms.json" in said
    )
    assert "data.vmin: 0.0974 and data.vmax: 0.103, because the cameras stand 53 degrees above the horizon" in said
    assert "horizon, but samples" not in said
    return tmp_path


def cameras(folder, run="smoke"):
    data = load_config(folder / "results" / run / "config.yaml").data
    return data.fov, data.radius, data.near, data.far, data.vmin, data.vmax


FOUND = 50, (2, 2), 1.067, 2.933, 0.0974, 0.103


def test_a_run_has_the_cameras_of_its_photographs_from_then_on(folder):
    assert cameras(folder) == FOUND
    said = call(*RUN, "--max_steps", "2", cwd=folder)
    assert "data.far: 2.933, data.vmin: 0.0974 and data.vmax: 0.103, as the checkpoint has them" in said
    changed = [line for line in said.splitlines() if "changed since the checkpoint" in line]
    assert changed == ["training.max_steps changed since the checkpoint: 1 -> 2"] and "step 2 of 2" in said
    assert cameras(folder) == FOUND
    measured = ["metrics.n_real=8", "metrics.n_fake=8"]
    assert "kid" in call("eval.py", "--run", "results/smoke", "--metrics", "kid", "--set", *measured, cwd=folder).lower()


def test_other_photographs_do_not_move_a_runs_cameras(folder):
    shutil.rmtree(folder / "photos")
    posed(folder / "photos", 8, 2.5)
    said = call(*RUN, "--max_steps", "2", cwd=folder)
    assert "the cameras are 2.5 to 2.5 from the origin, but data.radius, used for samples and videos, is 2" in said
    assert cameras(folder) == FOUND
    said = call(*RUN, "expname=other", "--max_steps", "1", cwd=folder)
    assert cameras(folder, "other")[:2] == (50, (2.5, 2.5)) and "as the checkpoint" not in said


def test_a_run_that_goes_on_by_another_prior_can_be_read_again(folder):
    front = [*RUN, "data.camera_prior=front"]
    call(*front, "--max_steps", "2", cwd=folder)
    assert cameras(folder)[:4] == FOUND[:4]
    assert "step 3 of 3" in call(*front, "--max_steps", "3", cwd=folder)
    call("eval.py", "--run", "results/smoke", "--sweep", cwd=folder)


def test_another_run_from_its_weights_has_the_cameras_of_its_own_photographs(folder):
    posed(folder / "others", 8, 3.0)
    other = [*RUN[:-2], "expname=other", *RUN[-2:], "--data_dir", "others", "--resume", "results/smoke/model.pt"]
    said = call(*other, "--max_steps", "2", cwd=folder)
    assert "as the checkpoint" not in said and "step 2 of 2" in said
    assert cameras(folder, "other")[:2] == (50, (3, 3))


def test_its_weights_have_its_cameras_whatever_config_is_named_with_them(folder):
    config, weights = folder / "other.yaml", folder / "results" / "smoke" / "model.pt"
    rows = config_to_dict(load_config(folder / "results" / "smoke" / "config.yaml"))
    for key in ("fov", "radius", "near", "far", "vmin", "vmax"):
        del rows["data"][key]
    config.write_text(yaml.safe_dump(rows))
    generator = graf.load_generator(weights, config)
    assert (generator.config.data.fov, generator.config.data.far) == (50, 2.933)
    named = ["--config", "other.yaml", "--checkpoint", "results/smoke/model.pt"]
    told = "data.far: 2.933, data.vmin: 0.0974 and data.vmax: 0.103, as the checkpoint has them"
    measured = ["metrics.n_real=8", "metrics.n_fake=8"]
    assert told in call("eval.py", *named, "--metrics", "kid", "--set", *measured, cwd=folder)
    layers = ["--layers", "output", "--num_samples", "2", "--out", "activations"]
    assert told in call("tools/cache_activations.py", *named, *layers, cwd=folder)
    config.write_text(yaml.safe_dump(rows | {"data": rows["data"] | {"fov": 45, "radius": 3, "near": 2, "far": 4}}))
    assert graf.load_generator(weights, config).config.data.far == 4
    config.write_text(yaml.safe_dump(rows | {"data": rows["data"] | {"near": 3.5}}))
    assert "near" in call("eval.py", *named, cwd=folder, status=2)


def test_a_pose_estimator_has_the_cameras_of_its_photographs_from_then_on(tmp_path):
    posed(tmp_path / "photos", 30, 2.0)
    small = ["data.imsize=16", "model.d_model=16", "model.num_heads=2", "model.num_layers=1", "training.batch_size=4"]
    command = ["train_pose.py", "--device", "cpu", "--data_dir", "photos", "--set", *small, "training.nworkers=0"]
    told = "data.fov: 50, data.radius: 2, data.near: 1.067 and data.far: 2.933, by the cameras of photos/transforms.json"
    assert told in call(*command, "--max_steps", "1", cwd=tmp_path)
    said = call(*command, "--max_steps", "2", cwd=tmp_path)
    assert "data.vmax: 0.103, as the checkpoint has them" in said and "by the cameras" not in said
    changed = [line for line in said.splitlines() if "changed since the checkpoint" in line]
    assert changed == ["training.max_steps changed since the checkpoint: 1 -> 2"]
    assert load_estimator(tmp_path / "results" / "pose").config.data.fov == 50
    older = tmp_path / "results" / "pose" / "model.pt"
    content = torch.load(older, weights_only=True)
    content["config"]["training"]["save_every_steps"] = content["config"]["training"].pop("save_every")
    torch.save(content, older)
    assert "step 3 of 3" in call(*command, "--max_steps", "3", cwd=tmp_path)


def test_validate_data_takes_the_cameras_that_training_would(folder):
    said = call("tools/validate_data.py", "--data_dir", "photos", cwd=folder)
    assert "data.fov: 50, data.radius: 2" in said and "no faults" in said and "cameras stand 53 degrees above" in said
