"""What a run keeps of itself while it trains, each at its cadence: rows, samples, videos, metrics and checkpoints."""

import logging
from collections.abc import Callable
from functools import partial

from graf.checkpoints.checkpoint import backup_name
from graf.checkpoints.run_folder import save, save_newest
from graf.data import Views
from graf.errors import CheckpointWriteError, GrafError
from graf.memory.monitor import MemoryMonitor
from graf.memory.snapshot import write_snapshot
from graf.runtime.cleanup import clean_up
from graf.runtime.console import progress
from graf.runtime.files import not_worth_a_run
from graf.runtime.guard import Done, OutOfMemory, RanOut, attempt
from graf.training.fid import evaluate
from graf.training.health import CollapseWatch
from graf.training.logging import RunLog
from graf.training.samples import write_rotation, write_samples
from graf.training.state import TrainState

from torch import Tensor

log = logging.getLogger("graf")

EARLY_STEPS = 500  # in which samples are written four times as often
MEMORY_LINE_EVERY = 100  # steps


class Keeper:
    """`keep` a step's scalars, and do whatever its number is the time for. A context that closes the log and the bar.

    Of a run's processes only the first writes; metrics are measured by all of them together.
    """

    def __init__(self, state: TrainState, dataset: Views, monitor: MemoryMonitor, memory_snapshot: bool):
        self.state, self.dataset, self.monitor, self.memory_snapshot = state, dataset, monitor, memory_snapshot
        self.training, self.run_dir, self.first = state.config.training, state.config.run_dir, state.processes.first
        self.log = RunLog(self.run_dir, state.config, state.step) if self.first else None
        name, total = state.config.expname, self.training.max_steps
        self.bar = progress(total=total, initial=state.step, desc=name, unit="step", disable=not self.first)
        self.watch = CollapseWatch()
        self.numbers: dict[str, float] = {}  # of the newest row
        self.measured: dict = {}  # FID and KID after the newest step; empty where it is not a step that is measured
        self.saved_step = state.step
        self.checkpoint_due = False

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.log is not None:
            self.log.close()

    def keep(self, stats: dict[str, Tensor]) -> None:
        """The state has taken a step, and these are its scalars."""
        state, training = self.state, self.training
        self.bar.update()
        self.measured = {}
        self.monitor.step_done(state.step)
        if self.first and due(state.step, training.print_every):
            self._print(stats)  # first, so that a checkpoint of the best, too, knows of the step's losses
        last = state.step == training.max_steps
        if due(state.step, training.fid_every) or (last and training.fid_every):
            self._measure()
        if due(state.step, training.save_every):
            state.require_same_everywhere()
        if self.first:
            self._write()
        every = state.config.memory.empty_cache
        if isinstance(every, int) and due(state.step, every):
            clean_up()

    def finish(self) -> None:
        """The last checkpoint, where there is none of this step. Raises OutOfMemory where memory does not suffice for it."""
        if not self.first or self.saved_step == self.state.step:
            return
        if not self.during("checkpoint", self._save):
            raise OutOfMemory(f"step {self.state.step}: no memory for a checkpoint; the one before it is as it was")

    def during(self, phase: str, work: Callable[[], None], attempt_work: Callable = attempt) -> bool:
        """Do the work between two steps, told apart by the monitor, and give back the memory that it took.

        Where memory runs out the work is begun anew, once, and then left: no run ends for it. Returns whether it is done.
        """
        with self.monitor.phase(phase):
            outcome = _tried(work, attempt_work)
            if isinstance(outcome, RanOut):
                clean_up()
                outcome = _tried(work, attempt_work)
            done = isinstance(outcome, Done)
            if not done:
                log.warning("step %d: out of memory twice (%s); no %s this time", self.state.step, outcome.said, phase)
            if not done or self.state.config.memory.empty_cache == "phases":
                clean_up()
        return done

    def _write(self) -> None:
        state, training, step = self.state, self.training, self.state.step
        if due(step, MEMORY_LINE_EVERY):
            log.info("step %d: %s", step, self.monitor.line())
        self.checkpoint_due |= due(step, training.save_every)
        if self.checkpoint_due and not state.bad_steps:  # amid bad ones the last good checkpoint is worth more
            self.checkpoint_due = False
            self.during("checkpoint", self._save)
        if due(step, training.backup_every):
            self.during("checkpoint", lambda: save(self.run_dir / backup_name(step), state.checkpoint(), self.numbers))
        if due(step, training.sample_every) or (step <= EARLY_STEPS and due(step, -(-training.sample_every // 4))):
            self.during("sample", lambda: self.log.scalars(write_samples(state), step))
        if due(step, training.video_every):
            self.during("video", partial(write_rotation, state))

    def _save(self) -> None:
        save_newest(self.state.checkpoint(), self.numbers)
        self.saved_step = self.state.step
        self._snapshot()

    def _measure(self) -> None:
        """By all processes together, which either all have the metrics or all go on without."""
        state = self.state

        def work() -> None:
            self.measured = evaluate(state, self.dataset)
            if self.measured:
                self.log.evaluation(self.measured, state.step)

        try:
            self.during("metrics", work, partial(attempt, processes=state.processes))
        except Exception as error:
            # The weights are whole; of many processes, another one's trouble may look like anything here.
            if not state.bad_steps and not isinstance(error, CheckpointWriteError):
                try:
                    self.finish()
                except GrafError as trouble:
                    log.warning("%s", trouble)
            raise

    def _print(self, stats: dict[str, Tensor]) -> None:
        self.numbers = self.log.scalars(stats | self.state.gradient_scales(), self.state.step)
        self.state.note_losses(self.numbers)
        self.watch.look(self.numbers, self.state.step)
        self.log.memory(self.monitor.latest(), self.state.step)
        shown = {name: f"{self.numbers[name]:.3f}" for name in ("loss_d", "loss_g", "opacity")}
        self.bar.set_postfix(shown, refresh=False)

    def _snapshot(self) -> None:
        if self.memory_snapshot:
            with not_worth_a_run("memory snapshots"):
                log.info("memory snapshot: %s", write_snapshot(self.run_dir / "memory", self.state.step))


def _tried(work: Callable[[], None], attempt_work: Callable) -> Done[None] | RanOut:
    """What came of the work, be it that memory does not suffice for the smallest pieces there are."""
    try:
        return attempt_work(work)
    except OutOfMemory as error:
        return RanOut(str(error))


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps is to be done now; never where `every` is 0."""
    return every > 0 and step % every == 0
