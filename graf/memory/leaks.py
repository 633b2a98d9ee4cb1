"""Finds memory leaks: a trend test on the lowest resident memory of each window of steps, and the report of what it finds.

The floor of memory over short windows of steps is what a leak raises: peaks within a step, caches that are dropped now and
then, and phases that give back what they took leave it where it was. A leak is reported when, over the last SPAN windows, the
floor rises by more than MIN_GROWTH and far beyond its scatter about the trend, to well above any height that it had before, and
still does one window later. It must rise as fast in the second half as in the first, for memory that is being warmed up slows
down. The same test runs on windows 8, 64 and 512 times as wide, for leaks that are slower by as much.
"""

import dataclasses
from collections import Counter, deque
from dataclasses import dataclass, field

from graf.runtime.console import duration
from graf.runtime.limits import GB, MB

import numpy as np

WINDOW_STEPS = 5
SPAN = 32  # windows that a trend is drawn through: 160 steps of the narrowest
WIDENINGS = (1, 8, 64, 512)
WARM_UP_WINDOWS = 4  # skipped at each width
MIN_GROWTH = 112 * MB  # over a span: 0.7 MB per step for the narrowest, 0.0014 for the widest
MIN_SHARE = 0.03  # ... and of what is resident
MIN_SIGNIFICANCE = 10  # growth over a span / standard deviation about the trend
STEADY = 0.9  # slope of the second half / slope of the first; growth that saturates has less
HINGE = 0.7  # slope of the first half / slope of the whole; a jump late in the span has less
CONFIRMATIONS = 2  # windows in a row
URGENT_SPAN = 8  # windows that suffice where the limit is less than a span away
EARLIER_WINDOWS = 4 * SPAN  # whose level a leak must exceed by half its growth, or each tooth of a slow sawtooth would count


@dataclass(frozen=True)
class LeakReport:
    """Growth that does not end by itself: how fast, in which phase, how long until the limit, and what to set."""

    source: str  # host (the process itself), workers (its loader's), device (tensors on the GPU)
    step: int  # at which it was found
    span_steps: int  # over which it was seen, and in how much time
    span_seconds: float
    bytes_per_step: float
    resident_bytes: int
    limit_bytes: int
    phase_bytes: dict[str, int]  # what each phase of training added over the span, net, the most first
    suspects: tuple[str, ...] = ()  # objects that became more since the start, the most memory first

    @property
    def bytes_per_hour(self) -> float:
        return self.bytes_per_step * self.span_steps / max(self.span_seconds, 1e-9) * 3600

    @property
    def seconds_left(self) -> float:
        """The time until the limit, at this rate."""
        return max(0, self.limit_bytes - self.resident_bytes) / self.bytes_per_hour * 3600

    @property
    def phase(self) -> str:
        """The phase in which most of the growth happens."""
        return max(self.phase_bytes, key=self.phase_bytes.__getitem__)

    @property
    def advice(self) -> str:
        """Advice: where to look and what to set."""
        if self.source == "workers":
            return (
                "the loader's workers grow: training.persistent_workers=false restarts them, training.nworkers=1 makes them "
                "fewer, and 0 shows whether it is the data set"
            )
        if self.phase != "train":
            return (
                f"phase '{self.phase}' keeps what it took: set memory.empty_cache=phases and a smaller metrics.batch_size, or "
                "run it less often (training.sample_every, fid_every, video_every)"
            )
        return (
            "each training step leaves something behind: what is collected over steps needs .item() or .detach(), and lists a "
            "bound; train.py --memory_snapshot names the live tensors; a higher training.accumulation_steps buys time"
        )

    def message(self, unit: str = "step") -> str:
        """The report in one line."""
        added = ", ".join(f"{name} {grown / MB:+.0f} MB" for name, grown in self.phase_bytes.items())
        suspects = f"; more than at the start: {', '.join(self.suspects)}" if self.suspects else ""
        return (
            f"memory leak ({self.source}) at {unit} {self.step}: {self.bytes_per_step / MB:.2f} MB per {unit}, "
            f"{self.bytes_per_hour / GB:.2f} GB per hour; {self.resident_bytes / GB:.2f} of {self.limit_bytes / GB:.2f} GB are "
            f"used, the limit is {duration(self.seconds_left)} away; "
            f"in {self.span_steps} {unit}s: {added}{suspects}; {self.advice}"
        )

    @classmethod
    def from_row(cls, row: dict) -> "LeakReport":
        """The report that `as_row` gave."""
        values = {field.name: row[field.name] for field in dataclasses.fields(cls)}
        return cls(**values | {"suspects": tuple(row["suspects"])})

    def as_row(self) -> dict:
        """All values, derived ones included, as plain Python values."""
        derived = {name: getattr(self, name) for name in ("bytes_per_hour", "seconds_left", "phase", "advice")}
        return dataclasses.asdict(self) | derived


@dataclass
class _Window:
    """The lowest reading of a few steps, and the bytes that each phase added meanwhile."""

    number: int
    step: int
    seconds: float
    resident_bytes: int
    grown: Counter = field(default_factory=Counter)


class LeakDetector:
    """The trend test on one kind of memory; `add` a reading after every step, or as often as there is one."""

    def __init__(self, source: str, limit_bytes: int):
        self.source, self.limit_bytes = source, limit_bytes
        self._restart()

    def _restart(self) -> None:
        self._scales = [_Scale(WINDOW_STEPS * widening) for widening in WIDENINGS]
        self._last_step, self._last_bytes = 0, None
        self._leak_began = self._silent_below = 0

    def add(self, step: int, seconds: float, resident_bytes: int, phase: str) -> LeakReport | None:
        """Add a reading of `resident_bytes` after `step` steps at `seconds` of any clock; `phase` is what ran since the last.

        Returns a report where the reading completes the evidence of a leak; for the same leak again only when its growth has
        tripled. A step lower than the last one resets the detector.
        """
        if step < self._last_step:
            self._restart()
        grown = 0 if self._last_bytes is None else resident_bytes - self._last_bytes
        self._last_step, self._last_bytes = step, resident_bytes
        if resident_bytes < self._leak_began:
            self._leak_began = self._silent_below = 0  # it was given back
        spans = [scale.add(step, seconds, resident_bytes, phase, grown, self.limit_bytes) for scale in self._scales]
        span = next((span for span in spans if span), None)
        if span is None or resident_bytes < self._silent_below:
            return None
        first, last = span[0], span[-1]
        self._leak_began = self._leak_began or first.resident_bytes
        self._silent_below = self._leak_began + 3 * (resident_bytes - self._leak_began)
        by_phase = Counter()
        for window in span:
            by_phase.update(window.grown)
        return LeakReport(
            source=self.source,
            step=step,
            span_steps=last.step - first.step,
            span_seconds=last.seconds - first.seconds,
            bytes_per_step=_trend(span)[0],
            resident_bytes=resident_bytes,
            limit_bytes=self.limit_bytes,
            phase_bytes=dict(by_phase.most_common()),
        )


class _Scale:
    """The trend test on windows of one width."""

    def __init__(self, width: int):
        self.width = width
        self.closed: deque[_Window] = deque(maxlen=EARLIER_WINDOWS + SPAN)
        self.open: _Window | None = None
        self.to_skip = WARM_UP_WINDOWS
        self.confirmed = 0

    def add(
        self, step: int, seconds: float, resident_bytes: int, phase: str, grown: int, limit_bytes: int
    ) -> list[_Window] | None:
        """The windows over which a leak is seen, where this reading is the first after the last of them."""
        done, number = None, step // self.width
        if self.open is None or self.open.number < number:
            done, self.open = self.open, _Window(number, step, seconds, resident_bytes)
        elif resident_bytes < self.open.resident_bytes:
            self.open.step, self.open.seconds, self.open.resident_bytes = step, seconds, resident_bytes
        self.open.grown[phase] += grown
        if done is None:
            return None
        if self.to_skip:
            self.to_skip -= 1
            return None
        self.closed.append(done)
        span = list(self.closed)[-SPAN:]
        self.confirmed = self.confirmed + 1 if self._leaks(span, limit_bytes) else 0
        return span if self.confirmed >= CONFIRMATIONS else None

    def _leaks(self, span: list[_Window], limit_bytes: int) -> bool:
        if len(span) < URGENT_SPAN:
            return False
        (slope, scatter), top = _trend(span), span[-1].resident_bytes
        if len(span) < SPAN and slope * SPAN * self.width < limit_bytes - top:
            return False
        growth = slope * (span[-1].step - span[0].step)
        if growth < max(MIN_GROWTH, MIN_SHARE * top, MIN_SIGNIFICANCE * scatter):
            return False
        highest = max((window.resident_bytes for window in list(self.closed)[: -len(span)]), default=0)
        if highest > top - growth / 2:  # what was given back may be taken again, and a little more
            return False
        (first, _), (second, _) = _trend(span[: len(span) // 2]), _trend(span[len(span) // 2 :])
        return first >= HINGE * slope and second >= STEADY * first


def _trend(span: list[_Window]) -> tuple[float, float]:
    """Slope in bytes per step, and standard deviation about it, from the median absolute deviation, which jumps do not move."""
    steps, resident_bytes = np.array([(window.step, window.resident_bytes) for window in span], float).T
    slope = theil_sen(steps, resident_bytes)
    rest = resident_bytes - slope * steps
    return slope, 1.4826 * float(np.median(np.abs(rest - np.median(rest))))


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """The median of the slopes of all pairs of points (Theil 1950, Sen 1968); x (N,) without ties, y (N,)."""
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))
