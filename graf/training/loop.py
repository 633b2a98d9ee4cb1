"""The training loop: take a step, then whatever is due after it (logging, metrics, checkpoint, samples), until the run ends."""

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from graf.camera import Labels
from graf.checkpoints.checkpoint import backup_name
from graf.checkpoints.run_folder import save, save_newest
from graf.config import RunConfig
from graf.data import Views, build_loader
from graf.memory.budget import watched_budgets
from graf.memory.monitor import MemoryMonitor
from graf.memory.snapshot import write_snapshot
from graf.runtime.cleanup import clean_up, install_signal_handler
from graf.runtime.console import progress
from graf.runtime.files import not_worth_a_run
from graf.runtime.guard import Guard
from graf.runtime.interruption import Interruption
from graf.runtime.limits import GB
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.precision import repeatable
from graf.training.fid import evaluate
from graf.training.health import CollapseWatch, Derailed, roll_back_all, with_advice
from graf.training.logging import RunLog
from graf.training.samples import sheet_path, write_rotation, write_samples
from graf.training.state import RunState, TrainState
from graf.training.steps import train_step

from torch import Tensor
from tqdm import tqdm

log = logging.getLogger("graf")

MEMORY_LINE_EVERY = 100  # steps
LINE = "{desc} {percentage:.0f} %: step {n_fmt} of {total_fmt}, {rate_fmt}, {remaining} left{postfix}"
MEMORY_SHOWN = {"host_bytes": "host", "reserved_bytes": "card"}  # of the monitor's numbers
EARLY_STEPS = 500  # in which sample sheets are written four times as often


class Method(Protocol):
    """What a kind of run does in the loop that is its own; `Adversarial` is a generator's, `graf.pose.step` another."""

    SHOWN: tuple[str, ...]  # scalars beside the progress bar

    def step(self, images: Tensor, labels: Labels) -> dict[str, Tensor]:
        """One step on a batch from the loader; returns its scalars, and raises as `whole_step`."""

    def look(self, numbers: dict[str, float]) -> None:
        """Look at the numbers of a step that is logged, and warn."""

    def measure(self, guard: Guard, rows: RunLog) -> dict:
        """Measure what is due after this step, before its checkpoint; returns it, {} for nothing."""

    def quality(self, measured: dict) -> str:
        """The one number of what was measured that the progress line tells, "" where there is none."""

    def write(self, guard: Guard, rows: RunLog) -> None:
        """Write what is due after this step."""

    def advised(self, error: OutOfMemory) -> OutOfMemory:
        """The error that ends the run, with what to do about it."""


def train(
    state: RunState,
    dataset: Views,
    interruption: Interruption,
    memory_snapshot: bool = False,
    method: Method | None = None,
) -> dict:
    """Train until training.max_steps or an interruption, and leave a checkpoint either way; by default a generator.

    Returns what was measured after the last step, such as FID and KID, {} for nothing. With `memory_snapshot`, what memory
    holds is written beside each checkpoint. After training.max_bad_steps consecutive non-finite steps the run is rolled back,
    once. Raises Derailed where that did not help, OutOfMemory where memory ran out and nothing can be made smaller.
    """
    config, training, first = state.config, state.config.training, state.processes.first
    install_signal_handler()
    state.require_same_everywhere()
    method = Adversarial(state, dataset) if method is None else method
    numbers, measured, quality, monitor = {}, {}, "", _monitor_of(state)
    save_run, give_back = lambda: _save(state, numbers, memory_snapshot), config.memory.empty_cache == "phases"
    guard = Guard(state, interruption, save_run, method.advised, monitor.phase, empty_caches=give_back)
    with (
        repeatable(state.device),
        monitor,
        contextlib.closing(RunLog(config.run_dir, config, state.step, writes=first)) as rows,
        _progress_line(config, state.step, first) as line,
        guard,
        contextlib.closing(_batches(state, dataset)) as batches,
    ):
        while state.step < training.max_steps and not guard.should_end():
            # A step
            images, labels = next(batches)
            try:
                stats = method.step(images, labels)
            except Derailed as trouble:
                guard.roll_back(partial(roll_back_all, state, trouble))  # raises it the second time
                rows.go_on_after(state.step)
                numbers = {}
                continue
            monitor.step_done(state.step)
            line.update(state.step - line.n)
            # Numbers of the step
            if due(state.step, training.print_every):
                numbers = rows.scalars(stats | state.gradient_scales(), state.step)
                rows.memory(monitor.latest(), state.step)
                rows.speed(state.step)
                state.note_losses(numbers)
                method.look(numbers)
            # What is measured and written between steps
            measured = method.measure(guard, rows)
            quality = method.quality(measured) or quality
            if due(state.step, training.print_every):
                line.set_postfix_str(_told(state, numbers, method.SHOWN, quality, monitor), refresh=False)
            if due(state.step, MEMORY_LINE_EVERY):
                log.info("step %d: %s", state.step, monitor.line())
            if due(state.step, training.save_every) or guard.owes_checkpoint:
                guard.checkpoint()
            if due(state.step, training.backup_every):
                guard.optional("checkpoint", partial(_save_backup, state, numbers))
            method.write(guard, rows)
            if isinstance(config.memory.empty_cache, int) and due(state.step, config.memory.empty_cache):
                clean_up()
            if due(state.step, training.print_every):
                rows.restart_clock(state.step)
    return measured


class Adversarial:
    """Generator against discriminator: their step, FID and KID, sample sheets and videos."""

    SHOWN = ("loss_d", "loss_g", "opacity")

    def __init__(self, state: TrainState, dataset: Views):
        self.state, self.dataset, self.watch = state, dataset, CollapseWatch()
        self.measured: dict = {}  # after the newest step

    def step(self, images: Tensor, labels: Labels) -> dict[str, Tensor]:
        return train_step(self.state, self.dataset, images, labels)

    def look(self, numbers: dict[str, float]) -> None:
        self.watch.look(numbers, self.state.step)

    def measure(self, guard: Guard, rows: RunLog) -> dict:
        state, training = self.state, self.state.config.training
        self.measured = {}
        if due(state.step, training.fid_every) or (training.fid_every and state.step == training.max_steps):
            self.measured = guard.optional_together("metrics", partial(evaluate, state, self.dataset), otherwise={})
        if self.measured:
            rows.evaluation(self.measured, state.step)
        return self.measured

    def quality(self, measured: dict) -> str:
        kids = (value for name, value in measured.get("values", {}).items() if name.startswith("kid_"))
        return next((f"KID {value:.4g}" for value in kids), "")

    def write(self, guard: Guard, rows: RunLog) -> None:
        state, training = self.state, self.state.config.training
        last = training.sample_every > 0 and state.step == training.max_steps
        if last or sample_due(state.step, training.sample_every):
            guard.optional("sample", partial(self._sample, rows))
        if due(state.step, training.video_every):
            guard.optional("video", partial(write_rotation, state))

    def _sample(self, rows: RunLog) -> None:
        rows.scalars(write_samples(self.state, self.quality(self.measured)), self.state.step)
        rows.picture("samples", sheet_path(self.state, "rgb"), self.state.step)

    def advised(self, error: OutOfMemory) -> OutOfMemory:
        return with_advice(error, self.state)


def due(step: int, every: int) -> bool:
    """Whether something that is done `every` so many steps is due at this step; never where `every` is 0."""
    return every > 0 and step % every == 0


def sample_due(step: int, every: int) -> bool:
    """Whether sheets are written after this step: every so many, and four times as often early on."""
    return due(step, every) or (step <= EARLY_STEPS and due(step, -(-every // 4)))


def _progress_line(config: RunConfig, step: int, shown: bool) -> tqdm:
    """The line that says how far the run is."""
    return progress(
        total=config.training.max_steps, initial=step, desc=config.expname, unit="step", disable=not shown, bar_format=LINE
    )


def _told(state: RunState, numbers: dict[str, float], names: Iterable[str], quality: str, monitor: MemoryMonitor) -> str:
    """What the progress line says beside steps: images seen, losses, what was measured, memory."""
    images = f"{state.images_seen:,} images"
    values = (f"{name} {numbers[name]:.3f}" for name in names)
    held = monitor.latest()
    memory = (f"{owner} {held[name] / GB:.2f} GB" for name, owner in MEMORY_SHOWN.items() if name in held)
    return ", ".join(filter(None, (images, *values, quality, *memory)))


def _batches(state: RunState, dataset: Views) -> Iterator[tuple[Tensor, Labels]]:
    """Photographs and labels for the state's current step, also after it was rolled back to an earlier one."""
    processes = state.processes
    while True:
        step = state.step
        loader = build_loader(dataset, state.config, state.device, step, processes.rank, processes.world_size)
        with contextlib.closing(loader):
            while state.step == step:
                yield next(loader)
                step += 1


def _monitor_of(state: RunState) -> MemoryMonitor:
    """The memory monitor, which writes rows in the first process alone."""
    memory, first = state.config.memory, state.processes.first
    path, interval_s = (state.config.run_dir / "memory.jsonl", memory.interval_s) if first else (Path(os.devnull), 0)
    return MemoryMonitor(path, interval_s, state.device, *watched_budgets(memory, state.device))


def _save(state: RunState, numbers: dict[str, float], memory_snapshot: bool) -> None:
    save_newest(state.checkpoint(), numbers)
    if memory_snapshot:
        with not_worth_a_run("memory snapshots"):
            log.info("memory snapshot: %s", write_snapshot(state.config.run_dir / "memory", state.step))


def _save_backup(state: RunState, numbers: dict[str, float]) -> None:
    save(state.config.run_dir / backup_name(state.step), state.checkpoint(), numbers)
