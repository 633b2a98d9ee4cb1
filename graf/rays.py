"""Rays of a camera, through a grid of pixel positions: the full frame or a sparse multi-scale patch.

Pixel i of a row stands at i - W / 2 from the optical axis, in pixels of the focal length (GRAF's convention). rays_d is not
normalised: its z in the camera is -1, so that distances along it are planar depths.

Legend: B images, h x w grid positions of an image of side W.
"""

import functools
import math

from graf.camera import focal_length
from graf.config import DataConfig, RaySamplerConfig
from graf.errors import GrafError

import torch
from torch import Tensor
from torch.nn import functional as F

RAY_SPACING = 2  # of reconstructions in training, in spacings of a rendering's rays


def full_grid(width: int, device: torch.device | str = "cpu") -> Tensor:
    """Every pixel's position (1, W, W, 2) as (x, y) in pixels, 0 to W - 1."""
    return _square(torch.arange(width, dtype=torch.float32, device=device))[None]


def sample_patch_grid(
    n: int,
    side: int,
    width: int,
    config: RaySamplerConfig,
    step: int,
    rng: torch.Generator,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Positions (n, K, K, 2) in pixels, 0 to W - 1, of n patches of side K in frames of side W (GRAF, eq. 7).

    Each patch has its own scale in [smallest_scale(step), max_scale] and its own place inside the frame. Patches are sampled on
    the CPU and stay there; whole frames, which are alike in all steps, are on the device.
    """
    scale = torch.full((n, 1, 1, 1), config.max_scale)
    low = smallest_scale(config, step) if config.random_scale else config.max_scale
    if config.random_scale:
        scale = low + (config.max_scale - low) * torch.rand(n, 1, 1, 1, generator=rng)
    shift = torch.zeros(n, 1, 1, 2)
    if config.random_shift:
        shift = (1 - scale) * (2 * torch.rand(n, 1, 1, 2, generator=rng) - 1)
    if low == config.max_scale == 1:
        return whole_frame(side, width, device).expand(n, -1, -1, -1)
    return (_square(torch.linspace(-1, 1, side)) * scale + shift + 1) * ((width - 1) / 2)


@functools.lru_cache(maxsize=4)
def whole_frame(side: int, width: int, device: torch.device | str) -> Tensor:
    """Positions (1, K, K, 2) in pixels of a patch that is the whole frame of side W, from corner to corner. All callers share
    one tensor, which stays as it is."""
    with torch.inference_mode(False):
        return (_square(torch.linspace(-1, 1, side, device=device))[None] + 1) * ((width - 1) / 2)


def _square(positions: Tensor) -> Tensor:
    """All (x, y) of positions (K,), row by row: (K, K, 2)."""
    y, x = torch.meshgrid(positions, positions, indexing="ij")
    return torch.stack([x, y], dim=-1)


def low_resolution_grid(grid: Tensor, scale: int) -> Tensor:
    """Centres (B, h / s, w / s, 2) of the s x s blocks of a grid (B, h, w, 2): the grid of a low-resolution rendering."""
    return F.avg_pool2d(grid.movedim(-1, 1), scale).movedim(1, -1) if scale > 1 else grid


def one_pixel_per_block(grid: Tensor, scale: int, rng: torch.Generator) -> Tensor:
    """A position from each of the s x s blocks of a grid (B, h, w, 2): (B, h / s, w / s, 2). It is at random, but has the same
    place in all blocks of an image."""
    y, x = torch.randint(scale, (2, len(grid)), generator=rng)
    blocks = grid.unflatten(2, (-1, scale)).unflatten(1, (-1, scale))  # (B, h / s, s, w / s, s, 2)
    return blocks[torch.arange(len(grid)), :, y, :, x]


def smallest_scale(config: RaySamplerConfig, step: int) -> float:
    """The smallest patch scale at a step: max_scale shrinking exponentially towards min_scale, at most 0.9 while annealed."""
    if config.scale_anneal == 0:
        return config.min_scale
    annealed = config.max_scale * math.exp(-config.scale_anneal * 3 * (step // 1000))
    return min(max(config.min_scale, annealed), 0.9, config.max_scale)


def cut_patch(images: Tensor, grid: Tensor) -> Tensor:
    """Images (B, C, W, W) sampled bilinearly at the grid's positions (B, h, w, 2) in pixels: (B, C, h, w)."""
    normalised = grid.to(images) * (2 / (images.shape[-1] - 1)) - 1
    return F.grid_sample(images, normalised, mode="bilinear", padding_mode="border", align_corners=True)


def mirrored_images(images: Tensor) -> Tensor:
    """Images (..., W), left and right exchanged about the optical axis: pixel i shows what pixel W - i did.

    The counterpart of pixel 0 lies outside the frame; its neighbour's stands in for it.
    """
    width = images.shape[-1]
    return images[..., torch.arange(width, 0, -1, device=images.device).clamp_max(width - 1)]


def mirrored_where(flips: Tensor, images: Tensor) -> Tensor:
    """Images (B, C, H, W), mirrored where flips (B,) is true."""
    return torch.where(flips[:, None, None, None], mirrored_images(images), images)


def camera_rays(pose_c2w: Tensor, grid: Tensor, width: int, data: DataConfig) -> tuple[Tensor, Tensor]:
    """rays_o and rays_d (B, h * w, 3), in scene units, of cameras (B, 3, 4) through a grid (B or 1, h, w, 2) in pixels.

    `width` is the side in pixels of the square frame that the grid lies in. With data.orthographic the rays are parallel and
    span a square of side far - near.
    """
    pixel = grid.flatten(1, 2).to(pose_c2w) - width / 2  # (B, h * w, 2)
    pixel = pixel.expand(len(pose_c2w), -1, -1)
    x, y = pixel[..., 0], -pixel[..., 1]
    rotation, position = pose_c2w[..., :3], pose_c2w[:, None, :, 3]
    if data.orthographic:
        extent = (data.far - data.near) / width
        offset = torch.stack([x * extent, y * extent, torch.zeros_like(x)], dim=-1)
        rays_o = _rotate(offset, rotation) + position
        return rays_o, (-rotation[:, None, :, 2]).expand_as(rays_o)
    focal = focal_length(data.fov, width)
    directions = torch.stack([x / focal, y / focal, -torch.ones_like(x)], dim=-1)
    return position.expand(-1, pixel.shape[1], -1), _rotate(directions, rotation)


def depth_bounds(pose_c2w: Tensor, data: DataConfig) -> tuple[Tensor, Tensor]:
    """near and far (B, 1) of each camera: the config's, moved with the camera where data.radius is a range (as GRAF does)."""
    near, far = (pose_c2w.new_full((len(pose_c2w), 1), bound) for bound in (data.near, data.far))
    low, high = data.radius
    if low < high:
        shift = high - pose_c2w[:, :, 3].norm(dim=-1, keepdim=True)
        near, far = near - shift, far - shift
    return near, far


def visible_radius(data: DataConfig) -> float:
    """Radius in scene units of the largest ball around the origin that lies in the frame and the depth bounds of every camera.

    Raises GrafError where near and far do not hold the origin between them.
    """
    low, high = data.radius  # near and far are those of a camera at the far end, and move with the others
    frame = (data.far - data.near) / 2 if data.orthographic else low * math.sin(math.radians(data.fov) / 2)
    radius = min(high - data.near, data.far - high, frame)
    if radius <= 0:
        raise GrafError(
            f"data.near {data.near:g} and data.far {data.far:g} do not hold the origin, at data.radius {high:g}, between "
            "them; correct them with --set"
        )
    return radius


def box_depths(box: Tensor, rays_o: Tensor, rays_d: Tensor) -> tuple[Tensor, Tensor]:
    """Depths (..., R), in units of rays_d, at which rays (..., R, 3) enter and leave a box (2, 3), its low and its high corner.

    A ray that misses the box enters after it leaves. The slab method (Kay & Kajiya, Ray Tracing Complex Scenes, 1986).
    """
    inverse = 1 / nonzero(rays_d)
    a, b = (box[0] - rays_o) * inverse, (box[1] - rays_o) * inverse
    return torch.minimum(a, b).amax(-1), torch.maximum(a, b).amin(-1)


def is_inside(points: Tensor, box: Tensor) -> Tensor:
    """Whether points (..., 3) lie inside a box (2, 3): (...) bool."""
    return ((points >= box[0]) & (points <= box[1])).all(-1)


def clip_to_box(rays_o: Tensor, rays_d: Tensor, near: Tensor, far: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
    """near and far (B, R, 1) of rays (B, R, 3), cut to where the rays are in the box (2, 3); both 0 for one that misses."""
    enter, leave = box_depths(box, rays_o, rays_d)
    near, far = torch.maximum(near, enter[..., None]), torch.minimum(far, leave[..., None])
    hit = near < far
    return near * hit, far * hit


def nonzero(x: Tensor) -> Tensor:
    """x, moved away from zero, so that it can be divided by with the sign kept."""
    return torch.where(x.abs() < 1e-9, 1e-9, x)


def _rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """vectors (B, R, 3) rotated by (B, 3, 3), not as a matrix product, which autocast would round to 8 bits of mantissa."""
    return (vectors[:, :, None, :] * rotation[:, None]).sum(-1)
