"""What many tests share: configs at their smallest, cameras on the sphere, and a batch in memory."""

import graf  # noqa: F401, I001  first: it tells torch's threads how to wait
import pytest
import torch

from graf.camera import Labels, sample_poses
from graf.config import CONFIG_DIR, load_config

UNREFINED = ("ccsr.mode=none", "ray_sampler.N_samples=256")


@pytest.fixture
def smoke():
    """The smoke config, not refined, with `section.key=value` overrides: smoke("nerf.N_importance=4")."""
    return lambda *overrides: load_config(CONFIG_DIR / "smoke.yaml", (*UNREFINED, *overrides))


@pytest.fixture
def refine():
    """The smoke config as it is, with overrides: 8 x 8 rays refined to 16 x 16 pixels."""
    return lambda *overrides: load_config(CONFIG_DIR / "smoke.yaml", overrides)


@pytest.fixture
def concat():
    """GRAF's own field at the smoke config's size, with overrides."""
    recipe = ("nerf.conditioning=concat", "nerf.density_activation=relu", "nerf.use_viewdirs=true", "nerf.netdepth=6")
    return lambda *overrides: load_config(CONFIG_DIR / "smoke.yaml", (*UNREFINED, *recipe, *overrides))


@pytest.fixture
def labels(smoke):
    """Four cameras, of two classes and three elevations."""
    poses = sample_poses(4, smoke().data, torch.Generator().manual_seed(11))
    return Labels(poses, torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 2, 0]))


@pytest.fixture
def photographs():
    """Four noise images (4, 3, 16, 16) in [-1, 1]."""
    return torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(12)) * 2 - 1
