"""Every config key with its default, its meaning and its range: a frozen dataclass per section.

`Config()` is the default run: toy cars at 64 x 64, sized so that two cores show turning cars within a quarter of an hour; a
GPU uses the same. configs/default.yaml and docs/configuration.md are written from here: python bench/write_tables.py
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from graf.config.name_pattern import NAMED_BY_RANK
from graf.config.strict import Cadence, key
from graf.foreign.configs import OTHER_SUITES

COLOURS = {"white": (1.0, 1.0, 1.0), "black": (0.0, 0.0, 0.0)}
PROTOCOLS = {"graf": (20_000, 1_000), "full": (50_000, 50_000)}  # real and generated images of FID and KID


def _azimuth(degrees: float) -> str:
    """Explains data.umin to a user who typed degrees."""
    return f"azimuth / 360 degrees; {degrees:g} degrees are {degrees / 360:.4g}"


def _polar(degrees: float) -> str:
    """Explains data.v to a user who typed degrees of the polar angle or above the horizon."""
    polar_deg = {"from straight above": degrees, "above the horizon": 90 - degrees}
    v = {where: (1 - math.cos(math.radians(polar))) / 2 for where, polar in polar_deg.items() if 0 <= polar <= 180}
    return "(1 - cos polar) / 2" + "".join(f"; {degrees:g} degrees {where} are {value:.4g}" for where, value in v.items())


@dataclass(frozen=True)
class DataConfig:
    type: Literal["toy_cars", "images"] = key("toy_cars", "`toy_cars` (made on first use) or `images` (your folders)")
    datadir: tuple[str, ...] = key(
        ("data/toy_cars",), "folder or list of folders; for toy_cars where the set is kept", is_path=True
    )
    labels: Literal["auto", "transforms", "eg3d", "colmap", "filename", "none"] = key(
        "auto",
        "where cameras come from: transforms.json, EG3D's dataset.json, COLMAP's sparse model, file names, nowhere; `auto`: "
        "what is there",
    )
    name_pattern: str = key(
        NAMED_BY_RANK,
        "what file names contain: any of `<class>`, `<object>`, `<azimuth_deg>`, `<elevation_deg>`, `<polar_deg>`, `<index>`, "
        "`<elevation>` (a rank, see `v`), with the text between them",
    )
    turntable_step_deg: float = key(
        0.0,
        "names with `<index>`: degrees from one image to the next, negative for clockwise; 0: the index is no angle",
        -360,
        360,
    )
    align_cameras: Literal["auto", "always", "never"] = key(
        "auto",
        "turn z up, move the point all cameras look at to the origin, scale their mean distance to `radius`; `auto`: for "
        "COLMAP and EG3D only",
    )
    masks: str = key(
        "auto",
        "the object's silhouettes: `auto` takes masks beside the images; a folder; `maps/NAME-map.png`, from the image's "
        "folder; or `none`",
    )
    azimuths: Literal["counterclockwise", "clockwise"] = key(
        "counterclockwise", "how the azimuths of your images' cameras run, seen from above"
    )
    roll_deg: float = key(
        0.0,
        "turns your images' cameras about their optical axes, counterclockwise as the photographer sees it: 90 for images that "
        "show the object turned clockwise by 90 degrees",
        -360,
        360,
    )
    camera_axes: Literal["opengl", "opencv"] = key(
        "opengl", "transforms.json: a camera looks along its -z with y up (`opengl`, NeRF-Blender) or along its z with y down"
    )
    imsize: int = key(64, "images are cropped square and resized to this, pixels", 8, 2048)
    n_images: int = key(2048, "toy_cars: how many images to make", 1, 10_000_000)
    seed: int = key(0, "toy_cars: seed of the shapes, colours and cameras", 0, 2**32)
    background: tuple[float, float, float] = key(
        COLOURS["white"],
        "`white`, `black` or [r, g, b] in [0, 1], also behind transparency",
        0,
        1,
        words=COLOURS,
        wanted="white, black or [r, g, b]",
    )
    background_model: Literal["none", "plane"] = key(
        "none",
        "`plane`: a small network makes an image behind each object, the same from all cameras, in place of `background`; for "
        "photographs that are not cut out, with alpha: ignore",
    )
    near: float = key(2.6, "depth of the first sample on a ray, scene units", 0, 1e6)
    far: float = key(4.6, "depth of the last sample on a ray, scene units", 0, 1e6)
    radius: tuple[float, float] = key((3.6, 3.6), 'camera distance, a number or a range such as "9.5,10.5"', 0, 1e6)
    box: Literal["none", "auto"] | tuple[float, float, float, float, float, float] = key(
        "auto",
        "[x0, y0, z0, x1, y1, z1]: rays are clipped to this box, scene units; `auto`: to that of the toy cars, or "
        "to one that holds all silhouettes where they are known",
        -1e6,
        1e6,
    )
    fov: float = key(32.0, "horizontal field of view, degrees", 0.1, 179)
    orthographic: bool = key(False, "parallel rays over a square of side far - near")
    camera_prior: Literal["circle", "front"] = key(
        "circle",
        "sampled cameras: `circle` spreads them evenly over umin..umax and vmin..vmax; `front`: a Gaussian about azimuth 0 and "
        "the horizon, for faces and whatever else is photographed from its front (pi-GAN)",
    )
    azimuth_std_deg: float = key(
        17.2, "camera_prior front: standard deviation of azimuths, degrees (0.3 radians, as pi-GAN has it for faces)", 0, 60
    )
    elevation_std_deg: float = key(8.9, "camera_prior front: standard deviation of elevations, degrees (0.155 radians)", 0, 40)
    umin: float = key(
        0.0,
        "smallest azimuth / 360 degrees of sampled cameras; below 0 for a range across azimuth 0, such as -0.1 to 0.1",
        -1,
        2,
        explained=_azimuth,
    )
    umax: float = key(1.0, "largest azimuth / 360 degrees of sampled cameras", -1, 2, explained=_azimuth)
    vmin: float = key(  # 54 degrees
        0.21, "smallest polar position v of sampled cameras, (1 - cos polar) / 2: the highest camera", 0, 1, explained=_polar
    )
    vmax: float = key(
        0.47, "largest polar position v of sampled cameras: the lowest camera", 0, 1, explained=_polar
    )  # 87 degrees
    v: Literal["auto"] | tuple[float, ...] = key(
        "auto",
        "one v per `<elevation>` of the file names, smallest first; toy_cars: vmin..vmax is cut into as many bins, or four",
        0,
        1,
        explained=_polar,
    )
    center_crop: int = key(0, "side of a centre crop before resizing, pixels; 0 takes the largest square", 0)
    hflip: bool = key(False, "mirror real images at random (unposed data only; for posed data: mirror)")
    mirror: Literal["none"] | float = key(
        "none",
        "mirror half of the real images with their cameras (posed data only), for objects that are the same on both sides of a "
        "vertical plane: the plane's azimuth in degrees, 0 for cars whose nose or tail points to azimuth 0",
        -360,
        360,
    )
    alpha: Literal["auto", "ignore", "rgba"] = key(
        "auto",
        "`rgba`: the discriminator sees RGBA, rendered opacity against the images' alpha; `ignore`: colours only; "
        "`auto`: rgba where all images have transparency, as toy cars do",
    )
    on_bad_file: Literal["error", "skip"] = key(
        "error", "faulty images: `error` ends with a list of them, `skip` leaves them out and counts them"
    )
    cache_gb: float = key(
        1.0,
        "GB of RAM for decoded images, per process; a larger set is kept in a file of the run's folder, and 0 keeps none",
        0,
        1e6,
    )
    cache_device: Literal["auto", "none"] = key(
        "auto",
        "auto: keep all images on the GPU, 1 byte per value, where they fit beside a step; none: load them batch by batch",
    )
    prefetch_factor: int = key(2, "batches that each loader process (training.nworkers) prefetches", 1, 1000)

    @property
    def rings(self) -> tuple[float, ...]:
        """The polar positions of `v`; none where they are `auto`."""
        return () if self.v == "auto" else self.v

    @property
    def u_range(self) -> tuple[float, float]:
        """Range of azimuth / 360 degrees of sampled cameras; of a Gaussian, two standard deviations."""
        if self.camera_prior == "circle":
            return self.umin, self.umax
        return -2 * self.azimuth_std_deg / 360, 2 * self.azimuth_std_deg / 360

    @property
    def v_range(self) -> tuple[float, float]:
        """Range of the polar position of sampled cameras; of a Gaussian, two standard deviations."""
        if self.camera_prior == "circle":
            return self.vmin, self.vmax
        sine = math.sin(math.radians(2 * self.elevation_std_deg))
        return (1 - sine) / 2, (1 + sine) / 2

    @property
    def channels(self) -> int:
        """Channels of a real image in training: RGB or, with alpha: rgba, RGBA. `auto` has to be resolved before."""
        return 4 if self.alpha == "rgba" else 3


@dataclass(frozen=True)
class NerfConfig:
    conditioning: Literal["concat", "film", "triplane"] = key(
        "film", "how latents enter: beside the points (GRAF), as scale and shift, or as features in three planes (EG3D)"
    )
    netdepth: int = key(4, "layers of the radiance field; a triplane has two", 1, 64)
    netwidth: int = key(64, "channels of each layer", 2, 4096)
    netdepth_fine: int = key(4, "layers of the fine network (importance_samples_per_ray > 0)", 1, 64)
    netwidth_fine: int = key(64, "channels of the fine network", 2, 4096)
    plane_size: int = key(32, "triplane: side of a plane, pixels: 4, 8, 16, ...", 4, 512)
    plane_channels: int = key(16, "triplane: channels of a plane", 1, 256)
    synthesis_width: int = key(64, "triplane: channels of the network that makes the planes, a multiple of 8", 8, 1024)
    mapping_depth: int = key(3, "film, triplane: layers of the mapping network behind the latents", 1, 16)
    multires: int = key(6, "frequencies of the position encoding", 0, 20)
    multires_views: int = key(2, "frequencies of the view direction encoding", 0, 20)
    density_activation: Literal["relu", "softplus"] = key("softplus", "raw network output to density (GRAF: relu)")
    use_viewdirs: bool = key(False, "colour depends on the view direction")
    samples_per_ray: int = key(12, "stratified samples per ray", 2, 4096)
    render_samples_per_ray: int = key(
        32, "samples per ray of sample images, videos and metrics, without jitter; 0: as samples_per_ray", 0, 4096
    )
    importance_samples_per_ray: int = key(
        0, "further samples per ray, importance-sampled for a fine network; 0 for none", 0, 4096
    )
    perturb: bool = key(True, "jitter the samples in training (never in images that are written)")
    raw_noise_std: float = key(0.0, "standard deviation of the noise added to raw density in training", 0)
    decrease_noise: bool = key(True, "reduce that noise to zero over the first 5,000 steps")
    checkpoint_rays: Literal["auto"] | int = key(
        "auto",
        "rays whose activations are held at a time; the others' are recomputed in the backward pass; 0 holds all, `auto` "
        "as many as fit into memory",
        0,
    )
    chunk: int = key(16384, "most rays rendered at a time outside training; a CPU core takes fewer, which stay in its cache", 1)


@dataclass(frozen=True)
class LightBackboneConfig:
    width: int = key(48, "channels", 8, 1024)
    depth: int = key(4, "convolutions at low resolution", 1, 32)
    width_upsampled: int = key(32, "channels of the convolutions behind each upsampling", 1, 1024)


@dataclass(frozen=True)
class RrdbConfig:
    num_blocks: int = key(23, "blocks", 1, 64)
    nf: int = key(64, "channels", 4, 512)
    gc: int = key(32, "channels that a dense layer adds", 4, 256)
    pretrained_path: str = key("", "file of ESRGAN or Real-ESRGAN weights to start from; empty for none", is_path=True)
    freeze: bool = key(False, "keep the network's own weights as they are; codes and latents still learn")


@dataclass(frozen=True)
class CcsrConfig:
    mode: Literal["none", "refine", "consistency"] = key(
        "refine",
        "`refine`: the field is rendered at imsize / scale_factor and refined; `consistency`: both at imsize, pulled together",
    )
    scale_factor: int = key(2, "high-resolution pixels per low-resolution pixel, along a side: 2, 4 or 8", 2, 8)
    kernel: Literal["box", "bilinear", "bicubic", "gaussian"] = key(
        "box", "the downsampling that a refined image is consistent with; all but the bicubic keep colours in their range"
    )
    learns_from: Literal["photographs", "discriminator"] = key(
        "photographs",
        "refine: CCSR learns to restore real images from their own downsampling, or from the discriminator, as the field does",
    )
    num_views: int = key(
        16, "azimuth bins of the view codes, over the circle, or before the front two standard deviations", 1, 3600
    )
    elevation_bins: int = key(1, "elevation bins of the view codes, over vmin..vmax, or as above", 1, 360)
    code_channels: int = key(4, "channels of a view code", 1, 256)
    code_size: int = key(8, "side of a view code's map over the frame", 1, 256)
    backbone: Literal["light", "rrdb"] = key("light", "what proposes the detail: a few convolutions, or ESRGAN's RRDBNet")
    light: LightBackboneConfig = key(LightBackboneConfig(), "ccsr.backbone light: a few convolutions")
    rrdb: RrdbConfig = key(RrdbConfig(), "ccsr.backbone rrdb: ESRGAN's RRDBNet")
    lr_multiplier: float = key(
        2.0,
        "learning rate, times training.lr_g; use at most 0.1 with learns_from: discriminator",
        0,
    )
    drift_weight: float = key(
        1.0,
        "refine: weight of the loss that keeps a proposal's downsampling, which the projection replaces, near the rendering",
        0,
    )
    alpha_init: float = key(1.0, "consistency: weight of the loss between rendered and restored images at step 0", 0)
    alpha_decay: float = key(0.0001, "consistency: decay of that weight per step, alpha_init * exp(-alpha_decay * step)", 0)
    perceptual_weight: float = key(
        0.0, "consistency: weight, within that loss, of the distance of EfficientNet-Lite0's features; 0 for pixels alone", 0
    )
    judge: Literal["rendered", "restored"] = key(
        "rendered", "consistency: the discriminator sees renderings and real images as they are, or both as CCSR restores them"
    )
    detach: Literal["none", "nerf", "ccsr"] = key(
        "none", "consistency: what that loss passes no gradient to: the field, or CCSR"
    )


@dataclass(frozen=True)
class LatentConfig:
    type: Literal["gauss", "uniform"] = key("gauss", "distribution of the latents")
    dim: int = key(64, "width of the latents", 2, 65536)
    dim_appearance: int = key(32, "width of the appearance code, the last part of the latents", 0)
    dim_background: int = key(32, "data.background_model plane: width of its code, behind the latents", 3, 65536)


@dataclass(frozen=True)
class RaySamplerConfig:
    rays_per_patch: int = key(1024, "rays of a training patch, a square number: 1024 is 32 x 32", 16)
    min_scale: float = key(1.0, "smallest patch, as a share of the image's side", 0, 1)
    max_scale: float = key(1.0, "largest patch", 0, 1)
    scale_anneal: float = key(
        0.0, "a: smallest patch max_scale * exp(-3 a floor(step / 1000)), not under min_scale; 0 for min_scale", 0
    )
    random_scale: bool = key(False, "sample the patch's scale; off keeps max_scale")
    random_shift: bool = key(False, "sample the patch's place; off keeps it centred")


@dataclass(frozen=True)
class DiscriminatorConfig:
    architecture: Literal["graf", "projected", "mixed"] = key(
        "graf",
        "`graf`: convolutions that learn from these images alone; `projected`: heads on the features of a frozen "
        "EfficientNet-Lite (Projected GAN), which learn in fewer steps, each twice as slow; `mixed`: both",
    )
    projected_weight: float = key(0.5, "mixed: weight of the heads in the generator's loss, beside that of graf", 0)
    feature_network: Literal["auto", "efficientnet-lite0", "efficientnet-lite1"] = key(
        "auto",
        "projected, mixed: the frozen network; `auto`: efficientnet-lite1, which measures nothing, for mixed, else lite0",
    )
    feature_size: Literal["auto"] | int = key(
        "auto", "projected, mixed: side of the images that it sees, pixels, 64 or 128; `auto`: 64 for mixed, else 128", 64, 128
    )
    ndf: int = key(32, "graf: base width", 2, 1024)
    norm: Literal["instance", "none"] = key("none", "graf: normalisation between layers (GRAF: instance)")
    spectral_norm: bool = key(False, "graf: spectral normalisation of every layer (GRAF: true), which projected always has")
    hflip: bool = key(False, "mirror what the discriminator sees at random")
    condition: Literal["none", "class", "class_and_pose"] = key(
        "class_and_pose",
        "what it knows of an image, by projection; falls back to class where poses are missing, or to none with one class",
    )
    dual: bool = key(False, "refine, graf: it also sees the low-resolution image, enlarged (EG3D's dual discrimination)")
    blur_sigma: float = key(
        2.0, "blur of its inputs at step 0, standard deviation in pixels, so that shape is learned first", 0, 64
    )
    blur_steps: int = key(0, "steps over which the blur fades away; 0 for no blur", 0)
    low_res_steps: int = key(
        1500,
        "initial steps at half the resolution: faster, and bodies vary more; 0 for none",
        0,
    )
    augment: bool = key(
        False,
        "real images and fakes are shifted at random and covered by a square before it sees them (DiffAugment), for few images",
    )
    reconstruction: float = key(
        0.0, "graf: weight of the loss with which small decoders paint real images from its features (FastGAN); 0 for none", 0
    )
    label_loss: Literal["none", "MCE"] = key(
        "none", "graf: auxiliary label head, cross-entropy of class and of elevation bin, where the data has several of either"
    )
    label_weight: float = key(1.0, "weight of label_loss", 0)

    @property
    def has_heads(self) -> bool:
        """Whether a frozen network takes part."""
        return self.architecture in ("projected", "mixed")

    @property
    def frozen_network(self) -> str:
        if self.feature_network != "auto":
            return self.feature_network
        return "efficientnet-lite1" if self.architecture == "mixed" else "efficientnet-lite0"

    @property
    def frozen_size(self) -> int:
        """Side of the images that the frozen network sees, pixels."""
        if self.feature_size != "auto":
            return self.feature_size
        return 64 if self.architecture == "mixed" else 128


@dataclass(frozen=True)
class RunTrainingConfig:
    """Keys of every kind of training run."""

    outdir: str = key("results", "parent folder of the runs; the run is outdir/expname", is_path=True)
    seed: int = key(0, "seed of weights, latents, cameras and the order of the data", 0, 2**32)
    max_steps: int = key(4500, "train until this step", 0)
    batch_size: int = key(8, "images per step", 1)
    accumulation_steps: int = key(1, "parts of a step's batch, whose gradients are summed to the whole batch's", 1)
    micro_batch: Literal["auto"] | int = key(
        "auto",
        "images in each part, at most; auto: batch_size / accumulation_steps, or what memory allows where that is less",
        1,
    )
    nworkers: int = key(2, "loader processes, at most 4 are used", 0)
    persistent_workers: bool = key(True, "keep loader processes for the whole run, or start them again each epoch")
    grad_clip: float = key(0.0, "largest gradient norm of a network; 0 for no limit", 0)
    use_amp: bool = key(False, "mixed precision (`--use_amp`)")
    amp_dtype: Literal["auto", "bfloat16", "float16"] = key(
        "auto", "auto: bfloat16 where the hardware has it, else float16 on GPUs with tensor cores, else float32"
    )
    max_hours: float = key(0.0, "end the run, to be continued, after so many hours; 0 for no limit", 0)
    max_bad_steps: int = key(
        100, "non-finite steps in a row after which the run goes back to its last checkpoint, once, then stops", 1
    )
    monitoring: Literal["tensorboard", "wandb", "none"] = key(
        "tensorboard", "curves beside metrics.jsonl; wandb needs `pip install wandb`"
    )
    print_every: int = key(
        10,
        "steps between rows of metrics.jsonl; 0 = off, as for all *_every keys, the others of which may be minutes: 5min",
        0,
    )
    save_every: Cadence = key(500, "steps between checkpoints of the run (model.pt)", 0)
    keep_checkpoints: int = key(2, "newest checkpoints that are kept; backups and the best stay beside them", 1)
    save_retries: int = key(3, "retries of a checkpoint that cannot be written, before the run ends", 0, 100)
    backup_every: Cadence = key(50000, "steps between checkpoints that are kept for good", 0)


@dataclass(frozen=True)
class TrainingConfig(RunTrainingConfig):
    optimizer: Literal["adam", "rmsprop"] = key(
        "adam", "adam has betas (0, 0.99); (0.9, 0.99) for a CCSR that restores photographs"
    )
    lr_g: float = key(0.001, "learning rate of the generator", 0)
    lr_d: float = key(0.001, "learning rate of the discriminator", 0)
    lr_anneal: float = key(0.5, "factor on both rates at each milestone", 0, 1)
    lr_anneal_every: Literal["auto"] | tuple[int, ...] = key(
        "auto",
        "milestones, steps; `auto`: one, after seven ninths of max_steps; [] has none",
        1,
        wanted="auto or steps such as [3000, 4000]",
    )
    anneal: Literal["none", "r3gan"] = key(
        "none",
        "`r3gan`: over anneal_steps, along a cosine, both rates and reg_param fall to the shares anneal_lr and anneal_reg, "
        "instead of lr_anneal's milestones; Adam's second beta rises from 0.9 to 0.99, the EMA's half-life from 0",
    )
    anneal_steps: Literal["auto"] | int = key("auto", "r3gan: steps of this burn-in; `auto`: max_steps", 1)
    anneal_lr: float = key(0.25, "r3gan: share of both rates after it", 0, 1)
    anneal_reg: float = key(0.1, "r3gan: share of reg_param after it", 0, 1)
    gan_type: Literal["standard", "wgan", "hinge", "relativistic"] = key(
        "standard",
        "adversarial loss; standard is the non-saturating one, relativistic compares each fake with a real image of its "
        "class and camera (R3GAN)",
    )
    reg_type: Literal["r1", "r1_r2", "wgan_gp", "none"] = key(
        "r1",
        "gradient penalty of the discriminator: r1 at real images (projected: at their features), r1_r2 at real images and "
        "fakes, wgan_gp between them",
    )
    reg_param: float = key(0.5, "weight of the gradient penalty, per image", 0)
    reg_every: int = key(1, "steps between gradient penalties, each of which is scaled up by this number", 1)
    model_average_beta: float = key(0.998, "decay of the generator's EMA, which samples and evaluation use", 0, 1)
    compile: bool = key(
        False,
        "compile the radiance field for training (torch.compile); needs a C++ compiler, and slows CPUs down",
    )
    sample_every: Cadence = key(500, "steps between image grids (four times as often in the first 500)", 0)
    fid_every: Cadence = key(1000, "steps between measurements of FID and KID, with another after the last step; 0 for none", 0)
    fid_images: int = key(250, "most real and most generated images of such a measurement; 0 for as many as eval.py takes", 0)
    save_best: Literal["none", "fid", "kid"] = key("none", "keep the best checkpoint by this as model_best.pt; needs fid_every")
    video_every: Cadence = key(10000, "steps between rotation videos", 0)

    @property
    def milestones(self) -> tuple[int, ...]:
        """The steps before which the learning rates fall."""
        return (max(1, self.max_steps * 7 // 9),) if self.lr_anneal_every == "auto" else self.lr_anneal_every

    @property
    def burn_in(self) -> int:
        """The steps over which training.anneal changes what it does."""
        return max(1, self.max_steps) if self.anneal_steps == "auto" else self.anneal_steps


@dataclass(frozen=True)
class PoseTrainingConfig(RunTrainingConfig):
    max_steps: int = key(2560, "train until this step; training images / batch_size steps are an epoch", 0)
    batch_size: int = key(32, "images per step", 1)
    grad_clip: float = key(1.0, "largest gradient norm of the network; 0 for no limit", 0)
    save_every: Cadence = key(200, "steps between checkpoints of the run (model.pt)", 0)
    lr: float = key(0.001, "highest learning rate of AdamW, betas (0.9, 0.99); it falls along a cosine to 0", 0)
    warm_up_steps: int = key(100, "first steps, over which the learning rate rises to lr", 0)
    weight_decay: float = key(0.05, "weight decay of AdamW", 0)
    recolour: bool = key(True, "recolour real images at random each time: the pose has to come from shapes")
    blur: float = key(
        0.0, "blur real images at random, by a Gaussian of at most so many pixels: for reading sharper images than these", 0, 16
    )
    mirror: bool = key(False, "mirror half of the real images: for objects that are the same on both sides of the plane y = 0")
    validate_every: Cadence = key(100, "steps between validations, with another after the last step; 0 for that one alone", 0)
    validation_share: float = key(
        0.1, "share of the objects, or of the images of a single one, held out to validate on", 0.001, 0.9
    )
    test_share: float = key(0.1, "share of the objects that is held out for the test after the last step", 0.001, 0.9)


@dataclass(frozen=True)
class PoseModelConfig:
    token_type: Literal["conv", "patch"] = key(
        "conv", "where tokens come from: convolutions, which learn from fewer images, or patches as they are"
    )
    patch_size: int = key(8, "side of the square that a token stands for, pixels; of conv a power of 2", 2, 64)
    d_model: int = key(128, "channels of a token", 8, 4096)
    num_heads: int = key(4, "heads of the attention, which divide d_model", 1, 64)
    num_layers: int = key(4, "transformer layers", 1, 64)
    azimuth_bins: int = key(
        0,
        "0: one camera per image; else a distribution over azimuths with so many components, for cameras that look at the "
        "origin, upright, from one distance",
        0,
        360,
    )


@dataclass(frozen=True)
class MetricsConfig:
    extractor: Literal["auto", "inception-v3-compat", "efficientnet-lite0", "efficientnet-lite2"] = key(
        "auto", "network of FID and KID; auto takes Inception where its weights lie on this machine, else efficientnet-lite0"
    )
    weights_path: str = key("", "file of the Inception weights; empty looks into torch hub's cache", is_path=True)
    protocol: Literal["counts", "graf", "full"] = key(
        "counts", "how many images: n_real and n_fake; 20,000 real and 1,000 generated as GRAF reports; 50,000 of each"
    )
    n_real: int = key(1000, "real images to compare with, at most; 0 for all", 0)
    n_fake: int = key(1000, "generated images", 2)
    batch_size: int = key(16, "images rendered at a time", 1)

    @property
    def counts(self) -> tuple[int, int]:
        """Real images at most (0 for all) and generated images, as the protocol has them."""
        return PROTOCOLS.get(self.protocol, (self.n_real, self.n_fake))


@dataclass(frozen=True)
class MemoryConfig:
    budget_gb: float = key(
        0.0,
        "memory that the run may use, GB of 2^30 bytes, of the device that it trains on; 0 for what the system allows",
        0,
        1e6,
    )
    empty_cache: Literal["phases", "never"] | int = key(
        "phases",
        "when freed memory goes back to the system: after samples, metrics, checkpoints and each job of eval.py, every so many "
        "steps, or never",
        1,
    )
    interval_s: float = key(5.0, "seconds between rows of memory.jsonl; 0 for none", 0, 86400)
    max_validation_outputs: int = key(
        512, "images held for an image grid or video while training; of train_pose.py, predictions of a validation", 4
    )
    max_test_outputs: int = key(
        4096, "images held for an image grid or video in eval.py; of train_pose.py, predictions of the test", 4
    )


@dataclass(frozen=True)
class ReportingConfig:
    max_metric_rows: int = key(2000, "points per curve of metrics.jsonl; more rows are averaged", 100)


class RunConfig:
    """The keys that every kind of training run has."""

    expname: str
    data: DataConfig
    training: RunTrainingConfig
    memory: MemoryConfig
    reporting: ReportingConfig

    @property
    def run_dir(self) -> Path:
        return Path(self.training.outdir) / self.expname

    @property
    def images_at_once(self) -> int:
        """Images per step whose graph is held at a time, if memory suffices."""
        training = self.training
        if training.micro_batch != "auto":
            return training.micro_batch
        return math.ceil(training.batch_size / training.accumulation_steps)


@dataclass(frozen=True)
class Config(RunConfig):
    hints: ClassVar[Mapping[str, str]] = OTHER_SUITES | {"model": "a section of configs/pose.yaml, which is for train_pose.py"}

    expname: str = key("default", "name of the run's folder in training.outdir")
    data: DataConfig = key(DataConfig(), "the real images and their cameras")
    nerf: NerfConfig = key(NerfConfig(), "the radiance field")
    ccsr: CcsrConfig = key(CcsrConfig(), "super-resolution of the renderings")
    z_dist: LatentConfig = key(LatentConfig(), "the latents")
    ray_sampler: RaySamplerConfig = key(RaySamplerConfig(), "the training patches")
    discriminator: DiscriminatorConfig = key(DiscriminatorConfig(), "the discriminator")
    training: TrainingConfig = key(TrainingConfig(), "the run")
    metrics: MetricsConfig = key(MetricsConfig(), "FID and KID")
    memory: MemoryConfig = key(MemoryConfig(), "how much memory the run may use, and how it is monitored")
    reporting: ReportingConfig = key(ReportingConfig(), "the report of a run")

    @property
    def metrics_in_training(self) -> MetricsConfig:
        """The metrics of a measurement during training: eval.py's, on at most training.fid_images of each kind."""
        (n_real, n_fake), most = self.metrics.counts, self.training.fid_images
        if most == 0 or (0 < n_real <= most and n_fake <= most):
            return self.metrics
        return dataclasses.replace(self.metrics, protocol="counts", n_real=min(n_real or most, most), n_fake=min(n_fake, most))

    @property
    def rendered_scale(self) -> int:
        """Pixels of an image per ray, along a side: ccsr.scale_factor where renderings are refined, else 1."""
        return self.ccsr.scale_factor if self.ccsr.mode == "refine" else 1

    @property
    def restores_photographs(self) -> bool:
        """Whether CCSR learns from real images, not from the discriminator."""
        return self.ccsr.mode == "refine" and self.ccsr.learns_from == "photographs"

    @property
    def judges_restored(self) -> bool:
        """Whether the discriminator sees both kinds of images as CCSR restores them."""
        return self.ccsr.mode == "consistency" and self.ccsr.judge == "restored"

    @property
    def patch_size(self) -> int:
        """Side in pixels of what the discriminator sees: rays_per_patch rays, refined where ccsr.mode is refine."""
        return math.isqrt(self.ray_sampler.rays_per_patch) * self.rendered_scale


_POSE_STEPS = "training.max_steps: an epoch is the training images / training.batch_size steps, and the log tells both"


@dataclass(frozen=True)
class PoseConfig(RunConfig):
    """A run of train_pose.py."""

    hints: ClassVar[Mapping[str, str]] = OTHER_SUITES | {
        "check_val_every_n_epoch": "here it is training.validate_every, steps between validations; the log tells their epochs",
        **dict.fromkeys(("epochs", "max_epochs", "num_epochs"), f"here it is {_POSE_STEPS}"),
        "learning_rate": "here it is training.lr",
        "nerf": "a section of train.py's configs; train_pose.py has data, model, training, memory and reporting",
    }

    expname: str = key("pose", "name of the run's folder in training.outdir")
    data: DataConfig = key(DataConfig(), "the real images and their cameras")
    model: PoseModelConfig = key(PoseModelConfig(), "the estimator")
    training: PoseTrainingConfig = key(PoseTrainingConfig(), "the run")
    memory: MemoryConfig = key(MemoryConfig(), "how much memory the run may use, and how it is monitored")
    reporting: ReportingConfig = key(ReportingConfig(), "the report of a run")
