"""Giving memory back to the system, between phases or when a signal asks for it."""

import gc
import signal

from graf.runtime.device import call_glibc

import torch


def clean_up() -> None:
    """Collect garbage, empty PyTorch's cache of the card, and hand glibc's free blocks back to the kernel.

    The next steps have to allocate their memory again, which costs time: worth it after a phase of another size, not per step.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    call_glibc("malloc_trim", 0)


def install_signal_handler() -> None:
    """Clean up on SIGUSR2, which tools/memory_leak_detector.py sends. Call it from the main thread; on Windows it does nothing.

    Nothing is logged: the signal may come in the middle of a write to the log.
    """
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, lambda _number, _frame: clean_up())
