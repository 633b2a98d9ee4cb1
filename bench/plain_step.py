"""A straightforward conditional radiance field and renderer: the baseline of bench/benchmark.py.

As NeRF's and GRAF's public code has it: latents and view directions are repeated for every sample and concatenated to it, all
rays are rendered at once, and everything that the backward pass reads is kept. Weights and pictures are the package's.

Legend: B images, R rays per image, S samples per ray, N = B * R * S, C channels, Z latents.
"""

from graf.camera import Labels
from graf.models.generator import Generator, Rendering
from graf.models.radiance_field import ConcatField
from graf.rays import camera_rays, depth_bounds
from graf.rendering import RayNoise, interval_lengths, stratified_depths

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PlainGenerator(nn.Module):
    """Takes a generator's place in a training step, with its weights.

    For nerf.conditioning: concat, a density that is a ReLU's, view directions, and no box, fine network or CCSR.
    """

    def __init__(self, learned: Generator):
        super().__init__()
        self.learned, self.refinement, self.projection = learned, None, None

    def forward(
        self, latents: Tensor, labels: Labels, grid: Tensor, noise: RayNoise | None = None, rays_at_once: int = 0
    ) -> Rendering:
        """As Generator.forward; all rays are held, whatever rays_at_once is."""
        config, noise = self.learned.config, noise or RayNoise()
        rays_o, rays_d = camera_rays(labels.pose_c2w, grid, config.data.imsize, config.data)
        near, far = (x[:, None].expand(-1, rays_o.shape[1], -1) for x in depth_bounds(labels.pose_c2w, config.data))
        depths = stratified_depths(near, far, config.nerf.samples_per_ray, noise.jitter)  # (B, R, S)
        points = rays_o[..., None, :] + rays_d[..., None, :] * depths[..., None]  # (B, R, S, 3)
        density, colour = plain_field(self.learned.field, points, F.normalize(rays_d, dim=-1), latents)
        if noise.disturbance is not None:
            density = density + noise.disturbance
        alpha = 1 - torch.exp(-F.relu(density) * interval_lengths(depths, rays_d, endless=True))
        before = torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha[..., :-1] + 1e-10], dim=-1)
        weights = alpha * torch.cumprod(before, dim=-1)
        opacity = weights.sum(-1, keepdim=True)
        colour = (weights[..., None] * torch.sigmoid(colour)).sum(-2) + (1 - opacity) * self.learned.background
        depth = (weights * depths).sum(-1, keepdim=True) / opacity.clamp_min(1e-10)
        return Rendering(colour * 2 - 1, depth, 1 / depth.clamp_min(1e-10), opacity).unflatten(grid.shape[1])

    def sample_latents(self, n: int, generator: torch.Generator) -> Tensor:
        return self.learned.sample_latents(n, generator)

    def draw_noise(self, n: int, step: int, generator: torch.Generator, n_rays: int) -> RayNoise:
        return self.learned.draw_noise(n, step, generator, n_rays)


def plain_field(field: ConcatField, points: Tensor, view_directions: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
    """As ConcatField.forward, with view directions."""
    b, r, s, _ = points.shape
    shape, appearance = latents[:, None, None].expand(b, r, s, -1).tensor_split([field.shape_width], dim=-1)
    directions = plain_encoding(view_directions, field.config.multires_views)[:, :, None].expand(b, r, s, -1)
    points = torch.cat([plain_encoding(points, field.config.multires), shape], dim=-1).flatten(0, 2)  # (N, C)
    views = torch.cat([directions, appearance], dim=-1).flatten(0, 2)  # (N, C)
    h = points
    for i, layer in enumerate(field.pts_linears):
        h = F.relu(layer(h))
        if i in field.skips:
            h = torch.cat([points, h], dim=-1)
    density = field.alpha_linear(h)
    h = torch.cat([field.feature_linear(h), views], dim=-1)
    h = F.relu(field.views_linears[0](h))
    return density.view(b, r, s), field.rgb_linear(h).view(b, r, s, 3)


def plain_encoding(x: Tensor, n_frequencies: int) -> Tensor:
    """As graf.models.radiance_field.positional_encoding."""
    waves = [wave(2.0**k * x) for k in range(n_frequencies) for wave in (torch.sin, torch.cos)]
    return torch.cat([x, *waves], dim=-1)
