"""Watches another process from outside: its memory curve, leaks, and a report as JSON and picture."""

import contextlib
import json
import logging
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graf.errors import GrafError
from graf.memory.leaks import LeakDetector, LeakReport
from graf.memory.process_tree import ProcessTree
from graf.runtime.command_line import as_typed
from graf.runtime.files import json_rows, save_figure, write_text
from graf.runtime.interruption import heard_by
from graf.runtime.limits import GB, MB, memory_limit, process_status

import psutil

log = logging.getLogger("graf")

REPORT = "memory_report.json"
CURVE_POINTS = 2000  # kept of the curve, at most
CHILDREN_EVERY = 10  # samples between looks for new children
WRAPPER_BYTES = 32 * MB  # a shell or make, whose only child does the work, takes less
CLEAN_UP_S = 2.0  # wait before measuring what a clean-up gave back


class ProcessWatch:
    """Samples of a process with its children, or of the one below it that does the work.

    With the folder of its run, growth is measured per step and phase of the rows of memory.jsonl, and findings of the run's own
    monitor, which sees more, are included. Otherwise it is measured per sample, after the warm_up_s that programs take to load.
    """

    def __init__(self, pid: int, run_dir: Path | None, warm_up_s: float):
        """Raises psutil.NoSuchProcess."""
        self.pid = pid
        self.tree = find_worker(pid)
        self.log = NewRows(run_dir / "memory.jsonl") if run_dir is not None else None
        self.unit = "sample" if run_dir is None else "step"
        self.warm_up_s = warm_up_s
        self.started = time.time()
        self.samples = self.judged_samples = 0
        self.curve: list[dict[str, float]] = []
        self.reports: list[LeakReport] = []
        self.warned_seconds: list[float] = []  # since the start
        self._stride = 1  # samples per point of the curve
        self._row: dict = {}
        self.reported_by_run: set[str] = set()  # sources of growth that the run has warned of itself
        self._detectors = {source: LeakDetector(source, memory_limit()) for source in ("host", "workers")}

    def sample(self) -> list[LeakReport]:
        """Take a sample. Returns the leaks that it shows. Raises psutil.NoSuchProcess where the process has ended."""
        if self.samples % CHILDREN_EVERY == 0 or not self.tree.process.is_running():
            self.tree = find_worker(self.pid)
        values = self.tree.read()
        seconds = time.time() - self.started
        if self.samples % self._stride == 0:
            self.curve.append({"seconds": round(seconds, 3)} | values)
            if len(self.curve) > CURVE_POINTS:  # from now on every second one is kept
                self.curve, self._stride = self.curve[::2], 2 * self._stride
        self.samples += 1
        if self.log is not None:
            found = self._judge_run(values, seconds)
        else:
            found = self._detect(self.samples, seconds, values, "train") if seconds >= self.warm_up_s else []
        self.reports += found
        self.warned_seconds += [seconds] * len(found)
        return found

    def as_report(self) -> dict:
        """The observations, as plain values."""
        return {
            "seconds": round(time.time() - self.started, 3),
            "samples": self.samples,
            "judged_samples": self.judged_samples,
            "limit_bytes": memory_limit(),
            "peak_bytes": max((point["host_bytes"] + point["workers_bytes"] for point in self.curve), default=0),
            "leak": bool(self.reports),
            "unit": self.unit,
            "leaks": [report.as_row() for report in self.reports],
            "curve": self.curve,
        }

    def _judge_run(self, values: dict[str, int], seconds: float) -> list[LeakReport]:
        """Leaks by the rows of the run: first what it found itself, then what it did not."""
        own = []
        for row in self.log.read():
            if "leak" in row:
                own.append(LeakReport.from_row(row["leak"]))
            elif "phase" in row:
                self._row = row
        self.reported_by_run |= {report.source for report in own}
        found = self._detect(self._row["step"], seconds, values, self._row["phase"]) if self._row.get("step") else []
        return own + [report for report in found if report.source not in self.reported_by_run]

    def _detect(self, step: int, seconds: float, values: dict[str, int], phase: str) -> list[LeakReport]:
        self.judged_samples += 1
        found = [detector.add(step, seconds, values[f"{name}_bytes"], phase) for name, detector in self._detectors.items()]
        return [report for report in found if report is not None]


class NewRows:
    """The rows that are appended to a JSON-lines file from now on."""

    def __init__(self, path: Path):
        self.path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> list[dict]:
        """Rows since the last call. An unfinished line is read later; one that a crash cut short is left out."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._offset += len(whole) + len(newline)
        return list(json_rows(whole.splitlines()))


def find_worker(pid: int) -> ProcessTree:
    """The process with its children, or the one below it that does the work. Raises psutil.NoSuchProcess."""
    tree = ProcessTree(pid)
    tree.find_children()
    while tree.resident_bytes() < WRAPPER_BYTES and len(children := tree.process.children()) == 1:
        tree = ProcessTree(children[0].pid)
        tree.find_children()
    return tree


def find_process(pid: int) -> psutil.Process | None:
    """The process, or None where there is none that runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def write_report(
    watch: ProcessWatch, out: Path, command: str | None = None, pid: int | None = None, exit_status: int | None = None
) -> bool:
    """memory_report.json and memory_report.png in the folder `out`; where they cannot be written, a warning. Returns whether
    they were."""
    content = {"command": command, "pid": pid, "exit_status": exit_status} | watch.as_report()
    try:
        write_text(out / REPORT, json.dumps(content, indent=1))
        draw_curve(watch, out / "memory_report.png")
    except OSError as error:
        log.warning("%s: no report can be written (%s)", out, error)
        return False
    return True


def draw_curve(watch: ProcessWatch, file: Path) -> None:
    """Host memory over time, that of the children on top of the process's, and a line where a leak was reported."""
    minutes = [point["seconds"] / 60 for point in watch.curve]
    host = [point["host_bytes"] / GB for point in watch.curve]
    workers = [point["workers_bytes"] / GB for point in watch.curve]
    from matplotlib.figure import Figure  # slow to load

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    axes.stackplot(minutes, host, workers, labels=("process", "its children, with what they share"), alpha=0.6)
    for seconds in watch.warned_seconds:
        axes.axvline(seconds / 60, color="red")
    axes.set(xlabel="minutes", ylabel="resident memory, GB")
    axes.set_title(watch.reports[-1].message(watch.unit).split(";")[0] if watch.reports else "no leak found", fontsize=10)
    axes.legend(loc="upper left")
    save_figure(figure, file)


@dataclass(frozen=True)
class WatchSettings:
    """How to watch, and where the report goes; tells_report: whether the log names it."""

    out: Path
    run_dir: Path | None = None
    interval_s: float = 1.0
    warm_up_s: float = 60.0
    clean_up: bool = False
    tells_report: bool = True

    def report(self, watch: ProcessWatch, **about: object) -> None:
        """Write the last report, and name it; `about` as `write_report` takes it."""
        if write_report(watch, self.out, **about) and self.tells_report:
            log.info("memory: %s", self.out / "memory_report.png")


def watch_command(command: list[str], settings: WatchSettings) -> int:
    """Run the command and watch it. Returns its exit status, 128 + the signal's number where one ended it, as shells do.

    In the folder of a run that ended before a sample could be judged, as by an error in its config, the report of an earlier
    session stays, and a folder that the run did not make is not made either. Raises GrafError where the command cannot start.
    """
    in_run = settings.out == settings.run_dir
    if not in_run:
        settings.out.mkdir(parents=True, exist_ok=True)
    with started(command) as (process, _):
        watch = ProcessWatch(process.pid, settings.run_dir, settings.warm_up_s)
        try:
            observe(process, watch, settings)
        finally:
            status = process.wait()
    if not watch.judged_samples:
        log.warning("memory: too short to tell a leak, or no rows in %s", watch.log.path if watch.log else "the first minute")
    if watch.judged_samples or not in_run or (settings.out.exists() and not (settings.out / REPORT).exists()):
        settings.report(watch, command=as_typed(*command), exit_status=status)
    return exit_status(status)


def watch_pid(pid: int, settings: WatchSettings) -> None:
    """Watch a process until it ends or Ctrl-C. Raises GrafError where there is none, or none that may be watched."""
    process = find_process(pid)
    if process is None:
        raise GrafError(f"--pid {pid}: no such process runs here")
    try:
        watch = ProcessWatch(pid, settings.run_dir, settings.warm_up_s)
        with contextlib.suppress(KeyboardInterrupt):
            observe(process, watch, settings)
    except psutil.NoSuchProcess:
        raise GrafError(f"--pid {pid}: the process has ended") from None
    except psutil.AccessDenied:
        raise GrafError(f"--pid {pid}: its memory is not ours to read; it is another user's process") from None
    settings.report(watch, pid=pid)


def observe(process: psutil.Process, watch: ProcessWatch, settings: WatchSettings) -> None:
    """Sample until the process has ended, and warn of leaks as they show."""
    cleans_up = settings.clean_up
    with contextlib.suppress(psutil.NoSuchProcess):
        while find_process(process.pid) is not None:
            for report in watch.sample():
                if report.source not in watch.reported_by_run:
                    log.warning("%s", report.message(watch.unit))
                if cleans_up:
                    cleans_up = force_clean_up(process, watch)
                write_report(watch, settings.out)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(settings.interval_s)


def force_clean_up(process: psutil.Process, watch: ProcessWatch) -> bool:
    """Ask the training run to clean up, and log what it gave back. Returns whether that can be done here."""
    if not hasattr(signal, "SIGUSR2"):
        log.warning("clean-up: Windows has no SIGUSR2, the signal that asks a run to clean up")
        return False
    if process_status("SigCgt") is None:
        by_hand = f"`kill -USR2 {watch.tree.process.pid}` asks a run for it, and ends other programs"
        log.warning("clean-up: only Linux tells whether a process handles SIGUSR2, so it is not sent; %s", by_hand)
        return False
    before = watch.tree.read()["host_bytes"]
    asked = request_clean_up(process)
    if asked is None:
        log.warning("clean-up: nothing in the command handles SIGUSR2 yet")
        return True
    time.sleep(CLEAN_UP_S)
    log.info("clean-up: process %d gave back %.0f MB", asked, (before - watch.tree.read()["host_bytes"]) / MB)
    return True


def exit_status(status: int) -> int:
    """A process's status as shells tell it: 128 + the signal's number where one ended it."""
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[tuple[psutil.Popen, list[int]]]:
    """Start a command, and forward signals that would end this program to it, which may have something to save. Yields its
    process and the list of the signals that came.

    The command has a session of its own, or Ctrl-C in a terminal would reach it twice. Raises GrafError where it cannot start.
    """
    process: psutil.Popen | None = None
    received: list[int] = []
    early: list[int] = []  # came before there was a process to send them to

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        if process is None:
            early.append(number)
        else:
            send(number)

    def send(number: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, ValueError):  # Windows' console sends Ctrl-C to the command itself
            process.send_signal(number)

    with heard_by(forward):  # the command ignores what this one does
        try:
            process = psutil.Popen(command, start_new_session=True)
        except OSError as error:
            raise GrafError(f"{command[0]}: cannot be started ({error.strerror}); it is run without a shell") from None
        for number in early:
            send(number)
        yield process, received


def request_clean_up(process: psutil.Process) -> int | None:
    """Ask a process to clean up, or its first descendant that handles the signal, such as train.py started by a shell.

    Returns the process id asked; None where no process handles the signal, which would kill it. Only Linux can tell.
    """
    for candidate in (process, *process.children(recursive=True)):
        caught = int(process_status("SigCgt", candidate.pid) or "0", 16)  # a bit per signal that has a handler
        if caught >> (signal.SIGUSR2 - 1) & 1:
            candidate.send_signal(signal.SIGUSR2)
            return candidate.pid
    return None
