"""What bench/measure_pose.py sets beside an estimator."""

from graf.camera import poses_at
from measure_pose import SmallConvNet, mean_pose

import torch


def test_the_mean_pose_is_a_rotation_between_those_that_it_is_of():
    poses = poses_at(torch.tensor([10.0, 50.0]), torch.tensor([0.4, 0.4]), 3.6)
    mean = mean_pose(poses)
    torch.testing.assert_close(mean[:, :3], poses_at(torch.tensor(30.0), torch.tensor(0.4), 3.6)[:, :3], atol=0.05, rtol=0)
    torch.testing.assert_close(mean[:, :3].mT @ mean[:, :3], torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(mean[:, 3], poses[..., 3].mean(0))


def test_the_small_network_answers_as_an_estimator_does():
    poses = SmallConvNet(3.6)(torch.rand(2, 3, 64, 64))
    assert poses.shape == (2, 3, 4)
    torch.testing.assert_close(torch.linalg.det(poses[..., :3]), torch.ones(2))
