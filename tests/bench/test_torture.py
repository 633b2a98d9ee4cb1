"""A training survives its faults: the short form of bench/torture.py, and that the tool itself can tell."""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from graf.commands.run import note_data
from graf.config import load_config
from graf.data import build_dataset
from graf.errors import GrafError
from graf.runtime.interruption import Interruption
from graf.training import loop, session
from graf.training.state import TrainState

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits other processes' files")
if sys.platform.startswith("linux"):
    import torture
    import torture_run
    from torture import Fault, digest, ended, first_difference, keep_config, surviving
    from torture_run import NotSurvived, Subject

TINY = ["training.save_every=3", "training.nworkers=1", "training.monitoring=none", "data.n_images=24"]
SHORT = ["--config", str(ROOT / "configs" / "smoke.yaml"), "--faults", "5", "--set", *TINY]


def test_five_faults_are_survived_and_the_weights_are_the_same(tmp_path):
    """Killed at random, killed in a checkpoint, the newest truncated, a worker killed, the disk full."""
    command = [sys.executable, str(ROOT / "bench" / "torture.py"), *SHORT, "--json", "found.json"]
    threads = os.environ | {"OMP_NUM_THREADS": "2"}  # which is where sums might come in another order
    done = subprocess.run(command, cwd=tmp_path, env=threads, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["faults"] == found["survived"] == 5
    assert found["bit_identical"] and 0 < found["steps_lost_max"] <= 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json"]


@pytest.mark.parametrize("flags", [("--faults", "0"), ("--minutes", "-1")])
def test_no_faults_at_all_are_refused(monkeypatch, flags):
    monkeypatch.setattr(sys, "argv", ["torture.py", *flags])
    with pytest.raises(GrafError, match="expected more than 0"):
        torture.main()


def test_a_work_folder_is_made_and_one_in_use_is_refused(tmp_path, monkeypatch):
    def stop(*_):
        raise GrafError("that suffices")

    monkeypatch.setattr(torture, "apart", stop)
    monkeypatch.setattr(sys, "argv", ["torture.py", "--faults", "1", "--work", str(tmp_path / "a" / "new")])
    with pytest.raises(GrafError, match="that suffices"):
        torture.main()
    assert [path.name for path in (tmp_path / "a" / "new").iterdir()] == ["config.yaml"]
    with pytest.raises(GrafError, match="--work .*new: is not empty"):
        torture.main()


def test_a_digest_sees_the_lowest_bit_the_type_and_the_name():
    state = {"weight": torch.ones(3), "step": 4}
    nudged = torch.nextafter(torch.ones(3), torch.tensor(2.0))
    others = [
        {"weight": nudged, "step": 4},
        {"weight": torch.ones(3, dtype=torch.float64), "step": 4},
        {"weight": torch.ones(1, 3), "step": 4},
        {"bias": torch.ones(3), "step": 4},
        {"weight": torch.ones(3), "step": 5},
        {"weight": torch.tensor([1.0, -0.0, 1.0]), "step": 4},
        {"weight": torch.tensor([1.0, 0.0, 1.0]), "step": 4},
    ]
    assert digest(state) == digest({"weight": torch.ones(6)[::2], "step": 4})
    assert len({digest(other) for other in [state, *others]}) == 8


@pytest.fixture
def run(tmp_path):
    """A run of no process, that told of steps 1 to 7; the last row is cut short."""
    run_dir = tmp_path / "disturbed" / "smoke"
    run_dir.mkdir(parents=True)
    rows = "".join(json.dumps({"step": step}) + "\n" for step in range(1, 8))
    (run_dir / "metrics.jsonl").write_text(rows + '{"step": 8, "los')
    return Subject([], run_dir, tmp_path)


def test_the_step_is_that_of_the_last_whole_row(run):
    assert run.step() == 7
    (run.run_dir / "metrics.jsonl").unlink()
    assert run.step() == 0


def test_a_run_that_has_no_log_yet_has_said_nothing(run):
    assert run.said() == ""
    assert run.continued_from() is None


@pytest.mark.parametrize("writes", [True, False])
def test_a_slow_run_is_waited_for_as_long_as_it_writes(run, monkeypatch, writes):
    """Time goes by in sleeps of 100 s; what is waited for takes 2,000 s."""
    clock = [0.0]

    def sleep(_seconds):
        clock[0] += 100
        if writes and clock[0] % 400 == 0:
            run.log_file.write_text("." * int(clock[0]))

    monkeypatch.setattr(torture_run, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(Subject, "alive", True)
    with contextlib.nullcontext() if writes else pytest.raises(NotSurvived, match="wrote nothing for 600 s"):
        run.wait(lambda: clock[0] >= 2000 or None)
    assert clock[0] == (2000 if writes else 700)


def test_a_run_is_ended_before_its_folder_goes(run, monkeypatch):
    killed = []
    monkeypatch.setattr(run, "kill", lambda: killed.append(1))
    with pytest.raises(NotSurvived), ended(run):
        raise NotSurvived("its exit status is 1, not 0")
    assert killed == [1]


def test_the_first_step_that_differs_is_named_with_its_numbers(tmp_path):
    def told(name, losses):
        folder = tmp_path / name
        folder.mkdir()
        rows = [json.dumps({"step": step, "loss_g": loss, "opacity": 0.5}) for step, loss in losses.items()]
        (folder / "metrics.jsonl").write_text("\n".join(rows))
        return Subject([], folder, tmp_path)

    one, other = told("one", {1: 0.5, 2: 0.25, 3: 0.125, 4: 1.0}), told("other", {1: 0.5, 3: 0.375, 4: 2.0})
    assert first_difference(one, other) == "step 3 is the first to differ: loss_g 0.125 and 0.375"
    assert first_difference(one, one) == "none of the 4 steps that both told of differs"


def test_a_config_that_changes_meanwhile_does_not_change_the_run(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("training:\n  reg_every: 3\n  lr_g: 0.25\n")
    config = load_config(own, ["training.batch_size=6"])
    kept = keep_config(config, tmp_path)
    own.write_text("training:\n  reg_every: 5\n")
    assert load_config(kept) == config and config.training.reg_every == 3
    assert set(yaml.safe_load(kept.read_text())["training"]) == {f.name for f in dataclasses.fields(config.training)}


def test_a_training_on_the_cpu_adds_up_in_one_order(smoke, tmp_path, monkeypatch):
    """Gradients of indexed maps, which threads otherwise add up as they come."""
    asked = []
    monkeypatch.setattr(
        session.Guard, "should_end", lambda _: asked.append(torch.are_deterministic_algorithms_enabled()) or True
    )
    folders = f"training.outdir={tmp_path}", f"data.datadir={tmp_path}"
    config = smoke(*folders, "training.monitoring=none", "memory.interval_s=0")
    loop.train(TrainState(config, torch.device("cpu")), build_dataset(config), Interruption())
    assert asked == [True] and not torch.are_deterministic_algorithms_enabled()


def test_a_fault_is_not_survived_where_the_run_does_otherwise(run):
    run.log_file.write_text("error: something else")
    fault = Fault("images removed")
    with surviving(run, fault):
        raise NotSurvived("its exit status is 1, not 2")
    assert fault.problem == "its exit status is 1, not 2"


@pytest.mark.parametrize(
    ("kind", "resumed", "problem"),
    [("killed_anywhere", 4, ""), ("killed_anywhere", 3, "4 steps are lost, more than 3")]
    + [("images_damaged", 7, ""), ("images_damaged", 6, "1 steps are lost, more than 0")],
)
def test_an_error_that_ends_a_run_may_cost_no_step(monkeypatch, kind, resumed, problem):
    run = SimpleNamespace(alive=False, step=lambda: 7, resumed_step=resumed)
    for name in ("train_until", "start_training", "end"):
        setattr(run, name, lambda *_: None)
    fault = getattr(torture, kind)
    inflict = functools.wraps(fault)(lambda *_: None)
    monkeypatch.setattr(torture, "FAULTS", (inflict,))
    monkeypatch.setattr(torture, "SAVED_FIRST", [inflict] if fault in torture.SAVED_FIRST else [])
    (found,) = torture.inject(run, 1, 3, random.Random(0))
    assert found.problem == problem


@pytest.mark.parametrize(("said", "survived"), [("error: a/0001.png: gone", True), ("error: no space left", False)])
def test_damaged_images_are_put_back_and_must_be_named(run, monkeypatch, said, survived):
    for folder in ("images", "whole"):
        for name in range(6):
            file = run.folder / folder / f"{name}.png"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(bytes([name]) * 10)
    missing = []

    def end(status):
        missing.extend(name for name in range(6) if not (run.folder / "images" / f"{name}.png").exists())

    monkeypatch.setattr(Subject, "start", lambda run: run.log_file.write_text(said))
    monkeypatch.setattr(run, "end", end)
    try:
        torture.images_missing_at_start(run, random.Random(0))
        assert survived
    except NotSurvived:
        assert not survived
    assert len(missing) == 2
    assert [(run.folder / "images" / f"{name}.png").read_bytes() for name in range(6)] == [bytes([n]) * 10 for n in range(6)]


class Data(list):
    """A data set of n items with a fingerprint."""

    def __init__(self, n, fingerprint):
        super().__init__(range(n))
        self.fingerprint = fingerprint


def test_a_change_of_the_data_between_two_starts_is_told(refine, caplog, tmp_path):
    def resumed(state, data, checkpoint=None):
        another = TrainState(refine(), torch.device("cpu"))
        another.load_state_dict(state.state_dict())
        caplog.clear()
        with caplog.at_level(logging.INFO):
            note_data(another, data, checkpoint or another.config.run_dir / "newest.pt")
        return another

    first = TrainState(refine(), torch.device("cpu"))
    note_data(first, Data(9, "a"), None)
    first.step = 5
    assert not caplog.text
    second = resumed(first, Data(9, "a"))
    assert not caplog.text
    third = resumed(second, Data(8, "b"))
    assert "the data has changed since step 5" in caplog.text and "8 images now" in caplog.text
    resumed(third, Data(8, "b"))
    assert not caplog.text  # it is told once
    fourth = resumed(third, Data(7, "c"), tmp_path / "another_run" / "newest.pt")
    assert "another_run/newest.pt learned from other images" in caplog.text and "its own 7 images" in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO"] and fourth.data_fingerprint == "c"
