"""Writes what a run logs: status.json and metrics.jsonl always, TensorBoard or wandb as configured."""

import contextlib
import importlib.util
import json
import logging
import math
import os
import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graf.config import RunConfig, config_text, config_to_dict
from graf.errors import ConfigError, GrafError
from graf.metrics.results import series_name
from graf.runtime.files import append_line, json_rows, optional_file, read_object, set_aside, write_text
from graf.runtime.out_of_memory import first_line
from graf.training.pace import Pace
from graf.training.state import RunState

import imageio.v2 as imageio
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

GROUPS = {  # of curves, by the start of a scalar's name
    "losses": ("loss", "ccsr_", "penalty", "divergence"),
    "logits": ("logit", "accuracy"),
    "gradients": ("grad",),
    "rates": ("lr",),
    "metrics": ("val_", "test_"),
}
OTHERS = "images"  # statistics of samples and real images
STATUS_EVERY_S = 5.0  # at most: a write waits for the disk
PACES, LATE_PACES = 2000, 12  # seconds per step that are kept for their median, and the newest of them

log = logging.getLogger("graf")


class RunLog:
    """Appends scalars of a run as they come; drops rows of steps that a resumed run will repeat."""

    def __init__(self, run_dir: Path, config: RunConfig, step: int, writes: bool = True):
        """writes: false in the processes of a run that are not the first."""
        self.run_dir, self.config, self.writes, self.path = run_dir, config, writes, run_dir / "metrics.jsonl"
        self.tensorboard = self.wandb = None
        self.continue_after(step)

    def continue_after(self, step: int) -> None:
        """Write what comes after this step, to which the run may have been rolled back."""
        self.close()
        if not self.writes:
            return
        with optional_file("rows of metrics.jsonl"):
            _drop_rows_after(step, self.path)
        self._to_tensorboard(
            lambda writer: writer.add_text("config", f"```\n{config_text(self.config)}```", step), first_step=step + 1
        )
        if self.config.training.monitoring == "wandb":
            self.wandb = _start_wandb(self.run_dir, self.config)

    def scalars(self, values: dict[str, Tensor | float], step: int) -> dict[str, float]:
        """Write one row of a step's tensors, read in one copy. Returns them as numbers."""
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        read = torch.stack([value.float() for value in tensors.values()]).tolist() if tensors else []
        numbers = {name: float(value) for name, value in (values | dict(zip(tensors, read, strict=True))).items()}
        self._append({"step": step} | {name: value if math.isfinite(value) else None for name, value in numbers.items()})
        self._plot({tag_of(name): value for name, value in numbers.items()}, step)
        return numbers

    def evaluation(self, result: dict, step: int) -> None:
        """Write what `metrics.measure` found, with its protocol, as a row of its own."""
        self._append({"step": step, "evaluation": result})
        self._plot({f"metrics/{series_name(key, result)}": value for key, value in result["values"].items()}, step)

    def memory(self, values: dict[str, float], step: int) -> None:
        """Plot the memory monitor's numbers, the machine's load and heat among them; its own file has them."""
        self._plot({f"{_group_of_reading(name)}/{name}": value for name, value in values.items()}, step)

    def speed(self, seconds: float, step: int) -> None:
        """Plot the seconds per step. They are in no row of metrics.jsonl, which a run that was stopped has just as one that was
        not."""
        self._plot({"speed/seconds_per_step": seconds, "speed/steps_per_second": 1 / seconds}, step)

    def picture(self, name: str, path: Path, step: int) -> None:
        """Add an image file to TensorBoard, if the file exists."""
        if path.is_file():
            self._to_tensorboard(lambda writer: writer.add_image(name, imageio.imread(path), step, dataformats="HWC"), step)

    def close(self) -> None:
        self._close_tensorboard()
        if self.wandb is not None:
            self.wandb.finish()
        self.wandb = None

    def _append(self, row: dict) -> None:
        if not self.writes:
            return
        with optional_file("rows of metrics.jsonl"):
            append_line(self.path, json.dumps(row))

    def _plot(self, numbers: dict[str, float], step: int) -> None:
        self._to_tensorboard(lambda writer: [writer.add_scalar(name, value, step) for name, value in numbers.items()], step)
        if self.wandb is not None:
            self.wandb.log(numbers | {"step": step})

    def _to_tensorboard(self, add: Callable[[SummaryWriter], object], first_step: int) -> None:
        """Add something to TensorBoard's events. A writer that found the disk full writes nothing more: the next call makes
        another, of events from first_step on."""
        if not self.writes or self.config.training.monitoring != "tensorboard":
            return
        with optional_file("TensorBoard's events"):
            try:
                if self.tensorboard is None:
                    self.tensorboard = _new_writer(self.run_dir / "tensorboard", first_step)
                add(self.tensorboard)
            except OSError:
                self._close_tensorboard()
                raise

    def _close_tensorboard(self) -> None:
        writer, self.tensorboard = self.tensorboard, None
        if writer is not None:
            with optional_file("TensorBoard's events"):
                writer.close()


class StatusFile:
    """status.json in a run's folder: how far the run is, how fast, and its last scalars, for whoever watches the run.

    Written at the start, at most every STATUS_EVERY_S while steps are logged, and at the end.
    """

    def __init__(self, state: RunState):
        """Write the file, in the first process of the run. A file of that name that no run wrote is renamed, with a warning."""
        self.state, self.path, self._scalars = state, state.config.run_dir / "status.json", {}
        self._pace = Pace(state.config, state.step)
        self._paces: deque[float] = deque(maxlen=PACES)  # seconds per step between two writes
        self._seconds, self._steps = 0.0, 0  # since the last write
        with optional_file("status.json"):
            if state.processes.first and self.path.is_file() and "max_steps" not in read_object(self.path):
                log.warning("%s: not written by a run; renamed to %s", self.path, set_aside(self.path).name)
        self._write("running")

    def update(self, seconds: float, steps: int, scalars: dict[str, float]) -> None:
        """Note the newest scalars. seconds: spent in the last `steps` steps, samples and evaluations left out."""
        self._scalars, self._seconds, self._steps = scalars, self._seconds + seconds, self._steps + steps
        if self._pace.age_s < STATUS_EVERY_S:
            return
        if self._pace.note(self.state.step):
            self._paces.clear()
        else:
            self._paces.append(self._seconds / self._steps)
        self._seconds, self._steps = 0.0, 0
        self._write("running")

    def __enter__(self) -> "StatusFile":
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        """A run is finished once its last step and all that is due after it is done."""
        done = kind is None and self.state.step >= self.state.config.training.max_steps
        self._write("finished" if done else "stopped")

    def _write(self, name: str) -> None:
        if not self.state.processes.first:
            return
        paces = [*self._paces]
        content = {
            "state": name,
            "time": time.time(),
            "step": self.state.step,
            "max_steps": self.state.config.training.max_steps,
            "same_pace_until": self._pace.holds_until,
            "steps_per_s": self._pace.steps_per_s,
            "interval_s": self._pace.interval_s,  # between two writes
            "seconds_per_step": statistics.median(paces) if paces else None,
            "late_seconds_per_step": statistics.median(paces[-LATE_PACES:]) if len(paces) >= 3 * LATE_PACES else None,
            "scalars": {name: value if math.isfinite(value) else None for name, value in self._scalars.items()},
        }
        with optional_file("status.json"):
            write_text(self.path, json.dumps(content, indent=1))


def tag_of(name: str) -> str:
    """The name of a scalar's curve, with its group: "loss_d" is "losses/loss_d"."""
    group = next((group for group, starts in GROUPS.items() if name.startswith(starts)), OTHERS)
    return f"{group}/{name}"


def _group_of_reading(name: str) -> str:
    return "machine" if name.endswith(("_percent", "_temperature_c", "_power_w", "_share")) else "memory"


def check_monitoring(config: RunConfig) -> None:
    """Raises ConfigError where training.monitoring names what is not installed."""
    if config.training.monitoring == "wandb" and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            "training.monitoring: wandb is not installed; run `pip install wandb` or set training.monitoring=tensorboard"
        )


def _drop_rows_after(step: int, path: Path) -> None:
    """Drop the rows of later steps, and lines that are none. Where these are the last, the file is cut off before them: a full
    disk has no room for a copy."""
    if not path.exists():
        return
    lines, kept = path.read_bytes().splitlines(keepends=True), []
    for line in lines:
        match next(json_rows([line]), None):  # None where a crash cut it short, or a disk damaged it
            case {"step": int(taken)} if taken <= step:
                kept.append(line.rstrip() + b"\n")
    if lines[: len(kept)] == kept:
        os.truncate(path, sum(map(len, kept)))
    else:
        write_text(path, b"".join(kept).decode(errors="replace"))


def _new_writer(folder: Path, first_step: int) -> SummaryWriter:
    """A writer of a file of its own, which hides earlier events of first_step and later steps."""
    for file in folder.glob("events.*"):
        if not file.stat().st_size:  # of a writer that found the disk full
            file.unlink()
    return SummaryWriter(str(folder), purge_step=first_step)


def _start_wandb(run_dir: Path, config: RunConfig) -> Any:
    """The run in wandb, whose id is kept in the run's folder so that a continued run is recognised; its curves are over `step`,
    as wandb's own steps cannot go back. Raises GrafError where it does not start."""
    import wandb

    path, run_id, settings = run_dir / "wandb_id.txt", "", config_to_dict(config)
    with contextlib.suppress(OSError, ValueError):
        run_id = path.read_text(encoding="utf-8").strip()
    if not run_id:
        run_id = uuid.uuid4().hex
        with optional_file("wandb_id.txt"):
            write_text(path, run_id)
    try:
        run = wandb.init(project="graf_ccsr", name=config.expname, dir=str(run_dir), config=settings, id=run_id, resume="allow")
        run.define_metric("*", step_metric="step")
    except Exception as error:  # not logged in, no network, a wrong version: wandb's errors have no common class
        raise GrafError(
            f"training.monitoring: wandb does not start ({first_line(error)}); run `wandb login`, or "
            "without a network set WANDB_MODE=offline; training.monitoring=tensorboard needs neither"
        ) from error
    return run
