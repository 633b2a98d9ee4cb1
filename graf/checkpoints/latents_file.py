"""One object of a generator as a JSON file: its latents, its class and the model that they are of."""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from graf.errors import GrafError
from graf.models.generator import Generator, weights_hash
from graf.runtime.files import write_text

import torch
from torch import Tensor

log = logging.getLogger("graf")

NAME = "latents.json"
FORMAT = "graf_ccsr latents 1"
MAKERS = "eval.py --invert writes such a file, and so does view.py by `save latents`"


class KeptObject(NamedTuple):
    """Latents (Z,) and class of an object, what its file says of the model, {} where it says nothing, and by how many standard
    deviations the viewer moved it along each principal direction (graf.models.directions)."""

    latents: Tensor
    class_index: int
    model: dict[str, Any]
    moved: list[float]


def write_latents(
    path: Path | str, generator: Generator, latents: Tensor, class_index: int, checkpoint: Path | str, step: int, **more: Any
) -> Path:
    """Write an object's latents (Z,), class, and the model by checkpoint, step, sizes and a digest of its weights.

    more: further entries for people and other programs, ready for JSON.
    """
    content = {
        "format": FORMAT,
        "model": {
            "checkpoint": str(checkpoint),
            "step": step,
            "weights_sha256": weights_hash(generator),
            "latent_dim": generator.latent_dim,
            "n_classes": generator.n_classes,
        },
        **more,
        "class_index": class_index,
        "latents": latents.tolist(),
    }
    write_text(path, json.dumps(content, indent=1, allow_nan=False))
    return Path(path)


def load_latents(*files: Path | str) -> tuple[Tensor, Tensor]:
    """Latents (N, Z) and class_index (N,) of the objects in N files, as `Generator.render` takes them.

    Raises GrafError for a file that is missing, damaged or something else, and for files of different numbers of latents.
    """
    if not files:
        raise GrafError(f"no file of latents is named; {MAKERS}")
    objects = [read_latents(file) for file in files]
    widths = [len(found.latents) for found in objects]
    for file, width in zip(files, widths, strict=True):
        if width != widths[0]:
            raise GrafError(f"{file}: {width} latents, but {files[0]} has {widths[0]}; they are of different models")
    return torch.stack([found.latents for found in objects]), torch.tensor([found.class_index for found in objects])


def fitting_latents(files: list[Path | str], generator: Generator, checkpoint: Path | str) -> tuple[Tensor, Tensor]:
    """`load_latents` for a generator, of which `checkpoint` is the file.

    Logs a warning where other weights found an object. Raises GrafError also for another number of latents than the model's,
    and for a class that it does not have.
    """
    dim, n_classes, digest = generator.latent_dim, generator.n_classes, weights_hash(generator)
    for file in files:
        latents, class_index, model, moved = read_latents(file)
        origin = f"{model.get('checkpoint', 'another model')}"
        if len(latents) != dim:
            raise GrafError(f"{file}: {len(latents)} latents, of {origin}; {checkpoint} takes {dim}: name the model that fits")
        if class_index >= n_classes:
            known = f"classes 0 to {n_classes - 1}" if n_classes > 1 else "no class but 0"
            raise GrafError(f"{file}: class {class_index}, of {origin}; {checkpoint} has {known}: name the model that fits")
        if any(moved):
            log.warning("%s: was moved along the model's directions (shape_sd, appearance_sd), and is taken unmoved", file)
        if model.get("weights_sha256", digest) != digest:
            log.warning(
                "%s: of other weights (%s, step %s) than %s, with which the object may look different",
                *(file, origin, model.get("step"), checkpoint),
            )
    return load_latents(*files)


def read_latents(file: Path | str) -> KeptObject:
    """The object in a file. Raises GrafError where there is none that can be read."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GrafError(f"{file}: no such file; {MAKERS}") from None
    except OSError as error:
        raise GrafError(f"{file}: cannot be read ({error.strerror}); name a {NAME}") from None
    except (ValueError, RecursionError) as error:
        raise GrafError(f"{file}: damaged, or not JSON ({error}); {MAKERS}") from None
    if not isinstance(content, dict) or "latents" not in content:
        raise GrafError(f"{file}: holds no latents; {MAKERS}")
    class_index, model = content.get("class_index", 0), content.get("model")
    if type(class_index) is not int or not 0 <= class_index < 2**31:
        raise GrafError(f"{file}: class_index: expected a whole number from 0, found {class_index!r}")
    try:
        latents = torch.tensor(content["latents"], dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        latents = torch.empty(0)
    if latents.dim() != 1 or not len(latents) or not latents.isfinite().all():
        raise GrafError(f"{file}: latents: expected a list of finite numbers; the file is damaged")
    amounts = [content.get(name) for name in ("shape_sd", "appearance_sd")]
    moved = [sd for some in amounts if isinstance(some, list) for sd in some]
    return KeptObject(latents, class_index, model if isinstance(model, dict) else {}, moved)
