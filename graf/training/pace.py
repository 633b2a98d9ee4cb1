"""The speed of a run, of steps that take as long as one another, and what the others begin to do."""

import time
from collections import deque

from graf.config import Config, RunConfig

WINDOW_S = 600.0  # over which the speed is averaged, samples and evaluations included


def what_begins(config: Config, step: int) -> str | None:
    """What the steps after the first `step` ones do that those did not, for the log; None where they do the same, and of the
    last ones without CCSR, which TrainState.follow_schedule tells of."""
    if step not in config.pace_changes or step == config.first_unrefined:
        return None
    whole = step == config.short_steps
    learns = "sees its patches at full resolution" if whole and config.low_res_steps else "learns too"
    halved = "" if whole else ", at half the resolution at first"
    return f"from step {step} on the discriminator {learns}{halved}; each step takes longer than those before"


class Pace:
    """The speed of a run's last steps: those of the last WINDOW_S, or the last one where that took longer.

    It begins anew after the first step of another kind, such as the first refined one, and when the run is rolled back.
    """

    def __init__(self, config: RunConfig, step: int):
        self._config, self._moments = config, deque([(time.monotonic(), step)])  # a time, and the step at that time

    def note(self, step: int) -> bool:
        """Note that a step is done now. Returns whether the speed begins anew with it."""
        begins_anew = not self._moments[-1][1] < step <= self.holds_until
        if begins_anew:
            self._moments.clear()
        now = time.monotonic()
        self._moments.append((now, step))
        while len(self._moments) > 2 and now - self._moments[1][0] > WINDOW_S:
            self._moments.popleft()
        return begins_anew

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second; None before a second step of their kind."""
        (began, first), (ended, last) = self._moments[0], self._moments[-1]
        return (last - first) / (ended - began) if last > first and ended > began else None

    @property
    def holds_until(self) -> int:
        """The last step that takes as long as those whose speed this is."""
        return self._config.same_pace_until(self._moments[0][1])

    @property
    def interval_s(self) -> float | None:
        """Seconds between the last two notes; None where there is one."""
        return self._moments[-1][0] - self._moments[-2][0] if len(self._moments) > 1 else None

    @property
    def age_s(self) -> float:
        """Seconds since the last note."""
        return time.monotonic() - self._moments[-1][0]
