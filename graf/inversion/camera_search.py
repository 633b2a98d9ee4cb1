"""Initial guesses of the object and its cameras, which `InversionLoss.fit` then optimises.

Legend: H hypotheses, N target images of one object, Z latents, C classes, O objects, A azimuths, V heights.
"""

import dataclasses

from graf.camera import azimuth_and_v, poses_at, view_azimuths
from graf.inversion.loss import RAYS_AT_ONCE, Hypotheses, InversionLoss
from graf.models.generator import Generator
from graf.rotations import circular_distance

import torch
from torch import Tensor
from tqdm import tqdm

FINALISTS = 2  # hypotheses that are compared more closely, each also from the opposite side
APART_DEG = 45  # least angle between the cameras of finalists


def objects_of_every_class(loss: InversionLoss, poses: Tensor) -> Hypotheses:
    """The mean object of each class, seen by the cameras (N, 3, 4)."""
    latents, class_index = mean_objects(loss.generator)
    azimuth_deg, v = (x.expand(len(latents), -1) for x in azimuth_and_v(poses))
    return Hypotheses(latents, class_index, azimuth_deg, v)


def mean_objects(generator: Generator) -> tuple[Tensor, Tensor]:
    """Latents (C, Z) and class_index (C,) of the mean object of each class."""
    n_classes, device = generator.n_classes, generator.background.device
    return torch.zeros(n_classes, generator.latent_dim, device=device), torch.arange(n_classes, device=device)


def search_cameras(loss: InversionLoss, bar: tqdm | None) -> Hypotheses:
    """The objects and cameras that look most like the targets, before they are optimised on all targets together.

    Each target proposes a few objects; the cameras of the other targets are then those that fit best. Because objects often
    look alike from opposite sides, each proposal is repeated from the opposite side.
    """
    proposals = []
    for n in range(len(loss.targets)):
        one = loss.for_target(n)
        alone, losses = one.fit(first_guesses(one), loss.settings.search_steps, bar)
        proposals.append(with_other_cameras(loss, alone[finalists(alone, losses)], n))
    together = Hypotheses.cat(proposals)
    return with_opposites(together[finalists(together, loss.evaluate(together))])


def with_opposites(h: Hypotheses) -> Hypotheses:
    """The hypotheses, and each once more from the opposite side."""
    return Hypotheses.cat([h, dataclasses.replace(h, azimuth_deg=h.azimuth_deg + 180)])


def first_guesses(loss: InversionLoss) -> Hypotheses:
    """The mean object from the best height at each azimuth, for the two classes that fit best."""
    latents, class_index = mean_objects(loss.generator)
    losses, azimuth_deg, v = on_camera_grid(loss, latents, class_index)
    heights = losses[..., 0].min(dim=2)  # (C, A)
    classes = heights.values.topk(min(2, len(latents)), dim=0, largest=False).indices  # (at most 2, A)
    columns = torch.arange(len(azimuth_deg), device=v.device).expand_as(classes)
    chosen, azimuths = classes.flatten(), columns.flatten()
    height = heights.indices[chosen, azimuths]
    return Hypotheses(latents[chosen], class_index[chosen], azimuth_deg[azimuths][:, None], v[height][:, None])


def with_other_cameras(loss: InversionLoss, h: Hypotheses, n: int) -> Hypotheses:
    """Extend hypotheses for target n (one camera each) to all N: the other cameras are the best of the grid."""
    if len(loss.targets) == 1:
        return h
    losses, azimuth_deg, v = on_camera_grid(loss, h.latents, h.class_index)
    best = losses.flatten(1, 2).argmin(dim=1)  # (H, N)
    azimuth_deg, v = azimuth_deg[best // len(v)], v[best % len(v)]
    azimuth_deg[:, n], v[:, n] = h.azimuth_deg[:, 0], h.v[:, 0]
    return Hypotheses(h.latents, h.class_index, azimuth_deg, v)


@torch.no_grad()
def on_camera_grid(loss: InversionLoss, latents: Tensor, class_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pixel losses (O, A, V, N) of O objects from a grid of cameras in each photograph; its azimuths (A,) and heights (V,)."""
    data, settings, device = loss.generator.config.data, loss.settings, latents.device
    azimuth_deg = view_azimuths(settings.azimuths, data).unique().to(device)
    top, bottom = data.v_range
    v = top + (bottom - top) * (torch.arange(settings.heights, device=device) + 0.5) / settings.heights
    poses = poses_at(*torch.meshgrid(azimuth_deg, v, indexing="ij"), sum(data.radius) / 2).flatten(0, 1)  # (A V, 3, 4)
    rays = loss.targets[0, 0].numel() // loss.generator.config.rendered_scale**2
    losses = []
    for latent, index in zip(latents, class_index, strict=True):
        for some in poses.split(max(1, RAYS_AT_ONCE // rays)):
            images = loss.render(latent.expand(len(some), -1), index.expand(len(some)), some)
            losses.append((images[:, None] - loss.targets).square().mean(dim=(2, 3, 4)))
    return torch.cat(losses).view(len(latents), len(azimuth_deg), len(v), -1), azimuth_deg, v


def finalists(h: Hypotheses, losses: Tensor) -> list[int]:
    """The indices of the best hypotheses whose cameras, or classes, differ; best first."""
    chosen: list[int] = []
    for i in losses.argsort().tolist():
        turn = circular_distance(h.azimuth_deg[i], h.azimuth_deg[chosen])  # (chosen, N)
        if ((turn > APART_DEG).any(dim=1) | (h.class_index[i] != h.class_index[chosen])).all():
            chosen.append(i)
    return chosen[:FINALISTS]
