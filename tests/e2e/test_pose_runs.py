"""train_pose.py as a user types it, at a small size: plots at every kind of end, and messages on what it cannot train on."""

import json
import os
import signal
import subprocess
import sys
import time

from graf.pictures.outputs import write_image

import pytest
import torch
from command_line import ROOT, call, run

SMALL = [
    *("--device", "cpu", "--set", "data.imsize=16", "data.n_images=40", "model.d_model=16", "model.num_heads=2"),
    *("model.num_layers=1", "training.batch_size=4", "training.nworkers=0", "training.validate_every=2"),
    *("training.print_every=1", "training.monitoring=none"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run of four steps."""
    folder = tmp_path_factory.mktemp("pose")
    (folder / "said.txt").write_text(call("train_pose.py", *SMALL, "--max_steps", "4", cwd=folder))
    return folder


def plots(folder):
    return sorted(path.name for path in (folder / "results" / "pose" / "plots").iterdir())


def test_a_run_ends_with_seven_plots_and_a_csv(folder):
    said = (folder / "said.txt").read_text()
    assert "training on 32 images, validating on 4 and testing on 4, of other objects" in said
    assert "epoch 0.5, step 4: validation, 4 samples collected" in said
    assert "degrees on the test set" in said and "plots:      results/pose/plots" in said
    assert len(plots(folder)) == 8 and "validation.csv" in plots(folder)
    rows = [json.loads(line) for line in (folder / "results" / "pose" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val_azimuth_deg" in row] == [2, 4]
    assert [row["step"] for row in rows if "test_azimuth_deg" in row] == [4]
    assert (folder / "results" / "pose" / "curves").is_dir()


def test_a_run_is_shown_by_the_monitor(folder):
    said = run("tools/monitor_training.py", "results/pose", "--once", cwd=folder)
    assert "finished" in said and "loss_rotation" in said
    status = json.loads((folder / "results" / "pose" / "status.json").read_text())
    assert (status["state"], status["step"], status["max_steps"]) == ("finished", 4, 4) and "loss" in status["scalars"]


def test_a_pose_run_is_no_generator(folder):
    assert "a pose estimator of train_pose.py" in call("eval.py", "--run", "results/pose", cwd=folder, status=2)


def test_sigterm_leaves_a_checkpoint_and_plots(tmp_path):
    command = [sys.executable, str(ROOT / "train_pose.py"), *SMALL, "--max_steps", "100000"]
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 300
    try:
        while "samples collected" not in (tmp_path / "log.txt").read_text():
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
        process.wait()
    assert len(plots(tmp_path)) == 8
    assert (tmp_path / "results" / "pose" / "model.pt").exists()


def test_a_dry_run_tells_and_writes_nothing_but_the_data(tmp_path):
    said = call("train_pose.py", *SMALL, "--dry_run", cwd=tmp_path)
    assert "estimator: " in said and "one step: loss " in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_photographs_without_cameras_are_refused(tmp_path):
    (tmp_path / "photos").mkdir()
    for index in range(12):
        write_image(tmp_path / "photos" / f"{index}.png", torch.full((3, 16, 16), index, dtype=torch.uint8))
    said = call("train_pose.py", *SMALL, "--data_dir", "photos", cwd=tmp_path, status=2)
    assert "learns from images whose cameras are known" in said


def test_a_distribution_over_azimuths_takes_a_turntable_and_no_rolled_cameras(tmp_path):
    for azimuth in range(0, 360, 30):
        image = torch.full((3, 16, 16), azimuth // 2, dtype=torch.uint8)
        write_image(tmp_path / "photos" / f"0.5_{azimuth:04d}.png", image)
    asked = [*SMALL, "model.azimuth_bins=8", "data.v=0.25", "--data_dir", "photos", "--dry_run"]
    assert "one step: " in call("train_pose.py", *asked, cwd=tmp_path)
    assert "set model.azimuth_bins=0" in call("train_pose.py", *asked, "--set", "data.roll_deg=90", cwd=tmp_path, status=2)


def test_flags_of_other_suites_are_answered_with_ours(tmp_path):
    said = call("train_pose.py", "--max_epochs", "50", "--precision", "16", cwd=tmp_path, status=2)
    assert "--max_epochs: here it is training.max_steps: an epoch is" in said
    assert "--precision: here it is training.use_amp" in said
