"""Validation of a pose estimator: cameras read off images that it was not trained on.

Legend: N predictions.
"""

import contextlib
import dataclasses
from collections.abc import Callable

from graf.data import Views
from graf.pose.accuracy import accuracy, photographs_of, read_cameras
from graf.pose.splits import Subset
from graf.rotations import relative_motion, six_of_freedom

import torch
from torch import Tensor, nn

Prediction = dict[str, Tensor]


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
