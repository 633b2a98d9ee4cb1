"""Cameras guessed from silhouettes alone: an object is wide from its side and narrow from its front."""

from graf.config import DataConfig
from graf.data import Views

import torch
from torch import Tensor


def elongation(opacity: Tensor) -> float:
    """The spread of a silhouette (H, W) in [0, 1] across, as a share of its spread from top to bottom, which hardly changes on
    the way around an object; both as standard deviations."""
    mass = opacity.double()
    across, down = mass.sum(0), mass.sum(1)
    return float(_spread(across) / _spread(down).clamp_min(1e-6))


def azimuths_by_width(elongations: Tensor, rng: torch.Generator) -> Tensor:
    """Azimuths (N,) in [0, 360) of photographs from all around: by the rank of their silhouettes' elongation (N,) from 0, the
    narrowest, to 90 degrees, the widest, in a quadrant at random, which silhouettes do not tell."""
    rank = elongations.argsort().argsort().double() / max(1, len(elongations) - 1)
    turned = 90 * rank
    quadrant = torch.randint(4, turned.shape, generator=rng)
    return (torch.where(quadrant % 2 == 0, turned, 180 - turned) + 180 * (quadrant // 2)) % 360


def elongations_of(photographs: Views, data: DataConfig) -> Tensor | None:
    """The elongation (N,) of each photograph's silhouette; None where one of them has none."""
    found = []
    for index in range(len(photographs)):
        opacity = photographs.opacity(index, data)
        if opacity is None or not opacity.any():
            return None
        found.append(elongation(opacity))
    return torch.tensor(found)


def _spread(mass: Tensor) -> Tensor:
    """The standard deviation, in pixels, of a row of masses."""
    place = torch.arange(len(mass), dtype=mass.dtype)
    share = mass / mass.sum()
    return ((share * place**2).sum() - (share * place).sum() ** 2).clamp_min(0).sqrt()
