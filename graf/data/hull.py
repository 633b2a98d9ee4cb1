"""data.box: auto, the box around toy cars, or around the visual hull of objects whose silhouettes and cameras are known.

Images may be of different objects, and none shows every possible one. So a point belongs to the hull (Laurentini, The Visual
Hull Concept for Silhouette-Based Image Understanding, 1994) where from every direction at least one of the nearest images
covers it. Where few objects are large, the nearest images may show none of them; the box around the hull is therefore enlarged
until it contains the silhouette of every image.

Legend: P images, N points, side x side pixels of a silhouette.
"""

import dataclasses
import logging
import math
from collections.abc import Iterator

from graf.camera import focal_length
from graf.config import DataConfig
from graf.data.car_shapes import make_car
from graf.data.toy_cars import ToyCars
from graf.data.views import Views
from graf.errors import GrafError
from graf.rays import camera_rays, visible_radius
from graf.runtime.console import progress
from graf.runtime.limits import available_cores
from graf.runtime.threads import map_in_threads

import torch
from torch import Tensor
from torch.nn import functional as F

HULL_IMAGES = 512  # images for the hull, at most, evenly spread over the data set
NEAREST = 32  # images from about one direction, one of which has to cover a point
SIDE = 48  # pixels of a silhouette, at most
CELLS = 48  # along each side of the cube that all cameras see
MARGIN = 0.05  # of the box's sides, in addition to a cell
CAR_MARGIN = 0.01  # the same for cars, whose sizes are known

log = logging.getLogger("graf")


class NoHull(GrafError):
    """Why the objects' visual hull is not known."""


def data_box(dataset: Views, data: DataConfig, held: float = 1.0) -> tuple[float, ...] | str:
    """The low and the high corner (6 numbers, scene units) of the box around all objects, or "none" where the data do not
    determine it; logged either way.

    held: the share of the silhouettes that it is to contain; below 1 where some cameras are wrong.
    """
    try:
        if isinstance(dataset, ToyCars) and dataset.posed:
            box, contents = car_box(data), f"all {len(dataset)} toy cars"
        else:
            box = hull_box(dataset, data, held)
            contents = f"the silhouettes of {'all' if held == 1 else f'{held:.0%} of'} {len(dataset)} images"
    except NoHull as reason:
        log.info("data.box: none, for %s", reason)
        return "none"
    log.info("data.box: %s, around %s", list(box), contents)
    return box


def car_box(data: DataConfig) -> tuple[float, ...]:
    """The low and the high corner (6 numbers, scene units) around all toy cars of a config, with a margin."""
    half_size = torch.stack([make_car(data.seed, index).half_size for index in range(data.n_images)]).amax(0)
    high = (half_size * (1 + CAR_MARGIN)).tolist()
    return tuple(round(x, 4) for x in [*(-x for x in high), *high])


def hull_box(dataset: Views, data: DataConfig, held: float = 1.0) -> tuple[float, ...]:
    """The low and the high corner (6 numbers, scene units) of the box around the visual hull, enlarged until it contains the
    share `held` of the images' silhouettes, with a margin. Raises NoHull."""
    if dataset.labels is None:
        raise NoHull("the images have no known cameras")
    try:
        radius = visible_radius(data)
    except GrafError as error:
        raise NoHull(str(error)) from error
    index = torch.linspace(0, len(dataset) - 1, min(len(dataset), HULL_IMAGES)).round().long()
    masks = torch.stack(list(silhouettes(dataset, index, data, "visual hull")))
    cell = 2 * radius / CELLS
    axis = cell * (torch.arange(CELLS) + 0.5) - radius
    points = visual_hull(torch.cartesian_prod(axis, axis, axis), masks, dataset.labels.pose_c2w[index], data)
    if not len(points):
        raise NoHull("the images' silhouettes have no point in common")
    box = torch.stack([points.amin(0) - cell, points.amax(0) + cell])
    centre, half_size = box.mean(0), (box[1] - box[0]) / 2
    half_size = half_size * enlargement(dataset, box, data, held) * (1 + MARGIN)
    return tuple(round(x, 4) for x in torch.cat([centre - half_size, centre + half_size]).tolist())


def silhouettes(dataset: Views, index: Tensor, data: DataConfig, desc: str) -> Iterator[Tensor]:
    """Masks (side, side) bool of the pixels that are mostly the object's, per image. Raises NoHull where one is not known."""
    small = dataclasses.replace(data, imsize=min(SIDE, data.imsize))

    def silhouette(i: int) -> Tensor:
        opacity = dataset.opacity(i, small, supersampling=1)
        if opacity is None:
            raise NoHull(f"{dataset.files[i]} has no transparency, so its silhouette is not known")
        return opacity > 0.5

    masks = map_in_threads(silhouette, index.tolist(), available_cores())
    yield from progress(masks, desc=desc, total=len(index), unit="image")


def enlargement(dataset: Views, box: Tensor, data: DataConfig, held: float = 1.0) -> float:
    """The factor, at least 1, by which a box (2, 3) is scaled about its centre to contain the share `held` of the silhouettes.

    Logs how many silhouettes leave the box, and how many the frame cuts off, so that the rest of the object is not seen.
    """
    n, scales, cut_off = len(dataset), [], 0
    masks = silhouettes(dataset, torch.arange(n), data, "silhouettes")
    for mask, pose_c2w in zip(masks, dataset.labels.pose_c2w, strict=True):
        rays_o, rays_d = camera_rays(pose_c2w[None], outline(mask)[None, None], len(mask), data)
        scales.append(max(scale_to_meet(box, rays_o[0], rays_d[0]).tolist(), default=0.0))
        cut_off += bool(mask[[0, -1]].any() or mask[:, [0, -1]].any())
    largest, outside = max(1.0, sorted(scales)[math.ceil(held * n) - 1]), sum(scale > 1 for scale in scales)
    if outside and held < 1:
        log.info("data.box: %d of %d silhouettes leave the visual hull; the box is %.2f times as large", outside, n, largest)
    elif outside:
        log.info(
            "data.box: %d of %d silhouettes (%.1f %%) leave the visual hull, %s the furthest; the box is %.2f times as "
            "large as the hull and holds them all",
            *(outside, n, 100 * outside / n, dataset.files[scales.index(largest)], largest),
        )
    if cut_off:
        log.info("data.box: %d of %d silhouettes reach the frame's edge; what lies beyond it may not be in the box", cut_off, n)
    return largest


def outline(mask: Tensor) -> Tensor:
    """The corners (n, 2) of pixels, as (x, y) in pixels, where a mask (side, side) bool ends, also at the frame's edge."""
    covered = F.pad(mask.float(), (1, 1, 1, 1))[None]
    some, not_all = (F.max_pool2d(values, 2, 1)[0] > 0 for values in (covered, 1 - covered))  # of the four pixels of a corner
    return (some & not_all).nonzero().flip(1) - 0.5


def scale_to_meet(box: Tensor, rays_o: Tensor, rays_d: Tensor) -> Tensor:
    """The scale (R,) about its centre at which a box (2, 3) touches each line (R, 3); below 1 where the line crosses it.

    In units of half the box's sides a line is a + t b, and its point at t lies on a box scaled by max_i |a_i + t b_i|. That is
    convex in t, and least where two of the three terms are equal.
    """
    half_size = (box[1] - box[0]) / 2
    a, b = (rays_o - box.mean(0)) / half_size, rays_d / half_size
    i, j = [0, 0, 1], [1, 2, 2]
    t = torch.cat([(a[:, j] - a[:, i]) / (b[:, i] - b[:, j]), -(a[:, j] + a[:, i]) / (b[:, i] + b[:, j])], dim=1)  # (R, 6)
    scales = (a[:, None] + t[..., None] * b[:, None]).abs().amax(-1)
    return scales.nan_to_num(torch.inf, torch.inf).amin(1)  # terms that are never equal give no t


def visual_hull(points: Tensor, masks: Tensor, pose_c2w: Tensor, data: DataConfig) -> Tensor:
    """The points, of (N, 3), that one of the nearest masks (P, side, side) covers around each camera (P, 3, 4)."""
    direction = F.normalize(pose_c2w[..., 3], dim=-1)
    nearest = (direction @ direction.T).topk(min(NEAREST, len(masks))).indices  # (P, n)
    for rows in nearest[::NEAREST]:  # a few directions first, which leave few points for all others
        points = points[covers(masks[rows], pose_c2w[rows], points, data).any(0)]
    covered = covers(masks, pose_c2w, points, data)
    kept = torch.arange(len(points))
    for rows in nearest:
        kept = kept[covered[rows][:, kept].any(0)]
    return points[kept]


def covers(masks: Tensor, pose_c2w: Tensor, points: Tensor, data: DataConfig) -> Tensor:
    """Whether masks (P, side, side) cover points (N, 3), seen from pose_c2w (P, 3, 4): (P, N) bool.

    A mask continues beyond the frame as at its edge: an object that leaves the frame is not cut off there.
    """
    pixel, depth = pixels_of(points, pose_c2w, masks.shape[-1], data)
    return masks.flatten(1).gather(1, pixel) | (depth <= 0)  # a point behind the camera is not seen


def pixels_of(points: Tensor, pose_c2w: Tensor, side: int, data: DataConfig) -> tuple[Tensor, Tensor]:
    """The pixel, row * side + column, that shows each of (N, 3) points in frames of cameras (P, 3, 4), at the edge for a point
    beyond it; and the point's planar depth, below 0 behind the camera: (P, N) each. Like `graf.camera.project`, but as one
    product for many points, rounded to pixels, without gradients, in the memory of that product."""
    axes = pose_c2w[:, :, :3].permute(2, 0, 1)  # (3, P, 3): the cameras' x, y and z; they look along -z
    position = (axes * pose_c2w[:, :, 3]).sum(-1)  # (3, P), along these axes
    in_camera = torch.addmm(-position.reshape(-1, 1), axes.reshape(-1, 3), points.T)
    x, y, z = in_camera.view(3, len(pose_c2w), len(points))
    depth = z.neg_()
    scale = side / (data.far - data.near) if data.orthographic else focal_length(data.fov, side) / depth.clamp_min(1e-6)
    column = x.mul_(scale).add_(side / 2).round_().clamp_(0, side - 1)
    row = y.mul_(scale).neg_().add_(side / 2).round_().clamp_(0, side - 1)
    return row.mul_(side).add_(column).long(), depth
