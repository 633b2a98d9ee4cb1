"""The frame that train.py and train_pose.py share: how a session of a run is set up, begun and ended."""

import argparse
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from graf.checkpoints.checkpoint import NEWEST
from graf.checkpoints.run_folder import remove_run_leftovers, run_checkpoints, save
from graf.commands.run_files import (
    ROWS_FILE,
    checkpoint_of,
    is_same,
    keep_earlier_files,
    lies_in,
    require_own_folder,
    write_config,
)
from graf.config import RunConfig
from graf.data import Views
from graf.memory.budget import enforce_budget
from graf.memory.monitor import read_rows as read_memory
from graf.memory.planner import measure_process
from graf.memory.snapshot import record_history
from graf.reporting.curves import draw_curves
from graf.runtime.command_line import run_overrides
from graf.runtime.console import duration
from graf.runtime.device import freeze_imports, keep_freed_memory
from graf.runtime.files import optional_file
from graf.runtime.interruption import Interruption
from graf.runtime.limits import GB
from graf.runtime.processes import Processes, processes_of_run
from graf.runtime.run_lock import run_lock
from graf.training.health import anomalies_named
from graf.training.logging import check_monitoring
from graf.training.session import MEMORY_SHOWN
from graf.training.state import RunState

import torch

log = logging.getLogger("graf")


class Setup(NamedTuple):
    """The objects that a session of a run starts with."""

    config: RunConfig
    checkpoint: Path | None  # to continue from
    device: torch.device
    processes: Processes
    interruption: Interruption


@contextlib.contextmanager
def set_up(
    args: argparse.Namespace, read_config: Callable[[argparse.Namespace], RunConfig], config: RunConfig | None
) -> Iterator[Setup]:
    """Start the processes, read the config, lock the run's folder and find the checkpoint to continue from.

    config: the one that the program has read already; None reads it by read_config(args), once the processes have started.
    """
    keep_freed_memory()
    freeze_imports()
    measure_process()
    with processes_of_run(args.device) as (processes, device):
        if config is None:
            config = read_config(args)
        require_own_folder(args.config, run_overrides(args), config)
        processes.share_of(config.training.batch_size)
        interruption, writes = Interruption(config.training.max_hours), processes.first and not args.dry_run
        with run_lock(config.run_dir) if writes else contextlib.nullcontext():
            # Refuse early what cannot work; set the memory limit
            check_monitoring(config)
            enforce_budget(config.memory, device)
            if args.memory_snapshot:
                record_history(device)  # before anything is built, so that the networks' memory is in it
            if writes:
                remove_run_leftovers(config.run_dir)
            checkpoint = processes.broadcast(lambda: checkpoint_of(args, config))
            yield Setup(config, checkpoint, device, processes, interruption)


def anomaly_checks(args: argparse.Namespace, state: RunState) -> contextlib.AbstractContextManager:
    """The context that checks each backward pass, with --detect_anomaly."""
    return anomalies_named(state) if args.detect_anomaly else contextlib.nullcontext()


def log_if_done(state: RunState, checkpoint: Path | None, resume: str) -> bool:
    """Whether the run has taken all its steps already; if so, the log says how to go on. resume: the flag --resume."""
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


def note_data(state: RunState, dataset: Views, checkpoint: Path | None) -> None:
    """Record the data's fingerprint in the state; if the checkpoint was trained on other data, warn where it is the run's own,
    and log it where the run begins with another run's."""
    config, other = state.config, state.data_fingerprint not in ("", dataset.fingerprint)
    if other and checkpoint and not lies_in(config.run_dir, checkpoint):
        log.info(
            "%s learned from other images, labels or preprocessing; this run trains on its own %d images",
            checkpoint,
            len(dataset),
        )
    elif other:
        log.warning(
            "the data has changed since step %d: other images (by their names, sizes and times of change), labels or "
            "preprocessing than the checkpoint was trained on; %d images now, and training continues with them; "
            "--set expname=NAME begins another run",
            state.step,
            len(dataset),
        )
    state.data_fingerprint = dataset.fingerprint


def announce(state: RunState, dataset: Views, checkpoint: Path | None) -> tuple[float, int]:
    """Write config.yaml, and model.pt where the run goes on from another file; log what is trained. Returns the time and the
    step at which this session begins.

    checkpoint: continued from, None for a new run.
    """
    config = state.config
    if state.processes.first:
        if not run_checkpoints(config.run_dir) and not (checkpoint and lies_in(config.run_dir, checkpoint)):
            keep_earlier_files(config, state.step)
        write_config(config)
        if checkpoint and not is_same(checkpoint, config.run_dir / NEWEST):
            save(config.run_dir / NEWEST, state.checkpoint())  # --resume auto goes on from here, whatever ends the run
    log.info(
        "training on %d images on %s until step %d, into %s",
        *(len(dataset), state.device, config.training.max_steps, config.run_dir),
    )
    return time.monotonic(), state.step


def log_end(
    state: RunState, interruption: Interruption, began: tuple[float, int], more_lines: Callable[[], dict[str, str]]
) -> int:
    """Log how the session ended, with curves and a closing table when the run is done. Returns the exit status.

    began: the result of `announce`. more_lines: makes further lines of the table.
    """
    config = state.config
    if state.step < config.training.max_steps:
        log.warning("ended by %s at step %d; --resume auto continues from there", interruption.reason, state.step)
        return interruption.exit_status
    if not state.processes.first:
        return 0
    if (config.run_dir / ROWS_FILE).is_file():  # else no row could be written
        with optional_file("curves"):
            draw_curves(config.run_dir, config.run_dir / "curves", config.reporting.max_metric_rows)
    seconds, steps = time.monotonic() - began[0], state.step - began[1]
    log.info("%s", closing_table(config, state.images_seen, steps, seconds, more_lines()))
    return 0


def closing_table(config: RunConfig, images_seen: int, steps: int, seconds: float, more_lines: dict[str, str]) -> str:
    """The closing table of a run: what it took and left, one line each.

    images_seen: in all sessions. steps, seconds: in this session alone. more_lines: further lines by their names.
    """
    held = list(read_memory(config.run_dir / "memory.jsonl"))
    peaks = {owner: max((row.get(name, 0) for row in held), default=0) for name, owner in MEMORY_SHOWN.items()}
    max_steps, batch_size = config.training.max_steps, config.training.batch_size
    of_session = "" if images_seen == max_steps * batch_size else " of this session"
    table = {
        "done": f"{config.expname} at step {max_steps:,}",
        "images": f"{images_seen:,} seen, {batch_size} in each step{of_session}",
        "time": f"{duration(seconds)} for {steps:,} steps",
        "memory": ", ".join(f"{n_bytes / GB:.2f} GB of the {owner} at most" for owner, n_bytes in peaks.items() if n_bytes),
        "checkpoint": str(config.run_dir / NEWEST),
    }
    return "\n".join(f"{name + ':':<12}{text}" for name, text in (table | more_lines).items() if text)
