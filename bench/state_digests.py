"""Digests of a checkpoint's state: a sha256 per part, over its numbers rather than the file's bytes.

python bench/state_digests.py results/default
"""

import hashlib
from pathlib import Path
from typing import Any

from graf.checkpoints.checkpoint import read_checkpoint
from graf.checkpoints.generator_loading import trained_checkpoint
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.training.state import SAVED

import torch

PARTS = (*SAVED, "step", "bad_steps", "rollbacks", "best", "lowest_losses", "sizes", "rng")


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint file, or a run's folder")
    path = parser.parse_args().checkpoint
    for name, found in digests(trained_checkpoint(path) if path.is_dir() else path).items():
        log.info("%-14s %s", name, found)
    return 0


def digests(checkpoint: Path) -> dict[str, str]:
    """The sha256 of each part of our checkpoint's state. Raises CheckpointError where the file cannot be read."""
    state = read_checkpoint(checkpoint)["state"]
    return {name: digest(state[name]) for name in PARTS if name in state}  # older ones have fewer


def digest(value: Any) -> str:
    """sha256 of nested tensors and plain values, bit for bit."""
    if isinstance(value, torch.Tensor):
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(repr((value.dtype, value.shape)).encode() + numbers).hexdigest()
    if isinstance(value, dict):
        value = [(repr(key), digest(item)) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        value = [digest(item) for item in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()


if __name__ == "__main__":
    run_script(main)
