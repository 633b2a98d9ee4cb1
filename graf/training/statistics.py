"""Values of a step that are logged beside its losses, for those who watch it.

Legend: B images, K side of a patch.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

CELLS = 4  # cells along each side of an image; their mean colours are compared


def accuracy_by_sign(real: Tensor, fake: Tensor) -> Tensor:
    """Share of the real images' logits (B,) above 0 and of the fakes' (n B,) below, averaged: a scalar."""
    return ((real > 0).float().mean() + (fake < 0).float().mean()) / 2


def accuracy_by_pairs(real: Tensor, fake: Tensor) -> Tensor:
    """Share of the pairs of logits, real (B,) and fakes (n B,), in which the real image's is the higher: a scalar."""
    return (real > fake.view(-1, len(real))).float().mean()


def colour_moments(images: Tensor) -> Tensor:
    """Mean and mean square over images (B, 3, K, K) of their colours in 4 x 4 cells: (2, 3, 4, 4), in float64, which
    Apple GPUs do not have: there in float32.

    The moments of a batch are the weighted sum of those of its parts. They carry no gradient.
    """
    cells = F.adaptive_avg_pool2d(images.detach().float(), CELLS)  # (B, 3, 4, 4)
    cells = cells if cells.device.type == "mps" else cells.double()
    return torch.stack((cells.mean(0), cells.square().mean(0)))


def colour_deviation(moments: Tensor) -> Tensor:
    """Standard deviation over a batch, averaged over cells and channels, from its `colour_moments`: a scalar."""
    mean, square = moments
    return (square - mean.square()).clamp_min(0).sqrt().mean().float()
