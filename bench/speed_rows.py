"""The measurements of bench/benchmark.py speed, render and growth: rates, operations, the cost of parts.

A part is measured by itself: one step is taken with each call of the part noted, then these calls are made again with the same
tensors, forward and backward. Bytes are those of all tensors that operations read and write, wherever these lie.
"""

import platform
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any
from unittest import mock

from graf.camera import rotation_poses
from graf.config import Config
from graf.models import generator as rendering
from graf.models.ccsr import Refinement
from graf.models.generator import Generator
from graf.models.occupancy import ObjectRenderer
from graf.runtime.device import keep_freed_memory, peak_memory_bytes
from graf.runtime.limits import available_cores
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.precision import AmpSettings, has_bfloat16
from graf.runtime.threads import map_in_threads
from graf.training import learn
from graf.training.graphs import EAGER_STEPS
from graf.training.state import TrainState
from memory_rows import WARM_UP_STEPS, counted_peak, idle_bytes, timed_steps, wait_for
from operations import OneThread, flops_of, map_tensors, tensors_in
from plain_step import PlainGenerator

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

REPEATS = 5
LAUNCHES = "cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync"  # in CUDA's names
SIZES = {"cpu": (2048, 2**26), "cuda": (8192, 2**28)}  # side of the matrices, and float32 numbers that are copied


def instructions(device: torch.device) -> str:
    """The GPU's name, or the widest vector instructions of the CPU that PyTorch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    bfloat16 = " with hardware bfloat16" if has_bfloat16(device) else ""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{bfloat16}"


def product_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Operations per second of a product of two square matrices, the fastest of a few."""
    side = SIZES[device.type][0]
    a, b = torch.ones(2, side, side, dtype=dtype, device=device)
    return 2 * side**3 / min(seconds_of(lambda: a @ b, device) for _ in range(REPEATS))


def copy_rate(device: torch.device) -> float:
    """Bytes per second, read and written, of copying a tensor that no cache holds, the fastest of a few."""
    a = torch.ones(SIZES[device.type][1], device=device)
    b = torch.ones_like(a)
    return 2 * a.nbytes / min(seconds_of(lambda: b.copy_(a), device) for _ in range(REPEATS))


def seconds_of(call: Callable[[], Any], device: torch.device) -> float:
    wait_for(device)
    start = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - start


def utilised(found: dict, config: Config, plain: bool, device: torch.device) -> dict:
    """A row of a step that memory_rows.measure_steps has found: with its share of the rate of a product."""
    seconds, work = found["seconds_per_step"], Work()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors without content
        counted_peak(config, plain, counted_too=work)
    rate = product_rate(AmpSettings.choose(config.training, device).dtype, device)
    return described(config, device) | {
        "seconds": seconds,
        "cpu_seconds": found["cpu_seconds_per_step"],
        "peak_bytes": found["peak_bytes"],
        "flop_utilisation": work.flops / seconds / rate,
    }


def described(config: Config, device: torch.device) -> dict:
    """The work of a row, its number format and the CPU's instructions."""
    nerf, training, rays = config.nerf, config.training, config.ray_sampler.rays_per_patch
    samples = nerf.samples_per_ray + nerf.importance_samples_per_ray
    return {
        "work": f"step of {config.expname}: {training.batch_size} images, {rays:,} rays each, {samples} samples per ray, "
        f"{nerf.conditioning} of width {nerf.netwidth}; {available_cores()} cores",
        "dtype": AmpSettings.choose(training, device).number_format,
        "instructions": instructions(device),
    }


class Work(OneThread):
    """Counts the operations of the products and convolutions inside it, of which an addition and a multiplication are two, and
    the bytes of the tensors that each operation reads and writes; a view moves none."""

    def __init__(self):
        super().__init__()
        self.flops = self.n_bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        self.flops += flops_of(operation, args, kwargs, result)
        if not operation.is_view:
            self.n_bytes += sum(x.nbytes for x in tensors_in((args, kwargs, result)))
        return result


@dataclass(frozen=True)
class Call:
    """One call of a part within a step, to be made again."""

    function: Callable
    args: tuple
    kwargs: dict
    learns: bool  # has a backward pass
    learning: list[nn.Parameter]  # of both networks, those that have gradients in it
    autocast: bool
    in_thread: bool  # of one core, beside others; else with all cores

    def again(self, state: TrainState, cost: Callable[[str, Callable], None]) -> None:
        """Hand `cost` the forward pass, and the backward pass where there is one."""
        results = []

        def forward() -> None:
            with torch.set_grad_enabled(self.learns), state.amp.autocast(self.autocast):
                results.append(self.function(*args, **kwargs))

        args, kwargs = map_tensors(_leaf, (self.args, self.kwargs))
        cost("forward", forward)
        ends = [x for x in tensors_in([getattr(r, "logits", r) for r in results]) if x.requires_grad]
        leaves = [x for x in tensors_in((args, kwargs)) if x.requires_grad] + self.learning
        if ends:
            cost("backward", lambda: torch.autograd.grad(ends, leaves, [torch.ones_like(x) for x in ends], allow_unused=True))


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.requires_grad)


def calls_of_a_step(state: TrainState) -> dict[str, list[Call]]:
    """The calls of each part in one training step; those inside another part are that part's."""
    generator = state.generator
    parts = [
        ("planes", generator.field, "styles"),
        ("field", generator.field, "forward"),
        ("compositing", rendering, "composite"),
        ("CCSR", Refinement, "forward"),  # of its copies too, by which the field learns
        ("discriminator", state.discriminator, "forward"),
        ("penalty", state.discriminator, "gradient_penalty"),
        ("optimizers", learn, "clip_and_step"),
        ("EMA", state, "update_ema"),
    ]
    calls, here = {name: [] for name, _, _ in parts}, threading.local()

    def noting(name: str, function: Callable) -> Callable:
        def noted(*args: Any, **kwargs: Any) -> Any:
            if getattr(here, "inside", False):
                return function(*args, **kwargs)
            learning = [p for network in (generator, state.discriminator) for p in network.parameters() if p.requires_grad]
            how = torch.is_grad_enabled(), learning, torch.is_autocast_enabled(state.device.type)
            in_thread = threading.current_thread() is not threading.main_thread()
            calls[name].append(Call(function, args, kwargs, *how, in_thread))
            here.inside = True
            try:
                return function(*args, **kwargs)
            finally:
                here.inside = False

        return noted

    with ExitStack() as patches:
        for name, owner, attribute in parts:
            if owner is not None:
                patches.enter_context(mock.patch.object(owner, attribute, noting(name, getattr(owner, attribute))))
        next(timed_steps(state))
    return calls


def part_rows(config: Config, device: torch.device, n_steps: int) -> list[dict]:
    """Rows of name, flops, bytes and seconds of a step's parts, forward and backward, of what is in none of them, and of the
    whole step."""
    keep_freed_memory()
    state = TrainState(config, device)
    step = median(seconds for seconds, _ in islice(timed_steps(state), WARM_UP_STEPS, WARM_UP_STEPS + n_steps))
    rows = [
        {"name": name if len(costs) == 1 else f"{name}, {direction}"} | cost
        for name, costs in ((name, costs_of(calls, state, n_steps)) for name, calls in calls_of_a_step(state).items())
        for direction, cost in costs.items()
    ]
    rest = {"name": "the rest", "flops": 0, "bytes": 0, "seconds": step - sum(row["seconds"] for row in rows)}
    whole = {"name": "step", "seconds": step} | {key: sum(row[key] for row in rows) for key in ("flops", "bytes")}
    product, copy = product_rate(state.amp.dtype, device), copy_rate(device)
    about = described(config, device) | {"product_rate": product, "copy_rate": copy}
    for row in (all_rows := [*rows, rest, whole]):
        shares = row["flops"] / row["seconds"] / product, row["bytes"] / row["seconds"] / copy
        row |= about | dict(zip(("flop_utilisation", "copy_utilisation"), shares, strict=True))
    return all_rows


def costs_of(calls: list[Call], state: TrainState, repeats: int) -> dict[str, dict]:
    """flops, bytes and seconds (the median of the repeats) of all calls together: `forward`, and `backward` if there is one."""
    costs: dict[str, dict] = {}

    def count(direction: str, call: Callable) -> None:
        with Work() as work:
            call()
        found = costs.setdefault(direction, {"flops": 0, "bytes": 0})
        found["flops"] += work.flops
        found["bytes"] += work.n_bytes

    def take_time(direction: str, call: Callable) -> None:
        turns[-1][direction].append(seconds_of(call, state.device))  # a sum would lose what other threads add to it meanwhile

    for call in calls:
        call.again(state, count)
    turns, n_threads = [], torch.get_num_threads() if any(call.in_thread for call in calls) else 1
    for _ in range(repeats):
        turns.append({direction: [] for direction in costs})
        for _ in map_in_threads(lambda call: call.again(state, take_time), calls, n_threads):
            pass
    seconds = {direction: median(sum(turn[direction]) for turn in turns) / n_threads for direction in costs}
    return {direction: cost | {"seconds": seconds[direction]} for direction, cost in costs.items()}


def throughput(config: Config, device: torch.device, n_steps: int) -> dict:
    """Images per second of n_steps steps of whole batches that are waited for once, as in training, and their peak memory; of
    a GPU also what a step launches, and the share of the time in which it computes. Raises OutOfMemory."""
    keep_freed_memory()
    idle = idle_bytes(device)
    state = TrainState(config, device)
    steps = timed_steps(state, waits=False)

    def take(n: int) -> None:
        for _ in islice(steps, n):
            pass

    take(EAGER_STEPS + 2)  # the next ones are recorded ones
    seconds = seconds_of(lambda: take(n_steps), device) / n_steps
    if state.sizes.smaller_than is not None:
        raise OutOfMemory(f"a step was taken with {state.sizes}")
    row = {
        "recorded": bool(state.graphs),
        "number_format": state.amp.number_format,
        "images_per_second": config.training.batch_size / seconds,
        "peak_bytes": peak_memory_bytes(device) - idle,
        "launches": None,
        "busy_share": None,
    }
    if device.type == "cuda":
        launches, gpu_seconds = gpu_work(lambda: take(1), device)
        row |= {"launches": launches, "busy_share": gpu_seconds / seconds}
    return row


def gpu_work(call: Callable[[], None], device: torch.device) -> tuple[int, float]:
    """The number of launches of a call on a GPU, a graph counting as one, and the seconds that the GPU computes for it."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        call()
        wait_for(device)
    launches = sum(event.name.startswith(LAUNCHES) for event in found.events())
    on_gpu = [e for e in found.events() if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    return launches, sum(event.self_device_time_total for event in on_gpu) / 1e6


def frame_row(generator: Generator, row: dict, n_frames: int) -> dict:
    """Seconds of a frame of `pixels` a side of one object that turns once in n_frames, by the way of the row's name: of
    bench/plain_step.py, with the system's allocator; of Generator.render; with the object's styles computed once; or fast."""
    device, pixels, name = generator.background.device, row["pixels"], row["name"]
    if name != "plain":
        keep_freed_memory()
    idle = idle_bytes(device)
    latents = generator.sample_latents(1, torch.Generator().manual_seed(0))
    poses, a_class = rotation_poses(n_frames, generator.config.data), torch.zeros(1, dtype=torch.long)

    def render(poses: Tensor) -> None:
        if name in ("object", "fast"):
            ObjectRenderer(generator, latents, a_class, fast=name == "fast").render(poses, pixels)
        else:
            frames = PlainGenerator(generator) if name == "plain" else generator
            for pose in poses:
                frames.render(latents, pose[None], pixels)

    render(poses[:1])  # a first frame waits for kernels and memory
    cpu = time.process_time()
    seconds = seconds_of(lambda: render(poses), device) / n_frames
    training = replace(generator.config.training, use_amp=False)
    return described(replace(generator.config, training=training), device) | {
        "work": f"frame of {generator.config.expname}, {pixels} x {pixels}, one of {n_frames}; {available_cores()} cores",
        "seconds": seconds,
        "cpu_seconds": (time.process_time() - cpu) / n_frames,
        "peak_bytes": peak_memory_bytes(device) - idle,
        "flop_utilisation": None,
    }


def growth_rows(builds: dict[str, dict[int, Config]], device: torch.device, rounds: int) -> list[dict]:
    """A row per quantity and value of it: seconds of a step, the fastest of some, all configs being measured in turns."""
    keep_freed_memory()
    points = [(name, value, TrainState(config, device)) for name, values in builds.items() for value, config in values.items()]
    running = [timed_steps(state) for *_, state in points]
    turns = [[next(steps)[0] for steps in running] for _ in range(1 + rounds)][1:]
    return [
        {"name": name, "value": value, "seconds": min(seconds)} | described(state.config, device)
        for (name, value, state), seconds in zip(points, zip(*turns, strict=True), strict=True)
    ]


def straight_line(values: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """A fixed part and a part per unit, fitted so that the relative errors are small, and the largest of these errors."""
    y = torch.tensor(seconds, dtype=torch.float64)
    x = torch.stack([torch.ones_like(y), torch.tensor(values, dtype=torch.float64)], dim=1)
    fixed, slope = torch.linalg.lstsq(x / y[:, None], torch.ones_like(y)[:, None]).solution[:, 0].tolist()
    return fixed, slope, max(abs(fixed + slope * value - taken) / taken for value, taken in zip(values, seconds, strict=True))
