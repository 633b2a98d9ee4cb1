"""The edits that are advised lower what a step takes, each of them."""

from graf.config import load_config, override
from graf.memory.advice import smallest_edits
from graf.memory.planner import estimate_step

WIDE = (
    *("nerf.netwidth=256", "nerf.netdepth=8", "nerf.samples_per_ray=64", "ray_sampler.rays_per_patch=4096", "data.imsize=128"),
    *("training.micro_batch=1", "training.use_amp=true"),
)


def test_fewer_rays_at_a_time_than_those_advised_stay_so():
    config = load_config(None, [*WIDE, "nerf.checkpoint_rays=128"])
    budget = estimate_step(override(config, ["nerf.samples_per_ray=32"])).total_bytes
    assert smallest_edits(config, budget) == ("nerf.samples_per_ray=32",)


def test_rays_are_advised_where_all_are_held():
    config = load_config(None, [*WIDE, "nerf.checkpoint_rays=0"])
    budget = estimate_step(override(config, ["nerf.checkpoint_rays=1024"])).total_bytes
    assert smallest_edits(config, budget) == ("nerf.checkpoint_rays=1024",)
