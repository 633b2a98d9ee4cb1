"""A JSON file beside each checkpoint with its SHA-256, step, time and versions, to detect damage.

It is removed before its checkpoint is replaced and written afterwards: whenever a run is killed, the record either belongs to
the file beside it or is missing. A file without a record is checked by the checksums inside it.
"""

import dataclasses
import datetime
import errno
import hashlib
import json
import math
import os
import platform
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from graf.runtime.files import file_sha256, write_text
from graf.runtime.out_of_memory import is_machine_fault
from graf.version import __version__

import torch


@dataclasses.dataclass(frozen=True)
class Record:
    """saved: time in ISO 8601, UTC, later than in earlier records even if the clock was set back; metrics: the best
    measurement, the lowest losses so far, and the latest scalars."""

    sha256: str
    size: int  # bytes
    step: int
    saved: str
    metrics: dict
    config_sha256: str
    versions: dict[str, str]


def make_record(file: Path, sha256: str, content: dict, scalars: Mapping[str, float], after: str = "") -> Record:
    """The record of a checkpoint of this content that has just been written to `file`, later than the time `after`."""
    finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
    settings, state = json.dumps(content["config"], sort_keys=True), content["state"]
    return Record(
        sha256=sha256,
        size=file.stat().st_size,
        step=state["step"],
        saved=max(iso_utc(time.time()), _just_after(after)),
        metrics={"best": state["best"], "lowest_losses": state["lowest_losses"], "scalars": finite},
        config_sha256=hashlib.sha256(settings.encode()).hexdigest(),
        versions=content["versions"],
    )


def versions() -> dict[str, str]:
    """Versions of this package, PyTorch and Python, which a checkpoint records."""
    return {"python": platform.python_version(), "torch": str(torch.__version__), "graf_ccsr": __version__}


def iso_utc(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601; as text, later times sort after earlier ones."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="microseconds")


def _just_after(time_utc: str) -> str:
    """The time a microsecond later; empty for text that is not a time."""
    try:
        return iso_utc(datetime.datetime.fromisoformat(time_utc).timestamp() + 1e-6)
    except (ValueError, OverflowError, OSError):
        return ""


def record_path(checkpoint: Path) -> Path:
    """model.pt.json of model.pt."""
    return checkpoint.with_name(checkpoint.name + ".json")


def write_record(checkpoint: Path, record: Record) -> None:
    write_text(record_path(checkpoint), json.dumps(dataclasses.asdict(record), indent=1))


def read_record(checkpoint: Path) -> Record | None:
    """The record beside a checkpoint; None where it is missing or cannot be read."""
    try:
        record = Record(**json.loads(record_path(checkpoint).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return record if isinstance(record.step, int) and isinstance(record.saved, str) else None


def save_verified(content: dict, file: Path) -> str:
    """torch.save, flush to the disk, read back and compare. Returns the sha256.

    Raises OSError where the disk fails, or returns other bytes than were written.
    """
    with open(file, "wb") as stream:
        hashing = _HashingFile(stream)
        try:
            torch.save(content, hashing)
        except RuntimeError as error:  # torch's error for any failed write
            raise error.__context__ or error from None
        stream.flush()
        os.fsync(stream.fileno())
    sha256 = hashing.digest.hexdigest()
    if file_sha256(file) != sha256:
        raise OSError(errno.EIO, "what was written reads back differently")
    return sha256


def has_right_checksums(file: Path) -> bool:
    """Whether every part of a checkpoint has its checksum, which torch.load does not verify; True for the files without
    checksums that torch wrote until 2020."""
    try:
        if not zipfile.is_zipfile(file):
            return True
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except Exception as error:  # a damaged file can make zipfile raise nearly anything
        if is_machine_fault(error):
            raise
        return False


class _HashingFile:
    """A file for torch.save that hashes everything written to it."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self.digest = hashlib.sha256()

    def write(self, block: bytes | memoryview) -> int:
        self.digest.update(block)
        return self._stream.write(block)

    def flush(self) -> None:
        self._stream.flush()
