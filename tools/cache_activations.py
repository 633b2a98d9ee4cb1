"""Cache activations of layers of a trained network: of the discriminator on real images, of the generator on random latents.

    python tools/cache_activations.py --checkpoint results/default --list
    python tools/cache_activations.py --checkpoint results/default --layers graf.main.3 --out results/default/activations
    python tools/probe_activations.py results/default/activations --layer graf.main.3 --target azimuth

docs/method.md describes the files. Ctrl-C keeps the finished batches; the same command continues after them.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from activations.files import ActivationWriter, Source, size, unknown_layer
from graf.camera import Labels, azimuth_and_v
from graf.checkpoints.checkpoint import read_with_sha256
from graf.checkpoints.export import class_names
from graf.checkpoints.generator_loading import (
    as_trained,
    checkpoint_config,
    generator_from_content,
    trained_checkpoint,
    with_checkpoint_cameras,
)
from graf.checkpoints.partial_loading import require_fit
from graf.commands.jobs import seed
from graf.config import Config, is_set, load_config, override
from graf.data import Views, build_dataset, colours_only, resolve, sample_labels
from graf.data.folders import require_folders
from graf.errors import CheckpointError, GrafError
from graf.foreign.checkpoints import checkpoint_step, recognise
from graf.models.discriminators.convolutional import ConditionedDiscriminator
from graf.models.generator import Generator
from graf.models.registry import build_discriminator
from graf.rays import cut_patch, low_resolution_grid, sample_patch_grid
from graf.rng import seeded_rng
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, progress, run_script
from graf.runtime.device import choose_device, keep_freed_memory
from graf.runtime.interruption import Interruption
from graf.runtime.out_of_memory import is_out_of_memory
from graf.training.inputs import low_res_stride
from graf.training.losses import discriminator_input, faded_sigma

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate
from tqdm import tqdm

OUTPUT = "output"  # the name of the network itself among its layers
PARTS = {"discriminator": "discriminator", "generator": "generator_ema"}  # of a checkpoint, by --network
LABELS = ("class_index", "elevation_index")
Recorded = dict[str, tuple[str, Any]]  # layer -> name of the tensor, what is kept of it


@dataclasses.dataclass(frozen=True)
class Subject:
    """A network, its input samples, and a function that passes a collated batch of them through it."""

    network: nn.Module
    samples: Dataset
    forward: Callable[[dict[str, Tensor]], object]


class RealImages(Dataset):
    """Some of a data set's samples by their indices, each with its `number` among them."""

    def __init__(self, dataset: Views, indices: list[int]):
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self.dataset[self.indices[number]] | {"number": torch.tensor(number)}


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("--checkpoint", type=Path, required=True, help="a checkpoint file, or a run's folder")
    p.add_argument(
        "--network",
        choices=list(PARTS),
        default="discriminator",
        help="network whose activations are cached; default discriminator",
    )
    p.add_argument("--layers", nargs="+", metavar="NAME", help="layers by name, as --list prints them")
    p.add_argument("--list", action="store_true", help="print the layers, and the shape of each output for one sample")
    p.add_argument(
        "--num_samples", type=positive, default=100, help="number of real images, or of objects to render; default 100"
    )
    p.add_argument("--out", type=Path, help="new folder for the activations")
    p.add_argument("--batch_size", type=positive, default=8, help="samples at a time; default 8")
    p.add_argument(
        "--max_failures",
        type=count,
        default=10,
        help="number of failed batches to leave out; after one more the program ends; default 10",
    )
    p.add_argument("--resolution", type=positive, help="pixels per side of generated images; default data.imsize")
    p.add_argument("--seed", type=seed, default=0, help="seed for the choice of real images, latents and cameras; default 0")
    p.add_argument("--config", type=Path, help="YAML file, by default the checkpoint's own config")
    p.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="override config keys, e.g. data.datadir=photos",
    )
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps; default auto")
    return p


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, found {text!r}")
    return int(text)


def main() -> int:
    p = parser()
    args = p.parse_args()
    if not args.list and not (args.layers and args.out):
        p.error("--layers and --out are needed; --list prints the layers")
    keep_freed_memory()
    path = trained_checkpoint(args.checkpoint) if args.checkpoint.is_dir() else args.checkpoint
    content, sha256 = read_with_sha256(path)
    require_part(path, content, args.network)
    if args.config:
        config = with_checkpoint_cameras(load_config(args.config, args.set), content, path)
    else:
        config = override(checkpoint_config(path, content), args.set)
    config = as_trained(config, content, path)
    if not (args.config or is_set("data.datadir", args.set)):
        require_folders(config.data, path)
    dataset = build_dataset(colours_only(config) if args.network == "generator" else config)
    n_classes = recognise(content, path).n_classes
    if n_classes > 1 and (known := class_names(content, n_classes)):
        dataset.number_classes_as(known)
    if args.config:
        config = resolve(config, dataset)
    try:
        subject_of = generator_subject if args.network == "generator" else discriminator_subject
        subject = subject_of(path, content, config, dataset, args)
        if args.list:
            list_layers(subject)
            return 0
        source = Source(args.network, path.name, sha256, checkpoint_step(content), dataset.fingerprint, args.seed)
        return write(subject, source, config, args)
    except torch.OutOfMemoryError:
        raise GrafError(
            "the device's memory is full; try a smaller --batch_size, --resolution or --set nerf.render_samples_per_ray"
        ) from None


def require_part(path: Path, content: dict, network: str) -> None:
    """Raises CheckpointError where the checkpoint has no such network; the data set is not read for it."""
    parts = recognise(content, path).parts
    if PARTS[network] not in parts:
        cures = [f"use --network {other}" for other, part in PARTS.items() if part in parts]
        raise CheckpointError(f"{path}: holds no {network}, only {', '.join(parts)}; {' or '.join(cures) or 'name another'}")


def write(subject: Subject, source: Source, config: Config, args: argparse.Namespace) -> int:
    """Cache the activations; the exit status, 0 or that of an interruption."""
    n = len(subject.samples)
    if n < args.num_samples:
        log.info("the data set has %d images, all are used", n)
    layers = list(dict.fromkeys(args.layers))
    settings = hashlib.sha256(repr((config, args.resolution, args.batch_size)).encode()).hexdigest()
    writer = ActivationWriter(args.out, n, source, layers, settings)
    bar = progress(total=n, initial=writer.taken, desc="activations", unit="sample")
    with Interruption() as interruption, writer, bar:
        failures = cache_activations(
            subject.network,
            layers,
            subject.samples,
            subject.forward,
            writer,
            args.batch_size,
            bar,
            stopped=lambda: interruption.signal is not None,
            max_failures=args.max_failures,
        )
    log.info("%s: %d samples of %s", args.out, writer.samples, ", ".join(layers))
    if len(failures) > args.max_failures:
        raise GrafError(
            f"{len(failures)} batches failed, more than --max_failures {args.max_failures}; {writer.samples} samples are kept, "
            "and the same command continues after them"
        )
    return interruption.exit_status


def list_layers(subject: Subject) -> None:
    """Log every layer: its name, its kind, and the shape of what it answers to one sample."""
    layers = named_layers(subject.network)
    with recording(subject.network, list(layers), keep=lambda x: tuple(x.shape[1:])) as record:
        recorded = record(subject.forward, default_collate([subject.samples[0]]))
    for name, module in layers.items():
        tensor, shape = recorded.get(name, (name, "not called as a module"))
        log.info("%-40s %-20s %s%s", name, type(module).__name__, shape, f" as {tensor}" if tensor != name else "")


def generator_subject(path: Path, content: dict, config: Config, dataset: Views, args: argparse.Namespace) -> Subject:
    """The EMA of the generator, and latents with cameras and classes such as the data has."""
    device = choose_device(args.device)
    generator = generator_from_content(path, content, config, device)
    if args.resolution and args.resolution % (scale := generator.config.rendered_scale):
        raise GrafError(f"--resolution {args.resolution}: must be a multiple of ccsr.scale_factor {scale}")
    rng = torch.Generator().manual_seed(args.seed)
    latents = generator.sample_latents(args.num_samples, rng)
    labels = sample_labels(dataset, args.num_samples, config.data, rng)
    names = [f.name for f in dataclasses.fields(Labels)]
    samples = [{"latents": latents[i]} | {name: getattr(labels, name)[i] for name in names} for i in range(args.num_samples)]

    def forward(batch: dict[str, Tensor]) -> object:
        return generator(batch["latents"].to(device), labels_in(batch).to(device), resolution=args.resolution)

    return Subject(generator, samples, forward)


def labels_in(batch: dict[str, Tensor]) -> Labels:
    """The labels in a batch of samples."""
    return Labels(batch.get("pose_c2w"), batch["class_index"], batch["elevation_index"])


def discriminator_subject(path: Path, content: dict, config: Config, dataset: Views, args: argparse.Namespace) -> Subject:
    """The discriminator, and real images sampled without replacement, each as training shows it with its largest patch."""
    device = choose_device(args.device)
    discriminator = discriminator_of(path, content, config, dataset).to(device)
    needed = config.judges_restored or config.discriminator.dual or config.data.alpha == "rgba"
    generator = generator_from_content(path, content, config, device) if needed else None
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(args.seed))
    step = checkpoint_step(content)

    def forward(batch: dict[str, Tensor]) -> object:
        rng = seeded_rng(args.seed, int(batch["number"][0]))  # the same whether the batches before are taken now
        images = torch.cat([batch[name] for name in ("image", "alpha") if name in batch], dim=1).to(device)
        labels = cameras = labels_in(batch).to(device)
        if not dataset.posed:
            cameras = labels.with_cameras(sample_labels(dataset, len(images), config.data, rng).to(device))
        return discriminator(judged(images, cameras, config, generator, step, rng), labels)

    return Subject(discriminator, RealImages(dataset, order[: args.num_samples].tolist()), forward)


def discriminator_of(path: Path, content: dict, config: Config, dataset: Views) -> ConditionedDiscriminator:
    """The checkpoint's discriminator in eval mode. Raises CheckpointError where it does not fit config or data."""
    found = recognise(content, path)
    weights, n_classes = found.part("discriminator", path), content.get("n_classes", found.n_classes)
    if config.discriminator.condition != "none" and len(dataset.class_names) > n_classes:
        raise CheckpointError(f"{path}: knows {n_classes} class(es), and the data has {len(dataset.class_names)}")
    if config.discriminator.condition == "class_and_pose" and not dataset.posed:
        raise CheckpointError(f"{path}: its discriminator judges by cameras too, and the data has none (data.labels)")
    network = build_discriminator(config, n_classes, content.get("n_elevations", 1))
    require_fit({"discriminator": network}, found.parts, config, path)
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


def judged(
    images: Tensor, cameras: Labels, config: Config, generator: Generator | None, step: int, rng: torch.Generator
) -> Tensor:
    """The discriminator's input at a step, from real images (B, data.channels, W, W): the whole frame, or its largest patch,
    centred. In a run's first steps it has half the resolution.

    The generator is needed where it restores them, or makes their small versions.
    """
    sampler = dataclasses.replace(config.ray_sampler, random_scale=False, random_shift=False)
    grid = sample_patch_grid(len(images), config.patch_size, config.data.imsize, sampler, step, rng).to(images.device)
    grid = low_resolution_grid(grid, low_res_stride(config, step))
    patches, alpha = cut_patch(images, grid).tensor_split([3], dim=1)
    if config.judges_restored:
        patches = generator.restore(patches, generator.sample_latents(len(images), rng).to(images.device), cameras, grid)
    projection = None if generator is None else generator.projection
    blur = faded_sigma(config.discriminator, max(0, step - config.encoder.first_steps))
    return discriminator_input(patches, None, alpha if alpha.shape[1] else None, config.discriminator, projection, blur)


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

    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(known[layer].register_forward_hook(functools.partial(hook, layer)))
        yield record


def label_columns(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The kept part of a batch's labels, (B,) each: class and elevation index; azimuth_deg and v where it has pose_c2w."""
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
                for name, x in activations.items():
                    if x.ndim == 0 or len(x) != end - first:
                        said = f"answered in shape {tuple(x.shape)} for {end - first} samples; it has no row per sample"
                        raise GrafError(f"layer {name}: {said}")
                writer.add(activations, label_columns(batch))
            else:
                left_out += end - first
                writer.taken = end
                silent |= set(layers) - set(recorded)
            if bar is not None:
                bar.set_postfix_str(f"{size(writer.bytes)} of about {size(writer.estimated_bytes)}", refresh=False)
                bar.update(end - bar.n)
    if writer.samples == 0:
        said = "stopped before the first batch; nothing is kept"
        if silent:
            said = f"nothing from {', '.join(sorted(silent))}: not called as a module here; --list tells which layers are"
        raise GrafError(failures[0] if failures else said)
    if left_out:
        log.warning("%d samples left out, for which there was nothing from %s", left_out, ", ".join(sorted(silent)))
    return failures


if __name__ == "__main__":
    run_script(main)
