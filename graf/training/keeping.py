"""What a run keeps of itself while it trains, each at its cadence: rows, samples, videos, metrics and checkpoints."""

import contextlib
import logging
from collections.abc import Iterator

from torch import Tensor

from graf.console import progress
from graf.data import Views
from graf.files import not_worth_a_run
from graf.memory.cleanup import clean_up
from graf.memory.monitor import MemoryMonitor
from graf.memory.snapshot import write_snapshot
from graf.training.checkpoint import backup_name
from graf.training.checkpoint_files import save, save_newest
from graf.training.collapse import CollapseWatch
from graf.training.logging import RunLog
from graf.training.samples import evaluate, write_rotation, write_samples
from graf.training.state import TrainState

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
        self.saved_step = state.step

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
        self.monitor.step_done(state.step)
        if due(state.step, training.fid_every):
            with self.phase("metrics"):
                result = evaluate(state, self.dataset)
                if self.first:
                    self.log.evaluation(result, state.step)
        if due(state.step, training.save_every_steps):
            state.require_same_everywhere()
        if self.first:
            self._write(stats)
        every = state.config.memory.empty_cache
        if isinstance(every, int) and due(state.step, every):
            clean_up()

    def finish(self) -> None:
        """The last checkpoint, where there is none of this step."""
        if self.first and self.saved_step < self.state.step:
            save_newest(self.state, self.numbers)
            self._snapshot()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done between steps, told apart by the monitor; the memory that it took is given back."""
        with self.monitor.phase(name):
            yield
            if self.state.config.memory.empty_cache == "phases":
                clean_up()

    def _write(self, stats: dict[str, Tensor]) -> None:
        state, training, step = self.state, self.training, self.state.step
        if due(step, training.print_every):
            self._print(stats)
        if due(step, MEMORY_LINE_EVERY):
            log.info("step %d: %s", step, self.monitor.line())
        if due(step, training.save_every_steps) and not state.bad_steps:  # amid bad ones the last good checkpoint is worth more
            with self.phase("checkpoint"):
                save_newest(state, self.numbers)
                self.saved_step = step
            self._snapshot()
        if due(step, training.backup_every):
            with self.phase("checkpoint"):
                save(self.run_dir / backup_name(step), state, self.numbers)
        if due(step, training.sample_every) or (step <= EARLY_STEPS and due(step, -(-training.sample_every // 4))):
            with self.phase("sample"):
                self.log.scalars(write_samples(state), step)
        if due(step, training.video_every):
            with self.phase("video"):
                write_rotation(state)

    def _print(self, stats: dict[str, Tensor]) -> None:
        self.numbers = self.log.scalars(stats, self.state.step)
        self.state.note_losses(self.numbers)
        self.watch.look(self.numbers, self.state.step)
        self.log.memory(self.monitor.latest(), self.state.step)
        shown = {name: f"{self.numbers[name]:.3f}" for name in ("loss_d", "loss_g", "opacity")}
        self.bar.set_postfix(shown, refresh=False)

    def _snapshot(self) -> None:
        if self.memory_snapshot:
            with not_worth_a_run("memory snapshots"):
                log.info("memory snapshot: %s", write_snapshot(self.run_dir / "memory", self.state.step))


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps is to be done now; never where `every` is 0."""
    return every > 0 and step % every == 0
