"""What `bench/benchmark.py rules` measures: house rules about memory, each kept and broken, with the default config."""

import statistics
from itertools import islice
from unittest import mock

from graf.camera import Labels, rotation_poses
from graf.config import Config, override
from graf.models.generator import Generator
from graf.runtime.cleanup import clean_up
from graf.runtime.device import keep_freed_memory
from graf.training import steps
from graf.training.state import TrainState
from live_bytes import LiveBytes
from memory_rows import timed_steps

import torch

WARM_UP_STEPS, FRAMES = 3, 8


def measure_rules(config: Config, n_steps: int, device: torch.device) -> list[dict]:
    """Rows of a rule's name, its values kept and broken, and their unit: peak `bytes` of tensors, or `seconds`, the median of
    n_steps steps."""
    generator = Generator(override(config, ["nerf.N_samples_render=0"])).to(device)  # as many samples in both ways
    usual, zero_grad, render, renderings = step_peak(config, device), torch.optim.Optimizer.zero_grad, steps._render, []

    def keep_rendering(*args):
        renderings.append(render(*args))
        return renderings[-1]

    with mock.patch.object(torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: zero_grad(self, False)):
        zeroed = step_peak(config, device)
    with mock.patch.object(steps, "_render", keep_rendering):
        held = step_peak(config, device)
    renderings.clear()
    rows = [
        ("zero_grad(set_to_none=True), not filling with zeros", "bytes", usual, zeroed),
        ("tensors end with their function, not with the run", "bytes", usual, held),
        ("frames are rendered under inference_mode, not with a graph", "bytes", *frame_peaks(generator)),
        ("the cache is emptied between phases, not each step", "seconds", *step_seconds(config, n_steps, device)),
    ]
    return [dict(zip(("name", "unit", "kept", "broken"), row, strict=True)) for row in rows]


def step_peak(config: Config, device: torch.device) -> int:
    """Peak bytes of tensors in the second of two steps, by when optimizers and gradients are there."""
    with LiveBytes() as counter:
        taken = timed_steps(TrainState(config, device))
        next(taken)
        counter.peak = counter.live
        next(taken)
    return counter.peak


def frame_peaks(generator: Generator) -> tuple[int, int]:
    """Peak bytes of rendering FRAMES frames: as samples are, and as a network is called that is to learn from them."""
    poses = rotation_poses(FRAMES, generator.config.data).to(generator.background.device)
    latents = generator.sample_latents(FRAMES).to(poses)
    with LiveBytes() as kept:
        generator.render(latents, poses)
    with LiveBytes() as broken:
        generator(latents, Labels.of_poses(poses))
    return kept.peak, broken.peak


def step_seconds(config: Config, n_steps: int, device: torch.device) -> tuple[float, float]:
    """Seconds of a step, and of a step with clean_up behind each."""
    keep_freed_memory()
    state = TrainState(config, device)
    kept, broken = timed_steps(state), timed_steps(state, afterwards=clean_up)
    return tuple(statistics.median(list(islice(taken, WARM_UP_STEPS + n_steps))[WARM_UP_STEPS:]) for taken in (kept, broken))
