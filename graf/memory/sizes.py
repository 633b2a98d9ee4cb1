"""How many images and rays a step computes at a time: halved, images first, when memory runs out."""

import dataclasses
import math

from graf.config import Config, MemoryConfig
from graf.memory.budget import budget_bytes
from graf.memory.planner import PROCESS_BYTES, Estimate, estimate_step, smallest_edits
from graf.pieces import SMALLEST_CHUNK
from graf.runtime.limits import GB, local_processes, memory_available
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.processes import Processes

import psutil
import torch

LESS = 0.8  # of an estimate that did not hold
GOOD_STEPS = 500  # after which a step that was made smaller may grow again, once


@dataclasses.dataclass
class StepSizes:
    """`images` of a step's batch per part, and the number of `rays` whose activations are kept, 0 for all of them.

    They never exceed what they started with. The gradient of a step does not depend on them.
    """

    images: int
    rays: int
    n_rays: int  # of an image's patch
    good_steps: int = 0  # since they last changed
    grown: bool = False  # they grow once
    smaller_than: tuple[int, int] | None = None  # images and rays before they were last made smaller
    planned: tuple[int, int] | None = None  # images and rays that the run's process started with

    def shrink(self) -> bool:
        """Take half as many images at a time, or half as many rays of one; False where one chunk of one image is left."""
        if self.images == 1:
            return self.shrink_rays()
        self.smaller_than, self.good_steps = (self.images, self.rays), 0
        self.images = (self.images + 1) // 2
        return True

    def shrink_rays(self) -> bool:
        """Hold half as many rays of the images that are taken at a time; False where so few are not worth it."""
        all_rays = self.images * self.n_rays
        rays = min(self.rays or all_rays, all_rays) // 2
        if rays < min(SMALLEST_CHUNK, self.n_rays):
            return False
        self.smaller_than, self.good_steps = (self.images, self.rays), 0
        self.rays = rays
        return True

    def step_done(self) -> bool:
        """Count a good step. Returns whether the next one is larger again, which happens once."""
        self.good_steps += 1
        if self.smaller_than is None or self.grown or self.good_steps < GOOD_STEPS:
            return False
        (self.images, self.rays), self.smaller_than = self.smaller_than, None
        self.grown, self.good_steps = True, 0
        return True

    def parts(self, n: int) -> list[slice]:
        """Slices of a batch of n, one per part."""
        return split(slice(0, n), self.images)

    def rays_of(self, n: int) -> int:
        """The rays of n images of a part whose activations are kept, 0 for all: threads that have some each share them."""
        return math.ceil(self.rays * n / self.images)

    def of_batch(self, n: int) -> str:
        """How a batch of n is split, as text: `batch 16 in 4 parts of 4`."""
        n_parts = len(self.parts(n))
        up_to = "up to " if n % self.images else ""
        return f"batch {n} in {n_parts} parts of {up_to}{self.images}" if n_parts > 1 else f"batch {n} in one part"

    def __str__(self) -> str:
        images = f"{self.images} image{'s' if self.images > 1 else ''} at a time"
        return images + (f", {self.rays} rays of them" if self.rays else "")

    def state_dict(self) -> dict:
        """Plain values, for a checkpoint."""
        return dataclasses.asdict(self)

    def load_state_dict(self, saved: dict) -> None:
        """Continue with sizes that an out-of-memory had made smaller, unless the config or this machine start with others than
        the run did then."""
        planned = saved.get("planned")  # not in older files
        if planned is not None and tuple(planned) != self.planned:
            return
        self.good_steps, self.grown = saved["good_steps"], saved["grown"]
        changed = saved["grown"] or saved["smaller_than"] is not None
        if not changed or saved["n_rays"] != self.n_rays:
            return
        if saved["images"] <= self.images and (saved["rays"] or math.inf) <= (self.rays or math.inf):
            self.images, self.rays = saved["images"], saved["rays"]
            self.smaller_than = saved["smaller_than"] and tuple(saved["smaller_than"])


def split(rows: slice, n: int) -> list[slice]:
    """Slices of n rows; the last may be shorter."""
    return [slice(start, min(start + n, rows.stop)) for start in range(rows.start, rows.stop, n)]


def smallest_of_all(sizes: StepSizes, processes: Processes) -> StepSizes:
    """The smallest starting sizes of all processes of a run: all use them, and shrink together."""
    images, rays = processes.minimum((sizes.images, sizes.rays or math.inf))
    rays = 0 if rays == math.inf else rays
    return dataclasses.replace(sizes, images=images, rays=rays, planned=(images, rays))


def planning_budget(memory: MemoryConfig, device: torch.device) -> int:
    """The bytes that an estimate may have: `budget_bytes`, and on a GPU its context, which what is free there leaves out."""
    return budget_bytes(memory, device) + (PROCESS_BYTES["cuda"] if device.type == "cuda" else 0)


def starting_sizes(
    config: Config, device_type: str, budget_bytes: int, n_classes: int = 1, n_elevations: int = 1, n_processes: int = 1
) -> StepSizes:
    """The sizes in the config; where it says `auto`, those that fit into the budget according to the planner, in each of
    n_processes that share a batch.

    `budget_bytes` is what the process may hold on the device, with a GPU's context; 0 for no limit.
    """
    n_rays, chunk = config.ray_sampler.rays_per_patch, config.nerf.checkpoint_rays
    if config.unrefined_steps:
        n_rays = config.patch_size**2
    share = config.training.batch_size // n_processes
    sizes = StepSizes(min(config.images_at_once, share), 0 if chunk == "auto" else chunk, n_rays)
    open_images, open_rays = config.training.micro_batch == "auto", chunk == "auto"
    while budget_bytes:
        estimate = estimate_step(with_sizes(config, sizes), device_type, n_classes, n_elevations, n_processes)
        if estimate.total_bytes <= budget_bytes:
            break
        fewer_images = open_images and sizes.images > 1
        if not (sizes.shrink() if fewer_images else open_rays and sizes.shrink_rays()):
            break
    sizes.smaller_than = None  # planned, not forced: nothing to grow back to
    return sizes


def with_sizes(config: Config, sizes: StepSizes) -> Config:
    """The config of a run that takes its steps in these sizes."""
    return dataclasses.replace(
        config,
        training=dataclasses.replace(config.training, accumulation_steps=1, micro_batch=sizes.images),
        nerf=dataclasses.replace(config.nerf, checkpoint_rays=sizes.rays),
    )


def edits_that_fit(config: Config, sizes: StepSizes, budget_bytes: int, device_type: str) -> tuple[str, ...] | None:
    """`smallest_edits` of the config with these sizes; where they name the images at a time, training.accumulation_steps, which
    the config may have instead, goes back to 1."""
    edits = smallest_edits(with_sizes(config, sizes), budget_bytes, device_type)
    names_images = edits and any(edit.startswith("training.micro_batch=") for edit in edits)
    return (*edits, "training.accumulation_steps=1") if names_images and config.training.accumulation_steps > 1 else edits


def little_memory(estimate: Estimate) -> str | None:
    """What to tell where a step takes more of the host's memory, by this estimate, than is free; None elsewhere."""
    needed = estimate.total_bytes
    free = memory_available() // local_processes() + psutil.Process().memory_info().rss
    if needed <= free:
        return None
    of_machine = math.floor(10 * free * local_processes() / GB) / 10
    return (
        f"by the plan a step takes {needed / GB:.1f} GB of memory, and {free / GB:.1f} GB are free: the system may end the "
        "run, or slow it down much. End other programs" + (f", or set memory.budget_gb={of_machine:g}" if of_machine else "")
    )


def with_advice(error: OutOfMemory, config: Config, sizes: StepSizes, device: torch.device) -> OutOfMemory:
    """The error with the settings that would make a step fit; where it should have fitted by the plan, settings for a part of
    what the plan expected, as that was too little."""
    budget = planning_budget(config.memory, device)
    edits, room = edits_that_fit(config, sizes, budget, device.type), f"into {budget / GB:.1f} GB"
    if edits == ():
        less = int(LESS * estimate_step(with_sizes(config, sizes), device.type).total_bytes)
        edits = edits_that_fit(config, sizes, less, device.type) or ()
    if edits is None:
        advice = f"no setting fits {room}; take a smaller data.imsize or another device"
    else:
        advice = f"a step fits {room}" + (f" with --set {' '.join(edits)}" if edits else "; look at what else takes memory")
    if device.type == "cuda" and config.data.cache_device == "auto":
        advice += "; data.cache_device=none frees what images take on the GPU"
    return OutOfMemory(f"{error}; by the plan {advice}. python tools/check_system.py tells more")
