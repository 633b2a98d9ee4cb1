"""train_pose.py once its arguments are parsed: the run of a pose estimator, and its plots however it ends."""

import argparse
import contextlib
import logging
from collections.abc import Callable

from graf.camera import azimuth_and_v, poses_at
from graf.commands.run import Setup, announce, anomaly_checks, log_end, log_if_done, note_data, set_up
from graf.commands.run_files import lies_in
from graf.config import PoseConfig
from graf.data import build_loader, with_cameras_of, with_trained_cameras
from graf.errors import DataError
from graf.pose.loading import trained_config
from graf.pose.loop import train_pose
from graf.pose.plots import write_pose_plots
from graf.pose.splits import Splits, posed_images, split_by_object
from graf.pose.state import PoseState
from graf.pose.step import pose_step
from graf.pose.validation import Validation
from graf.rotations import pose_errors
from graf.runtime.command_line import as_typed
from graf.runtime.files import optional_file
from graf.runtime.precision import log_number_format
from graf.training.health import check_numbers
from graf.training.state import load_checkpoint

from torch import Tensor

UPRIGHT_DEG = 5.0  # between cameras and upright ones that look at the origin, at most; those of a hand-held tour are within it
EQUAL_DISTANCES = 0.05  # relative difference

log = logging.getLogger("graf")


def train_run(
    args: argparse.Namespace, read_config: Callable[[argparse.Namespace], PoseConfig], config: PoseConfig | None
) -> int:
    """Train a pose estimator by the flags of train_pose.py, as graf.commands.train.train_run does a generator."""
    with set_up(args, read_config, config) as setup:
        state, splits = pose_run(args, setup)
        note_data(state, splits.training, setup.checkpoint)
        # What ends before a first step
        if args.dry_run:
            with anomaly_checks(args, state):
                dry_run(state, splits)
            return 0
        if log_if_done(state, setup.checkpoint, args.resume):
            return 0
        # Train, and draw the newest validation however it ends
        began = announce(state, splits.training, setup.checkpoint)
        try:
            with setup.interruption, anomaly_checks(args, state):
                measured = train_pose(state, splits, setup.interruption, args.memory_snapshot)
                setup.processes.barrier()  # a late signal must not end another process while the first one saves
        except BaseException:
            with contextlib.suppress(Exception):  # none hides how the run ended
                draw_validation(state)
            raise
        draw_validation(state)
        return log_end(state, setup.interruption, began, lambda: closing_lines(state, measured))


def pose_run(args: argparse.Namespace, setup: Setup) -> tuple[PoseState, Splits]:
    """The state of a pose estimator's run, with the checkpoint in it, and its posed images, split by objects."""
    config, checkpoint, device, processes, _ = setup
    trained = trained_config(checkpoint) if checkpoint and lies_in(config.run_dir, checkpoint) else None
    config = config if trained is None else with_trained_cameras(config, trained)
    cache = None if args.dry_run else config.run_dir / "cache"
    images = processes.in_turn(lambda: posed_images(config, cache, take_cameras=trained is None))
    config = with_cameras_of(config, images)
    splits = split_by_object(images, config.training.validation_share, config.training.test_share)
    processes.require_same(tuple(map(len, splits[:3])), "the real images")
    training = splits.training
    if len(training) < config.training.batch_size:
        raise DataError(
            f"{len(training)} images are left to train on, fewer than a batch of {config.training.batch_size}; "
            f"set training.batch_size={len(training)}"
        )
    if config.model.azimuth_bins:
        require_upright(training.labels.pose_c2w)
    distance = float(training.labels.pose_c2w[..., 3].norm(dim=-1).mean())
    state = PoseState(config, device, distance, processes)
    if checkpoint is not None:
        load_checkpoint(checkpoint, state)
        log.info("continuing %s from step %d", checkpoint, state.step)
    log.info(
        "training on %d images, validating on %d and testing on %d, of other %s",
        *(len(training), len(splits.validation), len(splits.test), "objects" if splits.by_object else "views"),
    )
    log_number_format(config.training, device)
    return state, splits


def require_upright(pose_c2w: Tensor) -> None:
    """Raises DataError where cameras (N, 3, 4) are not upright, or look past the origin, on average: a distribution over
    azimuths has none such. Warns of unequal distances."""
    distances = pose_c2w[..., 3].norm(dim=-1)
    turned_deg = float(pose_errors(poses_at(*azimuth_and_v(pose_c2w), distances), pose_c2w).rotation_deg.mean())
    if turned_deg > UPRIGHT_DEG:
        raise DataError(
            f"model.azimuth_bins: a distribution over azimuths has only upright cameras that look at the origin, and these "
            f"are turned against such by {turned_deg:.1f} degrees on average; set model.azimuth_bins=0"
        )
    nearest, farthest = float(distances.min()), float(distances.max())
    if farthest > (1 + EQUAL_DISTANCES) * nearest:
        log.warning(
            "the cameras are %.4g to %.4g from the origin, and a distribution over azimuths gives all of them their mean; to "
            "learn their distances too, set model.azimuth_bins=0",
            *(nearest, farthest),
        )


def closing_lines(state: PoseState, measured: dict[str, float]) -> dict[str, str]:
    """The closing table's lines for a pose estimator, with the command to go on with."""
    error, run_dir = measured.get("test_azimuth_deg"), state.config.run_dir
    return {
        "quality": f"median azimuth error {error:.2f} degrees on the test set" if error is not None else "",
        "plots": str(run_dir / "plots"),
        "next": as_typed("python", "tools/label_poses.py", "PHOTOS", "--estimator", run_dir),
    }


def draw_validation(state: PoseState) -> None:
    """Write plots and CSV of the newest validation into the run's folder, in the first process."""
    if not state.processes.first:
        return
    if not state.validation:
        log.info("no validation was made yet, so there are no plots; training.validate_every says when it is")
        return
    with optional_file("plots"):
        write_pose_plots(state.config.run_dir / "plots", Validation(**state.validation))


def dry_run(state: PoseState, splits: Splits) -> None:
    """Take one training step, and log what the run would be. Nothing is written but missing toy cars."""
    processes, training = state.processes, state.config.training
    batches = build_loader(splits.training, state.config, state.device, 0, processes.rank, processes.world_size)
    images, labels = next(batches)
    stats = pose_step(state, images, labels)
    state.advance()
    check_numbers(state, stats, images, at_once=True)
    log.info("estimator: %s parameters", f"{sum(p.numel() for p in state.estimator.parameters()):,}")
    log.info("images: %s, %s", tuple(images.shape), state.sizes.of_batch(len(images)))
    log.info(
        "schedule: %d steps, %.1f epochs", training.max_steps, training.max_steps * training.batch_size / len(splits.training)
    )
    log.info("one step: %s", ", ".join(f"{name} {float(value):.4g}" for name, value in stats.items()))
