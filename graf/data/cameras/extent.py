"""How much of the frame the objects fill, and at which data.radius they are about 2 scene units across, as training expects."""

import math
from typing import NamedTuple

from graf.config import DataConfig
from graf.data.cameras.agreement import SIDE, at_random, silhouettes_of
from graf.data.views import Views

import torch

MOST_IMAGES = 96
LARGE_OBJECTS = 0.95  # quantile of the objects' sizes
SIZE = 2.0  # scene units
WELL_CHOSEN = (1.4, 2.2)  # sizes that need no other radius


class Extent(NamedTuple):
    """The width in scene units that a frame shows at the origin, and the share of it that large objects fill, if known."""

    shown: float
    share: float | None


def extent(dataset: Views, data: DataConfig) -> Extent:
    """The extent that data.radius and data.fov show, and how much of it some of the images' silhouettes fill."""
    shown = (data.far - data.near) if data.orthographic else 2 * data.radius[1] * math.tan(math.radians(data.fov) / 2)
    rows = at_random(list(range(len(dataset))), MOST_IMAGES, torch.Generator().manual_seed(0))
    masks = [mask for mask in silhouettes_of(dataset, rows, data) if mask is not None]
    sizes = [max(int(mask.any(axis).sum()) for axis in (0, 1)) / SIDE for mask in masks]
    return Extent(shown, torch.tensor(sizes).quantile(LARGE_OBJECTS).item() if sizes else None)


def describe_extent(found: Extent, data: DataConfig) -> str:
    """The extent in words, with the radius at which the objects are about 2 units across where they are far from it."""
    cause = "data.far - data.near" if data.orthographic else f"data.radius {data.radius[1]:g} with data.fov {data.fov:g}"
    text = f"{cause} shows {found.shown:.2f} units across"
    if found.share is None:
        return text
    text += f", of which the objects fill {found.share:.2f}"
    if data.orthographic or WELL_CHOSEN[0] <= found.share * found.shown <= WELL_CHOSEN[1]:
        return text
    radius = data.radius[1] * SIZE / (found.share * found.shown)
    near, far = max(radius - SIZE / 2, radius / 10), radius + SIZE / 2
    cure = f"set data.radius: {radius:.3g}, data.near: {near:.3g} and data.far: {far:.3g}"
    return f"{text}; for objects about {SIZE:g} units across {cure}"
