"""What the loop does of a pose estimator's run: its step, validations, and the test after the last step."""

import logging

from graf.camera import Labels
from graf.data import Views
from graf.pose.splits import Splits
from graf.pose.state import PoseState
from graf.pose.step import pose_step
from graf.pose.validation import Prediction, Validation, predictions
from graf.runtime.guard import Guard
from graf.runtime.out_of_memory import OutOfMemory
from graf.training.accumulation import Stats
from graf.training.logging import RunLog

from torch import Tensor

log = logging.getLogger("graf")


class PoseMethod:
    """What the loop does of a pose estimator's run: its step, validations, and the test after the last step."""

    SHOWN = ("loss", "loss_rotation")

    def __init__(self, state: PoseState, splits: Splits):
        self.state, self.splits = state, splits
        self.outputs: list[Prediction] = []  # of the validation or test under way, empty between them

    def step(self, images: Tensor, labels: Labels) -> Stats:
        return pose_step(self.state, images, labels)

    def look(self, numbers: dict[str, float]) -> None:
        pass

    def measure(self, guard: Guard, rows: RunLog) -> dict:
        """Validation where it is due, and after the last step the test."""
        state, training = self.state, self.state.config.training
        last, measured = state.step == training.max_steps, {}
        if last or (training.validate_every and state.step % training.validate_every == 0):
            guard.optional("validation", lambda: measured.update(self.validate()))
        if last:
            guard.optional("test", lambda: measured.update(self.test()))
        if measured:
            rows.scalars(measured, state.step)
        return measured

    def quality(self, measured: dict[str, float]) -> str:
        return f"azimuth error {measured['val_azimuth_deg']:.2f} degrees" if "val_azimuth_deg" in measured else ""

    def write(self, guard: Guard, rows: RunLog) -> None:
        pass

    def advised(self, error: OutOfMemory) -> OutOfMemory:
        cure = "lower training.batch_size, model.d_model or data.imsize, or name another --device"
        return OutOfMemory(f"{error}; {cure}")

    def validate(self) -> dict[str, float]:
        """Predict images of the validation set, keep them as the state's newest validation, and return its numbers."""
        validation = self._predicted(self.splits.validation, self.state.config.memory.max_validation_outputs, "validation")
        self.state.validation = validation.state_dict()
        return {f"val_{name}": value for name, value in validation.numbers().items()}

    def test(self) -> dict[str, float]:
        """Predict images of the test set, and return the numbers."""
        test = self._predicted(self.splits.test, self.state.config.memory.max_test_outputs, "test")
        return {f"test_{name}": value for name, value in test.numbers().items()}

    def _predicted(self, views: Views, at_most: int, name: str) -> Validation:
        state = self.state
        epoch = state.images_seen / len(self.splits.training)
        try:
            self.outputs.extend(predictions(state.estimator, views, at_most, state.device, state.amp.autocast))
            found = Validation.of(self.outputs, state.step, epoch)
        finally:
            self.outputs.clear()
        numbers = found.numbers()
        log.info(
            "epoch %.1f, step %d: %s, %d samples collected, median errors: azimuth %.2f, elevation %.2f, rotation %.2f "
            "degrees; %.1f %% of azimuths within 15",
            *(epoch, state.step, name, len(found.predicted)),
            *(numbers[f"{part}_deg"] for part in ("azimuth", "elevation", "rotation")),
            100 * numbers["within_15_deg"],
        )
        return found
