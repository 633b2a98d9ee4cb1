"""Values of a step that are logged beside its losses, for those who watch it.

Legend: B images, K side of a patch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

CELLS = 4  # cells along each side of an image; their mean colours are compared


@dataclass(frozen=True)
class Values:
    """A step's values for the log, of any shapes, one after another in one tensor (S,): in float64, but on an Apple GPU, which
    has none, in float32."""

    flat: Tensor
    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, values: dict[str, Tensor]) -> "Values":
        flat = torch.cat([value.flatten() for value in values.values()])
        return cls(flat if flat.device.type == "mps" else flat.double(), {name: x.shape for name, x in values.items()})

    def by_name(self) -> dict[str, Tensor]:
        """Views of the values."""
        parts = self.flat.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


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
    images = images.detach().float()
    if images.shape[-1] % CELLS == 0:  # pooling takes a GPU many times as long
        cells = images.unflatten(3, (CELLS, -1)).unflatten(2, (CELLS, -1)).mean((3, 5))  # (B, 3, 4, 4)
    else:
        cells = F.adaptive_avg_pool2d(images, CELLS)
    cells = cells if cells.device.type == "mps" else cells.double()
    return torch.stack((cells.mean(0), cells.square().mean(0)))


def colour_deviation(moments: Tensor) -> Tensor:
    """Standard deviation over a batch, averaged over cells and channels, from its `colour_moments`: a scalar."""
    mean, square = moments
    return (square - mean.square()).clamp_min(0).sqrt().mean().float()
