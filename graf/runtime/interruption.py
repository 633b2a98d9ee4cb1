"""Ends a run by signals and time limits after the current step, so that a checkpoint can be written."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

REQUEUE = 3  # exit status of a run that wants to be started again
# SIGHUP comes of a closed terminal, SIGUSR1 from batch systems ahead of the end; Windows has neither, but SIGBREAK.
NAMES = "SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP", "SIGUSR1"
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
HANG_UP = getattr(signal, "SIGHUP", None)
DEMANDS = tuple(getattr(signal, name) for name in NAMES[:3] if hasattr(signal, name))


class Interruption:
    """A context in which the first of SIGNALS only sets `signal`; a second one interrupts at once.

    SIGHUP does not count, nor does SIGUSR1 unless it follows one of DEMANDS: a terminal that closes and a batch system may
    send several, and a SIGTERM after them. `signal` may also be set for another process of the run; this process's own first
    signal, which may come late, then interrupts nothing.

    max_hours: counted from when this is made, before the networks; 0 for no limit. It ends a run only after `began` was
    set by a first step: if it were shorter than the start-up, the run would be requeued for ever.
    """

    def __init__(self, max_hours: float = 0, clock: Callable[[], float] = time.monotonic):
        self.signal: int | None = None
        self.began = False
        self._received = False
        self._clock = clock
        self._deadline = clock() + 3600 * max_hours if max_hours else math.inf

    def __enter__(self) -> "Interruption":
        self._heard = heard_by(self._receive)
        self._heard.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._heard.__exit__(*error)

    @property
    def requested(self) -> bool:
        """Whether the run is to end after this step."""
        return self.signal is not None or (self.began and self._clock() >= self._deadline)

    @property
    def reason(self) -> str:
        """The cause that ended the run, for the log."""
        return "training.max_hours" if self.signal is None else signal.Signals(self.signal).name

    @property
    def exit_status(self) -> int:
        """0 without a request, else that of its signal."""
        return exit_status_after(self.signal) if self.requested else 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number in DEMANDS or (number != HANG_UP and self.signal in DEMANDS):
            if self._received:
                raise KeyboardInterrupt
            self._received = True
            if self.signal is None and os.environ.get("RANK", "0") == "0":
                _tell(f"{signal.Signals(number).name}: ends when what runs now is done; a second signal ends it at once")
        self.signal = self.signal or number


def _tell(text: str) -> None:
    """Write a line to stderr past Python's buffers, in the middle of whose use a signal may come."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())


def heard_signals() -> list[int]:
    """SIGNALS without SIGHUP where it is ignored, as by nohup."""
    return [number for number in SIGNALS if number != HANG_UP or signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def heard_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """A block, in the main thread, whose signals go to the handler; with signal.SIG_IGN none breaks it off."""
    before = {number: signal.signal(number, handler) for number in heard_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A block whose child processes the SIGNALS never reach, but on Windows. Its own thread hears them at the end; where there
    are others, they may hear them before."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_status_after(number: int | None) -> int:
    """The exit status of a run that a signal or a time limit (None) ends: 130 after SIGINT, 143 after SIGTERM, 149 after
    SIGBREAK, 129 after SIGHUP, as in shells; else REQUEUE."""
    return 128 + number if number and number in (*DEMANDS, HANG_UP) else REQUEUE


def end_on_signals() -> None:
    """Let signals end the process outside of an Interruption, before the first step and after the last, when there is nothing
    to save: by SystemExit, so that the run's folder is unlocked. Ctrl-C does so by itself.

    SIGUSR2, which asks for a clean-up, does nothing until steps are taken.
    """
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise SystemExit(exit_status_after(received[0]))

    for number in heard_signals():
        if number != signal.SIGINT:
            signal.signal(number, end)
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
