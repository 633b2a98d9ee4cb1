"""The encoder: latents of a real image and its camera, as Gaussians."""

from graf.camera import azimuth_and_v, mirrored_poses
from graf.checkpoints.export import write_export
from graf.checkpoints.generator_loading import load_generator
from graf.checkpoints.partial_loading import load_partially
from graf.models.encoder import Encoder, divergence
from graf.models.generator import Generator
from graf.rays import mirrored_images

import pytest
import torch
from torch.distributions import Normal, kl_divergence


@pytest.fixture
def encoder(smoke):
    torch.manual_seed(0)
    return Encoder(smoke("data.alpha=rgba"), latent_dim=6)


def test_image_opacity_and_camera_all_count(encoder, cut_outs, labels):
    poses = labels.pose_c2w
    found = torch.cat(encoder(cut_outs, poses), dim=1)
    assert found.shape == (4, 12)
    without_opacity = torch.cat([cut_outs[:, :3], torch.ones(4, 1, 16, 16)], dim=1)
    for images, cameras in ((cut_outs.flip(0), poses), (without_opacity, poses), (cut_outs, poses.flip(0))):
        assert not torch.isclose(torch.cat(encoder(images, cameras), dim=1), found).all(1).any()


def test_a_camera_further_away_in_a_larger_scene_is_the_same(smoke, cut_outs, labels):
    found = []
    for radius, poses in ((1.0, labels.pose_c2w), (2.0, labels.pose_c2w * torch.tensor([1.0, 1.0, 1.0, 2.0]))):
        torch.manual_seed(0)
        encoder = Encoder(smoke("data.alpha=rgba", f"data.radius={radius}", "data.near=0.5"), latent_dim=6)
        found.append(torch.cat(encoder(cut_outs, poses), dim=1))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("width", [16, 48, 64])
def test_images_of_any_side_are_seen_at_one(encoder, labels, width):
    assert encoder(torch.zeros(4, 4, width, width), labels.pose_c2w)[0].isfinite().all()


def test_variances_have_bounds(encoder, cut_outs, labels):
    with torch.no_grad():
        encoder.gaussian.weight *= 1e6
    assert encoder(cut_outs, labels.pose_c2w)[1].unique().tolist() == [-8.0, 4.0]


@pytest.mark.parametrize(("trained", "config"), [(0, 5), (5, 0)])
def test_weights_with_one_or_without_render_whether_the_config_has_one(smoke, tmp_path, labels, trained, config):
    """Runs of an earlier default have none, and their configs do not name its keys."""
    generator, file = Generator(smoke(f"encoder.weight={trained}"), 1), tmp_path / "cars.safetensors"
    write_export(file, generator, 1, "")
    found, latents = load_generator(file, smoke(f"encoder.weight={config}")), torch.ones(4, generator.latent_dim)
    expected = generator.eval().render(latents, labels.pose_c2w).images
    assert torch.equal(found.render(latents, labels.pose_c2w).images, expected) and found.encoder is None


@pytest.mark.parametrize(("trained", "asked"), [("true", "true"), ("true", "false"), ("false", "true")])
def test_weights_render_whether_their_encoder_finds_cameras(smoke, tmp_path, labels, trained, asked):
    front = "encoder.weight=5", "data.camera_prior=front", "data.hflip=true"
    generator, file = Generator(smoke(*front, f"encoder.finds_cameras={trained}"), 1), tmp_path / "faces.safetensors"
    write_export(file, generator, 1, "")
    found, latents = load_generator(file, smoke(*front, f"encoder.finds_cameras={asked}")), torch.ones(4, generator.latent_dim)
    expected = generator.eval().render(latents, labels.pose_c2w).images
    assert torch.equal(found.render(latents, labels.pose_c2w).images, expected)
    assert (found.encoder is not None) == (trained == asked)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_encoders_of_older_weights_have_a_whitening_that_changes_nothing(smoke, tmp_path, suffix):
    generator, file = Generator(smoke("encoder.weight=5"), 1), tmp_path / f"cars.{suffix}"
    for name in dict(generator.encoder.named_buffers()):
        delattr(generator.encoder, name)
    if suffix == "pt":
        torch.save({"generator": generator.state_dict()}, file)
    else:
        write_export(file, generator, 1, "")
    found, latents = load_generator(file, generator.config).encoder, torch.randn(4, generator.latent_dim)
    assert torch.equal(found.whitened(latents), latents) and torch.equal(found.gaussian.bias, generator.encoder.gaussian.bias)


@pytest.fixture
def of_fronts(smoke):
    torch.manual_seed(0)
    front = "encoder.finds_cameras=true", "data.camera_prior=front", "data.hflip=true"
    prior = "data.azimuth_std_deg=20", "data.elevation_std_deg=10", "data.radius=[3, 4]"
    return Encoder(smoke("data.alpha=rgba", "encoder.weight=5", *front, *prior), latent_dim=6)


def test_a_mirror_image_of_a_front_differs_in_nothing_but_its_azimuth(of_fronts, cut_outs):
    cut_outs[..., 0] = cut_outs[..., 1]  # which has no counterpart in the frame
    (mean, log_variance), (of_mirrored, log_variances) = of_fronts(cut_outs, None), of_fronts(mirrored_images(cut_outs), None)
    assert mean.shape == (4, 2 + 6) and log_variance.shape == (4, 6) and mean[:, 0].abs().min() > 1e-4
    torch.testing.assert_close(of_mirrored, torch.cat([-mean[:, :1], mean[:, 1:]], dim=1))
    torch.testing.assert_close(log_variances, log_variance)
    follow(of_fronts, torch.randn(400, 8) @ torch.randn(8, 8) + 1, torch.zeros(400, 6))  # whatever other images have
    (latents, poses), (of_mirrored, from_mirrored) = (
        of_fronts.sample(*of_fronts(images, None), torch.zeros(4, 6)) for images in (cut_outs, mirrored_images(cut_outs))
    )
    torch.testing.assert_close(of_mirrored, latents)
    torch.testing.assert_close(from_mirrored, mirrored_poses(poses, 0))
    assert not torch.allclose(from_mirrored, poses, atol=1e-3)


def test_cameras_that_are_found_come_to_be_as_frequent_as_those_that_are_sampled(of_fronts):
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(4000, 8, generator=rng) * torch.tensor([0.1, 3.0, *[1.0] * 6]) + torch.tensor([0.0, 2.0, *[0.0] * 6])
    log_variance = torch.zeros(4000, 6)
    for _ in range(4):
        for some in zip(mean.split(8), log_variance.split(8), strict=True):
            follow(of_fronts, *some)
    latents, poses = of_fronts.sample(mean, log_variance, torch.randn(4000, 6, generator=rng))
    azimuth_deg, v = azimuth_and_v(poses)
    azimuth_deg = (azimuth_deg + 180) % 360 - 180
    elevation_deg = torch.asin(1 - 2 * v).rad2deg()
    for found, spread in ((azimuth_deg, 20), (elevation_deg, 10)):
        assert found.std().item() == pytest.approx(spread, rel=0.1) and abs(found.mean().item()) < 0.1 * spread
    assert torch.corrcoef(torch.stack([azimuth_deg, mean[:, 0]]))[0, 1] > 0.99
    torch.testing.assert_close(poses[..., 3].norm(dim=1), torch.full((4000,), 3.5))
    assert latents.shape == (4000, 6) and latents.std().item() == pytest.approx(1, rel=0.1)


def test_cameras_that_are_found_keep_away_from_the_poles(of_fronts):
    mean = torch.zeros(3, 8)
    mean[:, 1] = torch.tensor([-20.0, 3.0, 20.0])  # of 10 degrees
    _, poses = of_fronts.sample(mean, torch.zeros(3, 6), torch.zeros(3, 6))
    _, v = azimuth_and_v(poses)
    torch.testing.assert_close(torch.asin(1 - 2 * v).rad2deg(), torch.tensor([-80.0, 30.0, 80.0]), atol=1e-2, rtol=0)


def test_of_known_cameras_none_is_found(encoder, cut_outs, labels):
    latents, poses = encoder.sample(*encoder(cut_outs, labels.pose_c2w), torch.zeros(4, 6))
    assert poses is None and latents.shape == (4, 6)


def gaussians(n, spread=1.0):
    """Means and logarithms of variances (n, 6) of correlated latents, far from 0 and from one another's scale."""
    rng = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=rng) * torch.tensor([0.1, 0.3, 1.0, 1.0, 3.0, 10.0]) * spread
    return torch.randn(n, 6, generator=rng) @ mixing + 5, torch.rand(n, 6, generator=rng) - 2


def follow(encoder, mean, log_variance, learned=True):
    encoder.follow(encoder.moments(mean, log_variance), len(mean), torch.tensor(learned))


@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_latents_of_all_images_become_those_that_are_sampled(encoder, spread):
    mean, log_variance = gaussians(4000, spread)
    for _ in range(4):
        for some in zip(mean.split(8), log_variance.split(8), strict=True):
            follow(encoder, *some)
    latents = encoder.whitened(mean + (0.5 * log_variance).exp() * torch.randn(4000, 6))
    torch.testing.assert_close(latents.mean(0), torch.zeros(6), atol=0.15, rtol=0)
    torch.testing.assert_close(torch.cov(latents.mT), torch.eye(6), atol=0.2, rtol=0)


def test_the_covariance_is_about_the_centre_of_all(encoder):
    mean, log_variance = gaussians(32)
    for _ in range(1000):  # the share of the start is then 2e-9
        follow(encoder, mean, log_variance)
    torch.testing.assert_close(encoder.centre, mean.mean(0), rtol=1e-3, atol=0)
    covariance = torch.cov(mean.mT, correction=0) + log_variance.exp().mean(0).diag()
    whitened = encoder.whitening @ covariance @ encoder.whitening.mT
    torch.testing.assert_close(whitened, torch.eye(6), rtol=0, atol=1e-3)


@pytest.mark.parametrize("n_images", [1600, 4000])
def test_a_batch_of_all_images_is_followed_at_once(encoder, n_images):
    mean, log_variance = gaussians(n_images)
    follow(encoder, mean, log_variance)
    torch.testing.assert_close(encoder.centre, mean.mean(0))
    torch.testing.assert_close(encoder.moments(mean, log_variance)[1:], torch.eye(6), atol=1e-3, rtol=0)


def test_moments_of_a_batch_are_the_weighted_sum_of_those_of_its_parts(encoder):
    mean, log_variance = gaussians(8)
    parts = [encoder.moments(mean[some], log_variance[some]) for some in (slice(0, 2), slice(2, 8))]
    torch.testing.assert_close(0.25 * parts[0] + 0.75 * parts[1], encoder.moments(mean, log_variance))


def test_a_skipped_step_leaves_the_whitening(encoder):
    follow(encoder, *gaussians(8))
    before = {name: x.clone() for name, x in encoder.named_buffers()}
    follow(encoder, torch.full((8, 6), torch.nan), torch.zeros(8, 6), learned=False)
    assert all(torch.equal(x, before[name]) for name, x in encoder.named_buffers())


def test_the_divergence_is_that_of_torch():
    mean, log_variance = torch.randn(2, 5, 7).unbind(0)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(divergence(mean, log_variance), expected)
    angles = torch.tensor([[1.0, -3.0]]).expand(5, 2)
    torch.testing.assert_close(divergence(torch.cat([angles, mean], dim=1), log_variance), expected + 5)


def test_a_part_of_an_encoder_is_not_loaded(smoke):
    """Its whitening belongs to what all of it finds."""
    other, own = (Generator(smoke("encoder.weight=5", f"data.alpha={alpha}"), 1) for alpha in ("rgba", "ignore"))
    follow(other.encoder, torch.randn(4, other.latent_dim), torch.zeros(4, other.latent_dim))
    before = {name: x.clone() for name, x in own.encoder.state_dict().items()}
    report = load_partially(own, other.state_dict(), "model.pt")
    assert all(torch.equal(x, before[name]) for name, x in own.encoder.state_dict().items())
    assert report.share == 1 and not any(name.startswith("encoder.") for name in report.loaded)
