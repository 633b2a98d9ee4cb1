"""The pose estimator: any size, any batch, and rotations that are rotations."""

from graf.config import PoseModelConfig
from graf.pose.network import PoseEstimator, position_embedding

import pytest
import torch

SMALL = {"d_model": 16, "num_heads": 2, "num_layers": 1, "patch_size": 4}


@pytest.fixture(params=["conv", "patch"])
def estimator(request):
    torch.manual_seed(0)
    return PoseEstimator(PoseModelConfig(token_type=request.param, **SMALL), distance=3.6)


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (5, 3, 16, 24), (2, 3, 17, 30), (3, 3, 3, 2)])
def test_images_of_any_size_have_a_camera(estimator, shape):
    poses = estimator(torch.rand(shape) * 2 - 1)
    assert poses.shape == (shape[0], 3, 4)
    rotation = poses[..., :3]
    torch.testing.assert_close(rotation.mT @ rotation, torch.eye(3).expand_as(rotation), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(len(poses)))


def test_an_image_has_the_same_camera_whatever_it_is_batched_with(estimator):
    images = torch.rand(4, 3, 16, 16) * 2 - 1
    torch.testing.assert_close(estimator(images)[2:3], estimator(images[2:3]), atol=1e-5, rtol=1e-5)


def test_translations_are_in_units_of_the_distance(estimator):
    images = torch.rand(2, 3, 16, 16)
    before = estimator(images)[..., 3]
    estimator.distance.mul_(2)
    torch.testing.assert_close(estimator(images)[..., 3], 2 * before)


def test_positions_are_shares_of_the_frame():
    coarse, fine = position_embedding(1, 1, 12, "cpu"), position_embedding(3, 5, 12, "cpu")
    assert fine.shape == (15, 12)
    torch.testing.assert_close(coarse[0], fine[7])  # the middle of each
    assert len(torch.unique(fine, dim=0)) == 15


def test_gradients_reach_every_parameter(estimator):
    estimator(torch.rand(2, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in estimator.parameters())


def test_the_large_model_of_the_field_can_be_built():
    with torch.device("meta"):
        model = PoseEstimator(PoseModelConfig("patch", 16, 768, 12, 12))
    assert 80e6 < sum(p.numel() for p in model.parameters()) < 90e6  # of ViT-B, 86 million
