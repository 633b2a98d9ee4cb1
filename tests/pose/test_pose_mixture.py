"""The distribution over azimuths: its likelihood, its samples, its answers, and training with it."""

import math
from types import SimpleNamespace

from graf.camera import azimuth_and_v, poses_at
from graf.config import DataConfig, PoseConfig, PoseModelConfig
from graf.pose.accuracy import cameras_of, confidence_of
from graf.pose.mixture import ARCS, CameraMixture, MixtureEstimator, mixture_losses
from graf.pose.network import PoseEstimator
from graf.pose.state import PoseState
from graf.pose.step import PoseBatch, pose_objective

import pytest
import torch
from scipy.stats import vonmises


def mixture(weights, centres, concentrations):
    values = (torch.tensor(weights).log(), torch.tensor(centres), torch.tensor(concentrations))
    return CameraMixture(*(x[None] for x in values), torch.tensor([0.3]))


def mixture_of_many(*components):
    one = mixture(*components)
    return CameraMixture(*(x.expand(4000, *x.shape[1:]) for x in (one.logits, one.centre_deg, one.concentration, one.v)))


TWO = ([0.7, 0.3], [350.0, 170.0], [30.0, 60.0])


@pytest.mark.parametrize("azimuth", [350.0, -10.0, 0.0, 170.0, 90.0, 359.0])
def test_the_likelihood_is_scipys(azimuth):
    density = sum(
        weight * vonmises.pdf(math.radians(azimuth), kappa, loc=math.radians(centre))
        for weight, centre, kappa in zip(*TWO, strict=True)
    )
    found = mixture(*TWO).log_prob(torch.tensor([azimuth]))
    assert float(found) == pytest.approx(math.log(density), rel=1e-3, abs=1e-3)


def test_the_shares_of_all_arcs_are_one_and_lie_where_the_components_do():
    shares = mixture(*TWO).shares
    assert shares.shape == (1, ARCS)
    assert float(shares.sum()) == pytest.approx(1)
    assert float(shares[0, 260:].sum() + shares[0, :80].sum()) == pytest.approx(0.7, abs=1e-3)


def test_the_most_likely_answer_is_across_azimuth_0_and_its_probability_is_its_components():
    # 15 degrees are 1.43 standard deviations of a concentration of 30: 85 % of the first component
    found = mixture(*TWO)
    assert float(found.most_likely()) == pytest.approx(350, abs=0.6)
    inside = vonmises.cdf(math.radians(15), 30) - vonmises.cdf(-math.radians(15), 30)
    assert float(found.confidence(found.most_likely())) == pytest.approx(0.7 * inside, abs=0.01)
    assert float(mixture([1.0], [0.0], [1000.0]).most_likely()) == pytest.approx(0, abs=0.6)


def test_samples_are_as_frequent_as_probable_and_the_same_for_a_seed():
    many = mixture_of_many(*TWO)
    first, again = (many.sample(torch.Generator().manual_seed(seed)) for seed in (1, 1))
    assert torch.equal(first, again)
    assert ((first >= 0) & (first < 360)).all()
    to_the_first = ((first - 350 + 180) % 360 - 180).abs() < 90
    assert float(to_the_first.double().mean()) == pytest.approx(0.7, abs=0.03)
    sharp = mixture_of_many([1.0], [90.0], [1000.0]).sample(torch.Generator().manual_seed(1))
    assert float(sharp.mean()) == pytest.approx(90, abs=0.15)  # 1.8 degrees of standard deviation, of 4000


def test_a_sampled_answer_is_a_peak_as_often_as_it_is_probable():
    answers = mixture_of_many(*TWO).sample_answer(torch.Generator().manual_seed(1))
    from_peaks = [((answers - peak + 180) % 360 - 180).abs() for peak in (350, 170)]
    assert float(torch.minimum(*from_peaks).quantile(0.99)) < 1
    assert float((from_peaks[0] < 1).double().mean()) == pytest.approx(0.7, abs=0.03)


@pytest.fixture
def estimator():
    torch.manual_seed(0)
    return MixtureEstimator(PoseModelConfig("conv", 8, 16, 2, 1, azimuth_bins=24), distance=3.6)


def test_an_untrained_estimator_gives_cameras_on_its_sphere(estimator):
    images = torch.rand(3, 3, 32, 32) * 2 - 1
    poses, found = estimator(images), estimator.mixture(images)
    azimuth, v = azimuth_and_v(poses)
    torch.testing.assert_close(poses[:, :, 3].norm(dim=-1), torch.full((3,), 3.6))
    torch.testing.assert_close(azimuth, found.most_likely(), atol=1e-2, rtol=0)
    torch.testing.assert_close(v, found.v, atol=1e-4, rtol=0)
    assert bool(((found.concentration >= 1) & (found.concentration <= 1000)).all())
    assert torch.allclose(found.shares, torch.full((3, ARCS), 1 / ARCS), atol=0.02)  # it knows nothing yet


def test_the_confidence_is_that_of_the_azimuths_that_are_read(estimator):
    trained = SimpleNamespace(network=estimator, config=PoseConfig(data=DataConfig(imsize=32)))
    images = torch.rand(3, 3, 64, 64) * 2 - 1
    azimuth_deg, _ = azimuth_and_v(cameras_of(trained, images))
    small = torch.nn.functional.interpolate(images, (32, 32), mode="bilinear", antialias=True, align_corners=False)
    torch.testing.assert_close(confidence_of(trained, images), estimator.mixture(small).confidence(azimuth_deg))
    trained.network = PoseEstimator(PoseModelConfig("conv", 8, 16, 2, 1), distance=3.6)
    assert confidence_of(trained, images) is None


def test_losses_are_of_azimuth_and_height():
    found, poses = mixture([1.0], [90.0], [30.0]), poses_at(torch.tensor([90.0]), torch.tensor([0.5]), 3.6)
    azimuth, height = mixture_losses(found, poses, torch.ones(1))
    assert float(azimuth) == pytest.approx(-math.log(vonmises.pdf(0, 30)), rel=1e-3)
    assert float(height) == pytest.approx(0.4, abs=1e-5)  # cos polar 0.4 and 0


def test_heights_count_by_their_weights():
    found = mixture([1.0], [90.0], [30.0])
    one, other = (poses_at(torch.tensor([90.0]), torch.tensor([v]), 3.6) for v in (0.5, 0.4))
    azimuth, height = mixture_losses(found, torch.cat([one, other]), torch.tensor([0.5, 3.0]))
    assert float(azimuth) == pytest.approx(-math.log(vonmises.pdf(0, 30)), rel=1e-3)
    assert float(height) == pytest.approx((0.5 * 0.4 + 3 * 0.2) / 2, abs=1e-5)


def test_a_mixture_learns_that_two_ends_look_alike():
    """Images that tell the azimuth only up to half a turn: both answers are as likely, and none in between."""
    config = PoseConfig(model=PoseModelConfig("conv", 8, 16, 2, 1, azimuth_bins=8))
    torch.manual_seed(0)
    state = PoseState(config, torch.device("cpu"), distance=3.6)
    images = torch.linspace(-1, 1, 2)[:, None, None, None].expand(-1, 3, 16, 16).repeat(2, 1, 1, 1)
    poses = poses_at(torch.tensor([0.0, 90.0, 180.0, 270.0]), torch.full((4,), 0.3), 3.6)
    optimizer = torch.optim.Adam(state.estimator.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        loss, stats = pose_objective(state, PoseBatch(images, poses, torch.ones(4)))
        loss.backward()
        optimizer.step()
    assert {"loss", "loss_azimuth", "loss_height"} == set(stats)
    shares = state.estimator.mixture(images[:1]).shares[0].roll(45)  # -45..45 first
    quarters = shares.unflatten(0, (4, 90)).sum(1)
    torch.testing.assert_close(quarters, torch.tensor([0.5, 0.0, 0.5, 0.0]), atol=0.1, rtol=0)
