"""Activations on disk: shards of float16 with their samples' labels, and a manifest that is written last.

A shard holds, for some samples, `activations/NAME` (n, ...) for every layer's result and `labels/NAME` (n,) for every label.
"""

import bisect
import dataclasses
import difflib
import functools
import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from graf.errors import GrafError
from graf.runtime.console import log
from graf.runtime.files import is_taken, whole_file, write_text

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

FORMAT = "graf_ccsr activations 1"
MANIFEST = "manifest.json"
SHARD_BYTES = 2**26  # gathered in memory before they are written


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of the activations: network, its checkpoint's file name, sha256 and step, the data's fingerprint, the seed."""

    network: str
    checkpoint: str
    checkpoint_sha256: str
    step: int
    data_fingerprint: str
    seed: int


class ActivationWriter:
    """A context manager that writes the activations of about n_samples samples into a new folder.

    Its end writes the manifest; an error on the way removes what was written. estimated_bytes is known from the first batch on.
    A folder of the same source, layers (by the names that were asked for), number of samples and settings, that was left before
    its end, is gone on with: of the samples, the first `taken` are done, or were left out, which is the caller's to count.
    settings is a digest of what else the activations depend on. Raises GrafError for any other folder that is not empty.
    """

    def __init__(self, folder: Path | str, n_samples: int, source: Source, layers: Sequence[str], settings: str = ""):
        self.folder, self.n_samples = Path(folder), n_samples
        self.manifest = {
            "format": FORMAT,
            "source": dataclasses.asdict(source),
            "complete": False,
            "asked": {"layers": list(layers), "samples": n_samples, "settings": settings},
            "taken": 0,
            "samples": 0,
            "bytes": 0,
            "layers": {},
            "labels": {},
            "shards": [],
        }
        self._rows: list[dict[str, Tensor]] = []  # of the next shard, batch by batch
        if is_taken(self.folder):
            self._go_on()
        self.taken, self.samples, self.bytes = (self.manifest[name] for name in ("taken", "samples", "bytes"))
        self.estimated_bytes, self._shards = self.bytes, self.manifest["shards"]
        self._kept = len(self._shards)  # of before: an error leaves them as they were

    def __enter__(self) -> "ActivationWriter":
        return self

    def __exit__(self, error_type: type | None, *_: object) -> None:
        try:
            if error_type is None:
                self._flush()
                self._write_manifest()
                self._kept = len(self._shards)
        finally:
            for shard in self._shards[self._kept :]:
                (self.folder / shard["file"]).unlink(missing_ok=True)

    def _go_on(self) -> None:
        held = read_manifest(self.folder) if (self.folder / MANIFEST).exists() else {}
        if held.get("complete", True) or any(held[key] != self.manifest[key] for key in ("source", "asked")):
            kept = "not an empty folder"
            if held:
                kept = "holds activations already" if held.get("complete", True) else "holds part of other activations"
            raise GrafError(f"{self.folder}: {kept}; nothing is written over, delete it or name another with --out")
        self.manifest = held
        log.info("%s: continues after the first %d of %d samples", self.folder, held["taken"], self.n_samples)

    def add(self, activations: dict[str, Tensor], labels: dict[str, Tensor]) -> None:
        """Append n samples: activations (n, ...) float16 by name, labels (n,) by name, all on the CPU.

        Raises GrafError where the disk has no room for all samples, or a layer answers in another shape than before.
        """
        rows = {f"activations/{name}": x for name, x in activations.items()}
        rows |= {f"labels/{name}": x for name, x in labels.items()}
        n, n_bytes = len(next(iter(rows.values()))), sum(x.nbytes for x in rows.values())
        if not self._rows and len(self._shards) == self._kept:  # the first
            self.manifest["labels"] = {name: _dtype(x) for name, x in labels.items()}
            self._reserve(n_bytes * (self.n_samples - self.taken) // n)
        for name, x in activations.items():
            self._describe(name, x)
        self._rows.append(rows)
        self.taken, self.samples = self.taken + n, self.samples + n
        self.bytes += n_bytes
        if sum(x.nbytes for some in self._rows for x in some.values()) >= SHARD_BYTES:
            self._flush()

    def _reserve(self, n_bytes: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.estimated_bytes, free = self.bytes + n_bytes, shutil.disk_usage(self.folder).free
        n = self.n_samples - self.taken
        log.info("%d samples will take about %s of %s free", n, size(n_bytes), size(free))
        if free < n_bytes:
            raise GrafError(
                f"{self.folder}: {n} samples would take about {size(n_bytes)}, and {size(free)} are free; "
                "ask for fewer samples or layers, or name a folder on another disk with --out"
            )

    def _describe(self, name: str, x: Tensor) -> None:
        shape = list(x.shape[1:])
        layer = self.manifest["layers"].setdefault(
            name, {"layer": name, "shape": shape, "dtype": _dtype(x), "bytes": 0, "samples_not_finite": 0}
        )
        if layer["shape"] != shape:
            raise GrafError(f"layer {name}: answered in shape {layer['shape']} and now in {shape}; it cannot be cached")
        layer["bytes"] += x.nbytes
        layer["samples_not_finite"] += int((~x.isfinite().reshape(len(x), -1).all(1)).sum())

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = {name: torch.cat([rows[name] for rows in self._rows]).contiguous() for name in self._rows[0]}
        path = self.folder / f"shard_{len(self._shards):05d}.safetensors"
        with whole_file(path) as temporary:
            temporary.write_bytes(save(columns))  # save_file would let nobody else read it
        n = sum(len(next(iter(rows.values()))) for rows in self._rows)
        self._shards.append({"file": path.name, "samples": n, "bytes": path.stat().st_size})
        self._rows = []

    def _write_manifest(self) -> None:
        for layer in self.manifest["layers"].values():
            if n := layer["samples_not_finite"]:
                log.warning("layer %s: %d of %d samples hold numbers beyond float16", layer["layer"], n, self.samples)
        done = {"complete": self.taken >= self.n_samples, "taken": self.taken, "samples": self.samples}
        self.manifest |= done | {"bytes": sum(shard["bytes"] for shard in self._shards)}
        write_text(self.folder / MANIFEST, json.dumps(self.manifest, indent=1))


class CachedActivations(Dataset):
    """One layer's activations of a folder, read from the disk as they are asked for: index -> (activation, label).

    activation (...) float16; label: a dict of numbers, such as class_index, and azimuth_deg and v where the data is posed.
    labels: the same of all samples, (N,) each. Without `layer`, the only one. Raises GrafError for a folder that is not whole,
    and for an unknown layer; a damaged shard is found when it is first needed.
    """

    def __init__(self, folder: Path | str, layer: str | None = None):
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        if not self.manifest.get("complete", True):
            taken, asked = self.manifest["taken"], self.manifest["asked"]["samples"]
            log.warning("%s: stopped after %d of %d samples; the command that made it goes on with it", folder, taken, asked)
        layers = list(self.manifest["layers"])
        if layer is None and len(layers) > 1:
            raise GrafError(f"{self.folder}: holds several layers, name one of {', '.join(layers)}")
        self.layer = layer or layers[0]
        if self.layer not in layers:
            raise GrafError(f"{self.folder}: {unknown_layer(self.layer, layers)}")
        self.shape = tuple(self.manifest["layers"][self.layer]["shape"])
        self._ends = list(itertools.accumulate(shard["samples"] for shard in self.manifest["shards"]))
        self._open: dict[int, safe_open] = {}

    def __len__(self) -> int:
        return self.manifest["samples"]

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        number = bisect.bisect_right(self._ends, index)
        row = index - (self._ends[number - 1] if number else 0)
        activation = self._column(number, f"activations/{self.layer}", self.shape)[row]
        return activation, {name: column[index] for name, column in self.labels.items()}

    @functools.cached_property
    def labels(self) -> dict[str, Tensor]:
        """Every label of all samples, (N,)."""
        shards = range(len(self._ends))
        return {
            name: torch.cat([self._column(number, f"labels/{name}", ())[:] for number in shards])
            for name in self.manifest["labels"]
        }

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_open": {}}  # a loader's worker opens the files itself

    def _column(self, number: int, name: str, shape: tuple[int, ...]):
        """A shard's tensor (n, *shape), read where it is indexed."""
        shard = self.manifest["shards"][number]
        path = self.folder / shard["file"]
        try:
            if number not in self._open:
                found = path.stat().st_size  # a file cut short would only be noticed as a bus error
                if found != shard["bytes"]:
                    raise GrafError(f"{path}: damaged, {found} bytes instead of {shard['bytes']}; cache the activations again")
                self._open[number] = safe_open(path, framework="pt", device="cpu")
            column = self._open[number].get_slice(name)
        except (OSError, SafetensorError) as error:
            raise GrafError(f"{path}: missing or damaged ({error}); cache the activations again") from None
        if tuple(column.get_shape()) != (shard["samples"], *shape):
            raise GrafError(f"{path}: {name} is not what {MANIFEST} says; cache the activations again")
        return column


def read_manifest(folder: Path) -> dict:
    """The content of the folder's manifest.json. Raises GrafError where it is missing or is not one of ours."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise GrafError(
            f"{folder}: no cached activations here ({MANIFEST} is missing); see tools/cache_activations.py"
        ) from None
    except ValueError as error:
        raise GrafError(f"{path}: damaged ({error}); cache the activations again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise GrafError(f"{path}: not a manifest of cached activations; expected format {FORMAT!r}")
    return manifest


def unknown_layer(name: str, known: Iterable[str]) -> str:
    """The message for a layer that there is not, with the names nearest to it."""
    near = difflib.get_close_matches(name, list(known), n=5, cutoff=0.4)
    return f"unknown layer '{name}'" + (f", did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(known)}")


def size(n_bytes: int) -> str:
    """Bytes for people, such as 12.3MB."""
    return tqdm.format_sizeof(n_bytes, "B")


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
