"""The speed of a run, which its progress line and status.json tell."""

from types import SimpleNamespace

from graf.config import load_config
from graf.training.pace import Pace, what_begins


def test_the_speed_is_that_of_the_last_ten_minutes(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("graf.training.pace.time", SimpleNamespace(monotonic=lambda: clock.now))
    pace = Pace(load_config("convolutional", ["training.max_steps=9000", "discriminator.low_res_steps=0"]), 0)
    for step in range(1, 2001):
        clock.now += 1.0 if step <= 1000 else 2.0
        pace.note(step)
    assert (pace.steps_per_s, pace.holds_until, pace.interval_s, pace.age_s) == (0.5, 9000, 2.0, 0.0)


def test_a_run_tells_when_its_steps_begin_to_take_longer():
    def told(*overrides):
        config = load_config("default", list(overrides))
        return {step: said for step in range(config.training.max_steps + 1) if (said := what_begins(config, step))}

    default = told()
    assert list(default) == [4000, 4500]
    assert "from step 4000 on the discriminator learns too, at half the resolution at first" in default[4000]
    assert "from step 4500 on the discriminator sees its patches at full resolution" in default[4500]
    config = load_config("default")
    assert (*default, config.first_unrefined) == config.pace_changes  # the last ones are told of as they begin
    assert list(told("training.max_steps=4200")) == list(told("ccsr.unrefined_steps=400")) == [4000]
    assert [said.split(";")[0] for said in told("discriminator.low_res_steps=0").values()] == [
        "from step 4000 on the discriminator learns too"
    ]
    assert told("encoder.first_steps=0", "discriminator.low_res_steps=0") == told("training.max_steps=4000") == {}
