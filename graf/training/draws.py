"""What chance decides of a step, drawn for the whole batch before any of it is computed.

So a step gives the same gradients in however many parts it is taken, and can be taken again after an out-of-memory.
"""

import dataclasses

from graf.camera import Labels
from graf.rays import sample_patch_grid
from graf.rendering import RayNoise
from graf.training.state import TrainState

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Draws:
    """Of B images: latents (B, Z); labels; grid (B, K, K, 2), the patches' positions in pixels; mirrored (B, 1, 1, 1), whether
    the discriminator sees an image mirrored; share (B, 1, 1, 1) in [0, 1), where between two images WGAN-GP looks; the noise of
    their rays."""

    latents: Tensor
    labels: Labels
    grid: Tensor
    mirrored: Tensor
    share: Tensor
    noise: RayNoise

    def __getitem__(self, rows: slice) -> "Draws":
        return Draws(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))


def draw(state: TrainState, labels: Labels, rendered: bool = True) -> Draws:
    """What a step needs for as many images as there are labels; photographs are not `rendered` and have no rays."""
    config, n = state.config, len(labels)
    grid = sample_patch_grid(n, config.patch_size, config.data.imsize, config.ray_sampler, state.step, state.draws)
    coins = torch.rand(2, n, 1, 1, 1, generator=state.draws)
    mirrored, share = coins[0] < 0.5 * config.discriminator.hflip, coins[1]
    return Draws(
        latents=state.sample_latents(n),
        labels=labels,
        grid=grid.to(state.device, non_blocking=True),
        mirrored=mirrored.to(state.device, non_blocking=True),
        share=share.to(state.device, non_blocking=True),
        noise=state.generator.draw_noise(n, state.step, state.noise) if rendered else RayNoise(),
    )
