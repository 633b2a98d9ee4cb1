"""A straightforward conditional radiance field and renderer: the baseline of bench/benchmark.py.

As NeRF's, GRAF's and pi-GAN's public code has it: latents are brought to every sample, all rays are rendered at once, and
everything that the backward pass reads is kept. Weights and pictures are the package's.

Legend: B images, R rays per image, S samples per ray, N = B * R * S, C channels, Z latents.
"""

import dataclasses

from graf.camera import Labels
from graf.config import NerfConfig
from graf.models.fields.radiance_field import ConcatField, FilmField
from graf.models.generator import Generator, Rendering
from graf.rays import camera_rays, clip_to_box, depth_bounds, full_grid, low_resolution_grid
from graf.rendering import RayNoise, interval_lengths, stratified_depths

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PlainGenerator(nn.Module):
    """Takes a generator's place in a training step, or in rendering a frame, with its weights.

    For configs that it `knows`; in a training step without CCSR too.
    """

    def __init__(self, learned: Generator):
        super().__init__()
        self.learned, self.refinement, self.projection, self.config = learned, None, None, learned.config

    @staticmethod
    def knows(nerf: NerfConfig) -> bool:
        """Whether it has such fields: there is one, and its conditioning is film, or concat with view directions."""
        known = nerf.conditioning == "film" or (nerf.conditioning == "concat" and nerf.use_viewdirs)
        return known and nerf.importance_samples_per_ray == 0

    def forward(
        self, latents: Tensor, labels: Labels, grid: Tensor, noise: RayNoise | None = None, rays_at_once: int = 0
    ) -> Rendering:
        """Generator.forward written plainly; all rays are held, whatever rays_at_once is."""
        config = self.learned.config
        return self._render_grid(latents, labels, grid, config.data.imsize, config.nerf.samples_per_ray, noise or RayNoise())

    @torch.inference_mode()
    def render(self, latents: Tensor, pose_c2w: Tensor, resolution: int) -> Rendering:
        """Generator.render written plainly, for the first class, with all rays at once."""
        learned, nerf = self.learned, self.learned.config.nerf
        latents, pose_c2w = (x.to(learned.background.device) for x in (latents, pose_c2w))
        labels = Labels.of_poses(pose_c2w)
        grid = low_resolution_grid(full_grid(resolution, pose_c2w.device), learned.config.rendered_scale)
        latents, n_samples = learned.condition(latents, labels), nerf.first_samples_per_ray
        rendering = self._render_grid(latents, labels, grid, resolution, n_samples, RayNoise())
        if learned.config.ccsr.mode != "refine":
            return rendering
        images, _ = learned.refinement(rendering.images, latents, pose_c2w, grid, resolution)
        return dataclasses.replace(rendering, images=images)

    def _render_grid(
        self, latents: Tensor, labels: Labels, grid: Tensor, width: int, n_samples: int, noise: RayNoise
    ) -> Rendering:
        learned, data = self.learned, self.learned.config.data
        can_be_empty = learned.config.nerf.density_activation == "relu"
        rays_o, rays_d = camera_rays(labels.pose_c2w, grid, width, data)
        near, far = (x[:, None].expand(-1, rays_o.shape[1], -1) for x in depth_bounds(labels.pose_c2w, data))
        if learned.box is not None:  # the intervals of a ray that misses it have no length
            near, far = clip_to_box(rays_o, rays_d, near, far, learned.box)
        depths = stratified_depths(near, far, n_samples, noise.jitter)  # (B, R, S)
        points = rays_o[..., None, :] + rays_d[..., None, :] * depths[..., None]  # (B, R, S, 3)
        plain_field = plain_film if isinstance(learned.field, FilmField) else plain_concat
        density, colour = plain_field(learned.field, points, F.normalize(rays_d, dim=-1), latents)
        if noise.density_noise is not None:
            density = density + noise.density_noise
        density = F.relu(density) if can_be_empty else F.softplus(density)
        alpha = 1 - torch.exp(-density * interval_lengths(depths, rays_d, can_be_empty and learned.box is None))
        before = torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha[..., :-1] + 1e-10], dim=-1)
        weights = alpha * torch.cumprod(before, dim=-1)
        opacity = weights.sum(-1, keepdim=True)
        colour = (weights[..., None] * torch.sigmoid(colour)).sum(-2) + (1 - opacity) * learned.background
        depth = (weights * depths).sum(-1, keepdim=True) / opacity.clamp_min(1e-10)
        return Rendering(colour * 2 - 1, depth, 1 / depth.clamp_min(1e-10), opacity).unflatten(grid.shape[1])

    def sample_latents(self, n: int, rng: torch.Generator) -> Tensor:
        return self.learned.sample_latents(n, rng)

    def sample_noise(self, n: int, step: int, rng: torch.Generator, n_rays: int) -> RayNoise:
        return self.learned.sample_noise(n, step, rng, n_rays)


def plain_concat(field: ConcatField, points: Tensor, view_directions: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
    """ConcatField.forward written plainly, with view directions."""
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


def plain_film(field: FilmField, points: Tensor, view_directions: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
    """FilmField.forward written plainly."""
    b, r, s, _ = points.shape
    of_layers, of_colour = field.styles(latents)
    h = plain_encoding(points, field.config.multires).flatten(1, 2)  # (B, R S, C)
    for i, layer in enumerate(field.layers):
        scale, shift = of_layers[:, None, i].unbind(2)
        h = F.relu((1 + scale) * layer(h) + shift)
    density = field.density(h)
    if field.config.use_viewdirs:
        directions = plain_encoding(view_directions, field.config.multires_views)[:, :, None].expand(b, r, s, -1)
        h = torch.cat([h, directions.flatten(1, 2)], dim=-1)
    scale, shift = of_colour[:, None].unbind(2)
    h = F.relu((1 + scale) * field.colour_layer(h) + shift)
    return density.view(b, r, s), field.colour(h).view(b, r, s, 3)


def plain_encoding(x: Tensor, n_frequencies: int) -> Tensor:
    """positional_encoding of graf.models.fields.radiance_field written plainly."""
    waves = [wave(2.0**k * x) for k in range(n_frequencies) for wave in (torch.sin, torch.cos)]
    return torch.cat([x, *waves], dim=-1)
