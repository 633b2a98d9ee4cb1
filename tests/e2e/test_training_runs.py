"""The command lines as a user types them: train, resume, sweep, at the size of configs/smoke.yaml."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from graf.checkpoints.checkpoint import NEWEST, backup_name
from graf.checkpoints.conditions import source_digest
from graf.reporting.run_status import read_status
from graf.runtime import device
from graf.training import samples

import imageio.v2 as imageio
import pytest
import torch
from command_line import ROOT, SMOKE, call, run
from compare_runs import require_same_run

EACH_STEP = ["--set", "training.backup_every=1"]  # a checkpoint of each step, for comparison


def weights(run_dir: Path, name: str = NEWEST) -> dict[str, torch.Tensor]:
    state = torch.load(run_dir / name, weights_only=True)["state"]
    return {f"{net}.{k}": v for net in ("generator", "generator_ema", "discriminator") for k, v in state[net].items()}


def read_rows(run_dir: Path) -> list[dict]:
    """The lines of metrics.jsonl, but for those that tell of the sample sheets."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "depth_spread" not in row]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of a run of four steps made in one go; source.txt: the digest of graf/ and configs/ before it."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "source.txt").write_text(source_digest())
    steps = ["--max_steps", "4", "--set", "training.sample_every=2"]
    (folder / "log.txt").write_text(run("train.py", *SMOKE, "--use_amp", *EACH_STEP, *steps, cwd=folder))
    return folder


def test_a_run_leaves_checkpoint_config_curves_and_samples(folder):
    run_dir = folder / "results" / "smoke"
    rows = read_rows(run_dir)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert {"loss_d", "loss_g", "penalty", "opacity", "lr_g"} <= set(rows[0])
    sheets = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if "depth_spread" in line]
    assert [row["step"] for row in sheets] == [1, 2, 3, 4]
    assert (run_dir / "config.yaml").exists()
    assert (run_dir / "curves" / "training.png").exists()
    sheets = sorted(path.name for path in (run_dir / "samples").iterdir())
    assert [name for name in sheets if name.endswith("rgb.png")] == [f"{step:08d}_rgb.png" for step in (1, 2, 3, 4)]
    height, width, _ = imageio.imread(run_dir / "samples" / "00000004_depth.png").shape
    assert height > 4 * 128 and width > 4 * 128  # with captions
    assert len(imageio.mimread(run_dir / "samples" / "progress.gif")) == 4


def test_two_steps_and_two_resumed_are_four_bit_for_bit(folder, tmp_path):
    sources = {"straight run": (folder / "source.txt").read_text(), "first half": source_digest()}
    steps = ["--max_steps", "2", "--set", "training.sample_every=0"]
    said = run("train.py", *SMOKE, "--use_amp", *EACH_STEP, *steps, cwd=tmp_path)
    sources["second half"] = source_digest()
    continued = run("train.py", *SMOKE, "--use_amp", *EACH_STEP, "--max_steps", "4", cwd=tmp_path)
    assert "from step 2" in continued
    (tmp_path / "log.txt").write_text(said + continued)
    require_same_run(folder, tmp_path, 4, sources)
    straight, resumed = weights(folder / "results" / "smoke"), weights(tmp_path / "results" / "smoke")
    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_another_seed_is_another_run(folder, tmp_path):
    call("train.py", *SMOKE, "--use_amp", "--max_steps", "1", "--seed", "7", cwd=tmp_path)
    ours, theirs = weights(folder / "results" / "smoke", backup_name(1)), weights(tmp_path / "results" / "smoke")
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) > 0.01  # by more than rounding


def test_resume_none_refuses_to_write_over_a_run(folder):
    before = (folder / "results" / "smoke" / "model.pt").read_bytes()
    said = call("train.py", *SMOKE, "--resume", "none", cwd=folder, status=2)
    assert "--resume auto" in said
    assert (folder / "results" / "smoke" / "model.pt").read_bytes() == before


@pytest.mark.parametrize("where", ["beside", "elsewhere"])
def test_a_renamed_runs_own_config_begins_no_other_run_and_says_how_to_go_on(folder, tmp_path, where):
    """In the old folder, unless it is asked for another."""
    shutil.copytree(folder / "data", tmp_path / "data")
    new = tmp_path / ("results/b #1" if where == "beside" else "kept/b #1")
    shutil.copytree(folder / "results" / "smoke", new)
    again = ("train.py", "--config", f"{new.relative_to(tmp_path)}/config.yaml", "--max_steps", "5")
    for more in ((), ("--dry_run",), ("--resume", str(new / NEWEST))):
        said = call(*again, *more, cwd=tmp_path, status=2)
        assert "which was renamed, moved or copied: the config names results/smoke, where a run would begin at step 0" in said
    assert not (tmp_path / "results" / "smoke").exists()
    cure = re.search(r"Continue this one with --set (.*), or begin another", said)[1]
    assert "model.pt from step 4" in call(*again, "--set", *shlex.split(cure), cwd=tmp_path)
    assert [row["step"] for row in read_rows(new)] == [1, 2, 3, 4, 5]
    call(*again, "--set", "expname=other", "--dry_run", cwd=tmp_path)
    assert not (tmp_path / "results" / "smoke").exists()


def test_a_copied_runs_own_config_does_not_go_on_with_the_first(folder, tmp_path):
    shutil.copytree(folder / "results", tmp_path / "results")
    shutil.copytree(tmp_path / "results" / "smoke", tmp_path / "results" / "copy")
    said = call("train.py", "--config", "results/copy/config.yaml", cwd=tmp_path, status=2)
    assert "the config names results/smoke, where the run there would be continued. Continue this one with --set" in said


def test_a_finished_run_says_so(folder):
    said = call("train.py", *SMOKE, "--max_steps", "4", cwd=folder)
    assert "already; a higher --max_steps trains on, --set expname=NAME begins another run" in said


def test_a_named_checkpoint_with_too_few_steps_to_go_says_so(folder, tmp_path):
    """Another expname is no advice: the checkpoint would be continued there too."""
    checkpoint = folder / "results" / "smoke" / NEWEST
    more = ("--resume", str(checkpoint), "--set", "expname=fresh")
    said = call("train.py", *SMOKE, "--use_amp", *more, "--max_steps", "3", cwd=tmp_path)
    assert f"nothing was trained: {checkpoint} is at step 4 already, and --max_steps is 3; a higher one trains on" in said
    assert "--set expname" not in said
    assert not (tmp_path / "results" / "fresh").exists()


def test_dry_run_tells_and_writes_nothing_but_the_data(tmp_path):
    said = call("train.py", *SMOKE, "--dry-run", "--set", "training.accumulation_steps=2", cwd=tmp_path)
    assert "parameters" in said
    assert "batch 4 in 2 parts of 2" in said
    assert f"kept in {tmp_path / 'data' / 'toy_cars'}" in said
    assert "one step: " in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(("script", "flags", "status"), [("train.py", ("--dry_run",), 0), ("eval.py", (), 2)])
def test_what_was_imported_is_frozen_once(tmp_path, monkeypatch, script, flags, status):
    """eval.py finds no run, after that."""
    frozen = []
    monkeypatch.setattr(device.gc, "get_freeze_count", lambda: 10**6 * len(frozen))
    monkeypatch.setattr(device.gc, "freeze", lambda: frozen.append("all"))
    for _ in range(2):
        call(script, *SMOKE, *flags, cwd=tmp_path, status=status)
    assert frozen == ["all"]


def test_sweep_of_chosen_angles(folder):
    said = call("eval.py", *SMOKE, "--azimuths", "0,90,180", "--n_objects", "2", "--plain", cwd=folder)
    names = [Path(line).name for line in said.splitlines() if "/eval/" in line]
    assert "sweep_rgb.png" in names
    assert {"rotation_rgb.mp4", "elevation_depth.gif"} <= set(names)
    out = folder / "results" / "smoke" / "eval" / "step_00000004"
    assert imageio.imread(out / "sweep_rgb.png").shape == (2 * 18 + 2, 3 * 18 + 2, 3)
    assert len(imageio.mimread(out / "rotation_rgb.gif")) == 72
    assert imageio.get_reader(out / "rotation_rgb.mp4").get_meta_data()["size"] == (512, 256)


def test_every_cadence_does_what_it_says(tmp_path, monkeypatch, two_threads):
    monkeypatch.setattr(samples, "VIDEO_FRAMES", 8)
    every = ["training.save_best=kid"] + [
        f"training.{name}=2" for name in ("fid_every", "video_every", "backup_every", "save_every")
    ]
    extractor = ["--set", "metrics.extractor=efficientnet-lite0"]
    plain = ["train.py", *SMOKE, "--use_amp", "--max_steps", "4", "--set", "training.sample_every=0"]
    call(*plain, "expname=unmeasured", cwd=tmp_path)  # first, when no measurement has left anything behind
    said = call(*plain, *every, *extractor, cwd=tmp_path)
    run_dir = tmp_path / "results" / "smoke"
    assert [path.name for path in sorted((run_dir / "backups").glob("*.pt"))] == ["model_00000002.pt", "model_00000004.pt"]
    assert [path.name for path in sorted((run_dir / "videos").iterdir())] == ["00000002_rotation.mp4", "00000004_rotation.mp4"]
    rows = read_rows(run_dir)
    assert [row["step"] for row in rows if "evaluation" in row] == [2, 4]
    assert "kid_efficientnet-lite0" in next(row for row in rows if "evaluation" in row)["evaluation"]["values"]

    closing = dict(line.split(":", 1) for line in said[said.index("done:") :].splitlines() if ":" in line)
    kid = rows[-1]["evaluation"]["values"]["kid_efficientnet-lite0"]
    assert "at step 4" in closing["done"] and "for 4 steps" in closing["time"] and "GB of the host at most" in closing["memory"]
    assert closing["quality"].endswith(f"KID (efficientnet-lite0) {kid:.4g}; 16 generated and 16 real images at 16 px")
    assert closing["images"].strip() == "16 seen, 4 in each step" and "pictures" not in closing
    assert closing["checkpoint"].strip() == "results/smoke/model.pt"
    assert closing["next"].strip() == "python eval.py --run results/smoke"
    assert len(list((run_dir / "curves").glob("metrics_efficientnet-lite0_*.png"))) == 1

    results = {row["step"]: row["evaluation"] for row in rows if "evaluation" in row}
    kid = {step: result["values"]["kid_efficientnet-lite0"] for step, result in results.items()}
    best = torch.load(run_dir / "model_best.pt", weights_only=True)["state"]
    assert best["step"] == min(kid, key=kid.get)
    assert best["best"]["value"] == min(kid.values())
    assert results[2]["ema"] and results[2]["step"] == 2

    measured, unmeasured = weights(run_dir), weights(run_dir.with_name("unmeasured"))
    assert all(torch.equal(measured[name], unmeasured[name]) for name in unmeasured)

    said = call(
        "train.py",
        *SMOKE,
        "--use_amp",
        "--max_steps",
        "5",
        "--resume",
        str(run_dir / "backups" / "model_00000002.pt"),
        cwd=tmp_path,
    )
    assert "from step 2" in said
    rows = read_rows(run_dir)
    assert [row["step"] for row in rows if "evaluation" not in row] == [1, 2, 3, 4, 5]


def test_a_checkpoint_of_the_official_graf_is_swept(tmp_path):
    fixture = ROOT.parent / "shared" / "fixtures" / "graf_official"
    if not fixture.exists():
        pytest.skip("no official checkpoint here")
    arguments = [
        "--config",
        str(fixture / "config.yaml"),
        "--checkpoint",
        str(fixture / "model.pt"),
        "--azimuths",
        "0,90",
        "--plain",
    ]
    call("eval.py", *arguments, "--n_objects", "1", "--out", "sweep", cwd=tmp_path)
    assert imageio.imread(tmp_path / "sweep" / "sweep_rgb.png").shape == (26 + 2, 2 * 26 + 2, 3)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("whole_group", [False, True])
def test_sigterm_ends_after_the_step_with_a_checkpoint(tmp_path, whole_group):
    command = [sys.executable, str(ROOT / "train.py"), *SMOKE, "--max_steps", "100000"]
    command += ["--set", "training.sample_every=0", "--set", f"training.nworkers={2 if whole_group else 0}"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        rows, deadline = tmp_path / "results" / "smoke" / "metrics.jsonl", time.monotonic() + 300
        try:
            while not rows.exists():
                assert process.poll() is None, process.stdout.read()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGTERM)
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()  # or the test would wait for all steps
    assert process.returncode == 143, said
    step = torch.load(tmp_path / "results" / "smoke" / "model.pt", weights_only=True)["state"]["step"]
    assert step == len(rows.read_text().splitlines())
    status = read_status(rows.parent)
    assert (status.state, status.step) == ("stopped", step)
