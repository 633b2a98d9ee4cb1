"""Checks of several config keys together: values that do not fit each other."""

import math
from collections.abc import Iterator
from pathlib import Path

from graf.config.schema import Config
from graf.config.strict import faults_as_error, shown

PATCH_SIZES = (16, 32, 64, 128)
SCALE_FACTORS = (2, 4, 8)  # that divide patches
FEWEST_RAYS = 16  # of a patch
LONGEST_NAME = 200  # bytes of a folder's name, below which files with longer names lie
MOST_VIEW_CODES = 2**28  # numbers, 1 GB

Check = tuple[bool, str]  # whether it is wrong, and the message if so


def check_config(config: Config, where: str) -> None:
    """Raises ConfigError, in the name of `where`, for values that do not fit each other: the first of each concern."""
    concerns = (_patch_checks, _ccsr_checks, _camera_checks, _network_checks, _run_checks)
    first = (next((message for wrong, message in checks(config) if wrong), None) for checks in concerns)
    if faults := [message for message in first if message is not None]:
        raise faults_as_error(where, faults)


def advice(config: Config) -> list[str]:
    """Warnings about a config that can be trained, but probably not as its user intends."""
    return [found for found in (_patch_advice(config), _detach_advice(config)) if found]


def _detach_advice(config: Config) -> str | None:
    if config.ccsr.mode != "consistency" or config.ccsr.detach != "ccsr" or config.judges_restored:
        return None
    return (
        "ccsr.detach: ccsr leaves CCSR nothing to learn from, for the discriminator judges renderings; "
        "set ccsr.judge=restored, or ccsr.detach=none"
    )


def _patch_advice(config: Config) -> str | None:
    """A warning where the discriminator always sees the whole image, but with fewer or more pixels than it has."""
    rays, patch, imsize = config.ray_sampler, config.patch_size, config.data.imsize
    if patch == imsize or rays.scale_anneal > 0 or not rays.min_scale == rays.max_scale == 1:
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


def _patch_checks(config: Config) -> Iterator[Check]:
    rays, patch, scale = config.ray_sampler, config.patch_size, config.rendered_scale
    side = math.isqrt(rays.rays_per_patch)
    counts = [(p // scale) ** 2 for p in PATCH_SIZES]
    yield (
        config.ccsr.mode != "none" and config.ccsr.scale_factor not in SCALE_FACTORS,
        f"ccsr.scale_factor: must be 2, 4 or 8, which divide the discriminator's patches; found {config.ccsr.scale_factor}",
    )
    yield (
        side**2 != rays.rays_per_patch,
        f"ray_sampler.rays_per_patch: must be a square number such as {side**2} or {(side + 1) ** 2}, "
        f"found {rays.rays_per_patch}",
    )
    yield (
        patch not in PATCH_SIZES,
        f"ray_sampler.rays_per_patch: the discriminator takes patches of side {', '.join(map(str, PATCH_SIZES))}, that is "
        f"rays_per_patch {', '.join(str(n) for n in counts if n >= FEWEST_RAYS)}; found {rays.rays_per_patch} (side {patch})",
    )
    yield (
        not 0 < rays.min_scale <= rays.max_scale,
        f"ray_sampler: min_scale must be above 0 and at most max_scale, found {rays.min_scale:g} and {rays.max_scale:g}",
    )


def _ccsr_checks(config: Config) -> Iterator[Check]:
    ccsr, data = config.ccsr, config.data
    used = ccsr.mode != "none"
    yield (
        used and data.imsize % ccsr.scale_factor != 0,
        f"ccsr.scale_factor: must divide data.imsize {data.imsize}, found {ccsr.scale_factor}",
    )
    yield (
        used and ccsr.elevation_bins > 1 and data.vmin == data.vmax,
        "ccsr.elevation_bins: more than one bin needs data.vmin below data.vmax",
    )
    yield (
        used and ccsr.backbone == "rrdb" and ccsr.scale_factor not in (2, 4),
        f"ccsr.scale_factor: the rrdb backbone takes 2 or 4, found {ccsr.scale_factor}",
    )
    yield (
        bool(ccsr.rrdb.pretrained_path) and ccsr.backbone != "rrdb",
        "ccsr.rrdb.pretrained_path: only the rrdb backbone takes pretrained weights; set ccsr.backbone: rrdb",
    )
    yield (
        bool(ccsr.rrdb.pretrained_path) and not used,
        "ccsr.rrdb.pretrained_path: there is no backbone with ccsr.mode: none; set mode to refine or consistency",
    )
    yield (
        ccsr.perceptual_weight > 0 and ccsr.mode != "consistency",
        "ccsr.perceptual_weight: compares what CCSR restores with what it was made of, which is ccsr.mode: consistency",
    )
    numbers = ccsr.num_views * ccsr.elevation_bins * ccsr.code_channels * ccsr.code_size**2
    yield (
        used and numbers > MOST_VIEW_CODES,
        f"ccsr: num_views x elevation_bins x code_channels x code_size^2 is {numbers:,} numbers; at most {MOST_VIEW_CODES:,}",
    )
    yield ccsr.rrdb.freeze and ccsr.backbone != "rrdb", "ccsr.rrdb.freeze: only the rrdb backbone can be frozen"
    yield (
        used and ccsr.rrdb.freeze and not ccsr.rrdb.pretrained_path,
        "ccsr.rrdb.freeze: would freeze a network drawn at random; name its weights in ccsr.rrdb.pretrained_path",
    )
    yield (
        config.discriminator.dual and ccsr.mode != "refine",
        "discriminator.dual: needs the renderings of ccsr.mode: refine",
    )


def _camera_checks(config: Config) -> Iterator[Check]:
    data = config.data
    low, high = data.radius
    yield data.near >= data.far, f"data: near must be below far, found {data.near:g} and {data.far:g}"
    yield low <= 0, f"data.radius: must be above 0, found {low:g}"
    yield low > high, f"data.radius: the range runs from low to high, found {data.radius}"
    yield (
        high - low > data.near,
        f"data.radius: a range of {high - low:g} moves the near plane {data.near:g} behind the camera",
    )
    for lower, upper in (("umin", "umax"), ("vmin", "vmax")):
        yield getattr(data, lower) > getattr(data, upper), f"data: {lower} must be at most {upper}"
    yield not data.v, "data.v: name at least one elevation, for example v: [0.5, 0.4, 0.3, 0.2]"


def _network_checks(config: Config) -> Iterator[Check]:
    latents, discriminator = config.z_dist, config.discriminator
    yield (
        config.nerf.render_samples_per_ray == 1,
        "nerf.render_samples_per_ray: must be 0 (as samples_per_ray) or at least 2, found 1",
    )
    yield (
        discriminator.blur_steps > 0 and discriminator.blur_sigma > config.patch_size / 8,
        f"discriminator.blur_sigma: at most an eighth of the patch's side {config.patch_size}, "
        f"found {discriminator.blur_sigma:g}; blur_steps: 0 leaves the blur out",
    )
    yield (
        discriminator.hflip and discriminator.condition == "class_and_pose",
        "discriminator.hflip: a mirrored image would need a mirrored camera; set it to false, or condition to class or none",
    )
    yield (
        latents.dim_appearance >= latents.dim,
        f"z_dist.dim_appearance: must leave room for the shape code in dim = {latents.dim}, found {latents.dim_appearance}",
    )


def _run_checks(config: Config) -> Iterator[Check]:
    name, training = config.expname, config.training
    yield (
        not name.strip() or name != Path(name).name or name in (".", ".."),
        f"expname: must be the name of one folder, found {shown(name)}",
    )
    yield len(name.encode()) > LONGEST_NAME, f"expname: must be at most {LONGEST_NAME} bytes, found {len(name.encode())}"
    yield (
        config.data.type == "images" and not config.data.datadir,
        "data.datadir: name at least one folder of photographs",
    )
    milestones = list(training.lr_anneal_every)
    yield milestones != sorted(set(milestones)), f"training.lr_anneal_every: milestones must rise, found {shown(milestones)}"
    parts, at_most = training.accumulation_steps, training.micro_batch
    yield (
        parts > training.batch_size,
        f"training.accumulation_steps: at most batch_size {training.batch_size}, found {parts}",
    )
    yield (
        at_most != "auto" and parts > 1,
        f"training.micro_batch: {at_most} images at a time, and accumulation_steps {parts} says otherwise; leave one out",
    )
    yield (
        at_most != "auto" and at_most > training.batch_size,
        f"training.micro_batch: at most batch_size {training.batch_size}, found {at_most}",
    )
    yield (
        training.save_best != "none" and training.fid_every == 0,
        f"training.save_best: {training.save_best} is measured every fid_every steps, which is 0; set both or neither",
    )
    yield training.fid_images == 1, "training.fid_images: FID and KID need at least 2 images; 0 takes as many as eval.py"
    yield training.model_average_beta >= 1, "training.model_average_beta: must be below 1"
    yield training.lr_g <= 0 or training.lr_d <= 0, "training: lr_g and lr_d must be above 0"
