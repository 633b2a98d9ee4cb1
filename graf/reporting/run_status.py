"""The status of a run, from the files in its folder: step, speed, losses, memory, warnings, newest samples.

status.json, which training writes, has the step and the speed; the ends of metrics.jsonl and memory.jsonl have the curves and
most warnings. A run of before status.json has its step from the last rows, and no speed. Times are seconds since 1970.
"""

import contextlib
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from graf.config import read_yaml
from graf.errors import ConfigError
from graf.memory.leaks import LeakReport
from graf.metrics.collapse import collapse_warning
from graf.metrics.results import comparable
from graf.runtime.console import duration
from graf.runtime.files import json_rows, readable_object
from graf.runtime.limits import GB

TAIL_BYTES = 2**20  # read from the end of a log
LOSS_ROWS = 500  # of metrics.jsonl, at most, in the curves of losses
DISTANCES = {"kid": "KID", "fid": "FID"}  # to the data, by the beginning of their name
PATIENCE_S, PATIENCE_INTERVALS = 60.0, 10  # without news for both, a run is silent
TREND_VALUES, TREND = 8, 0.5  # values that a trend takes; difference of the halves' means / standard deviation
MEMORY = {
    "host_bytes": "process",
    "workers_bytes": "loader workers",
    "allocated_bytes": "tensors on the GPU",
    "reserved_bytes": "reserved on the GPU",
    "gpu_used_bytes": "GPU, all processes",
}
GPU = ("gpu_temperature_c", "gpu_utilization_percent", "gpu_power_w")
CPU = ("run_cpu_percent", "machine_cpu_percent")
HEAT = "cpu_temperature_c"  # in rows of machines with a sensor
RUN_FILES = ("config.yaml", "metrics.jsonl", "memory.jsonl")  # a folder with any of these is a run's, which can be watched
DEEPEST_RUN = 5  # levels below results; those of find_cameras.py are at results/cameras/round_0/start_1/generator
SAMPLE = re.compile(r"(\d+)_\w+\.png")


@dataclass(frozen=True)
class Limits:
    """Thresholds above which a running run gets a warning."""

    card_percent: float = 95.0  # of the GPU's memory in use, by all processes
    slowdown: float = 2.0  # recent seconds per step / the median of such steps
    hot_c: float = 87.0  # degrees Celsius of the GPU
    hot_cpu_c: float = 95.0  # and of the CPU's hottest sensor


@dataclass(frozen=True)
class Measured:
    """Distances to the data, measured in training: of the newest evaluation, and of earlier ones under the same protocol."""

    step: int
    values: dict[str, tuple[float, ...]]  # by KID and FID, the newest last
    terms: str  # the protocol in short


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment."""

    run_dir: Path
    time: float
    step: int
    max_steps: int | None  # None where neither status.json nor config.yaml has it
    steps_per_s: float | None = None
    same_pace_until: int | None = None  # the last step that takes as long as those before; None: max_steps
    stopped: bool = False  # ended before max_steps, by Ctrl-C or an error
    phase: str | None = None
    written: float | None = None  # when the run last wrote something
    patience_s: float = PATIENCE_S  # without news for longer, it is silent
    losses: dict[str, tuple[float, ...]] = field(default_factory=dict)  # finite values of the last rows, by name
    memory: dict[str, tuple[float, ...]] = field(default_factory=dict)  # bytes in the last rows, by owner
    memory_s: float = 0.0  # seconds that these rows span
    gpu: dict[str, float] = field(default_factory=dict)  # newest readings of GPU
    cpu: dict[str, float] = field(default_factory=dict)  # and of CPU and HEAT
    warnings: tuple[str, ...] = ()
    samples: tuple[Path, ...] = ()  # image grids of the newest sampled step, colours first
    measured: Measured | None = None  # None before the first evaluation

    @property
    def state(self) -> Literal["starting", "running", "silent", "stopped", "finished"]:
        if self.max_steps is not None and self.step >= self.max_steps:
            return "finished"
        if self.stopped:
            return "stopped"
        if self.written is not None and self.time - self.written > self.patience_s:
            return "silent"
        return "running" if self.step else "starting"

    @property
    def seconds_left(self) -> float | None:
        """Seconds until known_until at the recent speed; None where the run is not running or its speed is not known yet."""
        until = self.known_until
        if self.state != "running" or until is None or not self.steps_per_s or self.step >= until:
            return None
        return (until - self.step) / self.steps_per_s

    @property
    def known_until(self) -> int | None:
        """The last step until which the speed is known: max_steps, or the last one before steps that take another time."""
        return self.max_steps if self.same_pace_until is None else self.same_pace_until


def read_status(run_dir: Path, limits: Limits = Limits()) -> RunStatus:
    """The status of a run now; of a folder without a run's files, that of a run that has not begun."""
    status = readable_object(run_dir / "status.json")
    numbers = {name: finite_number(value) for name, value in status.items()}
    metrics, damage = _last_rows(run_dir / "metrics.jsonl")
    readings, damaged_readings = _last_rows(run_dir / "memory.jsonl")
    losses = [row for row in metrics if any(name.startswith("loss") for name in row)][-LOSS_ROWS:]
    memory = [row for row in readings if "phase" in row and finite_number(row.get("time")) is not None]
    # The newest step: of status.json, of a newer row of memory.jsonl, or without either of the last rows
    newest, max_steps, saved = memory[-1] if memory else {}, numbers.get("max_steps"), numbers.get("time")
    is_newer = saved is not None and newest.get("step") and newest["time"] > saved  # as with a large training.print_every
    step = newest["step"] if is_newer else numbers.get("step")
    if step is None:
        step = max((rows[-1]["step"] for rows in (losses, memory) if rows), default=0)
    if max_steps is None:
        max_steps = _max_steps(run_dir / "config.yaml")
    found = RunStatus(
        run_dir=run_dir,
        time=time.time(),
        step=int(step),
        max_steps=None if max_steps is None else int(max_steps),
        steps_per_s=numbers.get("steps_per_s"),
        same_pace_until=None if (until := numbers.get("same_pace_until")) is None else int(until),
        stopped=status.get("state") == "stopped",
        phase=newest.get("phase"),
        written=max(saved or 0.0, newest.get("time", 0.0)) or changed(run_dir / "metrics.jsonl") or None,
        patience_s=max(PATIENCE_S, PATIENCE_INTERVALS * (numbers.get("interval_s") or 0.0)),
        losses=_series(losses, {name: name for row in losses for name in row if name.startswith("loss")}),
        memory={name: values for name, values in _series(memory, MEMORY).items() if any(values)},
        memory_s=newest["time"] - memory[0]["time"] if memory else 0.0,
        gpu=_readings(newest, GPU),
        cpu=_readings(newest, (*CPU, HEAT)),
        samples=_newest_samples(run_dir / "samples", step),
        measured=_measured([row for row in metrics if distances(row.get("evaluation"))]),
    )
    warnings = [*damage, *damaged_readings, *_leak(readings, found.time), *_collapse(metrics), *_not_finite(losses)]
    if found.state == "running":
        warnings += [*_strained_gpu(newest, limits), *_hot_cpu(found.cpu, limits.hot_cpu_c), *_slower(numbers, limits.slowdown)]
    return replace(found, warnings=tuple(warnings))


def runs_below(folder: Path) -> list[Path]:
    """Runs below the folder, at most DEEPEST_RUN levels, but none inside another; the most recently written first."""
    found, seen = [], set()
    for path, subfolders, _ in os.walk(folder, followlinks=True):
        level, place = len(Path(path).relative_to(folder).parts), os.path.realpath(path)
        if level and is_run(Path(path)):
            found.append(Path(path))
            subfolders.clear()
        elif level == DEEPEST_RUN or place in seen:  # the latter by a link
            subfolders.clear()
        seen.add(place)
    return sorted(found, key=lambda run: max(changed(run / name) for name in RUN_FILES), reverse=True)


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in RUN_FILES)


def trend(values: Sequence[float]) -> str:
    """`rising`, `falling` or `steady`, by the means of both halves; empty where there are too few values."""
    if len(values) < TREND_VALUES:
        return ""
    half = len(values) // 2
    change = statistics.fmean(values[-half:]) - statistics.fmean(values[:half])
    if abs(change) <= TREND * statistics.pstdev(values):
        return "steady"
    return "rising" if change > 0 else "falling"


def thinned(values: Sequence[float], n: int) -> list[float]:
    """At most n values (N,): means of neighbours."""
    bounds = [i * len(values) // n for i in range(n + 1)] if len(values) > n else range(len(values) + 1)
    return [statistics.fmean(values[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def changed(path: Path) -> float:
    """Time of the last write to the file, 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def colours_first(path: Path) -> tuple[bool, bool, Path]:
    """Sort key of pictures: colours before depth and opacity, image grids before videos."""
    return "_rgb" not in path.stem, path.suffix != ".png", path


def collapse_sentences(numbers: dict) -> list[str]:
    """The warning of `collapse_warning` where the numbers show a collapse; [] where they are incomplete."""
    try:
        message = collapse_warning(numbers)
    except (KeyError, TypeError, ValueError):  # of another version
        return []
    return [message] if message else []


def finite_number(value: Any) -> float | None:
    """The value as a float; None if it is not a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None


def distances(result: Any) -> dict[str, float]:
    """KID and FID of a result of `metrics.measure`, as far as they are finite; empty for all else."""
    match result:
        case {"values": dict(values), "extractor": str(extractor)}:
            found = {shown: finite_number(values.get(f"{name}_{extractor}")) for name, shown in DISTANCES.items()}
            return {shown: value for shown, value in found.items() if value is not None}
    return {}


def _last_rows(path: Path) -> tuple[list[dict], list[str]]:
    """The rows with a step in the last TAIL_BYTES of a file of JSON lines, and a warning about lines that cannot be read.

    A last line without its end is still being written.
    """
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
            file.seek(start)
            block = file.read(TAIL_BYTES)
    except OSError:
        return [], []
    lines = block[: block.rfind(b"\n") + 1].splitlines()[start > 0 :]  # the first one may be cut
    lines = [line for line in lines if line.strip()]
    rows = list(json_rows(lines))
    damaged = len(lines) - len(rows)
    warnings = [f"{path.name}: {damaged} of its lines cannot be read and are left out"] if damaged else []
    return [row for row in rows if isinstance(row.get("step"), int)], warnings


def _series(rows: list[dict], names: dict[str, str]) -> dict[str, tuple[float, ...]]:
    """Finite values of the rows, by the label of their name."""
    found = {
        shown: tuple(v for row in rows if (v := finite_number(row.get(name))) is not None) for name, shown in names.items()
    }
    return {name: values for name, values in found.items() if values}


def _measured(rows: list[dict]) -> Measured | None:
    """The newest row's evaluation, with the values of those that may be compared with it."""
    if not rows:
        return None
    newest = rows[-1]["evaluation"]
    try:
        like = [row["evaluation"] for row in rows if comparable(row["evaluation"]) == comparable(newest)]
    except KeyError:  # a row of another version
        like = [newest]
    found = [distances(result) for result in like]
    values = {name: tuple(each[name] for each in found if name in each) for name in found[-1]}
    counts = f"{newest.get('n_fake', '?')} generated and {newest.get('n_real', '?')} real images"
    return Measured(rows[-1]["step"], values, f"{counts}, {newest['extractor']}")


def _readings(row: dict, names: Iterable[str]) -> dict[str, float]:
    return {name: value for name in names if (value := finite_number(row.get(name))) is not None}


def _strained_gpu(row: dict, limits: Limits) -> list[str]:
    found = _readings(row, ("gpu_used_bytes", "gpu_total_bytes", "gpu_temperature_c"))
    used, total = found.get("gpu_used_bytes", 0.0), found.get("gpu_total_bytes", 0.0)
    warnings = []
    if total and 100 * used >= limits.card_percent * total:
        warnings.append(
            f"the GPU is {used / total:.0%} full ({used / GB:.2f} of {total / GB:.2f} GB, all processes together); "
            "end another program on it, or set a smaller training.micro_batch or memory.budget_gb"
        )
    if found.get("gpu_temperature_c", 0.0) >= limits.hot_c:
        warnings.append(f"the GPU is at {found['gpu_temperature_c']:.0f} C, at which GPUs slow down; give it air")
    return warnings


def _hot_cpu(readings: dict[str, float], hot_c: float) -> list[str]:
    heat = readings.get(HEAT, 0.0)
    return [f"the CPU is at {heat:.0f} C, at which CPUs slow down; give it air"] if heat >= hot_c else []


def _slower(status: dict, slowdown: float) -> list[str]:
    late, usual = status.get("late_seconds_per_step"), status.get("seconds_per_step")
    if not late or not usual or late < slowdown * usual:
        return []
    times = f"{late:.3g} s of late, {late / usual:.1f} times the median of such steps, {usual:.3g} s"
    return [f"a step takes {times}; another program may be busy beside it, the disk slow, or the CPU hot"]


def _leak(rows: list[dict], now: float) -> list[str]:
    newest = [row for row in rows if "leak" in row][-1:]
    try:
        return [f"{LeakReport.from_row(row['leak']).message()} ({duration(now - row['time'])} ago)" for row in newest]
    except (KeyError, TypeError):  # a row of another version
        return []


def _collapse(rows: list[dict]) -> list[str]:
    newest = [row for row in rows if "mean_opacity" in row][-1:]
    return [f"step {row['step']}: {message}" for row in newest for message in collapse_sentences(row)]


def _not_finite(rows: list[dict]) -> list[str]:
    counts = Counter(name for row in rows for name, value in row.items() if value is None)
    named = ", ".join(f"{name} in {count}" for name, count in counts.items())
    return [f"values that were not finite, of the last {len(rows)} rows: {named}"] if counts else []


def _newest_samples(folder: Path, step: int) -> tuple[Path, ...]:
    """The pictures of the last step that was sampled, in a run that is at this step."""
    by_step: dict[int, list[Path]] = {}
    for name in os.listdir(folder) if folder.is_dir() else ():
        if (match := SAMPLE.fullmatch(name)) and int(match[1]) <= step:
            by_step.setdefault(int(match[1]), []).append(folder / name)
    return tuple(sorted(by_step[max(by_step)], key=colours_first)) if by_step else ()


def _max_steps(config: Path) -> float | None:
    """training.max_steps of a run's config.yaml; None where that has none, or cannot be read."""
    with contextlib.suppress(OSError, ConfigError, KeyError, TypeError):
        return finite_number(read_yaml(config)["training"]["max_steps"])
