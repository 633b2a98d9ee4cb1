"""Found azimuths beside the true ones, and beside other answers for the same images: errors, agreement, calibration.

Legend: N images.
"""

import math
from typing import NamedTuple

from graf.rotations import NEAR_DEG, circular_distance

import torch
from torch import Tensor

ARC_DEG = 15  # in which azimuths are counted
OPPOSITE_DEG = 135.0  # errors above it are nearer to the other end of the object than to its sides


class AzimuthErrors(NamedTuple):
    """Errors of N aligned azimuths: the median in degrees, and the shares within 15 degrees and above 135 degrees, where front
    and rear were confused."""

    median_deg: float
    within_15_deg: float
    confused: float


class Reliability(NamedTuple):
    """Answers of about the same confidence: its mean, the share of right answers, and how many there are."""

    confidence: float
    right: float
    n: int


def azimuth_errors(aligned_deg: Tensor, true_deg: Tensor) -> AzimuthErrors:
    """Errors of azimuths (N,) in degrees whose world is that of the true ones."""
    errors = circular_distance(aligned_deg.double(), true_deg.double())
    shares = ((errors < NEAR_DEG).double().mean(), (errors > OPPOSITE_DEG).double().mean())
    return AzimuthErrors(float(errors.median()), *map(float, shares))


def agreement(first_deg: Tensor, second_deg: Tensor) -> float:
    """How much two lists of azimuths (N,) of the same images tell about each other: the mean of their entropies less that of
    their difference, in arcs of 15 degrees, as a share of the largest possible.

    1 where both are equal and stand evenly around the circle; 0 where an image's two answers have nothing to do with each
    other, or all images have one answer. Answers from a narrow range tell less, although they lie close together.
    """
    difference = first_deg - second_deg + ARC_DEG / 2  # equal answers fall into the middle of an arc
    shared = (_entropy(first_deg) + _entropy(second_deg)) / 2 - _entropy(difference)
    return shared / math.log(360 / ARC_DEG)


def _entropy(azimuth_deg: Tensor) -> float:
    """The entropy in nats of azimuths (N,), counted in arcs."""
    counts = torch.bincount((azimuth_deg.double() % 360 // ARC_DEG).long())
    return float(torch.distributions.Categorical(counts).entropy())


def reliability(confidence: Tensor, right: Tensor, n_groups: int = 5) -> list[Reliability]:
    """The calibration curve of N answers: groups of about the same number by rising confidence (N,), and how often each is
    right (N,) bool."""
    order = confidence.argsort(stable=True)
    groups = [rows for rows in order.tensor_split(n_groups) if len(rows)]
    return [Reliability(float(confidence[r].mean()), float(right[r].double().mean()), len(r)) for r in groups]


def azimuth_numbers(aligned_deg: Tensor, true_deg: Tensor, confidence: Tensor | None = None) -> dict:
    """`azimuth_errors` of azimuths (N,) in degrees, ready for JSON; with a known confidence (N,) also its `reliability`
    as `calibration`."""
    numbers = azimuth_errors(aligned_deg, true_deg)._asdict()
    if confidence is not None:
        right = circular_distance(aligned_deg.double(), true_deg.double()) < NEAR_DEG
        numbers["calibration"] = [group._asdict() for group in reliability(confidence, right)]
    return numbers
