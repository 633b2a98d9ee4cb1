"""The report of a watch: its numbers as JSON, its curve as a picture."""

import json
import logging
from pathlib import Path

from graf.memory.watch import ProcessWatch
from graf.runtime.files import whole_file
from graf.runtime.limits import GB

from matplotlib.figure import Figure

log = logging.getLogger("graf")


def write_report(
    watch: ProcessWatch, out: Path, command: str | None = None, pid: int | None = None, exit_status: int | None = None
) -> None:
    """memory_report.json and memory_report.png in the folder `out`; where they cannot be written, a warning."""
    content = {"command": command, "pid": pid, "exit_status": exit_status} | watch.as_report()
    try:
        with whole_file(out / "memory_report.json") as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        draw_curve(watch, out / "memory_report.png")
    except OSError as error:
        log.warning("%s: no report can be written (%s)", out, error)


def draw_curve(watch: ProcessWatch, file: Path) -> None:
    """Host memory over time, that of the children on top of the process's, and a line where a leak was reported."""
    minutes = [point["seconds"] / 60 for point in watch.curve]
    host = [point["host_bytes"] / GB for point in watch.curve]
    workers = [point["workers_bytes"] / GB for point in watch.curve]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    axes.stackplot(minutes, host, workers, labels=("process", "its children, with what they share"), alpha=0.6)
    for seconds in watch.warned_seconds:
        axes.axvline(seconds / 60, color="red")
    axes.set(xlabel="minutes", ylabel="resident memory, GB")
    axes.set_title(watch.reports[-1].message(watch.unit).split(";")[0] if watch.reports else "no leak found", fontsize=10)
    axes.legend(loc="upper left")
    with whole_file(file) as temporary:
        figure.savefig(temporary, dpi=100)
