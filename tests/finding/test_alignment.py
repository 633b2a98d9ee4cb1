"""Alignment of azimuths that agree up to a turn and a mirror; confusions; calibration."""

import math

from graf.finding.alignment import Alignment, AzimuthErrors, agreement, azimuth_errors, best_alignment, reliability
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


def test_agreement_is_what_two_lists_tell_about_each_other():
    around = 15 * torch.arange(240.0) % 360 + 1
    assert agreement(around, around + 5) == pytest.approx(1)
    assert agreement(torch.full((4,), 30.0), torch.full((4,), 30.0)) == pytest.approx(0)
    quarter = 15 * (torch.arange(240.0) % 6) + 1
    assert agreement(quarter, quarter) == pytest.approx(math.log(6) / math.log(24))
    opposite = torch.where(torch.arange(240) // 24 % 2 == 0, 0.0, 180.0)  # half are taken for the other end: one bit is lost
    assert agreement(around, around + opposite) == pytest.approx(1 - math.log(2) / math.log(24))
    rng = torch.Generator().manual_seed(0)
    assert abs(agreement(*(360 * torch.rand(2, 4000, generator=rng)))) < 0.01
