"""The training run of torture.py: restarted with the same arguments, and watched through its log and metrics.jsonl.

Every start is forked from this process, which has imported the package but computed nothing: imports are most of a start, and
nothing of what is tested happens in them. Linux only.
"""

import contextlib
import importlib
import itertools
import logging
import multiprocessing
import os
import re
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from graf.data.loader import BatchReader, Read
from graf.runtime.console import run_script
from graf.runtime.files import json_rows

import torch

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {name: runpy.run_path(str(ROOT / name))["main"] for name in ("train.py", "train_pose.py")}
for module in ("graf.commands.train", "graf.commands.train_pose"):  # which they would import at each call
    importlib.import_module(module)

FORK = multiprocessing.get_context("fork")
LONGEST_WAIT_S = 600
POLL_S = 0.05
WRITTEN_BEFORE_HALT = 2**16  # bytes of what torch.save writes


class NotSurvived(Exception):
    """The run did not do what it has to."""


@dataclass
class Subject:
    """A run by these arguments of a program, in `run_dir`, on the images in `folder`; its log is beside run_dir."""

    arguments: Sequence[str]
    run_dir: Path
    folder: Path
    program: str = "train.py"
    process: multiprocessing.Process | None = None
    log_start: int = 0  # of this process's lines in the log
    resumed_step: int = 0
    old_rows: int = 0  # metrics.jsonl before the newest process has dropped the rows of steps that it takes again

    @property
    def log_file(self) -> Path:
        return self.run_dir.parent / "log.txt"

    @property
    def halt(self) -> Path:
        return self.run_dir.parent / "halt"

    @property
    def deadly(self) -> Path:
        """The file that lets each loader process die of its next batch while it exists."""
        return self.run_dir.parent / "deadly"

    def start(self) -> None:
        """Start the command, without waiting for it to train."""
        assert not self.alive
        self.log_file.touch()
        self.log_start, self.old_rows = self.log_file.stat().st_size, self._rows_written()
        self.process = FORK.Process(target=_train, args=(self.program, self.arguments, self.log_file, self.halt, self.deadly))
        self.process.start()

    def start_training(self) -> None:
        """Start the command and wait until it trains. Raises NotSurvived where it does not come to that."""
        self.start()
        self.wait(lambda: "training on " in self.said())
        self.resumed_step = self.continued_from() or 0

    def train_until(self, step: int) -> None:
        """Have it take at least one step, and reach this one. Raises NotSurvived where it ends before that."""
        if not self.alive:
            self.start_training()
        step = max(step, self.resumed_step + 1)
        self.wait(lambda: self._rows_written() != self.old_rows and self.step() >= step)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds. Raises NotSurvived where the process ends first, or writes nothing for long."""
        written, deadline = None, 0.0
        while not condition():
            if not self.alive and not condition():
                raise NotSurvived(f"it ended with status {self.process.exitcode}")
            if written != (now := (self.step(), len(self.said()))):
                written, deadline = now, time.monotonic() + LONGEST_WAIT_S
            if time.monotonic() > deadline:
                raise NotSurvived(f"it wrote nothing for {LONGEST_WAIT_S} s")
            time.sleep(POLL_S)

    def end(self, status: int) -> None:
        """Wait for it to end by itself. Raises NotSurvived where it leaves another status, or a traceback."""
        self.wait(lambda: not self.alive)
        if self.process.exitcode != status:
            raise NotSurvived(f"its exit status is {self.process.exitcode}, not {status}")
        if "Traceback" in self.said():
            raise NotSurvived("it ended with a traceback")

    def kill(self, whole_group: bool = False) -> None:
        """SIGKILL, to its workers too where asked for; nothing where it has ended."""
        if self.alive:
            (os.killpg if whole_group else os.kill)(self.process.pid, signal.SIGKILL)
            self.process.join()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def said(self) -> str:
        """The log of the newest process; empty before it has one."""
        with contextlib.suppress(FileNotFoundError), self.log_file.open(encoding="utf-8", errors="replace") as file:
            file.seek(self.log_start)
            return file.read()
        return ""

    def continued_from(self) -> int | None:
        """The step that the newest process continues from by its log, 0 for a new run; None before the log has it."""
        told = re.search(r"continuing .* from step (\d+)", self.said())
        return int(told[1]) if told else 0 if "training on " in self.said() else None

    def rows(self) -> dict[int, dict]:
        """The row of each step in metrics.jsonl."""
        return {row["step"]: row for row in json_rows(self._rows.read_text(encoding="utf-8").splitlines())}

    def step(self) -> int:
        """The last step in metrics.jsonl, 0 for none."""
        with contextlib.suppress(OSError):
            last_first = reversed(self._rows.read_text(encoding="utf-8").splitlines())  # it may be writing the last
            return next((row["step"] for row in json_rows(last_first)), 0)
        return 0

    @property
    def _rows(self) -> Path:
        return self.run_dir / "metrics.jsonl"

    def _rows_written(self) -> int:
        """When the file was last written to, by its drop of rows first."""
        with contextlib.suppress(OSError):
            return self._rows.stat().st_mtime_ns
        return 0


def _train(program: str, arguments: Sequence[str], log_file: Path, halt: Path, deadly: Path) -> None:
    os.setsid()
    with log_file.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    logging.getLogger("graf").handlers.clear()
    _halt_where_asked(halt)
    _have_loaders_die(deadly)
    sys.argv = [program, *arguments]
    run_script(PROGRAMS[program])


def _halt_where_asked(halt: Path) -> None:
    """Hold the process at the n-th of its changes to files after `halt`, with n in it, has been put there.

    Once it is held, the file is renamed to halt.reached.
    """
    remaining = itertools.repeat(0)

    def reached() -> bool:
        nonlocal remaining
        if halt.exists() and not isinstance(remaining, itertools.count):
            remaining = itertools.count(int(halt.read_text()), -1)
        return next(remaining) == 1

    def hold() -> None:
        os.rename(halt, halt.with_suffix(".reached"))
        time.sleep(LONGEST_WAIT_S)
        os._exit(1)

    def held(real: Callable) -> Callable:
        def call(*args, **kwargs):
            if reached():
                hold()
            return real(*args, **kwargs)

        return call

    def save_held(content: dict, file: BinaryIO) -> None:
        if reached():  # in the middle of the file
            file.write(bytes(WRITTEN_BEFORE_HALT))
            file.flush()
            hold()
        save(content, file)

    save = torch.save
    os.fsync, os.replace, os.link, torch.save = held(os.fsync), held(os.replace), held(os.link), save_held


def _have_loaders_die(deadly: Path) -> None:
    """Have each loader process die of the first batch that it reads while there is this file."""

    def read_or_die(reader: BatchReader, keys: list) -> Read:
        if deadly.exists() and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(reader, keys)

    read, BatchReader.__getitem__ = BatchReader.__getitem__, read_or_die
