"""Found cameras beside the opposite ones, by how well a generator with an encoder reconstructs the photographs from either.

Legend: N photographs, B of them at a time, C channels of an image, W its side, E = 2 ends: the azimuth as found and the
opposite one, T turns from there.
"""

import dataclasses

from graf.camera import poses_at
from graf.data import Views, as_floats
from graf.finding.rounds import FoundCameras, class_indices
from graf.inversion.loss import pooling
from graf.models.generator import Generator
from graf.runtime.console import progress

import torch
from torch import Tensor

AT_ONCE = 8  # photographs
SIDE = 32  # pixels that are compared, along a side of an image, more or less
ENDS_DEG = torch.tensor([0.0, 180.0])
TURN_DEG = 5.0
TURNS_DEG = TURN_DEG * torch.tensor([-1.0, 0.0, 1.0])
SURENESS = 6.5  # log odds of the better end where the other's error exceeds it by the mean: by the unsurest fifth of real cars


@torch.no_grad()
def by_reconstruction(generator: Generator, photographs: Views, found: FoundCameras) -> FoundCameras:
    """The cameras of N photographs, each at the end from which it is reconstructed better, turned by up to 5 degrees to where
    it is reconstructed best. generator: one with an encoder, trained on photographs most of which have the right camera.

    The confidence is the probability that one of both ends is right, times that of the better one by the errors of both.
    """
    field, classes, parts = _field_of(generator), class_indices(photographs), []
    for rows in progress(torch.arange(len(photographs)).split(AT_ONCE), desc="reconstructions", unit="batch"):
        images = torch.stack([as_floats(photographs.read(row)) for row in rows.tolist()])
        parts.append(_errors(field, images, found.azimuth_deg[rows], found.v[rows], classes[rows]))
    errors = torch.cat(parts)
    at_ends = errors.amin(dim=2)
    better = at_ends.argmin(dim=1)
    turns_deg = _best_turns(errors[torch.arange(len(errors)), better])
    excess = (at_ends[:, 1] - at_ends[:, 0]).abs() / at_ends.amin(dim=1).mean().clamp_min(1e-12)
    azimuth_deg = (found.azimuth_deg + ENDS_DEG[better] + turns_deg) % 360
    return found._replace(azimuth_deg=azimuth_deg, confidence=found.either_end * (SURENESS * excess).sigmoid())


def _field_of(generator: Generator) -> Generator:
    """The generator, which shares its weights, of the field's own renderings, with training's samples: with more, a correction
    takes longer and finds the same."""
    field = generator.unrefined()
    field.config = dataclasses.replace(field.config, nerf=dataclasses.replace(field.config.nerf, render_samples_per_ray=0))
    return field


def _errors(field: Generator, images: Tensor, azimuth_deg: Tensor, v: Tensor, classes: Tensor) -> Tensor:
    """Errors (B, E, T) of the reconstructions of images (B, C, W, W) in [-1, 1] from about azimuth_deg (B,), at heights v (B,):
    the mean squares of their colours, plus those of opacity where the images have it, as the encoder learned."""
    data, device, n = field.config.data, field.background.device, len(ENDS_DEG) * len(TURNS_DEG)
    stride, azimuths = pooling(data.imsize, SIDE, 1), azimuth_deg[:, None, None] + ENDS_DEG[:, None] + TURNS_DEG
    poses = poses_at(azimuths.flatten(), v.repeat_interleave(n), sum(data.radius) / 2).to(device)
    seen = images[:, : data.channels].repeat_interleave(n, dim=0).to(device)
    latents, _ = field.encoder.sample(*field.encoder(seen, poses), torch.zeros(1, field.latent_dim, device=device))
    made = field.render(latents, poses, data.imsize // stride, classes.repeat_interleave(n))
    shown = torch.cat([made.images, 2 * made.opacity - 1], dim=1)[:, : data.channels]
    squares = (shown - seen[..., ::stride, ::stride]).square().mean(dim=(2, 3))
    return (squares[:, :3].mean(1) + squares[:, 3:].sum(1)).view(azimuths.shape).cpu()


def _best_turns(errors: Tensor) -> Tensor:
    """The turns (B,) in degrees, at most TURN_DEG, at which a parabola through errors (B, T) is lowest."""
    before, at, after = errors.unbind(1)
    curvature = before + after - 2 * at
    lowest = (before - after) / (2 * curvature.clamp_min(1e-12))
    return TURN_DEG * lowest.clamp(-1, 1)
