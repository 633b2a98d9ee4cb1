"""The record that others can beat: a budget pays for so many steps, and seeds are hidden until they are written."""

import functools
import json

import bench.speedrun as program  # as command_line.call has it
from bench.speedrun import Costs, is_default_data, mean_row
from graf.config import load_config
from graf.metrics.shapes import Subject

import pytest
import torch
from command_line import ROOT, SMOKE, call

FEW = ("metrics.extractor=efficientnet-lite0", "metrics.n_real=4", "metrics.n_fake=4", "data.n_images=8")
COSTS = Costs((0, 100), seconds=(0.1, 0.2), operations=(1e9, 4e9))


@pytest.fixture
def speedrun(tmp_path, monkeypatch):
    """Runs of the smallest config with flags; returns what was said, and the JSON."""
    monkeypatch.setattr(program, "limit_cores", lambda most: most)  # the tests' process has all of them
    monkeypatch.setattr(program, "Subject", functools.partial(Subject, n=3))
    for name, value in {"WARM_UP_STEPS": 0, "TIMED_STEPS": 1, "COUNTED_STEPS": 1}.items():
        monkeypatch.setattr(program, name, value)

    def run(*flags, status=0):
        file = tmp_path / "record.json"
        settings = ["--set", *FEW, f"data.datadir={tmp_path}", "--json", str(file)]
        said = call("bench/speedrun.py", *SMOKE[:2], *settings, *flags, cwd=ROOT, status=status)
        return said, json.loads(file.read_text() or "{}")

    return run


def test_hidden_seeds_are_written_afterwards_and_repeat_the_record(speedrun, tmp_path, monkeypatch):
    monkeypatch.setattr(program.secrets, "randbelow", lambda most: most - 7)
    said, record = speedrun("--steps", "2", "--runs", "1")
    (row,) = record["runs"]
    assert row["steps"] == 2 and row["seed"] == 2**32 - 7 and str(row["seed"]) in said and record["budget"]["steps"] == 2
    assert row.keys() >= program.COLUMNS.keys()
    assert None not in [row[name] for name in ("kid", "kid_lite2", "variety", "coverage")]
    assert row["operations"] == pytest.approx(2 * record["costs"]["operations"][0]) and row["operations"] > 0
    assert not record["default_data"] and "not the default's toy cars" in said
    assert "exists already; name another file with --json" in speedrun("--steps", "2", status=2)[0]
    (tmp_path / "record.json").unlink()
    again = speedrun("--steps", "2", "--seeds", str(row["seed"]))[1]["runs"][0]
    timed = ("seconds", "cpu_seconds")
    assert {name: again[name] for name in row if name not in timed} == {name: row[name] for name in row if name not in timed}


def test_a_budget_of_operations_pays_for_as_many_steps_as_it_says(speedrun, monkeypatch):
    monkeypatch.setattr(program, "measured_costs", lambda *_: COSTS)
    monkeypatch.setattr(program, "run", lambda config, *_: dict.fromkeys(program.COLUMNS, config.training.max_steps))
    monkeypatch.setattr(program, "print_row", lambda *_, **__: None)
    said, record = speedrun("--operations", "102e9", "--seeds", "1")
    assert record["runs"][0]["steps"] == 100 and "100 steps: about 0.2 minutes and 1e+11 operations" in said


def test_a_budget_that_pays_for_no_step_is_refused(speedrun, monkeypatch):
    monkeypatch.setattr(program, "measured_costs", lambda *_: COSTS)
    said, _ = speedrun("--seconds", "0.05", status=2)
    assert "the budget pays for no step, which takes 0.1 s and 1e+09 operations; raise --seconds" in said


@pytest.mark.parametrize(("seconds", "steps"), [(0.05, 0), (5.0, 50), (10.0, 100), (10.1, 100), (12.1, 110)])
def test_steps_of_half_the_pixels_come_first(seconds, steps):
    assert COSTS.steps_within(seconds, COSTS.seconds) == steps
    assert COSTS.total(COSTS.seconds, steps) <= seconds + 1e-9


def test_a_kind_of_step_costs_its_own():
    costs = Costs((0, 10, 30), seconds=(1.0, 2.0, 5.0), operations=(1.0, 1.0, 1.0))
    assert [costs.total(costs.seconds, steps) for steps in (0, 10, 11, 30, 32)] == [0, 10, 12, 50, 60]
    assert [costs.steps_within(budget, costs.seconds) for budget in (9.9, 10, 11.9, 50, 54.9, 55)] == [9, 10, 10, 30, 30, 31]


def test_the_last_steps_of_a_run_cost_what_those_that_are_not_refined_do():
    costs = Costs((0, 10, 30), seconds=(1.0, 2.0, 5.0, 9.0), operations=(1.0, 1.0, 1.0, 1.0))
    found = {steps: costs.total(costs.seconds, steps, 4) for steps in (3, 4, 5, 16, 36)}
    assert found == {3: 27, 4: 36, 5: 37, 16: 10 + 2 * 2 + 36, 36: 10 + 40 + 2 * 5 + 36}
    paid = [costs.steps_within(budget, costs.seconds, lambda _: 4) for budget in (8, 27, 36.5, 37, 95, 96)]
    assert paid == [0, 3, 4, 5, 35, 36]


def test_only_what_is_shown_of_the_cars_makes_them_others():
    assert is_default_data(load_config(None, ["data.alpha=rgba", "nerf.multires=6"]))
    assert not is_default_data(load_config(None, ["data.n_images=4096"]))


def test_no_more_cores_are_used_than_asked_for(monkeypatch):
    given, threads = [], torch.get_num_threads()
    monkeypatch.setattr(program.os, "sched_getaffinity", lambda _: {3, 1, 2}, raising=False)
    monkeypatch.setattr(program.os, "sched_setaffinity", lambda _, cores: given.append(cores), raising=False)
    monkeypatch.setattr(program, "available_cores", lambda: 2)
    assert program.limit_cores(2) == 2 and given == [[1, 2]] and torch.get_num_threads() == threads


def test_the_last_row_has_means_from_the_least_to_the_most():
    row = {"seed": 1, "steps": 5, "seconds": 60, "operations": 3e12, "kid": 0.08, "kid_lite2": 0.05, "variety": 0.9}
    rows = [row | {"coverage": 0.1, "mmd": None}, row | {"kid": 0.1, "coverage": 0.3, "mmd": None}]
    expected = "| mean of 2 | 5 | 1.0 | 3 | 90 (80 to 100) | 50 | 0.90 | 0.20 (0.10 to 0.30) |  |"
    assert mean_row(rows) == expected
