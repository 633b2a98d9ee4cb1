"""The status of a run, read from the files in its folder: step, speed, losses, memory, warnings, newest samples.

All times are seconds since 1970. A run may not have begun to write, be resumed from an earlier step, or have ended long ago.
"""

import dataclasses
import json
import os
import re
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from graf.config import read_yaml
from graf.errors import ConfigError, GrafError
from graf.memory.leaks import LeakReport
from graf.metrics.results import comparable
from graf.runtime.console import duration
from graf.runtime.files import json_rows
from graf.runtime.limits import GB
from graf.training.collapse import collapse_warning

TAIL_BYTES = 2**20  # read at a time, at most; what is further from the end is skipped
LOSS_ROWS, MEMORY_ROWS = 500, 4000  # kept rows of metrics.jsonl and memory.jsonl
MEASURED_ROWS = 100  # kept of those with an evaluation
DISTANCES = {"kid": "KID", "fid": "FID"}  # to the data, by the beginning of their name
WINDOW_S = 600.0  # over which speed is averaged, samples and evaluations included
SHORTEST_S = 1.0  # between files by whose times speed is known; those of a copy are written at once
PATIENCE_S, PATIENCE_GAPS = 60.0, 10  # without news for both, a run is silent
TREND_VALUES, TREND = 8, 0.5  # values that a trend takes; difference of the halves' means / standard deviation
MEMORY = {
    "host_bytes": "process",
    "workers_bytes": "loader workers",
    "allocated_bytes": "tensors on the card",
    "reserved_bytes": "reserved on the card",
    "gpu_used_bytes": "card, all processes",
}
CARD = ("gpu_temperature_c", "gpu_utilization_percent", "gpu_power_w")
CPU = ("run_cpu_percent", "machine_cpu_percent")
HEAT = "cpu_temperature_c"  # in rows of machines with a sensor
RUN_FILES = ("config.yaml", "metrics.jsonl", "memory.jsonl")  # a folder with any of these is a run's
LATE_PACES = 12  # the newest, that are compared with all; a minute, where rows are written every 5 s
SANITY = ("mean_opacity", "depth_spread", "depth_range", "empty_share", "full_share")
SAMPLE = re.compile(r"(\d+)_\w+\.png")

Moment = tuple[float, int]  # a time, and the step that the run was at


@dataclass(frozen=True)
class Limits:
    """From where on a running run gets a warning."""

    card_percent: float = 95.0  # of the card's memory in use, by all processes
    slowdown: float = 2.0  # recent seconds per step, over their median in the run
    hot_c: float = 87.0  # degrees Celsius of the card
    hot_cpu_c: float = 95.0  # and of the processor's hottest sensor


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
    max_steps: int | None  # None where no config.yaml tells
    steps_per_s: float | None
    phase: str | None
    written: float | None  # when the run last wrote something
    patience_s: float  # without news for longer, it is silent
    losses: dict[str, tuple[float, ...]]  # finite values of the last rows, by name
    memory: dict[str, tuple[float, ...]]  # bytes in the last rows, by owner (process, workers, card)
    memory_s: float  # seconds that these rows span
    card: dict[str, float]  # newest readings of CARD
    cpu: dict[str, float]  # and of CPU and HEAT
    warnings: tuple[str, ...]
    samples: tuple[Path, ...]  # pictures of the step that was sampled last, colours first
    measured: Measured | None = None  # None before the first evaluation

    @property
    def state(self) -> Literal["starting", "running", "silent", "finished"]:
        if self.max_steps is not None and self.step >= self.max_steps:
            return "finished"
        if self.written is not None and self.time - self.written > self.patience_s:
            return "silent"
        return "running" if self.step else "starting"

    @property
    def seconds_left(self) -> float | None:
        """Seconds until max_steps at the recent speed; None where the run is not running or its speed is not known yet."""
        if self.state != "running" or self.max_steps is None or not self.steps_per_s:
            return None
        return (self.max_steps - self.step) / self.steps_per_s


class Tail:
    """Rows near the end of a file that another program appends to, or replaces by a shorter one.

    Each update reads only new bytes, and at most TAIL_BYTES of them. A line that is still being written is read later; one
    that cannot be parsed is left out, and counted in `damaged`.
    """

    def __init__(self, path: Path, wanted: Callable[[dict], bool], kept: int):
        """`rows` will hold the last `kept` rows that are `wanted`; all of these have an integer `step`."""
        self.path, self.wanted = path, wanted
        self.rows: deque[dict] = deque(maxlen=kept)
        self.damaged = 0
        self._file: tuple[int, int] | None = None
        self._offset = 0

    def update(self) -> None:
        """Read the lines appended since the last update; start from the beginning where the file was replaced or removed."""
        try:
            with self.path.open("rb") as file:
                block = self._new_lines(file)
        except OSError:
            self._begin(None)
            return
        lines = list(filter(bytes.strip, block.splitlines()))
        rows = list(json_rows(lines))
        self.damaged += len(lines) - len(rows)
        self.rows.extend(row for row in rows if isinstance(row.get("step"), int) and self.wanted(row))

    def _begin(self, file: tuple[int, int] | None) -> None:
        self.rows.clear()
        self.damaged = 0
        self._file, self._offset = file, 0

    def _new_lines(self, file: BinaryIO) -> bytes:
        """Complete lines from the offset on, which moves to their end."""
        stat = os.fstat(file.fileno())
        if self._file != (stat.st_dev, stat.st_ino) or stat.st_size < self._offset:
            self._begin((stat.st_dev, stat.st_ino))
        start = max(self._offset, stat.st_size - TAIL_BYTES)
        file.seek(start)
        block = file.read(TAIL_BYTES)
        cut = b"" if start == self._offset else block[: block.find(b"\n") + 1 or len(block)]  # the end of a line
        lines = block[len(cut) :]
        lines = lines[: lines.rfind(b"\n") + 1]
        self._offset = start + len(cut) + len(lines)
        return lines


class RunReader:
    """Reads a run's folder repeatedly: each time only the new lines of its logs, and never more than their ends."""

    def __init__(self, run_dir: Path, limits: Limits = Limits()):
        """Raises GrafError where there is no such folder."""
        if run_dir.is_file():
            raise GrafError(f"{run_dir}: a file; name the folder of the run, such as {run_dir.parent}")
        if not run_dir.is_dir():
            raise GrafError(f"{run_dir}: no such folder; name that of a run, such as results/default")
        self.run_dir, self.limits = run_dir, limits
        metrics, memory = run_dir / "metrics.jsonl", run_dir / "memory.jsonl"
        self._losses = Tail(metrics, lambda row: any(name.startswith("loss") for name in row), LOSS_ROWS)
        self._sanity = Tail(metrics, lambda row: all(_number(row.get(name)) is not None for name in SANITY), 1)
        self._evaluations = Tail(metrics, lambda row: _distances(row.get("evaluation")) != {}, MEASURED_ROWS)
        self._memory = Tail(memory, lambda row: "phase" in row and _number(row.get("time")) is not None, MEMORY_ROWS)
        self._leaks = Tail(memory, lambda row: "leak" in row, 1)

    def status(self) -> RunStatus:
        """As of now."""
        tails = (self._losses, self._sanity, self._memory, self._leaks, self._evaluations)
        for tail in tails:
            tail.update()
        losses, memory = list(self._losses.rows), list(self._memory.rows)
        sheets = _sample_sheets(self.run_dir / "samples")
        logged = [(changed(self._losses.path), losses[-1]["step"])] if losses else []
        told = sorted([(when, step) for when, step, _ in sheets] + logged)
        moments = [(row["time"], row["step"]) for row in memory[_session_start(memory) :]]
        newest = memory[-1] if memory else {}
        copied = bool(memory) and changed(self._memory.path) > newest["time"] + WINDOW_S  # times of files are those of the copy
        if not memory or (told and not copied and newest["time"] < told[-1][0] - WINDOW_S):
            moments = told if told and told[-1][0] - told[0][0] >= SHORTEST_S else []
        last_files = max([changed(tail.path) for tail in tails] + [when for when, _ in told])
        max_steps, config_damage = _max_steps(self.run_dir / "config.yaml")
        damage = [*config_damage, *_damaged(self._losses), *_damaged(self._memory)]
        now = time.time()
        status = RunStatus(
            run_dir=self.run_dir,
            time=now,
            step=max(
                max((tail.rows[-1]["step"] for tail in tails[:3] if tail.rows), default=told[-1][1] if told else 0),
                _saved_step(self.run_dir / "model.pt.json", changed(self._losses.path)),
            ),
            max_steps=max_steps,
            steps_per_s=speed(moments),
            phase=newest.get("phase"),
            written=(newest["time"] if copied else last_files) or None,
            patience_s=max(PATIENCE_S, PATIENCE_GAPS * (moments[-1][0] - moments[-2][0] if len(moments) > 1 else 0)),
            losses=_series(losses, {name: name for row in losses for name in row if name.startswith("loss")}),
            memory={name: values for name, values in _series(memory, MEMORY).items() if any(values)},
            memory_s=newest["time"] - memory[0]["time"] if memory else 0.0,
            card=_readings(newest, CARD),
            cpu=_readings(newest, (*CPU, HEAT)),
            warnings=(*damage, *_leak(self._leaks.rows, now), *_collapse(self._sanity.rows), *_not_finite(losses)),
            samples=max(sheets)[2] if sheets else (),
            measured=_measured(list(self._evaluations.rows)),
        )
        if status.state != "running":
            return status
        hot = _hot_processor(newest, self.limits.hot_cpu_c)
        strain = (*_strained_card(newest, self.limits), *hot, *_slower(memory, self.limits.slowdown))
        return dataclasses.replace(status, warnings=(*status.warnings, *strain))


def runs_below(folder: Path) -> list[Path]:
    """Runs in the folder or one of its subfolders, the most recently written first."""
    inside = (*folder.glob("*"), *(path for path in folder.glob("*/*") if not is_run(path.parent)))
    return sorted(filter(is_run, inside), key=lambda run: max(changed(run / name) for name in RUN_FILES), reverse=True)


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in RUN_FILES)


def speed(moments: Sequence[Moment]) -> float | None:
    """Steps per second over the last WINDOW_S, or over the last step where that took longer; None where no step was taken.

    Where the run was resumed from an earlier step, only rows after that count.
    """
    if not moments:
        return None
    end, last = moments[-1]
    following, began = last, None
    for when, step in reversed(moments):
        if step > following or (began is not None and end - when > WINDOW_S):
            break
        following = step
        if step < last:
            began = (when, step)
    if began is None or end <= began[0]:
        return None
    return (last - began[1]) / (end - began[0])


def _session_start(rows: Sequence[dict]) -> int:
    """The first row of the newest session that knows its step: until then a session, resumed or not, writes step 0."""
    return 1 + max((index for index, row in enumerate(rows) if row["step"] == 0), default=-1)


def paces(rows: Sequence[dict]) -> list[float]:
    """Seconds per step between consecutive rows with an increasing step, where the run is training in both."""
    found, start = [], None
    for row in rows:
        if row["phase"] != "train" or (row["step"] == 0 and row is not rows[0]):
            start = None
        elif start is None or row["step"] < start["step"]:
            start = row
        elif row["step"] > start["step"]:
            found.append((row["time"] - start["time"]) / (row["step"] - start["step"]))
            start = row
    return found


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
    """When the file was written last, 0 where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _series(rows: list[dict], names: dict[str, str]) -> dict[str, tuple[float, ...]]:
    """Finite values of the rows, by the label of their name."""
    found = {shown: tuple(v for row in rows if (v := _number(row.get(name))) is not None) for name, shown in names.items()}
    return {name: values for name, values in found.items() if values}


def _distances(result: Any) -> dict[str, float]:
    """KID and FID of a result of `metrics.measure`, as far as they are finite; empty for all else."""
    match result:
        case {"values": dict(values), "extractor": str(extractor)}:
            found = {shown: _number(values.get(f"{name}_{extractor}")) for name, shown in DISTANCES.items()}
            return {shown: value for shown, value in found.items() if value is not None}
    return {}


def _measured(rows: list[dict]) -> Measured | None:
    """The newest row's evaluation, with the values of those that may be compared with it."""
    if not rows:
        return None
    newest = rows[-1]["evaluation"]
    try:
        like = [row["evaluation"] for row in rows if comparable(row["evaluation"]) == comparable(newest)]
    except KeyError:  # a row of another version
        like = [newest]
    found = [_distances(result) for result in like]
    values = {name: tuple(each[name] for each in found if name in each) for name in found[-1]}
    counts = f"{newest.get('n_fake', '?')} generated and {newest.get('n_real', '?')} real images"
    return Measured(rows[-1]["step"], values, f"{counts}, {newest['extractor']}")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def _readings(row: dict, names: Iterable[str]) -> dict[str, float]:
    return {name: value for name in names if (value := _number(row.get(name))) is not None}


def _strained_card(row: dict, limits: Limits) -> list[str]:
    found = _readings(row, ("gpu_used_bytes", "gpu_total_bytes", "gpu_temperature_c"))
    used, total = found.get("gpu_used_bytes", 0.0), found.get("gpu_total_bytes", 0.0)
    told = []
    if total and 100 * used >= limits.card_percent * total:
        told.append(
            f"the card is {used / total:.0%} full ({used / GB:.2f} of {total / GB:.2f} GB, all processes together); "
            "end another program on it, or set a smaller training.micro_batch or memory.budget_gb"
        )
    if found.get("gpu_temperature_c", 0.0) >= limits.hot_c:
        told.append(f"the card is at {found['gpu_temperature_c']:.0f} C, at which cards slow down; give it air")
    return told


def _hot_processor(row: dict, hot_c: float) -> list[str]:
    heat = _readings(row, (HEAT,)).get(HEAT, 0.0)
    return [f"the processor is at {heat:.0f} C, at which processors slow down; give it air"] if heat >= hot_c else []


def _slower(rows: Sequence[dict], slowdown: float) -> list[str]:
    seconds = paces(rows)
    if len(seconds) < 3 * LATE_PACES:
        return []
    late, usual = statistics.median(seconds[-LATE_PACES:]), statistics.median(seconds)
    if late < slowdown * usual:
        return []
    times = f"{late:.3g} s of late, {late / usual:.1f} times the run's median of {usual:.3g} s"
    return [f"a step takes {times}; another program may be busy beside it, the disk slow, or the processor hot"]


def _leak(rows: Iterable[dict], now: float) -> list[str]:
    try:
        return [f"{LeakReport.from_row(row['leak']).message()} (said {duration(now - row['time'])} ago)" for row in rows]
    except (KeyError, TypeError):  # a row of another version
        return []


def _collapse(rows: Iterable[dict]) -> list[str]:
    return [f"step {row['step']}: {message}" for row in rows if (message := collapse_warning(row))]


def _not_finite(rows: list[dict]) -> list[str]:
    counts = Counter(name for row in rows for name, value in row.items() if value is None)
    named = ", ".join(f"{name} in {count}" for name, count in counts.items())
    return [f"values that were not finite, of the last {len(rows)} rows: {named}"] if counts else []


def _sample_sheets(folder: Path) -> list[tuple[float, int, tuple[Path, ...]]]:
    """When each step's pictures were written, the step, and the pictures."""
    by_step: dict[int, list[Path]] = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if match := SAMPLE.fullmatch(name):
            by_step.setdefault(int(match[1]), []).append(folder / name)
    return [(max(map(changed, paths)), step, tuple(sorted(paths, key=colours_first))) for step, paths in by_step.items()]


def colours_first(path: Path) -> tuple[bool, bool, Path]:
    """Sort key of pictures: colours before depth and opacity, sheets before videos."""
    return "_rgb" not in path.stem, path.suffix != ".png", path


def _saved_step(record: Path, since: float) -> int:
    """The step of the newest checkpoint if it was written after `since`, else 0: a run's last step may have no row."""
    try:
        step = json.loads(record.read_text(encoding="utf-8"))["step"] if changed(record) >= since else 0
    except (OSError, ValueError, TypeError, KeyError):
        return 0
    return step if isinstance(step, int) else 0


def _max_steps(config: Path) -> tuple[int | None, list[str]]:
    """training.max_steps, None where no config tells it, and what is wrong with a config that is there."""
    try:
        found = read_yaml(config) if config.exists() else {}
    except ConfigError as error:
        return None, [f"{error}; how many steps the run has is not known, nor whether it is finished"]
    match found:
        case {"training": {"max_steps": int(steps)}}:
            return steps, []
    return None, []


def _damaged(tail: Tail) -> list[str]:
    return [f"{tail.path.name}: {tail.damaged} of its lines cannot be read and are left out"] if tail.damaged else []
