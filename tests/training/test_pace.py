"""The speed of a run, which its progress line and status.json tell."""

from types import SimpleNamespace

from graf.config import load_config
from graf.training.pace import Pace


def test_the_speed_is_that_of_the_last_ten_minutes(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("graf.training.pace.time", SimpleNamespace(monotonic=lambda: clock.now))
    pace = Pace(load_config("convolutional", ["training.max_steps=9000", "discriminator.low_res_steps=0"]), 0)
    for step in range(1, 2001):
        clock.now += 1.0 if step <= 1000 else 2.0
        pace.note(step)
    assert (pace.steps_per_s, pace.holds_until, pace.interval_s, pace.age_s) == (0.5, 9000, 2.0, 0.0)
