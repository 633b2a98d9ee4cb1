"""PyTorch's private functions, each behind a name of ours; the package uses them nowhere else.

ours                       theirs                                             where it is missing
cpu_has_bfloat16           torch.cpu._is_avx512_bf16_supported,               mixed precision on a CPU is float32
                           torch.cpu._is_amx_tile_supported (before 2.14),
                           torch.ops.mkldnn._is_mkldnn_bf16_supported (ARM)
record_allocations         torch.cuda.memory._record_memory_history           snapshots have no history
allocations                torch.cuda.memory._snapshot                        snapshots are without the GPU's
shallow_copy               torch.nn.Module._modules, _parameters              AttributeError: no way around them
SkippingRMSprop            _step_supports_amp_scaling of torch.optim           GradScaler reads whether a step was skipped
move_towards               torch._foreach_sub, _foreach_mul_, _foreach_add_   AttributeError: no way around them
"""

import copy
import logging
import platform
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger("graf")

ARM = ("aarch64", "arm64")


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware; False where this version of PyTorch does not say."""
    if platform.machine().lower() in ARM:  # elsewhere it also says yes where AVX-512 emulates them
        return _answer(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    if hasattr(torch.cpu, "get_capabilities"):
        found = torch.cpu.get_capabilities()
        return bool(found.get("avx512_bf16") or found.get("amx_tile"))
    return _answer(torch.cpu, "_is_avx512_bf16_supported") or _answer(torch.cpu, "_is_amx_tile_supported")


def shallow_copy(
    network: nn.Module, of_parameter: Callable[[Tensor], Tensor], of_part: Callable[[nn.Module], nn.Module]
) -> nn.Module:
    """A copy of the network, which stays as it is, with what the functions make of each of its own parameters and parts."""
    twin = copy.copy(network)
    twin._parameters = {name: p if p is None else of_parameter(p) for name, p in network._parameters.items()}
    twin._modules = {name: part if part is None else of_part(part) for name, part in network._modules.items()}
    return twin


def move_towards(values: list[Tensor], aims: list[Tensor], share: Tensor) -> None:
    """Move each value, in place, by a share of the way to its aim, in three operations for all of them. The share is a scalar
    on their device."""
    ways = torch._foreach_sub(aims, values)
    torch._foreach_mul_(ways, share)
    torch._foreach_add_(values, ways)


class SkippingRMSprop(torch.optim.RMSprop):
    """RMSprop that, as PyTorch's fused optimizers do, leaves everything as it was where its `found_inf` (a scalar) is 1."""

    _step_supports_amp_scaling = True  # so that torch.amp.GradScaler sets found_inf and reads nothing

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        skip = getattr(self, "found_inf", None)
        if skip is None:
            super().step()
            return
        learning = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        weights, averages = [p.clone() for p in learning], [self._average(p).clone() for p in learning]
        super().step()
        for p, weight, average in zip(learning, weights, averages, strict=True):
            p.copy_(torch.where(skip.bool(), weight, p))
            self._average(p).copy_(torch.where(skip.bool(), average, self._average(p)))

    def _average(self, p: nn.Parameter) -> Tensor:
        """The running mean of a parameter's squared gradient, which is 0 before its first step."""
        return self.state[p]["square_avg"] if "square_avg" in self.state[p] else torch.zeros_like(p)


def record_allocations(device: torch.device, n: int) -> None:
    """Have PyTorch remember the last n allocations on a GPU, with where each was made."""
    if record := _of_cuda_memory("_record_memory_history"):
        record(max_entries=n, device=device)


def allocations() -> Any:
    """PyTorch's own snapshot of the GPU's memory, to be pickled; None where this version has none."""
    snapshot = _of_cuda_memory("_snapshot")
    return snapshot and snapshot()


def _of_cuda_memory(name: str) -> Callable | None:
    found = getattr(torch.cuda.memory, name, None)
    if found is None:
        log.warning("PyTorch %s has no torch.cuda.memory.%s: memory snapshots are without it", torch.__version__, name)
    return found


def _answer(module: ModuleType, name: str) -> bool:
    """The answer of a function that this version of PyTorch may not have; False then."""
    try:
        return bool(getattr(module, name)())
    except (AttributeError, RuntimeError):
        return False
