"""Checkpoints: written whole, read without running anything that is in them, ours and the official GRAF's."""

import logging
import pickle
from pathlib import Path

import numpy as np
import torch

from graf.config import Config, config_from_dict, config_to_dict, load_config, merge
from graf.errors import CheckpointError
from graf.files import whole_file
from graf.models.generator import Generator
from graf.training.state import TrainState

log = logging.getLogger("graf")

FORMAT = "graf_ccsr 1"
NEWEST = "model.pt"  # of a run's folder
BEST = "model_best.pt"  # by training.save_best
NUMPY_NUMBERS = [  # of the official GRAF's scores, as older and newer versions of NumPy name them
    np._core.multiarray.scalar,
    (np._core.multiarray.scalar, "numpy.core.multiarray.scalar"),
    np.dtype,
    type(np.dtype("float64")),
    type(np.dtype("float32")),
]


def backup_name(step: int) -> str:
    return f"backups/model_{step:08d}.pt"


def save_checkpoint(path: Path, state: TrainState) -> None:
    """Write all that the run is, with its config, whole or not at all. Raises CheckpointError where it cannot be written."""
    content = {
        "format": FORMAT,
        "config": config_to_dict(state.config),
        "n_classes": state.n_classes,
        "n_elevations": state.n_elevations,
        "state": state.state_dict(),
    }
    try:
        with whole_file(path) as temporary:
            torch.save(content, temporary)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError
        raise CheckpointError(f"{path}: cannot be written ({error}); the checkpoint before it is as it was") from error


def read_checkpoint(path: Path | str) -> dict:
    """The content of a checkpoint file, on the CPU. Raises CheckpointError for what is missing, damaged or unsafe."""
    try:
        with torch.serialization.safe_globals(NUMPY_NUMBERS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint") from None
    except pickle.UnpicklingError as error:
        wanted = str(error).split("WeightsUnpickler error:")[-1].strip().split("\n")[0]
        raise CheckpointError(f"{path}: damaged, or wants more than tensors and plain values ({wanted}); not loaded") from None
    except Exception as error:  # a damaged file can make torch.load raise nearly anything
        raise CheckpointError(f"{path}: not a checkpoint that can be read ({type(error).__name__}: {error})") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a checkpoint, found a {type(content).__name__}")
    if content.get("format") == FORMAT and not ("config" in content and "step" in content.get("state", {})):
        raise CheckpointError(f"{path}: a checkpoint without its config or step; it was not written by train.py")
    return content


def restore(path: Path, state: TrainState) -> None:
    """Continue from a checkpoint: everything from one of ours, the weights and the step from an official GRAF one.

    Raises CheckpointError where the checkpoint is of another architecture than the config.
    """
    content = read_checkpoint(path)
    try:
        if content.get("format") == FORMAT:
            _report_changes(content["config"], state.config)
            state.load_state_dict(content["state"])
        elif _is_graf(content):
            state.generator.load_state_dict(_graf_generator(content, ""))
            state.generator_ema.load_state_dict(_graf_average(content))
            state.discriminator.load_state_dict(content["discriminator"])
            state.step = checkpoint_step(content)
            state.set_learning_rates()
            log.warning("%s: an official GRAF checkpoint; its weights are taken, its optimizers start afresh", path)
        else:
            raise CheckpointError(_unknown(path, content))
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path}: does not fit this config; {_first_lines(error)}") from None


def load_generator(checkpoint: Path | str, config: Config | Path | str | None = None, device: str = "cpu") -> Generator:
    """The trained generator (its moving average) of a checkpoint, in eval mode on the device.

    `checkpoint`: a file of ours or the official GRAF's, or a run's folder. `config`: a Config or a YAML file; by default the
    one inside the checkpoint, else `config.yaml` beside it. Raises CheckpointError or ConfigError.
    """
    path = Path(checkpoint)
    if path.is_dir():
        path = path / NEWEST
    content = read_checkpoint(path)
    if not isinstance(config, Config):
        config = load_config(config) if config is not None else checkpoint_config(path, content)
    return generator_of(path, content, config, device)


def generator_of(path: Path, content: dict, config: Config, device: torch.device | str) -> Generator:
    """`load_generator` of a checkpoint's content that has been read; `path` names it in messages."""
    generator = Generator(config, content.get("n_classes", 1))
    try:
        if content.get("format") == FORMAT:
            generator.load_state_dict(content["state"]["generator_ema"])
        elif _is_graf(content):
            generator.load_state_dict(_graf_average(content))
        else:
            raise CheckpointError(_unknown(path, content))
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path}: does not fit this config; {_first_lines(error)}") from None
    return generator.to(device).eval().requires_grad_(False)


def checkpoint_config(path: Path, content: dict) -> Config:
    """The config inside a checkpoint's content, else the `config.yaml` beside its file. Raises CheckpointError for neither."""
    if content.get("format") == FORMAT:
        default = config_to_dict(load_config())  # for keys that came after the checkpoint
        return config_from_dict(merge(default, content["config"], str(path)), str(path))
    beside = path.parent / "config.yaml"
    if not beside.exists():
        raise CheckpointError(f"{path}: has no config inside and no config.yaml beside it; name one with --config")
    return load_config(beside)


def checkpoint_step(content: dict) -> int:
    """The training step that a checkpoint's content is of."""
    return content["state"]["step"] if content.get("format") == FORMAT else max(content.get("it", 0), 0)


def _is_graf(content: dict) -> bool:
    return isinstance(content.get("generator"), dict) and "it" in content


def _graf_generator(content: dict, suffix: str) -> dict:
    """The official code's generator weights, under our names."""
    weights = {f"field.{name}": value for name, value in content[f"generator{suffix}"].items()}
    for name, value in content.get(f"generator_fine{suffix}", {}).items():
        weights[f"field_fine.{name}"] = value
    return weights


def _graf_average(content: dict) -> dict:
    """The moving average's weights, or the generator's own where the run took no average."""
    return _graf_generator(content, "_test" if "generator_test" in content else "")


def _report_changes(saved: dict, config: Config) -> None:
    current = config_to_dict(config)
    for section, values in current.items():
        before = saved.get(section)
        pairs = values.items() if isinstance(values, dict) else [(None, values)]
        for name, value in pairs:
            old = before.get(name) if isinstance(before, dict) and name else before
            if old != value:
                log.info("%s changed since the checkpoint: %s -> %s", f"{section}.{name}" if name else section, old, value)


def _unknown(path: Path, content: dict) -> str:
    keys = ", ".join(str(key) for key in list(content)[:8])
    return f"{path}: neither a checkpoint of this suite nor an official GRAF one; its keys are {keys}"


def _first_lines(error: Exception, n: int = 5) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "\n  ".join(lines[:n] + ([f"... and {len(lines) - n} more"] if len(lines) > n else []))
