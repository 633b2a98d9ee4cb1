"""What ends a run after the step in hand, so that a checkpoint can be written: signals, and the time it was given."""

import math
import signal
import time
from collections.abc import Callable
from types import FrameType

REQUEUE = 3  # exit status of a run that wants to be started again
# SIGUSR1 is what batch systems send ahead of the end; Windows has none.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Interruption:
    """While entered, the first SIGINT, SIGTERM or SIGUSR1 only sets `signal`; a second one interrupts at once.

    max_hours: counted from here on; 0 for no limit. It ends a run only once `began` is set, after a first step: one that was
    too short for the start alone would ask to be started again for ever.
    """

    def __init__(self, max_hours: float = 0, clock: Callable[[], float] = time.monotonic):
        self.signal: int | None = None
        self.began = False
        self._clock = clock
        self._deadline = clock() + 3600 * max_hours if max_hours else math.inf

    def __enter__(self) -> "Interruption":
        self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        """Whether the run is to end after this step."""
        return self.signal is not None or (self.began and self._clock() >= self._deadline)

    @property
    def reason(self) -> str:
        """Who asked for it."""
        return "training.max_hours" if self.signal is None else signal.Signals(self.signal).name

    @property
    def exit_status(self) -> int:
        """0 where nothing was requested; 130 after SIGINT and 143 after SIGTERM, as shells have it; else REQUEUE."""
        if not self.requested:
            return 0
        return 128 + self.signal if self.signal in (signal.SIGINT, signal.SIGTERM) else REQUEUE

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


def requeue_at_start() -> None:
    """Until an Interruption is entered nothing is there to be saved: SIGUSR1 ends the process with REQUEUE.

    Ctrl-C and SIGTERM do with 130 and 143 by themselves.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(REQUEUE)

    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, end)
