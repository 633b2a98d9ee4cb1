"""Does the memory of a run stay flat: python bench/measure_flatness.py results/default

Reads the run's memory.jsonl and compares the resident memory of its thirds, by steps, between samples, metrics and checkpoints,
which take more for a moment. Exits with 1 where the last third is not within 2 % of the second.
"""

import argparse
from pathlib import Path
from statistics import mean

from graf.errors import GrafError
from graf.memory.monitor import read_rows
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.runtime.files import save_figure
from graf.runtime.limits import GB

from matplotlib.figure import Figure

LARGEST_CHANGE = 0.02  # of the resident memory, from the second third to the last


def main() -> int:
    parser = Parser(__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--picture", type=Path, help="draw memory over steps into this PNG")
    args = parser.parse_args()
    rows = run_rows(args.run / "memory.jsonl")
    if args.picture:
        draw(rows, args.picture)
    thirds = resident_by_thirds(rows)
    change = thirds[2] / thirds[1] - 1
    flat = abs(change) <= LARGEST_CHANGE
    log.info("steps %d to %d, resident memory of each third: %s GB", *ends(rows), ", ".join(f"{x / GB:.3f}" for x in thirds))
    log.info("last third against the second: %+.2f %% (%s: at most 2 %%)", 100 * change, "met" if flat else "MISSED")
    return 0 if flat else 1


def run_rows(file: Path) -> list[dict]:
    """Rows of a memory.jsonl that have a step and resident bytes. Raises GrafError where there are none."""
    rows = [row for row in read_rows(file) if row.keys() >= {"step", "host_bytes"}]
    if not rows:
        raise GrafError(f"{file}: no rows of memory; name a run's folder whose memory.interval_s was above 0")
    return rows


def resident_by_thirds(rows: list[dict]) -> list[float]:
    """Mean resident bytes of each third of the steps while it trained. Raises GrafError where a third has no rows."""
    first, last = ends(rows)
    edges = [first + (last - first) * i / 3 for i in range(4)]
    edges[3] += 1
    training = [row for row in rows if row["phase"] == "train"]
    thirds = [[row["host_bytes"] for row in training if a <= row["step"] < b] for a, b in zip(edges, edges[1:], strict=False)]
    if not all(thirds):
        raise GrafError(f"steps {first} to {last}: too few rows of memory to compare thirds; train for longer")
    return [mean(third) for third in thirds]


def ends(rows: list[dict]) -> tuple[int, int]:
    steps = [row["step"] for row in rows]
    return min(steps), max(steps)


def draw(rows: list[dict], file: Path) -> None:
    """Resident memory over steps; points of sampling, metrics and checkpoints have colours of their own."""

    def points(some: list[dict]) -> tuple[list[int], list[float]]:
        return [row["step"] for row in some], [row["host_bytes"] / GB for row in some]

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(*points(rows), linewidth=0.8, color="0.7")
    for phase in sorted({row["phase"] for row in rows}):
        of_phase = [row for row in rows if row["phase"] == phase]
        axes.plot(*points(of_phase), ".", markersize=3, label=phase)
    axes.set(xlabel="step", ylabel="resident memory, GB", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", markerscale=3)
    save_figure(figure, file)


if __name__ == "__main__":
    run_script(main)
