"""A new radiance field, discriminator or adversarial loss is a class or two functions, and a line of the registry."""

from typing import Literal, get_args

import graf
from graf.checkpoints.checkpoint import NEWEST
from graf.config import DiscriminatorConfig, NerfConfig, TrainingConfig
from graf.data import Views
from graf.memory.planner import estimate_step
from graf.models.discriminators.convolutional import ConditionedDiscriminator, Scores
from graf.models.registry import DISCRIMINATORS, FIELDS
from graf.runtime.interruption import Interruption
from graf.training.loop import train
from graf.training.losses import GAN_LOSSES, GanLoss
from graf.training.state import TrainState, load_checkpoint

import pytest
import torch
from torch import nn

CPU = torch.device("cpu")
CHOICES = {
    "nerf.conditioning": (FIELDS, NerfConfig.__dataclass_fields__["conditioning"]),
    "discriminator.architecture": (DISCRIMINATORS, DiscriminatorConfig.__dataclass_fields__["architecture"]),
    "training.gan_type": (GAN_LOSSES, TrainingConfig.__dataclass_fields__["gan_type"]),
}
TOY_LOSS = GanLoss(
    lambda real, fake: (real - 1).square().mean() + (fake + 1).square().mean(), lambda fake, _: -fake.mean(), None
)


class ToyField(nn.Module):
    """Density and colour linear in the point and the latents."""

    def __init__(self, config, depth, width):
        super().__init__()
        self.layer = nn.Linear(3 + config.z_dist.dim, 4)

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, styles):
        latents = styles[:, None, None].expand(*points.shape[:3], -1)
        raw = self.layer(torch.cat([points, latents], dim=-1)).float()
        return raw[..., 3], raw[..., :3]


class ToyDiscriminator(ConditionedDiscriminator):
    """One convolution of the image and the embedding of its labels."""

    def __init__(self, config, n_classes, n_elevations):
        super().__init__(config)
        self.conv = nn.Conv2d(config.data.channels, 1, 4, stride=4)
        self._build_embedding(n_classes)

    def forward(self, images, labels=None):
        return Scores((self.conv(images).tanh().mean((1, 2, 3)) + self._embed(labels).mean(1)).float())


class Noise(Views):
    """Eight images of noise, 16 x 16, of two classes and without cameras."""

    def __init__(self):
        super().__init__([f"{i}.png" for i in range(8)], ["a", "b"], torch.arange(8) % 2, None, "fingerprint")

    def read(self, index):
        return torch.randint(256, (3, 16, 16), generator=torch.Generator().manual_seed(index), dtype=torch.uint8)


@pytest.mark.parametrize("key", CHOICES)
def test_the_config_knows_the_names_of_the_registry(key):
    registry, field = CHOICES[key]
    assert set(get_args(field.type)) == registry.keys()


@pytest.mark.parametrize(("key", "toy"), list(zip(CHOICES, (ToyField, ToyDiscriminator, TOY_LOSS), strict=True)))
def test_a_new_one_trains_is_planned_and_is_loaded(smoke, tmp_path, monkeypatch, key, toy):
    registry, field = CHOICES[key]
    monkeypatch.setitem(registry, "toy", toy)
    monkeypatch.setattr(field, "type", Literal[(*get_args(field.type), "toy")])
    config = smoke(
        f"{key}=toy",
        "nerf.importance_samples_per_ray=4",
        "discriminator.condition=class",
        *("training.max_steps=2", "training.monitoring=none", "memory.interval_s=0", f"training.outdir={tmp_path}"),
    )
    config.run_dir.mkdir(parents=True)
    assert estimate_step(config, n_classes=2).step_bytes > 0
    state = TrainState(config, CPU, n_classes=2)
    before = {name: p.clone() for name, p in state.generator.named_parameters()}
    train(state, Noise(), Interruption())
    assert any(not torch.equal(p, before[name]) for name, p in state.generator.named_parameters())
    continued = TrainState(config, CPU, n_classes=2)
    load_checkpoint(config.run_dir / NEWEST, continued)
    assert continued.step == 2
    for network in state.NETWORKS:
        wanted, found = getattr(state, network).state_dict(), getattr(continued, network).state_dict()
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    pose = graf.poses_at(torch.zeros(1), torch.full((1,), 0.4), 4.0)
    rendering = graf.load_generator(config.run_dir).render(torch.zeros(1, config.z_dist.dim), pose)
    assert rendering.images.isfinite().all()
