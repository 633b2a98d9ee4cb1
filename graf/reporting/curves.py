"""Figures of a run's metrics.jsonl, drawn once, after training.

Distances under different protocols are never comparable: each protocol has a figure of its own, whose title states it.
"""

import hashlib
import re
import textwrap
from pathlib import Path

from graf.evaluation.results import title
from graf.reporting.history import MAX_POINTS, Curve, History, read_history
from graf.runtime.files import whole_file

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMNS = 2
FEW = 50  # points up to which each is marked, so that one between two gaps is seen


def draw_curves(run_dir: Path, out: Path, max_points: int = MAX_POINTS) -> list[Path]:
    """Draw metrics.jsonl of a run: out/training.png, and out/metrics_<extractor>_<hash>.png for each protocol, each curve in at
    most max_points points.

    Values that were not finite are gaps, and counted in the legend. Raises GrafError where the run has no metrics.jsonl;
    lines that cannot be read are left out, with a warning.
    """
    return draw_history(read_history(run_dir / "metrics.jsonl", max_points), out)


def draw_history(history: History, out: Path) -> list[Path]:
    """The figures of a history as PNG files in the folder `out`."""
    files = []
    for name, figure in figures(history).items():
        with whole_file(out / f"{name}.png") as temporary:
            figure.savefig(temporary, dpi=110)
        files.append(out / f"{name}.png")
    return files


def figures(history: History) -> dict[str, Figure]:
    """The figures by name: one of training, one per protocol. Within a figure, names with the same prefix (loss_d and loss_g,
    kid and kid_std) share axes."""
    drawn = {}
    if history.training:
        drawn["training"] = _figure("training", history.training)
    for key, evaluations in history.evaluations.items():
        extractor = re.sub(r"[^A-Za-z0-9-]+", "-", str(evaluations.protocol["extractor"]))[:40]
        name = f"metrics_{extractor}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        curves = {title(value): curve for value, curve in evaluations.curves.items()}
        drawn[name] = _figure(protocol_title(evaluations.protocol), curves)
    return drawn


def protocol_title(protocol: dict) -> str:
    """A protocol as text, in full; hashes are cut to their first digits."""
    known = {name: "?" if value is None else value for name, value in protocol.items()}
    weights, real = (str(known[name])[:8] for name in ("weights_sha256", "real_fingerprint"))
    return (
        f"{known['extractor']} (weights {weights}), images resized to {known['resize']}; {known['n_real']} real and "
        f"{known['n_fake']} generated images at {known['resolution']} px; real images {real}, seed {known['seed']}; "
        f"KID over {known['kid_subsets']} subsets of {known['kid_subset_size']}"
    )


def _figure(heading: str, curves: dict[str, Curve]) -> Figure:
    groups: dict[str, dict[str, Curve]] = {}
    for name, curve in curves.items():
        groups.setdefault(re.split(r"[_ ]", name)[0], {})[name] = curve
    rows = max(1, -(-len(groups) // COLUMNS))
    figure = Figure(figsize=(11, 0.8 + 2.6 * rows), layout="constrained")
    figure.suptitle(_plain("\n".join(textwrap.wrap(heading, 130))), fontsize=10)
    for index, group in enumerate(groups.values(), 1):
        axes = figure.add_subplot(rows, COLUMNS, index)
        for name, curve in group.items():
            _plot(axes, name, curve)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def _plot(axes: Axes, name: str, curve: Curve) -> None:
    """The points' means, over the range of the rows that each of them stands for."""
    label = f"{name} ({curve.not_finite} not finite)" if curve.not_finite else name
    style = ".-" if len(curve.points) <= FEW else "-"
    (line,) = axes.plot(curve.steps(), curve.means(), style, linewidth=1, label=_plain(label))
    if curve.rows_a_point > 1:
        axes.fill_between(curve.steps(), *curve.ranges(), color=line.get_color(), alpha=0.25, linewidth=0)


def _plain(text: str) -> str:
    """Text escaped for matplotlib: dollars would start a formula, and a leading underscore would hide a label."""
    return re.sub(r"^_", " _", text.replace("$", r"\$"))
