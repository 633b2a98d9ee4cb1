"""Principal directions of a model as a JSON file, which says of which model they are."""

import json
from pathlib import Path
from typing import Any

from graf.errors import GrafError
from graf.models.directions import PARTS, Directions, Principal
from graf.runtime.files import write_text

import torch

FORMAT = "graf_ccsr directions 1"
KEYS = ("offset", "deviation", "share")


def write_directions(path: Path, directions: Directions, terms: dict[str, Any]) -> Path:
    """Write the directions, and the terms by which they were found, ready for JSON."""
    content = {"format": FORMAT, **terms}
    for part in PARTS:
        found = directions[part]
        columns = (values.tolist() for values in (found.offsets, found.deviations, found.shares))
        content[part] = [dict(zip(KEYS, row, strict=True)) for row in zip(*columns, strict=True)]
    write_text(path, json.dumps(content, allow_nan=False))
    return path


def load_directions(file: Path | str) -> Directions:
    """The directions in a file of eval.py --directions, for `edited`. Raises GrafError where none can be read."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise GrafError(f"{file}: cannot be read ({error.strerror}); eval.py --directions writes such a file") from None
    except (ValueError, RecursionError) as error:
        raise GrafError(f"{file}: damaged, or not JSON ({error}); eval.py --directions writes it anew") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise GrafError(f"{file}: not a file of directions, which eval.py --directions writes")
    return {part: _principal(file, part, content.get(part)) for part in PARTS}


def _principal(file: Path | str, part: str, rows: Any) -> Principal:
    try:
        offsets, *others = ([row[key] for row in rows] for key in KEYS)
        offsets = torch.tensor(offsets, dtype=torch.float32) if offsets else torch.empty(0, 0)
        found = Principal(offsets, *(torch.tensor(values, dtype=torch.float32) for values in others))
    except (TypeError, KeyError, ValueError, RuntimeError):
        found = None
    if found is None or found.offsets.dim() != 2 or found.deviations.dim() != 1 or not found.offsets.isfinite().all():
        raise GrafError(f"{file}: {part}: damaged; eval.py --directions writes it anew")
    return found
