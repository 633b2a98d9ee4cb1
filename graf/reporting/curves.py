"""Reads and draws a run's metrics.jsonl: curves of what training logged and of what evaluations measured.

Distances under different protocols are never comparable: each protocol has a figure of its own, whose title states it.
"""

import hashlib
import json
import logging
import math
import re
import textwrap
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from graf.errors import GrafError
from graf.metrics.results import COMPARABLE, protocol_title, title
from graf.pictures.fonts import font_file
from graf.runtime.files import json_rows, save_figure

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

MAX_POINTS = 2000  # per curve, by default: more than a figure has pixels
LARGEST = float(np.finfo(np.float32).max)  # what is more than a tensor can hold is not finite either
NAMED_LINES = 5  # damaged lines whose numbers a warning names
COLUMNS = 2
FEW = 50  # points up to which each is marked, so that one between two gaps is seen
DPI = 110
LEARNING_IN = (5, 3.2)  # width and height of a figure that a telephone shows whole
LOSSES = ("loss_d", "loss_g")
PANELS = {  # of what training logs: title, what the axis counts, and the curves in words
    "losses": ("loss", {"loss_d": "discriminator", "loss_g": "generator"}),
    "further losses": (
        "loss",
        {
            "loss_d_projected": "projected discriminator",
            "loss_label_d": "labels of real images",
            "loss_label_g": "labels of generated ones",
            "loss_ccsr": "CCSR",
        },
    ),
    "scores of the discriminator": ("logit", {"logit_real": "real images", "logit_fake": "generated"}),
    "correctly classified images": (
        "share",
        {"accuracy_d": "by the discriminator", "accuracy_d_projected": "by the projected one"},
    ),
    "gradient penalty": ("squared norm", {"penalty": "R1"}),
    "contrast": ("standard deviation", {"sample_std": "generated", "real_std": "real images"}),
    "gradients": ("norm", {"grad_norm_d": "discriminator", "grad_norm_g": "generator"}),
    "opacity": ("share of the frame", {"opacity": "in training", "mean_opacity": "of samples"}),
    "real images that CCSR restores": ("mean absolute difference", {"loss_restore": "from the real image"}),
    "CCSR away from what it refines": ("mean squared difference", {"ccsr_drift": "drift"}),
    "depth within a sample": ("scene units", {"depth_spread": "spread", "depth_range": "far - near"}),
    "degenerate samples": ("share of samples", {"empty_share": "empty", "full_share": "opaque everywhere"}),
    "learning rates": ("learning rate", {"lr_d": "discriminator", "lr_g": "generator"}),
}

log = logging.getLogger("graf")


class Points(NamedTuple):
    """The drawn points of a curve, each (P,): means and ranges of groups of neighbouring rows; nan is a gap."""

    steps: np.ndarray
    means: np.ndarray
    lows: np.ndarray
    highs: np.ndarray


class Curve:
    """One value over the steps, 16 bytes per row, of which at most max_points points are drawn."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self.max_points = max_points
        self._steps, self._values = array("d"), array("d")  # nan is a value that was not finite

    def add(self, step: float, value: float | None) -> None:
        """Add a row's value, None where it was not finite."""
        self._steps.append(step)
        self._values.append(math.nan if value is None else value)

    @property
    def rows_per_point(self) -> int:
        return max(1, -(-len(self._values) // self.max_points))

    @property
    def not_finite(self) -> int:
        """How many rows had no finite value."""
        return int(np.isnan(self._values).sum())

    @property
    def constant(self) -> float | None:
        """The value of all rows where they have the same finite one."""
        low, high = min(self._values), max(self._values)
        return low if low == high and not self.not_finite else None

    def points(self) -> Points:
        """The rows in groups of rows_per_point, the last of which may be smaller."""
        gap = np.full(-len(self._values) % self.rows_per_point, math.nan)
        steps, values = (np.append(column, gap).reshape(-1, self.rows_per_point) for column in (self._steps, self._values))
        with np.errstate(invalid="ignore"):  # 0 / 0, where no value is finite
            means = np.nansum(values, 1) / np.isfinite(values).sum(1)
        return Points(np.nanmean(steps, 1), means, np.fmin.reduce(values, 1), np.fmax.reduce(values, 1))


@dataclass
class Evaluations:
    """Evaluations that can be compared: what they share, one curve per value, and the newest result."""

    protocol: dict
    curves: dict[str, Curve] = field(default_factory=dict)
    newest: dict = field(default_factory=dict)
    newest_step: int = 0


@dataclass
class History:
    """Curves of training by name, evaluations by their protocol as JSON, and how many lines could not be read."""

    max_points: int = MAX_POINTS
    training: dict[str, Curve] = field(default_factory=dict)
    evaluations: dict[str, Evaluations] = field(default_factory=dict)
    damaged: int = 0

    @property
    def newest(self) -> Evaluations | None:
        """The evaluations under the protocol that was used last."""
        return max(self.evaluations.values(), key=lambda evaluations: evaluations.newest_step, default=None)


def read_history(path: Path, max_points: int = MAX_POINTS) -> History:
    """The curves of a metrics.jsonl, to be drawn in at most max_points points each.

    Damaged lines are left out, with a warning that counts them. Raises GrafError where there is no such file.
    """
    if not path.is_file():
        raise GrafError(f"{path}: no such file; name the folder of a run that has logged steps (training.print_every above 0)")
    history, named = History(max_points), []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not _add_line(line, history):
                history.damaged += 1
                named += [str(number)] if len(named) < NAMED_LINES else []
    if history.damaged:
        others = ", ..." if history.damaged > len(named) else ""
        log.warning("%s: left out what cannot be read, %d lines (%s%s)", path, history.damaged, ", ".join(named), others)
    return history


def _add_line(line: str, history: History) -> bool:
    """Add a line to the history. Returns False, and adds nothing, if it cannot be read."""
    try:
        match next(json_rows([line]), None):
            case {"step": int(step), "evaluation": {"values": dict(values)} as result} if values:
                numbers, protocol = _numbers(values), {name: result.get(name) for name in COMPARABLE}
                evaluations = history.evaluations.setdefault(json.dumps(protocol), Evaluations(protocol))
                evaluations.newest, evaluations.newest_step, curves = result, step, evaluations.curves
            case {"step": int(step), **scalars} if "evaluation" not in scalars:
                numbers, curves = _numbers(scalars), history.training
            case _:
                return False
        step = float(step)
    except (ValueError, TypeError, OverflowError):  # no numbers, or too large
        return False
    for name, value in numbers.items():
        curves.setdefault(name, Curve(history.max_points)).add(step, value)
    return True


def _numbers(values: dict) -> dict[str, float | None]:
    numbers = {name: math.nan if value is None else float(value) for name, value in values.items()}
    return {name: value if abs(value) <= LARGEST else None for name, value in numbers.items()}


def draw_curves(run_dir: Path, out: Path, max_points: int = MAX_POINTS) -> list[Path]:
    """Draw metrics.jsonl of a run, as `figures` does, into the folder `out`, each curve in at most max_points points.

    Values that were not finite are gaps, and counted in the legend. Raises GrafError where the run has no metrics.jsonl;
    lines that cannot be read are left out, with a warning.
    """
    return draw_history(read_history(run_dir / "metrics.jsonl", max_points), out)


def draw_history(history: History, out: Path) -> list[Path]:
    """The figures of a history as PNG files in the folder `out`."""
    files = []
    for name, figure in figures(history).items():
        save_figure(figure, out / f"{name}.png", DPI)
        files.append(out / f"{name}.png")
    return files


def figures(history: History) -> dict[str, Figure]:
    """The figures by name: losses and KID of the newest protocol, small enough for a telephone, all else of training, and one
    per protocol. Curves that never change have no panel, but are named below the others."""
    drawn = {}
    losses = {name: history.training[name] for name in LOSSES if name in history.training}
    if any(_moves(curve) for curve in losses.values()):
        drawn["losses"] = _figure("", losses, LEARNING_IN)
    if history.newest:
        curves = {
            title(name): curve for name, curve in history.newest.curves.items() if name.startswith("kid_") and _moves(curve)
        }
        if curves:
            drawn["kid"] = _figure("", curves, LEARNING_IN)
    others = {name: curve for name, curve in history.training.items() if name not in losses}
    if any(_moves(curve) for curve in others.values()):
        drawn["training"] = _figure("training", others)
    for key, evaluations in history.evaluations.items():
        extractor = re.sub(r"[^A-Za-z0-9-]+", "-", str(evaluations.protocol["extractor"]))[:40]
        curves = {title(value): curve for value, curve in evaluations.curves.items()}
        if any(_moves(curve) for curve in curves.values()):
            name = f"metrics_{extractor}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"
            drawn[name] = _figure(protocol_title(evaluations.protocol), curves)
    return drawn


def constants(curves: dict[str, Curve]) -> str:
    """Names and values of the curves that never change; "" if there are none."""
    found = {name: curve.constant for name, curve in curves.items() if not _moves(curve)}
    return "always the same: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()) if found else ""


def time_axis(seconds: float) -> tuple[float, str]:
    """Seconds per unit and name of the unit in which such a time reads well."""
    units = ((172_800, 86_400, "days"), (7200, 3600, "hours"), (120, 60, "minutes"))
    return next(((size, name) for least, size, name in units if seconds >= least), (1, "seconds"))


def _moves(curve: Curve) -> bool:
    return curve.constant is None


def _panel(name: str) -> tuple[str, str, str]:
    """Title and axis of a curve's panel, and the curve's label. Curves outside PANELS share a panel by their prefix."""
    for heading, (axis, words) in PANELS.items():
        if name in words:
            return heading, axis, f"{words[name]} ({name})"
    head = re.split(r"[_ ]", name)[0]
    return head, f"{head}, lower is better" if head in ("FID", "KID") else head, name


def _figure(heading: str, curves: dict[str, Curve], size_in: tuple[float, float] | None = None) -> Figure:
    """A figure with one panel per group of curves; size_in: of a figure with a single panel."""
    groups: dict[tuple[str, str], dict[str, Curve]] = {}
    for name, curve in curves.items():
        panel, axis, label = _panel(name)
        if _moves(curve):
            groups.setdefault((panel, axis), {})[label] = curve
    columns = min(COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    size = 10 if size_in else 8
    figure = Figure(figsize=size_in or (5.5 * columns, 0.8 + 2.6 * rows), layout="constrained")
    figure.suptitle(_plain("\n".join(textwrap.wrap(heading, 65 * columns))), font=font_file(heading), fontsize=10)
    figure.supxlabel(_plain("\n".join(textwrap.wrap(constants(curves), 80 * columns))), fontsize=8)
    for index, ((panel, axis), group) in enumerate(groups.items(), 1):
        axes = figure.add_subplot(rows, columns, index)
        for label, curve in group.items():
            plot(axes, label, curve)
        axes.set_title(_plain(panel), fontsize=size)
        axes.set_xlabel("training step", fontsize=size)
        axes.set_ylabel(_plain(axis), fontsize=size)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        axes.tick_params(labelsize=size)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=size)
    return figure


def plot(axes: Axes, name: str, curve: Curve) -> None:
    """Draw a curve's means, and as a band the range of the rows of each point."""
    label = f"{name}, {curve.not_finite} not finite" if curve.not_finite else name
    points = curve.points()
    style = ".-" if len(points.steps) <= FEW else "-"
    (line,) = axes.plot(points.steps, points.means, style, linewidth=1, label=_plain(label))
    if curve.rows_per_point > 1:
        axes.fill_between(points.steps, points.lows, points.highs, color=line.get_color(), alpha=0.25, linewidth=0)


def _plain(text: str) -> str:
    """Text escaped for matplotlib: dollars would start a formula, and a leading underscore would hide a label."""
    return re.sub(r"^_", " _", text.replace("$", r"\$"))
