"""Giving memory back to the system, between phases or when a signal asks for it."""

import ctypes
import gc
import signal
import sys
from pathlib import Path
from types import FrameType

import psutil
import torch


def clean_up() -> None:
    """Collect garbage, empty PyTorch's cache of the card, and hand glibc's free blocks back to the kernel.

    The next steps have to allocate their memory again, which costs time: worth it after a phase of another size, not per step.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform.startswith("linux"):
        try:
            malloc_trim = ctypes.CDLL("libc.so.6").malloc_trim
        except (OSError, AttributeError):  # another C library
            return
        malloc_trim(0)


def install_signal_handler() -> None:
    """Clean up on SIGUSR2, which tools/memory_leak_detector.py sends. Call it from the main thread; on Windows it does nothing.

    Nothing is logged: the signal may come in the middle of a write to the log.
    """
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    clean_up()


def request_clean_up(process: psutil.Process) -> int | None:
    """Ask a process to clean up, or its first descendant that handles the signal, such as train.py started by a shell.

    Returns the process id asked; None where no process handles the signal, which would kill it. Only Linux can tell.
    """
    for candidate in (process, *process.children(recursive=True)):
        if _handles_signal(candidate.pid):
            candidate.send_signal(signal.SIGUSR2)
            return candidate.pid
    return None


def _handles_signal(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)
