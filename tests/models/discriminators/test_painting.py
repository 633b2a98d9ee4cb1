"""What decoders paint from the discriminator's features, and against what."""

from graf.models.discriminators.reconstruction import Reconstruction

import pytest
import torch
from torch.nn import functional as F


@pytest.fixture
def reconstruction():
    torch.manual_seed(0)
    return Reconstruction((8, 16), 4, patch_size=64)


def maps(n=4):
    return torch.randn(n, 8, 8, 8), torch.randn(n, 16, 4, 4)


@pytest.mark.parametrize(("patch", "side"), [(16, 8), (32, 16), (64, 32), (256, 32)])
def test_sides_of_what_is_painted(patch, side):
    decoders = Reconstruction((8, 16), 3, patch)
    assert (
        decoders.whole(torch.zeros(2, 16, 4, 4)).shape == decoders.quarter(torch.zeros(2, 8, 4, 4)).shape == (2, 3, side, side)
    )


def test_the_loss_is_the_mean_distance_of_the_whole_and_of_a_quarter(reconstruction):
    (before, last), images = maps(), torch.rand(4, 4, 64, 64)
    places = torch.tensor([0.0, 0.3, 0.6, 0.9])  # upper left, upper right, lower left, lower right

    def quarters(x):
        side = x.shape[-1] // 2
        low, high = slice(None, side), slice(side, None)
        corners = (low, low), (low, high), (high, low), (high, high)
        return torch.stack([one[:, rows, columns] for one, (rows, columns) in zip(x, corners, strict=True)])

    expected = (reconstruction.quarter(quarters(before)) - quarters(images)).abs().mean()
    expected = expected + (reconstruction.whole(last) - F.avg_pool2d(images, 2)).abs().mean()
    torch.testing.assert_close(reconstruction.loss((before, last), images, places), expected)


def test_where_there_is_one_map_the_whole_is_painted(reconstruction):
    (_, last), images = maps(), torch.rand(4, 4, 32, 32)
    expected = (reconstruction.whole(last) - images).abs().mean()
    torch.testing.assert_close(reconstruction.loss((last,), images, torch.zeros(4)), expected)
