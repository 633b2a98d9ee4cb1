"""The rounds of tools/find_cameras.py on one page: cameras.html tells how sure the cameras are, with a sheet per round."""

import json
from pathlib import Path

from graf.finding.rounds import Round
from graf.reporting.curves import DPI
from graf.reporting.pages import TEMPLATES, Embedder, content_policy
from graf.rotations import GUESSED_RIGHT, NEAR_DEG
from graf.runtime.files import save_figure, write_text

from matplotlib.figure import Figure

PAGE, CURVE = "cameras.html", "calibration.png"


def write_cameras_page(out: Path, n_rounds: int) -> Path:
    """Write the page of the rounds 1 to n_rounds, which are done, into their folder; returns the page."""
    rounds = [Round(out, number) for number in range(1, n_rounds + 1)]
    records = [json.loads(this.record.read_text(encoding="utf-8")) for this in rounds]
    curve = draw_calibration(out / CURVE, records)
    page = TEMPLATES.get_template("cameras.html").render(
        title="Cameras that nobody wrote down",
        policy=content_policy(),
        embedder=Embedder(out, out),
        near_deg=NEAR_DEG,
        guessed_right=GUESSED_RIGHT,
        rounds=list(zip(records, (this.sheet for this in rounds), strict=True)),
        unposed_sheet=Round(out, 0).sheet,
        calibration=curve,
    )
    write_text(out / PAGE, page)
    return out / PAGE


def draw_calibration(file: Path, records: list[dict]) -> Path:
    """Draw how often the estimators are right on views that they were not trained on, by their confidence."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="as sure as right")
    for record in records:
        groups = record["held_out_views"]["calibration"]
        points = [group["confidence"] for group in groups], [group["right"] for group in groups]
        axes.plot(*points, marker="o", label=f"round {record['round']}")
    axes.set(xlabel="confidence", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(loc="best")
    axes.grid(alpha=0.3)
    save_figure(figure, file, DPI)
    return file
