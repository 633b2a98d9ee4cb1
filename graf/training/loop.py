"""The training loop: a step, and what is to be kept of it, until the end."""

import logging
import os
from functools import partial
from pathlib import Path

from torch import Tensor

from graf.camera import Labels
from graf.data import Views, build_loader, sample_labels
from graf.evaluation.extractors import choose_extractor
from graf.memory.budget import budget_bytes
from graf.memory.cleanup import install_signal_handler
from graf.memory.monitor import MemoryMonitor
from graf.memory.survival import OutOfMemory
from graf.training.checkpoint import restore
from graf.training.checkpoint_files import newest_checkpoint
from graf.training.health import Derailed, HalfUpdated, check_numbers, roll_back, with_advice
from graf.training.interruption import Interruption
from graf.training.keeping import Keeper
from graf.training.state import TrainState
from graf.training.steps import discriminator_step, generator_step

log = logging.getLogger("graf")


def train(state: TrainState, dataset: Views, interruption: Interruption, memory_snapshot: bool = False) -> None:
    """Train until training.max_steps or an interruption, and leave a checkpoint either way.

    With `memory_snapshot`, what memory holds is written beside each checkpoint. After training.max_bad_steps steps in a row
    that were not finite the run is rolled back, once. Raises Derailed where that was no help, OutOfMemory where the smallest
    part of a step is too large.
    """
    if state.config.training.fid_every and state.processes.first:
        choose_extractor(state.config.metrics)  # what is missing is said now, not after hours
    install_signal_handler()
    while True:
        try:
            return _train_on(state, dataset, interruption, memory_snapshot)
        except Derailed as error:
            state.processes.in_turn(partial(_go_back, state, error))


def _go_back(state: TrainState, trouble: Derailed) -> None:
    """Roll back; the other processes read what the first one went back to and saved."""
    if state.processes.first:
        roll_back(state, trouble)
    else:
        restore(newest_checkpoint(state.config.run_dir), state)


def _train_on(state: TrainState, dataset: Views, interruption: Interruption, memory_snapshot: bool) -> None:
    """Train from the state's step on. Of a run's processes only the first writes anything."""
    config, processes = state.config, state.processes
    state.require_same_everywhere()
    batches = build_loader(dataset, config, state.device, state.step, processes.rank, processes.world_size)
    budget = budget_bytes(config.memory, state.device) if config.memory.budget_gb else 0
    rows, interval_s = (config.run_dir / "memory.jsonl", config.memory.interval_s) if processes.first else (Path(os.devnull), 0)
    no_room = None
    with (
        MemoryMonitor(rows, interval_s, state.device, budget) as monitor,
        Keeper(state, dataset, monitor, memory_snapshot) as keeper,
    ):
        try:
            while state.step < config.training.max_steps and not processes.to_end(interruption):
                keeper.keep(train_step(state, dataset, *next(batches)))
        except OutOfMemory as error:  # which left the weights as they were: they are saved
            no_room = error
        finally:
            batches.close()
        keeper.finish()
    if no_room is not None:
        raise with_advice(no_room, state)


def train_step(state: TrainState, dataset: Views, images: Tensor, labels: Labels | None) -> dict[str, Tensor]:
    """One step of both networks on one batch from the loader. Returns the step's scalars.

    Raises Derailed where training cannot go on from here, OutOfMemory where the smallest part of the step is too large.
    """
    config = state.config

    def draw_labels() -> Labels:
        n = len(images) * state.processes.world_size
        return sample_labels(dataset, n, config.data, state.draws).to(state.device)

    images = images.to(state.device, non_blocking=True)
    labels = labels.to(state.device) if labels is not None else None
    sizes = str(state.sizes)
    stats, said = state.processes.attempt(
        lambda: discriminator_step(state, images, labels, draw_labels()) | generator_step(state, draw_labels())
    )
    if stats is None:
        raise HalfUpdated(f"step {state.step + 1}: out of memory ({said}) while weights were changed, which may be half done")
    stats |= {"lr_g": state.optimizer_g.param_groups[0]["lr"], "lr_d": state.optimizer_d.param_groups[0]["lr"]}
    state.advance()
    if str(state.sizes) != sizes:
        log.warning("step %d: it took out-of-memory to find that %s is too much; now %s", state.step, sizes, state.sizes)
    if state.sizes.step_done():
        log.info("step %d: memory sufficed for long enough to try %s again", state.step, state.sizes)
    check_numbers(state, stats, images)
    return stats
