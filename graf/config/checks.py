"""Checks of several config keys together: values that do not fit each other."""

import math
from collections.abc import Iterator
from pathlib import Path

from graf.config.name_pattern import name_pattern
from graf.config.schema import Config, DataConfig, NerfConfig, PoseConfig, RunConfig
from graf.config.strict import faults_as_error, shown

PATCH_SIZES = (16, 32, 64, 128, 256)
SCALE_FACTORS = (2, 4, 8)  # that divide patches
FEWEST_RAYS = 16  # of a patch
LONGEST_NAME = 200  # bytes of a folder's name, below which files with longer names lie
MOST_VIEW_CODES = 2**28  # numbers, 1 GB


def check_config(config: RunConfig, where: str) -> None:
    """Raises ConfigError, in the name of `where`, for all values that do not fit each other."""
    if isinstance(config, PoseConfig):
        concerns = (_pose_faults, _camera_faults, _run_faults)
    else:
        concerns = (_patch_faults, _ccsr_faults, _camera_faults, _network_faults, _run_faults, _training_faults)
    if faults := [fault for concern in concerns for fault in concern(config)]:
        raise faults_as_error(where, faults)


def _patch_faults(config: Config) -> Iterator[str]:
    rays, patch = config.ray_sampler, config.patch_size
    side = math.isqrt(rays.rays_per_patch)
    if side**2 != rays.rays_per_patch:
        yield (
            f"ray_sampler.rays_per_patch: must be a square number such as {side**2} or {(side + 1) ** 2}, "
            f"found {rays.rays_per_patch}"
        )
    elif patch not in PATCH_SIZES and config.rendered_scale in (1, *SCALE_FACTORS):
        sides, counts = ", ".join(map(str, PATCH_SIZES)), [(p // config.rendered_scale) ** 2 for p in PATCH_SIZES]
        yield (
            f"ray_sampler.rays_per_patch: the discriminator takes patches of side {sides}, that is rays_per_patch "
            f"{', '.join(str(n) for n in counts if n >= FEWEST_RAYS)}; found {rays.rays_per_patch} (side {patch})"
        )
    if not 0 < rays.min_scale <= rays.max_scale:
        yield (f"ray_sampler: min_scale must be above 0 and at most max_scale, found {rays.min_scale:g} and {rays.max_scale:g}")


def _ccsr_faults(config: Config) -> Iterator[str]:
    ccsr, rrdb = config.ccsr, config.ccsr.rrdb
    if ccsr.mode != "none":
        yield from _refinement_faults(config)
    if rrdb.pretrained_path and ccsr.backbone != "rrdb":
        yield "ccsr.rrdb.pretrained_path: only the rrdb backbone takes pretrained weights; set ccsr.backbone: rrdb"
    if rrdb.pretrained_path and ccsr.mode == "none":
        yield "ccsr.rrdb.pretrained_path: there is no backbone with ccsr.mode: none; set mode to refine or consistency"
    if rrdb.freeze and ccsr.backbone != "rrdb":
        yield "ccsr.rrdb.freeze: only the rrdb backbone can be frozen"
    elif rrdb.freeze and ccsr.mode != "none" and not rrdb.pretrained_path:
        yield "ccsr.rrdb.freeze: would freeze a randomly initialised network; name its weights in ccsr.rrdb.pretrained_path"
    if ccsr.perceptual_weight > 0 and ccsr.mode != "consistency":
        yield "ccsr.perceptual_weight: compares restored images with rendered ones, which needs ccsr.mode: consistency"
    if config.discriminator.dual and ccsr.mode != "refine":
        yield "discriminator.dual: needs the renderings of ccsr.mode: refine"
    if config.unrefined_steps and config.discriminator.dual:
        yield "ccsr.unrefined_steps: discriminator.dual needs refined images in all steps; set one of them to 0 or false"
    if config.unrefined_steps and config.data.background_model == "plane":
        yield "ccsr.unrefined_steps: must be 0 with data.background_model: plane, which is as coarse as refined renderings"


def _refinement_faults(config: Config) -> Iterator[str]:
    ccsr, data = config.ccsr, config.data
    scale = ccsr.scale_factor
    if scale not in SCALE_FACTORS:
        yield f"ccsr.scale_factor: must be 2, 4 or 8, which divide the discriminator's patches; found {scale}"
    elif data.imsize % scale != 0:
        below = data.imsize - data.imsize % scale
        yield (
            f"ccsr.scale_factor: must divide data.imsize {data.imsize}, found {scale}; set data.imsize to {below} or "
            f"{below + scale}"
        )
    if ccsr.backbone == "rrdb" and scale == 8:
        yield f"ccsr.scale_factor: the rrdb backbone takes 2 or 4, found {scale}"
    if ccsr.elevation_bins > 1 and data.v_range[0] == data.v_range[1]:
        yield "ccsr.elevation_bins: more than one bin needs data.vmin below data.vmax, or data.elevation_std_deg above 0"
    numbers = ccsr.num_views * ccsr.elevation_bins * ccsr.code_channels * ccsr.code_size**2
    if numbers > MOST_VIEW_CODES:
        product = "num_views x elevation_bins x code_channels x code_size^2"
        yield f"ccsr: {product} is {numbers:,} numbers; at most {MOST_VIEW_CODES:,}"


def _pose_faults(config: PoseConfig) -> Iterator[str]:
    model, training = config.model, config.training
    if model.d_model % model.num_heads:
        yield f"model.num_heads: must divide d_model {model.d_model}, found {model.num_heads}"
    if model.token_type == "conv" and (model.d_model % 8 or model.patch_size & (model.patch_size - 1)):
        yield (
            "model.token_type: conv halves images and normalises in 8 groups, for which patch_size has to be a power of 2 and "
            f"d_model a multiple of 8, found {model.patch_size} and {model.d_model}"
        )
    if training.validation_share + training.test_share >= 1:
        yield "training: validation_share and test_share leave nothing to train on; their sum must be below 1"
    if training.lr <= 0:
        yield "training.lr: must be above 0"
    if config.data.labels == "none":
        yield "data.labels: none leaves no cameras to learn; set it to auto, transforms or filename"


def _camera_faults(config: RunConfig) -> Iterator[str]:
    data = config.data
    low, high = data.radius
    if data.background_model == "plane" and data.alpha == "rgba":
        yield (
            "data.background_model: plane fills what opacity leaves, which data.alpha: rgba judges; for cut-out images set "
            "background_model to none, for photographs as they were taken set alpha to ignore"
        )
    if data.near >= data.far:
        one = data.type == "images" and (data.near == DataConfig.near or data.far == DataConfig.far)
        both = "; name both" if one else ""
        yield f"data: near must be below far, found {data.near:g} and {data.far:g}{both}"
    if low <= 0:
        yield f"data.radius: must be above 0, found {low:g}"
    if low > high:
        yield f"data.radius: the range runs from low to high, found {data.radius}"
    if high - low > data.near:
        yield (
            f"data.radius: a range of {high - low:g} moves the near plane {data.near:g} behind the camera: data.near is "
            f"the farthest one's, set it above {high - low:g}, or data.radius to one number"
        )
    if not isinstance(data.box, str) and any(a >= b for a, b in zip(data.box[:3], data.box[3:], strict=True)):
        yield f"data.box: each of its first three numbers must be below that of the last three, found {shown(list(data.box))}"
    if data.umin > data.umax:
        across = f"a range across azimuth 0 begins below it: umin {data.umin - 1:.4g}, umax {data.umax:.4g}"
        yield "data: umin must be at most umax" + (f"; {across}" if data.umin <= 1 and data.umax >= 0 else "")
    if data.vmin > data.vmax:
        yield "data: vmin must be at most vmax"
    if fault := _prior_fault(data):
        yield fault
    if data.type == "toy_cars" and (data.azimuths, data.roll_deg, data.camera_axes) != ("counterclockwise", 0, "opengl"):
        yield "data: azimuths, roll_deg and camera_axes mend the cameras of your images; toy_cars have theirs, leave them out"
    if not data.v:
        yield "data.v: name at least one elevation, for example v: [0.5, 0.4, 0.3, 0.2]"
    try:
        name_pattern(data.name_pattern)
    except ValueError as error:
        yield f"data.name_pattern: {data.name_pattern} {error}"


def _prior_fault(data: DataConfig) -> str | None:
    """Widths of sampled cameras that data.camera_prior does not read."""
    unread = {"circle": ("azimuth_std_deg", "elevation_std_deg"), "front": ("umin", "umax", "vmin", "vmax")}[data.camera_prior]
    if not (given := [name for name in unread if getattr(data, name) != getattr(DataConfig, name)]):
        return None
    other, are = "front" if data.camera_prior == "circle" else "circle", "is" if len(given) == 1 else "are"
    values, first = (", ".join(f"{name}: {getattr(owner, name):g}" for name in given) for owner in (data, DataConfig))
    return (
        f"data.camera_prior: {data.camera_prior} does not read {values}, which {are} of camera_prior: {other}; set that, or "
        f"leave the default: {first}"
    )


def _network_faults(config: Config) -> Iterator[str]:
    latents, discriminator, patch = config.z_dist, config.discriminator, config.patch_size
    if config.nerf.render_samples_per_ray == 1:
        yield "nerf.render_samples_per_ray: must be 0 (as samples_per_ray) or at least 2, found 1"
    if config.nerf.conditioning == "triplane":
        yield from _triplane_faults(config.nerf)
    if discriminator.blur_steps > 0 and discriminator.blur_sigma > patch / 8 and patch in PATCH_SIZES:
        yield (
            f"discriminator.blur_sigma: at most an eighth of the patch's side {patch}, "
            f"found {discriminator.blur_sigma:g}; blur_steps: 0 leaves the blur out"
        )
    if discriminator.hflip and discriminator.condition == "class_and_pose":
        yield (
            "discriminator.hflip: a mirrored image would need a mirrored camera; set it to false, or condition to class or none"
        )
    if discriminator.has_heads:
        yield from _projected_faults(config)
    if config.encodes_images and latents.type != "gauss":
        yield (
            f"z_dist.type: an encoder finds latents of gauss, not of {latents.type}; set it to gauss, or encoder.first_steps "
            "and encoder.weight to 0"
        )
    if config.encoder.finds_cameras and not config.encodes_images:
        yield "encoder.finds_cameras: there is no encoder; set encoder.first_steps or encoder.weight above 0, or this to false"
    if config.encoder.finds_cameras:
        needed = {
            "data.camera_prior=front": config.data.camera_prior == "front",
            "data.hflip=true": config.data.hflip,
            "data.background_model=none": config.data.background_model == "none",  # its sides differ
        }
        if missing := [setting for setting, is_given in needed.items() if not is_given]:
            yield f"encoder.finds_cameras: cameras of fronts alone can be found; set {' '.join(missing)}, or this to false"
    if latents.dim_appearance >= latents.dim:
        yield (
            f"z_dist.dim_appearance: must leave room for the shape code in dim = {latents.dim}, found {latents.dim_appearance}"
        )


def _projected_faults(config: Config) -> Iterator[str]:
    discriminator, training, projected = (
        config.discriminator,
        config.training,
        f"discriminator.architecture: {config.discriminator.architecture}",
    )
    if training.gan_type not in ("standard", "hinge"):
        yield f"training.gan_type: {projected} takes standard or hinge, found {training.gan_type}; or set architecture to graf"
    if training.reg_type not in ("r1", "none"):
        yield f"training.reg_type: {projected} takes r1, at real images' features, or none, found {training.reg_type}"
    if discriminator.dual:
        yield f"discriminator.dual: {projected} judges three colours and opacity; set it to false"
    if discriminator.label_loss == "MCE":
        yield f"discriminator.label_loss: {projected} has no label heads; set it to none, or architecture to graf"
    if discriminator.feature_size not in ("auto", 64, 128):
        yield f"discriminator.feature_size: must be 64, 128 or auto, found {discriminator.feature_size}"
    if discriminator.reconstruction > 0:
        yield f"discriminator.reconstruction: {projected} has features that are frozen; set it to 0, or architecture to graf"


def _triplane_faults(nerf: NerfConfig) -> Iterator[str]:
    if nerf.plane_size & (nerf.plane_size - 1):
        yield f"nerf.plane_size: must be 4 times a power of 2, as it is doubled from 4, found {nerf.plane_size}"
    if nerf.synthesis_width % 8:
        yield f"nerf.synthesis_width: must be a multiple of 8, the groups of a normalisation, found {nerf.synthesis_width}"
    if nerf.use_viewdirs:
        yield "nerf.use_viewdirs: a triplane's colours do not depend on the view direction; set it to false"


def _run_faults(config: RunConfig) -> Iterator[str]:
    name, training = config.expname, config.training
    if not name.strip() or name != Path(name).name or name in (".", ".."):
        yield f"expname: must be the name of one folder, found {shown(name)}"
    if len(name.encode()) > LONGEST_NAME:
        yield f"expname: must be at most {LONGEST_NAME} bytes, found {len(name.encode())}"
    if config.data.type == "images" and not config.data.datadir:
        yield "data.datadir: name at least one folder of images"
    parts, at_most, batch_size = training.accumulation_steps, training.micro_batch, training.batch_size
    if parts > batch_size:
        yield f"training.accumulation_steps: at most batch_size {batch_size}, found {parts}"
    if at_most != "auto" and parts > 1:
        yield f"training.micro_batch: {at_most} images at a time, and accumulation_steps {parts} says otherwise; leave one out"
    if at_most != "auto" and at_most > batch_size:
        yield f"training.micro_batch: at most batch_size {batch_size}, found {at_most}"


def _training_faults(config: Config) -> Iterator[str]:
    training = config.training
    milestones = list(config.milestones)
    if milestones != sorted(set(milestones)):
        yield f"training.lr_anneal_every: milestones must rise, found {shown(milestones)}"
    if training.save_best != "none" and training.fid_every == 0:
        yield f"training.save_best: {training.save_best} is measured every fid_every steps, which is 0; set both or neither"
    if training.fid_images == 1:
        yield "training.fid_images: FID and KID need at least 2 images; 0 takes as many as eval.py"
    if training.model_average_beta != "auto" and training.model_average_beta >= 1:
        yield "training.model_average_beta: must be below 1"
    if training.anneal == "r3gan" and training.optimizer != "adam":
        yield "training.anneal: r3gan changes Adam's second beta; set it to none, or optimizer to adam"
    if training.anneal == "r3gan" and training.lr_anneal_every not in ("auto", ()):
        yield f"training.lr_anneal_every: anneal r3gan has no milestones, found {shown(milestones)}; set it to auto"
    if training.lr_g <= 0 or training.lr_d <= 0:
        yield "training: lr_g and lr_d must be above 0"
