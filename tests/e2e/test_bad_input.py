"""Bad input of every kind: one clear message, exit status 2, no traceback, nothing written over."""

import importlib
import sys
from pathlib import Path

from graf.runtime.console import run_script

import imageio.v2 as imageio
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TINY_IMAGES = ["data.type=images", "data.datadir=photos", "data.imsize=16", "training.batch_size=2", "training.nworkers=0"]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a script in tmp_path and returns its message, having checked how it was refused and that nothing was written."""

    def run(script: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(ROOT))
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(SystemExit) as ended:
            run_script(importlib.import_module(script.removesuffix(".py")).main)
        message = capsys.readouterr().err
        assert ended.value.code == 2
        assert len(message.splitlines()) < 10
        assert "Traceback" not in message
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return message

    return run


def photograph(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    imageio.imwrite(path, np.full((16, 16, 3), 200, np.uint8))


def test_missing_config(refused):
    assert "nowhere.yaml: no such config file" in refused("train.py", "--config", "nowhere.yaml")


def test_misspelt_key(refused, tmp_path):
    (tmp_path / "c.yaml").write_text("training: {batchsize: 4}")
    assert "unknown key 'batchsize', did you mean 'batch_size'?" in refused("train.py", "--config", "c.yaml")


def test_text_for_a_boolean(refused, tmp_path):
    (tmp_path / "c.yaml").write_text("training: {use_amp: 'True,'}")
    assert "training.use_amp: expected true or false, found 'True,'" in refused("train.py", "--config", "c.yaml")


def test_broken_yaml(refused, tmp_path):
    (tmp_path / "c.yaml").write_text("data: [1, 2")
    assert "c.yaml, line" in refused("train.py", "--config", "c.yaml")


def test_patch_that_is_no_square(refused):
    assert "rays_per_patch" in refused("train.py", "--set", "ray_sampler.rays_per_patch=1000")


def test_unknown_flag(refused):
    assert "unrecognized arguments" in refused("train.py", "--batch_size", "4")


def test_device_that_is_not_there(refused):
    assert "cuda:99" in refused("train.py", "--device", "cuda:99")


def test_missing_image_folder(refused):
    assert "photos" in refused("train.py", "--set", *TINY_IMAGES)


def test_too_few_images_to_measure_are_told_before_the_first_step(refused, tmp_path):
    photograph(tmp_path / "photos" / "one.png")
    said = refused("train.py", "--config", "smoke", "--set", *TINY_IMAGES, "training.batch_size=1", "training.fid_every=1")
    assert "fid, kid need at least 2 images of each kind, found 1 real" in said


def test_faults_of_a_data_set_are_told_together(refused, tmp_path):
    for name in ("0.5_0000.png", "0.5_0090.png", "left.png", "0.5_0400.png"):
        photograph(tmp_path / "photos" / name)
    (tmp_path / "photos" / "0.5_0180.png").write_bytes((tmp_path / "photos" / "0.5_0090.png").read_bytes()[:60])
    message = refused("train.py", "--set", *TINY_IMAGES, "data.labels=filename")
    assert all(name in message for name in ("left.png", "0.5_0400.png", "0.5_0180.png"))
    assert "0.5_0000.png" not in message


def test_fewer_images_than_a_batch(refused, tmp_path):
    photograph(tmp_path / "photos" / "one.png")
    assert "batch" in refused("train.py", "--set", *TINY_IMAGES, "data.labels=none")


def test_labels_that_tell_nothing_apart(refused, tmp_path):
    for name in ("one.png", "two.png"):
        photograph(tmp_path / "photos" / name)
    message = refused("train.py", "--set", *TINY_IMAGES, "discriminator.architecture=graf", "discriminator.label_loss=MCE")
    assert "discriminator.label_loss: MCE has nothing to tell apart in data of one class and one elevation" in message


def test_missing_checkpoint_to_resume(refused):
    assert "gone.pt" in refused("train.py", "--config", str(ROOT / "configs" / "smoke.yaml"), "--resume", "gone.pt")


def test_damaged_checkpoint(refused, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04 not really")
    assert "model.pt" in refused("eval.py", "--checkpoint", "model.pt")


def test_a_folder_with_files_of_the_users_own(refused, tmp_path):
    (tmp_path / "results" / "notes").mkdir(parents=True)
    (tmp_path / "results" / "notes" / "config.yaml").write_text("my: notes")
    (tmp_path / "results" / "notes" / "metrics.jsonl").write_text("precious")
    said = refused("train.py", "--config", "smoke", "--device", "cpu", "--set", "expname=notes")
    assert "results/notes: holds config.yaml and metrics.jsonl, which no such run wrote" in said


def test_a_run_without_its_checkpoints(refused, tmp_path):
    (tmp_path / "results" / "smoke").mkdir(parents=True)
    (tmp_path / "results" / "smoke" / "metrics.jsonl").write_text('{"step": 20, "loss_d": 1.0}\n')
    said = refused("train.py", "--config", "smoke", "--device", "cpu")
    assert "results/smoke: metrics.jsonl goes to step 20, but there is no checkpoint" in said


def test_height_beyond_the_zenith(refused):
    assert "--elevations" in refused("eval.py", "--elevations", "120")


def test_nothing_trained_yet(refused):
    assert "no trained run" in refused("eval.py")


def test_angles_that_are_no_numbers(refused):
    assert "--azimuths" in refused("eval.py", "--azimuths", "left,right")
