"""Azimuths found without labels beside the true ones: they agree up to one turn of the world and, where the object is the same
on both sides, a mirror.

Legend: N images.
"""

import math
from typing import NamedTuple

from graf.rotations import NEAR_DEG, circular_distance

import torch
from torch import Tensor

ARC_DEG = 15  # in which azimuths are counted
OPPOSITE_DEG = 135.0  # errors above it are nearer to the other end of the object than to its sides


class Alignment(NamedTuple):
    """The transform from found azimuths to the true ones: a mirror if there is one, then a turn, degrees in [0, 360)."""

    turn_deg: float
    mirrored: bool

    def applied(self, azimuth_deg: Tensor) -> Tensor:
        """The azimuths in degrees, in [0, 360)."""
        return (self.turn_deg + (-azimuth_deg if self.mirrored else azimuth_deg)) % 360


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


def best_alignment(found_deg: Tensor, true_deg: Tensor, may_mirror: bool = True) -> Alignment:
    """The alignment of azimuths (N,) with the least mean error, exactly, unmirrored where both are equal.

    The mean of |d_i - t| around a circle is linear in t between the differences d_i, where it has its minima, and their
    opposites, where it has its maxima: the best turn t is one of the differences.
    """
    best, least = Alignment(0.0, False), float("inf")
    for mirrored in (False, True) if may_mirror else (False,):
        differences = Alignment(0.0, mirrored).applied(found_deg.double())
        differences = (true_deg.double() - differences) % 360
        for turn in differences.unique():
            error = float(circular_distance(differences, turn).mean())
            if error < least - 1e-9:
                best, least = Alignment(float(turn), mirrored), error
    return best


def azimuth_errors(aligned_deg: Tensor, true_deg: Tensor) -> AzimuthErrors:
    """Errors of azimuths (N,) in degrees that `best_alignment` has aligned."""
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
