"""Finds the background behind the objects, by the edge of each image. Legend: N images."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

BUSY = 16  # 8-bit steps by which half of an image's edge differs from its middle colour; cloth and walls stay under 13
OTHER = 48  # 8-bit steps from one wall to another
MANY = 0.25  # share of the images


class Background(NamedTuple):
    """The kind of most backgrounds: one plain colour, a plain colour of its own in each image, or busy; the number of images
    that are busy; the middle colour of the plain ones, (r, g, b) in [0, 1], None without any."""

    kind: Literal["plain", "varied", "busy"]
    n_busy: int
    colour: tuple[float, float, float] | None


def background_of(thumbnails: Tensor) -> Background:
    """The backgrounds of images with these thumbnails (N, 3, 8, 8) uint8."""
    edges = _edges(thumbnails.float())  # (N, 3, E)
    colours = edges.median(-1).values  # (N, 3)
    busy = (edges - colours[..., None]).abs().amax(1).median(-1).values > BUSY
    n_busy, plain = int(busy.sum()), colours[~busy]
    if not len(plain):
        return Background("busy", n_busy, None)
    colour = plain.median(0).values
    differs = ((plain - colour).abs().amax(1) > OTHER).float().mean() > MANY
    kind = "busy" if n_busy > MANY * len(busy) else "varied" if differs else "plain"
    return Background(kind, n_busy, tuple(round(value, 2) for value in (colour / 255).tolist()))


def _edges(images: Tensor) -> Tensor:
    """The pixels at the edge of images (N, 3, H, W): (N, 3, E)."""
    return torch.cat([images[..., 0, :], images[..., -1, :], images[..., 1:-1, 0], images[..., 1:-1, -1]], dim=-1)
