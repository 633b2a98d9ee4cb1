"""Alignment of azimuths that agree up to a turn and a mirror; confusions; calibration."""

from graf.pose.alignment import Alignment, AzimuthErrors, agreement, azimuth_errors, best_alignment, reliability
from graf.rotations import circular_distance

import pytest
import torch

RNG = torch.Generator().manual_seed(0)
TRUE = 360 * torch.rand(200, generator=RNG)


@pytest.mark.parametrize("known", [Alignment(0, False), Alignment(77, False), Alignment(300, True), Alignment(359.5, True)])
def test_a_known_turn_and_mirror_are_found_again(known):
    # applied(found) = true, so found is true by the inverse: a mirror is its own
    found = (known.turn_deg - TRUE) % 360 if known.mirrored else (TRUE - known.turn_deg) % 360
    best = best_alignment(found, TRUE)
    assert best.mirrored == known.mirrored
    assert circular_distance(torch.tensor(best.turn_deg), torch.tensor(known.turn_deg)) < 1e-3
    assert circular_distance(best.applied(found), TRUE).max() < 1e-3


def test_the_least_error_is_at_a_difference():
    """No turn of a fine grid is better than the one that is found among the differences."""
    found = TRUE + 40 * torch.randn(200, generator=RNG)
    best = best_alignment(found, TRUE, may_mirror=False)
    turns = torch.arange(0, 360, 0.25)
    errors = [circular_distance(found + turn, TRUE).mean() for turn in turns]
    assert circular_distance(best.applied(found), TRUE).mean() <= min(errors) + 1e-4


def test_a_third_of_confusions_does_not_turn_the_rest():
    found = TRUE + 50
    found[:60] += 180
    best = best_alignment(found, TRUE)
    assert best == Alignment(pytest.approx(310, abs=1e-3), False)
    assert azimuth_errors(best.applied(found), TRUE) == pytest.approx(AzimuthErrors(0, 0.7, 0.3), abs=1e-3)


def test_a_mirror_can_be_forbidden():
    assert not best_alignment(-TRUE, TRUE, may_mirror=False).mirrored


def test_errors_are_the_short_way_round():
    assert circular_distance(torch.tensor(359.0), torch.tensor(1.0)) == 2
    found, true = torch.tensor([359.0, 10, 100, 190]), torch.tensor([1.0, 0, 0, 0])
    assert azimuth_errors(found, true) == AzimuthErrors(10.0, 0.5, 0.25)


def test_the_calibration_curve_groups_by_confidence():
    confidence = torch.tensor([0.9, 0.1, 0.2, 0.8])
    low, high = reliability(confidence, torch.tensor([True, False, True, True]), n_groups=2)
    assert low == pytest.approx((0.15, 0.5, 2))
    assert high == pytest.approx((0.85, 1.0, 2))


@pytest.mark.parametrize("pairs_at_once", [1, 5, 1000])
def test_agreement_is_beyond_chance(pairs_at_once, monkeypatch):
    monkeypatch.setattr("graf.pose.alignment.PAIRS_AT_ONCE", pairs_at_once)
    first = torch.tensor([0.0, 90.0, 180.0, 270.0])
    assert agreement(first, first + torch.tensor([5.0, -14.0, 0.0, 10.0])) == 1
    assert agreement(torch.full((4,), 30.0), torch.full((4,), 30.0)) == 0
    half = agreement(first, torch.tensor([0.0, 90.0, 0.0, 90.0]))  # two of four agree, a quarter of all pairs does
    assert half == pytest.approx((1 / 2 - 1 / 4) / (1 - 1 / 4))
    assert agreement(first, first + 90) == pytest.approx(-1 / 3)
