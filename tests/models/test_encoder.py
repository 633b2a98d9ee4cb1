"""The encoder: latents of a real image and its camera, as Gaussians."""

from graf.checkpoints.export import write_export
from graf.checkpoints.generator_loading import load_generator
from graf.models.encoder import Encoder, divergence
from graf.models.generator import Generator

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


def test_the_divergence_is_that_of_torch():
    mean, log_variance = torch.randn(2, 5, 7).unbind(0)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(divergence(mean, log_variance), expected)
