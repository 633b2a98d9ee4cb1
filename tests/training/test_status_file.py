"""status.json of a run's folder: what it tells, when it is written, and whose files it leaves."""

import json
from types import SimpleNamespace

import graf.runtime.files
from graf.training import logging, pace
from graf.training.logging import StatusFile

import pytest


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(logging, "time", SimpleNamespace(time=lambda: 1e6 + clock.now))
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(graf.runtime.files, "_lost", set())
    return clock


@pytest.fixture
def state(tmp_path):
    """A run at step 10 of 1000."""
    training = SimpleNamespace(max_steps=1000)
    config = SimpleNamespace(run_dir=tmp_path, training=training, same_pace_until=lambda step: 600 if step < 600 else 1000)
    return SimpleNamespace(step=10, config=config, processes=SimpleNamespace(first=True))


def content(state) -> dict:
    return json.loads((state.config.run_dir / "status.json").read_text())


def log_step(status: StatusFile, clock, step: int, seconds: float, of_steps: float | None = None, **scalars: float) -> None:
    """The run logs a step, `seconds` after the last one, of which the steps took `of_steps`."""
    clock.now += seconds
    steps, status.state.step = step - status.state.step, step
    status.update(seconds if of_steps is None else of_steps, abs(steps), scalars)


def test_it_is_written_at_the_start_and_tells_step_and_speed(state, clock):
    status = StatusFile(state)
    assert content(state) == {
        "state": "running",
        "time": 1e6 + 100,
        "step": 10,
        "max_steps": 1000,
        "same_pace_until": 600,
        **dict.fromkeys(("steps_per_s", "interval_s", "seconds_per_step", "late_seconds_per_step")),
        "scalars": {},
    }
    log_step(status, clock, 30, 10.0, 4.0, loss_d=0.5, loss_g=float("nan"))
    found = content(state)
    assert (found["step"], found["steps_per_s"], found["interval_s"]) == (30, 2.0, 10.0)
    assert (found["seconds_per_step"], found["late_seconds_per_step"]) == (0.2, None)  # samples took the other 6 s
    assert found["scalars"] == {"loss_d": 0.5, "loss_g": None}


def test_it_is_written_every_5_seconds_at_most(state, clock):
    status = StatusFile(state)
    for step in (11, 12, 13, 14):
        log_step(status, clock, step, 1.5)
        assert content(state)["step"] == (10 if step < 14 else 14)
    assert content(state)["seconds_per_step"] == 1.5
    with status:
        log_step(status, clock, 15, 1.5)
    assert (content(state)["state"], content(state)["step"]) == ("stopped", 15)


def test_a_run_is_finished_once_nothing_fails_after_its_last_step(state, clock):
    state.step = 1000
    with StatusFile(state):
        pass
    assert content(state)["state"] == "finished"
    with pytest.raises(OSError), StatusFile(state):
        raise OSError("no space left for the last checkpoint")
    assert content(state)["state"] == "stopped"


def test_the_speed_is_of_the_last_10_minutes_or_of_the_last_step_where_that_took_longer(state, clock):
    status = StatusFile(state)
    for _ in range(100):
        log_step(status, clock, state.step + 1, 60.0)
    log_step(status, clock, 140, 60.0)
    assert content(state)["steps_per_s"] == pytest.approx(40 / 660)
    log_step(status, clock, 141, 6000.0)
    assert content(state)["steps_per_s"] == pytest.approx(1 / 6000)


def test_after_a_roll_back_the_speed_is_of_what_comes_then(state, clock):
    status = StatusFile(state)
    log_step(status, clock, 100, 10.0)
    log_step(status, clock, 50, 10.0)
    assert (content(state)["step"], content(state)["steps_per_s"]) == (50, None)
    log_step(status, clock, 70, 10.0)
    assert content(state)["steps_per_s"] == 2.0


def test_late_steps_are_told_once_there_are_enough(state, clock):
    status = StatusFile(state)
    for i in range(36):
        log_step(status, clock, state.step + 10, 5.0 if i < 24 else 15.0)
        assert (content(state)["late_seconds_per_step"] is None) == (i < 35)
    assert (content(state)["seconds_per_step"], content(state)["late_seconds_per_step"]) == (0.5, 1.5)


def test_only_the_first_process_writes(state, clock):
    state.processes.first = False
    status = StatusFile(state)
    with status:
        log_step(status, clock, 20, 10.0)
    assert list(state.config.run_dir.iterdir()) == []


def test_a_file_that_no_run_wrote_is_renamed(state, clock, caplog):
    (state.config.run_dir / "status.json").write_text('{"mine": 1}')
    for _ in range(2):
        with StatusFile(state):
            pass
    assert (state.config.run_dir / "status_1.json").read_text() == '{"mine": 1}'
    assert caplog.messages == [f"{state.config.run_dir / 'status.json'}: not written by a run; renamed to status_1.json"]


def test_a_status_that_cannot_be_written_ends_no_run(state, clock, caplog):
    (state.config.run_dir / "status.json").mkdir()
    status = StatusFile(state)
    log_step(status, clock, 20, 10.0)
    assert sum("status.json cannot be written" in message for message in caplog.messages) == 1


def test_steps_of_another_kind_are_not_compared_with_those_before(state, clock):
    status = StatusFile(state)
    for step in range(20, 601, 10):
        log_step(status, clock, step, 10.0)
    told = ("same_pace_until", "steps_per_s", "seconds_per_step", "late_seconds_per_step")
    assert [content(state)[name] for name in told] == [600, 1.0, 1.0, 1.0]
    log_step(status, clock, 605, 50.0)
    assert [content(state)[name] for name in told] == [1000, None, None, None]
    log_step(status, clock, 606, 10.0)
    assert [content(state)[name] for name in told] == [1000, 0.1, 10.0, None]
