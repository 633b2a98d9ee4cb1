"""Keeps a training run alive between its steps: optional work, checkpoints, and an end in time."""

import logging
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

from graf.errors import CheckpointWriteError
from graf.runtime.device import clean_up
from graf.runtime.interruption import Interruption
from graf.runtime.out_of_memory import OutOfMemory, first_line, is_out_of_memory
from graf.runtime.processes import ALONE, Processes
from graf.runtime.retry import attempt

log = logging.getLogger("graf")

T = TypeVar("T")


class GuardedRun(Protocol):
    """The state of a training run, as far as a Guard needs it."""

    step: int
    bad_steps: int  # in a row
    savable: bool  # False while weights may be half updated
    processes: Processes

    def require_same_everywhere(self) -> None: ...


class Guard:
    """Keeps a training run alive between its steps: optional work, checkpoints, and an end in time.

    A context around the steps: when they end, by themselves or by an error, a last checkpoint is saved. A second signal, which
    is no error, ends them at once.

    save: writes the newest checkpoint. empty_caches: whether memory is given back after optional work. Only the first process
    of a run writes.
    """

    def __init__(self, run: GuardedRun, interruption: Interruption, save: Callable[[], None], empty_caches: bool):
        self.run, self.interruption, self.save, self.empty_caches = run, interruption, save, empty_caches
        self._start_here()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Save a last checkpoint. Raises OutOfMemory where the run ended because memory ran out."""
        if error is None:
            self.finish()
        elif isinstance(error, Exception) and self.run.savable:
            ran_out = is_out_of_memory(error)
            if ran_out:
                traceback.clear_frames(trace)  # a checkpoint needs memory
            self._finish_before(error)
            if ran_out:
                where = f"step {self.run.step}: out of memory ({first_line(error)})"
                raise (error if isinstance(error, OutOfMemory) else OutOfMemory(where)) from None

    def roll_back(self, go_back: Callable[[], None]) -> None:
        """Take the run back to an earlier checkpoint. If that fails, none is saved: the weights may be half updated."""
        self.run.savable = False
        go_back()
        self._start_here()

    def _start_here(self) -> None:
        """Count this step as saved: the run starts here, or has just loaded a checkpoint."""
        self.first_step = self.saved_step = self.run.step
        self.owes_checkpoint, self.run.savable = False, True

    def should_end(self) -> bool:
        """Whether the run is to end after this step; all processes get the same answer."""
        self.interruption.began |= self.run.step > self.first_step
        return self.run.processes.should_end(self.interruption)

    def optional(self, name: str, work: Callable[[], T], otherwise: T | None = None) -> T | None:
        """Return the work's result, in the first process, which alone does it; `otherwise` in the others.

        Out of memory it is retried once, then skipped with `otherwise`: no run ends for it.
        """
        return self._twice(name, work, otherwise, ALONE) if self.run.processes.first else otherwise

    def optional_together(self, name: str, work: Callable[[], T], otherwise: T) -> T:
        """Run optional work in all processes: all finish it, or all go on with `otherwise`."""
        return self._twice(name, work, otherwise, self.run.processes)

    def checkpoint(self) -> None:
        """Save a checkpoint; amid bad steps none, as the last good one is worth more: it is owed until a step is good."""
        self.owes_checkpoint = self.run.bad_steps > 0
        if not self.owes_checkpoint:
            self.run.require_same_everywhere()
            self.optional("checkpoint", self._save)

    def finish(self) -> None:
        """Save a last checkpoint, unless there is one of this step. Raises OutOfMemory where memory does not suffice."""
        if self.run.processes.first and self.saved_step != self.run.step:
            self.optional("checkpoint", self._save)
            if self.saved_step != self.run.step:
                last = f"the last one, of step {self.saved_step}, is intact, and --resume auto continues from it"
                left = last if self.saved_step else "the run has no checkpoint yet"
                raise OutOfMemory(f"step {self.run.step}: no memory for a checkpoint; {left}")

    def _finish_before(self, error: Exception) -> None:
        """`finish` before an error ends the run: trouble with the checkpoint is logged and does not hide that error.

        No other process is waited for, as the error may be that it is gone. Nothing is written amid bad steps, nor again if
        writing has just failed.
        """
        saved_step = self.saved_step
        if self.run.bad_steps or isinstance(error, CheckpointWriteError):
            return
        try:
            self.finish()
        except Exception as trouble:
            log.warning("%s", trouble)
        if self.saved_step != saved_step:
            log.info("step %d: saved, as an error ends the run; --resume auto continues from there", self.saved_step)

    def _save(self) -> None:
        self.save()
        self.saved_step = self.run.step

    def _twice(self, name: str, work: Callable[[], T], otherwise: T, processes: Processes) -> T:
        for _ in range(2):
            with attempt(processes, even_smallest=True) as outcome:
                result = work()
            if not outcome.ran_out:
                break
            clean_up()
        else:
            result = otherwise
            log.warning("step %d: out of memory twice (%s); no %s this time", self.run.step, outcome.ran_out, name)
        if self.empty_caches:
            clean_up()
        return result
