"""A run's checkpoints survive whatever befalls a disk: kills at any moment, damage, lack of space, removal."""

import dataclasses
import errno
import importlib
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import graf.runtime.files
from graf.checkpoints import checkpoint
from graf.checkpoints import run_folder as checkpoint_files
from graf.checkpoints.checkpoint import BEST, NEWEST, backup_name, read_checkpoint, save_checkpoint
from graf.checkpoints.record import read_record, record_path
from graf.checkpoints.run_folder import newest_checkpoint, run_checkpoints, save, save_newest
from graf.config import load_config, override
from graf.errors import CheckpointError, CheckpointWriteError, ConfigError, DamagedCheckpointError, DataError, GrafError
from graf.foreign.checkpoints import checkpoint_step
from graf.runtime.console import run_script
from graf.runtime.processes import Processes
from graf.runtime.run_lock import run_lock
from graf.training import fid, loop
from graf.training.state import TrainState

import pytest
import torch
from full_disk import small_files

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(smoke, tmp_path):
    config = smoke(f"training.outdir={tmp_path}", "expname=run", "training.keep_checkpoints=3", "training.save_retries=3")
    return TrainState(config, torch.device("cpu"))


@pytest.fixture
def run_dir(state):
    return state.config.run_dir


def save_steps(state, *steps):
    for state.step in steps:
        save_newest(state.checkpoint())


def names(folder, pattern="*"):
    return sorted(path.name for path in folder.glob(pattern))


def step_of(path):
    return checkpoint_step(read_checkpoint(path))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# Which are kept --------------------------------------------------------------------------------------------------------


def test_the_newest_are_kept_and_model_pt_is_the_newest(state, run_dir):
    save_steps(state, 1, 2, 3, 4, 5)
    assert step_of(run_dir / NEWEST) == 5
    assert names(run_dir / "checkpoints", "*.pt") == ["model_00000003.pt", "model_00000004.pt"]
    for path in run_checkpoints(run_dir):
        assert read_record(path).step == step_of(path)
    assert [step_of(path) for path in run_checkpoints(run_dir)] == [5, 4, 3]
    assert names(run_dir) == ["checkpoints", "model.pt", "model.pt.json"]


def test_copies_that_a_user_puts_beside_them_are_kept(state, run_dir):
    save_steps(state, 1, 2)
    copies = "model_00000001_copy.pt", "model_good.pt", "model.pt"
    for name in copies:
        shutil.copyfile(run_dir / NEWEST, run_dir / "checkpoints" / name)
    save_steps(state, 3, 4, 5, 6)
    assert set(copies) < set(names(run_dir / "checkpoints", "*.pt"))
    assert "model_00000003.pt" not in names(run_dir / "checkpoints")


def test_one_may_be_all(smoke, tmp_path):
    state = TrainState(smoke(f"training.outdir={tmp_path}", "training.keep_checkpoints=1"), torch.device("cpu"))
    save_steps(state, 1, 2)
    assert [step_of(path) for path in run_checkpoints(state.config.run_dir)] == [2]


def test_backups_and_the_best_are_kept_for_good(state, run_dir):
    state.step = 1
    save(run_dir / backup_name(1), state.checkpoint())
    save(run_dir / BEST, state.checkpoint())
    save_steps(state, 2, 3, 4, 5, 6)
    assert [step_of(path) for path in run_checkpoints(run_dir)] == [6, 5, 4, 1, 1]


def test_after_going_back_in_steps_the_last_saved_are_the_newest(state, run_dir):
    """--resume backups/model_00000002.pt does so: the steps beyond it belong to another run."""
    save_steps(state, 8, 9, 3, 4)
    assert [step_of(path) for path in run_checkpoints(run_dir)] == [4, 3, 9]


def test_a_clock_that_is_set_back_does_not_make_the_newest_the_oldest(state, run_dir, monkeypatch):
    now = time.time()
    save_steps(state, 3, 4)
    monkeypatch.setattr(time, "time", lambda: now - 7200)
    save_steps(state, 5, 6, 7)
    assert [step_of(path) for path in run_checkpoints(run_dir)] == [7, 6, 5]
    saved = [read_record(path).saved for path in run_checkpoints(run_dir)]
    assert saved == sorted(saved, reverse=True) and len(set(saved)) == 3


def test_a_disk_without_hard_links_has_copies(state, run_dir, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    save_steps(state, 1, 2)
    assert [step_of(path) for path in run_checkpoints(run_dir)] == [2, 1]


def test_what_a_killed_run_left_half_written_makes_room_for_the_next_save(state, run_dir, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (run_dir / "backups").mkdir(parents=True)
    left = [
        f".model.{process.pid}.partial.pt",
        f".config.{process.pid}.partial.yaml",
        f"backups/.model.{process.pid}.partial.pt",
    ]
    for name in left:
        (run_dir / name).write_bytes(b"half")
    (run_dir / f".other.{os.getppid()}.partial.png").write_bytes(b"of a process that lives")
    found = []
    save = checkpoint_files.save_checkpoint
    monkeypatch.setattr(
        checkpoint_files,
        "save_checkpoint",
        lambda *given, **more: (found.extend(names(run_dir, "**/.*")), save(*given, **more)),
    )
    save_steps(state, 1)
    assert found == [f".other.{os.getppid()}.partial.png"]


# Kills -----------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is no more: nothing that would clean up has an effect either."""


class Kill:
    """Ends everything that would change the folder from its n-th change on; the changes so far are counted."""

    def __init__(self):
        self.folder, self.at, self.count = None, 0, 0
        sys.addaudithook(self.hook)

    def hook(self, event, arguments):
        if self.folder is None or event not in ("open", "os.rename", "os.remove", "os.link", "os.mkdir"):
            return
        if not str(arguments[0]).startswith(self.folder) or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        self.count += 1
        if self.count >= self.at:
            raise Killed


@pytest.fixture(scope="module")
def kill():
    return Kill()


def test_a_kill_at_any_moment_of_a_save_leaves_the_run_loadable(state, run_dir, kill, caplog):
    save_steps(state, 1, 2)
    before = run_dir.with_name("before")
    shutil.copytree(run_dir, before)
    state.step, found = 3, []
    caplog.set_level(logging.INFO, "graf")
    for kill.at in itertools.count(1):
        shutil.rmtree(run_dir)
        shutil.copytree(before, run_dir)
        kill.folder, kill.count = str(run_dir), 0
        try:
            save_newest(state.checkpoint())
            killed = False
        except Killed:
            killed = True
        kill.folder = None
        path = newest_checkpoint(run_dir)
        assert path == run_dir / NEWEST
        found.append(step_of(path))
        assert not any(record_path(p).exists() and read_record(p).step != step_of(p) for p in run_checkpoints(run_dir))
        if not killed:
            break
        save_steps(state, 3)
        assert [step_of(p) for p in run_checkpoints(run_dir)][0] == 3
    assert len(found) > 8  # kills, each somewhere else
    assert found == sorted(found)  # the old one, until at some moment it is the new one
    assert set(found) == {2, 3}
    assert "no record beside it" in caplog.text


# Damage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", [truncate, flip_a_bit, lambda path: path.write_bytes(b"")])
def test_a_damaged_newest_is_set_aside_and_the_one_before_is_taken(state, run_dir, caplog, harm):
    save_steps(state, 1, 2, 3)
    harm(run_dir / NEWEST)
    damaged = (run_dir / NEWEST).read_bytes()
    with caplog.at_level(logging.WARNING, "graf"):
        path = newest_checkpoint(run_dir, set_aside=True)
    assert step_of(path) == 2
    assert f"falling back to step 2 of {path}" in caplog.text
    assert f"{run_dir / NEWEST}: " in caplog.text
    assert "set aside as model.pt.damaged" in caplog.text
    save_steps(state, 3)
    assert (run_dir / "model.pt.damaged").read_bytes() == damaged
    assert (run_dir / "model.pt.damaged.json").exists()
    assert step_of(newest_checkpoint(run_dir)) == 3


def test_damage_is_looked_through_as_far_as_the_backups(state, run_dir):
    state.step = 1
    save(run_dir / backup_name(1), state.checkpoint())
    save_steps(state, 2, 3, 4)
    for path in run_checkpoints(run_dir)[:3]:
        path.write_bytes(b"")
    assert newest_checkpoint(run_dir, set_aside=True) == run_dir / backup_name(1)
    assert names(run_dir / "checkpoints", "*.damaged") == ["model_00000002.pt.damaged", "model_00000003.pt.damaged"]


def test_a_missing_newest_is_the_one_before(state, run_dir, caplog):
    save_steps(state, 1, 2)
    (run_dir / NEWEST).unlink()
    assert step_of(newest_checkpoint(run_dir)) == 1
    assert "no model.pt, falling back" in caplog.text


def test_a_generator_is_loaded_from_the_newest_that_is_whole(state, run_dir):
    save_steps(state, 1, 2)
    truncate(run_dir / NEWEST)
    found = graf.load_generator(run_dir).state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in state.generator_ema.state_dict().items())


def test_looking_alone_renames_nothing(state, run_dir):
    save_steps(state, 1, 2)
    truncate(run_dir / NEWEST)
    before = names(run_dir, "**/*")
    assert step_of(newest_checkpoint(run_dir)) == 1
    assert names(run_dir, "**/*") == before


def test_where_all_are_damaged_there_is_one_error_and_all_stay(state, run_dir):
    save_steps(state, 1, 2)
    for path in run_checkpoints(run_dir):
        truncate(path)
    before = names(run_dir, "**/*")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="none of its 2 checkpoints can be read") as caught:
            newest_checkpoint(run_dir, set_aside=True)
        assert "--set expname=" in str(caught.value)
    assert names(run_dir, "**/*") == before


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EIO, "Input/output error"), RuntimeError("can't allocate memory")], ids=repr
)
@pytest.mark.parametrize("what", ["load", "stream_sha256"])
def test_a_machine_in_trouble_damages_no_checkpoint(state, run_dir, monkeypatch, what, error):
    save_steps(state, 1, 2)
    before = names(run_dir, "**/*")

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(torch if what == "load" else checkpoint, what, fails)
    with pytest.raises(type(error)) as caught:
        newest_checkpoint(run_dir, set_aside=True)
    assert getattr(caught.value, "filename", None) in (None, str(run_dir / NEWEST))
    assert names(run_dir, "**/*") == before
    flip_a_bit(run_dir / NEWEST)  # such as one of a size, for which no memory suffices
    told = what == "load" and not isinstance(error, OSError)
    with pytest.raises(DamagedCheckpointError if told else type(error)):
        read_checkpoint(run_dir / NEWEST)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EIO, "Input/output error")], ids=repr)
def test_checksums_that_a_machine_in_trouble_cannot_compute_are_not_wrong(state, run_dir, monkeypatch, error):
    save_steps(state, 1)
    record_path(run_dir / NEWEST).unlink()

    def fails(_):
        raise error

    monkeypatch.setattr(zipfile.ZipFile, "testzip", fails)
    with pytest.raises(type(error)):
        read_checkpoint(run_dir / NEWEST)


def test_a_file_that_may_not_be_read_is_not_damaged(state, run_dir, monkeypatch):
    """Or a start would set it aside."""
    save_steps(state, 1)

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoint, "open", refuse, raising=False)
    with pytest.raises(CheckpointError, match=r"model\.pt: cannot be read \(Permission denied\)") as caught:
        read_checkpoint(run_dir / NEWEST)
    assert not isinstance(caught.value, DamagedCheckpointError)


@pytest.mark.parametrize("error", [OSError(errno.EINVAL, "Invalid argument"), OSError("no number")], ids=repr)
def test_a_bad_offset_in_a_file_is_damage(state, run_dir, monkeypatch, error):
    """The system's word for it is that of an error of the disk's kind."""
    save_steps(state, 1)

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(torch, "load", fails)
    with pytest.raises(DamagedCheckpointError, match="is cut off or damaged"):
        read_checkpoint(run_dir / NEWEST)


def test_no_run_is_no_checkpoint(tmp_path):
    assert newest_checkpoint(tmp_path / "nowhere") is None


def test_a_damaged_file_is_never_written_over(state, run_dir, caplog):
    """Nor kept as if it were a good one."""
    save_steps(state, 1)
    record_path(run_dir / NEWEST).unlink()
    truncate(run_dir / NEWEST)
    save_steps(state, 2)
    (run_dir / NEWEST).write_bytes(b"")
    record_path(run_dir / NEWEST).unlink()
    save_steps(state, 3)
    assert names(run_dir, "*.damaged") == ["model.pt.2.damaged", "model.pt.damaged"]
    assert [step_of(path) for path in run_checkpoints(run_dir)] == [3]


# A disk that does not take it ------------------------------------------------------------------------------------------


@pytest.fixture
def waits():
    return []


def failing(n_times, error):
    """save_checkpoint that fails so many times."""
    left = iter(range(n_times))

    def save_or_fail(path, checkpoint, scalars=None, after=""):
        if next(left, None) is not None:
            raise CheckpointWriteError("as below") from error
        save_checkpoint(path, checkpoint, scalars, after)

    return save_or_fail


def test_a_save_that_fails_is_tried_again_after_longer_and_longer(state, run_dir, monkeypatch, waits, caplog):
    monkeypatch.setattr(checkpoint_files, "save_checkpoint", failing(3, OSError(errno.ENOSPC, "No space left on device")))
    save_newest(state.checkpoint(), sleep=waits.append)
    assert waits == [1, 2, 4]
    assert "No space left on device" in caplog.text
    assert (run_dir / NEWEST).exists()


def test_a_save_waits_a_minute_at_most(state, monkeypatch, waits):
    monkeypatch.setattr(checkpoint_files, "save_checkpoint", failing(8, OSError(errno.ENOSPC, "No space left on device")))
    patient = override(state.config, ["training.save_retries=8"])
    save_newest(dataclasses.replace(state.checkpoint(), config=patient), sleep=waits.append)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_save_that_keeps_failing_ends_with_what_there_still_is(state, run_dir, monkeypatch, waits):
    save_steps(state, 1)
    monkeypatch.setattr(checkpoint_files, "save_checkpoint", failing(99, OSError(errno.ENOSPC, "No space left on device")))
    state.step = 2
    with pytest.raises(CheckpointWriteError) as caught:
        save_newest(state.checkpoint(), sleep=waits.append)
    assert waits == [1, 2, 4]
    message = str(caught.value)
    assert message.startswith(
        f"{run_dir / NEWEST}: step 2 cannot be written ([Errno 28] No space left on device; tried 4 times)"
    )
    assert f"the last good one, {run_dir / NEWEST}, is intact" in message
    assert caught.value.exit_status == 1


def test_a_save_that_runs_out_of_memory_does_not_wait(state, monkeypatch, waits):
    """Waiting makes no room; the guard of the run does, and has it tried again."""

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(checkpoint_files, "save_checkpoint", fails)
    no_memory = CheckpointWriteError("model.pt: cannot be written (std::bad_alloc)")
    no_memory.__cause__ = RuntimeError("std::bad_alloc")
    for error in (MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), no_memory):
        with pytest.raises(type(error)) as caught:
            save_newest(state.checkpoint(), sleep=waits.append)
        assert caught.value is error and waits == []


def test_the_first_save_has_none_before_it(state, monkeypatch, waits):
    monkeypatch.setattr(checkpoint_files, "save_checkpoint", failing(99, OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(CheckpointWriteError, match="Read-only file system.*has no checkpoint yet"):
        save_newest(state.checkpoint(), sleep=waits.append)


def test_a_full_disk_keeps_what_there_was(state, run_dir, waits):
    save_steps(state, 1, 2)
    before = {path: path.read_bytes() for path in run_checkpoints(run_dir)}
    state.step = 3
    with small_files(len(before[run_dir / NEWEST]) // 2), pytest.raises(CheckpointWriteError, match="File too large"):
        save_newest(state.checkpoint(), sleep=waits.append)
    assert before.items() <= {path: path.read_bytes() for path in run_checkpoints(run_dir)}.items()
    assert not names(run_dir, ".*")


def test_a_folder_that_is_removed_is_made_again(state, run_dir, monkeypatch, waits):
    save_steps(state, 1, 2)
    shutil.rmtree(run_dir)
    save_steps(state, 3)
    assert step_of(run_dir / NEWEST) == 3

    verified, removals = checkpoint_files.save_checkpoint, iter([run_dir])

    def remove_meanwhile(path, checkpoint, scalars=None, after=""):
        shutil.rmtree(next(removals, run_dir / "nothing"), ignore_errors=True)
        verified(path, checkpoint, scalars, after)

    monkeypatch.setattr(checkpoint_files, "save_checkpoint", remove_meanwhile)
    state.step = 4
    save_newest(state.checkpoint(), sleep=waits.append)
    assert step_of(run_dir / NEWEST) == 4


def test_a_folder_that_cannot_be_written_is_one_error(state, run_dir, waits):
    run_dir.write_text("a file is in the way")
    with pytest.raises(CheckpointWriteError, match="model.pt: step 0 cannot be written"):
        save_newest(state.checkpoint(), sleep=waits.append)
    assert len(waits) == 3


# train.py --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cars(tmp_path_factory):
    return tmp_path_factory.mktemp("cars")


@pytest.fixture
def train(tmp_path, cars, monkeypatch, capsys):
    """Runs train.py in tmp_path on the smoke config; returns its exit status and what it said."""
    quiet = ["training.save_every=1", "training.sample_every=0", "training.monitoring=none", "training.save_retries=0"]
    quiet += [f"data.datadir=[{cars}]", "data.n_images=8"]

    def run(max_steps: int, *overrides: str) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(ROOT))
        arguments = ["--config", str(ROOT / "configs" / "smoke.yaml"), "--device", "cpu", "--max_steps", str(max_steps)]
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments, "--set", *quiet, *overrides])
        script = importlib.import_module("train")
        monkeypatch.setattr("graf.commands.run.draw_curves", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            run_script(script.main)
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    return run


KINDS = {
    "plain": (),
    "workers, parts, consistency and metrics": (
        "training.nworkers=2", "training.accumulation_steps=2", "ccsr.mode=consistency", "ray_sampler.rays_per_patch=256",
        "training.fid_every=2", "training.save_best=kid", "metrics.extractor=efficientnet-lite0", "metrics.n_real=8",
        "metrics.n_fake=8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_continues_from_before_the_damage_bit_for_bit(train, tmp_path, kind):
    run_dir, overrides = tmp_path / "results" / "smoke", KINDS[kind]
    status, said = train(3, *overrides)
    assert status == 0, said
    straight = read_checkpoint(run_dir / NEWEST)["state"]
    shutil.rmtree(run_dir)
    train(2, *overrides)
    of_step_2 = [path for path in run_checkpoints(run_dir) if step_of(path) == 2]
    assert len({str(read_checkpoint(path)["state"]["lowest_losses"]) for path in of_step_2}) == 1
    for path in of_step_2:
        flip_a_bit(path)
    status, said = train(3, *overrides)
    assert status == 0
    assert "model.pt: damaged" in said
    assert "falling back to step 1 of results/smoke/checkpoints/model_00000001.pt" in said
    assert (run_dir / "model.pt.damaged").exists()
    continued = read_checkpoint(run_dir / NEWEST)["state"]
    for network in ("generator", "discriminator", "generator_ema"):
        assert all(torch.equal(continued[network][name], straight[network][name]) for name in straight[network])
    assert continued["lowest_losses"] == straight["lowest_losses"] and len(straight["lowest_losses"]) >= 2
    assert continued["best"] == straight["best"]
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "evaluation" not in row] == [1, 2, 3]
    assert [row["step"] for row in rows if "evaluation" in row] == ([2, 3] if "training.fid_every=2" in overrides else [])
    assert (straight["best"] is not None) == ("training.save_best=kid" in overrides)
    assert read_record(run_dir / NEWEST).metrics["scalars"].keys() >= {"loss_d", "loss_g"}


def test_two_trainings_never_share_a_folder(train, tmp_path):
    run_dir = tmp_path / "results" / "smoke"
    train(1)
    before = (run_dir / NEWEST).read_bytes()
    with run_lock(run_dir):
        status, said = train(2)
    assert status == 2
    assert f"process {os.getpid()} on" in said
    assert (run_dir / NEWEST).read_bytes() == before
    assert train(2)[0] == 0
    assert not (run_dir / "run.lock").exists()


@pytest.mark.parametrize("room", [20_000, 1_000])  # in the second the config does not find place either
def test_a_full_disk_ends_a_run_with_status_1(train, tmp_path, room):
    train(1)
    with small_files(room):
        status, said = train(2)
    assert status == 1
    assert "train.py: error: results/smoke/model.pt: step 2 cannot be written ([Errno 27] File too large" in said
    assert "is intact" in said
    assert ("config.yaml: cannot be written" in said) == (room == 1_000)
    assert "Traceback" not in said


def test_a_disk_too_full_for_the_lock_ends_a_run_with_status_1(train, tmp_path):
    with small_files(10):
        status, said = train(1)
    assert status == 1
    assert "results/smoke: cannot be written ([Errno 27] File too large); make room" in said
    assert not names(tmp_path / "results" / "smoke")


def test_a_checkpoint_that_another_process_takes_away_is_passed_over(train, tmp_path):
    train(1)
    run_dir = tmp_path / "results" / "smoke"
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    (run_dir / "checkpoints" / "model_00000000.pt").symlink_to("gone")
    assert run_checkpoints(run_dir)[0] == newest_checkpoint(run_dir) == run_dir / NEWEST


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EIO, "Input/output error", "photo.png"), "[Errno 5] Input/output error: 'photo.png'"),
        (DataError("photo.png: cannot be read"), "photo.png: cannot be read"),
    ],
)
def test_metrics_that_cannot_be_measured_are_not_worth_a_run(train, tmp_path, monkeypatch, error, told):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(fid, "measure_generator", fails)
    status, said = train(2, "training.fid_every=1", "metrics.extractor=efficientnet-lite0")
    assert status == 0
    for step in (1, 2):
        assert f"step {step}: FID and KID cannot be measured ({told})" in said
    assert step_of(tmp_path / "results" / "smoke" / NEWEST) == 2


def test_metrics_that_fail_lose_no_step(train, tmp_path, monkeypatch):
    def fails(*_):
        raise GrafError("too few")

    monkeypatch.setattr(loop, "evaluate", fails)
    status, _ = train(2, "training.fid_every=1", "metrics.extractor=efficientnet-lite0")
    assert status == 2
    assert step_of(tmp_path / "results" / "smoke" / NEWEST) == 1


def test_all_processes_must_have_the_same_photographs(train, monkeypatch):
    compared = {}
    monkeypatch.setattr(Processes, "require_same", lambda _, value, what: compared.update({what: value}))
    train(1)
    assert compared["the real images"][0] == 8


def test_a_run_outlives_the_removal_of_its_folder(train, tmp_path, monkeypatch):
    run_dir, step, said_once = tmp_path / "results" / "smoke", loop.train_step, "rows of metrics.jsonl cannot be written"
    monkeypatch.setattr(graf.runtime.files, "_lost", set())

    def removed(state, *arguments):
        if state.step == 1:
            shutil.rmtree(run_dir)
        return step(state, *arguments)

    monkeypatch.setattr(loop, "train_step", removed)
    status, said = train(3, "memory.interval_s=0")  # whose thread makes the folder of its rows
    assert status == 0
    assert step_of(run_dir / NEWEST) == 3
    assert said.count(said_once) == 1
    assert [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()] == [3]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="POSIX signals")
def test_a_run_that_a_batch_system_ends_asks_to_be_started_again(train, tmp_path, monkeypatch):
    step = loop.train_step

    def signalled(state, *arguments):
        os.kill(os.getpid(), signal.SIGUSR1)
        return step(state, *arguments)

    monkeypatch.setattr(loop, "train_step", signalled)
    status, said = train(5)
    assert status == 3
    assert "ended by SIGUSR1 at step 1; --resume auto continues from there" in said
    assert step_of(tmp_path / "results" / "smoke" / NEWEST) == 1


def test_a_run_that_is_out_of_hours_asks_too(train):
    status, said = train(5, "training.max_hours=1e-9")
    assert status == 3
    assert "ended by training.max_hours at step 1" in said  # or it would ask for ever


def test_a_config_that_wants_to_run_code_is_refused_unrun(tmp_path):
    marker, path = tmp_path / "was here", tmp_path / "evil.yaml"
    path.write_text(f"expname: !!python/object/apply:builtins.open ['{marker}', 'w']\n")
    with pytest.raises(ConfigError, match="evil.yaml, line 1: not valid YAML"):
        load_config(path)
    assert not marker.exists()
