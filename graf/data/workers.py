"""Worker processes of the loader: how many to start, and the cause when one dies."""

import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

REAPING_S = 1.0


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_interrupts_to_parent(_worker: int) -> None:
    """Ignore signals in workers: one sent to the process group must not stop them while the parent finishes its step."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):  # Windows has no SIGUSR1
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def leave_deaths_to_reader() -> None:
    """Detect a worker's death where its batch is read, and nowhere else.

    torch also raises it from a handler of SIGCHLD, in the middle of whatever the main thread does: a step, or a checkpoint.
    """
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if str(getattr(handler, "__module__", "")).startswith("torch."):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def ended(workers: Sequence[BaseProcess], within_s: float = 0.0) -> list[BaseProcess]:
    """The workers that have ended; if none has, the first to end within the time."""
    by_sentinel = {worker.sentinel: worker for worker in workers}
    found = [by_sentinel[sentinel] for sentinel in multiprocessing.connection.wait(list(by_sentinel), within_s)]
    for worker in found:
        worker.join(REAPING_S)
    return found


def how_it_ended(worker: BaseProcess) -> str:
    """`SIGKILL`, or `signal 40`, which has no name, or `exit status 1`."""
    code = worker.exitcode or 0
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
