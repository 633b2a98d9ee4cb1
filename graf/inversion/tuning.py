"""Pivotal tuning (Roich et al. 2022, "Pivotal Tuning for Latent-based Editing of Real Images"): a copy of a generator learns to
draw the images in which an object was found, while its latents, the pivot, are kept.

Images from the known cameras alone would let the other sides of the object drift: as Roich et al. keep neighbouring latents
(their equation 4), each step also keeps a view of the pivot from another camera as it was before.
"""

import copy
import dataclasses

from graf.camera import sample_poses
from graf.errors import GrafError
from graf.inversion.loss import RAYS_AT_ONCE, Hypotheses, InversionLoss, InversionSettings, inversion_loss
from graf.inversion.results import Inversion, as_rendered
from graf.models.generator import Generator
from graf.models.perception import feature_network
from graf.runtime.retry import retry_halved

import torch
from torch import Tensor
from tqdm import tqdm

FEWEST_RAYS = 64  # with activations in memory


@dataclasses.dataclass(frozen=True)
class TuningSettings:
    """rate: Adam's, of all weights; keep_weight: that of the difference between views from other cameras before and after."""

    steps: int
    rate: float = 3e-4
    keep_weight: float = 0.1
    seed: int = 0


def tune(
    generator: Generator, inversion: Inversion, targets: Tensor, settings: TuningSettings, bar: tqdm | None = None
) -> tuple[Generator, Inversion]:
    """A copy of the generator tuned to N targets (N, 3, W, W) in [-1, 1], W being data.imsize, and the inversion by it.

    The generator stays as it is. Where memory runs out, activations are held of fewer rays at once. The bar counts steps.
    Raises GrafError where the tuned model renders non-finite images, OutOfMemory where memory does not suffice for FEWEST_RAYS.
    """
    before = bar.n if bar is not None else 0

    def tuned(rays_at_once: int) -> tuple[Generator, float]:
        if bar is not None:
            bar.update(before - bar.n)
        return _tuned(generator, inversion, targets, settings, rays_at_once, bar)

    copied, loss = retry_halved(tuned, RAYS_AT_ONCE, "tuning", FEWEST_RAYS)
    seen = as_rendered(copied, inversion, targets, loss)
    if not seen.images.isfinite().all():
        raise GrafError("--tune: the tuned model renders non-finite images; take fewer steps")
    return copied, seen


def _tuned(
    generator: Generator,
    inversion: Inversion,
    targets: Tensor,
    settings: TuningSettings,
    rays_at_once: int,
    bar: tqdm | None,
) -> tuple[Generator, float]:
    """The tuned copy, in eval mode, and its mean loss over the targets."""
    device, data = generator.background.device, generator.config.data
    copied = copy.deepcopy(generator).requires_grad_(True)
    network = feature_network().to(device)
    latents, class_index = inversion.latents.to(device), inversion.class_index.to(device)
    pivot = Hypotheses(latents, class_index, inversion.azimuth_deg[None].to(device), inversion.v[None].to(device))
    poses = inversion.pose_c2w.to(device)
    loss = inversion_loss(copied, targets.to(device), poses, InversionSettings(), data.imsize, network)
    loss = dataclasses.replace(loss, rays_at_once=rays_at_once)
    optimizer = torch.optim.Adam(copied.parameters(), settings.rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    rng = torch.Generator(device).manual_seed(settings.seed)
    cameras = torch.Generator().manual_seed(settings.seed)
    first = torch.zeros(1, dtype=torch.long, device=device)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        for n in range(len(targets)):
            (loss.losses(pivot, first, first + n, rng).sum() / len(targets)).backward()
        if settings.keep_weight:
            other_pose = sample_poses(1, data, cameras).to(device)
            (settings.keep_weight * _change(generator, loss, pivot, other_pose, rng)).backward()
        optimizer.step()
        schedule.step()
        if bar is not None:
            bar.update()
    return copied.requires_grad_(False), loss.evaluate(pivot).item()


def _change(generator: Generator, loss: InversionLoss, pivot: Hypotheses, pose_c2w: Tensor, rng: torch.Generator) -> Tensor:
    """The inversion loss between the pivot's view from pose_c2w (1, 3, 4) as the generator renders it and as its copy does."""
    view = generator.render(pivot.latents, pose_c2w, class_index=pivot.class_index).images.clone()
    kept = inversion_loss(loss.generator, view, pose_c2w, loss.settings, view.shape[-1], loss.network)
    kept = dataclasses.replace(kept, rays_at_once=loss.rays_at_once)
    first = torch.zeros(1, dtype=torch.long, device=view.device)
    return kept.losses(pivot, first, first, rng).sum()
