"""Exported generators: the EMA weights and the config in one safetensors file, and nothing else."""

import difflib
import json
import logging
from pathlib import Path

from graf.config import config_to_dict
from graf.errors import CheckpointError, CheckpointWriteError, DamagedCheckpointError
from graf.models.generator import Generator
from graf.runtime.files import whole_file

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

log = logging.getLogger("graf")

FORMAT = "graf_ccsr generator 1"


def write_export(path: Path | str, generator: Generator, step: int, fingerprint: str = "") -> Path:
    """Write a generator's weights, and as metadata its config, step, number of classes and, if known, their names and the
    fingerprint of the data that it was trained on. Returns the path.

    A file with the same content is left as it is; another export is replaced, and logged. Raises CheckpointError as
    `require_replaceable` does, and CheckpointWriteError where the file cannot be written; an earlier file then stays intact.
    """
    require_replaceable(path)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in generator.state_dict().items()}
    metadata = {
        "format": FORMAT,
        "config": json.dumps(config_to_dict(generator.config)),
        "n_classes": str(generator.n_classes),
        "step": str(step),
    }
    if fingerprint:
        metadata["data_fingerprint"] = fingerprint
    if generator.class_names:
        metadata["class_names"] = json.dumps(generator.class_names)
    if _has_content(path, weights, metadata):
        return Path(path)
    if Path(path).exists():
        log.info("%s: replaces an export of other weights or settings, of step %s", path, _metadata(path).get("step"))
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(save(weights, metadata))  # save_file would make it readable by its owner only
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointWriteError(f"{path}: cannot be written ({reason}); name a file in another folder") from error
    return Path(path)


def require_replaceable(path: Path | str) -> None:
    """Raises CheckpointError where the path exists and is not an export."""
    if Path(path).exists() and _metadata(path).get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: the generator would be written here, but this is not a complete earlier export; move it away, or "
            "export under another name"
        )


def missing(path: Path) -> CheckpointError:
    """The error for a missing checkpoint, which names a file of nearly its name."""
    names = [file.name for file in path.parent.glob("*")]  # empty for a folder that is missing or may not be read
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.9)
    return CheckpointError(f"{path}: no such checkpoint" + "".join(f"; did you mean {path.parent / name}?" for name in near))


def broken(path: Path) -> DamagedCheckpointError:
    """The error for a checkpoint that is empty, cut off or damaged."""
    size = path.stat().st_size
    problem = f"is cut off or damaged ({size:,} bytes)" if size else "is empty"
    return DamagedCheckpointError(f"{path}: {problem}; another copy of it is needed")


def read_export(path: Path | str) -> dict:
    """The content of an exported file, on the CPU, in a checkpoint's form: format, config, n_classes, step, data_fingerprint,
    class_names, generator_ema.

    Raises CheckpointError for a file that is missing or not an export, DamagedCheckpointError for one that is damaged.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dictionary
    except FileNotFoundError:
        raise missing(Path(path)) from None
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        if Path(path).is_file() and not Path(path).stat().st_size:
            raise broken(Path(path)) from None
        raise DamagedCheckpointError(f"{path}: not a safetensors file that can be read ({error})") from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: not a generator written by eval.py --export; its format is {metadata.get('format')!r}, not {FORMAT!r}"
        )
    try:
        config = json.loads(metadata["config"])
        n_classes, step = int(metadata["n_classes"]), int(metadata["step"])
        named = {"class_names": json.loads(metadata["class_names"])} if "class_names" in metadata else {}
    except (KeyError, ValueError) as error:
        raise DamagedCheckpointError(f"{path}: its metadata is damaged ({type(error).__name__}: {error})") from None
    if not isinstance(config, dict):
        raise DamagedCheckpointError(f"{path}: its metadata is damaged (config is a {type(config).__name__})")
    known = {name: metadata[name] for name in ("data_fingerprint",) if name in metadata} | named
    return {"format": FORMAT, "config": config, "n_classes": n_classes, "step": step, "generator_ema": weights} | known


def data_fingerprint(content: dict) -> str:
    """The fingerprint of the data that a checkpoint was trained on, ours or other people's; empty where it is not known."""
    found = _of_data(content, "data_fingerprint")
    return found if isinstance(found, str) else ""


def class_names(content: dict, n_classes: int) -> tuple[str, ...]:
    """The names of the n_classes that a checkpoint's networks know, in their order; empty where they are not known."""
    found = _of_data(content, "class_names")
    return tuple(map(str, found)) if isinstance(found, list | tuple) and len(found) == n_classes else ()


def _of_data(content: dict, name: str) -> object:
    state = content.get("state")
    return (state if isinstance(state, dict) else content).get(name)


def _metadata(path: Path | str) -> dict[str, str]:
    """A safetensors file's metadata; {} for any other file."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError, ValueError):
        return {}


def _has_content(path: Path | str, weights: dict[str, Tensor], metadata: dict[str, str]) -> bool:
    """Whether the file is an export of exactly these; the order of tensors varies, so its bytes cannot be compared."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            same = file.metadata() == metadata and set(file.keys()) == weights.keys()
            return same and all(torch.equal(file.get_tensor(name), tensor) for name, tensor in weights.items())
    except (OSError, SafetensorError, ValueError):
        return False
