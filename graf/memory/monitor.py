"""Monitors a run's memory while it trains: a row every few seconds, and a warning about leaks."""

import contextlib
import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from graf.memory.leaks import LeakDetector, LeakReport
from graf.memory.process_tree import ProcessTree
from graf.memory.readings import CpuLoad, Gpu, read_allocator, read_heat
from graf.memory.snapshot import Census, take_census
from graf.runtime.files import append_line, json_rows
from graf.runtime.limits import GB, memory_available

import torch

log = logging.getLogger("graf")

LONGEST_ROW = 2**16  # bytes of a row of memory.jsonl, at most
CPU_SHARE = 0.005  # of one core, at most: half for the rows, half for the readings after steps
UNIQUE_EVERY = 12  # rows, for what costs the kernel a walk over all pages
CENSUS_STEPS = 20  # objects alive after these are taken as the run's normal ones
SUSPECTS = 3  # groups of tensors, and types of objects, that a report names


class MemoryMonitor:
    """Memory of a run: rows into a file, values for plots, and leak reports, all at under 0.5 % of a core.

    A context: entering it starts a thread that writes a row of JSON every interval_s seconds, or none where that is 0. The
    loop calls `step_done` after each step and wraps what else it does in `phase`, so that growth can be told apart by phase.
    Errors of the monitor never reach the training; the first of each kind is logged.
    """

    def __init__(self, path: Path, interval_s: float, device: torch.device, budget_bytes: int = 0):
        """path: of the rows. budget_bytes: of the device's memory, the limit that reports count down to; 0 for the system's."""
        self.path, self.interval_s, self.device, self.budget_bytes = path, interval_s, device, budget_bytes
        self.reports: list[LeakReport] = []
        self._tree, self._gpu = ProcessTree(), Gpu(device)
        self._cpu = CpuLoad(self._tree)
        self._detectors: dict[str, LeakDetector] = {}
        self._step, self._phase, self._steps_seen = 0, "train", 0
        self._latest: dict[str, float] = {}
        self._census: Census | None = None
        self._next_reading, self._started = 0.0, time.monotonic()
        self._cpu_s = 0.0  # that the monitor took
        self._faults: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory monitor", daemon=True)

    def __enter__(self) -> "MemoryMonitor":
        self._started = time.monotonic()
        if self.interval_s > 0:
            with self._harmless("a row cannot be written"):
                drop_cut_line(self.path)
            with self._harmless("no rows are written"):
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write a last row and end the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def step_done(self, step: int) -> None:
        """Note that the run has done so many steps, and look for leaks."""
        self._step = step
        self._steps_seen += 1
        if self._steps_seen == CENSUS_STEPS:
            with self._harmless("objects cannot be counted"):
                self._census = take_census()
        if time.monotonic() >= self._next_reading:
            self._look_for_leaks()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note that the run is in this phase, such as `sample`, while the block runs."""
        outer = self._phase
        self._look_for_leaks()
        self._phase = name
        try:
            yield
        finally:
            self._look_for_leaks()
            self._phase = outer

    def latest(self) -> dict[str, float]:
        """The numbers of the latest row, for plots: bytes, and what else the name says."""
        return dict(self._latest)

    def summary(self) -> str:
        """`memory: allocated a GB, reserved r GB, host h GB`, as of now; the first two on a GPU alone.

        host is the process and what only its workers hold.
        """
        values: dict[str, float] = {}
        with self._harmless("memory cannot be read"):
            if gpu := read_allocator(self.device):
                values = {"allocated": gpu["allocated_bytes"], "reserved": gpu["reserved_bytes"]}
            values["host"] = self._tree.resident_bytes() + self._latest.get("workers_unique_bytes", 0)
        return "memory: " + (", ".join(f"{name} {n_bytes / GB:.2f} GB" for name, n_bytes in values.items()) or "unknown")

    def _look_for_leaks(self) -> None:
        """Take a reading for the detectors, in the training thread, so seldom that its cost is a small share."""
        began = time.thread_time()
        with self._harmless("memory cannot be read"):
            self._judge("host", self._tree.resident_bytes())
            if gpu := read_allocator(self.device):
                self._judge("device", gpu["allocated_bytes"])
        spent = time.thread_time() - began
        self._cpu_s += spent
        self._next_reading = time.monotonic() + pause(0, spent)

    def _judge(self, source: str, resident_bytes: int) -> None:
        if source not in self._detectors:
            on_gpu = source == "device"
            limit = self.budget_bytes if on_gpu == (self.device.type == "cuda") else 0
            if on_gpu and not limit:
                free, _ = torch.cuda.mem_get_info(self.device)
                limit = free + torch.cuda.memory_reserved(self.device)  # of which resident_bytes is a part
            self._detectors[source] = LeakDetector(source, limit or resident_bytes + memory_available())
        report = self._detectors[source].add(self._step, time.monotonic(), resident_bytes, self._phase)
        if report is None:
            return
        if self._census is not None and source != "workers":
            report = dataclasses.replace(report, suspects=tuple(take_census().grown_since(self._census, SUSPECTS)))
        self.reports.append(report)
        log.warning("%s", report.message())
        self._write({"time": time.time(), "step": self._step, "leak": report.as_row()})

    def _run(self) -> None:
        wait, row = 0.0, 0
        while not self._stop.wait(wait):
            wait = pause(self.interval_s, self._sample(unique=row % UNIQUE_EVERY == 0))
            row += 1
        self._sample(unique=False)

    def _sample(self, unique: bool) -> float:
        """Write a row. Returns the seconds of CPU time that it took."""
        began = time.thread_time()
        with self._harmless("memory cannot be sampled"):
            row = {"time": time.time(), "step": self._step, "phase": self._phase}
            if unique:
                self._tree.find_children()
            values = self._tree.read() | (self._tree.read_unique() if unique else {})
            values |= self._cpu.read() | read_heat() | read_allocator(self.device) | self._gpu.read()
            cpu_s = self._cpu_s + time.thread_time() - began
            values["monitor_cpu_share"] = cpu_s / max(time.monotonic() - self._started, self.interval_s)
            self._latest = self._latest | values
            self._write(row | values)
            self._judge("workers", values["workers_bytes"])
        spent = time.thread_time() - began
        self._cpu_s += spent
        return spent

    def _write(self, row: dict) -> None:
        with self._harmless("a row cannot be written"), self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps(row))

    @contextlib.contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        """Log the first error of each kind, and leave the block; no error of the monitor ends a run."""
        try:
            yield
        except Exception as error:
            if what not in self._faults:
                self._faults.add(what)
                log.warning("memory monitor: %s (%s: %s)", what, type(error).__name__, error)


def read_rows(path: Path) -> Iterator[dict]:
    """The rows that a monitor wrote to `path`, if any; reports of leaks, and lines that a crash cut short, are left out."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for row in json_rows(lines):
            match row:
                case {"time": int() | float(), "phase": str()}:
                    yield row


def pause(interval_s: float, spent_s: float) -> float:
    """Seconds to wait after work that took spent_s of CPU time, so that it stays within half of CPU_SHARE."""
    return max(interval_s, spent_s / (CPU_SHARE / 2))


def drop_cut_line(path: Path) -> None:
    """Cut off a last row that a crash left without its newline, so that the next row is a line of its own."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        start = max(0, file.seek(0, os.SEEK_END) - LONGEST_ROW)
        file.seek(start)
        end = file.read()
        file.truncate(start + end.rfind(b"\n") + 1)
