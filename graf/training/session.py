"""The work around a run's steps, whatever it trains: batches, guard, log, memory monitor and progress line."""

import contextlib
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from graf.camera import Labels
from graf.checkpoints.checkpoint import Checkpoint, backup_name
from graf.checkpoints.run_folder import save, save_newest
from graf.config import Cadence, RunConfig, minutes_of
from graf.data import Views, build_loader, images_on_device
from graf.memory.budget import watched_budget
from graf.memory.monitor import MemoryMonitor
from graf.memory.snapshot import write_snapshot
from graf.runtime.console import progress
from graf.runtime.device import clean_up, clean_up_on_signal
from graf.runtime.files import optional_file
from graf.runtime.guard import Guard
from graf.runtime.interruption import Interruption
from graf.runtime.limits import GB
from graf.runtime.out_of_memory import OutOfMemory, first_line, is_out_of_memory
from graf.runtime.precision import repeatable
from graf.runtime.processes import Processes
from graf.training.health import Derailed, count_bad_steps, roll_back_all
from graf.training.logging import RunLog, StatusFile
from graf.training.pace import Pace
from graf.training.state import RunState

from torch import Tensor
from tqdm import tqdm

log = logging.getLogger("graf")

MEMORY_LINE_STEPS, MEMORY_LINE_S = 100, 60.0  # between lines on memory, at least
BAR_FORMAT = "{desc} {percentage:.0f} %: step {n_fmt} of {total_fmt}, {rate_fmt}, {left}{postfix}"
MEMORY_SHOWN = {"host_bytes": "host", "reserved_bytes": "GPU"}  # the monitor's numbers: whose memory they are
T = TypeVar("T")


def due(step: int, every: int) -> bool:
    """Whether something that is done `every` so many steps is due at this step; never where `every` is 0."""
    return every > 0 and step % every == 0


class Cadences:
    """Whether work that is done every so many steps, or minutes, is due: the same answer in all processes of a run.

    waited_s: of a run that goes on, what `waited_s` was at its checkpoint."""

    def __init__(self, processes: Processes, waited_s: Mapping[str, float] = MappingProxyType({})):
        self._processes, self._began, self._last, self._waited_before_s = processes, time.monotonic(), {}, dict(waited_s)

    def due(self, name: str, step: int, every: Cadence) -> bool:
        """Whether the work of this name is due after a step. By minutes the first process's clock counts, from the start of the
        run and then from the last time it was due; not while the run is interrupted."""
        minutes = minutes_of(every)
        if minutes is None:
            self._waited_before_s.pop(name, None)
            return due(step, every)
        now = time.monotonic()
        last = self._last.setdefault(name, self._began - self._waited_before_s.get(name, 0.0))
        late = now - last >= 60 * minutes
        if not self._processes.any(late and self._processes.first):
            return False
        self._last[name] = now
        return True

    def waited_s(self) -> dict[str, float]:
        """Seconds since work that is done every so many minutes was due last."""
        now = time.monotonic()
        not_asked = {name: seconds + now - self._began for name, seconds in self._waited_before_s.items()}
        return not_asked | {name: now - last for name, last in self._last.items()}


@contextlib.contextmanager
def running(
    state: RunState,
    dataset: Views,
    interruption: Interruption,
    memory_snapshot: bool = False,
    shown: tuple[str, ...] = (),
) -> Iterator["Session"]:
    """The session of a run, around its steps; how they end and what is then saved is `graf.runtime.guard.Guard`'s.

    memory_snapshot: write what memory holds beside each checkpoint. shown: scalars beside the progress bar. Raises OutOfMemory
    where memory ran out and nothing can be made smaller.
    """
    clean_up_on_signal()
    state.require_same_everywhere()
    session, config, first = Session(state, interruption, memory_snapshot, shown), state.config, state.processes.first
    images = images_on_device(dataset, config, state.device, state.spare_bytes())  # before steps are timed
    with (
        repeatable(state.device),
        StatusFile(state) as session.status,  # its last word comes after the monitor's last row
        session.monitor,
        contextlib.closing(RunLog(config.run_dir, config, state.step, writes=first)) as session.log,
        _progress_bar(config, state.step, first) as session.progress_bar,
        session.guard,
        _steps_read(state),
        contextlib.closing(_batches(state, dataset, images)) as session.batches,
    ):
        del images  # of which the batches have the last hold, so that they are freed before a last checkpoint needs memory
        yield session


class Session:
    """The work around steps, which the loops share. Only the first process of a run writes.

    log: the rows of metrics.jsonl. numbers: the scalars of the newest step that was logged. quality: what was measured last,
    for the progress line.
    """

    log: RunLog
    status: StatusFile
    progress_bar: tqdm
    batches: Iterator[tuple[Tensor, Labels]]

    def __init__(self, state: RunState, interruption: Interruption, memory_snapshot: bool, shown: tuple[str, ...]):
        self.state, self.config, self.memory_snapshot, self.shown = state, state.config, memory_snapshot, shown
        self.numbers, self.quality = {}, ""
        self.monitor = _monitor_of(state)
        self.cadences, self._memory_told = Cadences(state.processes, state.waited_s), time.monotonic()
        self.guard = Guard(state, interruption, self._save, self.config.memory.empty_cache == "phases")
        self._seconds, self._steps = 0.0, 0  # since the last row of the log

    def goes_on(self) -> bool:
        """Whether there is another step to take; all processes get the same answer."""
        return self.state.step < self.config.training.max_steps and not self.guard.should_end()

    def next_batch(self) -> tuple[Tensor, Labels]:
        """Real images and labels of the next step."""
        self._began = time.monotonic()
        return next(self.batches)

    def roll_back(self, trouble: Derailed) -> None:
        """Go back to the last good checkpoint, once in a run. Raises the trouble where there is none, and the second time,
        OutOfMemory where memory does not suffice for it."""
        traceback.clear_frames(trouble.__traceback__)  # they hold the step's tensors, and the way back needs memory
        trouble.__context__ = None
        try:
            self.guard.roll_back(partial(roll_back_all, self.state, trouble))
        except Exception as error:
            if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
                raise
            raise OutOfMemory(f"out of memory on the way back to the last good checkpoint ({first_line(error)})") from None
        self.log.continue_after(self.state.step)
        self.numbers, self._seconds, self._steps = {}, 0.0, 0

    def step_done(self) -> None:
        """Count a step that was taken."""
        self._seconds, self._steps = self._seconds + time.monotonic() - self._began, self._steps + 1
        self.monitor.step_done(self.state.step)
        self.progress_bar.update(self.state.step - self.progress_bar.n)

    def log_step(self, stats: dict[str, Tensor]) -> dict[str, float]:
        """Write a row of the step's scalars, which are returned as numbers."""
        state = self.state
        self.numbers = self.log.scalars(stats | state.gradient_scales(), state.step)
        self.log.memory(self.monitor.latest(), state.step)
        self.log.speed(self._seconds / self._steps, state.step)
        self.status.update(self._seconds, self._steps, self.numbers)
        self._seconds, self._steps = 0.0, 0
        state.note_losses(self.numbers)
        return self.numbers

    def optional(self, phase: str, work: Callable[[], T], otherwise: T | None = None) -> T | None:
        """Work of the first process alone; `otherwise` where memory runs out twice, and in the other processes."""
        with self.monitor.phase(phase):
            return self.guard.optional(phase, work, otherwise)

    def optional_together(self, phase: str, work: Callable[[], T], otherwise: T) -> T:
        """Run work in all processes; if memory runs out twice in one, all go on with `otherwise`."""
        with self.monitor.phase(phase):
            return self.guard.optional_together(phase, work, otherwise)

    def due(self, name: str) -> bool:
        """Whether the work of training's key `name` is due after this step."""
        return self.cadences.due(name, self.state.step, getattr(self.config.training, name))

    def save_what_is_due(self) -> None:
        """The newest checkpoint and backups, as often as the config says."""
        saves, keeps = self.due("save_every") or self.guard.owes_checkpoint, self.due("backup_every")
        if saves or keeps:
            count_bad_steps(self.state)  # in all processes, which decide alike
        if saves:
            self.guard.checkpoint()
        if keeps and not self.state.bad_steps:  # roll_back would skip such a backup
            self.optional("checkpoint", self._save_backup)

    def tidy_up(self) -> None:
        """End a step: update the progress line, log memory, empty the cache when it is due."""
        step, every = self.state.step, self.config.memory.empty_cache
        if due(step, self.config.training.print_every):
            text = progress_text(self.state, self.numbers, self.shown, self.quality, self.monitor)
            self.progress_bar.set_postfix_str(text, refresh=False)
        if due(step, MEMORY_LINE_STEPS) and time.monotonic() - self._memory_told >= MEMORY_LINE_S:
            self._memory_told = time.monotonic()
            log.info("step %d: %s", step, self.monitor.summary())
        if isinstance(every, int) and due(step, every):
            clean_up()

    def _save(self) -> None:
        with self.monitor.phase("checkpoint"):
            save_newest(self._checkpoint(), self.numbers)
            if self.memory_snapshot:
                with optional_file("memory snapshots"):
                    log.info("memory snapshot: %s", write_snapshot(self.config.run_dir / "memory", self.state.step))

    def _save_backup(self) -> None:
        save(self.config.run_dir / backup_name(self.state.step), self._checkpoint(), self.numbers)

    def _checkpoint(self) -> Checkpoint:
        self.state.waited_s = self.cadences.waited_s()
        return self.state.checkpoint()


@contextlib.contextmanager
def advised(advise: Callable[[OutOfMemory], OutOfMemory]) -> Iterator[None]:
    """An out-of-memory that ends the run comes with what to do about it."""
    try:
        yield
    except OutOfMemory as error:
        raise advise(error) from None


@contextlib.contextmanager
def _steps_read(state: RunState) -> Iterator[None]:
    """Read the numbers of the newest steps when the block ends, even by an error, before a last checkpoint is saved."""
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # a device that fails: the error that ended the block is raised
            count_bad_steps(state)


def _monitor_of(state: RunState) -> MemoryMonitor:
    """The memory monitor, which writes rows in the first process alone."""
    memory, first = state.config.memory, state.processes.first
    path, interval_s = (state.config.run_dir / "memory.jsonl", memory.interval_s) if first else (Path(os.devnull), 0)
    return MemoryMonitor(path, interval_s, state.device, watched_budget(memory, state.device))


def progress_text(
    state: RunState, numbers: dict[str, float], names: tuple[str, ...], quality: str, monitor: MemoryMonitor
) -> str:
    """The progress line's text beside steps: images seen, losses, measurements, memory."""
    images = f"{state.images_seen:,} images"
    values = (f"{name} {numbers[name]:.3f}" for name in names if name in numbers)
    held = monitor.latest()
    memory = (f"{owner} {held[name] / GB:.2f} GB" for name, owner in MEMORY_SHOWN.items() if name in held)
    return ", ".join(filter(None, (images, *values, quality, *memory)))


class StepsBar(tqdm):
    """A run's progress: its pace, and the time until the last step for which this holds."""

    def __init__(self, *args: Any, config: RunConfig, initial: int, **options: Any):
        self._pace = Pace(config, initial)
        super().__init__(*args, total=config.training.max_steps, desc=config.expname, initial=initial, unit="step", **options)

    def update(self, n: float = 1) -> bool | None:
        self._pace.note(self.n + n)
        return super().update(n)

    @property
    def format_dict(self) -> dict[str, Any]:
        rate, until = self._pace.steps_per_s, self._pace.holds_until
        left = self.format_interval((until - self.n) / rate) if rate else "?"
        shown = {"rate": rate or 0.0, "left": f"{left} left" if until == self.total else f"{left} to step {until}"}
        return super().format_dict | shown  # tqdm shows a rate of 0 as unknown


def _progress_bar(config: RunConfig, step: int, shown: bool) -> tqdm:
    return progress(bar=StepsBar, config=config, initial=step, disable=not shown, bar_format=BAR_FORMAT)


def _batches(state: RunState, dataset: Views, images: Tensor | None) -> Iterator[tuple[Tensor, Labels]]:
    """Real images and labels for the state's current step, also after it was rolled back to an earlier one; images: all of
    them, where they are on the device."""
    processes = state.processes
    while True:
        step = state.step
        loader = build_loader(dataset, state.config, state.device, step, processes.rank, processes.world_size, images)
        with contextlib.closing(loader):
            while state.step == step:
                yield next(loader)
                step += 1
