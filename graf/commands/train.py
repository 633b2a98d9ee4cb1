"""What train.py does once its arguments are parsed: build what the config says, continue where the run is, and train."""

import argparse
import contextlib
import itertools
import json
import logging
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graf.camera import rotation_poses
from graf.checkpoints.checkpoint import NEWEST, read_checkpoint
from graf.checkpoints.generator_loading import stored_config
from graf.checkpoints.run_folder import lost_checkpoints, newest_checkpoint, remove_run_leftovers, run_checkpoints
from graf.config import Config, RunConfig, config_to_dict, graf_config, is_set, load_config
from graf.config.checks import advice
from graf.data import Views, build_dataset, build_loader, resolve
from graf.errors import CheckpointError, ConfigError, RunFolderError
from graf.foreign.checkpoints import recognise
from graf.memory.budget import enforce_budget
from graf.memory.monitor import read_rows as read_memory
from graf.memory.snapshot import record_history
from graf.metrics.extractors import choose_extractor
from graf.metrics.results import summary
from graf.reporting.curves import draw_curves
from graf.runtime.command_line import run_overrides
from graf.runtime.console import duration
from graf.runtime.device import keep_freed_memory
from graf.runtime.files import first_free, json_rows, not_worth_a_run, write_text
from graf.runtime.interruption import Interruption
from graf.runtime.limits import GB
from graf.runtime.precision import log_number_format
from graf.runtime.processes import Processes, processes_of_run
from graf.runtime.run_lock import run_lock
from graf.training.health import anomalies_named, check_numbers
from graf.training.logging import check_monitoring
from graf.training.loop import train
from graf.training.samples import write_progress
from graf.training.state import RunState, TrainState, load_checkpoint, start_from
from graf.training.step import train_step

import torch
import yaml

log = logging.getLogger("graf")

CONFIG_FILE, ROWS_FILE = "config.yaml", "metrics.jsonl"
PEAKS = {"host_bytes": "host", "reserved_bytes": "card"}  # in memory.jsonl, whose memory they are


class Setup(NamedTuple):
    """What a run starts with, the same for all that can be trained."""

    config: RunConfig
    checkpoint: Path | None  # to continue from
    device: torch.device
    processes: Processes
    interruption: Interruption


def train_run(args: argparse.Namespace, read_config: Callable[[], Config]) -> int:
    """Train a generator by the flags of train.py, in this process or as one of several. Returns the exit status."""
    with set_up(args, read_config) as setup:
        state, dataset = generator_run(args, setup)
        note_data(state, dataset)
        # What ends before a first step
        if args.dry_run:
            with anomaly_checks(args, state):
                dry_run(state, dataset)
            return 0
        if is_done(state, setup.checkpoint, args.resume):
            return 0
        # Train
        began = announce(state, dataset, setup.checkpoint)
        with setup.interruption, anomaly_checks(args, state):
            measured = train(state, dataset, setup.interruption, args.memory_snapshot)
        return end(state, setup.interruption, began, lambda: rows_of_generator(state, measured))


@contextlib.contextmanager
def set_up(args: argparse.Namespace, read_config: Callable[[], RunConfig]) -> Iterator[Setup]:
    """Processes, config, device, the lock of the run's folder, and the checkpoint to continue from."""
    keep_freed_memory()
    with processes_of_run(args.device) as (processes, device):
        config = read_config()
        require_own_folder(args.config, run_overrides(args), config)
        processes.share_of(config.training.batch_size)
        interruption, writes = Interruption(config.training.max_hours), processes.first and not args.dry_run
        with run_lock(config.run_dir) if writes else contextlib.nullcontext():
            # What can be refused at once, and the memory limit
            check_monitoring(config)
            enforce_budget(config.memory, device)
            if args.memory_snapshot:
                record_history(device)  # from here on, so that the networks' own memory has one
            if writes:
                remove_run_leftovers(config.run_dir)
            checkpoint = processes.broadcast(lambda: checkpoint_of(args, config))
            yield Setup(config, checkpoint, device, processes, interruption)


def anomaly_checks(args: argparse.Namespace, state: RunState) -> contextlib.AbstractContextManager:
    """With --detect_anomaly the context in which each backward pass is checked."""
    return anomalies_named(state) if args.detect_anomaly else contextlib.nullcontext()


def is_done(state: RunState, checkpoint: Path | None, resume: str) -> bool:
    """Whether the run has taken all its steps already, which is logged. resume: that flag, of which a file is continued in any
    folder."""
    max_steps = state.config.training.max_steps
    done = state.step >= max_steps
    if done and resume == "auto":
        log.info(
            "%s is at step %d already; a higher --max_steps trains on, --set expname=NAME begins another run",
            *(checkpoint or state.config.run_dir, state.step),
        )
    elif done:
        log.info(
            "nothing was trained: %s is at step %d already, and --max_steps is %d; a higher one trains on from there",
            *(checkpoint or state.config.run_dir, state.step, max_steps),
        )
    return done


def announce(state: RunState, dataset: Views, checkpoint: Path | None) -> tuple[float, int]:
    """Log what is trained, and write config.yaml, for a run that continues from the checkpoint. Returns the time and the step
    at which this session begins."""
    config = state.config
    if state.processes.first:
        if not run_checkpoints(config.run_dir) and not (checkpoint and lies_in(config.run_dir, checkpoint)):
            keep_earlier_files(config, state.step)
        write_config(config)
    log.info(
        "training on %d images on %s until step %d, into %s",
        *(len(dataset), state.device, config.training.max_steps, config.run_dir),
    )
    return time.monotonic(), state.step


def end(state: RunState, interruption: Interruption, began: tuple[float, int], rows: Callable[[], dict[str, str]]) -> int:
    """Say how the session ended, with curves and a table where the run is done. Returns the exit status.

    began: of `announce`. rows: what else the table tells.
    """
    config = state.config
    if state.step < config.training.max_steps:
        log.warning("ended by %s at step %d; --resume auto continues from there", interruption.reason, state.step)
        return interruption.exit_status
    if not state.processes.first:
        return 0
    if (config.run_dir / ROWS_FILE).is_file():  # else no row could be written
        with not_worth_a_run("curves"):
            draw_curves(config.run_dir, config.run_dir / "curves", config.reporting.max_metric_rows)
    seconds, steps = time.monotonic() - began[0], state.step - began[1]
    log.info("%s", closing_table(config, state.images_seen, steps, seconds, rows()))
    return 0


def closing_table(config: RunConfig, images_seen: int, steps: int, seconds: float, rows: dict[str, str]) -> str:
    """What a run that is done took and left, a line each.

    images_seen: in all sessions. steps, seconds: of this session alone; a run that was continued has had others. rows: what
    else there is to tell.
    """
    held = list(read_memory(config.run_dir / "memory.jsonl"))
    peaks = {owner: max((row.get(name, 0) for row in held), default=0) for name, owner in PEAKS.items()}
    max_steps, batch_size = config.training.max_steps, config.training.batch_size
    of_session = "" if images_seen == max_steps * batch_size else " of this session"
    table = {
        "done": f"{config.expname} at step {max_steps:,}",
        "images": f"{images_seen:,} seen, {batch_size} in each step{of_session}",
        "time": f"{duration(seconds)} for {steps:,} steps",
        "memory": ", ".join(f"{n_bytes / GB:.2f} GB of the {owner} at most" for owner, n_bytes in peaks.items() if n_bytes),
        "checkpoint": str(config.run_dir / NEWEST),
    }
    return "\n".join(f"{name + ':':<12}{text}" for name, text in (table | rows).items() if text)


def generator_run(args: argparse.Namespace, setup: Setup) -> tuple[TrainState, Views]:
    """The state of a generator's run, with the checkpoint's in it, and the real images that it learns from."""
    config, checkpoint, device, processes, _ = setup
    for message in advice(config):
        log.warning("%s", message)
    trained = config_of(None if args.partial else checkpoint, config.data.type, named=args.resume != "auto")
    cache = None if args.dry_run else config.run_dir / "cache"
    dataset = processes.in_turn(lambda: build_dataset(config, cache, trained))
    processes.require_same((len(dataset), dataset.class_names, dataset.n_elevations), "the photographs")
    # Networks and optimizers, and the state of the checkpoint in them
    config = processes.broadcast(lambda: resolve(config, dataset, trained))
    state = TrainState(config, device, len(dataset.class_names), dataset.n_elevations, processes)
    load_weights(state, checkpoint, args.partial)
    if config.training.fid_every and processes.first and not args.dry_run and state.step < config.training.max_steps:
        choose_extractor(config.metrics)  # what is missing is said now, not after hours
    log_number_format(config.training, device)
    return state, dataset


def rows_of_generator(state: TrainState, measured: dict) -> dict[str, str]:
    """What the closing table tells of a generator, and the commands to go on with."""
    config = state.config
    samples, run_dir = config.run_dir / "samples", shlex.quote(str(config.run_dir))
    return {
        "quality": summary(measured) if measured else "not measured",
        "pictures": str(samples) if samples.is_dir() else "",
        "progress": str(write_progress(config.run_dir, state.step) or ""),
        "curves": str(config.run_dir / "curves"),
        "next": f"python eval.py --run {run_dir}",
        "look": f"python view.py --run {run_dir}",
    }


def config_of(checkpoint: Path | None, data_type: str, named: bool) -> Config | None:
    """The config that a run was trained with so far, None for a new one.

    Raises CheckpointError where toy cars would go on as images, or the other way round, and nobody `named` the checkpoint.
    """
    if checkpoint is None:
        return None
    content = read_checkpoint(checkpoint)
    stored = stored_config(recognise(content, checkpoint), checkpoint)
    if not named and stored is not None and stored.data.type != data_type:
        raise CheckpointError(
            f"{checkpoint}: of a run on {stored.data.type}, where data.type is {data_type} now; --set expname=NAME "
            f"begins another run, --resume {shlex.quote(str(checkpoint))} has this one go on with other images"
        )
    return stored or graf_config()


def load_weights(state: TrainState, checkpoint: Path | None, partial: bool) -> None:
    """Fill the state from the checkpoint, if there is one: all of it, or with `partial` the weights that fit."""
    if partial:
        start_from(checkpoint, state)
    elif checkpoint is not None:
        load_checkpoint(checkpoint, state)
        log.info("continuing %s from step %d", checkpoint, state.step)
    elif state.config.ccsr.rrdb.pretrained_path and state.generator.refinement is not None:
        state.load_pretrained_backbone(state.config.ccsr.rrdb.pretrained_path)


def note_data(state: RunState, dataset: Views) -> None:
    """Have the run's checkpoints tell what it is trained on, and warn where that is not what it was trained on so far."""
    if state.data_fingerprint not in ("", dataset.fingerprint):
        log.warning(
            "the data has changed since step %d: other images (by their names, sizes and times of change), labels or "
            "preprocessing than the checkpoint was trained on; %d images now, and training continues with them; "
            "--set expname=NAME begins another run",
            state.step,
            len(dataset),
        )
    state.data_fingerprint = dataset.fingerprint


def checkpoint_of(args: argparse.Namespace, config: RunConfig) -> Path | None:
    """`find_checkpoint` by the flags of a run, in a folder that it may write to."""
    require_free_folder(config, is_new=args.partial or args.resume in ("auto", "none"))
    return find_checkpoint(args.resume, config.run_dir, args.partial, set_aside=not args.dry_run)


def require_free_folder(config: RunConfig, is_new: bool) -> None:
    """Raises CheckpointError where the run's folder has no checkpoint but files that no run wrote, or, for a new run, signs of
    checkpoints that are gone. A run that was killed before its first checkpoint leaves neither.
    """
    run_dir = config.run_dir
    if run_checkpoints(run_dir):
        return
    # Files of the user's own
    config_file, rows_file = run_dir / CONFIG_FILE, run_dir / ROWS_FILE
    foreign, began = [], config
    try:
        began = load_config(config_file, schema=type(config)) if config_file.is_file() else config
    except ConfigError:
        foreign.append(config_file.name)
    last_step = last_logged_step(rows_file)
    if last_step is None and (foreign or not config_file.is_file()):  # beside our config it is a row that a crash cut short
        foreign.append(rows_file.name)
    if foreign:
        raise CheckpointError(
            f"{run_dir}: holds {' and '.join(foreign)}, which no such run wrote and this one would write over; move what is "
            "there elsewhere, or name another folder with --set expname=..."
        )
    # A run's history
    save_every, last_step, lost = began.training.save_every, last_step or 0, lost_checkpoints(run_dir)
    if is_new and (lost or 0 < save_every < last_step):
        goes_to = f"{rows_file.name} goes to step {last_step}" if last_step else "a run was saved here"
        traces = f" ({', '.join(lost)} {'is' if len(lost) == 1 else 'are'} left)" if lost else ""
        raise CheckpointError(
            f"{run_dir}: {goes_to}, but there is no checkpoint that can be read{traces}; put one back, or name another folder "
            "with --set expname=..."
        )


def last_logged_step(rows_file: Path) -> int | None:
    """The last step of a metrics.jsonl, 0 where there is no row or no such file; None where it holds no row but other text."""
    if not rows_file.is_file():
        return 0
    with rows_file.open("rb") as file:
        steps = [row["step"] for row in json_rows(file) if isinstance(row.get("step"), int)]
    return max(steps, default=None if rows_file.stat().st_size else 0)


def lies_in(folder: Path, path: Path) -> bool:
    """Whether the path leads into the folder, or below it."""
    return folder.resolve() in path.resolve().parents


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
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; --resume takes auto, none or a file")
    if held and not lies_in(run_dir, path):
        raise CheckpointError(
            f"{run_dir}: holds another run than {path}, which would be written over; continue it with --resume auto, "
            "or name another folder with --set expname=..."
        )
    return path


def require_own_folder(file: Path | None, overrides: Sequence[str], config: RunConfig) -> None:
    """Raises CheckpointError where the config's file lies in a run's folder and names another one as the run's, as in a folder
    that was renamed, unless the overrides name one."""
    if file is None or not file.is_file() or not run_checkpoints(folder := file.resolve().parent):
        return
    if folder == config.run_dir.resolve() or any(is_set(key, overrides) for key in ("expname", "training.outdir")):
        return
    here = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    would = "the run there would be continued" if run_checkpoints(config.run_dir) else "a run would begin at step 0"
    own = shlex.join((f"expname={json.dumps(folder.name)}", f"training.outdir={json.dumps(str(here.parent))}"))
    raise CheckpointError(
        f"{file}: of the run in this folder, which was renamed, moved or copied: the config names {config.run_dir}, where "
        f"{would}. Continue this one with --set {own}, or begin another with --set expname=NAME"
    )


def keep_earlier_files(config: RunConfig, step: int) -> None:
    """Before a run that begins at a step writes its own: rename metrics.jsonl of a run that had no checkpoint yet, and a
    config.yaml written by hand, to config.yaml.1, ... Raises RunFolderError where that fails."""
    typed, rows_file = config.run_dir / CONFIG_FILE, config.run_dir / ROWS_FILE
    is_typed = typed.is_file() and typed.read_text(encoding="utf-8") != as_written(load_config(typed, schema=type(config)))
    for path, is_kept in ((typed, is_typed), (rows_file, last_logged_step(rows_file) != 0)):
        if is_kept:
            kept = first_free(path.with_name(f"{path.name}.{i}") for i in itertools.count(1))
            try:
                path.rename(kept)
            except OSError as error:
                raise RunFolderError(f"{path}: cannot be renamed to {kept.name} ({error}), which keeps it; move it") from None
            log.warning("%s: was here before this run, which begins at step %d; kept as %s", path, step, kept.name)


def as_written(config: RunConfig) -> str:
    """The text of a run's config.yaml: every key."""
    return yaml.safe_dump(config_to_dict(config), sort_keys=False)


def write_config(config: RunConfig) -> None:
    """config.yaml of the run's folder: every key, as it is trained with. Raises RunFolderError for a new run's."""
    path = config.run_dir / CONFIG_FILE
    try:
        write_text(path, as_written(config))
    except OSError as error:
        if not path.exists():
            raise RunFolderError(
                f"training.outdir: {config.run_dir} cannot be written ({error}); choose another folder"
            ) from None
        log.warning("%s: cannot be written (%s); it stays as it was when the run was last started", path, error)


def dry_run(state: TrainState, dataset: Views) -> None:
    """One training step and one sample, and what the run would be; nothing is written but toy cars that are missing."""
    training = state.config.training
    processes = state.processes
    images, labels = next(build_loader(dataset, state.config, state.device, 0, processes.rank, processes.world_size))
    state.skip_to_costliest_step()
    stats = train_step(state, dataset, images, labels)
    state.advance()
    check_numbers(state, stats, images)
    sample = state.generator_ema.render(state.generator_ema.sample_latents(1), rotation_poses(1, state.config.data))
    log.info("a sample: images %s, depth %s", tuple(sample.images.shape), tuple(sample.depth.shape))
    for name in ("generator", "discriminator"):
        count = sum(p.numel() for p in getattr(state, name).parameters())
        log.info("%s: %s parameters", name, f"{count:,}")
    patch, coarse = state.config.patch_size, state.config.discriminator.low_res_steps
    log.info("images: %s, patches: %s", tuple(images.shape), (*images.shape[:2], patch, patch))
    log.info("%s%s", "" if processes.world_size == 1 else "each process: ", state.sizes.of_batch(len(images)))
    log.info(
        "data: %d images, cameras %s, classes %s", len(dataset), "known" if dataset.posed else "drawn", len(dataset.class_names)
    )
    milestones = ", ".join(map(str, training.milestones)) or "none"
    log.info(
        "schedule: %d steps, learning rates times %g at milestones: %s", training.max_steps, training.lr_anneal, milestones
    )
    if coarse:
        log.info("low_res_steps: the first %d, of patches of half the side; what is told here is of the others", coarse)
    for cadence in ("print_every", "sample_every", "save_every", "backup_every", "fid_every", "video_every"):
        every = getattr(training, cadence)
        log.info("%s: %s", cadence, f"{every} steps" if every else "never")
    log.info("one step: %s", ", ".join(f"{name} {float(value):.4g}" for name, value in stats.items()))
