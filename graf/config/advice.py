"""Warnings about a config whose values fit each other, and yet hardly do what its user wants."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from graf.config.checks import FEWEST_RAYS, PATCH_SIZES
from graf.config.reading import config_to_dict, flat
from graf.config.schema import Config, RunConfig
from graf.config.strict import shown


class Part(NamedTuple):
    """Keys that are read while a switch, another key, turns their part on; a section stands for all its keys."""

    switch: str
    is_on: Callable[[Any], bool]
    keys: tuple[str, ...]


def _is(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _is_not(other: object) -> Callable[[Any], bool]:
    return lambda value: value != other


PARTS = (
    Part("data.type", _is("toy_cars"), ("data.n_images", "data.seed")),
    Part(
        "data.type",
        _is("images"),
        tuple(f"data.{key}" for key in ("name_pattern", "turntable_step_deg", "align_cameras", "masks", "center_crop")),
    ),
    Part("data.name_pattern", lambda pattern: "<index>" in pattern, ("data.turntable_step_deg",)),
    Part("data.background_model", _is("plane"), ("z_dist.dim_background",)),
    Part("data.orthographic", _is(False), ("data.fov",)),
    Part("nerf.conditioning", _is("concat", "film"), ("nerf.netdepth", "nerf.netdepth_fine", "nerf.multires")),
    Part("nerf.conditioning", _is("film", "triplane"), ("nerf.mapping_depth",)),
    Part("nerf.conditioning", _is("triplane"), ("nerf.plane_size", "nerf.plane_channels", "nerf.synthesis_width")),
    Part("nerf.use_viewdirs", bool, ("nerf.multires_views",)),
    Part("nerf.importance_samples_per_ray", bool, ("nerf.netdepth_fine", "nerf.netwidth_fine")),
    Part("nerf.raw_noise_std", bool, ("nerf.decrease_noise",)),
    Part("ccsr.mode", _is("refine", "consistency"), ("ccsr",)),
    Part("ccsr.mode", _is("refine"), ("ccsr.learns_from", "ccsr.unrefined_steps", "ccsr.drift_weight")),
    Part(
        "ccsr.mode",
        _is("consistency"),
        tuple(f"ccsr.{key}" for key in ("alpha_init", "alpha_decay", "perceptual_weight", "judge", "detach")),
    ),
    Part("ccsr.backbone", _is("light"), ("ccsr.light",)),
    Part("ccsr.backbone", _is("rrdb"), ("ccsr.rrdb",)),
    Part("ray_sampler.random_scale", bool, ("ray_sampler.min_scale", "ray_sampler.scale_anneal")),
    Part("discriminator.architecture", _is("mixed"), ("discriminator.projected_weight",)),
    Part(
        "discriminator.architecture", _is("projected", "mixed"), ("discriminator.feature_network", "discriminator.feature_size")
    ),
    Part(
        "discriminator.architecture",
        _is_not("projected"),
        ("discriminator.ndf", "discriminator.norm", "discriminator.spectral_norm"),
    ),
    Part("discriminator.blur_steps", bool, ("discriminator.blur_sigma",)),
    Part("discriminator.label_loss", _is("MCE"), ("discriminator.label_weight",)),
    Part("training.anneal", _is("none"), ("training.lr_anneal",)),
    Part("training.lr_anneal_every", bool, ("training.lr_anneal",)),
    Part("training.anneal", _is("r3gan"), ("training.anneal_steps", "training.anneal_lr", "training.anneal_reg")),
    Part("training.reg_type", _is_not("none"), ("training.reg_param", "training.reg_every")),
    Part("training.use_amp", bool, ("training.amp_dtype",)),
    Part("training.fid_every", bool, ("training.fid_images",)),
    Part("training.nworkers", bool, ("training.persistent_workers", "data.prefetch_factor")),
    Part("metrics.extractor", _is("auto", "inception-v3-compat"), ("metrics.weights_path",)),
    Part("metrics.protocol", _is("counts"), ("metrics.n_real", "metrics.n_fake")),
)


FEWEST_WHOLE = 20  # one of so many steps should show the discriminator images with all their pixels
SHORT_STEPS = {"encoder.first_steps": 2, "discriminator.low_res_steps": 3}  # and which part of a run they may be


def advice(config: Config, ours: Config) -> list[str]:
    """Warnings about a config that can be trained, but probably not as its user intends. ours: the one that it changes."""
    found = [warning] if (warning := _patch_advice(config)) else []
    found += _unread_keys(config, ours)
    if config.ccsr.mode == "consistency" and config.ccsr.detach == "ccsr" and not config.judges_restored:
        found.append(
            "ccsr.detach: ccsr leaves CCSR nothing to learn from, since the discriminator sees renderings; "
            "set ccsr.judge=restored, or ccsr.detach=none"
        )
    if config.ccsr.mode == "refine" and config.ccsr.learns_from == "discriminator" and config.ccsr.lr_multiplier > 1:
        found.append(
            f"ccsr.lr_multiplier: {config.ccsr.lr_multiplier:g} is for a CCSR that learns from real images; one that learns "
            "from the discriminator paints stripes with more than 0.1: set ccsr.lr_multiplier=0.1"
        )
    return found


def advice_on_steps(config: Config) -> list[str]:
    """A warning where a run, resolved by its data, hardly comes to steps with all pixels and a discriminator, or to refined
    ones of them. A run that only reconstructs, as its config says throughout, is not meant to."""
    max_steps = config.training.max_steps
    if config.encoder.first_steps == max_steps and config.encoder.weight == 0:
        return []
    if config.unrefined_steps and config.first_unrefined < max(1, config.short_steps):
        usual = dataclasses.replace(config, ccsr=dataclasses.replace(config.ccsr, unrefined_steps="auto")).unrefined_steps
        early = f"begin before the {config.short_steps:,} steps without a discriminator or of low resolution are over"
        problem = early if config.short_steps else "are all steps of the run"
        return [
            f"ccsr.unrefined_steps: {config.unrefined_steps} {problem}, so that CCSR learns little; set "
            f"ccsr.unrefined_steps={usual}"
        ]
    n_whole = max(0, max_steps - config.short_steps)
    if n_whole * FEWEST_WHOLE >= max_steps:
        return []
    values = {"encoder.first_steps": config.encoder.first_steps, "discriminator.low_res_steps": config.low_res_steps}
    given = {key: part for key, part in SHORT_STEPS.items() if values[key]}
    keys = " and ".join(f"{key}: {values[key]}" for key in given)
    cures = " ".join(f"{key}={min(values[key], max_steps // part)}" for key, part in given.items())
    return [
        f"{keys} leave {n_whole or 'none'} of training.max_steps {max_steps} to images with all their pixels for the "
        f"discriminator; set {cures}"
    ]


def _patch_advice(config: Config) -> str | None:
    """A warning if the discriminator always sees the whole image but at another resolution."""
    rays, patch, imsize = config.ray_sampler, config.patch_size, config.data.imsize
    varied = rays.random_scale and (rays.scale_anneal > 0 or rays.min_scale < 1)
    if patch == imsize or varied or rays.max_scale < 1:
        return None
    cures = [f"data.imsize={patch}"]
    n_rays = (imsize // config.rendered_scale) ** 2
    if imsize in PATCH_SIZES and n_rays >= FEWEST_RAYS:
        cures.insert(0, f"ray_sampler.rays_per_patch={n_rays}")
    if patch < imsize:
        scale = f"{patch / imsize:.4g}"
        cures.append(f"ray_sampler.min_scale={scale} ray_sampler.random_scale=true ray_sampler.random_shift=true")
    return (
        f"the discriminator sees {patch} x {patch} pixels over the whole of images of {imsize} x {imsize}, "
        f"which {'leaves details out' if patch < imsize else 'have no more'}; set {', or '.join(cures)}"
    )


def _unread_keys(config: Config, ours: Config) -> Iterator[str]:
    """A warning for each part that is off, if keys of it were changed."""
    values, before = flat(config_to_dict(config)), flat(config_to_dict(ours))
    changed = [key for key, value in values.items() if value != before[key]]
    for part, keys in _off_parts(values):
        unread = [key for key in changed if key in keys]
        changed = [key for key in changed if key not in unread]
        if unread:
            named = ", ".join(f"{key}={shown(values[key])}" for key in unread)
            yield f"{named}: nothing reads this while {part.switch} is {shown(values[part.switch])}"


def unread_keys(config: RunConfig) -> set[str]:
    """The keys, such as ccsr.rrdb.nf, of parts that are off; a pose estimator's config has no such parts."""
    return {key for _, keys in _off_parts(flat(config_to_dict(config))) for key in keys}


def _off_parts(values: dict[str, Any]) -> Iterator[tuple[Part, list[str]]]:
    """The parts that are off, with the keys of each that nothing reads."""
    for part in PARTS:
        if part.switch in values and not part.is_on(values[part.switch]):
            yield part, [key for key in values if key != part.switch and _names(part, key)]


def _names(part: Part, key: str) -> bool:
    return any(key == named or key.startswith(f"{named}.") for named in part.keys)
