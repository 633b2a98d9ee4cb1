"""How well silhouettes agree with cameras: the visual hull that they carve, seen from the cameras again.

The hull (Laurentini, The Visual Hull Concept for Silhouette-Based Image Understanding, 1994) of right cameras fills each
silhouette; wrong ones cut from it what others show.

Legend: P images of an object, S x S pixels of a silhouette, N points.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

from graf.config import DataConfig
from graf.data.hull import covers, pixels_of
from graf.data.views import Views, edge_pixels
from graf.runtime.console import progress
from graf.runtime.limits import available_cores
from graf.runtime.threads import map_in_threads

import torch
from torch import Tensor
from torch.nn import functional as F

FEWEST_VIEWS = 8  # of an object, with silhouettes
MOST_OBJECTS, MOST_VIEWS = 4, 24
SIDE = 64  # pixels of a silhouette, and cells along each side of the cube that all cameras see
MISSES = 0.05  # share of the silhouettes that may miss a point of the hull
VIEWS_AT_ONCE = 2  # most points are gone after a few silhouettes
PLAIN, UNLIKE = 6, 18  # of 255: differences of a plain background's pixels, and of an object's pixels from them

T = TypeVar("T")


class ObjectViews(NamedTuple):
    """An object's silhouettes (P, S, S) bool and their cameras (P, 3, 4)."""

    masks: Tensor
    pose_c2w: Tensor

    def mended(self, change: Callable[[Tensor], Tensor]) -> "ObjectViews":
        """The silhouettes with other cameras, but for those that `change` cannot tell (NaN)."""
        pose_c2w = change(self.pose_c2w)
        known = pose_c2w.isfinite().all(dim=(1, 2))
        return ObjectViews(self.masks[known], pose_c2w[known])

    def halved(self) -> "ObjectViews":
        """The silhouettes with half as many pixels per side."""
        return ObjectViews(F.avg_pool2d(self.masks.float(), 2) > 0.5, self.pose_c2w)


def objects_with_silhouettes(dataset: Views, data: DataConfig) -> list[ObjectViews]:
    """A few objects of a posed set, each with the silhouettes of a few of its views; none where fewer than 8 are known of each.

    Silhouettes come from transparency, else from a plain background. Objects that have fewer images, as where each image shows
    another car, are taken for one object per class: what they have in common is carved.
    """
    rng = torch.Generator().manual_seed(0)
    groups = rows_by(dataset.objects) or rows_by(dataset.class_index.tolist())
    groups = [at_random(rows, MOST_VIEWS, rng) for rows in at_random(groups, MOST_OBJECTS, rng)]
    wanted = sum(groups, [])
    mask_of = dict(zip(wanted, silhouettes_of(dataset, wanted, data), strict=True))
    objects = []
    for rows in groups:
        known = [row for row in rows if mask_of[row] is not None]
        if len(known) >= FEWEST_VIEWS:
            objects.append(ObjectViews(torch.stack([mask_of[row] for row in known]), dataset.labels.pose_c2w[known]))
    return objects


def rows_by(names: Sequence[Hashable]) -> list[list[int]]:
    """The rows of each name that enough of them have."""
    rows_of = defaultdict(list)
    for row, name in enumerate(names):
        rows_of[name].append(row)
    return [rows for rows in rows_of.values() if len(rows) >= FEWEST_VIEWS]


def at_random(items: list[T], most: int, rng: torch.Generator) -> list[T]:
    return [items[i] for i in torch.randperm(len(items), generator=rng)[:most].tolist()]


def silhouettes_of(dataset: Views, rows: list[int], data: DataConfig) -> list[Tensor | None]:
    """The silhouette of each row's image, see `silhouette`."""
    masks = map_in_threads(lambda row: silhouette(dataset, row, data), rows, available_cores())
    return list(progress(masks, desc="silhouettes", total=len(rows), unit="image"))


def silhouette(dataset: Views, row: int, data: DataConfig) -> Tensor | None:
    """Mask (S, S) bool of an image's object, by its opacity or in front of a plain background; None where it has neither."""
    opacity = dataset.opacity(row, dataclasses.replace(data, imsize=SIDE), supersampling=1)
    if opacity is None or bool((opacity > 0.5).all()):
        opacity = before_plain_background(dataset.read(row)[:3])
    if opacity is None:
        return None
    mask = F.adaptive_avg_pool2d(opacity[None], SIDE)[0] > 0.5
    return mask if mask.any() and not mask.all() else None


def before_plain_background(image: Tensor) -> Tensor | None:
    """1 for an object's pixels and 0 for the background's (H, W), of an image (3, H, W) uint8 whose frame's edge, most of it,
    has one colour; else None."""
    image = image.float()
    edge = edge_pixels(image)
    colour = edge.median(dim=1).values
    if ((edge - colour[:, None]).abs().amax(0) > PLAIN).float().mean() > 0.1:
        return None
    return ((image - colour[:, None, None]).abs().amax(0) > UNLIKE).float()


def agreement(objects: list[ObjectViews], data: DataConfig) -> float:
    """The mean overlap (intersection over union, 0 to 1) of silhouettes and the objects' hulls, seen from the same cameras."""
    return sum(map_in_threads(lambda views: overlap(views, data), objects, available_cores())) / len(objects)


def overlap(views: ObjectViews, data: DataConfig) -> float:
    """The mean overlap of an object's silhouettes and its hull's, of cells as small as their pixels; 0 for fewer than 8."""
    n, side = len(views.masks), views.masks.shape[-1]
    if n < FEWEST_VIEWS:
        return 0.0
    reach = visible_half_width(views.pose_c2w, data)
    axis = ((torch.arange(side) + 0.5) / side * 2 - 1) * reach
    cells = torch.cartesian_prod(axis, axis, axis)
    hull = torch.zeros(len(cells), dtype=torch.bool)
    hull[carve(cells, views, data)] = True
    surface = cells[at_surface(hull.view(side, side, side)).flatten()]
    parts = torch.cartesian_prod(*[torch.tensor([-0.5, 0.5]) * reach / side] * 3)  # 8 points of a cell leave no holes
    pixel, _ = pixels_of((surface[:, None] + parts).flatten(0, 1), views.pose_c2w, side, data)
    seen = torch.zeros(n, side**2, dtype=torch.bool).scatter_(1, pixel, True)
    masks = views.masks.flatten(1)
    return ((seen & masks).sum(1) / (seen | masks).sum(1)).mean().item()


def carve(points: Tensor, views: ObjectViews, data: DataConfig) -> Tensor:
    """The indices of the points, of (N, 3), that all silhouettes cover, but for a few of them."""
    allowed = int(MISSES * len(views.masks))
    kept, missed = torch.arange(len(points)), torch.zeros(len(points), dtype=torch.long)
    for masks, pose_c2w in zip(*(part.split(VIEWS_AT_ONCE) for part in views), strict=True):
        missed += (~covers(masks, pose_c2w, points[kept], data)).sum(0)
        kept, missed = kept[missed <= allowed], missed[missed <= allowed]
    return kept


def at_surface(hull: Tensor) -> Tensor:
    """The cells of a hull (S, S, S) bool that are not enclosed by others; its silhouettes are those of the whole."""
    enclosed = -F.max_pool3d(-hull[None].float(), 3, stride=1, padding=1)[0] > 0.5
    return hull & ~enclosed


def visible_half_width(pose_c2w: Tensor, data: DataConfig) -> float:
    """Half the side of the cube about the origin that the nearest of the cameras sees, in scene units."""
    if data.orthographic:
        return (data.far - data.near) / 2
    return pose_c2w[:, :, 3].norm(dim=-1).min().item() * math.sin(math.radians(data.fov) / 2)
