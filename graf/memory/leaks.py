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
    """A report of growth that does not end by itself."""

    source: str  # host (the process itself), workers (its loader's), device (tensors on the card)
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
        """Until the limit, at this rate."""
        return max(0, self.limit_bytes - self.resident_bytes) / self.bytes_per_hour * 3600

    @property
    def phase(self) -> str:
        """The phase in which most of the growth happens."""
        return max(self.phase_bytes, key=self.phase_bytes.__getitem__)

    @property
    def advice(self) -> str:
        """What to look for and what to set."""
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
        """All of it as plain values, what follows from others included."""
        derived = {name: getattr(self, name) for name in ("bytes_per_hour", "seconds_left", "phase", "advice")}
        return dataclasses.asdict(self) | derived


class LeakDetector:
    """The trend test on one kind of memory; `add` a reading after every step, or as often as there is one."""

    def __init__(self, source: str, limit_bytes: int):
        self.source, self.limit_bytes = source, limit_bytes
        self._restart()

    def add(self, step: int, seconds: float, resident_bytes: int, phase: str) -> LeakReport | None:
        """A reading of `resident_bytes` after `step` steps at `seconds` of any clock; `phase` is what ran since the last one.

        Returns a report where the reading completes the evidence of a leak; for the same leak again only when its growth has
        tripled. A step lower than the last one resets the detector.
        """
        if self._last is not None and step < self._last.step:
            self._restart()
        grown = resident_bytes - self._last.resident_bytes if self._last is not None else 0
        self._last = reading = _Reading(step, seconds, resident_bytes, phase, grown)
        if resident_bytes < self._leak_began:
            self._leak_began = self._silent_below = 0  # it was given back
        spans = [scale.add(reading, self.limit_bytes) for scale in self._scales]
        span = next((span for span in spans if span), None)
        if span is None or resident_bytes < self._silent_below:
            return None
        self._leak_began = self._leak_began or span[0].lowest.resident_bytes
        self._silent_below = self._leak_began + 3 * (resident_bytes - self._leak_began)
        return self._report(span, reading)

    def _report(self, span: list["_Window"], reading: "_Reading") -> LeakReport:
        by_phase = Counter()
        for window in span:
            by_phase.update(window.grown)
        first, last = span[0].lowest, span[-1].lowest
        return LeakReport(
            source=self.source,
            step=reading.step,
            span_steps=last.step - first.step,
            span_seconds=last.seconds - first.seconds,
            bytes_per_step=_slope(span),
            resident_bytes=reading.resident_bytes,
            limit_bytes=self.limit_bytes,
            phase_bytes=dict(by_phase.most_common()),
        )

    def _restart(self) -> None:
        self._scales = [_Scale(WINDOW_STEPS * widening) for widening in WIDENINGS]
        self._last: _Reading | None = None
        self._leak_began = self._silent_below = 0


@dataclass(frozen=True)
class _Reading:
    step: int
    seconds: float
    resident_bytes: int
    phase: str
    grown: int  # bytes since the reading before


@dataclass
class _Window:
    """The lowest reading of a few steps, and the bytes that each phase added meanwhile."""

    number: int
    lowest: _Reading
    grown: Counter = field(default_factory=Counter)


class _Scale:
    """The trend test on windows of one width."""

    def __init__(self, width: int):
        self.width = width
        self.closed: deque[_Window] = deque(maxlen=EARLIER_WINDOWS + SPAN)
        self.open: _Window | None = None
        self.to_skip = WARM_UP_WINDOWS
        self.confirmed = 0

    def add(self, reading: _Reading, limit_bytes: int) -> list[_Window] | None:
        """The windows over which a leak is seen, where this reading is the first after the last of them."""
        number = reading.step // self.width
        done = self.open if self.open is not None and self.open.number < number else None
        if self.open is None or done is not None:
            self.open = _Window(number, reading)
        elif reading.resident_bytes < self.open.lowest.resident_bytes:
            self.open.lowest = reading
        self.open.grown[reading.phase] += reading.grown
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
        slope, top = _slope(span), span[-1].lowest.resident_bytes
        if len(span) < SPAN and slope * SPAN * self.width < limit_bytes - top:
            return False
        growth = slope * (span[-1].lowest.step - span[0].lowest.step)
        if growth < max(MIN_GROWTH, MIN_SHARE * top, MIN_SIGNIFICANCE * _scatter(span, slope)):
            return False
        highest = max((window.lowest.resident_bytes for window in list(self.closed)[: -len(span)]), default=0)
        if highest > top - growth / 2:  # what was given back may be taken again, and a little more
            return False
        first, second = _slope(span[: len(span) // 2]), _slope(span[len(span) // 2 :])
        return first >= HINGE * slope and second >= STEADY * first


def theil_sen(x: np.ndarray, y: np.ndarray) -> float:
    """The median of the slopes of all pairs of points (Theil 1950, Sen 1968); x (N,) without ties, y (N,)."""
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def _points(span: list[_Window]) -> tuple[np.ndarray, np.ndarray]:
    """Steps (N,) and resident bytes (N,) of the lowest readings."""
    lowest = [window.lowest for window in span]
    return np.array([r.step for r in lowest], float), np.array([r.resident_bytes for r in lowest], float)


def _slope(span: list[_Window]) -> float:
    """Slope of the trend in bytes per step."""
    return theil_sen(*_points(span))


def _scatter(span: list[_Window], slope: float) -> float:
    """Standard deviation about the trend, from the median absolute deviation, which single jumps do not move."""
    steps, resident_bytes = _points(span)
    rest = resident_bytes - slope * steps
    return 1.4826 * float(np.median(np.abs(rest - np.median(rest))))
