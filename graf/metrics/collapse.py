"""Detects a collapse of the GAN from the numbers that training logs, with its steps and with its sample images."""

import logging
import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean

log = logging.getLogger("graf")

MANY = 0.5  # share of the images that makes a warning
FLAT = 0.02  # depth spread, as a share of the depth range, under which pictures are planes; a toy car has 0.1
FOG_STEPS = 100  # of training: until then a field is fog, whose depth is flat too
WINDOW_STEPS, WINDOW_ROWS = 300, 10  # a warning is based on at least this many
PINNED = 0.99  # accuracy of a discriminator from which the generator learns nothing
EMPTY, OPAQUE = 0.01, 0.99  # mean opacity
JUMPING = 5.0  # loss of a discriminator whose steps are too large; of one that cannot tell anything it is at most 2
ALIKE = 0.1  # standard deviation of the fakes, as a share of that of the real images
ACCURACIES = {"accuracy_d": "the discriminator", "accuracy_d_projected": "the projected discriminator beside it"}
WATCHED = (*ACCURACIES, "loss_d", "opacity", "sample_std", "real_std")


def collapse_warning(stats: dict[str, float | None]) -> str | None:
    """A warning about a collapse, with its evidence and a cure, from the numbers of `consistency.sanity`; None without one.

    Where the numbers include their `step`, the first FOG_STEPS give no warning. None in a log stands for a non-finite value.
    """
    if any(stats[name] is None or not math.isfinite(stats[name]) for name in ("mean_opacity", "depth_spread")):
        return "depth or opacity of the sample images is not finite: go back to an earlier checkpoint; lower training.lr_g"
    if stats.get("step", FOG_STEPS) < FOG_STEPS:
        return None
    opacity = f"mean opacity {stats['mean_opacity']:.3f}"
    if stats["empty_share"] >= MANY:
        return (
            f"{stats['empty_share']:.0%} of the sample images are empty ({opacity}): the field has collapsed to nothing. Check "
            "that data.near and data.far enclose the object; lower training.lr_d or raise training.reg_param"
        )
    if stats["depth_spread"] < FLAT * stats["depth_range"]:
        return (
            f"depth varies {stats['depth_spread']:.3f} scene units within a sample image, less than {FLAT:.0%} of far - near "
            f"= {stats['depth_range']:g} ({opacity}): the objects are planes. Check the cameras of the images; "
            "lower training.lr_d or raise training.reg_param"
        )
    if stats["full_share"] >= MANY:
        return (
            f"{stats['full_share']:.0%} of the sample images are opaque everywhere ({opacity}): a wall fills the whole "
            "frame. Check that data.background is that of the images; ignore this if their objects fill them"
        )
    return None


class CollapseWatch:
    """Warns once of each kind of collapse, and again if it returns after it had ended.

    It sees the rows of metrics.jsonl and judges by their means over the last 300 steps or 10 rows, whichever is more.
    These are not part of a run's state: a resumed run starts a new window.
    """

    def __init__(self):
        self._rows: deque[tuple[int, Mapping[str, float]]] = deque()
        self._warned: set[str] = set()

    def check(self, numbers: Mapping[str, float], step: int) -> None:
        """Add a row of metrics.jsonl, and warn where its window shows a collapse."""
        if self._rows and step <= self._rows[-1][0]:  # the run was rolled back
            self._rows.clear()
            self._warned.clear()
        self._rows.append((step, numbers))
        while len(self._rows) > WINDOW_ROWS and self._rows[1][0] <= step - WINDOW_STEPS:
            self._rows.popleft()
        steps = step - self._rows[0][0]
        if len(self._rows) < WINDOW_ROWS or steps < WINDOW_STEPS:
            return
        values = {name: [row[name] for _, row in self._rows if math.isfinite(row.get(name, math.nan))] for name in WATCHED}
        found = collapses({name: fmean(known) for name, known in values.items() if known}, steps)
        for kind in sorted(found.keys() - self._warned):
            log.warning("step %d: %s", step, found[kind])
        self._warned = set(found)


def collapses(means: Mapping[str, float], steps: int) -> dict[str, str]:
    """Kinds of collapse, each with its evidence and a cure, by the means of those of WATCHED that are known, over `steps`."""
    found, last = {}, f"over the last {steps} steps"
    opacity = means.get("opacity", 0.5)
    sample_std, real_std = means.get("sample_std", math.inf), means.get("real_std", 0.0)
    for name, judge in ACCURACIES.items():
        if means.get(name, 0.5) >= PINNED:
            found[name] = (
                f"{judge} told {means[name]:.1%} of real images and fakes apart {last} ({name}): the generator hardly learns "
                "from it any more. Lower training.lr_d, or raise training.reg_param or discriminator.blur_steps"
            )
    if "accuracy_d" in means and means.get("loss_d", 0.0) >= JUMPING:  # a loss without such a level is as large as it likes
        found["jumping"] = (
            f"the discriminator's loss was {means['loss_d']:.1f} on average {last} (loss_d), more than if it knew nothing: it "
            "jumps, and the generator with it. Lower training.lr_d and training.lr_g; wide networks (nerf.netwidth, "
            "discriminator.ndf) need smaller ones"
        )
    if opacity <= EMPTY:
        found["empty"] = (
            f"opacity was {opacity:.4f} on average {last}: the field has collapsed to nothing. Check that data.near and "
            "data.far enclose the object; lower training.lr_d or raise training.reg_param"
        )
    if opacity >= OPAQUE:
        found["opaque"] = (
            f"opacity was {opacity:.4f} on average {last}: a wall fills the whole frame. Check that data.background is "
            "that of the images; ignore this if their objects fill them"
        )
    if sample_std < ALIKE * real_std:
        found["alike"] = (
            f"generated images differed by {sample_std:.4f} {last} (sample_std), real images by {real_std:.4f} (real_std): the "
            "generator makes one image of all latents. Lower training.lr_g or raise training.reg_param, and start again from a "
            "checkpoint in backups/ with --resume"
        )
    return found
