"""What is said of a leak: its rate, the time it leaves, who grows, and what to do."""

import dataclasses
from dataclasses import dataclass

from graf.runtime.limits import GB, MB


@dataclass(frozen=True)
class LeakReport:
    """Growth that does not end by itself."""

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
                "the loader's workers grow: training.persistent_workers=false starts them anew, training.nworkers=1 makes them "
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
            f"memory leak ({self.source}) at {unit} {self.step}: {self.bytes_per_step / MB:.2f} MB a {unit}, "
            f"{self.bytes_per_hour / GB:.2f} GB an hour; {self.resident_bytes / GB:.2f} of {self.limit_bytes / GB:.2f} GB are "
            f"taken, the limit is {duration(self.seconds_left)} away; "
            f"in {self.span_steps} {unit}s: {added}{suspects}; {self.advice}"
        )

    @classmethod
    def from_row(cls, row: dict) -> "LeakReport":
        """The report that `as_row` gave."""
        values = {field.name: row[field.name] for field in dataclasses.fields(cls)}
        return cls(**values | {"suspects": tuple(row["suspects"])})

    def as_row(self) -> dict:
        """All of it as plain values."""
        names = ("source", "step", "span_steps", "span_seconds", "bytes_per_step", "bytes_per_hour", "resident_bytes")
        names += ("limit_bytes", "seconds_left", "phase", "phase_bytes", "advice")
        return {name: getattr(self, name) for name in names} | {"suspects": list(self.suspects)}


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `5.0 h` or `3.1 days`."""
    for size, name, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {name}"
    return f"{seconds:.0f} s"
