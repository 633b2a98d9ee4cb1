"""Fresh samples: latents that know nothing of the cameras from which their objects are seen."""

import dataclasses

from graf.data import build_dataset
from graf.models.generator import Generator
from graf.pictures.sampling import fresh_samples, labels_as_in_data, labels_in_range, sample_objects

import pytest
import torch


@pytest.mark.parametrize("dim", [8, 30, 100])
@pytest.mark.parametrize("kind", ["gauss", "uniform"])
def test_objects_of_a_seed_are_the_same_however_many_there_are(smoke, dim, kind):
    generator = Generator(smoke(f"z_dist.dim={dim}", "z_dist.dim_appearance=4", f"z_dist.type={kind}"))
    latents, _ = sample_objects(generator, 40, seed=3)
    for n in (1, 3, 5, 15, 17):
        assert torch.equal(sample_objects(generator, n, seed=3)[0], latents[:n])


def test_classes_of_objects_take_turns(smoke):
    assert sample_objects(Generator(smoke(), 3), 5, seed=0)[1].tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("sampler_of", [labels_as_in_data, labels_in_range])
def test_cameras_exchanged_among_samples_leave_the_latents_as_they_are(smoke, tmp_path, monkeypatch, sampler_of):
    """No bit of a latent depends on the camera that it meets, so that any assignment of cameras to latents is as likely."""
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}")
    sampler, generator, rendered = sampler_of(build_dataset(config), config.data), Generator(config).eval(), []
    render = generator.render
    monkeypatch.setattr(generator, "render", lambda *args, **rest: (rendered.append(args), render(*args, **rest))[1])

    def exchanged(n, rng):
        labels = sampler(n, rng)
        return dataclasses.replace(labels, pose_c2w=labels.pose_c2w.flip(0))

    for labels in (sampler, exchanged):
        list(fresh_samples(generator, labels, 4, batch_size=4, seed=0))
    (latents, poses), (latents_again, poses_exchanged) = rendered
    assert torch.equal(latents, latents_again)
    assert torch.equal(poses.flip(0), poses_exchanged) and not torch.equal(poses, poses_exchanged)
