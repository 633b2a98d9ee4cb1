"""Gradient penalties of discriminators whose gradient is known."""

from graf.models.discriminators.convolutional import Scores
from graf.models.discriminators.penalties import Penalised, r1_penalty, wgan_gp_penalty
from graf.models.discriminators.projected import PENALTY_WEIGHT, ProjectedDiscriminator
from graf.models.registry import build_discriminator

import pytest
import torch
from torch import nn


class Linear(nn.Module):
    """D(x) = <w, x>."""

    def __init__(self, norm):
        super().__init__()
        w = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
        self.w = nn.Parameter(w / w.norm() * norm)

    def forward(self, images, labels=None):
        return Scores((images * self.w).sum(dim=(1, 2, 3)))


def images(n, seed=1):
    return torch.randn(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def shares(n):
    return torch.rand(n, 1, 1, 1, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("n", [1, 2, 7])
def test_r1_of_a_linear_discriminator_is_its_squared_norm_whatever_the_batch(n):
    assert r1_penalty(Linear(norm=3), images(n), None).item() == pytest.approx(9, rel=1e-5)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize(("norm", "expected"), [(3, 4), (1, 0), (0.25, 0.5625)])
def test_wgan_gp_of_a_linear_discriminator_is_its_distance_from_norm_one(n, norm, expected):
    penalty = wgan_gp_penalty(Linear(norm), images(n), images(n, 2), None, shares(n))
    assert penalty.item() == pytest.approx(expected, abs=1e-5)


def test_r1_is_the_mean_over_images():
    """D(x) = |x|^2 / 2 has the gradient x."""

    class Half(nn.Module):
        def forward(self, x, labels=None):
            return Scores(x.square().sum(dim=(1, 2, 3)) / 2)

    x = images(6)
    expected = x.square().sum(dim=(1, 2, 3)).mean().item()
    assert r1_penalty(Half(), x, None).item() == pytest.approx(expected, rel=1e-5)


class LinearHeads(ProjectedDiscriminator):
    """Two heads of one and of three positions, whose mean logits are the inner products of features with `first`, `second`."""

    def __init__(self, first, second):
        nn.Module.__init__(self)
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def logits(self, features, labels):
        one, other = ((x * w).sum(dim=(1, 2, 3)) for x, w in zip(features, (self.first, self.second), strict=True))
        return [one[:, None], other[:, None] * torch.tensor([0.5, 1.0, 1.5])]


@pytest.mark.parametrize("n", [1, 4])
def test_the_penalty_at_features_is_the_sum_of_the_heads_squared_norms_whatever_the_batch(n):
    heads, images = LinearHeads(torch.full((1, 2, 2), 3.0), torch.full((1, 2, 2), 0.5)), torch.rand(n, 1, 2, 2)
    images.requires_grad_()
    judged = 10 * images, 20 * images.bfloat16()  # which the penalty does not look behind
    penalty = heads.gradient_penalty("r1", Penalised(images, images, None, None, None, judged))
    assert penalty.dtype == torch.float32
    assert penalty.item() == pytest.approx(PENALTY_WEIGHT * (4 * 9 + 4 * 0.25))
    penalty.backward()
    torch.testing.assert_close(heads.second.grad, PENALTY_WEIGHT * 2 * heads.second.detach())
    assert images.grad is None


def test_wgan_gp_looks_between_each_pair_of_real_and_fake():
    seen = []

    class Spy(Linear):
        def forward(self, x, labels=None):
            seen.append(x.detach())
            return super().forward(x)

    real, fake, share = images(5), images(5, 2), shares(5)
    wgan_gp_penalty(Spy(1), real, fake, None, share)
    for i in range(5):
        torch.testing.assert_close(seen[0][i], (1 - share[i]) * real[i] + share[i] * fake[i])


def test_wgan_gp_takes_the_fine_networks_fakes_before_the_coarse_ones(smoke, photographs):
    torch.manual_seed(0)
    discriminator = build_discriminator(smoke("discriminator.condition=none"))
    fine, coarse = photographs.flip(3), -photographs
    both, alone, other = (
        discriminator.gradient_penalty("wgan_gp", Penalised(photographs, fake, None, None, shares(4), ()))
        for fake in (torch.cat([fine, coarse]), fine, coarse)
    )
    assert both == alone != other


@pytest.mark.parametrize("penalty", ["r1", "wgan_gp"])
def test_penalties_teach_the_discriminator_and_nobody_else(penalty):
    discriminator, real = Linear(3), images(2)
    fake = images(2, 2).requires_grad_()
    if penalty == "r1":
        value, slope = r1_penalty(discriminator, real, None), 6.0  # d |w|^2 / d |w|
    else:
        value, slope = wgan_gp_penalty(discriminator, real, fake, None, shares(2)), 4.0  # d (|w| - 1)^2 / d |w|
    value.backward()
    torch.testing.assert_close(discriminator.w.grad, slope * discriminator.w.detach() / 3, atol=1e-5, rtol=1e-4)
    assert fake.grad is None
    assert not real.requires_grad
