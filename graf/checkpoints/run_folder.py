"""The checkpoints in a run's folder: the newest, earlier ones that are kept, and the one to continue from.

model.pt is always the newest; checkpoints/model_<step>.pt are the ones before it, training.keep_checkpoints in all. backups/
and model_best.pt are never removed.
"""

import hashlib
import itertools
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from graf.checkpoints.checkpoint import BEST, NEWEST, Checkpoint, read_checkpoint, save_checkpoint
from graf.checkpoints.record import iso_utc, read_record, record_path, write_record
from graf.config import Config
from graf.errors import CheckpointError, CheckpointWriteError, DamagedCheckpointError
from graf.foreign.checkpoints import checkpoint_step
from graf.runtime.files import first_free, remove_leftovers, whole_file
from graf.runtime.out_of_memory import is_out_of_memory

log = logging.getLogger("graf")

FOLDERS = ("checkpoints", "backups")
TUNED = "tuned"  # the folder in an inversion's of the tuned generator and its renderings
KEPT = re.compile(r"model_\d{8,}\.pt")  # in the first of them: a user's own copies have other names
LONGEST_WAIT_S = 60.0

Scalars = Mapping[str, float] | None


def save_newest(checkpoint: Checkpoint, scalars: Scalars = None, sleep: Callable[[float], None] = time.sleep) -> None:
    """Write the run's model.pt; the one before it becomes checkpoints/model_<step>.pt, and surplus ones are removed, unless
    this one is from amid bad steps: the last good one is among those before it.

    Raises CheckpointWriteError as `save` does.
    """
    run_dir, keep = checkpoint.config.run_dir, checkpoint.config.training.keep_checkpoints
    save(run_dir / NEWEST, checkpoint, scalars, sleep)
    if checkpoint.state["bad_steps"]:
        return
    try:
        own = [path for path in (run_dir / FOLDERS[0]).glob("model_*.pt") if KEPT.fullmatch(path.name)]
        for path in sorted(own, key=_saved, reverse=True)[keep - 1 :]:  # model.pt is one of those kept
            _remove(path)
    except OSError as error:
        log.warning("older checkpoints cannot be removed (%s)", error)


def save(path: Path, checkpoint: Checkpoint, scalars: Scalars = None, sleep: Callable[[float], None] = time.sleep) -> None:
    """Write a checkpoint into the run's folder, with training.save_retries retries after 1, 2, 4, ... seconds.

    Raises CheckpointWriteError, which names the cause and the checkpoint that is left; without retries where memory ran out.
    """
    run_dir, retries = checkpoint.config.run_dir, checkpoint.config.training.save_retries
    remove_run_leftovers(run_dir)
    for attempt in itertools.count(1):
        try:
            if path == run_dir / NEWEST:
                _keep_previous(path)
            save_checkpoint(path, checkpoint, scalars, after=max(map(_saved, run_checkpoints(run_dir)), default=""))
            return
        except (OSError, CheckpointWriteError) as error:
            if is_out_of_memory(error):
                raise  # waiting does not help; the caller frees memory
            reason = error.__cause__ or error
        if attempt > retries:
            raise CheckpointWriteError(
                f"{path}: step {checkpoint.step} cannot be written ({reason}; tried {attempt} times); {_what_is_left(run_dir)}"
            ) from None
        wait_s = min(2.0 ** (attempt - 1), LONGEST_WAIT_S)
        log.warning("%s: cannot be written (%s); trying again in %g s (%d of %d)", path, reason, wait_s, attempt, retries)
        sleep(wait_s)


def run_checkpoints(run_dir: Path) -> list[Path]:
    """Paths of all checkpoints of a run: model.pt, then the others from newest to oldest by their records."""
    others = [path for folder in FOLDERS for path in (run_dir / folder).glob("model*.pt")]
    others += [path for path in (run_dir / BEST,) if path.exists()]
    newest = run_dir / NEWEST
    return [newest] * newest.exists() + sorted(others, key=_saved, reverse=True)


def lost_checkpoints(run_dir: Path) -> list[str]:
    """Names of damaged checkpoints that were set aside in a run's folder, and of records whose checkpoint is gone."""
    names = [path.relative_to(run_dir) for folder in ("", *FOLDERS) for path in (run_dir / folder).glob("model*.damaged")]
    records = [path for folder in ("", *FOLDERS) for path in (run_dir / folder).glob("model*.pt.json")]
    names += [path.relative_to(run_dir) for path in records if not path.with_suffix("").exists()]
    return sorted(map(str, names))


def newest_checkpoint(run_dir: Path, set_aside: bool = False) -> Path | None:
    """The newest undamaged checkpoint of a run, None where the run has none at all. Damaged ones are logged.

    set_aside: rename damaged ones to *.damaged, so that they are not overwritten. Raises CheckpointError where all are damaged;
    they are not renamed then, or the next start would take the folder for a new run's.
    """
    damaged: list[tuple[Path, DamagedCheckpointError]] = []
    for path in run_checkpoints(run_dir):
        try:
            step = checkpoint_step(read_checkpoint(path))
        except DamagedCheckpointError as error:
            damaged.append((path, error))
            continue
        for faulty, error in damaged:
            log.warning("%s%s", error, f"; set aside as {_set_aside(faulty).name}" if set_aside else "")
        if path.name != NEWEST:
            log.warning("%s: %s, falling back to step %d of %s", run_dir, "damaged" if damaged else "no model.pt", step, path)
        return path
    if damaged:
        raise CheckpointError(
            f"{run_dir}: none of its {len(damaged)} checkpoints can be read; the newest: {damaged[0][1]}. Put back a copy, or "
            "start a new run with --set expname=..."
        )
    return None


def run_folder_of(checkpoint: Path, config: Config) -> Path:
    """The folder of a checkpoint's run, relative where its path is; for a file outside a run, a new folder among the runs.

    Tuned generators have the names of their photographs, in every run, so their folders' names tell where they lie, too.
    """
    folder = checkpoint.resolve().parent
    run_dir = folder.parent if folder.name in FOLDERS else folder
    if (run_dir / "metrics.jsonl").exists() or ((run_dir / "config.yaml").exists() and (run_dir / NEWEST).exists()):
        return run_dir if checkpoint.is_absolute() else _relative(run_dir)
    place = f"_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}" if folder.name == TUNED else ""
    return Path(config.training.outdir) / f"eval_{folder.name}_{checkpoint.stem}{place}"


def _relative(folder: Path) -> Path:
    """The folder as a path from the working directory; as it is where that is on another drive of Windows."""
    try:
        return Path(os.path.relpath(folder))
    except ValueError:
        return folder


def _keep_previous(newest: Path) -> None:
    """Keep model.pt as checkpoints/model_<step>.pt: a hard link, or a copy where the disk has no links."""
    if not newest.exists():
        return
    record = read_record(newest)
    try:
        step = checkpoint_step(read_checkpoint(newest)) if record is None else record.step
    except DamagedCheckpointError as error:
        log.warning("%s; set aside as %s", error, _set_aside(newest).name)
        return
    kept = newest.parent / FOLDERS[0] / f"model_{step:08d}.pt"
    if kept.exists() and kept.samefile(newest):
        return
    kept.parent.mkdir(exist_ok=True)
    _remove(kept)
    try:
        os.link(newest, kept)
    except OSError:
        with whole_file(kept) as temporary:
            shutil.copyfile(newest, temporary)
    if record is not None:
        write_record(kept, record)


def remove_run_leftovers(run_dir: Path) -> None:
    """Remove files that a killed run left half written, which may fill the disk."""
    for folder in (run_dir, *(run_dir / name for name in FOLDERS)):
        remove_leftovers(folder, own=(".model*.pt", ".model*.json", ".config*.yaml"))  # written by the lock's holder only


def _remove(checkpoint: Path) -> None:
    record_path(checkpoint).unlink(missing_ok=True)
    checkpoint.unlink(missing_ok=True)


def _set_aside(checkpoint: Path) -> Path:
    """Rename a checkpoint, and its record with it, to the first free of model.pt.damaged, model.pt.2.damaged, ..."""
    names = (f"{checkpoint.name}{'' if i == 1 else f'.{i}'}.damaged" for i in itertools.count(1))
    aside = first_free(map(checkpoint.with_name, names))
    checkpoint.rename(aside)
    if record_path(checkpoint).exists():
        record_path(checkpoint).rename(record_path(aside))
    return aside


def _saved(checkpoint: Path) -> str:
    """Time of writing: from the record, which survives copying the folder, else from the file; "" where both are gone."""
    record = read_record(checkpoint)
    try:
        return iso_utc(checkpoint.stat().st_mtime) if record is None else record.saved
    except FileNotFoundError:  # a running training has removed it meanwhile
        return ""


def _what_is_left(run_dir: Path) -> str:
    try:
        path = newest_checkpoint(run_dir)
    except (CheckpointError, OSError) as error:
        return str(error)
    if path is None:
        return "the run has no checkpoint yet"
    return f"the last good one, {path}, is intact, and --resume auto continues from it"
