"""One training a folder: the living are respected, the dead are not waited for."""

import contextlib
import dataclasses
import errno
import json
import logging
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import graf.runtime.run_lock
from graf.errors import GrafError, RunFolderError
from graf.runtime.run_lock import NAME, Holder, _started, _this_process, run_lock

import psutil
import pytest


@pytest.fixture
def lock_of(tmp_path):
    """Writes the lock of a process that is this one but for the changes; returns its path."""

    def write(**changes):
        path = tmp_path / NAME
        path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(_this_process(), **changes))))
        return path

    return write


def ended_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_lock_says_who_has_it_and_goes_with_the_run(tmp_path):
    with run_lock(tmp_path / "run"):
        holder = Holder(**json.loads((tmp_path / "run" / NAME).read_text()))
        assert (holder.pid, holder.host) == (os.getpid(), platform.node())
        (tmp_path / "run" / "model.pt").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["model.pt"]


def test_a_folder_that_was_made_for_it_and_stayed_empty_goes_too(tmp_path):
    with pytest.raises(ZeroDivisionError), run_lock(tmp_path / "run"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").mkdir()
    with run_lock(tmp_path / "kept"):
        pass
    assert (tmp_path / "kept").exists()


def test_a_second_training_is_refused_and_leaves_the_lock(tmp_path):
    with run_lock(tmp_path):
        before = (tmp_path / NAME).read_text()
        with pytest.raises(GrafError, match="is training in this folder") as caught, run_lock(tmp_path):
            pass
        assert (tmp_path / NAME).read_text() == before
    message = str(caught.value)
    assert f"process {os.getpid()} on {platform.node()}" in message
    assert "--set expname=" in message
    with run_lock(tmp_path):  # free again
        pass


@pytest.mark.parametrize("stale", ["dead", "number given again", "before the last start", "in a container before it"])
def test_a_stale_lock_is_taken_over_and_said(lock_of, tmp_path, caplog, stale):
    me = _this_process()
    changes = {
        "dead": {"pid": ended_pid()},
        "number given again": {"started": me.started - 60},
        "before the last start": {"boot_id": "another"},
        "in a container before it": {"boot_id": "another", "namespace": "pid:[1]"},
    }
    path = lock_of(**changes[stale])
    with caplog.at_level(logging.WARNING, "graf"), run_lock(tmp_path):
        assert Holder(**json.loads(path.read_text())) == me
        assert f"{path}: left by process" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_stale_lock_is_taken_over_where_no_open_file_can_be_replaced(lock_of, tmp_path, monkeypatch):
    """As on Windows."""
    lock_of(pid=ended_pid())
    replace = os.replace

    def replace_closed(source, target):
        if str(target) in {file.path for file in psutil.Process().open_files()}:
            raise PermissionError(errno.EACCES, "used by another process", str(target))
        replace(source, target)

    monkeypatch.setattr(graf.runtime.run_lock, "fcntl", None)
    monkeypatch.setattr(os, "replace", replace_closed)
    with run_lock(tmp_path):
        assert Holder(**json.loads((tmp_path / NAME).read_text())) == _this_process()


def test_a_process_that_only_waits_to_be_reaped_is_dead(lock_of, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        zombie = psutil.Process(process.pid)
        lock_of(pid=process.pid, started=_started(zombie))
        with pytest.raises(GrafError, match="is training in this folder"), run_lock(tmp_path):
            pass
        process.stdin.close()
        while zombie.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with run_lock(tmp_path):
            pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the time of boot moves with the clock on Linux")
def test_a_clock_that_is_set_makes_no_living_run_a_dead_one(lock_of, tmp_path, monkeypatch):
    """By an hour, which moves the times of boot and of the process's start, and these are rounded each by itself."""
    lock_of()
    boot, start = psutil.boot_time(), psutil.Process().create_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: boot + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: start + 3600.5)
    with pytest.raises(GrafError, match="is training in this folder"), run_lock(tmp_path):
        pass


def test_a_process_that_tells_nobody_since_when_it_runs_is_taken_for_the_holder(lock_of, tmp_path, monkeypatch):
    """As another user's on some systems."""
    path, me = lock_of(), _this_process()

    def refuse(_):
        raise psutil.AccessDenied

    monkeypatch.setattr(graf.runtime.run_lock, "_this_process", lambda: me)
    monkeypatch.setattr(graf.runtime.run_lock, "_started", refuse)
    with pytest.raises(GrafError, match="is training in this folder"), run_lock(tmp_path):
        pass
    assert path.exists()


@pytest.mark.skipif(graf.runtime.run_lock.fcntl is None, reason="Windows")
def test_a_stale_lock_that_another_run_takes_and_gives_back_meanwhile_is_no_error(lock_of, tmp_path, monkeypatch):
    path, waited = lock_of(pid=ended_pid()), []

    def other_run_first(file, kind):
        waited.append(kind)
        path.unlink()

    monkeypatch.setattr(graf.runtime.run_lock.fcntl, "flock", other_run_first)
    with run_lock(tmp_path):
        assert waited == [graf.runtime.run_lock.fcntl.LOCK_EX]
        assert Holder(**json.loads(path.read_text())) == _this_process()


def test_a_lock_is_whole_or_not_there(tmp_path, monkeypatch):
    """However its writing ends; an empty one would have to be removed by hand."""
    fsync = os.fsync
    for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):

        def fails(descriptor, error=error):
            assert not (tmp_path / NAME).exists()
            raise error

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises((KeyboardInterrupt, RunFolderError)), run_lock(tmp_path):
            pass
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "fsync", fsync)


def test_a_disk_without_links_has_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    with run_lock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [NAME]
        with pytest.raises(GrafError, match="is training in this folder"), run_lock(tmp_path):
            pass
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunFolderError), run_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("job", "restarts", "free"), [("7", "1", True), ("7", "", False), ("8", "1", False)])
def test_a_job_that_slurm_started_again_elsewhere_goes_on(lock_of, tmp_path, monkeypatch, job, restarts, free):
    lock_of(host="a node that died", slurm_job="7")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    with contextlib.nullcontext() if free else pytest.raises(GrafError, match="cannot be seen"), run_lock(tmp_path):
        pass


def test_a_process_of_another_container_cannot_be_seen(lock_of, tmp_path):
    lock_of(pid=ended_pid(), namespace="pid:[1]")
    with pytest.raises(GrafError, match="in another container on .* cannot be seen from this one"), run_lock(tmp_path):
        pass


def test_a_lock_that_was_written_before_containers_were_told_apart_is_judged_by_its_process(lock_of, tmp_path):
    lock_of(pid=ended_pid(), namespace="")
    with run_lock(tmp_path):
        pass
    lock_of(namespace="")
    with pytest.raises(GrafError, match="is training in this folder"), run_lock(tmp_path):
        pass


def test_a_lock_of_another_machine_is_for_a_person_to_judge(lock_of, tmp_path):
    path = lock_of(host="elsewhere", pid=ended_pid())
    before = path.read_text()
    with pytest.raises(GrafError, match="on elsewhere trains in this folder, or did") as caught, run_lock(tmp_path):
        pass
    assert str(path) in str(caught.value)
    assert "delete that file" in str(caught.value)
    assert path.read_text() == before


@pytest.mark.parametrize(("system", "same"), [("darwin", True), ("linux", False)])
def test_a_mac_in_another_network_is_the_same_machine(lock_of, tmp_path, monkeypatch, system, same):
    lock_of(host="mac.local", pid=ended_pid())
    monkeypatch.setattr(platform, "node", lambda: "mac.fritz.box")
    monkeypatch.setattr(sys, "platform", system)
    with contextlib.nullcontext() if same else pytest.raises(GrafError, match="which cannot be seen"), run_lock(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "host": "h", "boot_id": "b", "started": 1}'])
def test_a_file_that_is_no_lock_is_not_taken_for_a_stale_one(tmp_path, content):
    (tmp_path / NAME).write_text(content)
    with pytest.raises(GrafError, match="delete the file if no training runs"), run_lock(tmp_path):
        pass
    assert (tmp_path / NAME).read_text() == content


@pytest.mark.parametrize(("run_dir", "key"), [("file", "expname"), ("file/run", "training.outdir")])
def test_a_file_in_the_place_of_the_folder_is_named_with_the_key_to_change(tmp_path, run_dir, key):
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunFolderError, match=f"file: is a file, not a folder; .* --set {key}=") as caught,
        run_lock(tmp_path / run_dir),
    ):
        pass
    assert "make room" not in str(caught.value)


@pytest.mark.parametrize("run_dir", ["file", "file/run"])
def test_where_no_config_names_the_folder_the_flag_that_does_is_named(tmp_path, run_dir):
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunFolderError, match="file: is a file, not a folder; .* with --out$"),
        run_lock(tmp_path / run_dir, "--out"),
    ):
        pass


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, r"no permission to write in this folder; have it granted, or choose another folder with --set"),
        (errno.ENOSPC, r"run: cannot be written \(.*\); make room, or choose another folder with --set"),
        (errno.EDQUOT, r"run: cannot be written \(.*\); make room, or choose another folder with --set"),
        (errno.EROFS, r"run: cannot be written \(.*\); choose another folder with --set"),
    ],
)
def test_a_folder_that_cannot_be_made_is_an_error_with_fitting_advice(tmp_path, monkeypatch, number, advice):
    def refused(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(RunFolderError, match=advice), run_lock(tmp_path / "run"):
        pass


def test_a_lock_that_somebody_else_has_by_now_is_left_to_them(lock_of, tmp_path):
    with run_lock(tmp_path):
        path = lock_of(pid=1)
    assert path.exists()


def test_a_folder_that_is_removed_meanwhile_is_no_error(tmp_path):
    with run_lock(tmp_path / "run"):
        (tmp_path / "run" / NAME).unlink()
        (tmp_path / "run").rmdir()


def contend(folder, start, end, won):
    start.wait()
    try:
        with run_lock(folder):
            won.put(os.getpid())
            end.wait()
    except GrafError:
        end.wait()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="fork")
@pytest.mark.parametrize("stale", [True, False])
def test_of_several_that_start_at_once_one_gets_the_folder(lock_of, tmp_path, stale):
    if stale:
        lock_of(started=0.0)
    fork, n = multiprocessing.get_context("fork"), 4
    start, end, won = fork.Barrier(n, timeout=30), fork.Barrier(n, timeout=30), fork.SimpleQueue()
    processes = [fork.Process(target=contend, args=(tmp_path, start, end, won)) for _ in range(n)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)  # longer than both barriers wait
        assert process.exitcode == 0
    won.get()
    assert won.empty()
