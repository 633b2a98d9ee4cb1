"""Haze: colour and opacity in pixels that no real image's object ever covers, where the data shows background alone."""

import logging

from graf.config import Config, DataConfig
from graf.data import Views
from graf.metrics.shapes import Subject
from graf.models.generator import Rendering
from graf.pictures.sampling import fresh_renderings, labels_as_in_data
from graf.runtime.console import progress
from graf.runtime.files import kept_json

import torch
from torch import Tensor
from torch.nn import functional as F

log = logging.getLogger("graf")


def haze(subject: Subject) -> dict:
    """Mean |colour - background| in 8-bit steps and mean opacity of fresh samples over the `clear_blocks`, ready for JSON.

    The samples are at the data's cameras. Both are 0 for the data; None where its silhouettes are unknown or cover all.
    """
    config, dataset = subject.config, subject.dataset
    found = kept_json(
        subject.cache / f"never_covered-{dataset.fingerprint[:16]}.json", lambda: never_covered(dataset, config.data)
    )
    clear = None if isinstance(found, str) else clear_blocks(torch.tensor(found, dtype=torch.bool), config.rendered_scale)
    if clear is None or not clear.any():
        unavailable = found if clear is None else "the images' silhouettes leave no pixel free"
        log.warning("haze is not measured: %s", unavailable)
        return {"haze": None, "haze_opacity": None, "unavailable": unavailable}
    what = labels_as_in_data(dataset, config.data), subject.n, config.metrics.batch_size, subject.seed
    renderings = fresh_renderings(subject.generator.without_background(), *what, truncation=subject.truncation)
    with progress(total=subject.n, desc="haze", unit="image") as bar:
        sums = torch.zeros(2, dtype=torch.double)
        for rendering in renderings:
            sums += torch.stack(haze_in(rendering, clear, config)) * len(rendering.images)
            bar.update(len(rendering.images))
    colour, opacity = (sums / subject.n).tolist()
    return {"haze": colour, "haze_opacity": opacity, "clear_share": clear.float().mean().item(), **subject.terms}


def haze_in(rendering: Rendering, clear: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Mean |colour - background| in 8-bit steps, and mean opacity, over the pixels that are clear (H, W)."""
    background = 2 * torch.tensor(config.data.background)[:, None] - 1
    colours = rendering.images.clamp(-1, 1)[..., clear]  # (B, 3, P)
    return 127.5 * (colours - background).abs().double().mean(), rendering.opacity[..., clear].double().mean()


def never_covered(dataset: Views, data: DataConfig) -> list | str:
    """Nested lists (H, W) of 1 for each pixel that no view's silhouette covers, even in part, and 0 for the others; or, where
    an image has no silhouette, the reason."""
    free = torch.ones(data.imsize, data.imsize, dtype=torch.bool)
    for index in progress(range(len(dataset)), desc="silhouettes", unit="image"):
        alpha = dataset.opacity(index, data)
        if alpha is None:
            return f"{dataset.files[index]} has no transparency to show its silhouette"
        free &= alpha == 0
    return free.int().tolist()


def clear_blocks(free: Tensor, scale: int) -> Tensor:
    """Pixels (H, W) whose whole scale x scale block, which one ray of the field renders, is free."""
    covered = F.max_pool2d((~free)[None].float(), scale)
    return F.interpolate(covered[None], scale_factor=scale)[0, 0] == 0
