"""The training loop: a step, and what is to be kept of it, until the end."""

import contextlib
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from graf.camera import Labels
from graf.checkpoints.run_folder import newest_checkpoint
from graf.data import Views, build_loader, sample_labels
from graf.evaluation.extractors import choose_extractor
from graf.memory.budget import watched_budgets
from graf.memory.monitor import MemoryMonitor
from graf.runtime.cleanup import install_signal_handler
from graf.runtime.guard import FAILURES, OutOfMemory, all_or_none, first_line, is_out_of_memory
from graf.runtime.interruption import Interruption
from graf.training.health import Derailed, HalfUpdated, check_numbers, roll_back, with_advice
from graf.training.keeping import Keeper
from graf.training.state import TrainState, restore
from graf.training.steps import discriminator_step, generator_step

import torch
from torch import Tensor

log = logging.getLogger("graf")


def train(state: TrainState, dataset: Views, interruption: Interruption, memory_snapshot: bool = False) -> dict:
    """Train until training.max_steps or an interruption, and leave a checkpoint either way.

    Returns what the run measured of itself after its last step, {} where it did not.

    With `memory_snapshot`, what memory holds is written beside each checkpoint. After training.max_bad_steps steps in a row
    that were not finite the run is rolled back, once. Raises Derailed where that was no help, OutOfMemory where the smallest
    part of a step is too large, or memory ran out where nothing is there to be made smaller.
    """
    if state.config.training.fid_every and state.processes.first:
        choose_extractor(state.config.metrics)  # what is missing is said now, not after hours
    install_signal_handler()
    with repeatable(state.device):
        while True:
            try:
                return _train_on(state, dataset, interruption, memory_snapshot)
            except Derailed as error:
                state.processes.in_turn(partial(_go_back, state, error))


@contextlib.contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """On the CPU, what is computed inside depends on its inputs to the last bit, not on which thread is the faster.

    Gradients of indexed tensors are otherwise added up in the order in which threads come to them, once there are 32768 of
    them (a batch of 16 with the default view codes); and MKL may choose how many threads share a product until it is told.
    """
    if device.type != "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.set_num_threads(torch.get_num_threads())
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a safeguard against reading it, which costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled


def _go_back(state: TrainState, trouble: Derailed) -> None:
    """Roll back; the other processes read what the first one went back to and saved."""
    if state.processes.first:
        roll_back(state, trouble)
    else:
        restore(newest_checkpoint(state.config.run_dir), state)


def _train_on(state: TrainState, dataset: Views, interruption: Interruption, memory_snapshot: bool) -> dict:
    """Train from the state's step on, and return as `train` does. Of a run's processes only the first writes anything."""
    config, processes = state.config, state.processes
    state.require_same_everywhere()
    batches = build_loader(dataset, config, state.device, state.step, processes.rank, processes.world_size)
    rows, interval_s = (config.run_dir / "memory.jsonl", config.memory.interval_s) if processes.first else (Path(os.devnull), 0)
    no_room = None
    with (
        MemoryMonitor(rows, interval_s, state.device, *watched_budgets(config.memory, state.device)) as monitor,
        Keeper(state, dataset, monitor, memory_snapshot) as keeper,
    ):
        try:
            while state.step < config.training.max_steps and not processes.to_end(interruption):
                keeper.keep(train_step(state, dataset, *next(batches)))
                interruption.began = True
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            where = f"step {state.step}: out of memory ({first_line(error)})"  # the weights are whole: they are saved
            no_room = error if isinstance(error, OutOfMemory) else OutOfMemory(where)
        finally:
            batches.close()
        keeper.finish()
    if no_room is not None:
        raise with_advice(no_room, state)
    return keeper.measured


def train_step(state: TrainState, dataset: Views, images: Tensor, labels: Labels) -> dict[str, Tensor]:
    """One step of both networks on one batch from the loader. Returns the step's scalars.

    Raises Derailed where training cannot go on from here, OutOfMemory where the smallest part of the step is too large.
    """
    config = state.config

    def draw_labels() -> Labels:
        n = len(images) * state.processes.world_size
        return sample_labels(dataset, n, config.data, state.draws).to(state.device)

    images = images.to(state.device, non_blocking=True)
    labels = labels.to(state.device)
    sizes = str(state.sizes)
    ran_out = ""
    try:
        with all_or_none(state.processes):
            stats = discriminator_step(state, images, labels, draw_labels()) | generator_step(state, draw_labels())
    except FAILURES as error:
        if not is_out_of_memory(error):
            raise
        ran_out = first_line(error)
    if ran_out:
        where = f"step {state.step + 1}: out of memory ({ran_out})"
        raise HalfUpdated(f"{where} while weights were changed, which may be half done")
    stats |= {"lr_g": state.optimizer_g.param_groups[0]["lr"], "lr_d": state.optimizer_d.param_groups[0]["lr"]}
    state.advance()
    if str(state.sizes) != sizes:
        log.warning("step %d: it took out-of-memory to find that %s is too much; now %s", state.step, sizes, state.sizes)
    if state.sizes.step_done():
        log.info("step %d: memory sufficed for long enough to try %s again", state.step, state.sizes)
    check_numbers(state, stats, images)
    return stats
