"""Checks that views show one solid 3D object: depth-warp error, popping during a turn, checkerboards, collapse of the field.

The depth-warp error lifts each pixel of view A into the world by A's planar depth, projects it into view B, and compares the
two colours. A point behind B's surface is hidden from B and left out. A point in front of B's surface should be visible in B:
it is compared too, and counts as a contradiction. Nothing is compared where a bilinear footprint straddles an edge of the
silhouette or a jump in depth.

Maps of any side n span the frame of `width` pixels: entry i is at pixel (i + 1/2) width / n - 1/2, as in
`graf.rays.low_resolution_grid`.

Legend: B pairs of views or images, n side of the images, m side of depth and opacity, P positions or pixels, K = 4 corners of
a footprint.
"""

import dataclasses
import math
from typing import NamedTuple

from graf.camera import middle_poses, pixel_size, project, view_azimuths
from graf.config import DataConfig
from graf.data import Views
from graf.models.generator import Generator, Rendering
from graf.pictures.sampling import fresh_samples, labels_as_in_data, render_views, sample_objects
from graf.rays import camera_rays, full_grid, low_resolution_grid
from graf.runtime.console import progress

import torch
from torch import Tensor

ANGLE_DEG = 15.0  # between the two cameras of a pair
OPAQUE = 0.9  # least opacity of a surface; up to 1 - OPAQUE there is none
DEPTH_TOLERANCE = 0.02  # share of far - near within which depths agree: one sample interval by default
STEEPEST = 3.0  # largest change of depth per pixel width, a slant of 72 degrees; more within a footprint is a jump
ON_CENTRE = 1e-3  # of an entry: nearer positions are taken to be at its centre, as positions are rounded

TURN_STEP_DEG = 1.0
FRAMES_AT_ONCE = 30  # of a turn

EMPTY = 0.1  # largest opacity of an empty pixel
NEARLY_ALL = 0.99  # share of the pixels that makes an image empty or full


@dataclasses.dataclass(frozen=True)
class View:
    """Renderings from cameras pose_c2w (B, 3, 4): images (B, 3, n, n) in [-1, 1]; planar depth in scene units, undefined where
    the opacity is low, and opacity in [0, 1], each (B, 1, m, m)."""

    images: Tensor
    depth: Tensor
    opacity: Tensor
    pose_c2w: Tensor


class WarpError(NamedTuple):
    """The comparison of each pair (B,). error: mean difference in 8-bit steps between A's comparable pixels and B's bilinear
    colour; excess: that to the range of the footprint's four colours, which resampling does not explain; nan where no pixel
    is comparable. The comparable share of A's opaque pixels, and their contradicted share; 0 where A has none."""

    depth_warp_error: Tensor
    depth_warp_excess: Tensor
    comparable_share: Tensor
    contradicted_share: Tensor


@torch.inference_mode()
def multi_view_consistency(
    generator: Generator,
    n_objects: int,
    seed: int,
    batch_size: int = 4,
    resolution: int | None = None,
    truncation: float = 1.0,
) -> dict[str, float | int | None]:
    """The depth-warp error of n_objects sampled with a seed, each seen by two cameras ANGLE_DEG apart, ready for JSON.

    batch_size pairs are rendered at a time, with `resolution` pixels per side (default data.imsize). Keys are the fields of
    WarpError with _nerf for the field's own rendering and, where ccsr.mode is refine, with _refined; values are means over
    pairs, None where nothing could be compared.
    """
    data = generator.config.data
    width = resolution or data.imsize
    latents, class_index = sample_objects(generator, n_objects, seed, truncation)
    poses = camera_pairs(n_objects, ANGLE_DEG, data)
    parts: dict[str, list[WarpError]] = {}
    for some in progress(torch.arange(n_objects).split(batch_size), desc="pairs of views", unit="batch"):
        first, second = (
            stages(generator.render(latents[some], pose, width, class_index[some]), pose) for pose in poses[:, some]
        )
        for stage, view in first.items():
            parts.setdefault(stage, []).append(warp_error(view, second[stage], width, data))
    result = {"pairs": n_objects, "angle_deg": ANGLE_DEG, "seed": seed, "resolution": width, "truncation": truncation}
    for stage, errors in parts.items():
        for name, values in zip(WarpError._fields, zip(*errors, strict=True), strict=True):
            mean = torch.cat(values).nanmean().item()
            result[f"{name}_{stage}"] = None if math.isnan(mean) else mean
    return result


def camera_pairs(n: int, angle_deg: float, data: DataConfig) -> Tensor:
    """pose_c2w (2, n, 3, 4) at mid height: n cameras spread evenly over the config's azimuths, and n angle_deg further.

    Where its u_range is an arc wide enough, both stay within it.
    """
    left, right = data.u_range
    first = view_azimuths(n, data)
    if right - left < 1:
        first = 360 * torch.linspace(left, max(left, right - angle_deg / 360), n)
    return middle_poses(torch.stack([first, first + angle_deg]), data)


def stages(rendering: Rendering, pose_c2w: Tensor) -> dict[str, View]:
    """The views in a rendering of the full frame from cameras (B, 3, 4): `nerf` and, with CCSR, `refined`.

    Depth and opacity have one entry per ray: one of each block of pixels where `Rendering.at` has enlarged them.
    """
    images = {"nerf": rendering.images}
    if rendering.low_images is not None:
        images = {"nerf": rendering.low_images, "refined": rendering.images}
    block = rendering.depth.shape[-1] // images["nerf"].shape[-1]
    depth, opacity = rendering.depth[..., ::block, ::block], rendering.opacity[..., ::block, ::block]
    return {stage: View(x, depth, opacity, pose_c2w) for stage, x in images.items()}


def warp_error(a: View, b: View, width: int, data: DataConfig) -> WarpError:
    """Warp views a by their depth into views b of the same objects, pair by pair, in frames of `width` pixels, and compare."""
    grid = low_resolution_grid(full_grid(width, a.images.device), width // a.images.shape[-1])
    rays_o, rays_d = camera_rays(a.pose_c2w, grid, width, data)
    seen = look_up(a, grid.flatten(1, 2).expand(len(rays_o), -1, -1), width, data)
    position, depth = project(rays_o + seen.depth[..., None] * rays_d, b.pose_c2w, width, data)
    there = look_up(b, position, width, data)

    tolerance = DEPTH_TOLERANCE * (data.far - data.near)
    known = seen.surface & (depth > 0)  # (B, P)
    contradicted = known & (there.empty_until > depth + tolerance)
    comparable = known & there.surface & ((depth - there.depth).abs() <= tolerance) | contradicted
    error = (seen.colour - there.colour).abs()  # (B, 3, P)
    excess = (seen.colour - seen.colour.clamp(*there.colour_range)).abs()
    n_opaque = (seen.opacity >= OPAQUE).sum(1).clamp_min(1)
    return WarpError(
        *(127.5 * x.mean(1).where(comparable, 0).sum(1) / comparable.sum(1) for x in (error, excess)),  # 0 / 0 is nan
        comparable.sum(1) / n_opaque,
        contradicted.sum(1) / n_opaque,
    )


class Look(NamedTuple):
    """Views at P positions: bilinear colour (B, 3, P), depth and opacity (B, P); the least and greatest colour (B, 3, P) of the
    footprint; surface (B, P), whether it lies on one opaque surface; empty_until (B, P), the depth up to which B is empty."""

    colour: Tensor
    colour_range: tuple[Tensor, Tensor]
    depth: Tensor
    opacity: Tensor
    surface: Tensor
    empty_until: Tensor


def look_up(view: View, position: Tensor, width: int, data: DataConfig) -> Look:
    """Look up views at positions (B, P, 2) in pixels of the frame of `width`; colours are clamped to [-1, 1]."""
    colours, shares, inside = footprints(view.images.clamp(-1, 1), position, width)
    maps, weights, within = footprints(torch.cat([view.depth, view.opacity], dim=1), position, width)
    depth, opacity = (weights * maps).sum(-1).unbind(1)
    (nearest, least_opaque), (farthest, _) = (bound.unbind(1) for bound in bounds(maps, weights))
    jump = STEEPEST * pixel_size(depth, view.depth.shape[-1], data)
    surface = inside & within & (least_opaque >= OPAQUE) & (farthest - nearest <= jump)
    depths, opacities = maps.unbind(1)  # (B, P, K)
    unseen = torch.where(opacities <= 1 - OPAQUE, math.inf, 0.0)  # a half transparent entry may show anything
    empty_until = bounds(torch.where(opacities >= OPAQUE, depths, unseen), weights[:, 0])[0].where(inside & within, 0)
    return Look((shares * colours).sum(-1), bounds(colours, shares), depth, opacity, surface, empty_until)


def footprints(maps: Tensor, position: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The four entries of maps (B, C, n, n) around positions (B, P, 2) in pixels of the frame of `width`.

    Returns values (B, C, P, K), bilinear weights (B, 1, P, K), and inside (B, P), false beyond the outermost entries, where
    there is nothing to interpolate between.
    """
    side = maps.shape[-1]
    index = ((position + 0.5) * (side / width) - 0.5).nan_to_num(-1)
    index = torch.where((index - index.round()).abs() < ON_CENTRE, index.round(), index)
    inside = ((index >= 0) & (index <= side - 1)).all(-1)
    corner = index.floor().clamp(0, side - 2)
    x, y = (index - corner).unbind(-1)
    weights = torch.stack([(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y], dim=-1)
    first = (corner[..., 1] * side + corner[..., 0]).long()
    entries = first[..., None] + torch.tensor([0, 1, side, side + 1], device=first.device)  # (B, P, K)
    values = maps.flatten(2).gather(2, entries.flatten(1)[:, None].expand(-1, maps.shape[1], -1))
    return values.unflatten(2, entries.shape[1:]), weights[:, None], inside


def bounds(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest (..., P) of values (..., P, K) with a weight other than 0."""
    unused = weights == 0
    return values.masked_fill(unused, math.inf).amin(-1), values.masked_fill(unused, -math.inf).amax(-1)


def rotation_smoothness(generator: Generator, n_objects: int, seed: int, truncation: float = 1.0) -> dict[str, float | None]:
    """Differences between neighbouring frames of a turn in steps of TURN_STEP_DEG, over the config's azimuths at mid height.

    A difference is the mean over pixels and channels, in 8-bit steps. popping is the largest over the median difference of an
    object, for the worst object: near 1 for an even turn, large where a frame jumps. Differences and popping are None where the
    azimuths give fewer than two frames.
    """
    poses = turn(TURN_STEP_DEG, generator.config.data)
    if len(poses) < 2:
        return {"turn_step_deg": TURN_STEP_DEG} | dict.fromkeys(("frame_difference_median", "frame_difference_max", "popping"))
    latents, classes = sample_objects(generator, n_objects, seed, truncation)
    differences = []
    with progress(total=n_objects * len(poses), desc="turns", unit="image") as bar:
        for latent, class_index in zip(latents.split(1), classes.split(1), strict=True):
            before, steps = None, []
            for some in poses.split(FRAMES_AT_ONCE):  # a turn at 256 pixels would fill memory
                images = render_views(generator, (latent, class_index), some, bar=bar).images
                frames = images if before is None else torch.cat([before, images])
                steps.append((frames[1:] - frames[:-1]).abs().mean(dim=(1, 2, 3)) * 127.5)
                before = images[-1:]
            differences.append(torch.cat(steps))
    steps = torch.stack(differences)  # (N, frames - 1)
    return {
        "turn_step_deg": TURN_STEP_DEG,
        "frame_difference_median": steps.median().item(),
        "frame_difference_max": steps.max().item(),
        "popping": popping(steps).max().item(),
    }


def turn(step_deg: float, data: DataConfig) -> Tensor:
    """pose_c2w (V, 3, 4) over the config's u_range in steps of step_deg, both ends included, at mid height."""
    left, right = data.u_range
    azimuth_deg = torch.arange(360 * left, 360 * right + 1e-3, step_deg)
    return middle_poses(azimuth_deg, data)


def popping(differences: Tensor) -> Tensor:
    """Largest over median (N,) of frame differences (N, T); 1 where nothing moves at all, NaN where a frame is NaN."""
    largest, median = differences.max(dim=1).values, differences.median(dim=1).values
    return torch.where(largest == 0, 1.0, largest / median.clamp_min(1e-12))


def nyquist_against_real(generator: Generator, dataset: Views, n: int, seed: int, truncation: float = 1.0) -> dict[str, float]:
    """`nyquist_energy` of n fresh samples at the data's cameras, and of as many real images."""
    config = generator.config
    rng = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(dataset), generator=rng)[:n].tolist()
    label_sampler, batch_size = labels_as_in_data(dataset, config.data), config.metrics.batch_size
    with progress(total=n, desc="samples", unit="image") as bar:
        fakes = torch.cat([*fresh_samples(generator, label_sampler, n, batch_size, seed, bar, truncation=truncation)])
    return {
        "nyquist_ppm_generated": nyquist_energy(fakes),
        "nyquist_ppm_real": nyquist_energy(torch.stack([dataset[i]["image"] for i in index])),
    }


def nyquist_energy(images: Tensor) -> float:
    """Share of the variance of images (N, 3, H, W) at the Nyquist frequency along x or y, in parts per million.

    Checkerboards and stripes one pixel wide raise it. Odd sides have no such frequency: their last row or column is left out.
    """
    height, width = (side - side % 2 for side in images.shape[-2:])
    images = images[..., :height, :width]
    centred = images.double() - images.double().mean(dim=(-2, -1), keepdim=True)
    power = torch.fft.fft2(centred).abs().square().sum(dim=(0, 1))  # (H, W)
    row, column = height // 2, width // 2
    at_nyquist = power[row].sum() + power[:, column].sum() - power[row, column]
    return (1e6 * at_nyquist / power.sum().clamp_min(1e-300)).item()


def sanity(rendering: Rendering, near: float, far: float) -> dict[str, float]:
    """Opacity and depth of a batch of renderings, as scalars for a log.

    depth_spread is the opacity-weighted standard deviation of depth within an image, in scene units, averaged over images that
    are not empty (0 without any); depth_range is far - near; empty_share and full_share are shares of the images.
    """
    opacity, depth = rendering.opacity.flatten(1), rendering.depth.flatten(1)  # (B, P)
    empty, full = (covered.float().mean(1) >= NEARLY_ALL for covered in (opacity <= EMPTY, opacity >= OPAQUE))  # (B,)
    spread = depth_spread(depth, opacity).where(~empty, 0).sum() / (~empty).sum().clamp_min(1)
    return {
        "mean_opacity": opacity.mean().item(),
        "depth_spread": spread.item(),
        "depth_range": far - near,
        "empty_share": empty.float().mean().item(),
        "full_share": full.float().mean().item(),
    }


def depth_spread(depth: Tensor, opacity: Tensor) -> Tensor:
    """Standard deviation (B,) of the depths (B, P) of each image, weighted by the opacity (B, P); nan where that is 0."""
    weights = opacity / opacity.sum(1, keepdim=True)
    mean = (weights * depth).sum(1, keepdim=True)
    return (weights * (depth - mean) ** 2).sum(1).sqrt()
