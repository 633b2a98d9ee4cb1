"""The trend test finds what grows for good, by arithmetic, and nothing else."""

import dataclasses

from graf.memory.leaks import LeakDetector, LeakReport, theil_sen
from graf.runtime.console import duration
from graf.runtime.limits import GB, MB

import numpy as np
import pytest

SECONDS_A_STEP = 0.5
SEEDS = range(5)


def first_report(megabytes: np.ndarray, limit_bytes: int = 24 * GB) -> LeakReport | None:
    """The first report on a run whose resident set after step t + 1 is megabytes[t]."""
    detector = LeakDetector("host", limit_bytes)
    for t, value in enumerate(megabytes):
        report = detector.add(t + 1, t * SECONDS_A_STEP, int(value * MB), "train")
        if report is not None:
            return report
    return None


def noise(seed: int, n: int, deviation_mb: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(1500, deviation_mb, n)


def saw(n: int, period: int, height_mb: float) -> np.ndarray:
    return np.arange(n) % period / period * height_mb


def test_theil_sen_is_the_median_of_all_slopes():
    # slopes of the six pairs: 1, 1, 33, 1, 49, 97
    assert theil_sen(np.array([0.0, 1, 2, 3]), np.array([0.0, 1, 2, 99])) == (1 + 33) / 2


def test_theil_sen_of_a_line_with_a_few_wild_points_is_the_lines():
    x = np.arange(20.0)
    y = 3 * x + 7
    y[[4, 11]] = 1e6, -1e6
    assert theil_sen(x, y) == pytest.approx(3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("deviation_mb", [0, 4])
def test_one_megabyte_a_step_is_found_within_200_steps_with_its_rate(seed, deviation_mb):
    report = first_report(noise(seed, 300, deviation_mb) + np.arange(300))
    assert report.step <= 200
    assert report.bytes_per_step / MB == pytest.approx(1, abs=1e-9 if deviation_mb == 0 else 0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leak_that_begins_late_is_found_within_200_steps_of_its_beginning(seed):
    begins = 1000
    report = first_report(noise(seed, begins + 300, 4) + np.maximum(0, np.arange(begins + 300) - begins))
    assert begins < report.step <= begins + 200


def test_a_leak_shows_through_a_cache():
    assert first_report(noise(0, 300, 2) + np.arange(300) + saw(300, 20, 20)).step <= 200


def test_a_leak_of_a_tenth_of_that_is_found_within_2000_steps():
    report = first_report(noise(0, 2000, 4) + 0.1 * np.arange(2000))
    assert report.bytes_per_step / MB == pytest.approx(0.1, rel=0.05)


def test_a_leak_that_would_reach_the_limit_before_it_is_sure_is_reported_early():
    report = first_report(1500 + 30 * np.arange(100), limit_bytes=6 * GB)
    assert report.step <= 70
    assert report.resident_bytes < 0.6 * report.limit_bytes


def test_growth_that_is_little_beside_what_is_resident_is_no_leak_yet():
    assert first_report(8000 + np.arange(300.0)) is None  # 160 MB over a span, of 8 GB
    assert first_report(4000 + np.arange(300.0)).step <= 200


CLEAN = {
    "noise": lambda t, seed: 0 * t,
    "short saw": lambda t, seed: saw(len(t), 7 + 5 * seed, 150),
    "long saw": lambda t, seed: saw(len(t), 90 + 40 * seed, 100),
    "first evaluations": lambda t, seed: np.cumsum((t % 250 == 249) * 100 * 0.4 ** (t // 250)),
    "peaks of evaluations": lambda t, seed: (t % 250 < 8) * 500,
    "slow warm-up": lambda t, seed: 300 * (1 - np.exp(-t / (50 + 300 * seed))),
    "logarithmic warm-up": lambda t, seed: 80 * np.log1p(t / 5),
    "one jump": lambda t, seed: (t > 300 + 111 * seed) * 600,
    "a few jumps": lambda t, seed: sum(50.0 * (t > at) for at in (500, 540, 550, 560, 590)),
    "given back": lambda t, seed: -np.minimum(t, 400.0),
    "taken again": lambda t, seed: (t > 999) * (np.clip((t - 1000) / (160 + 10 * seed), 0, 1) * 330 - 280),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CLEAN)
def test_a_clean_run_of_2000_steps_raises_no_alarm(kind, seed):
    t = np.arange(2000)
    assert first_report(noise(seed, 2000, 4) + CLEAN[kind](t, seed)) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_all_of_it_together_raises_no_alarm(seed):
    t = np.arange(2000)
    parts = ("short saw", "first evaluations", "peaks of evaluations", "slow warm-up")
    assert first_report(noise(seed, 2000, 4) + sum(CLEAN[kind](t, seed) for kind in parts)) is None


def test_the_phase_that_grows_is_told_from_those_that_give_back():
    # every step: training takes 4 MB and gives them back, and a sample leaves 1 MB
    detector, level, report = LeakDetector("host", 24 * GB), 1000, None
    for step in range(1, 201):
        for phase, change in (("train", 4), ("sample", 1), ("train", -4)):
            level += change
            report = report or detector.add(step, 3.0 * step, level * MB, phase)
    assert report.phase == "sample"
    assert report.phase_bytes["sample"] / MB == pytest.approx(report.span_steps, abs=6)
    assert abs(report.phase_bytes["train"]) <= 4 * MB
    assert "'sample'" in report.advice


def test_rate_and_time_left_are_arithmetic():
    report = LeakReport("host", 200, 160, 80.0, 2 * MB, 1 * GB, 3 * GB, {"train": 320 * MB})
    assert report.bytes_per_hour == 2 * MB * 2 * 3600  # two steps a second
    assert report.seconds_left == 2 * GB / (4 * MB)
    assert dataclasses.replace(report, resident_bytes=4 * GB).seconds_left == 0
    said = report.message()
    assert "2.00 MB per step" in said
    assert "14.06 GB per hour" in said
    assert "9 min away" in said


def test_the_found_rate_an_hour_follows_the_clock():
    report = first_report(1500 + np.arange(300.0))
    assert report.bytes_per_hour / MB == pytest.approx(3600 / SECONDS_A_STEP)


def test_advice_names_what_to_set_for_what_grows():
    report = LeakReport("workers", 1, 1, 1.0, 1.0, 1, 2, {"train": 1})
    assert "persistent_workers" in report.advice
    assert "nworkers" in report.advice
    assert "accumulation_steps" in dataclasses.replace(report, source="host").advice
    assert "empty_cache" in dataclasses.replace(report, source="device", phase_bytes={"train": 1, "metrics": 9}).advice


def test_a_leak_is_reported_again_when_it_has_tripled_and_not_before():
    detector = LeakDetector("host", 24 * GB)
    steps = [t for t in range(1, 2001) if detector.add(t, t, (1500 + t) * MB, "train")]
    growth = np.array(steps) - 20  # the warm-up is left out
    assert len(steps) == 3
    assert growth[1:] / growth[:-1] == pytest.approx(3, rel=0.05)


def test_a_step_back_begins_anew():
    detector = LeakDetector("host", 24 * GB)
    for t in range(1, 180):
        assert detector.add(t, t, (1500 + t) * MB, "train") is None
    assert detector.add(100, 180, 1700 * MB, "train") is None
    reports = [t for t in range(101, 400) if detector.add(t, 80 + t, (1600 + t) * MB, "train")]
    assert reports[0] >= 100 + 180


def test_a_reading_every_few_steps_does():
    detector = LeakDetector("host", 24 * GB)
    steps = [t for t in range(3, 400, 3) if detector.add(t, t, (1500 + t) * MB, "train")]
    assert steps[0] <= 200


@pytest.mark.parametrize(
    ("seconds", "said"), [(40, "40 s"), (119, "119 s"), (600, "10 min"), (5 * 3600, "5.0 h"), (86400 * 3.14, "3.1 days")]
)
def test_durations(seconds, said):
    assert duration(seconds) == said
