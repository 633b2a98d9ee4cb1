"""What the layers of a network answer, sample by sample: recorded by forward hooks and kept on disk.

with recording(discriminator, ["main.3"]) as record:
    name, activation = record(discriminator, images, labels)["main.3"]
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from activations.files import ActivationWriter, size, unknown_layer
from graf.camera import azimuth_and_v
from graf.errors import GrafError
from graf.runtime.console import log
from graf.runtime.guard import is_out_of_memory

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate
from tqdm import tqdm

OUTPUT = "output"  # the name of the network itself among its layers
LABELS = ("class_index", "elevation_index")
Recorded = dict[str, tuple[str, Any]]  # layer -> name of the tensor, what is kept of it


def named_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Every module of the network by its name, the network itself as `output`."""
    return {name or OUTPUT: module for name, module in network.named_modules()}


def first_tensor(result: object, name: str) -> tuple[str, Tensor] | None:
    """The first tensor of a layer's result with its name: the layer's own, or NAME.0, NAME.key, NAME.field of a container."""
    if isinstance(result, Tensor):
        return name, result
    if dataclasses.is_dataclass(result):
        parts = [(f.name, getattr(result, f.name)) for f in dataclasses.fields(result)]
    elif isinstance(result, Mapping):
        parts = list(result.items())
    elif isinstance(result, Sequence) and not isinstance(result, str):
        parts = list(enumerate(result))
    else:
        return None
    found = (first_tensor(part, f"{name}.{key}") for key, part in parts)
    return next((pair for pair in found if pair), None)


def as_float16(x: Tensor) -> Tensor:
    """A copy on the CPU: the next layer may change x in place."""
    return x.detach().to("cpu", torch.float16, copy=True)


@contextlib.contextmanager
def recording(
    network: nn.Module, layers: Sequence[str], keep: Callable[[Tensor], Any] = as_float16
) -> Iterator[Callable[..., Recorded]]:
    """A function record(forward, *inputs) that calls forward and returns what the layers answered meanwhile.

    Of each layer: (name of the tensor, keep(tensor)); of one that is called several times, the first answer; a layer that is
    not called is missing. The hooks are removed at the end. Raises GrafError for an unknown layer.
    """
    known = named_layers(network)
    for layer in layers:
        if layer not in known:
            raise GrafError(unknown_layer(layer, known))
    store: Recorded = {}

    def hook(layer: str, _module: nn.Module, _inputs: tuple, result: object) -> None:
        found = first_tensor(result, layer)
        if found and layer not in store:
            store[layer] = (found[0], keep(found[1]))

    def record(forward: Callable, *inputs: Any) -> Recorded:
        store.clear()
        try:
            with torch.inference_mode():
                forward(*inputs)
            return dict(store)
        finally:
            store.clear()

    handles = []
    try:
        handles += [known[layer].register_forward_hook(functools.partial(hook, layer)) for layer in layers]
        yield record
    finally:
        for handle in handles:
            handle.remove()


def check_dataset(dataset: Dataset) -> None:
    """Raises GrafError for what cannot be read by index, and for an empty data set."""
    missing = [name for name in ("__len__", "__getitem__") if not callable(getattr(dataset, name, None))]
    if missing:
        raise GrafError(
            f"{type(dataset).__name__}: a data set whose activations are cached needs __len__ and __getitem__, and has no "
            f"{' and no '.join(missing)}; wrap it in a torch Dataset of known length"
        )
    if len(dataset) == 0:
        raise GrafError(f"{type(dataset).__name__}: the data set is empty; there is nothing to cache")


def label_columns(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What is kept of a batch's labels, (B,) each: class and elevation index; azimuth_deg and v where it has pose_c2w."""
    labels = {name: batch[name] for name in LABELS if name in batch}
    if "pose_c2w" in batch:
        labels["azimuth_deg"], labels["v"] = azimuth_and_v(batch["pose_c2w"])
    return labels


def cache_activations(
    network: nn.Module,
    layers: Sequence[str],
    dataset: Dataset,
    forward: Callable[[dict[str, Tensor]], object],
    writer: ActivationWriter,
    batch_size: int,
    bar: tqdm | None = None,
    stopped: Callable[[], bool] = lambda: False,
    max_failures: int = 0,
) -> list[str]:
    """Write the layers' activations and the labels of a data set's samples, dicts of tensors.

    forward(batch) puts a collated batch through the network. A batch for which a layer gave nothing is left out with a
    warning, and so is one that cannot be read or taken: returns what was wrong with each of those. After max_failures of them,
    one more ends the work, and so does `stopped`; what there is is kept, and a writer that goes on takes the samples after
    those that it has. Raises GrafError where nothing is left, for an unknown layer, and for one whose results do not have a
    row per sample.
    """
    check_dataset(dataset)
    left_out, silent, failures = 0, set(), []
    with recording(network, layers) as record:
        while writer.taken < len(dataset) and len(failures) <= max_failures and not stopped():
            first, end = writer.taken, min(writer.taken + batch_size, len(dataset))
            try:
                batch = default_collate([dataset[i] for i in range(first, end)])
                recorded = record(forward, batch)
            except Exception as error:  # of the data or of the network, whichever it is: hours may lie behind it
                if is_out_of_memory(error):
                    raise
                failures.append(f"samples {first} to {end - 1}: {error or type(error).__name__}")
                log.warning("left out: %s", failures[-1])
                writer.taken = end
                continue
            if len(recorded) == len(layers):
                activations = dict(recorded.values())
                _check_rows(activations, end - first)
                writer.add(activations, label_columns(batch))
            else:
                left_out += end - first
                writer.taken = end
                silent |= set(layers) - set(recorded)
            if bar is not None:
                bar.set_postfix_str(f"{size(writer.bytes)} of about {size(writer.estimated_bytes)}", refresh=False)
                bar.update(end - bar.n)
    if writer.samples == 0:
        raise GrafError(failures[0] if failures else _nothing(silent))
    if left_out:
        log.warning("%d samples left out, for which there was nothing from %s", left_out, ", ".join(sorted(silent)))
    return failures


def _check_rows(activations: dict[str, Tensor], n: int) -> None:
    for name, x in activations.items():
        if x.ndim == 0 or len(x) != n:
            raise GrafError(f"layer {name}: answered in shape {tuple(x.shape)} for {n} samples; it has no row per sample")


def _nothing(silent: set[str]) -> str:
    if not silent:
        return "stopped before the first batch; nothing is kept"
    return f"nothing from {', '.join(sorted(silent))}: not called as a module here; --list tells which layers are"
