"""The training loop of a pose estimator: take a step, validate when it is due, and test after the last step."""

import logging
from functools import partial

from graf.data import Views
from graf.pose.splits import Splits
from graf.pose.state import PoseState
from graf.pose.step import pose_step
from graf.pose.validation import Validation, predict
from graf.runtime.interruption import Interruption
from graf.runtime.out_of_memory import OutOfMemory
from graf.training.health import Derailed, check_numbers
from graf.training.session import advised, due, running

log = logging.getLogger("graf")


def train_pose(state: PoseState, splits: Splits, interruption: Interruption, memory_snapshot: bool = False) -> dict[str, float]:
    """Train until training.max_steps or an interruption, as graf.training.loop.train does.

    Returns the numbers of the last validation and of the test after the last step, {} for none.
    """
    training, measured = state.config.training, {}
    shown = ("loss", "loss_azimuth" if state.config.model.azimuth_bins else "loss_rotation")  # beside the progress bar
    with advised(with_cure), running(state, splits.training, interruption, memory_snapshot, shown) as session:
        while session.goes_on():
            # A step, or back to the last good checkpoint
            images, labels = session.next_batch()
            try:
                stats = pose_step(state, images, labels)
                state.advance()
                check_numbers(state, stats, images)
            except Derailed as trouble:
                session.roll_back(trouble)
                continue
            session.step_done()
            # Numbers of the step, the validation, and after the last step the test
            if due(state.step, training.print_every):
                session.log_step(stats)
            measured, last = {}, state.step == training.max_steps
            if session.due("validate_every") or last:
                measured |= session.optional("validation", partial(validate, state, splits), otherwise={})
            if last:
                measured |= session.optional("test", partial(measure_test_set, state, splits), otherwise={})
            if measured:
                session.log.scalars(measured, state.step)
            if "val_azimuth_deg" in measured:
                session.quality = f"azimuth error {measured['val_azimuth_deg']:.2f} degrees"
            session.save_what_is_due()
            session.tidy_up()
    return measured


def validate(state: PoseState, splits: Splits) -> dict[str, float]:
    """Predict images of the validation set, keep them as the state's newest validation, and return its numbers."""
    validation = _predict_and_log(state, splits, splits.validation, state.config.memory.max_validation_outputs, "validation")
    state.validation = validation.state_dict()
    return {f"val_{name}": value for name, value in validation.numbers().items()}


def measure_test_set(state: PoseState, splits: Splits) -> dict[str, float]:
    """Predict images of the test set, and return the numbers."""
    found = _predict_and_log(state, splits, splits.test, state.config.memory.max_test_outputs, "test")
    return {f"test_{name}": value for name, value in found.numbers().items()}


def _predict_and_log(state: PoseState, splits: Splits, views: Views, at_most: int, name: str) -> Validation:
    found = predict(state, views, at_most, epoch=state.images_seen / len(splits.training))
    numbers = found.numbers()
    log.info(
        "epoch %.1f, step %d: %s, %d samples collected, median errors: azimuth %.2f, elevation %.2f, rotation %.2f "
        "degrees; %.1f %% of azimuths within 15",
        *(found.epoch, state.step, name, len(found.predicted)),
        *(numbers[f"{part}_deg"] for part in ("azimuth", "elevation", "rotation")),
        100 * numbers["within_15_deg"],
    )
    return found


def with_cure(error: OutOfMemory) -> OutOfMemory:
    """The error with what to do about it."""
    return OutOfMemory(f"{error}; lower training.batch_size, model.d_model or data.imsize, or name another --device")
