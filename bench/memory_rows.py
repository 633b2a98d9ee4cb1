"""Rows that bench/benchmark.py measures in a process of its own: seconds and memory of steps, and rules, kept and broken.

Memory is what the process holds, or what tensors hold, counted operation by operation: the same on any machine, and without
the allocator's share.
"""

import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest import mock

from graf.camera import Labels, rotation_poses, sample_poses
from graf.config import CONFIG_DIR, Config, load_config
from graf.models import generator as rendering
from graf.models import perception
from graf.models.discriminators import convolutional
from graf.models.discriminators.projected import frozen_network
from graf.models.generator import Generator
from graf.models.perception import EFFICIENTNET
from graf.models.projection import projection_operators
from graf.rays import whole_frame
from graf.runtime.device import clean_up, freeze_imports, keep_freed_memory, peak_memory_bytes
from graf.runtime.precision import AmpSettings
from graf.training import learn
from graf.training import state as training_state
from graf.training.inputs import discriminator_batch, generator_batch, in_one_copy
from graf.training.state import TrainState
from graf.training.step import discriminator_step, generator_step
from operations import LiveBytes, OneThread, ShapesOnly
from plain_step import PlainGenerator

import psutil
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn

WARM_UP_STEPS = 3  # before what is timed
FRAMES = 8  # of the rules
LONGEST_S = 60.0  # of one variant's steps; the last one counts where there are no more
BATCH = 2  # images; the part that does not grow with them is small
DEFAULT = ("training.micro_batch=2", "nerf.checkpoint_rays=0")
AMP, ACCUMULATION, CHECKPOINT = "training.use_amp=true", "training.micro_batch=1", "nerf.checkpoint_rays=1024"
VARIANTS = {
    "plain": DEFAULT,
    "default": DEFAULT,
    "+ amp": (*DEFAULT, AMP),
    "+ accumulation": (*DEFAULT, ACCUMULATION),
    "+ checkpoint_rays": (*DEFAULT, CHECKPOINT),
    "safe": (*DEFAULT, AMP, ACCUMULATION, CHECKPOINT),
}


@dataclass(frozen=True)
class Bar:
    """The upper `limit` of `value` in the variant's row at so many rays per image."""

    variant: str
    value: str
    limit: float
    rays: int = 4096


BARS = (
    Bar("default", "peak_over_plain", 0.65),
    Bar("+ amp", "peak_over_plain", 0.40),
    Bar("+ checkpoint_rays", "peak_over_plain", 0.25),
    Bar("+ checkpoint_rays", "peak_over_1024_rays", 1.5, rays=16384),
    Bar("+ accumulation", "time_over_default", 1.10),
    Bar("+ checkpoint_rays", "time_over_default", 1.40),
)


def network(rays: int, overrides: tuple[str, ...] = ()) -> Config:
    """GRAF's recipe, with patches of so many rays of images of 128 pixels a side."""
    size = (f"training.batch_size={BATCH}", f"ray_sampler.rays_per_patch={rays}", "data.imsize=128")
    return load_config(CONFIG_DIR / "graf.yaml", (*size, *overrides))


def in_own_process(arguments: list[str], environment: dict[str, str] | None = None) -> Any:
    """The JSON in the last line that a Python process prints. Where it fails, this one ends with its message and status."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def measure_memory(variant: str, rays: int, n_steps: int, device: torch.device) -> dict:
    """Seconds and peak bytes of a variant's training step."""
    plain = variant == "plain"
    found = measure_steps(network(rays, VARIANTS[variant]), not plain, n_steps, device, plain)
    return described(variant, rays, device) | {key: found[key] for key in ("seconds_per_step", "peak_bytes")}


def count_memory(variant: str, rays: int) -> dict:
    """The row of measure_memory from tensors' shapes alone: peak bytes without the allocator's share, and no seconds."""
    peak = counted_peak(network(rays, VARIANTS[variant]), plain=variant == "plain")
    return described(variant, rays, torch.device("cpu")) | {"seconds_per_step": None, "peak_bytes": peak}


def described(variant: str, rays: int, device: torch.device) -> dict:
    amp = AmpSettings.choose(network(rays, VARIANTS[variant]).training, device)
    return {"name": variant, "rays_per_image": rays, "number_format": amp.number_format}


def measure_steps(config: Config, kept: bool, n_steps: int, device: torch.device, plain: bool = False) -> dict:
    """Median seconds and CPU seconds of n_steps training steps, or of as many as begin within a minute, the first few left
    out; and peak bytes over the idle process's: of the GPU, or resident on the CPU.

    kept: freed memory is, as train.py has it. plain: the step is that of bench/plain_step.py, of the whole batch at once.
    """
    if kept:
        keep_freed_memory()
    idle = idle_bytes(device)
    state = TrainState(config, device)
    if plain:
        state.generator = PlainGenerator(state.generator)
        learn.split = lambda rows, _: [rows]  # in this process, which measures nothing else
    seconds, cpu_seconds, start, before = [], [], time.perf_counter(), time.process_time()
    for taken, _ in islice(timed_steps(state), WARM_UP_STEPS + n_steps):
        seconds.append(taken)
        cpu_seconds.append(time.process_time() - before)
        before = time.process_time()
        if time.perf_counter() - start > LONGEST_S:
            break
    timed = slice(min(WARM_UP_STEPS, len(seconds) - 1), None)
    return {
        "seconds_per_step": statistics.median(seconds[timed]),
        "cpu_seconds_per_step": statistics.median(cpu_seconds[timed]),
        "peak_bytes": peak_memory_bytes(device) - idle,
    }


def idle_bytes(device: torch.device) -> int:
    """Bytes that a process holds before there is a tensor: none of a GPU."""
    return 0 if device.type == "cuda" else psutil.Process().memory_info().rss


def timed_steps(
    state: TrainState, afterwards: Callable[[], None] | None = None, waits: bool = True
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """Train on random images for ever, of whole images: the seconds of each step, with what is done `afterwards`, and its
    stats. Without `waits` they are the host's alone, which goes on while a GPU computes, as in training."""
    state.skip_to_whole_step()
    config, device, processes = state.config, state.device, state.processes
    batch, size = config.training.batch_size, config.data.imsize
    images = torch.rand(processes.share_of(batch), config.data.channels, size, size, generator=state.rng).to(device) * 2 - 1
    while True:
        start = time.perf_counter()
        labels = [Labels.of_poses(sample_poses(batch, config.data, state.rng)) for _ in range(3)]
        own = labels[0][processes.rank_slice]
        batches = discriminator_batch(state, labels[1], images, own), generator_batch(state, labels[2], images, own)
        for_d, for_g = in_one_copy(batches, device)
        stats = discriminator_step(state, for_d) | generator_step(state, for_g)
        processes.barrier()  # as a training step ends
        state.advance()
        if afterwards:
            afterwards()
        if waits:
            wait_for(device)
        yield time.perf_counter() - start, stats


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compared(rows: list[dict]) -> list[dict]:
    """The rows with their ratios: peak to the plain step's and time to the default's at as many rays, and peak to the same
    variant's at 1,024 rays; None where that was not measured."""
    known = {(row["name"], row["rays_per_image"]): row for row in rows}

    def ratio(row: dict, key: str, name: str, rays: int) -> float | None:
        other = known.get((name, rays))
        return row[key] / other[key] if other and row[key] is not None else None

    return [
        row
        | {
            "peak_over_plain": ratio(row, "peak_bytes", "plain", row["rays_per_image"]),
            "time_over_default": ratio(row, "seconds_per_step", "default", row["rays_per_image"]),
            "peak_over_1024_rays": ratio(row, "peak_bytes", row["name"], 1024),
        }
        for row in rows
    ]


def verdicts(rows: list[dict]) -> list[str]:
    """A line for each bar: what was measured, and whether that meets it."""
    lines = []
    for bar in BARS:
        measured = [row for row in rows if (row["name"], row["rays_per_image"]) == (bar.variant, bar.rays)]
        if AMP in VARIANTS[bar.variant]:  # a bar for 16 bits, which mixed precision is not on every CPU
            measured = [row for row in measured if row["number_format"] != "float32"]
        found = [row[bar.value] for row in measured]
        value = found[0] if found else None
        said = "not measured" if value is None else f"{value:.2f}, {'met' if value <= bar.limit else 'MISSED'}"
        what = bar.value.replace("_", " ")
        lines.append(f"{bar.variant}, {bar.rays:,} rays: {what} at most {bar.limit:.2f}: {said}")
    return lines


def expected_bytes(rows: list[dict], variant: str, rays: int) -> float:
    """Bytes that a variant would take with so many rays, judging by its largest measured row; 0 where there is none."""
    if CHECKPOINT in VARIANTS[variant]:  # takes hardly more with more rays
        return 0
    known = [row for row in rows if row["name"] == variant and row["rays_per_image"] < rays]
    largest = max(known, key=lambda row: row["rays_per_image"], default=None)
    return largest["peak_bytes"] * rays / largest["rays_per_image"] if largest else 0


def measure_rules(config: Config, n_steps: int, device: torch.device) -> list[dict]:
    """Rows of a rule's name, its values kept and broken, and their unit: peak `bytes` of tensors, or `seconds`, the median of
    n_steps steps."""
    as_many_samples = dataclasses.replace(config, nerf=dataclasses.replace(config.nerf, render_samples_per_ray=0))
    generator = Generator(as_many_samples).to(device)  # rendering takes as many samples as training
    usual, zero_grad = step_peak(config, device), torch.optim.Optimizer.zero_grad
    with mock.patch.object(torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: zero_grad(self, False)):
        zeroed = step_peak(config, device)
    rows = [
        ("zero_grad(set_to_none=True), not filling with zeros", "bytes", usual, zeroed),
        ("tensors end with their function, not with the run", "bytes", usual, step_peak(config, device, keeps_renderings=True)),
        ("frames are rendered under inference_mode, not with a graph", "bytes", *frame_peaks(generator)),
        ("the cache is emptied between phases, not each step", "seconds", *step_seconds(config, n_steps, device)),
    ]
    return [dict(zip(("name", "unit", "kept", "broken"), row, strict=True)) for row in rows]


def step_peak(config: Config, device: torch.device, keeps_renderings: bool = False) -> int:
    """Peak bytes of tensors in the second of two steps, by when optimizers and gradients are there."""
    renderings = []
    with LiveBytes() as counter:
        state = TrainState(config, device)
        if keeps_renderings:
            state.generator.register_forward_hook(lambda _module, _inputs, rendering: renderings.append(rendering))
        taken = timed_steps(state)
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
    freeze_imports()
    state = TrainState(config, device)
    medians = []
    for taken in (timed_steps(state), timed_steps(state, afterwards=clean_up)):
        medians.append(statistics.median(seconds for seconds, _ in islice(taken, WARM_UP_STEPS, WARM_UP_STEPS + n_steps)))
    return tuple(medians)


def counted_peak(config: Config, plain: bool = False, shapes_only: bool = True, counted_too: OneThread | None = None) -> int:
    """Most live bytes of tensors in a training step that is not the first, on the CPU.

    Where `shapes_only`, nothing is computed, and all samples are taken to have density; `plain` takes the step with
    bench/plain_step.py; another counter may count along.
    """
    replaced = [
        (nn.Module, "to", lambda self, *_, **__: self),  # fake parameters cannot be moved
        (training_state, "planning_budget", lambda *_: 0),  # the count is of no machine
    ]
    if shapes_only:
        replaced += [
            (rendering, "indices_of", lambda wanted: wanted.byte().argsort(dim=1)),
            # From PyTorch 2.7 on ShapesOnly never frees what is loaded from a file
            (perception, "load_efficientnet", lambda _, name=EFFICIENTNET: EfficientNet.from_name(name)),
            # Nothing is computed, and one iteration holds as much as many
            (convolutional, "POWER_ITERATIONS", 1),
        ]
    caches = projection_operators, frozen_network, whole_frame  # of tensors that may have no content
    for cache in caches:
        cache.cache_clear()
    with contextlib.ExitStack() as stack:
        for target in replaced:
            stack.enter_context(mock.patch.object(*target))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(ShapesOnly() if shapes_only else contextlib.nullcontext())
        counter = stack.enter_context(LiveBytes())
        stack.enter_context(counted_too or contextlib.nullcontext())
        state = TrainState(config, torch.device("cpu"))
        state.skip_to_costliest_step()
        if plain:
            state.generator = PlainGenerator(state.generator)
        batch, width = config.training.batch_size, config.data.imsize
        images = torch.zeros(batch, config.data.channels, width, width)
        labels = Labels.of_poses(torch.ones(batch, 3, 4))
        for network, optimizer in ((state.generator, state.optimizer_g), (state.discriminator, state.optimizer_d)):
            for parameter in network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()  # so that it has its state, as after a first step
        counter.peak = counter.live
        for_d = discriminator_batch(state, labels, images, labels)
        for_g = generator_batch(state, labels, images, labels)
        discriminator_step(state, for_d)
        generator_step(state, for_g)
    for cache in caches:
        cache.cache_clear()
    return counter.peak
