"""Has the game collapsed? Numbers of a step that tell, and the watch that warns with them as evidence."""

import logging
import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

log = logging.getLogger("graf")

CELLS = 4  # along a side of an image, whose mean colours are compared
WINDOW_STEPS, WINDOW_ROWS = 300, 10  # that a warning is based on, at least
PINNED = 0.99  # accuracy of a discriminator from which the generator learns nothing
EMPTY, OPAQUE = 0.01, 0.99  # mean opacity
ALIKE = 0.1  # standard deviation of the fakes, as a share of that of the photographs
WATCHED = ("accuracy_d", "opacity", "sample_std", "real_std")


def accuracy(real: Tensor, fake: Tensor) -> Tensor:
    """Share of the photographs' logits (B,) above 0 and of the fakes' (F,) below, averaged: a scalar."""
    return ((real > 0).float().mean() + (fake < 0).float().mean()) / 2


def colour_moments(images: Tensor) -> Tensor:
    """Mean and mean square over images (B, 3, K, K) of their colours in 4 x 4 cells: (2, 3, 4, 4), in float64.

    Those of a batch are the weighted sum of its parts', and there is no graph behind them.
    """
    cells = F.adaptive_avg_pool2d(images.detach().float(), CELLS).double()  # (B, 3, 4, 4)
    return torch.stack((cells.mean(0), cells.square().mean(0)))


def colour_deviation(moments: Tensor) -> Tensor:
    """Standard deviation over a batch, averaged over cells and channels, from the `colour_moments` of all of it: a scalar."""
    mean, square = moments
    return (square - mean.square()).clamp_min(0).sqrt().mean().float()


class CollapseWatch:
    """Warns once of each kind of collapse, and again where it comes back after it was gone.

    It sees the numbers that are printed, and judges by their means over the last 300 steps or 10 rows, whichever are more.
    They are no part of a run's state: a resumed run watches anew.
    """

    def __init__(self):
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque()
        self._told: set[str] = set()

    def look(self, numbers: Mapping[str, float], step: int) -> None:
        """Take a step's numbers as metrics.jsonl has them, and warn where that is due."""
        self._rows.append((step, numbers))
        while len(self._rows) > WINDOW_ROWS and self._rows[1][0] <= step - WINDOW_STEPS:
            self._rows.popleft()
        steps = step - self._rows[0][0]
        if len(self._rows) < WINDOW_ROWS or steps < WINDOW_STEPS:
            return
        found = collapses(self._means(), steps)
        for kind in sorted(found.keys() - self._told):
            log.warning("step %d: %s", step, found[kind])
        self._told = set(found)

    def _means(self) -> dict[str, float]:
        values = {name: [row[name] for _, row in self._rows if math.isfinite(row.get(name, math.nan))] for name in WATCHED}
        return {name: fmean(known) for name, known in values.items() if known}


def collapses(means: Mapping[str, float], steps: int) -> dict[str, str]:
    """Kinds of collapse, each with its evidence and what may help, by the means of WATCHED, as far as known, over `steps`."""
    found, last = {}, f"over the last {steps} steps"
    accuracy_d, opacity = means.get("accuracy_d", 0.5), means.get("opacity", 0.5)
    sample_std, real_std = means.get("sample_std", math.inf), means.get("real_std", 0.0)
    if accuracy_d >= PINNED:
        found["discriminator"] = (
            f"the discriminator told {accuracy_d:.1%} of photographs and fakes apart {last} (accuracy_d): the generator hardly "
            "learns from it any more. Lower training.lr_d, or raise training.reg_param or discriminator.blur_steps"
        )
    if opacity <= EMPTY:
        found["empty"] = (
            f"opacity was {opacity:.4f} on average {last}: the field has collapsed to nothing. Look whether data.near and "
            "data.far enclose the object; lower training.lr_d or raise training.reg_param"
        )
    if opacity >= OPAQUE:
        found["opaque"] = (
            f"opacity was {opacity:.4f} on average {last}: unless the photographs are filled by their object, its background "
            "is a wall. Look whether data.background is that of the photographs"
        )
    if sample_std < ALIKE * real_std:
        found["alike"] = (
            f"generated images differed by {sample_std:.4f} {last} (sample_std), photographs by {real_std:.4f} (real_std): the "
            "generator makes one image of all latents. Lower training.lr_g or raise training.reg_param, and start again from a "
            "checkpoint in backups/ with --resume"
        )
    return found
