"""Thirds of a run's memory are compared as the docs say."""

import json

from graf.errors import GrafError
from measure_flatness import draw, resident_by_thirds, run_rows

import pytest

MB = 2**20


def write_rows(path, sizes, phase="train"):
    with path.open("a") as file:
        for step, size in sizes:
            file.write(json.dumps({"time": 0.0, "step": step, "phase": phase, "host_bytes": size * MB}) + "\n")


def test_thirds_are_means_of_training_rows_alone(tmp_path):
    path = tmp_path / "memory.jsonl"
    write_rows(path, [(step, 100 + step // 30) for step in range(91)])
    write_rows(path, [(45, 900)], "metrics")
    path.open("a").write('{"leak": {}, "step": 3}\n{"step": 4, "ph')
    thirds = resident_by_thirds(run_rows(path))
    assert thirds[:2] == [100 * MB, 101 * MB]
    assert thirds[2] == pytest.approx((30 * 102 + 103) / 31 * MB)


def test_a_run_without_rows_says_what_to_do(tmp_path):
    with pytest.raises(GrafError, match="memory.interval_s"):
        run_rows(tmp_path / "memory.jsonl")
    write_rows(tmp_path / "memory.jsonl", [(0, 1), (90, 1)])
    with pytest.raises(GrafError, match="train for longer"):
        resident_by_thirds(run_rows(tmp_path / "memory.jsonl"))


def test_the_curve_is_drawn(tmp_path):
    write_rows(tmp_path / "memory.jsonl", [(step, 100) for step in range(5)])
    draw(run_rows(tmp_path / "memory.jsonl"), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
