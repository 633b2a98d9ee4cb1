"""A step of any run, whatever its networks learn from: gradients gathered part by part and over all processes, then applied.

Everything random in a step is drawn for the whole batch before any of it is computed, so that it gives the same gradients in
however many parts it is taken.
"""

import logging
import math
from collections.abc import Callable

from graf.memory.sizes import cut
from graf.runtime.guard import attempt
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.processes import Processes
from graf.runtime.threads import map_in_threads
from graf.training.health import HalfUpdated, check_numbers
from graf.training.state import RunState

import torch
from torch import Tensor, nn

log = logging.getLogger("graf")

Stats = dict[str, Tensor]
LossOfRows = Callable[[slice], tuple[Tensor, Stats]]  # of a batch that is drawn, with scalars for the log


def whole_step(state: RunState, images: Tensor, train: Callable[[], Stats]) -> Stats:
    """Take a step by `train`, which returns its scalars, and count it. Returns them, with the learning rates.

    Raises Derailed where training cannot go on from here, OutOfMemory where the smallest part of the step is too large. An
    error before a first update leaves the state as it was before the step.
    """
    # Train the networks, in parts that fit into memory
    sizes, draw_again = str(state.sizes), drawing_again(state)
    try:
        with attempt(state.processes) as outcome:
            stats = train()
    except Exception as error:
        if state.weights_whole:
            draw_again()
        elif isinstance(error, OutOfMemory):  # raised between updates, never in one: better one ahead than all steps lost
            state.weights_whole = True
        raise
    if outcome.ran_out:
        where = f"step {state.step + 1}: out of memory ({outcome.ran_out})"
        raise HalfUpdated(f"{where} while weights were changed, which may be half done")
    # Scalars for the log, and the sizes of the next step
    stats |= state.learning_rates()
    state.advance()
    if str(state.sizes) != sizes:
        log.warning("step %d: it took out-of-memory to find that %s is too much; now %s", state.step, sizes, state.sizes)
    if state.sizes.step_done():
        log.info("step %d: memory sufficed for long enough to try %s again", state.step, state.sizes)
    check_numbers(state, stats, images)
    return stats


def accumulate(
    state: RunState,
    drawn_loss: Callable[[], LossOfRows],
    n: int,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> tuple[Stats, list[Tensor]]:
    """Draw a batch of n, and leave in the network the gradient of its mean loss, of which this process takes its rows, a part
    at a time. Where it fails there is no gradient.

    On the CPU each core takes rows of the part by itself: most operations are too small to be shared. The gradients are added
    up in the order of rows, so that the sum does not depend on which core is the faster.

    Returns what it adds to the sums over all processes: the scalars of its rows and, where there are other processes, buffers
    with all gradients of the network (P,) and all scalars (S,). They are made before anything is exchanged, as memory may run
    out in one process alone.
    """
    world_size, totals, buffers = state.processes.world_size, {}, []
    optimizer.zero_grad(set_to_none=True)
    learning = [p for p in network.parameters() if p.requires_grad]
    n_threads = torch.get_num_threads() if state.device.type == "cpu" else 1

    def gradients_of(rows: slice) -> tuple[dict[nn.Parameter, Tensor], Stats]:
        share = (rows.stop - rows.start) / n
        loss, stats = loss_of(rows)
        gradients = torch.autograd.grad(scaler.scale(share * loss), learning, allow_unused=True)
        found = {p: gradient for p, gradient in zip(learning, gradients, strict=True) if gradient is not None}
        return found, {name: share * value.detach() for name, value in stats.items()}

    try:
        loss_of = drawn_loss()
        for part in state.sizes.parts(n // world_size):
            pieces = cut(part, math.ceil((part.stop - part.start) / n_threads))
            for gradients, stats in map_in_threads(gradients_of, pieces, len(pieces)):
                torch.autograd.backward(list(gradients), list(gradients.values()))  # adds them to those of the network
                gradients.clear()  # not held beside the next part's
                for name, value in stats.items():
                    totals[name] = totals.get(name, 0) + value
        # What the processes will exchange
        if world_size > 1:
            buffers = [_in_one_buffer(network), torch.cat([value.double().flatten() for value in totals.values()])]
    except Exception:
        optimizer.zero_grad(set_to_none=True)
        raise
    return totals, buffers


def shrinking(state: RunState) -> Callable[[], bool]:
    """Makes a step's parts smaller, for a batch that is drawn once more: the random states go back to what they are now."""
    draw_again = drawing_again(state)

    def shrink() -> bool:
        draw_again()
        return state.sizes.shrink()

    return shrink


def drawing_again(state: RunState) -> Callable[[], None]:
    """Sets the random states of a step back to what they are now."""
    draws, noise = state.draws.get_state(), state.noise.get_state()

    def draw_again() -> None:
        state.draws.set_state(draws)
        state.noise.set_state(noise)

    return draw_again


def _in_one_buffer(network: nn.Module) -> Tensor:
    """The network's gradients moved into one buffer (P,)."""
    learning = [p for p in network.parameters() if p.grad is not None]
    buffer = torch.cat([p.grad.flatten() for p in learning])
    for p, part in zip(learning, buffer.split([p.numel() for p in learning]), strict=True):
        p.grad = part.view_as(p)
    return buffer


def all_reduced(stats: Stats, buffers: list[Tensor], processes: Processes) -> Stats:
    """The scalars, and in the network the gradients, summed over all processes."""
    if not buffers:
        return stats
    _, scalars = map(processes.all_reduce, buffers)
    parts = scalars.split([value.numel() for value in stats.values()])
    return {name: part.view_as(own).to(own.dtype) for (name, own), part in zip(stats.items(), parts, strict=True)}


def optimize(
    state: RunState, network: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, stats: Stats
) -> Tensor:
    """One optimizer step, skipped where a gradient or one of the stats is not finite.

    From here until `advance` counts the step, the state's weights are not whole. Returns the gradient's norm before clipping,
    nan for such stats, on the CPU, where to look at it again costs nothing.
    """
    state.weights_whole = False
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    norm = (nn.utils.get_total_norm(gradients) + 0 * sum(stats.values())).cpu()
    if torch.isfinite(norm):
        nn.utils.clip_grads_with_norm_(network.parameters(), state.config.training.grad_clip or torch.inf, norm)
        scaler.step(optimizer)
        scaler.update()
    elif scaler.is_enabled():  # each gradient by itself may be finite, so the scaler has to be told
        scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": 0})
        scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
    return norm
