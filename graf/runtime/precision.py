"""Chooses the number format that a run's networks compute in: the only place that decides where mixed precision pays off.

It does on hardware that multiplies in 16 bits. Other CPUs, such as those with AVX2 only, emulate bfloat16 slowly, so mixed
precision means float32 there unless the config names bfloat16. It means float32 likewise on GPUs that have no tensor cores, or
whose convolutions in float16 are wrong, unless the config names float16.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import os
import platform
import re
from collections.abc import Iterator
from itertools import pairwise

from graf.config import TrainingConfig
from graf.private_torch import ARM, cpu_has_bfloat16

import torch
from torch.nn import functional as F

log = logging.getLogger("graf")

TIMES_SLOWER = 7  # a step in bfloat16 than in float32, on two cores with AVX2 only (bench/benchmark.py speed --dtype bfloat16)
NARROW = ("DEFAULT", "NO AVX", "AVX2")  # of torch.backends.cpu.get_cpu_capability: without AVX-512
FIRST_WITH_TENSOR_CORES = 7, 0  # compute capability: Volta
WITHOUT_TENSOR_CORES = re.compile(r"\b(GTX 16\d\d|MX\d{3}|T\d{3,4}|CMP 30HX)\b")  # of 7.5: TU116 and TU117, not a T4
LARGEST_ERROR = 0.01  # of a convolution in float16, of which rounding makes less than 0.001
WITH_BFLOAT16 = ("ALL", "DEFAULT", "BF16", "FP16", "AMX", "AVX10")  # parts of ONEDNN_MAX_CPU_ISA's names that allow them


@dataclasses.dataclass(frozen=True)
class AmpSettings:
    """Mixed precision on one device: the number format of the products under autocast, float32 where there is none."""

    device_type: str
    dtype: torch.dtype

    @classmethod
    def choose(cls, training: TrainingConfig, device: torch.device) -> "AmpSettings":
        """The format that training.use_amp and training.amp_dtype ask for. `auto` is bfloat16 where the device has it, else
        float16 on a GPU that is fast and right in it, else float32. On a CPU float16 is taken for `auto`; an Apple GPU computes
        in float32."""
        if not training.use_amp or device.type == "mps":
            return cls(device.type, torch.float32)
        on_cpu, named = device.type == "cpu", training.amp_dtype
        if named != "auto" and not (on_cpu and named == "float16"):
            return cls(device.type, getattr(torch, named))
        if has_bfloat16(device):
            return cls(device.type, torch.bfloat16)
        return cls(device.type, torch.float32 if on_cpu or why_not_float16(device) else torch.float16)

    @property
    def enabled(self) -> bool:
        return self.dtype != torch.float32

    @property
    def number_format(self) -> str:
        """The format's name, such as bfloat16."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self, enabled: bool = True) -> torch.autocast:
        """The context in which networks run; `enabled=False` for what needs float32 inside it.

        On the CPU weights are converted at each use: all threads share one cache of them, which each empties when it likes.
        """
        cached = self.device_type != "cpu"
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled and enabled, cache_enabled=cached)

    def scaler(self) -> torch.amp.GradScaler:
        """Loss scaling, live where float16 needs it."""
        return torch.amp.GradScaler(self.device_type, enabled=self.dtype == torch.float16)


def log_number_format(training: TrainingConfig, device: torch.device) -> None:
    """Log one line where mixed precision is requested but is float32, another format, or slow or wrong here."""
    if not training.use_amp:
        return
    if device.type == "mps":
        log.info("mixed precision: none on an Apple GPU; training in float32")
        return
    named = training.amp_dtype
    if device.type == "cuda":
        wants_float16 = named == "float16" or (named == "auto" and not has_bfloat16(device))
        why = why_not_float16(device) if wants_float16 else ""
        if why and named == "float16":
            log.warning("training.amp_dtype: float16, but %s; training.amp_dtype=auto takes another format here", why)
        elif why:
            log.info("mixed precision: %s; training in float32", why)
        elif named == "bfloat16" and not has_bfloat16(device):
            log.warning(
                "training.amp_dtype: bfloat16 on a GPU that only emulates it: expect slow steps; training.amp_dtype=auto takes "
                "another format here"
            )
    elif has_bfloat16(device):
        if named == "float16":
            log.info("mixed precision: float16 is for GPUs; training in bfloat16 on this CPU")
    elif named == "bfloat16":
        log.warning(
            "training.amp_dtype: bfloat16 on a CPU without hardware bfloat16: expect steps %d times slower than in float32, "
            "which training.amp_dtype=auto takes here",
            TIMES_SLOWER,
        )
    else:
        log.info("mixed precision: no hardware bfloat16 on this CPU; training in float32")


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware, and PyTorch uses that."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    instructions = cpu_has_bfloat16()
    if platform.machine().lower() in ARM:
        return instructions
    return instructions and torch.backends.mkldnn.is_available() and not _held_back()


def why_not_float16(device: torch.device) -> str:
    """Why a GPU should not compute in float16: wrong convolutions, or no tensor cores, without which it saves memory alone.

    "" where it should, and where there is no GPU, as when a step is planned on another machine.
    """
    if not torch.cuda.is_available():
        return ""
    name, error = torch.cuda.get_device_name(device), float16_error(device)
    if math.isinf(error):
        return f"a convolution in float16 is not finite on this {name}"
    if error > LARGEST_ERROR:
        return f"a convolution in float16 is off by {error:.0%} of float32's on this {name}"
    capability = torch.cuda.get_device_capability(device)
    if capability < FIRST_WITH_TENSOR_CORES or (capability == (7, 5) and WITHOUT_TENSOR_CORES.search(name)):
        return f"this {name} has no tensor cores"
    return ""


@functools.cache
def float16_error(device: torch.device, side: int = 64) -> float:
    """The largest relative error in float16, against float32, of three convolutions of a side x side image and their gradients;
    infinite where something is not finite.

    They are those of PyTorch's issue 58123, which gave NaN on a GTX 1660; 69449 and 77955 are of the same kind.
    """
    rng = torch.Generator().manual_seed(0)
    widths = 32, 64, 128, 256
    images = torch.randn((1, widths[0], side, side), generator=rng).half().to(device)
    weights = [torch.randn((m, n, 3, 3), generator=rng).div(3 * n**0.5).half().to(device) for n, m in pairwise(widths)]

    def convolved(dtype: torch.dtype) -> list[torch.Tensor]:
        out, learning = images.to(dtype), [weight.to(dtype).requires_grad_() for weight in weights]
        for weight in learning:
            out = F.conv2d(out, weight)
        gradients = torch.autograd.grad(out.float().square().sum() / side**2, learning)
        return [tensor.detach().float() for tensor in (out, *gradients)]

    pairs = zip(convolved(torch.float16), convolved(torch.float32), strict=True)
    errors = [float((found - wanted).norm() / wanted.norm()) for found, wanted in pairs]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def _held_back() -> bool:
    """Whether ATEN_CPU_CAPABILITY or ONEDNN_MAX_CPU_ISA forbids instructions that the CPU has."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "ALL")).upper()
    allowed = any(part in limit for part in WITH_BFLOAT16)
    return not allowed or torch.backends.cpu.get_cpu_capability() in NARROW


@contextlib.contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Make what a CPU computes in this context depend on its inputs to the last bit, not on which thread is the faster.

    Gradients of indexed tensors are otherwise added up in the order in which threads come to them, once there are 32768 of
    them (a batch of 16 with the default view codes); and MKL may choose how many threads share a product until it is told.
    """
    if device.type != "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.set_num_threads(torch.get_num_threads())
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a safeguard against reading it, which costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled
