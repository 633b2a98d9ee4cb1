"""Decides which files of a run's folder are continued, kept under another name, or a reason to refuse it."""

import argparse
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

from graf.checkpoints.checkpoint import NEWEST
from graf.checkpoints.run_folder import lost_checkpoints, newest_checkpoint, run_checkpoints
from graf.config import RunConfig, config_text, is_set, load_config
from graf.config.reading import quoted
from graf.errors import CheckpointError, ConfigError, RunFolderError
from graf.runtime.command_line import as_typed
from graf.runtime.files import first_free, json_rows, write_text

log = logging.getLogger("graf")

CONFIG_FILE, ROWS_FILE = "config.yaml", "metrics.jsonl"


def require_own_folder(file: Path | None, overrides: Sequence[str], config: RunConfig) -> None:
    """Raises CheckpointError if the config's file lies in a run's folder (renamed or copied, say) but names another folder
    as the run's, unless the overrides name one."""
    if file is None or not file.is_file() or not run_checkpoints(folder := file.resolve().parent):
        return
    if is_same(folder, config.run_dir) or any(is_set(key, overrides) for key in ("expname", "training.outdir")):
        return
    here = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    would = "the run there would be continued" if run_checkpoints(config.run_dir) else "a run would begin at step 0"
    own = as_typed(f"expname={quoted(folder.name)}", f"training.outdir={quoted(str(here.parent))}")
    raise CheckpointError(
        f"{file}: of the run in this folder, which was renamed, moved or copied: the config names {config.run_dir}, where "
        f"{would}. Continue this one with --set {own}, or begin another with --set expname=NAME"
    )


def checkpoint_of(args: argparse.Namespace, config: RunConfig) -> Path | None:
    """The checkpoint that the flags of a run name, None for a new run, in a folder that the run may write to."""
    require_free_folder(config, is_new=args.partial or args.resume in ("auto", "none"))
    return find_checkpoint(args.resume, config.run_dir, args.partial, set_aside=not args.dry_run)


def require_free_folder(config: RunConfig, is_new: bool) -> None:
    """Raises CheckpointError if the run's folder has no checkpoint but files that no run wrote or, for a new run, traces of
    checkpoints that are gone. A run killed before its first checkpoint leaves neither.
    """
    run_dir = config.run_dir
    if run_checkpoints(run_dir):
        return
    # The user's own files
    config_file, rows_file = run_dir / CONFIG_FILE, run_dir / ROWS_FILE
    not_ours, began = [], config
    try:
        began = load_config(config_file, schema=type(config)) if config_file.is_file() else config
    except ConfigError:
        not_ours.append(config_file.name)
    last_step = last_logged_step(rows_file)
    if last_step is None and (not_ours or not config_file.is_file()):  # beside our config it is a row that a crash cut short
        not_ours.append(rows_file.name)
    if not_ours:
        raise CheckpointError(
            f"{run_dir}: holds {' and '.join(not_ours)}, which no such run wrote and this one would write over; move what is "
            "there elsewhere, or name another folder with --set expname=..."
        )
    # A run's history
    save_every, last_step, lost = began.training.save_every, last_step or 0, lost_checkpoints(run_dir)
    saved = isinstance(save_every, int) and 0 < save_every < last_step  # in less than its minutes a run may have saved nothing
    if is_new and (lost or saved):
        goes_to = f"{rows_file.name} goes to step {last_step}" if last_step else "a run was saved here"
        traces = f" ({', '.join(lost)} {'is' if len(lost) == 1 else 'are'} left)" if lost else ""
        raise CheckpointError(
            f"{run_dir}: {goes_to}, but there is no checkpoint that can be read{traces}; put one back, or name another folder "
            "with --set expname=..."
        )


def find_checkpoint(resume: str, run_dir: Path, partial: bool = False, set_aside: bool = False) -> Path | None:
    """The checkpoint to continue from, or None for a new run; `partial`: a new run from a checkpoint's weights.

    set_aside: rename those of the run that are damaged. Raises CheckpointError where a run would be written over.
    """
    held = run_checkpoints(run_dir)
    if partial and resume in ("auto", "none"):
        raise CheckpointError("--partial: starts from a file's weights that fit; name it with --resume FILE")
    if resume == "auto":
        return newest_checkpoint(run_dir, set_aside)
    if (resume == "none" or partial) and ((run_dir / CONFIG_FILE).exists() or held):
        raise CheckpointError(
            f"{run_dir}: holds a run already, and --{'partial' if partial else 'resume none'} starts a new one; "
            "continue it with --resume auto, or name another folder with --set expname=..."
        )
    if resume == "none":
        return None
    path = Path(resume)
    if path.is_dir():
        raise CheckpointError(f"{path}: is a folder; --resume takes auto, none or a file, such as {path / NEWEST}")
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; --resume takes auto, none or a file")
    if held and not lies_in(run_dir, path):
        raise CheckpointError(
            f"{run_dir}: holds another run than {path}, which would be written over; continue it with --resume auto, "
            "or name another folder with --set expname=..."
        )
    return path


def keep_earlier_files(config: RunConfig, step: int) -> None:
    """Rename a metrics.jsonl of a run that had no checkpoint yet, and a config.yaml written by hand (to config.yaml.1, ...),
    before a run that begins at a step writes its own. Raises RunFolderError if that fails."""
    config_file, rows_file = config.run_dir / CONFIG_FILE, config.run_dir / ROWS_FILE
    by_hand = config_file.is_file() and config_file.read_text(encoding="utf-8") != config_text(
        load_config(config_file, schema=type(config))
    )
    for path, is_kept in ((config_file, by_hand), (rows_file, last_logged_step(rows_file) != 0)):
        if is_kept:
            kept = first_free(path.with_name(f"{path.name}.{i}") for i in itertools.count(1))
            try:
                path.rename(kept)
            except OSError as error:
                raise RunFolderError(f"{path}: cannot be renamed to {kept.name} ({error}), which keeps it; move it") from None
            log.warning("%s: was here before this run, which begins at step %d; kept as %s", path, step, kept.name)


def write_config(config: RunConfig) -> None:
    """config.yaml of the run's folder: every key, as it is trained with. Raises RunFolderError for a new run's."""
    path = config.run_dir / CONFIG_FILE
    try:
        write_text(path, config_text(config))
    except OSError as error:
        if not path.exists():
            raise RunFolderError(
                f"training.outdir: {config.run_dir} cannot be written ({error}); choose another folder"
            ) from None
        log.warning("%s: cannot be written (%s); it stays as it was when the run was last started", path, error)


def last_logged_step(rows_file: Path) -> int | None:
    """The last step in a metrics.jsonl, 0 without rows or file; None if it holds other text."""
    if not rows_file.is_file():
        return 0
    with rows_file.open("rb") as file:
        steps = [row["step"] for row in json_rows(file) if isinstance(row.get("step"), int)]
    return max(steps, default=None if rows_file.stat().st_size else 0)


def lies_in(folder: Path, path: Path) -> bool:
    """Whether the path is in the folder or below it."""
    return any(is_same(folder, parent) for parent in path.resolve().parents)


def is_same(path: Path, other: Path) -> bool:
    """Whether both are one file or folder: macOS and Windows take the name of one that exists in any case."""
    return path.resolve() == other.resolve() or (path.exists() and other.exists() and path.samefile(other))
