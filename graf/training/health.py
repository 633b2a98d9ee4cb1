"""Steps whose numbers are not finite, and what becomes of a run that makes only such: back once, then an end that explains."""

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from graf.checkpoints.checkpoint import NETWORKS
from graf.checkpoints.run_folder import run_checkpoints, save_newest
from graf.data.views import generator_of
from graf.errors import CheckpointError, GrafError
from graf.memory.advice import smallest_edits
from graf.memory.budget import budget_bytes
from graf.memory.sizes import with_sizes
from graf.runtime.cleanup import clean_up
from graf.runtime.guard import OutOfMemory
from graf.runtime.limits import GB
from graf.training.state import TrainState, restore

import torch
from torch import Tensor

log = logging.getLogger("graf")

MAX_ROLLBACKS = 1  # in a run


class Derailed(GrafError):
    """Training cannot go on from where it is; the message is the diagnosis."""


class HalfUpdated(Derailed):
    """Memory ran out while weights were being changed, so that the step cannot be taken again."""


def check_numbers(state: TrainState, stats: dict[str, Tensor], images: Tensor) -> None:
    """Count the steps in a row, this one being done, that a network skipped because something was not finite.

    Raises Derailed after training.max_bad_steps of them.
    """
    bad = [name for name in ("grad_norm_d", "grad_norm_g") if not torch.isfinite(stats[name])]
    if not bad:
        state.bad_steps, state.first_bad = 0, ""
        return
    state.bad_steps += 1
    if not state.first_bad:
        state.first_bad = f"step {state.step}: {first_not_finite(state, stats, images)}"
    told = state.first_bad if state.bad_steps == 1 else f"step {state.step}: {' and '.join(bad)} not finite"
    log.warning("%s; skipped (%d in a row)", told, state.bad_steps)
    if state.bad_steps >= state.config.training.max_bad_steps:
        raise Derailed(diagnosis(state))


def first_not_finite(state: TrainState, stats: dict[str, Tensor], images: Tensor) -> str:
    """The first number of a step that is not finite, and the first tensor: of the photographs, the weights, and the gradients
    from the last layer to the first, as they are computed."""
    number = next(f"{name} is {float(value):g}" for name, value in stats.items() if not torch.isfinite(value))
    tensor = next((name for name, tensor in _tensors(state, images) if not torch.isfinite(tensor).all()), None)
    return f"{number}; {f'the first tensor not finite is {tensor}' if tensor else 'all weights and gradients are finite'}"


def _tensors(state: TrainState, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "the photographs of the step", images
    networks = {"discriminator": state.discriminator, "generator": state.generator}
    for network, module in networks.items():
        yield from ((f"the weight {network}.{path}", p) for path, p in module.named_parameters())
    for network, module in networks.items():
        for path, p in reversed(list(module.named_parameters())):
            if p.grad is not None:
                yield f"the gradient of {network}.{path}", p.grad


def diagnosis(state: TrainState) -> str:
    """What is known of the bad steps in a row that the run is in, and what to do."""
    lr_g, lr_d = (optimizer.param_groups[0]["lr"] for optimizer in (state.optimizer_g, state.optimizer_d))
    scale_g, scale_d = state.scaler_g.get_scale(), state.scaler_d.get_scale()
    return (
        f"{state.bad_steps} steps in a row had a loss or gradient that was not finite, and were skipped; the last good step is "
        f"{state.step - state.bad_steps}. First, {state.first_bad}. Learning rates: lr_g {lr_g:g}, lr_d {lr_d:g}; loss scales: "
        f"{scale_g:g} (generator), {scale_d:g} (discriminator). "
        "Look at the photographs with tools/validate_data.py; lower training.lr_g and training.lr_d, set training.grad_clip=1 "
        "or training.use_amp=false; train.py --detect_anomaly names the operation"
    )


def roll_back(state: TrainState, trouble: Derailed) -> None:
    """Go on from the run's last good checkpoint, once in a run, with other latents, cameras and noise than led to the trouble.

    Good is the newest that loads, has finite weights, and is not of a row of bad steps. What is reached is saved, so that a run
    which is killed and started again knows of it. The best measurement stays, for model_best.pt is of it. Raises the trouble
    where there is none, or the run was rolled back before.
    """
    rollbacks = state.rollbacks + 1
    if rollbacks > MAX_ROLLBACKS:
        raise type(trouble)(f"{trouble}. The run had been rolled back once already") from None
    clean_up()
    best = state.best
    path = _restore_last_good(state)
    if path is None:
        raise type(trouble)(f"{trouble}. There is no good checkpoint in {state.config.run_dir} to go back to") from None
    seed = generator_of(state.config.training.seed, state.step, rollbacks).initial_seed()
    state.draws.manual_seed(seed)
    state.noise.manual_seed(seed + 1)
    state.rollbacks, state.best = rollbacks, best
    if isinstance(trouble, HalfUpdated):
        state.sizes.shrink()
    log.warning("%s", trouble)
    log.warning("rolled back to %s, step %d; what chance decides is another from there (seed %d)", path, state.step, seed)
    save_newest(state.checkpoint())


def _restore_last_good(state: TrainState) -> Path | None:
    for path in run_checkpoints(state.config.run_dir):
        try:
            restore(path, state)
        except CheckpointError as error:
            log.warning("%s", error)
            continue
        tensors = (tensor for name in NETWORKS for tensor in getattr(state, name).state_dict().values())
        if not state.bad_steps and all(torch.isfinite(tensor).all() for tensor in tensors):
            return path
    return None


def with_advice(error: OutOfMemory, state: TrainState) -> OutOfMemory:
    """The error with the settings that would make a step fit, by the planner."""
    device, config = state.device, with_sizes(state.config, state.sizes)
    budget = budget_bytes(config.memory, device) + (torch.cuda.memory_reserved(device) if device.type == "cuda" else 0)
    edits = smallest_edits(config, budget, device.type)
    if edits:
        advice = f"by the plan a step fits into {budget / GB:.1f} GB with --set {' '.join(edits)}"
    elif edits is None:
        advice = f"by the plan no setting fits into {budget / GB:.1f} GB; take a smaller data.imsize or another device"
    else:
        advice = f"by the plan a step fits into {budget / GB:.1f} GB; look at what else takes memory"
    return OutOfMemory(f"{error}; {advice}. python tools/check_system.py tells more")


@contextlib.contextmanager
def anomalies_named(state: TrainState) -> Iterator[None]:
    """Every backward pass is checked; raises GrafError naming step and operation at the first that makes a nan. Slow."""
    traces: list[str] = []
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        show = warnings.showwarning

        def note(message, *where, **options) -> None:
            if "Error detected in" in str(message):
                traces.append(str(message))
            else:
                show(message, *where, **options)

        warnings.showwarning = note
        try:
            yield
        except RuntimeError as error:
            found = re.search(r"Function '(\w+)' returned nan", str(error))
            if found is None:
                raise
            message = f"step {state.step + 1}: the backward pass of {found[1]}{_place(traces)} made a nan"
            raise GrafError(f"{message}; the run's checkpoints are as they were") from None


def _place(traces: list[str]) -> str:
    """Where in this package an operation was called, by autograd's trace of it."""
    root = Path(__file__).resolve().parents[1]
    calls = re.findall(r'File "(.+)", line (\d+), in (\w+)', traces[-1] if traces else "")
    ours = [call for call in calls if root in Path(call[0]).resolve().parents]
    if not ours:
        return ""
    file, line, function = ours[-1]
    return f", called in {Path(file).resolve().relative_to(root.parent)}, line {line} ({function}),"
