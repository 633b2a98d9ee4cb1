"""Validation of a pose estimator: cameras read off images that it was not trained on.

Legend: N predictions.
"""

import dataclasses

from graf.data import Views
from graf.data.views import spread
from graf.pose.accuracy import accuracy, images_of, read_cameras
from graf.pose.splits import Subset
from graf.pose.state import PoseState
from graf.rotations import relative_motion, six_of_freedom

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Validation:
    """Predictions at a step for N images that were not trained on, each paired with the next one; on the CPU.

    predicted and target (N, 6): the relative motion of each pair, translation in scene units and rotation vector in radians,
    composed from the cameras of both images; predicted_pose and target_pose (N, 3, 4): the cameras of the images themselves.
    """

    step: int
    epoch: float
    predicted: Tensor
    target: Tensor
    predicted_pose: Tensor
    target_pose: Tensor

    def numbers(self) -> dict[str, float]:
        """Median errors in degrees of the images' cameras, and the share of azimuths that are within 15 degrees."""
        return accuracy(self.predicted_pose, self.target_pose)

    def state_dict(self) -> dict[str, float | Tensor]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def predict(state: PoseState, views: Views, at_most: int, epoch: float = 0.0) -> Validation:
    """Predict the cameras of at most so many images, evenly spread over a posed data set."""
    shown = Subset(views, spread(range(len(views)), at_most))
    predicted = read_cameras(state.estimator, images_of(shown), len(shown), state.device, state.amp.autocast)
    true = shown.labels.pose_c2w
    motions = (six_of_freedom(relative_motion(poses, poses.roll(-1, 0))) for poses in (predicted, true))
    return Validation(state.step, epoch, *motions, predicted, true)
