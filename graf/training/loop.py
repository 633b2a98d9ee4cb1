"""The training loop: step, log, sample, evaluate, save."""

import logging
import math

import torch
from torch import Tensor

from graf.camera import Labels, elevation_of_v, rotation_poses, sweep_poses, view_azimuths
from graf.console import progress
from graf.data import Views, build_loader, sample_labels
from graf.errors import GrafError
from graf.evaluation.extractors import choose_extractor
from graf.evaluation.metrics import comparable, measure_generator, summary
from graf.evaluation.outputs import KINDS, picture, side_by_side, write_grid, write_video
from graf.evaluation.sampling import render_views, sample_objects
from graf.evaluation.sanity import collapse_warning, sanity
from graf.training.checkpoint import BEST, NEWEST, backup_name, save_checkpoint
from graf.training.interruption import Interruption
from graf.training.logging import RunLog
from graf.training.state import TrainState
from graf.training.steps import discriminator_step, generator_step

log = logging.getLogger("graf")

EARLY_STEPS = 500  # in which samples are written four times as often
SHEET_OBJECTS, SHEET_VIEWS, VIDEO_FRAMES = 4, 4, 60


def train(state: TrainState, dataset: Views, interruption: Interruption) -> None:
    """Train until training.max_steps or an interruption, and leave a checkpoint either way.

    Raises GrafError where training.max_bad_steps steps in a row were not finite.
    """
    config, training = state.config, state.config.training
    newest = config.run_dir / NEWEST
    if training.fid_every:
        choose_extractor(config.metrics)  # what is missing is said now, not after hours
    batches = build_loader(dataset, config, state.device, state.step)
    run_log = RunLog(config.run_dir, config, state.step)
    bar = progress(total=training.max_steps, initial=state.step, desc=config.expname, unit="step")
    saved_step = state.step
    try:
        while state.step < training.max_steps and interruption.signal is None:
            stats = train_step(state, dataset, *next(batches))
            bar.update()
            if due(state.step, training.print_every):
                numbers = run_log.scalars(stats, state.step)
                bar.set_postfix({name: f"{numbers[name]:.3f}" for name in ("loss_d", "loss_g", "opacity")}, refresh=False)
            if due(state.step, training.fid_every):
                run_log.evaluation(evaluate(state, dataset), state.step)
            if due(state.step, training.save_every_steps):
                save_checkpoint(newest, state)
                saved_step = state.step
            if due(state.step, training.backup_every):
                save_checkpoint(config.run_dir / backup_name(state.step), state)
            if due(state.step, training.sample_every) or sample_due_early(state.step, training.sample_every):
                run_log.scalars(write_samples(state), state.step)
            if due(state.step, training.video_every):
                write_rotation(state)
    finally:
        bar.close()
        run_log.close()
    if saved_step < state.step:
        save_checkpoint(newest, state)


def train_step(state: TrainState, dataset: Views, images: Tensor, labels: Labels | None) -> dict[str, Tensor]:
    """One step of both networks on one batch from the loader. Returns the step's scalars."""
    config = state.config

    def draw_labels() -> Labels:
        return sample_labels(dataset, len(images), config.data, state.draws).to(state.device)

    images = images.to(state.device, non_blocking=True)
    labels = labels.to(state.device) if labels is not None else None
    stats = discriminator_step(state, images, labels, draw_labels())
    stats |= generator_step(state, draw_labels())
    stats |= {"lr_g": state.optimizer_g.param_groups[0]["lr"], "lr_d": state.optimizer_d.param_groups[0]["lr"]}
    state.advance()
    _count_bad_steps(state, stats)
    return stats


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps is to be done now; never where `every` is 0."""
    return every > 0 and step % every == 0


def sample_due_early(step: int, every: int) -> bool:
    return step <= EARLY_STEPS and due(step, -(-every // 4))


def write_samples(state: TrainState) -> dict[str, float]:
    """samples/<step>_<kind>.png of fixed objects (rows) from fixed cameras (columns), by the moving average.

    Returns what they tell of silhouettes and depth, and warns where that is a collapse.
    """
    data = state.config.data
    elevation = elevation_of_v((data.vmin + data.vmax) / 2)
    poses = sweep_poses(view_azimuths(SHEET_VIEWS, data).tolist(), [elevation], data)
    objects = sample_objects(state.generator_ema, SHEET_OBJECTS, state.config.training.seed)
    rendering = render_views(state.generator_ema, objects, poses)
    for kind in KINDS:
        path = state.config.run_dir / "samples" / f"{state.step:08d}_{kind}.png"
        write_grid(path, picture(rendering, kind, data.near, data.far), SHEET_VIEWS)
    stats = sanity(rendering, data.near, data.far)
    if message := collapse_warning(stats):
        log.warning("step %d: %s", state.step, message)
    return stats


def write_rotation(state: TrainState) -> None:
    """videos/<step>_rotation.mp4 of the fixed objects side by side."""
    data = state.config.data
    objects = sample_objects(state.generator_ema, SHEET_OBJECTS, state.config.training.seed)
    rendering = render_views(state.generator_ema, objects, rotation_poses(VIDEO_FRAMES, data))
    frames = side_by_side(picture(rendering, "rgb", data.near, data.far), SHEET_OBJECTS)
    write_video(state.config.run_dir / "videos" / f"{state.step:08d}_rotation.mp4", frames)


def evaluate(state: TrainState, dataset: Views) -> dict:
    """FID and KID of the moving average with their protocol, and model_best.pt where they are the best by training.save_best.

    The run's random state is left untouched.
    """
    config = state.config
    result = measure_generator(state.generator_ema, dataset, ("fid", "kid"), config.training.seed, config.run_dir / "cache")
    result |= {"step": state.step, "ema": True}
    log.info("step %d: %s", state.step, summary(result))
    if config.training.save_best != "none" and is_best(result, state):
        save_checkpoint(config.run_dir / BEST, state)
        log.info("step %d: the best %s so far; kept as %s", state.step, config.training.save_best.upper(), BEST)
    return result


def is_best(result: dict, state: TrainState) -> bool:
    """Whether a result of `measure` is the run's best by training.save_best, and if so remember it as state.best.

    A result that cannot be compared with the best so far, being under another protocol, begins anew.
    """
    metric = state.config.training.save_best
    value, terms = result["values"][f"{metric}_{result['extractor']}"], {"metric": metric} | comparable(result)
    best = state.best
    if not math.isfinite(value) or (best is not None and best["terms"] == terms and best["value"] <= value):
        return False
    state.best = {"value": value, "step": state.step, "terms": terms}
    return True


def _count_bad_steps(state: TrainState, stats: dict[str, Tensor]) -> None:
    """Steps whose gradients were not finite left the weights as they were; too many of them in a row end the run."""
    bad = [name for name in ("grad_norm_d", "grad_norm_g") if not torch.isfinite(stats[name])]
    state.bad_steps = state.bad_steps + 1 if bad else 0
    if bad and state.bad_steps >= state.config.training.max_bad_steps:
        values = ", ".join(f"{name} {float(value):.3g}" for name, value in stats.items())
        raise GrafError(
            f"step {state.step}: {state.bad_steps} steps in a row had a non-finite gradient ({', '.join(bad)}); the weights "
            f"are those before them. Last values: {values}. Lower training.lr_g and lr_d, or set training.grad_clip=1"
        )
    if bad:
        log.warning("step %d skipped: %s not finite (%d in a row)", state.step, " and ".join(bad), state.bad_steps)
