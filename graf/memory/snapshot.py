"""Snapshots of memory: live tensors by shape, the commonest types of objects, and PyTorch's own snapshot of a GPU."""

import gc
import json
import pickle
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from graf.private_torch import allocations, record_allocations
from graf.runtime.files import whole_file, write_text
from graf.runtime.limits import MB

import torch

TOP = 30  # rows of each table in a snapshot's file
HISTORY = 100_000  # allocations that PyTorch remembers, with where they were made


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one shape, dtype and device."""

    shape: tuple[int, ...]
    dtype: str
    device: str


@dataclass(frozen=True)
class Census:
    """How many objects there are since the program started, and what the tensors among them hold.

    A storage that several tensors share counts once, for the first that is met. What only autograd's graph holds is invisible
    to Python, and so are the temporaries inside an operation.
    """

    tensors: Counter[TensorGroup]  # how many
    tensor_bytes: Counter[TensorGroup]
    types: Counter[str]  # how many objects that the garbage collector tracks, by type

    def grown_since(self, before: "Census", n: int) -> list[str]:
        """The n groups of tensors that gained the most bytes, then the n types that gained the most objects, as text."""
        gained_bytes, gained = self.tensor_bytes - before.tensor_bytes, self.tensors - before.tensors
        tensors = [
            f"{gained[group]} tensors {tuple(group.shape)} {group.dtype} on {group.device} ({grown / MB:.0f} MB)"
            for group, grown in gained_bytes.most_common(n)
            if gained[group]
        ]
        return tensors + [f"{count} {name}" for name, count in (self.types - before.types).most_common(n)]


def take_census() -> Census:
    """Count the live objects; blocks Python for a fraction of a second."""
    tensors, tensor_bytes, types = Counter(), Counter(), Counter()
    seen = set()
    for item in gc.get_objects():
        kind = type(item)
        types[f"{kind.__module__}.{kind.__qualname__}"] += 1
        # Stand-ins, of the compiler's own kinds and the planner's on the meta device, have no memory
        if kind not in (torch.Tensor, torch.nn.Parameter) or item.is_meta:
            continue
        try:
            group = TensorGroup(tuple(item.shape), str(item.dtype).removeprefix("torch."), str(item.device))
            storage = item.untyped_storage()
            address, size = (group.device, storage.data_ptr()), storage.nbytes()
        except (RuntimeError, NotImplementedError):  # sparse, quantised or wrapped: no storage of its own
            continue
        tensors[group] += 1
        if address not in seen:
            seen.add(address)
            tensor_bytes[group] += size
    return Census(tensors, tensor_bytes, types)


def record_history(device: torch.device) -> None:
    """Let PyTorch remember where each block on the GPU is allocated, for the snapshots to come. Slows a step slightly."""
    if device.type == "cuda":
        record_allocations(device, HISTORY)


def write_snapshot(folder: Path, step: int) -> Path:
    """memory_<step>.json in the folder: live tensors by shape and the commonest types of objects, the most first.

    Where CUDA is in use, memory_<step>.pickle beside it, which https://pytorch.org/memory_viz draws, with the history of what
    was allocated since `record_history`. Raises OSError where it cannot be written.
    """
    census = take_census()
    path = folder / f"memory_{step:08d}.json"
    tensors = [
        asdict(group) | {"count": census.tensors[group], "bytes": size} for group, size in census.tensor_bytes.most_common(TOP)
    ]
    by_device = defaultdict(int)
    for group, size in census.tensor_bytes.items():
        by_device[group.device] += size
    content = {"step": step, "tensor_bytes": by_device, "tensors": tensors, "types": dict(census.types.most_common(TOP))}
    write_text(path, json.dumps(content, indent=1))
    if torch.cuda.is_initialized() and (found := allocations()) is not None:
        with whole_file(path.with_suffix(".pickle")) as temporary, open(temporary, "wb") as file:
            pickle.dump(found, file)
    return path
