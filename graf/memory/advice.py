"""The smallest edits of a config that make a training step fit into a budget."""

import math
from collections.abc import Iterator

from graf.config import Config, override
from graf.errors import ConfigError
from graf.memory.planner import Estimate, estimate_step

SMALLEST_SAMPLES, SMALLEST_WIDTH = 8, 16  # of what is still a picture
RAYS_AT_ONCE = (16384, 4096, 1024)


def fits(estimate: Estimate, budget_bytes: int) -> bool:
    """Whether a process with this estimate stays within the budget, both with what the process takes without tensors."""
    return estimate.total_bytes <= budget_bytes


def smallest_edits(config: Config, budget_bytes: int, device_type: str = "cpu") -> tuple[str, ...] | None:
    """`section.key=value` overrides with which a step stays within the budget, those that cost least; () where it does already.

    Settings are tried in the order of what they cost: number format, then time alone, then the batch, then quality. Each is
    taken as far as it needs to go, and those before it that turn out not to be needed are left out. None where nothing is
    enough.
    """

    def enough(edits: tuple[str, ...]) -> bool:
        return fits(estimate_step(override(config, edits), device_type), budget_bytes)

    taken: tuple[str, ...] = ()
    if enough(taken):
        return taken
    for steps in _ladders(config):
        before = taken
        for edit in steps:
            try:
                ends = enough((*before, edit))
            except ConfigError:  # such as a patch of a size that the discriminator does not have
                continue
            taken = (*before, edit)
            if ends:
                return _needed(taken, enough)
    return None


def _needed(edits: tuple[str, ...], enough) -> tuple[str, ...]:
    for edit in edits[:-1]:
        fewer = tuple(other for other in edits if other != edit)
        if enough(fewer):
            edits = fewer
    return edits


def _ladders(config: Config) -> Iterator[list[str]]:
    """For each setting its edits, milder ones first."""
    training, nerf = config.training, config.nerf
    if not training.use_amp:
        yield ["training.use_amp=true"]
    if training.micro_batch == "auto":  # the same gradient, image by image at the end
        yield [f"training.accumulation_steps={n}" for n in _doublings(2 * training.accumulation_steps, training.batch_size)]
    else:
        yield [f"training.micro_batch={n}" for n in _halvings(training.micro_batch, 1)]
    held = nerf.checkpoint_rays if nerf.checkpoint_rays not in ("auto", 0) else math.inf
    yield [f"nerf.checkpoint_rays={n}" for n in RAYS_AT_ONCE if n < held]
    yield [f"nerf.samples_per_ray={n}" for n in _halvings(nerf.samples_per_ray, SMALLEST_SAMPLES)]
    if config.ccsr.mode != "none" and config.ccsr.backbone == "rrdb":
        yield ["ccsr.backbone=light"]
    yield [f"nerf.netwidth={n}" for n in _halvings(nerf.netwidth, SMALLEST_WIDTH)]
    if nerf.importance_samples_per_ray > 0:
        yield ["nerf.importance_samples_per_ray=0"]
    yield [f"ray_sampler.rays_per_patch={config.ray_sampler.rays_per_patch // 4}"]


def _doublings(first: int, last: int) -> list[int]:
    return [first * 2**i for i in range(last.bit_length()) if first * 2**i <= last]


def _halvings(value: int, last: int) -> list[int]:
    return [value // 2**i for i in range(1, value.bit_length()) if value // 2**i >= last]
