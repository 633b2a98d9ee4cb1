"""Training of a pose estimator: its step, its validation and test, as the loop takes them.

Legend: B images of a step, or of a part of one, N predictions of a validation.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from functools import partial

from graf.camera import Labels
from graf.data import Views
from graf.data.splits import Splits, Subset
from graf.evaluation.pose import accuracy, photographs_of, read_cameras
from graf.rays import mirrored_images
from graf.rotations import relative_motion, six_of_freedom
from graf.runtime.guard import Guard, retry_smaller
from graf.runtime.out_of_memory import OutOfMemory
from graf.training.accumulation import LossOfRows, Stats, accumulate, all_reduced, optimize, shrinking, whole_step
from graf.training.logging import RunLog
from graf.training.pose_state import PoseState

import torch
from torch import Tensor, nn

log = logging.getLogger("graf")

ROUNDING = 1e-4  # added to squared errors under a root, whose slope is infinite at 0
LARGEST_GAIN = 0.3  # of recoloured photographs: exp of a number in +- this
Prediction = dict[str, Tensor]


def pose_step(state: PoseState, images: Tensor, labels: Labels) -> Stats:
    """One step on photographs (B, 3 or 4, W, W) with their cameras. Returns its scalars, and raises as `whole_step`."""
    images = images[:, :3].to(state.device, non_blocking=True)
    poses = labels.pose_c2w.to(state.device)
    training = state.config.training

    def drawn_loss() -> LossOfRows:
        n = len(images) * state.processes.world_size  # of all processes, of which each has its rows
        coins, order, gains = (torch.rand(n, *shape, generator=state.draws) for shape in ((), (3,), (3,)))
        mine = state.processes.rows
        shown, seen_from = images, poses
        if training.recolour:
            shown = recoloured(shown, order[mine].argsort(1).to(shown.device), gains[mine].to(shown.device))
        if training.mirror:
            shown, seen_from = mirrored(shown, seen_from, (coins[mine] < 0.5).to(shown.device))
        return lambda rows: _loss(state, shown[rows], seen_from[rows])

    def train() -> Stats:
        n = len(images) * state.processes.world_size
        gradients = partial(accumulate, state, drawn_loss, n, state.estimator, state.optimizer, state.scaler)
        sums = retry_smaller(gradients, shrinking(state), f"step {state.step}", state.processes)
        stats = all_reduced(*sums, state.processes)
        return stats | {"grad_norm": optimize(state, state.estimator, state.optimizer, state.scaler, stats)}

    return whole_step(state, images, train)


def _loss(state: PoseState, images: Tensor, poses: Tensor) -> tuple[Tensor, Stats]:
    with state.amp.autocast():
        predicted = state.estimator(images)
    rotation, translation = pose_losses(predicted, poses, state.estimator.distance)
    return rotation + translation, {"loss": rotation + translation, "loss_rotation": rotation, "loss_translation": translation}


def pose_losses(predicted: Tensor, true: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean distances of pose_c2w (B, 3, 4): of rotations as matrices, 2 sqrt(2) sin(angle / 2), and of positions / distance.

    They are not squared: where a view leaves two answers, their mean is the worst guess.
    """
    squared = (predicted - true).square()
    rotation = (squared[..., :3].sum((1, 2)) + ROUNDING).sqrt().mean()
    translation = (squared[..., 3].sum(1) / distance**2 + ROUNDING).sqrt().mean()
    return rotation, translation


def recoloured(images: Tensor, order: Tensor, share: Tensor) -> Tensor:
    """Images (B, 3, W, W) with their channels in another order (B, 3), each nearer to white or further from it.

    share (B, 3) in [0, 1): 0.5 leaves a channel as it is. White, the background, stays white.
    """
    swapped = images.gather(1, order[:, :, None, None].expand_as(images))
    gain = torch.exp(LARGEST_GAIN * (2 * share - 1))[:, :, None, None]
    return 1 - (1 - swapped) * gain


def mirrored(images: Tensor, poses: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
    """Images (B, 3, W, W) and pose_c2w (B, 3, 4), mirrored where coins (B,) say so: left and right, and at the plane y = 0.

    The camera's own x axis turns round too, which leaves a rotation: diag(1, -1, 1) R diag(-1, 1, 1).
    """
    world = poses.new_tensor([1.0, -1.0, 1.0])[:, None]
    camera = poses.new_tensor([-1.0, 1.0, 1.0, 1.0])
    pick = coins[:, None, None]
    return torch.where(pick[..., None], mirrored_images(images), images), torch.where(pick, world * poses * camera, poses)


@dataclasses.dataclass(frozen=True)
class Validation:
    """What was predicted of N images that were not trained on, each paired with the next one, at a step.

    predicted and target (N, 6): the relative motion of each pair, translation in scene units and rotation vector in radians;
    predicted_pose and target_pose (N, 3, 4): the cameras of the images themselves.
    """

    step: int
    epoch: float
    predicted: Tensor
    target: Tensor
    predicted_pose: Tensor
    target_pose: Tensor

    @classmethod
    def of(cls, outputs: list[Prediction], step: int, epoch: float) -> "Validation":
        """Of the predictions as they were kept one by one."""
        names = ("predicted_action_composed", "target_action_composed_gt", "predicted_pose_c2w", "target_pose_c2w")
        return cls(step, epoch, *(torch.stack([output[name] for output in outputs]) for name in names))

    def numbers(self) -> dict[str, float]:
        """Median errors in degrees of the images' cameras, and the share of azimuths that are within 15 degrees."""
        return accuracy(self.predicted_pose, self.target_pose)

    def state_dict(self) -> dict[str, float | Tensor]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


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


def predictions(
    estimator: nn.Module,
    views: Views,
    at_most: int,
    device: torch.device,
    autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> list[Prediction]:
    """Predictions of at most so many images, spread over a posed data set, in detached clones on the CPU.

    Each names the relative motion to the next image, composed from both images' cameras: predicted_action_composed (6,) and
    target_action_composed_gt (6,), and the cameras themselves: predicted_pose_c2w (3, 4) and target_pose_c2w (3, 4).
    """
    n = min(len(views), at_most)
    shown = Subset(views, [index * len(views) // n for index in range(n)])
    predicted = read_cameras(estimator, photographs_of(shown), n, device, autocast)
    true = shown.labels.pose_c2w
    kept = {
        "predicted_action_composed": six_of_freedom(relative_motion(predicted, predicted.roll(-1, 0))),
        "target_action_composed_gt": six_of_freedom(relative_motion(true, true.roll(-1, 0))),
        "predicted_pose_c2w": predicted,
        "target_pose_c2w": true,
    }
    return [{name: values[index].detach().clone().cpu() for name, values in kept.items()} for index in range(n)]
