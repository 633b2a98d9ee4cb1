"""A GPU that a CPU pretends to be: what a training step would launch, copy and wait for on one is counted without one.

Tensors that would be on the GPU bear a mark, and say that they are there. Each operation is computed by the CPU, and noted
where it would make the host wait for the GPU (a value is read, or a shape depends on values), mixes tensors of both, or copies
between them. Autocast is the one of the CPU, whose lists of operations differ a little; memory and seconds are not pretended.
"""

import contextlib
import inspect
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from graf.rays import whole_frame
from graf.runtime.limits import GB
from operations import EachOperation, grouped_by, tensors_in

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
ROOT = Path(__file__).resolve().parent.parent
PACKAGE = f"{ROOT / 'graf'}{os.sep}"
READS = {"item", "__int__", "__float__", "__bool__", "__index__", "__contains__", "__format__", "tolist", "numpy", "__array__"}
SHAPED_BY_VALUES = {"nonzero", "masked_select", "unique", "argwhere", "bincount", "repeat_interleave", "equal", "allclose"}
FROM_VALUES = {"tensor", "as_tensor", "new_tensor", "asarray"}  # of the host
MOVES = {"to", "cpu", "cuda", "type_as", "pin_memory"}
MAY_MIX = {"__getitem__", "__setitem__", "copy_", "__get__", "__set__", "backward", "grad"}
MEMORY_BYTES = 80 * GB


class PretendedGpu(TorchFunctionMode):
    """The record since `reset`: names and numbers of launched operations, and waits, mixtures and copies from the host
    with the line of this package that asked for each."""

    def __init__(self, device: torch.device = GPU):
        super().__init__()
        self.device = device
        self._operations = EachOperation(self._launch)
        self.computes = False  # whether the operation under way would be the GPU's
        self.reset()

    def reset(self) -> None:
        self.launches, self.waits, self.mixtures = Counter(), Counter(), Counter()
        self.bytes = 0  # read and written by launched operations
        self.doubles = Counter()  # results in float64
        self.copies, self.unpinned = Counter(), Counter()  # from the host, without a wait; `unpinned` wait for the host's pages

    def __enter__(self):
        self._operations.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._operations.__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", str(function))
        if "." in name:  # an operation that another one consists of, which older versions of PyTorch show here too
            return function(*args, **kwargs)
        attribute = getattr(getattr(function, "__self__", None), "__name__", "")
        if name == "__get__" and attribute in ("device", "is_cuda", "is_cpu"):
            on = is_on_gpu(args[0])
            return {"device": self.device if on else HOST, "is_cuda": on and self.device == GPU, "is_cpu": not on}[attribute]
        if name in MOVES:
            return self._move(function, name, args, kwargs)
        if name == "is_pinned":
            return is_pinned(args[0])
        if name == "copy_" and is_on_gpu(args[0]) != is_on_gpu(args[1]):
            self._note_transfer(args[1], is_on_gpu(args[0]), kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
        pinned = kwargs.pop("pin_memory", False)
        inputs = tensors_in((args, kwargs))
        on_gpu, makes = any(map(is_on_gpu, inputs)), False
        if (device := kwargs.get("device")) is not None:
            makes, kwargs["device"] = torch.device(device).type == self.device.type, HOST
        self._note_wait(name, args, on_gpu or makes)
        if on_gpu and name not in MAY_MIX:
            for x in inputs:
                if not is_on_gpu(x) and x.dim() > 0:
                    self.mixtures[f"{name} of {tuple(x.shape)} at {place()}"] += 1
        result = self._computed(function, args, kwargs, on_gpu or makes)
        if pinned:
            result.pinned = True
        if name == "__set__" and attribute == "data":
            args[0].on_gpu = is_on_gpu(args[1])
        elif (on_gpu and device is None) or makes:
            for x in tensors_in(result):
                if not any(x is given and not is_on_gpu(given) for given in inputs):
                    x.on_gpu = True
                    if x.dtype == torch.float64:
                        self.doubles[f"{name} at {place()}"] += 1
        return result

    def _computed(self, function, args, kwargs, on_gpu: bool) -> Any:
        before, self.computes = self.computes, on_gpu
        try:
            return function(*args, **kwargs)
        finally:
            self.computes = before

    def _launch(self, name: str, touched: int) -> None:
        if self.computes:
            self.launches[name] += 1
            self.bytes += touched

    def _note_wait(self, name: str, args: tuple, on_gpu: bool) -> None:
        if not on_gpu:
            return
        if name in READS | SHAPED_BY_VALUES | FROM_VALUES:
            self.waits[f"{name} at {place()}"] += 1
        if name in ("__getitem__", "__setitem__") and is_on_gpu(args[0]):
            for index in tensors_in(args[1]):
                if index.dtype in (torch.bool, torch.uint8):
                    self.waits[f"index by a mask at {place()}"] += 1
                elif not is_on_gpu(index) and index.dim() > 0:
                    self.waits[f"index of the host at {place()}"] += 1

    def _note_transfer(self, source: Tensor, to_gpu: bool, non_blocking: bool) -> None:
        if to_gpu and not is_pinned(source):
            self.unpinned[f"{tuple(source.shape)} at {place()}"] += 1
        if not non_blocking:
            self.waits[f"copy {'from' if to_gpu else 'to'} the host at {place()}"] += 1
        elif to_gpu:
            self.copies[f"{tuple(source.shape)} at {place()}"] += 1

    def _move(self, function, name: str, args: tuple, kwargs: dict) -> Tensor:
        """x.to(...) and the like, computed without a device; the result bears the mark of where it was to go."""
        source, *others = args
        if name == "pin_memory":
            pinned = source.clone()
            pinned.pinned = True
            return pinned
        was = goes = is_on_gpu(source)
        if name in ("cpu", "cuda"):
            goes, function, others = name == "cuda", Tensor.to, [HOST]
        given = [kwargs.get("device"), *(x for x in others if isinstance(x, (torch.device, str, Tensor)))]
        for target in given:
            if target is not None:
                goes = is_on_gpu(target) if isinstance(target, Tensor) else torch.device(target).type == self.device.type
        others = [HOST if isinstance(x, (torch.device, str)) and name != "type_as" else x for x in others]
        if kwargs.get("device") is not None:
            kwargs["device"] = HOST
        moved = self._computed(function, (source, *others), kwargs, was and goes)
        if was != goes:
            self._note_transfer(source, goes, kwargs.get("non_blocking", False) or any(x is True for x in others))
            if moved is source:
                moved = source.detach() if isinstance(source, nn.Parameter) else source.view_as(source)
        moved.on_gpu = goes
        if goes and moved.dtype == torch.float64:
            self.doubles[f"{name} at {place()}"] += 1
        return moved


def is_on_gpu(x: Tensor) -> bool:
    """Whether a tensor bears the mark."""
    return getattr(x, "on_gpu", False)


def is_pinned(x: Tensor) -> bool:
    """Whether a tensor of the host, or what it is a view of, is in pinned memory."""
    return getattr(x, "pinned", False) or (x._base is not None and getattr(x._base, "pinned", False))


def place() -> str:
    """File and line of this package from which the operation under way was called."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            return f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args, **kwargs):
        super().__init__("cpu", *args, **kwargs)


@contextlib.contextmanager
def pretended_gpu(gpu_device: torch.device = GPU) -> Iterator[PretendedGpu]:
    """A pretended GPU of NVIDIA's, or with `mps` of Apple's, for what is made and called inside."""
    gpu, make_rng, is_autocast_on = PretendedGpu(gpu_device), torch.Generator, torch.is_autocast_enabled
    autocast_dtype, copy_parameter = torch.get_autocast_dtype, nn.Parameter.__deepcopy__

    def rng(device="cpu") -> torch.Generator:
        return OnGpu() if torch.device(device).type == gpu_device.type else make_rng(device)

    class OnGpu(torch.Generator):
        device = gpu_device

    def copied(parameter: nn.Parameter, memo: dict) -> nn.Parameter:
        copy = copy_parameter(parameter, memo)
        copy.on_gpu = is_on_gpu(parameter)
        return copy

    replaced = (
        (torch.cuda, "is_available", lambda: gpu_device == GPU),
        (torch.backends.mps, "is_available", lambda: gpu_device != GPU),
        (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
        (torch.cuda, "mem_get_info", lambda device=None: (MEMORY_BYTES, MEMORY_BYTES)),
        (torch.cuda, "get_device_name", lambda device=None: "pretended GPU"),
        (torch.cuda, "get_device_capability", lambda device=None: (7, 5)),  # on which no field is fused
        (torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state()),
        (torch.cuda, "set_rng_state", lambda state, device=None: None),
        (torch.cuda, "memory_reserved", lambda device=None: 0),
        (torch, "autocast", _Autocast),
        (torch, "is_autocast_enabled", lambda device_type="cpu": is_autocast_on("cpu")),
        (torch, "get_autocast_dtype", lambda device_type: autocast_dtype("cpu")),
        (torch, "Generator", rng),
        (nn.Parameter, "__deepcopy__", copied),
        (torch.cuda, "is_current_stream_capturing", lambda: False),
        (torch.accelerator, "current_accelerator", lambda check_available=False: None),
    )
    with contextlib.ExitStack() as stack:
        whole_frame.cache_clear()  # of what is on another GPU
        stack.callback(whole_frame.cache_clear)
        for where, name, value in replaced:
            stack.enter_context(mock.patch.object(where, name, value))
        stack.enter_context(grouped_by(lambda x: gpu_device if is_on_gpu(x) else HOST))
        yield stack.enter_context(gpu)
