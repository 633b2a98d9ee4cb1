"""What the discriminator is shown: sharp in time, and photographs beside the downsampling that refined images keep."""

from graf.models.projection import ConsistencyEnforcingModule
from graf.training.judging import faded_blur
from graf.training.state import TrainState
from graf.training.steps import discriminator_step

import pytest
import torch
from torch.nn import functional as F


def test_photographs_are_judged_beside_what_the_same_downsampling_makes_of_them(refine, photographs, labels):
    """Through another one the discriminator would tell them from fakes by the resampling alone."""
    config = refine("discriminator.dual=true", "discriminator.blur_steps=0", "ccsr.kernel=gaussian")
    state, shown = TrainState(config, torch.device("cpu"), 2, 3), []
    state.discriminator.register_forward_pre_hook(lambda network, given: shown.append(given[0].detach().clone()))
    discriminator_step(state, photographs, labels, labels)
    low = ConsistencyEnforcingModule("gaussian", 2).downsample(photographs)
    torch.testing.assert_close(shown[0], torch.cat([photographs, F.interpolate(low, 16, mode="bilinear")], dim=1))
    downsampled = F.interpolate(ConsistencyEnforcingModule("gaussian", 2).downsample(shown[1][:, :3]), 16, mode="bilinear")
    torch.testing.assert_close(shown[1][:, 3:], downsampled, atol=1e-5, rtol=0)


def test_the_blur_fades_to_nothing():
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 32, 32, generator=rng)
    spread = [faded_blur(images, 2.0, 100, step).std().item() for step in (0, 25, 50, 75, 89)]
    assert spread == sorted(spread)
    assert spread[0] < 0.3 * images.std()
    for step in (95, 100, 10_000):
        assert faded_blur(images, 2.0, 100, step) is images
    assert faded_blur(images, 2.0, 0, 0) is images


def test_the_blur_is_a_gaussian_of_that_width():
    impulse = torch.zeros(1, 3, 33, 33)
    impulse[..., 16, 16] = 1
    blurred = faded_blur(impulse, 2.0, 100, 25)[0, 0]
    x = torch.arange(33.0) - 16
    assert blurred.sum().item() == pytest.approx(1, abs=1e-5)
    assert (blurred.sum(0) * x.square()).sum().sqrt().item() == pytest.approx(1.5, abs=0.02)
