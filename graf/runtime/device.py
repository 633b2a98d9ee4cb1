"""The device of a run, and how the CPU's allocator treats it."""

import contextlib
import ctypes
import logging
import sys

from graf.errors import GrafError
from graf.runtime.cards import unusable_cards
from graf.runtime.limits import process_bytes

import torch

log = logging.getLogger("graf")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_KEPT = 6 * 2**20  # bytes: holes of larger blocks would double what a wide network's step holds


def choose_device(name: str) -> torch.device:
    """`auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:1`. A card has its index, and becomes the current device.

    `auto` warns where it takes the CPU beside a card that PyTorch cannot use. Raises GrafError for what this machine lacks.
    """
    if name == "auto" and not torch.cuda.is_available():
        if why := unusable_cards():
            log.warning("%s. The CPU is taken; --device cpu does so without this warning", why)
        return torch.device("cpu")
    try:
        device = torch.device("cuda" if name == "auto" else name)
    except RuntimeError:
        raise GrafError(f"--device {name}: expected auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise GrafError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    if why := unusable_cards():
        raise GrafError(f"--device {name}: {why}; or take --device cpu")
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= n_devices:
        raise GrafError(f"--device {name}: PyTorch sees {n_devices} CUDA device(s) here; try --device auto")
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    torch.cuda.set_device(device)
    return device


def keep_freed_memory() -> None:
    """Let glibc keep all but the largest freed blocks for the next step, which avoids page faults.

    A training step on the CPU is 1.5 times as fast with it (bench/benchmark.py speed prints it).
    """
    call_glibc("mallopt", M_MMAP_THRESHOLD, LARGEST_KEPT)
    call_glibc("mallopt", M_TRIM_THRESHOLD, 2**31 - 1)


def call_glibc(function: str, *numbers: int) -> None:
    """Call a function of glibc; does nothing on other systems and with another C library."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            getattr(ctypes.CDLL("libc.so.6"), function)(*numbers)


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process has held: allocated on a card, or resident in the host's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    own = process_bytes("VmHWM")  # on Linux ru_maxrss survives exec, so it may be the peak of another program
    if own is not None:
        return own
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # KiB elsewhere
