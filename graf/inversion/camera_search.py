"""Initial guesses of the object and its cameras, which `Likeness.fit` then optimises.

Legend: H hypotheses, N photographs of one object, Z latents, C classes, O objects, A azimuths, V heights.
"""

import dataclasses

from graf.camera import azimuth_and_v, poses_at, view_azimuths
from graf.inversion.likeness import RAYS_AT_ONCE, Hypotheses, Likeness
from graf.models.generator import Generator

import torch
from torch import Tensor
from tqdm import tqdm

FINALISTS = 2  # hypotheses that are compared more closely, and each from the opposite side too
APART_DEG = 45  # finalists' cameras are at least so far from each other


def objects_of_every_class(to: Likeness, poses: Tensor) -> Hypotheses:
    """The mean object of each class, seen by the cameras (N, 3, 4)."""
    latents, class_index = mean_objects(to.generator)
    azimuth_deg, v = (x.expand(len(latents), -1) for x in azimuth_and_v(poses))
    return Hypotheses(latents, class_index, azimuth_deg, v)


def mean_objects(generator: Generator) -> tuple[Tensor, Tensor]:
    """Latents (C, Z) and class_index (C,) of the mean object of each class."""
    n_classes = 1 if generator.class_embedding is None else generator.class_embedding.num_embeddings
    device = generator.background.device
    return torch.zeros(n_classes, generator.config.z_dist.dim, device=device), torch.arange(n_classes, device=device)


def search_cameras(to: Likeness, bar: tqdm | None) -> Hypotheses:
    """The objects and cameras that look most like the photographs, before they are optimised on all of them together.

    Each photograph proposes a few; the cameras of the others are then those from which that object looks most like them. As
    objects often look alike from front and back, or from both sides, each proposal is repeated from the opposite side.
    """
    proposals = []
    for n in range(len(to.photographs)):
        one = to.of_one(n)
        alone, losses = one.fit(first_guesses(one), to.settings.search_steps, bar)
        proposals.append(with_other_cameras(to, alone[finalists(alone, losses)], n))
    together = Hypotheses.cat(proposals)
    return with_opposites(together[finalists(together, to.evaluate(together))])


def with_opposites(h: Hypotheses) -> Hypotheses:
    """The hypotheses, and each once more from the opposite side."""
    return Hypotheses.cat([h, dataclasses.replace(h, azimuth_deg=h.azimuth_deg + 180)])


def first_guesses(to: Likeness) -> Hypotheses:
    """The mean object from its best height at every azimuth, for the two classes that fit best."""
    latents, class_index = mean_objects(to.generator)
    losses, azimuth_deg, v = on_camera_grid(to, latents, class_index)
    heights = losses[..., 0].min(dim=2)  # (C, A)
    classes = heights.values.topk(min(2, len(latents)), dim=0, largest=False).indices  # (at most 2, A)
    columns = torch.arange(len(azimuth_deg), device=v.device).expand_as(classes)
    chosen, azimuths = classes.flatten(), columns.flatten()
    height = heights.indices[chosen, azimuths]
    return Hypotheses(latents[chosen], class_index[chosen], azimuth_deg[azimuths][:, None], v[height][:, None])


def with_other_cameras(to: Likeness, h: Hypotheses, n: int) -> Hypotheses:
    """Extend hypotheses for photograph n (one camera each) to all N: the other cameras are the best of the grid."""
    if len(to.photographs) == 1:
        return h
    losses, azimuth_deg, v = on_camera_grid(to, h.latents, h.class_index)
    best = losses.flatten(1, 2).argmin(dim=1)  # (H, N)
    azimuth_deg, v = azimuth_deg[best // len(v)], v[best % len(v)]
    azimuth_deg[:, n], v[:, n] = h.azimuth_deg[:, 0], h.v[:, 0]
    return Hypotheses(h.latents, h.class_index, azimuth_deg, v)


@torch.no_grad()
def on_camera_grid(to: Likeness, latents: Tensor, class_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pixel losses (O, A, V, N) of O objects from a grid of cameras in each photograph; its azimuths (A,) and heights (V,)."""
    data, settings, device = to.generator.config.data, to.settings, latents.device
    azimuth_deg = view_azimuths(settings.azimuths, data).unique().to(device)
    v = data.vmin + (data.vmax - data.vmin) * (torch.arange(settings.heights, device=device) + 0.5) / settings.heights
    poses = poses_at(*torch.meshgrid(azimuth_deg, v, indexing="ij"), sum(data.radius) / 2).flatten(0, 1)  # (A V, 3, 4)
    rays = to.photographs[0, 0].numel() // to.generator.config.rendered_scale**2
    losses = []
    for latent, index in zip(latents, class_index, strict=True):
        for some in poses.split(max(1, RAYS_AT_ONCE // rays)):
            images = to.draw(latent.expand(len(some), -1), index.expand(len(some)), some)
            losses.append((images[:, None] - to.photographs).square().mean(dim=(2, 3, 4)))
    return torch.cat(losses).view(len(latents), len(azimuth_deg), len(v), -1), azimuth_deg, v


def finalists(h: Hypotheses, losses: Tensor) -> list[int]:
    """The indices of the best hypotheses whose cameras, or classes, differ; best first."""
    chosen: list[int] = []
    for i in losses.argsort().tolist():
        turn = ((h.azimuth_deg[i] - h.azimuth_deg[chosen] + 180) % 360 - 180).abs()  # (chosen, N)
        if ((turn > APART_DEG).any(dim=1) | (h.class_index[i] != h.class_index[chosen])).all():
            chosen.append(i)
    return chosen[:FINALISTS]
