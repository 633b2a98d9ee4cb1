"""Detects steps that are not finite; a run of them is rolled back to its last good checkpoint, once, and then ends with a
diagnosis.
"""

import contextlib
import itertools
import logging
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from graf.checkpoints.run_folder import newest_checkpoint, run_checkpoints, save_newest
from graf.errors import CheckpointError, GrafError
from graf.rng import seeded_rng
from graf.runtime.device import clean_up
from graf.runtime.out_of_memory import OutOfMemory
from graf.training.state import RunState, load_checkpoint

import torch
from torch import Tensor

log = logging.getLogger("graf")

MAX_ROLLBACKS = 1  # in a run
READ_EVERY = 10  # steps between two readings on a GPU, with training.print_every: 0


class Derailed(GrafError):
    """Training cannot continue from its current weights; the message is the diagnosis."""


class HalfUpdated(Derailed, OutOfMemory):
    """Memory ran out while weights were being updated, so the step cannot be retried."""


def check_numbers(state: RunState, stats: dict[str, Tensor | float], images: Tensor, at_once: bool = False) -> None:
    """Count the consecutive steps, including this one, that a network skipped because something was not finite.

    On a GPU, which is not waited for in each step, the numbers are read when a row of the log is due, after the last step, or
    `at_once`. Raises Derailed after training.max_bad_steps of them.
    """
    tensors = {name: value for name, value in stats.items() if isinstance(value, Tensor)}
    state.unread.append((state.step, tuple(tensors), torch.stack([value.float() for value in tensors.values()])))
    training = state.config.training
    is_due = state.step % (training.print_every or READ_EVERY) == 0 or state.step == training.max_steps
    if not (is_due or at_once or state.device.type == "cpu"):
        return
    count_bad_steps(state, images)
    if state.bad_steps >= training.max_bad_steps:
        raise Derailed(diagnosis(state))


def count_bad_steps(state: RunState, images: Tensor | None = None) -> None:
    """Read the numbers of all steps since the last call, in one copy from the device, up to the last bad step that a run may
    have. `images` are those of the newest step."""
    rows, state.unread = state.unread, []
    values = iter(torch.cat([row for _, _, row in rows]).tolist()) if rows else iter(())
    for step, names, _ in rows:
        numbers = dict(zip(names, itertools.islice(values, len(names)), strict=True))
        bad = [name for name in names if name.startswith("grad_norm") and not math.isfinite(numbers[name])]
        if state.bad_steps >= state.config.training.max_bad_steps:
            return
        if not bad:
            state.bad_steps, state.bad_since, state.first_bad = 0, 0, ""
            continue
        state.bad_steps += 1
        if not state.first_bad:
            state.bad_since = step
            state.first_bad = f"step {step}: {first_not_finite(state, numbers, images if step == state.step else None)}"
        message = state.first_bad if state.bad_steps == 1 else f"step {step}: {' and '.join(bad)} not finite"
        log.warning("%s; skipped (%d in a row)", message, state.bad_steps)


def first_not_finite(state: RunState, numbers: dict[str, float], images: Tensor | None) -> str:
    """Names the first scalar of a step that is not finite, and the first such tensor: real images, then weights, then gradients
    in the order of the backward pass. Gradients are left out without the step's `images`, and where steps are recorded."""
    number = next(f"{name} is {value:g}" for name, value in numbers.items() if not math.isfinite(value))
    tensor = next((name for name, tensor in _tensors(state, images) if not torch.isfinite(tensor).all()), None)
    if tensor:
        return f"{number}; the first tensor not finite is {tensor}"
    return f"{number}; all weights {'and gradients ' if _has_gradients(state, images) else ''}are finite"


def _tensors(state: RunState, images: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    if images is not None:
        yield "the real images of the step", images
    networks = {name: getattr(state, name) for name in state.LEARNERS}
    for network, module in networks.items():
        yield from ((f"the weight {network}.{path}", p) for path, p in module.named_parameters())
    for network, module in networks.items() if _has_gradients(state, images) else ():
        for path, p in reversed(list(module.named_parameters())):
            if p.grad is not None:
                yield f"the gradient of {network}.{path}", p.grad


def _has_gradients(state: RunState, images: Tensor | None) -> bool:
    """Whether both networks still have the gradients of the step of these images: recorded graphs share their memory."""
    return images is not None and not state.graphs


def diagnosis(state: RunState) -> str:
    """A message on the current row of bad steps: what happened, and what to do."""
    rates = state.learning_rates()
    scales = {name: getattr(state, name).get_scale() for name in state.SCALERS}
    return (
        f"{state.bad_steps} steps in a row had a loss or gradient that was not finite, and were skipped; the last good step is "
        f"{state.bad_since - 1}. First, {state.first_bad}. "
        f"Learning rates: {', '.join(f'{name} {rate:g}' for name, rate in rates.items())}; "
        f"loss scales: {', '.join(f'{scale:g} ({name})' for name, scale in scales.items())}. "
        f"Check the images with tools/validate_data.py; lower {' and '.join(f'training.{name}' for name in rates)}, set "
        f"training.grad_clip=1 or training.use_amp=false; {state.PROGRAM} --detect_anomaly names the operation"
    )


def roll_back_all(state: RunState, trouble: Derailed) -> None:
    """Free recorded graphs in all processes, and record no more after out of memory. The first process does `roll_back`; then
    the others load what it went back to and saved."""

    def go_back() -> None:
        state.graphs.clear()
        clean_up()
        if state.processes.first:
            roll_back(state, trouble)
        elif newest := newest_checkpoint(state.config.run_dir):
            load_checkpoint(newest, state)
        else:
            raise CheckpointError(
                f"{state.config.run_dir}: has no checkpoint to roll back to, though the first process saved one; all processes "
                "need the same training.outdir, on a disk that their machines share"
            )
        if isinstance(trouble, HalfUpdated):
            state.graphs.give_up("out of memory")

    state.processes.in_turn(go_back)
    state.require_same_everywhere()


def roll_back(state: RunState, trouble: Derailed) -> None:
    """Return to the run's last good checkpoint, once per run, and continue with another random state than led to the trouble.

    A good checkpoint is the newest one that loads, has finite weights, and was not saved during a row of bad steps. The result
    is saved, so that a run that is killed and restarted knows of it. The best measurement stays, as model_best.pt is of it, and
    what is known of the data. Raises the trouble where there is no good checkpoint, or the run was rolled back before.
    """
    rollbacks = state.rollbacks + 1
    if rollbacks > MAX_ROLLBACKS:
        raise type(trouble)(f"{trouble}. The run had been rolled back once already") from None
    kept = {name: getattr(state, name) for name in ("best", "class_names", "data_fingerprint")}
    if run_checkpoints(state.config.run_dir):  # or the error below tells the trouble
        log.warning("%s", trouble)
    path = _load_last_good(state)
    if path is None:
        raise type(trouble)(f"{trouble}. There is no good checkpoint in {state.config.run_dir} to go back to") from None
    seed = seeded_rng(state.config.training.seed, state.step, rollbacks).initial_seed()
    state.rng.manual_seed(seed)
    state.device_rng.manual_seed(seed + 1)
    state.rollbacks = rollbacks
    for name, value in kept.items():
        setattr(state, name, value)
    if isinstance(trouble, HalfUpdated):
        state.sizes.shrink()
    log.warning(
        "rolled back to step %d of %s (from here on latents, cameras and noise differ, seed %d)", state.step, path, seed
    )
    save_newest(state.checkpoint())


def _load_last_good(state: RunState) -> Path | None:
    for path in run_checkpoints(state.config.run_dir):
        try:
            load_checkpoint(path, state)
        except CheckpointError as error:
            log.warning("%s", error)
            continue
        tensors = (tensor for name in state.NETWORKS for tensor in getattr(state, name).state_dict().values())
        if not state.bad_steps and all(torch.isfinite(tensor).all() for tensor in tensors):
            return path
    return None


@contextlib.contextmanager
def anomalies_named(state: RunState) -> Iterator[None]:
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
            raise GrafError(f"{message}; it has reached no weight") from None


def _place(traces: list[str]) -> str:
    """The place in this package that called an operation, according to autograd's traceback."""
    root = Path(__file__).resolve().parents[1]
    calls = re.findall(r'File "(.+)", line (\d+), in (\w+)', traces[-1] if traces else "")
    ours = [call for call in calls if root in Path(call[0]).resolve().parents]
    if not ours:
        return ""
    file, line, function = ours[-1]
    return f", called in {Path(file).resolve().relative_to(root.parent)}, line {line} ({function}),"
