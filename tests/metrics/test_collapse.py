"""The warnings of a collapse: each with its evidence, and once until it is over."""

import logging

from graf.metrics.collapse import CollapseWatch, collapses

import pytest
import torch

HEALTHY = {"accuracy_d": 0.8, "loss_d": 1.2, "opacity": 0.4, "sample_std": 0.1, "real_std": 0.3}


@pytest.mark.parametrize(
    ("number", "value", "kind", "evidence"),
    [
        ("accuracy_d", 0.995, "accuracy_d", "99.5%"),
        ("accuracy_d_projected", 0.995, "accuracy_d_projected", "projected discriminator"),
        ("loss_d", 39.2, "jumping", "39.2"),
        ("opacity", 0.001, "empty", "0.0010"),
        ("opacity", 0.999, "opaque", "0.9990"),
        ("sample_std", 0.02, "alike", "0.0200"),
    ],
)
def test_each_collapse_is_told_with_its_evidence(number, value, kind, evidence):
    assert collapses(HEALTHY, 300) == {}
    found = collapses(HEALTHY | {number: value}, 300)
    assert list(found) == [kind]
    assert evidence in found[kind] and "over the last 300 steps" in found[kind]


def test_a_loss_without_a_level_may_be_large():
    """A loss of Wasserstein distances has no known accuracy."""
    assert collapses({name: value for name, value in HEALTHY.items() if name != "accuracy_d"} | {"loss_d": 39.2}, 300) == {}


def told(caplog, watch, values, every=10, first=0):
    """Steps at which the watch warns, where accuracy_d takes these values every so many steps."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="graf"):
        for i, value in enumerate(values):
            watch.check(HEALTHY | {"accuracy_d": value}, first + every * i)
    return [int(message.split(":")[0].removeprefix("step ")) for message in caplog.messages]


def test_a_collapse_is_told_once_until_it_is_over(caplog):
    watch = CollapseWatch()
    assert told(caplog, watch, [1.0] * 100) == [300]
    assert told(caplog, watch, [0.5] * 31, first=1000) == []
    assert told(caplog, watch, [1.0] * 40, first=1310) == [1610]


def test_a_run_that_is_rolled_back_is_warned_again(caplog):
    watch = CollapseWatch()
    assert told(caplog, watch, [1.0] * 40) == [300]
    assert told(caplog, watch, [1.0] * 40) == [300]


def test_a_spell_shorter_than_the_window_is_no_collapse(caplog):
    assert told(caplog, CollapseWatch(), ([1.0] * 25 + [0.5] * 10) * 4) == []


def test_the_window_holds_ten_rows_however_rare_they_are(caplog):
    assert told(caplog, CollapseWatch(), [1.0] * 20, every=1000) == [9000]


def test_numbers_that_are_missing_or_not_finite_are_left_out(caplog):
    watch = CollapseWatch()
    assert told(caplog, watch, [1.0, torch.nan] * 50) == [300]
    for step in range(0, 1000, 10):
        watch.check({"loss_d": 1.0}, 2000 + step)  # no error
