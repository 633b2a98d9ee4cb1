"""The number format that a run's networks compute in: the only place that decides where mixed precision pays off.

It does where the processor has instructions for 16-bit products. On other CPUs, such as those with AVX2 only, bfloat16 products
are computed one by one, so mixed precision means float32 there unless the config names bfloat16.
"""

import contextlib
import dataclasses
import logging
import os
import platform
from collections.abc import Iterator

from graf.config import TrainingConfig
from graf.runtime.private_torch import ARM, multiplies_bfloat16_on_cpu

import torch

log = logging.getLogger("graf")

TIMES_SLOWER = 7  # a step in bfloat16 than in float32, on two cores with AVX2 only (bench/benchmark.py speed --dtype bfloat16)
NARROW = ("DEFAULT", "NO AVX", "AVX2")  # of torch.backends.cpu.get_cpu_capability: without AVX-512
WITH_BFLOAT16 = ("ALL", "DEFAULT", "BF16", "FP16", "AMX", "AVX10")  # parts of ONEDNN_MAX_CPU_ISA's names that allow them


@dataclasses.dataclass(frozen=True)
class AmpSettings:
    """Mixed precision on one device: the number format of the products under autocast, float32 where there is none."""

    device_type: str
    dtype: torch.dtype

    @classmethod
    def choose(cls, training: TrainingConfig, device: torch.device) -> "AmpSettings":
        """As training.use_amp and training.amp_dtype ask for. `auto` is bfloat16 where the device multiplies it, else float16
        on a card and float32 on a CPU, where float16, a format of cards, is taken for `auto`."""
        if not training.use_amp:
            return cls(device.type, torch.float32)
        on_cpu, named = device.type == "cpu", training.amp_dtype
        if named == "auto" or (on_cpu and named == "float16"):
            without = torch.float32 if on_cpu else torch.float16
            return cls(device.type, torch.bfloat16 if multiplies_bfloat16(device) else without)
        return cls(device.type, getattr(torch, named))

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
    """Log one line where mixed precision is requested but is float32, another format, or slow here."""
    if not training.use_amp or device.type != "cpu":
        return
    if multiplies_bfloat16(device):
        if training.amp_dtype == "float16":
            log.info("mixed precision: float16 is for cards; training in bfloat16 on this CPU")
    elif training.amp_dtype == "bfloat16":
        log.warning(
            "training.amp_dtype: bfloat16 on a processor without bfloat16 products: expect steps %d times slower than in "
            "float32, which training.amp_dtype=auto takes here",
            TIMES_SLOWER,
        )
    else:
        log.info("mixed precision: no bfloat16 products on this processor; training in float32")


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products of bfloat16 numbers, and PyTorch uses them."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    instructions = multiplies_bfloat16_on_cpu()
    if platform.machine().lower() in ARM:
        return instructions
    return instructions and torch.backends.mkldnn.is_available() and not _held_back()


def _held_back() -> bool:
    """Whether ATEN_CPU_CAPABILITY or ONEDNN_MAX_CPU_ISA forbids the instructions that the processor has."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", os.environ.get("DNNL_MAX_CPU_ISA", "ALL")).upper()
    allowed = any(part in limit for part in WITH_BFLOAT16)
    return not allowed or torch.backends.cpu.get_cpu_capability() in NARROW


@contextlib.contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """On the CPU, what is computed inside depends on its inputs to the last bit, not on which thread is the faster.

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
