"""train_pose.py refuses cameras that its estimator has no answer for."""

import math

from graf.camera import poses_at
from graf.commands.train_pose import require_upright
from graf.errors import DataError

import pytest
import torch


def rolled(pose_c2w, degrees):
    """The cameras turned about the axis that they look along."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    return torch.cat([pose_c2w[..., :3] @ turn, pose_c2w[..., 3:]], dim=-1)


@pytest.fixture
def cameras():
    return poses_at(torch.arange(0.0, 360.0, 30.0), torch.linspace(0.2, 0.5, 12), 3.6)


def test_a_distribution_over_azimuths_is_for_upright_cameras_at_one_distance(cameras, caplog):
    require_upright(cameras)
    require_upright(rolled(cameras, 3.0))  # of a hand-held tour
    assert not caplog.text
    with pytest.raises(DataError, match="turned against such by 30.0 degrees on average; set model.azimuth_bins=0"):
        require_upright(rolled(cameras, 30.0))


def test_cameras_at_several_distances_are_told(cameras, caplog):
    cameras[::2, :, 3] *= 1.5
    require_upright(cameras)
    assert "3.6 to 5.4 from the origin" in caplog.text and "set model.azimuth_bins=0" in caplog.text
