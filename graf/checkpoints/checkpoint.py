"""Checkpoints: written atomically, and read, ours and those of other projects, without executing anything in them."""

import dataclasses
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path

from graf.checkpoints import SUFFIX
from graf.checkpoints.conditions import Conditions
from graf.checkpoints.export import broken, missing, read_export
from graf.checkpoints.older import add_whitening
from graf.checkpoints.record import (
    Record,
    has_right_checksums,
    make_record,
    read_record,
    record_path,
    save_verified,
    versions,
    write_record,
)
from graf.config import RunConfig, config_to_dict
from graf.errors import CheckpointError, CheckpointWriteError, DamagedCheckpointError
from graf.foreign.checkpoints import checkpoint_step
from graf.runtime.files import file_sha256, optional_file, stream_sha256, whole_file
from graf.runtime.out_of_memory import is_machine_fault

import numpy as np
import torch

log = logging.getLogger("graf")

FORMAT = "graf_ccsr 1"
POSE_FORMAT = "graf_ccsr pose 1"  # of train_pose.py
NEWEST = "model.pt"  # in a run's folder
BEST = "model_best.pt"  # by training.save_best
NETWORKS = ("generator", "generator_ema", "discriminator")  # in a state
ARCHIVE = b"PK\x03\x04"  # the first bytes of zip files, which torch.save writes
NUMPY_NUMBERS = [  # scores in the official GRAF's checkpoints, under the names of older and newer versions of NumPy
    np._core.multiarray.scalar,
    (np._core.multiarray.scalar, "numpy.core.multiarray.scalar"),
    np.dtype,
    type(np.dtype("float64")),
    type(np.dtype("float32")),
]


def backup_name(step: int) -> str:
    return f"backups/model_{step:08d}.pt"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run: the `state_dict()` of its state, its config, and the conditions that it is trained under."""

    config: RunConfig
    n_classes: int
    n_elevations: int
    conditions: Conditions
    state: dict
    format: str = FORMAT

    @property
    def step(self) -> int:
        return self.state["step"]

    def content(self) -> dict:
        """The file's content: tensors and plain values only, so that torch.load(weights_only=True) reads it."""
        return {
            "format": self.format,
            "config": config_to_dict(self.config),
            "n_classes": self.n_classes,
            "n_elevations": self.n_elevations,
            "versions": versions(),
            "conditions": dataclasses.asdict(self.conditions),
            "state": self.state,
        }


def save_checkpoint(path: Path, checkpoint: Checkpoint, scalars: Mapping[str, float] | None = None, after: str = "") -> None:
    """Write a checkpoint atomically, and its record with the latest `scalars` beside it.

    after: the time in the record of the newest earlier checkpoint; this one's time will be later, whatever the clock says.
    Raises CheckpointWriteError where it cannot be written; an earlier file at the path then stays intact.
    """
    content = checkpoint.content()
    try:
        with whole_file(path) as temporary:
            sha256 = save_verified(content, temporary)
            record = make_record(temporary, sha256, content, scalars or {}, after)
            record_path(path).unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointWriteError(f"{path}: cannot be written ({error})") from error
    with optional_file("records of checkpoints"):
        write_record(path, record)


def read_checkpoint(path: Path | str) -> dict:
    """The content of a checkpoint file, on the CPU.

    Raises CheckpointError for a file that is missing or may not be read, DamagedCheckpointError for one that is damaged or
    unsafe: its bytes must match the record beside it or, without a record, its own checksums. Raises OSError, MemoryError and
    the like where the disk or memory fails, which says nothing about the file.
    """
    return _read(Path(path))[0]


def read_with_sha256(path: Path) -> tuple[dict, str]:
    """`read_checkpoint`, and the SHA-256 of the file that was read, which a run in training may have replaced since."""
    return _read(path, hashed=True)


def _read(path: Path, hashed: bool = False) -> tuple[dict, str | None]:
    if path.suffix == SUFFIX:
        content = read_export(path)
        add_whitening(content)
        return content, file_sha256(path) if hashed else None
    record, sha256 = read_record(path), None
    try:
        with open(path, "rb") as file, torch.serialization.safe_globals(NUMPY_NUMBERS):
            sha256 = stream_sha256(file) if hashed or record is not None else None
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise missing(path) from None
    except IsADirectoryError:
        raise CheckpointError(f"{path}: is a folder; name a checkpoint in it, or take a run's by eval.py --run") from None
    except PermissionError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except pickle.UnpicklingError as error:
        reason = str(error).split("WeightsUnpickler error:")[-1].strip().split("\n")[0]
        raise DamagedCheckpointError(
            f"{path}: not a checkpoint, damaged, or refused because it contains pickled Python objects ({reason})"
            f"{_name_of_checkpoints(path)}"
        ) from None
    except Exception as error:  # a damaged file can make torch.load raise nearly anything
        if is_machine_fault(error):
            if isinstance(error, OSError):
                error.filename = str(path)
                raise
            if has_right_checksums(path) if record is None else sha256 in (None, record.sha256):  # None: no memory to hash it
                raise
        with open(path, "rb") as file:
            if ARCHIVE.startswith(file.read(len(ARCHIVE))):  # or is empty, or cut off within these bytes
                raise broken(path) from None
        raise DamagedCheckpointError(
            f"{path}: not a checkpoint, or damaged ({type(error).__name__}: {error}){_name_of_checkpoints(path)}"
        ) from None
    if not isinstance(content, dict):
        raise DamagedCheckpointError(f"{path}: expected a checkpoint, found a {type(content).__name__}")
    state = content.get("state")
    ours = content.get("format") in (FORMAT, POSE_FORMAT)
    if ours and not ("config" in content and isinstance(state, dict) and "step" in state):
        raise DamagedCheckpointError(f"{path}: a checkpoint without its config or step; it was not written by this suite")
    _check_bytes(path, content, record, sha256)
    add_whitening(state if ours else content)
    return content, sha256


def _name_of_checkpoints(path: Path) -> str:
    return "" if path.name == NEWEST else f"; a run's checkpoint is its {NEWEST}"


def _check_bytes(path: Path, content: dict, record: Record | None, sha256: str | None) -> None:
    """Raise DamagedCheckpointError unless the file matches its record, or without one of this step its own checksums."""
    if record is not None and record.sha256 == sha256:
        return
    if record is not None and record.step == checkpoint_step(content):
        raise DamagedCheckpointError(f"{path}: damaged; its sha256 is not the one in {record_path(path).name}")
    if not has_right_checksums(path):
        raise DamagedCheckpointError(f"{path}: damaged; the checksums inside it are not those of its tensors")
    if content.get("format") in (FORMAT, POSE_FORMAT):
        missing = "no record beside it" if record is None else f"the record beside it is of step {record.step}, another file"
        log.info("%s: %s; verified by the checksums inside it", path, missing)
