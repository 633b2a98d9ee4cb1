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
MODEL_AVERAGE_BETA = {True: 0.99, False: 0.998}  # where it is auto, by whether an encoder has first steps
UNREFINED_PIXELS = 64  # of a patch, along a side, at most, where ccsr.unrefined_steps: auto is not 0
HEADS_WEIGHT = {True: 4.0, False: 2.0}  # of discriminator.projected_weight: auto, by whether an encoder has first steps
LOW_RES_STEPS = {True: 500, False: 1500}  # of discriminator.low_res_steps: auto, by whether an encoder has first steps
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
        ("data/toy_cars",), "folder or list of folders; for toy_cars the folder in which the set is stored", is_path=True
    )
    labels: Literal["auto", "transforms", "eg3d", "colmap", "filename", "none"] = key(
        "auto",
        "source of the cameras: transforms.json, EG3D's dataset.json, COLMAP's sparse model, file names, or none; `auto`: "
        "the first that exists",
    )
    name_pattern: str = key(
        NAMED_BY_RANK,
        "what file names contain: any of `<class>`, `<object>`, `<azimuth_deg>`, `<elevation_deg>`, `<polar_deg>`, `<index>`, "
        "`<elevation>` (a rank, see `v`), with the text between them",
    )
    turntable_step_deg: float = key(
        0.0,
        "names with `<index>`: degrees from one image to the next, negative for clockwise; 0: the index is not an angle",
        -360,
        360,
    )
    align_cameras: Literal["auto", "always", "never"] = key(
        "auto",
        "turn z up, move the point that all cameras look at to the origin, scale their mean distance to `radius`; `auto`: "
        "only for COLMAP and EG3D",
    )
    masks: str = key(
        "auto",
        "source of the object's silhouettes: `auto` uses masks beside the images; a folder; `maps/NAME-map.png`, relative to "
        "the image's folder; or `none`",
        is_path=True,
    )
    azimuths: Literal["counterclockwise", "clockwise"] = key(
        "counterclockwise", "direction in which the azimuths of your images' cameras increase, seen from above"
    )
    roll_deg: float = key(
        0.0,
        "turns your images' cameras about their optical axes, degrees, counterclockwise for the photographer: 90 if the "
        "images show the object turned clockwise by 90 degrees",
        -360,
        360,
    )
    camera_axes: Literal["opengl", "opencv"] = key(
        "opengl",
        "transforms.json: a camera looks along its -z with y up (`opengl`, NeRF-Blender), or along its z with y down "
        "(`opencv`)",
    )
    imsize: int = key(64, "side of the images in pixels; images are cropped square and resized to it", 8, 2048)
    n_images: int = key(2048, "toy_cars: number of images to make", 1, 10_000_000)
    seed: int = key(0, "toy_cars: seed of the shapes, colours and cameras", 0, 2**32)
    background: tuple[float, float, float] = key(
        COLOURS["white"],
        "colour behind the objects, also behind transparent pixels: `white`, `black` or [r, g, b] in [0, 1]",
        0,
        1,
        words=COLOURS,
        wanted="white, black or [r, g, b]",
    )
    background_model: Literal["none", "plane"] = key(
        "none",
        "`plane`: a small network makes an image behind each object, the same for all cameras, instead of `background`; for "
        "photographs that are not cut out, with alpha: ignore",
    )
    near: float = key(2.6, "depth of the first sample on a ray, scene units", 0, 1e6)
    far: float = key(4.6, "depth of the last sample on a ray, scene units", 0, 1e6)
    radius: tuple[float, float] = key((3.6, 3.6), 'camera distance, a number or a range such as "9.5,10.5"', 0, 1e6)
    box: Literal["none", "auto"] | tuple[float, float, float, float, float, float] = key(
        "auto",
        "[x0, y0, z0, x1, y1, z1]: rays are clipped to this box, scene units; `auto`: the box of the toy cars, or one "
        "that contains all silhouettes if they and the cameras are known, else none",
        -1e6,
        1e6,
    )
    fov: float = key(
        32.0,
        "horizontal field of view, degrees; where fov, radius, near and far are as by default, those of a file of cameras take "
        "their place in a new run",
        0.1,
        179,
    )
    orthographic: bool = key(False, "parallel rays, from a square of side far - near")
    camera_prior: Literal["circle", "front"] = key(
        "circle",
        "distribution of sampled cameras; `circle`: uniform over umin..umax and vmin..vmax; `front`: a Gaussian around "
        "azimuth 0 and the horizon, for faces and other objects that are photographed from the front (pi-GAN)",
    )
    azimuth_std_deg: float = key(
        17.2, "camera_prior front: standard deviation of azimuths, degrees (0.3 radians, as in pi-GAN for faces)", 0, 60
    )
    elevation_std_deg: float = key(8.9, "camera_prior front: standard deviation of elevations, degrees (0.155 radians)", 0, 40)
    umin: float = key(
        0.0,
        "smallest azimuth / 360 degrees of sampled cameras; below 0 for a range across azimuth 0, such as -0.1 to 0.1; umin "
        "and umax as by default, and vmin and vmax too, give way to where the images' own cameras stand in a new run",
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
        "one v per `<elevation>` of the file names, smallest first; toy_cars: vmin..vmax is divided into this many bins, or "
        "into four (`auto`)",
        0,
        1,
        explained=_polar,
    )
    center_crop: int = key(0, "side of a centre crop before resizing, pixels; 0: the largest square", 0)
    hflip: bool = key(False, "mirror real images at random (unposed data only; for posed data: mirror)")
    mirror: Literal["none"] | float = key(
        "none",
        "azimuth of a symmetry plane, degrees: half of the real images are mirrored with their cameras (posed data only), "
        "for objects that are the same on both sides of this vertical plane; 0 for cars whose nose or tail points to azimuth "
        "0",
        -360,
        360,
    )
    alpha: Literal["auto", "ignore", "rgba"] = key(
        "auto",
        "`rgba`: the discriminator sees RGBA (rendered opacity, and the images' alpha); `ignore`: colours only; `auto`: rgba "
        "if all images have transparency, as the toy cars do",
    )
    on_bad_file: Literal["error", "skip"] = key(
        "error", "faulty images: `error` ends the run with a list of them; `skip` leaves them out and logs their number"
    )
    cache_gb: float = key(
        1.0,
        "GB of RAM for decoded images, per process; a larger set is stored in a file of the run's folder; 0: no cache",
        0,
        1e6,
    )
    cache_device: Literal["auto", "none"] = key(
        "auto",
        "auto: keep all images on the GPU, 1 byte per value, if they fit beside a step; none: load them batch by batch",
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
        "film",
        "how latents enter the field: `concat`: as inputs beside the points (GRAF); `film`: as scale and shift; "
        "`triplane`: as features in three planes (EG3D)",
    )
    netdepth: int = key(4, "layers of the radiance field; a triplane has two", 1, 64)
    netwidth: int = key(64, "channels of each layer", 2, 4096)
    netdepth_fine: int = key(4, "layers of the fine network (importance_samples_per_ray > 0)", 1, 64)
    netwidth_fine: int = key(64, "channels of the fine network", 2, 4096)
    plane_size: int = key(32, "triplane: side of a plane, pixels (4, 8, 16, ...)", 4, 512)
    plane_channels: int = key(16, "triplane: channels of a plane", 1, 256)
    synthesis_width: int = key(64, "triplane: channels of the network that makes the planes, a multiple of 8", 8, 1024)
    mapping_depth: int = key(3, "film, triplane: layers of the mapping network after the latents", 1, 16)
    multires: int = key(6, "frequencies of the position encoding", 0, 20)
    multires_views: int = key(2, "frequencies of the view direction encoding", 0, 20)
    density_activation: Literal["relu", "softplus"] = key(
        "softplus",
        "function from raw network output to density (GRAF: relu)",
    )
    use_viewdirs: bool = key(False, "colour depends on the view direction")
    samples_per_ray: int = key(12, "stratified samples per ray", 2, 4096)
    render_samples_per_ray: int = key(
        32, "samples per ray of sample images, videos and metrics, without jitter; 0: as samples_per_ray", 0, 4096
    )
    importance_samples_per_ray: int = key(0, "further samples per ray, importance-sampled for a fine network; 0: none", 0, 4096)
    perturb: bool = key(True, "jitter the samples in training, but not in images that are written")
    raw_noise_std: float = key(0.0, "standard deviation of the noise added to raw density in training", 0)
    decrease_noise: bool = key(True, "reduce raw_noise_std to zero over the first 5,000 steps")
    checkpoint_rays: Literal["auto"] | int = key(
        "auto",
        "number of rays whose activations are kept; the others are recomputed in the backward pass; 0: keep all; `auto`: as "
        "many as fit into memory",
        0,
    )
    chunk: int = key(
        16384,
        "largest number of rays rendered at a time outside training; a CPU core renders fewer, so that they stay in its cache",
        1,
    )

    @property
    def first_samples_per_ray(self) -> int:
        """Samples per ray outside training, without those of importance sampling."""
        return self.render_samples_per_ray or self.samples_per_ray

    @property
    def rendered_samples_per_ray(self) -> int:
        """Samples per ray outside training, those of importance sampling included."""
        return self.first_samples_per_ray + self.importance_samples_per_ray


@dataclass(frozen=True)
class LightBackboneConfig:
    width: int = key(48, "channels", 8, 1024)
    depth: int = key(4, "convolutions at low resolution", 1, 32)
    width_upsampled: int = key(32, "channels of the convolutions after each upsampling", 1, 1024)


@dataclass(frozen=True)
class RrdbConfig:
    num_blocks: int = key(23, "blocks", 1, 64)
    nf: int = key(64, "channels", 4, 512)
    gc: int = key(32, "channels that each dense layer adds", 4, 256)
    pretrained_path: str = key("", "file of ESRGAN or Real-ESRGAN weights to start from; empty: none", is_path=True)
    freeze: bool = key(False, "freeze the RRDBNet's own weights; the parts for codes and latents are still trained")


@dataclass(frozen=True)
class CcsrConfig:
    mode: Literal["none", "refine", "consistency"] = key(
        "refine",
        "`refine`: the field is rendered at imsize / scale_factor and refined; `consistency`: the field is rendered at "
        "imsize, and a loss pulls the rendering and CCSR's output together; `none`: no CCSR",
    )
    scale_factor: int = key(2, "high-resolution pixels per low-resolution pixel, along a side: 2, 4 or 8", 2, 8)
    kernel: Literal["box", "bilinear", "bicubic", "gaussian"] = key(
        "box", "kernel that downsamples a refined image to its rendering; all except bicubic keep colours in their range"
    )
    learns_from: Literal["photographs", "discriminator"] = key(
        "photographs",
        "refine: `photographs`: CCSR learns to restore real images from their own downsampling; `discriminator`: it learns "
        "from the discriminator, like the field",
    )
    unrefined_steps: Literal["auto"] | int = key(
        "auto",
        "refine: number of last steps in which the field is rendered at all pixels of a patch, and not refined; so is the "
        "trained generator; `auto`: half of the whole steps after an encoder's first steps, for patches of at most 64 "
        "pixels and the light backbone, else 0",
        0,
    )
    num_views: int = key(
        16,
        "azimuth bins of the view codes, over the whole circle; with camera_prior front over two standard deviations on "
        "each side",
        1,
        3600,
    )
    elevation_bins: int = key(
        1,
        "elevation bins of the view codes, over vmin..vmax; with camera_prior front over two standard deviations on each side",
        1,
        360,
    )
    code_channels: int = key(4, "channels of a view code", 1, 256)
    code_size: int = key(8, "side of a view code, which is a map over the frame, pixels", 1, 256)
    backbone: Literal["light", "rrdb"] = key(
        "light",
        "network that proposes the detail: `light`: a few convolutions; `rrdb`: ESRGAN's RRDBNet",
    )
    light: LightBackboneConfig = key(LightBackboneConfig(), "ccsr.backbone light: a few convolutions")
    rrdb: RrdbConfig = key(RrdbConfig(), "ccsr.backbone rrdb: ESRGAN's RRDBNet")
    lr_multiplier: float = key(
        2.0,
        "learning rate of CCSR as a multiple of training.lr_g; use at most 0.1 with learns_from: discriminator",
        0,
    )
    drift_weight: float = key(
        1.0,
        "refine: weight of the loss that keeps the downsampled proposal near the rendering (the projection replaces this part)",
        0,
    )
    alpha_init: float = key(1.0, "consistency: weight of the loss between rendered and restored images at step 0", 0)
    alpha_decay: float = key(0.0001, "consistency: that loss has the weight alpha_init * exp(-alpha_decay * step)", 0)
    perceptual_weight: float = key(
        0.0, "consistency: weight of the distance between EfficientNet-Lite0's features in that loss; 0: pixels only", 0
    )
    judge: Literal["rendered", "restored"] = key(
        "rendered",
        "consistency: what the discriminator sees: renderings and real images unchanged (`rendered`), or both after CCSR "
        "has restored them (`restored`)",
    )
    detach: Literal["none", "nerf", "ccsr"] = key(
        "none", "consistency: which part gets no gradient from that loss: `nerf`: the field; `ccsr`: CCSR"
    )


@dataclass(frozen=True)
class LatentConfig:
    type: Literal["gauss", "uniform"] = key("gauss", "distribution of the latents")
    dim: int = key(64, "width of the latents", 2, 65536)
    dim_appearance: int = key(32, "width of the appearance code, the last part of the latents", 0)
    dim_background: int = key(
        32,
        "data.background_model plane: width of the background's code, which follows the latents",
        3,
        65536,
    )


@dataclass(frozen=True)
class EncoderConfig:
    first_steps: int = key(
        4000,
        "number of first steps in which the generator only reconstructs real images, whose latents an encoder finds (VAE), and "
        "no discriminator judges it; 0: none, as for images without cameras and with data.background_model: plane",
        0,
    )
    weight: float = key(
        10.0,
        "weight of the reconstructions' loss in later steps, in which the generator reconstructs as many real images as it has "
        "fakes, without CCSR (VAE-GAN); 0: none",
        0,
    )
    divergence_weight: float = key(
        1e-5, "weight, beside the distance of reconstructions, of that of the latents found from those that are sampled", 0
    )
    finds_cameras: bool = key(
        False,
        "find the cameras of images that have none, too: of fronts (data.camera_prior: front with data.hflip: true) whose two "
        "sides are the same",
    )


@dataclass(frozen=True)
class RaySamplerConfig:
    rays_per_patch: int = key(1024, "number of rays of a training patch, a square number: 1024 is 32 x 32", 16)
    min_scale: float = key(1.0, "smallest patch, as a share of the image's side", 0, 1)
    max_scale: float = key(1.0, "largest patch, as a share of the image's side", 0, 1)
    scale_anneal: float = key(
        0.0,
        "a, if the smallest patch is max_scale * exp(-3 a floor(step / 1000)), at least min_scale and at most 0.9; 0: "
        "min_scale",
        0,
    )
    random_scale: bool = key(False, "sample the patch's scale; false: always max_scale")
    random_shift: bool = key(False, "sample the patch's position; false: the centre")


@dataclass(frozen=True)
class DiscriminatorConfig:
    architecture: Literal["graf", "projected", "mixed"] = key(
        "mixed",
        "`graf`: convolutions, trained only on these images; `projected`: heads on the features of a frozen "
        "EfficientNet-Lite (Projected GAN), which learn in fewer steps, but each step takes twice the time; `mixed`: both",
    )
    projected_weight: Literal["auto"] | float = key(
        "auto",
        "mixed: weight of the heads in the generator's loss; graf has 1; `auto`: 4 after an encoder's first steps, else 2",
        0,
    )
    feature_network: Literal["auto", "efficientnet-lite0", "efficientnet-lite1"] = key(
        "auto",
        "projected, mixed: the frozen network; `auto`: for mixed efficientnet-lite1, which no metric uses, else "
        "efficientnet-lite0",
    )
    feature_size: Literal["auto"] | int = key(
        "auto",
        "projected, mixed: side of the frozen network's input images, pixels, 64 or 128, to which patches are resized; "
        "`auto`: 128",
        64,
        128,
    )
    ndf: int = key(32, "graf: base width", 2, 1024)
    norm: Literal["instance", "none"] = key("none", "graf: normalisation between layers (GRAF: instance)")
    spectral_norm: bool = key(False, "graf: spectral normalisation of every layer (GRAF: true); projected always has it")
    hflip: bool = key(False, "mirror the discriminator's inputs at random")
    condition: Literal["none", "class", "class_and_pose"] = key(
        "class_and_pose",
        "labels that condition the discriminator (by projection); falls back to class if poses are missing, and to none if "
        "there is one class",
    )
    dual: bool = key(
        False,
        "refine, graf: the discriminator also sees the low-resolution image, enlarged (EG3D's dual discrimination)",
    )
    blur_sigma: float = key(
        2.0, "blur of the discriminator's inputs at step 0, standard deviation in pixels, so that shape is learned first", 0, 64
    )
    blur_steps: int = key(0, "steps over which the blur falls to 0; 0: no blur", 0)
    low_res_steps: Literal["auto"] | int = key(
        "auto",
        "number of its first steps at half the resolution, which are faster and make shapes vary more; `auto`: 500 after an "
        "encoder's first steps, else 1500; 0: none",
        0,
    )
    augment: bool = key(
        False,
        "shift real images and fakes at random and cover a square of them before the discriminator sees them (DiffAugment), "
        "for few images",
    )
    reconstruction: float = key(
        0.0,
        "graf: weight of the loss of small decoders that reconstruct real images from the discriminator's features "
        "(FastGAN); 0: none",
        0,
    )
    label_loss: Literal["none", "MCE"] = key(
        "none",
        "graf: `MCE`: an auxiliary head predicts class and elevation bin (cross-entropy), if the data has several of either",
    )
    label_weight: float = key(1.0, "weight of label_loss", 0)

    @property
    def knows_classes(self) -> bool:
        """Whether the discriminator learns from classes, if there are several; the generator then knows them too."""
        return self.condition != "none" or self.label_loss != "none"

    @property
    def has_heads(self) -> bool:
        """Whether a frozen network takes part."""
        return self.architecture in ("projected", "mixed")

    @property
    def frozen_network(self) -> str:
        if self.feature_network != "auto":
            return self.feature_network
        return "efficientnet-lite1" if self.architecture == "mixed" else "efficientnet-lite0"


@dataclass(frozen=True)
class RunTrainingConfig:
    """Keys of every kind of training run."""

    outdir: str = key("results", "parent folder of the runs; the run is outdir/expname", is_path=True)
    seed: int = key(0, "seed of weights, latents, cameras and the order of the data", 0, 2**32)
    max_steps: int = key(4900, "train until this step", 0)
    batch_size: int = key(8, "images per step", 1)
    accumulation_steps: int = key(
        1,
        "number of parts of a step's batch; their gradients are summed to that of the whole batch",
        1,
    )
    micro_batch: Literal["auto"] | int = key(
        "auto",
        "largest number of images in each part; auto: batch_size / accumulation_steps, or less if memory requires it",
        1,
    )
    nworkers: int = key(2, "number of loader processes; at most 4 are used", 0)
    persistent_workers: bool = key(True, "keep loader processes for the whole run; false: start them again each epoch")
    grad_clip: float = key(0.0, "largest gradient norm of a network; 0: no limit", 0)
    use_amp: bool = key(False, "mixed precision (`--use_amp`)")
    amp_dtype: Literal["auto", "bfloat16", "float16"] = key(
        "auto", "auto: bfloat16 if the hardware has it, else float16 on GPUs with tensor cores, else float32"
    )
    max_hours: float = key(0.0, "end the run after this many hours, with a checkpoint to continue from; 0: no limit", 0)
    max_bad_steps: int = key(
        100,
        "number of non-finite steps in a row after which a run goes back to its last checkpoint; the second time it ends",
        1,
    )
    monitoring: Literal["tensorboard", "wandb", "none"] = key(
        "tensorboard", "where curves are written, in addition to metrics.jsonl; wandb needs `pip install wandb`"
    )
    print_every: int = key(
        10,
        "steps between rows of metrics.jsonl; 0: off, as for all *_every keys; the other *_every keys can also be minutes, "
        "such as 5min",
        0,
    )
    save_every: Cadence = key(500, "steps between checkpoints of the run (model.pt)", 0)
    keep_checkpoints: int = key(
        2,
        "number of newest checkpoints that are kept; backups and the best checkpoint are kept too",
        1,
    )
    save_retries: int = key(3, "number of retries if a checkpoint cannot be written; then the run ends", 0, 100)
    backup_every: Cadence = key(50000, "steps between checkpoints that are never deleted", 0)


@dataclass(frozen=True)
class TrainingConfig(RunTrainingConfig):
    optimizer: Literal["adam", "rmsprop"] = key(
        "adam",
        "adam has betas (0, 0.99), of the discriminator (0, 0.9), of the encoder and of a CCSR that restores real images "
        "(0.9, 0.99)",
    )
    lr_g: float = key(0.001, "learning rate of the generator", 0)
    lr_d: float = key(0.001, "learning rate of the discriminator", 0)
    lr_anneal: float = key(0.5, "factor on both rates at each milestone", 0, 1)
    lr_anneal_every: Literal["auto"] | tuple[int, ...] = key(
        "auto",
        "milestones, steps; `auto`: after seven ninths of max_steps; with an encoder's first steps, after a half and three "
        "quarters of the whole steps; []: none",
        1,
        wanted="auto or steps such as [3000, 4000]",
    )
    anneal: Literal["none", "r3gan"] = key(
        "none",
        "`r3gan` replaces lr_anneal's milestones: over anneal_steps, along a cosine, both learning rates fall to the share "
        "anneal_lr and reg_param to the share anneal_reg; Adam's second beta rises from 0.9 to 0.99, and the EMA's half-life "
        "from 0",
    )
    anneal_steps: Literal["auto"] | int = key("auto", "r3gan: number of steps over which it anneals; `auto`: max_steps", 1)
    anneal_lr: float = key(0.25, "r3gan: final share of both learning rates", 0, 1)
    anneal_reg: float = key(0.1, "r3gan: final share of reg_param", 0, 1)
    gan_type: Literal["standard", "wgan", "hinge", "relativistic"] = key(
        "standard",
        "adversarial loss; standard: non-saturating; relativistic: compares each fake with a real image of its class and "
        "camera (R3GAN)",
    )
    reg_type: Literal["r1", "r1_r2", "wgan_gp", "none"] = key(
        "r1",
        "gradient penalty of the discriminator; r1: at real images (projected: at their features); r1_r2: at real images and "
        "fakes; wgan_gp: between them",
    )
    reg_param: float = key(0.5, "weight of the gradient penalty, per image", 0)
    reg_every: int = key(1, "steps between gradient penalties; each penalty is multiplied by this number", 1)
    model_average_beta: Literal["auto"] | float = key(
        "auto",
        "decay of the generator's EMA, which samples and evaluation use; `auto`: 0.99 after an encoder's first steps, else "
        "0.998",
        0,
        1,
    )
    compile: bool = key(
        False,
        "compile the radiance field for training (torch.compile) where it is not fused (fused_field); this needs a C++ "
        "compiler, and is slower on a CPU",
    )
    fused_field: Literal["auto", "none"] = key(
        "auto",
        "auto: on an NVIDIA GPU (Ampere or later), in mixed precision, all layers of a film field of width 64 or 128 are one "
        "operation, which saves time and memory; this needs Triton (not on Windows), a C compiler and Python's headers; none: "
        "an operation per layer",
    )
    cuda_graphs: Literal["auto", "none"] = key(
        "auto",
        "auto: on an NVIDIA GPU record the operations of a step once and replay them (CUDA graphs), where memory for two steps "
        "is free; none: launch the operations one by one",
    )
    sample_every: Cadence = key(
        500, "steps between image grids (if given in steps, four times as often in the first and the last 500)", 0
    )
    fid_every: Cadence = key(
        500,
        "steps between measurements of FID and KID, which are also measured after the last step, but not in an encoder's first "
        "steps; 0: none",
        0,
    )
    fid_images: int = key(
        250,
        "largest number of real and of generated images of such a measurement; 0: as many as in eval.py",
        0,
    )
    save_best: Literal["none", "fid", "kid"] = key(
        "none",
        "measure that selects the best checkpoint, model_best.pt; needs fid_every",
    )
    video_every: Cadence = key(10000, "steps between rotation videos", 0)

    @property
    def annealing_steps(self) -> int:
        """The steps over which training.anneal changes what it does."""
        return max(1, self.max_steps) if self.anneal_steps == "auto" else self.anneal_steps


@dataclass(frozen=True)
class PoseTrainingConfig(RunTrainingConfig):
    max_steps: int = key(2560, "train until this step; an epoch has (training images / batch_size) steps", 0)
    batch_size: int = key(32, "images per step", 1)
    grad_clip: float = key(1.0, "largest gradient norm of the network; 0: no limit", 0)
    save_every: Cadence = key(200, "steps between checkpoints of the run (model.pt)", 0)
    lr: float = key(0.001, "highest learning rate of AdamW (betas 0.9 and 0.99); it falls along a cosine to 0", 0)
    warm_up_steps: int = key(100, "number of first steps, over which the learning rate rises to lr", 0)
    weight_decay: float = key(0.05, "weight decay of AdamW", 0)
    recolour: bool = key(
        True,
        "recolour real images at random each time, so that the pose is learned from shapes and not from colours",
    )
    blur: float = key(
        0.0,
        "blur real images at random, with a Gaussian of at most this many pixels; use it if the "
        "estimator will read sharper images than these",
        0,
        16,
    )
    reframe: float = key(
        0.0,
        "vary the object's size in real images at random, by this standard deviation (0.1: 10 %), and its place by 0.3 times "
        "as much, in shares of the frame; with model.azimuth_bins half of the images stay as they are, and elevations are "
        "learned from these; use it if the estimator will read images that were cropped by hand",
        0,
        0.3,
    )
    mirror: bool = key(False, "mirror half of the real images, for objects that are the same on both sides of the plane y = 0")
    validate_every: Cadence = key(
        100,
        "steps between validations; there is always one after the last step; 0: only that one",
        0,
    )
    validation_share: float = key(
        0.1, "share of the objects held out for validation; of fewer than three objects the share of the images", 0.001, 0.9
    )
    test_share: float = key(0.1, "share of the objects held out for the test after the last step", 0.001, 0.9)


@dataclass(frozen=True)
class PoseModelConfig:
    token_type: Literal["conv", "patch"] = key(
        "conv", "source of the tokens; conv: convolutions, which learn from fewer images; patch: the pixels of patches"
    )
    patch_size: int = key(8, "side of the image square of each token, pixels; for conv a power of 2", 2, 64)
    d_model: int = key(128, "channels of a token", 8, 4096)
    num_heads: int = key(4, "attention heads; d_model must be a multiple of their number", 1, 64)
    num_layers: int = key(4, "transformer layers", 1, 64)
    azimuth_bins: int = key(
        0,
        "0: predict one camera per image; else predict a distribution over azimuths with this many components, for upright "
        "cameras that look at the origin from one distance",
        0,
        360,
    )


@dataclass(frozen=True)
class MetricsConfig:
    extractor: Literal["auto", "inception-v3-compat", "efficientnet-lite0", "efficientnet-lite2"] = key(
        "auto", "network of FID and KID; auto: Inception if its weights are on this machine, else efficientnet-lite0"
    )
    weights_path: str = key("", "file of the Inception weights; empty: the one in torch hub's cache", is_path=True)
    protocol: Literal["counts", "graf", "full"] = key(
        "counts",
        "numbers of images; counts: n_real and n_fake; graf: 20,000 real and 1,000 generated, as GRAF reports; full: "
        "50,000 of each",
    )
    n_real: int = key(1000, "largest number of real images to compare with; 0: all", 0)
    n_fake: int = key(1000, "number of generated images", 2)
    batch_size: int = key(16, "images rendered at a time", 1)

    @property
    def counts(self) -> tuple[int, int]:
        """Real images at most (0 for all) and generated images, as the protocol has them."""
        return PROTOCOLS.get(self.protocol, (self.n_real, self.n_fake))


@dataclass(frozen=True)
class MemoryConfig:
    budget_gb: float = key(
        0.0,
        "memory that the run may use on the device that it trains on, GB of 2^30 bytes; 0: all that the system allows",
        0,
        1e6,
    )
    empty_cache: Literal["phases", "never"] | int = key(
        "phases",
        "when freed memory goes back to the system; phases: after samples, metrics, checkpoints and each job of eval.py; a "
        "number: every so many steps; or never",
        1,
    )
    interval_s: float = key(5.0, "seconds between rows of memory.jsonl; 0: none", 0, 86400)
    max_validation_outputs: int = key(
        512,
        "largest number of images kept for an image grid or video in training; for train_pose.py, of predictions in a "
        "validation",
        4,
    )
    max_test_outputs: int = key(
        4096,
        "largest number of images kept for an image grid or video in eval.py; for train_pose.py, of predictions in the test",
        4,
    )


@dataclass(frozen=True)
class ReportingConfig:
    max_metric_rows: int = key(
        2000,
        "largest number of points per curve of metrics.jsonl; if there are more rows, they are averaged",
        100,
    )


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
    def pace_changes(self) -> tuple[int, ...]:
        """The steps after which the time per step changes, in order."""
        return ()

    def same_pace_until(self, step: int) -> int:
        """The last step that takes as long as the one after `step`."""
        return next((change for change in self.pace_changes if change > step), self.training.max_steps)

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
    encoder: EncoderConfig = key(EncoderConfig(), "the encoder of real images")
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
    def encodes_images(self) -> bool:
        """Whether the generator learns to reconstruct real images, too."""
        return self.encoder.first_steps > 0 or self.encoder.weight > 0

    def without_encoder(self) -> "Config":
        """The config of a generator that reconstructs no real images."""
        return dataclasses.replace(
            self, encoder=dataclasses.replace(self.encoder, first_steps=0, weight=0.0, finds_cameras=False)
        )

    @property
    def short_steps(self) -> int:
        """The number of first steps that take less time and memory than the others: the encoder's, and those of low
        resolution."""
        return self.encoder.first_steps + self.low_res_steps

    @property
    def low_res_steps(self) -> int:
        """The number of the discriminator's first steps that have half the resolution."""
        return self._or_by_encoder(self.discriminator.low_res_steps, LOW_RES_STEPS)

    @property
    def unrefined_steps(self) -> int:
        """The number of last steps in which renderings are not refined."""
        if self.ccsr.mode != "refine":
            return 0
        if self.ccsr.unrefined_steps != "auto":
            return self.ccsr.unrefined_steps
        pays = self.encoder.first_steps > 0 and self.patch_size <= UNREFINED_PIXELS and self.ccsr.backbone == "light"
        needs_refined = self.discriminator.dual or self.data.background_model == "plane"
        whole_steps = max(0, self.training.max_steps - self.short_steps)
        return whole_steps // 2 if pays and not needs_refined else 0

    @property
    def model_average_beta(self) -> float:
        """The decay of the EMA: a run that ends with few steps of a kind has to forget those before."""
        return self._or_by_encoder(self.training.model_average_beta, MODEL_AVERAGE_BETA)

    @property
    def projected_weight(self) -> float:
        """The weight of a mixed discriminator's heads in the generator's loss."""
        return self._or_by_encoder(self.discriminator.projected_weight, HEADS_WEIGHT)

    def _or_by_encoder(self, value: str | float, choices: dict[bool, float]) -> float:
        """The value of a key, or where it is auto one of two, by whether an encoder has first steps."""
        return choices[self.encoder.first_steps > 0] if value == "auto" else value

    @property
    def first_unrefined(self) -> int:
        """The number of steps before those in which renderings are not refined; 0 where there are none."""
        return max(0, self.training.max_steps - self.unrefined_steps) if self.unrefined_steps else 0

    @property
    def pace_changes(self) -> tuple[int, ...]:
        changes = {self.encoder.first_steps, self.short_steps, self.first_unrefined}
        return tuple(sorted(step for step in changes if 0 < step < self.training.max_steps))

    def at(self, step: int) -> "Config":
        """The config by which a run renders after so many steps: `unrefined` from the first of its last ones on."""
        return self.unrefined() if self.unrefined_steps and step >= self.first_unrefined else self

    def unrefined(self) -> "Config":
        """The config of the field alone, with a ray for each pixel of a patch."""
        sampler = dataclasses.replace(self.ray_sampler, rays_per_patch=self.patch_size**2)
        rrdb = dataclasses.replace(self.ccsr.rrdb, pretrained_path="")  # which needs a backbone
        return dataclasses.replace(self, ccsr=dataclasses.replace(self.ccsr, mode="none", rrdb=rrdb), ray_sampler=sampler)

    @property
    def milestones(self) -> tuple[int, ...]:
        """The steps before which the learning rates fall."""
        if self.training.lr_anneal_every != "auto":
            return self.training.lr_anneal_every
        if self.encoder.first_steps == 0:
            return (max(1, self.training.max_steps * 7 // 9),)
        first, last = self.short_steps, self.training.max_steps
        late = {first + (last - first) * quarter // 4 for quarter in (2, 3)}
        return tuple(sorted(step for step in late if first < step < last))

    @property
    def restores_real_images(self) -> bool:
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

    @property
    def feature_size(self) -> int:
        """Side of the images that the discriminator's frozen network sees, pixels, to which patches are resized. KID with 128
        is half of that with 64, also where patches have 64 (docs/lab/2026-11-29-features.md)."""
        return 128 if self.discriminator.feature_size == "auto" else self.discriminator.feature_size


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
