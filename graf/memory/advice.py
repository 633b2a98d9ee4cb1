"""What to do about an out-of-memory that ended a run, by the planner."""

from graf.config import Config
from graf.memory.budget import budget_bytes
from graf.memory.planner import smallest_edits
from graf.memory.sizes import StepSizes, with_sizes
from graf.runtime.limits import GB
from graf.runtime.out_of_memory import OutOfMemory

import torch


def with_advice(error: OutOfMemory, config: Config, sizes: StepSizes, device: torch.device) -> OutOfMemory:
    """The error with the settings that would make a step fit."""
    budget = budget_bytes(config.memory, device) + (torch.cuda.memory_reserved(device) if device.type == "cuda" else 0)
    edits, room = smallest_edits(with_sizes(config, sizes), budget, device.type), f"into {budget / GB:.1f} GB"
    if edits is None:
        advice = f"no setting fits {room}; take a smaller data.imsize or another device"
    else:
        advice = f"a step fits {room}" + (f" with --set {' '.join(edits)}" if edits else "; look at what else takes memory")
    return OutOfMemory(f"{error}; by the plan {advice}. python tools/check_system.py tells more")
