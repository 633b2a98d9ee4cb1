"""train.py once its arguments are parsed: build what the config says, continue where the run is, and train."""

import argparse
import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from graf.camera import rotation_poses
from graf.checkpoints.checkpoint import read_checkpoint
from graf.checkpoints.generator_loading import stored_config
from graf.commands.run import Setup, announce, anomaly_checks, log_end, log_if_done, note_data, set_up
from graf.commands.run_files import lies_in
from graf.config import Config, config_of_ours, graf_config
from graf.config.advice import advice, advice_on_steps
from graf.data import Views, build_dataset, build_loader, resolve, with_cameras_of, with_trained_cameras
from graf.data.advice.summary import log_warnings, tell_of_unread_cameras
from graf.data.advice.warnings import too_few_steps
from graf.errors import CheckpointError
from graf.foreign.checkpoints import recognise
from graf.memory.sizes import little_memory
from graf.metrics.extractors import choose_extractor
from graf.metrics.measure import image_counts
from graf.metrics.results import summary
from graf.runtime.command_line import as_typed
from graf.runtime.precision import log_number_format
from graf.training.health import check_numbers
from graf.training.loop import train
from graf.training.samples import write_progress
from graf.training.state import TrainState, initialise_from, load_checkpoint
from graf.training.step import train_step

log = logging.getLogger("graf")


def train_run(args: argparse.Namespace, read_config: Callable[[argparse.Namespace], Config], config: Config | None) -> int:
    """Train a generator by the flags of train.py, in this process or as one of several. Returns the exit status.

    read_config, config: as `set_up` takes them.
    """
    with set_up(args, read_config, config) as setup:
        state, dataset = build_run(args, setup)
        note_data(state, dataset, setup.checkpoint)
        # What ends before a first step
        if args.dry_run:
            with anomaly_checks(args, state):
                dry_run(state, dataset)
            return 0
        if log_if_done(state, setup.checkpoint, args.resume):
            return 0
        # Train
        began = announce(state, dataset, setup.checkpoint)
        with setup.interruption, anomaly_checks(args, state):
            measured = train(state, dataset, setup.interruption, args.memory_snapshot)
            setup.processes.barrier()  # a late signal must not end another process while the first one saves
        return log_end(state, setup.interruption, began, lambda: closing_lines(state, measured))


def build_run(args: argparse.Namespace, setup: Setup) -> tuple[TrainState, Views]:
    """The state of a generator's run, restored from the checkpoint if there is one, and the real images that it learns from."""
    config, checkpoint, device, processes, _ = setup
    ours = config_of_ours(args.config)
    for message in advice(config, ours):
        log.warning("%s", message)
    trained = config_of(None if args.partial else checkpoint, config.data.type, named=args.resume != "auto")
    cache = None if args.dry_run else config.run_dir / "cache"
    goes_on = trained is not None and lies_in(config.run_dir, checkpoint)
    config = with_trained_cameras(config, trained) if goes_on else config
    dataset = processes.in_turn(lambda: build_dataset(config, cache, trained, take_cameras=not goes_on))
    config = with_cameras_of(config, dataset)
    if processes.first:
        tell_of_unread_cameras(config.data)
    log_warnings(dataset, config)
    processes.require_same((len(dataset), dataset.class_names, dataset.n_elevations), "the real images")
    # Networks and optimizers, and the state of the checkpoint in them
    config = processes.broadcast(lambda: resolve(config, dataset, trained))
    for message in advice_on_steps(config) + too_few_steps(config, ours, len(dataset), dataset.posed):
        log.warning("%s", message)
    state = TrainState(config, device, len(dataset.class_names), dataset.n_elevations, processes)
    if device.type != "cuda" and (told := little_memory(state.estimate())):
        log.warning("%s", told)
    state.class_names = dataset.class_names
    load_weights(state, checkpoint, args.partial)
    keep_classes(state, dataset, checkpoint)
    if config.training.fid_every and state.step < config.training.max_steps:  # what is missing is told now, not after hours
        image_counts(config.metrics_in_training, len(dataset))
        if processes.first and not args.dry_run:
            choose_extractor(config.metrics)
    log_number_format(config.training, device)
    return state, dataset


def closing_lines(state: TrainState, measured: dict) -> dict[str, str]:
    """The closing table's lines for a generator, with the commands to go on with."""
    config = state.config
    samples, run_dir = config.run_dir / "samples", as_typed(config.run_dir)
    return {
        "quality": summary(measured) if measured else "not measured",
        "pictures": str(samples) if samples.is_dir() else "",
        "progress": str(write_progress(config.run_dir, state.step) or ""),
        "curves": str(config.run_dir / "curves"),
        "next": f"python eval.py --run {run_dir}",
        "look": f"python view.py --run {run_dir}" + ("" if find_spec("viser") else '  (needs pip install -e ".[viewer]")'),
    }


def config_of(checkpoint: Path | None, data_type: str, named: bool) -> Config | None:
    """The config that the checkpoint was trained with, None without one.

    Raises CheckpointError if data.type differs, unless the user `named` the checkpoint.
    """
    if checkpoint is None:
        return None
    content = read_checkpoint(checkpoint)
    stored = stored_config(recognise(content, checkpoint), checkpoint)
    if not named and stored is not None and stored.data.type != data_type:
        raise CheckpointError(
            f"{checkpoint}: of a run on {stored.data.type}, where data.type is {data_type} now; --set expname=NAME "
            f"begins another run. To train that one's generator on the other images: --resume {as_typed(checkpoint)}"
        )
    return stored or graf_config()


def load_weights(state: TrainState, checkpoint: Path | None, partial: bool) -> None:
    """Fill the state from the checkpoint, if there is one: all of it, or with `partial` the weights that fit."""
    if partial:
        initialise_from(checkpoint, state)
    elif checkpoint is not None:
        load_checkpoint(checkpoint, state)
        log.info("continuing %s from step %d", checkpoint, state.step)
    elif state.config.ccsr.rrdb.pretrained_path and state.generator.refinement is not None:
        state.load_pretrained_backbone(state.config.ccsr.rrdb.pretrained_path)


def keep_classes(state: TrainState, dataset: Views, checkpoint: Path | None) -> None:
    """Number the data's classes as the networks learned them; a class of another name is logged."""
    if state.generator.n_classes > 1 and state.class_names:
        for before, now in dataset.number_classes_as(state.class_names).items():
            log.warning("%s: its class %s is called %s now, and learns from these images", checkpoint, before, now)
    state.class_names = dataset.class_names


def dry_run(state: TrainState, dataset: Views) -> None:
    """Take one training step and render one sample, and log what the run would be. Nothing is written but missing toy cars."""
    training = state.config.training
    processes = state.processes
    images, labels = next(build_loader(dataset, state.config, state.device, 0, processes.rank, processes.world_size))
    state.skip_to_costliest_step()
    stats = train_step(state, dataset, images, labels)
    state.advance()
    check_numbers(state, stats, images, at_once=True)
    sample = state.generator_ema.render(state.generator_ema.sample_latents(1), rotation_poses(1, state.config.data))
    log.info("a sample: images %s, depth %s", tuple(sample.images.shape), tuple(sample.depth.shape))
    for name in ("generator", "discriminator"):
        count = sum(p.numel() for p in getattr(state, name).parameters())
        log.info("%s: %s parameters", name, f"{count:,}")
    patch, n_short = state.config.patch_size, state.config.short_steps
    log.info("images: %s, patches: %s", tuple(images.shape), (*images.shape[:2], patch, patch))
    log.info("%s%s", "" if processes.world_size == 1 else "each process: ", state.sizes.of_batch(len(images)))
    if state.device.type == "cuda":
        why_not = "memory for two is not free" if training.cuda_graphs == "auto" else "training.cuda_graphs=none"
        launched = f"launched operation by operation ({why_not})"
        log.info("steps: %s", "recorded as CUDA graphs where they repeat" if state.graphs else launched)
        by_layers = f"layer by layer, for {state.why_not_fused}"
        fused = "all layers in one operation"
        if state.config.encoder.finds_cameras:
            fused += ", but not of reconstructions, whose cameras need its gradients"
        log.info("field: %s", by_layers if state.why_not_fused else fused)
    log.info(
        "data: %d images, cameras %s, classes %s",
        len(dataset),
        "known" if dataset.posed else "sampled",
        len(dataset.class_names),
    )
    milestones = ", ".join(map(str, state.config.milestones)) or "none"
    log.info(
        "schedule: %d steps, learning rates times %g at milestones: %s", training.max_steps, training.lr_anneal, milestones
    )
    n_last = state.config.unrefined_steps
    if n_last:
        log.info("the last %d steps render all pixels, without CCSR", n_last)
    if n_short:
        of = "last ones" if n_last else "others"
        log.info("the first %d steps are of low resolution or without a discriminator; figures here are of the %s", n_short, of)
    for cadence in ("print_every", "sample_every", "save_every", "backup_every", "fid_every", "video_every"):
        every = getattr(training, cadence)
        log.info("%s: %s", cadence, (f"{every} steps" if isinstance(every, int) else every) if every else "never")
    log.info("one step: %s", ", ".join(f"{name} {float(value):.4g}" for name, value in stats.items()))
