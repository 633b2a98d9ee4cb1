"""Ctrl-C and SIGTERM end a run after the step in hand, so that a checkpoint can be written."""

import signal
from types import FrameType


class Interruption:
    """While entered, the first SIGINT or SIGTERM only sets `signal`; a second one interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "Interruption":
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_status(self) -> int:
        """0, or 130 after SIGINT and 143 after SIGTERM, as shells have it."""
        return 0 if self.signal is None else 128 + self.signal

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
