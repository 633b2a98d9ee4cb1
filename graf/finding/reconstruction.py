"""Found cameras beside the opposite ones, by how well a generator with an encoder reconstructs the photographs from either.

Legend: B photographs at a time, C channels of an image, W its side, E = 2 ends: the azimuth as found and the opposite one,
T turns from there.
"""

from graf.camera import poses_at
from graf.data import Views, as_floats
from graf.finding.rounds import FoundCameras, class_indices
from graf.models.generator import Generator
from graf.runtime.console import progress

import torch
from torch import Tensor

AT_ONCE = 8  # photographs
SIDE = 32  # pixels that are compared, along a side of an image, or a few more
ENDS_DEG = torch.tensor([0.0, 180.0])
STEP_DEG = 5.0
TURNS_DEG = STEP_DEG * torch.arange(-2, 3)
SURENESS = 13 / 2  # log odds of the better end, by what the other's error has in excess, in mean errors of all photographs


@torch.no_grad()
def by_reconstruction(generator: Generator, photographs: Views, found: FoundCameras) -> FoundCameras:
    """The cameras of N photographs, each at the end from which it is reconstructed better, turned by up to 10 degrees to where
    it is reconstructed best. generator: one with an encoder, trained on photographs most of which have the right camera.

    The confidence is the probability that one of both ends is right, times that of the better one by the errors of both.
    """
    classes, errors = class_indices(photographs), []
    for rows in progress(torch.arange(len(photographs)).split(AT_ONCE), desc="reconstructions", unit="batch"):
        images = torch.stack([as_floats(photographs.read(row)) for row in rows.tolist()])
        errors.append(_errors(generator, images, found.azimuth_deg[rows], found.v[rows], classes[rows]))
    least, turns_deg = _best_turns(torch.cat(errors))
    better = least.argmin(dim=1)
    excess = (least[:, 1] - least[:, 0]).abs() / least.amin(dim=1).mean().clamp_min(1e-12)
    turned = found.azimuth_deg + ENDS_DEG[better] + turns_deg[torch.arange(len(better)), better]
    return found._replace(azimuth_deg=turned % 360, confidence=found.either_end * (SURENESS * excess).sigmoid())


def _errors(generator: Generator, images: Tensor, azimuth_deg: Tensor, v: Tensor, classes: Tensor) -> Tensor:
    """Errors (B, E, T) of the reconstructions of images (B, C, W, W) in [-1, 1] from about azimuth_deg (B,), at heights v (B,):
    the mean squares of their colours, plus those of opacity where the images have it, as the encoder learned."""
    data, device = generator.config.data, generator.background.device
    width, n = data.imsize, ENDS_DEG.numel() * TURNS_DEG.numel()
    stride = max(k for k in range(1, width + 1) if width % k == 0 and width // k >= min(SIDE, width))
    azimuths = azimuth_deg[:, None, None] + ENDS_DEG[:, None] + TURNS_DEG
    poses = poses_at(azimuths.flatten(), v.repeat_interleave(n), sum(data.radius) / 2).to(device)
    seen = images[:, : data.channels].repeat_interleave(n, dim=0).to(device)
    latents, _ = generator.encoder.sample(*generator.encoder(seen, poses), torch.zeros(1, generator.latent_dim, device=device))
    made = generator.unrefined().render(latents, poses, width // stride, classes.repeat_interleave(n))
    shown = torch.cat([made.images, 2 * made.opacity - 1], dim=1)[:, : data.channels]
    squares = (shown - seen[..., ::stride, ::stride]).square().mean(dim=(2, 3))
    return (squares[:, :3].mean(1) + squares[:, 3:].sum(1)).view(azimuths.shape).cpu()


def _best_turns(errors: Tensor) -> tuple[Tensor, Tensor]:
    """The least of the errors (B, E, T) at each end (B, E), and the turns (B, E) in degrees: where a parabola through it and
    both neighbours is lowest, or at the edge itself."""
    least, best = errors.min(dim=2)
    middle = best.clamp(1, len(TURNS_DEG) - 2)
    before, at, after = (errors.gather(2, (middle + side)[..., None])[..., 0] for side in (-1, 0, 1))
    off = (before - after) / (2 * (before + after - 2 * at)).clamp_min(1e-12)
    return least, TURNS_DEG[best] + STEP_DEG * torch.where(best == middle, off, 0)
