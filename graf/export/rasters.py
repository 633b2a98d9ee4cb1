"""Pictures of splats and textured triangles without a graphics library: how exports look, beside the model's own views.

Legend: N primitives, M pairs of a primitive and a pixel of its bounding box, W side of the picture. Pixel i of a row stands at
i - W / 2 from the optical axis, as in graf/rays.py.
"""

import dataclasses
import math
from collections.abc import Callable, Collection
from pathlib import Path

from graf.camera import rotation_poses
from graf.config import DataConfig
from graf.models.generator import Generator
from graf.pictures.captions import Captions
from graf.pictures.outputs import as_uint8, write_grid
from graf.pictures.sampling import Objects, render_views

import torch
from torch import Tensor
from torch.nn import functional as F

CHECK_VIEWS, LARGEST_SIDE = 6, 128  # of the pictures that are compared
PSNR = ("psnr_db", "psnr_object_db", "psnr_nerf_db")
DRAWN_SIDE = 512  # pixels, about those of a viewer's window


@dataclasses.dataclass(frozen=True)
class RenderedBack:
    """The model's pictures of an object, and an export's: two times (V, 3, W, W) uint8, and how well they agree.

    psnr_db is of whole pictures, psnr_object_db of the pixels that either of them covers, psnr_nerf_db of whole pictures at the
    size of the field's own rendering, against it: what CCSR adds to the model's images is not in the field that is exported.
    """

    model: Tensor
    export: Tensor
    psnr_db: float
    psnr_object_db: float
    psnr_nerf_db: float

    @property
    def summary(self) -> str:
        return (
            f"PSNR {self.psnr_db:.1f} dB against the model's views, {self.psnr_object_db:.1f} dB of the object's pixels alone, "
            f"{self.psnr_nerf_db:.1f} dB against the field's own rendering"
        )


def mean_psnr(checks: Collection[RenderedBack]) -> dict[str, float | int | None]:
    """The means over objects, None for one that is not finite, with the numbers of objects and views and the pictures' side."""
    means = {name: math.fsum(getattr(check, name) for check in checks) / len(checks) for name in PSNR}
    means = {name: value if math.isfinite(value) else None for name, value in means.items()}
    return means | {"objects": len(checks), "views": CHECK_VIEWS, "resolution": next(iter(checks)).model.shape[-1]}


def write_checks(checks: dict[int, RenderedBack], path: Path, footer: str | None = None) -> Path:
    """A sheet with two rows for each object, by its number: the model's views and below them the export's; with captions where
    there is a footer."""
    rows = torch.cat([views for check in checks.values() for views in (check.model, check.export)])
    names = [f"object {i}, {kind}" for i in checks for kind in ("model", "export")]
    return write_grid(path, rows, CHECK_VIEWS, Captions(footer, rows=names))


def rendered_back(
    generator: Generator, one: Objects, draw: Callable[[Tensor, int, DataConfig], tuple[Tensor, Tensor]]
) -> RenderedBack:
    """Compare one object, latents (1, Z) and class (1,), with what an export of it shows from CHECK_VIEWS sides.

    draw(pose_c2w (3, 4), W, data) gives the export's image (3, W, W) in [-1, 1] and opacity (W, W) in [0, 1]. W is data.imsize,
    of a larger one the largest that CCSR takes up to LARGEST_SIDE.
    """
    data, scale = generator.config.data, generator.config.rendered_scale
    side, poses = min(data.imsize, LARGEST_SIDE // scale * scale), rotation_poses(CHECK_VIEWS, data)
    model = render_views(generator.without_background(), one, poses, side)
    images, opacity = (torch.stack(maps) for maps in zip(*(draw(pose, side, data) for pose in poses), strict=True))
    covered = ((opacity > 0.5) | (model.opacity[:, 0] > 0.5))[:, None].expand_as(images)
    low, small = model.images, images
    if model.low_images is not None:
        low, small = model.low_images, generator.projection.downsample(images.to(generator.background.device)).cpu()
    values = psnr(model.images, images), psnr(model.images[covered], images[covered]), psnr(low, small)
    return RenderedBack(as_uint8(model.images), as_uint8(images), *values)


def psnr(a: Tensor, b: Tensor) -> float:
    """Peak signal to noise ratio in dB of images in [-1, 1], of which as many as are given; infinite for equal ones."""
    error = float((a.clamp(-1, 1) - b.clamp(-1, 1)).double().square().mean())
    return 10 * math.log10(4 / error) if error else math.inf


def fineness(width: int) -> int:
    """Pixels drawn along each side of one, so that a picture is drawn as large as a viewer's window and then made small."""
    return max(2, DRAWN_SIDE // width)


def supersampled(pixel: Tensor, factor: int) -> Tensor:
    """Positions in pixels as positions in a picture of `factor` times the side, whose blocks have the pixels as centres."""
    return pixel * factor + (factor - 1) / 2


def average_blocks(maps: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Image (3, W, W) and opacity (W, W) of maps (4, factor * W, factor * W) of both."""
    small = F.avg_pool2d(maps[None], factor)[0]
    return small[:3], small[3]


def pixels_in_triangles(corners: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """All pixels whose centres lie in the triangles with corners (N, 3, 2), borders included: the triangle's index (M,), the
    pixel (M, 2) as (x, y), and the shares (M, 3) of the corners there."""
    owner, pixel = pixels_of_boxes(corners.amin(dim=1), corners.amax(dim=1), width)
    a, b, c = corners[owner].unbind(dim=1)
    area = _area(b - a, c - a)
    weights = torch.stack([_area(c - b, pixel - b), _area(a - c, pixel - c), _area(b - a, pixel - a)], dim=-1) / area[:, None]
    inside = (weights >= 0).all(dim=1) & (area != 0)
    return owner[inside], pixel[inside], weights[inside]


def _area(a: Tensor, b: Tensor) -> Tensor:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def pixels_of_boxes(low: Tensor, high: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """All pixels within the boxes from low to high (N, 2), both ends included: the box's index (M,), and the pixel (M, 2) as
    (x, y)."""
    low, high = low.ceil().long().clamp_min(0), high.floor().long().clamp_max(width - 1)
    size = (high - low + 1).clamp_min(0)
    count = size.prod(dim=1)
    owner = torch.repeat_interleave(torch.arange(len(low)), count)
    within = torch.arange(len(owner)) - (count.cumsum(0) - count)[owner]
    columns = size[owner, 0]
    return owner, low[owner] + torch.stack([within % columns, within // columns], dim=-1)
