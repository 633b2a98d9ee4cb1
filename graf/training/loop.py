"""The training loop: take a step, then whatever is due after it (logging, metrics, checkpoint, samples), until the run ends."""

import contextlib
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from graf.camera import Labels
from graf.checkpoints.checkpoint import backup_name
from graf.checkpoints.run_folder import save, save_newest
from graf.data import Views, build_loader
from graf.memory.budget import watched_budgets
from graf.memory.monitor import MemoryMonitor
from graf.memory.snapshot import write_snapshot
from graf.runtime.cleanup import clean_up, install_signal_handler
from graf.runtime.console import progress
from graf.runtime.files import not_worth_a_run
from graf.runtime.guard import Guard
from graf.runtime.interruption import Interruption
from graf.runtime.precision import repeatable
from graf.training.fid import evaluate
from graf.training.health import CollapseWatch, Derailed, roll_back_all, with_advice
from graf.training.logging import RunLog
from graf.training.samples import write_rotation, write_samples
from graf.training.state import TrainState
from graf.training.steps import train_step

from torch import Tensor

log = logging.getLogger("graf")

MEMORY_LINE_EVERY = 100  # steps
EARLY_STEPS = 500  # in which sample sheets are written four times as often


def train(state: TrainState, dataset: Views, interruption: Interruption, memory_snapshot: bool = False) -> dict:
    """Train until training.max_steps or an interruption, and leave a checkpoint either way.

    Returns FID and KID measured after the last step, {} without. With `memory_snapshot`, what memory holds is written beside
    each checkpoint. After training.max_bad_steps consecutive non-finite steps the run is rolled back, once. Raises Derailed
    where that did not help, OutOfMemory where memory ran out and nothing can be made smaller.
    """
    config, training, first = state.config, state.config.training, state.processes.first
    install_signal_handler()
    state.require_same_everywhere()
    numbers, measured, watch, monitor = {}, {}, CollapseWatch(), _monitor_of(state)
    save_run, advised = lambda: _save(state, numbers, memory_snapshot), partial(with_advice, state=state)
    guard = Guard(state, interruption, save_run, advised, monitor.phase, empty_caches=config.memory.empty_cache == "phases")
    with (
        repeatable(state.device),
        monitor,
        contextlib.closing(RunLog(config.run_dir, config, state.step, writes=first)) as rows,
        progress(total=training.max_steps, initial=state.step, desc=config.expname, unit="step", disable=not first) as bar,
        guard,
        contextlib.closing(_batches(state, dataset)) as batches,
    ):
        while state.step < training.max_steps and not guard.should_end():
            # A step of both networks
            images, labels = next(batches)
            try:
                stats = train_step(state, dataset, images, labels)
            except Derailed as trouble:
                guard.roll_back(partial(roll_back_all, state, trouble))  # raises it the second time
                rows.go_on_after(state.step)
                numbers = {}
                continue
            monitor.step_done(state.step)
            bar.update(state.step - bar.n)
            # Numbers of the step
            if due(state.step, training.print_every):
                numbers = rows.scalars(stats | state.gradient_scales(), state.step)
                rows.memory(monitor.latest(), state.step)
                state.note_losses(numbers)
                watch.look(numbers, state.step)
                bar.set_postfix({name: f"{numbers[name]:.3f}" for name in ("loss_d", "loss_g", "opacity")}, refresh=False)
            # What is measured and written between steps
            measured = {}
            if due(state.step, training.fid_every) or (training.fid_every and state.step == training.max_steps):
                measured = guard.optional_together("metrics", partial(evaluate, state, dataset), otherwise={})
            if measured:
                rows.evaluation(measured, state.step)
            if due(state.step, MEMORY_LINE_EVERY):
                log.info("step %d: %s", state.step, monitor.line())
            if due(state.step, training.save_every) or guard.owes_checkpoint:
                guard.checkpoint()
            if due(state.step, training.backup_every):
                guard.optional("checkpoint", partial(_save_backup, state, numbers))
            if sample_due(state.step, training.sample_every):
                guard.optional("sample", lambda: rows.scalars(write_samples(state), state.step))
            if due(state.step, training.video_every):
                guard.optional("video", partial(write_rotation, state))
            if isinstance(config.memory.empty_cache, int) and due(state.step, config.memory.empty_cache):
                clean_up()
    return measured


def due(step: int, every: int) -> bool:
    """Whether something that is done `every` so many steps is due at this step; never where `every` is 0."""
    return every > 0 and step % every == 0


def sample_due(step: int, every: int) -> bool:
    """Whether sheets are written after this step: every so many, and four times as often early on."""
    return due(step, every) or (step <= EARLY_STEPS and due(step, -(-every // 4)))


def _batches(state: TrainState, dataset: Views) -> Iterator[tuple[Tensor, Labels]]:
    """Photographs and labels for the state's current step, also after it was rolled back to an earlier one."""
    processes = state.processes
    while True:
        step = state.step
        loader = build_loader(dataset, state.config, state.device, step, processes.rank, processes.world_size)
        with contextlib.closing(loader):
            while state.step == step:
                yield next(loader)
                step += 1


def _monitor_of(state: TrainState) -> MemoryMonitor:
    """The memory monitor, which writes rows in the first process alone."""
    memory, first = state.config.memory, state.processes.first
    path, interval_s = (state.config.run_dir / "memory.jsonl", memory.interval_s) if first else (Path(os.devnull), 0)
    return MemoryMonitor(path, interval_s, state.device, *watched_budgets(memory, state.device))


def _save(state: TrainState, numbers: dict[str, float], memory_snapshot: bool) -> None:
    save_newest(state.checkpoint(), numbers)
    if memory_snapshot:
        with not_worth_a_run("memory snapshots"):
            log.info("memory snapshot: %s", write_snapshot(state.config.run_dir / "memory", state.step))


def _save_backup(state: TrainState, numbers: dict[str, float]) -> None:
    save(state.config.run_dir / backup_name(state.step), state.checkpoint(), numbers)
