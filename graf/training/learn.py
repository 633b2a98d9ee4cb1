"""One network's part of a step, in any run: gradients, part by part and summed over all processes, and the optimizer step.

The random inputs of a step are sampled before, for the whole batch. So a step has the same gradients in however many parts it
is computed, and is retried in smaller ones where memory runs out.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from graf.memory.sizes import split
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.retry import attempt, retry_smaller
from graf.runtime.threads import map_in_threads
from graf.training.health import HalfUpdated
from graf.training.state import Player, RunState
from graf.training.statistics import Values

import torch
from torch import Tensor, nn

log = logging.getLogger("graf")

Stats = dict[str, Tensor]
T = TypeVar("T")


class AnyBatch(Protocol):
    """Images of a step with all their random inputs; a slice of it is a batch too."""

    def __len__(self) -> int: ...

    def __getitem__(self, some: slice) -> "AnyBatch": ...


Objective = Callable[..., tuple[Tensor, Stats]]  # of state, batch and constants: the mean loss, and values for the log


def learn(state: RunState, player: Player, batch: AnyBatch, objective: Objective, constants: tuple = ()) -> Stats:
    """Train one network on this process's batch; in smaller parts where memory runs out in any process.

    constants: the objective's other arguments, such as weights that depend on the step; a recording by the state's `graphs` has
    them in it.

    Returns the means over the batches of all processes, detached, with the gradient's norm. Raises OutOfMemory where memory
    does not suffice for the smallest part.
    """
    compute = partial(gradients, state, player, objective, constants)

    def attempted() -> tuple[Values, Tensor | None]:
        sizes = state.sizes.images, state.sizes.rays
        return state.graphs.gradients(compute, player.network, batch, (*constants, *sizes))

    values, gradient = retry_smaller(attempted, state.shrink, f"step {state.step + 1}", state.processes)
    if gradient is not None:
        state.processes.all_reduce(gradient)  # the network's gradients are its views
        values = replace(values, flat=state.processes.all_reduce(values.flat))
    return values.by_name() | {player.grad_norm: clip_and_step(state, player, values.flat)}


def gradients(
    state: RunState, player: Player, objective: Objective, constants: tuple, batch: AnyBatch
) -> tuple[Values, Tensor | None]:
    """Accumulate the gradient of this process's share of the mean loss in the network, part by part. After an error
    the network has no gradient.

    On the CPU each core computes images of the part by itself: most operations are too small to be shared. Their gradients are
    added in the order of images, so that the sum does not depend on which core is the faster.

    Returns what is summed over all processes: the values of this batch and, where there are other processes, all gradients of
    the network (P,). Both are made before anything is exchanged, as memory may run out in one process.
    """
    world_size, totals = state.processes.world_size, {}
    n_threads = torch.get_num_threads() if state.device.type == "cpu" else 1
    learning = [p for p in player.network.parameters() if p.requires_grad]

    def slice_gradients(rows: slice) -> tuple[dict[nn.Parameter, Tensor], Stats]:
        share = (rows.stop - rows.start) / (len(batch) * world_size)
        loss, stats = objective(state, batch[rows], *constants)
        grads = torch.autograd.grad(  # the backward pass
            player.scaler.scale(share * loss), learning, allow_unused=True
        )
        by_parameter = {p: grad for p, grad in zip(learning, grads, strict=True) if grad is not None}
        return by_parameter, {name: share * value.detach() for name, value in stats.items()}

    player.optimizer.zero_grad(set_to_none=True)
    try:
        for part in state.sizes.parts(len(batch)):
            slices = split(part, math.ceil((part.stop - part.start) / n_threads))
            for grads, stats in map_in_threads(slice_gradients, slices, len(slices)):
                torch.autograd.backward(list(grads), list(grads.values()))  # adds them to those of the network
                grads.clear()  # not held beside the next part's
                for name, value in stats.items():
                    totals[name] = totals.get(name, 0) + value
        return Values.of(totals), _in_one_buffer(player.network) if world_size > 1 else None
    except Exception:
        player.optimizer.zero_grad(set_to_none=True)
        raise


def _in_one_buffer(network: nn.Module) -> Tensor:
    """The network's gradients moved into one buffer (P,)."""
    learning = [p for p in network.parameters() if p.grad is not None]
    buffer = torch.cat([p.grad.flatten() for p in learning])
    for p, part in zip(learning, buffer.split([p.numel() for p in learning]), strict=True):
        p.grad = part.view_as(p)
    return buffer


def clip_and_step(state: RunState, player: Player, values: Tensor) -> Tensor:
    """One optimizer step, skipped where a gradient or one of the values (S,) is not finite: on a GPU without reading from it.

    From here until `advance` counts the step, the state is not savable. Returns the gradient's norm before clipping,
    nan for such values.
    """
    state.savable = False
    optimizer, scaler, grad_clip = player.optimizer, player.scaler, state.config.training.grad_clip
    learned = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    grads = [p.grad for p in learned]
    norm = nn.utils.get_total_norm(grads) + 0 * values.sum().float()  # 0 * inf is nan
    if scaler.is_enabled():
        grads[0] += 0 * norm  # the scaler looks at gradients alone: a nan in one tells it of a bad loss
        scaler.unscale_(optimizer)
        norm = norm / scaler.scale(torch.ones_like(norm))
    elif state.device.type == "cuda":  # on an Apple GPU Adam ignores found_inf
        optimizer.found_inf = 1 - norm.isfinite().float()
    elif not norm.isfinite():
        return norm
    if grad_clip:
        nn.utils.clip_grads_with_norm_(learned, grad_clip, norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.found_inf = None
    return norm


def retried(state: RunState, sample: Callable[[], T]) -> T:
    """Return the sample's result; where memory ran out, sample again from the same random states. Raises OutOfMemory."""
    before = state.random_states()

    def sample_from_there() -> T:
        state.set_random_states(before)
        return sample()

    return retry_smaller(sample_from_there, state.shrink, f"step {state.step + 1}", state.processes)


@contextlib.contextmanager
def whole_step(state: RunState) -> Iterator[None]:
    """All updates of a step, in all processes. Raises HalfUpdated where memory runs out during one of them, which cannot be
    repeated.

    Any other error before the first update leaves the state as it was before the step.
    """
    before, sizes = state.random_states(), str(state.sizes)
    try:
        with attempt(state.processes) as outcome:
            yield
    except Exception as error:
        if state.savable:
            state.set_random_states(before)
        elif isinstance(error, OutOfMemory):  # the generator's half does not fit: the discriminator is saved one update ahead
            state.savable = True
        raise
    if outcome.ran_out:
        where = f"step {state.step + 1}: out of memory ({outcome.ran_out})"
        raise HalfUpdated(f"{where} while weights were changed, which may be half done")
    if str(state.sizes) != sizes:
        log.warning("step %d: out of memory with %s; continuing with %s", state.step + 1, sizes, state.sizes)
