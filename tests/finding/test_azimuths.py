"""Errors and confusions of azimuths; agreement; calibration."""

import math

from graf.finding.azimuths import AzimuthErrors, agreement, azimuth_errors, reliability
from graf.rotations import circular_distance

import pytest
import torch


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
