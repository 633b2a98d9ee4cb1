"""The trained generator of a checkpoint or of a run's folder, ready to render."""

import contextlib
import logging
from pathlib import Path

from graf.checkpoints import SUFFIX
from graf.checkpoints.architecture import config_keys_of, finds_cameras, has_background, has_encoder, is_of_encoder
from graf.checkpoints.checkpoint import NEWEST, read_checkpoint
from graf.checkpoints.export import class_names
from graf.checkpoints.partial_loading import load_partially, require_fit
from graf.checkpoints.run_folder import newest_checkpoint
from graf.config import Config, config_from_dict, config_to_dict, graf_config, load_config, merge, override
from graf.config.older import OLDER_VALUES, translate
from graf.data import resolve, with_trained_cameras
from graf.errors import CheckpointError, ConfigError
from graf.foreign.checkpoints import ForeignCheckpoint, recognise
from graf.models.generator import Generator
from graf.runtime.device import choose_device

import torch

log = logging.getLogger("graf")

RUNS_NAMED = 5  # other runs named in the error for a folder without one


def load_generator(
    checkpoint: Path | str, config: Config | Path | str | None = None, device: torch.device | str = "cpu"
) -> Generator:
    """The trained generator (its EMA) of a checkpoint, in eval mode on the device.

    `checkpoint`: a file of ours or other people's (see docs/api.md), or a run's folder, of which the newest undamaged
    one is loaded. `config`: a Config, or a YAML file whose cameras are the trained ones where it leaves the default's; else
    the one inside the checkpoint, or `config.yaml` beside it.
    `device`: as --device, or any torch.device. Raises CheckpointError, ConfigError or GrafError.
    """
    chosen, path = device if isinstance(device, torch.device) else choose_device(device), Path(checkpoint)
    if path.is_dir():
        path = trained_checkpoint(path)
    content = read_checkpoint(path)
    if config is None:
        config = checkpoint_config(path, content)
    elif not isinstance(config, Config):
        config = with_checkpoint_cameras(load_config(config), content, path)
    return generator_from_content(path, content, config, chosen)


def generator_from_content(
    path: Path, content: dict, config: Config, device: torch.device | str, partial: bool = False
) -> Generator:
    """`load_generator` from a checkpoint's content; `path` names it in messages. A model with backgrounds of its own is loaded
    without them where the config has none, and the encoder, which renders nothing, only where both have one of the same kind.
    CCSR is left out where the run has come to ccsr.unrefined_steps.

    partial: load the weights that fit, if they are at least half of the generator's parameters, and log the others.
    """
    config, found = as_trained(config, content, path), recognise(content, path)
    found.report_left_out(path)
    weights, hides_background = found.part("generator_ema", path), False
    if config.data.background_model == "none" and has_background(weights):
        config, hides_background = override(config, ["data.background_model=plane"]), True
    if not (config.encodes_images and has_encoder(weights) and finds_cameras(weights) == config.encoder.finds_cameras):
        config = config.without_encoder()
        weights = {name: tensor for name, tensor in weights.items() if not is_of_encoder(name)}
    generator = Generator(config, found.n_classes)
    if partial:
        load_partially(generator, weights, path).log(f"{path}: generator")
    else:
        require_fit({"generator_ema": generator}, found.parts | {"generator_ema": weights}, config, path)
        generator.load_state_dict(weights)
    if not all(weight.isfinite().all() for weight in generator.parameters()):
        raise CheckpointError(
            f"{path}: weights of its generator are not finite, as of a run that diverged; take an earlier checkpoint"
        )
    generator = generator.to(device).eval().requires_grad_(False)
    if generator.n_classes > 1:
        generator.class_names = class_names(content, generator.n_classes)
    if _ended_unrefined(found, config, path):
        generator = generator.unrefined()
    return generator.without_background() if hides_background else generator


def _ended_unrefined(found: ForeignCheckpoint, config: Config, path: Path) -> bool:
    """Whether the run of a checkpoint had come to ccsr.unrefined_steps, by its own config, if that can be read."""
    with contextlib.suppress(ConfigError):
        config = stored_config(found, path) or config
    return config.at(found.step) != config


def checkpoint_config(path: Path, content: dict) -> Config:
    """The config inside a checkpoint's content, else the `config.yaml` beside its file.

    Raises CheckpointError, with the keys that the weights' shapes determine, where there is neither; ConfigError for a bad one.
    """
    found = recognise(content, path)
    if (config := stored_config(found, path)) is not None:
        return config
    beside = path.parent / "config.yaml"
    if beside.exists():
        return load_config(beside)
    found.part("generator_ema", path)
    found_keys = "\n".join(f"  {key}: {finding}  ({finding.source})" for key, finding in config_keys_of(found.parts).items())
    raise CheckpointError(
        f"{path}: no config inside or beside it; name its config with --config, for the official GRAF's weights "
        f"configs/graf.yaml with what differs in --set. Their shapes tell:\n{found_keys}"
    )


def stored_config(found: ForeignCheckpoint, path: Path | str) -> Config | None:
    """The config inside a checkpoint, in our format or GRAF's; None where there is none, or (with a warning) none of either.

    Raises ConfigError where it is our own checkpoint's.
    """
    if found.config is None:
        return None
    try:
        raw, is_graf = translate(found.config, str(path))
        default = config_to_dict(graf_config() if is_graf else Config())  # also for keys that the checkpoint lacks
        return config_from_dict(merge(merge(default, OLDER_VALUES, str(path)), raw, str(path)), str(path))
    except ConfigError as error:
        if found.kind == "ours":
            raise
        log.warning("the config inside is not taken: %s", error)
        return None


def as_trained(config: Config, content: dict, path: Path) -> Config:
    """The config with what a checkpoint's content was trained with in place of `auto`; without a config inside, GRAF's: no
    opacity, no box."""
    undecided = [config.data.alpha, config.data.box]
    if config.discriminator.architecture == "mixed":
        undecided.append(config.discriminator.feature_size)
    if "auto" not in undecided:
        return config
    return resolve(config, trained=stored_config(recognise(content, path), path) or graf_config())


def with_checkpoint_cameras(config: Config, content: dict, path: Path) -> Config:
    """The config of a file that the user names beside a checkpoint, with the cameras of our run in place of the default's: it
    may have had them from the images. A change is logged."""
    found = recognise(content, path)
    try:
        trained = stored_config(found, path) if found.kind == "ours" else None
    except ConfigError:  # the named config stands in for it
        return config
    return config if trained is None else with_trained_cameras(config, trained)


def trained_checkpoint(run_dir: Path) -> Path:
    """The newest undamaged checkpoint of a run's folder. Raises CheckpointError where there is none."""
    if run_dir.is_file():
        raise CheckpointError(f"{run_dir}: is a file, where the folder of a run is expected; --checkpoint takes a file")
    checkpoint = newest_checkpoint(run_dir)
    if checkpoint is None:
        others = _runs_in(run_dir) or _runs_in(run_dir.parent)
        named = f"another run: {others}" if others else "the folder of a trained run"
        exports = "".join(f"; --checkpoint takes {file}" for file in sorted(run_dir.glob(f"*{SUFFIX}")))
        raise CheckpointError(
            f"{run_dir}: no trained run here ({NEWEST} is missing){exports}; train one with train.py, or name {named}"
        )
    return checkpoint


def _runs_in(folder: Path) -> str:
    """The names of runs in a folder, also of rounds that found cameras, at most RUNS_NAMED, newest first; an empty string where
    there are none."""
    files = [*folder.glob(f"*/{NEWEST}"), *folder.glob(f"round_*/generator/{NEWEST}")]
    newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    names = [str(file.parent) for file in newest]
    return ", ".join(names[:RUNS_NAMED] + ["..."] * (len(names) > RUNS_NAMED))
