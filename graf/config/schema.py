"""Every config key: frozen dataclasses, a section each."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graf.config.strict import key

PROTOCOLS = {"graf": (20_000, 1_000), "full": (50_000, 50_000)}  # real and generated images of FID and KID


@dataclass(frozen=True)
class DataConfig:
    type: Literal["toy_cars", "images"] = key("`toy_cars` (made on first use) or `images` (your folders)")
    datadir: tuple[str, ...] = key("folder or list of folders; for toy_cars where the set is kept", is_path=True)
    labels: Literal["auto", "transforms", "filename", "none"] = key(
        "where cameras come from: transforms.json, file names, nowhere; `auto` takes what it finds"
    )
    imsize: int = key("images are cropped square and resized to this, pixels", 8, 2048)
    n_images: int = key("toy_cars: how many images to make", 1, 10_000_000)
    seed: int = key("toy_cars: seed of the shapes, colours and cameras", 0, 2**32)
    background: tuple[float, float, float] = key("`white`, `black` or [r, g, b] in [0, 1], also behind transparency", 0, 1)
    near: float = key("depth of the first sample on a ray, scene units", 0, 1e6)
    far: float = key("depth of the last sample on a ray, scene units", 0, 1e6)
    radius: tuple[float, float] = key('camera distance, a number or a range such as "9.5,10.5"', 0, 1e6)
    fov: float = key("horizontal field of view, degrees", 0.1, 179)
    orthographic: bool = key("parallel rays over a square of side far - near")
    umin: float = key("azimuth / 360 degrees of drawn cameras, from", -1, 2)
    umax: float = key("... to", -1, 2)
    vmin: float = key("polar position of drawn cameras, (1 - cos polar) / 2, from", 0, 1)
    vmax: float = key("... to", 0, 1)
    v: tuple[float, ...] = key(
        "polar position of each elevation label, in the order of their rank; toy_cars: as many elevation bins of vmin..vmax",
        0,
        1,
    )
    center_crop: int = key("side of a centre crop before resizing, pixels; 0 takes the largest square", 0)
    hflip: bool = key("mirror real images at random (unposed data only)")
    on_bad_file: Literal["error", "skip"] = key("what a faulty image does: end with the list, or be left out and counted")
    prefetch_factor: int = key("batches that each loader process (training.nworkers) reads ahead", 1, 1000)


@dataclass(frozen=True)
class NerfConfig:
    conditioning: Literal["concat", "film"] = key("how latents enter: beside the points (GRAF) or as scale and shift")
    netdepth: int = key("layers of the radiance field", 1, 64)
    netwidth: int = key("channels of each layer", 2, 4096)
    netdepth_fine: int = key("layers of the fine network (N_importance > 0)", 1, 64)
    netwidth_fine: int = key("channels of the fine network", 2, 4096)
    mapping_depth: int = key("film: layers of the mapping network behind the latents", 1, 16)
    multires: int = key("frequencies of the position encoding", 0, 20)
    multires_views: int = key("frequencies of the view direction encoding", 0, 20)
    density_activation: Literal["relu", "softplus"] = key("raw network output to density (GRAF: relu)")
    use_viewdirs: bool = key("colour depends on the view direction")
    N_samples: int = key("stratified samples a ray", 2, 4096)
    N_samples_render: int = key("the same for samples, videos and metrics, which are not jittered; 0 for N_samples", 0, 4096)
    N_importance: int = key("further samples a ray, importance-sampled for a fine network; 0 for none", 0, 4096)
    perturb: bool = key("jitter the samples in training (samples for people are never jittered)")
    raw_noise_std: float = key("standard deviation of the noise added to raw density in training", 0)
    decrease_noise: bool = key("let that noise fall to zero over the first 5,000 steps")
    checkpoint_rays: Literal["auto"] | int = key(
        "rays whose activations are held at a time, the others' being computed anew in the backward pass; 0 holds all, `auto` "
        "as many as memory needs",
        0,
    )
    chunk: int = key("rays rendered at a time outside training", 1)


@dataclass(frozen=True)
class CcsrConfig:
    mode: Literal["none", "refine", "consistency"] = key(
        "`refine`: the field is rendered at imsize / scale_factor and refined; `consistency`: both at imsize, pulled together"
    )
    scale_factor: int = key("high-resolution pixels a low-resolution pixel, along a side: 2, 4 or 8", 2, 8)
    kernel: Literal["box", "bilinear", "bicubic", "gaussian"] = key("the downsampling that a refined image is consistent with")
    num_views: int = key("azimuth bins of the view codes", 1, 3600)
    elevation_bins: int = key("elevation bins of the view codes, over vmin..vmax", 1, 360)
    code_channels: int = key("channels of a view code", 1, 256)
    code_size: int = key("side of a view code's map over the frame", 1, 256)
    backbone: Literal["light", "rrdb"] = key("what proposes the detail: a few convolutions, or ESRGAN's RRDBNet")
    width: int = key("light: channels", 8, 1024)
    depth: int = key("light: convolutions at low resolution", 1, 32)
    width_upsampled: int = key("light: channels of the convolutions behind each upsampling", 1, 1024)
    num_rrdb_blocks: int = key("rrdb: blocks", 1, 64)
    nf: int = key("rrdb: channels", 4, 512)
    gc: int = key("rrdb: channels that a dense layer adds", 4, 256)
    pretrained_path: str = key("rrdb: file of ESRGAN or Real-ESRGAN weights to start from; empty for none", is_path=True)
    freeze_backbone: bool = key("rrdb: keep the network's own weights as they are; codes and latents still learn")
    drift_weight: float = key(
        "refine: weight of the loss that keeps a proposal's downsampling, which the projection replaces, near the rendering", 0
    )
    alpha_init: float = key("consistency: weight of the loss between rendered and restored images at step 0", 0)
    alpha_decay: float = key("consistency: its rate of decay a step, alpha_init * exp(-alpha_decay * step)", 0)
    perceptual_weight: float = key(
        "consistency: weight, within that loss, of the distance of EfficientNet-Lite0's features; 0 for pixels alone", 0
    )
    judge: Literal["rendered", "restored"] = key(
        "consistency: the discriminator sees renderings and photographs as they are, or both as CCSR restores them"
    )
    detach: Literal["none", "nerf", "ccsr"] = key("consistency: whose gradient that loss leaves out")


@dataclass(frozen=True)
class LatentConfig:
    type: Literal["gauss", "uniform"] = key("distribution of the latents")
    dim: int = key("width of the latents", 2, 65536)
    dim_appearance: int = key("how many of them, the last, are appearance", 0)


@dataclass(frozen=True)
class RaySamplerConfig:
    N_samples: int = key("rays of a training patch, a square number: 1024 is 32 x 32", 16)
    min_scale: float = key("smallest patch, as a share of the image's side", 0, 1)
    max_scale: float = key("largest patch", 0, 1)
    scale_anneal: float = key(
        "a: smallest patch max_scale * exp(-3 a floor(step / 1000)), not under min_scale; 0 for min_scale", 0
    )
    random_scale: bool = key("draw the patch's scale; off keeps max_scale")
    random_shift: bool = key("draw the patch's place; off keeps it centred")


@dataclass(frozen=True)
class DiscriminatorConfig:
    ndf: int = key("base width", 2, 1024)
    norm: Literal["instance", "none"] = key("normalisation between layers (GRAF: instance)")
    spectral_norm: bool = key("spectral normalisation of every layer (GRAF: true)")
    hflip: bool = key("mirror what the discriminator sees at random")
    condition: Literal["none", "class", "class_and_pose"] = key(
        "what it knows of an image, by projection; where the data has no cameras, the class, or none of one class"
    )
    dual: bool = key("refine: it also sees the low-resolution image, enlarged (EG3D's dual discrimination)")
    blur_sigma: float = key(
        "blur of all that it sees at step 0, standard deviation in pixels, so that shape comes first", 0, 64
    )
    blur_steps: int = key("steps in which that blur fades away; 0 for no blur", 0)
    label_loss: Literal["none", "MCE"] = key(
        "auxiliary label head: cross-entropy of class and of elevation bin, where the data has several of either"
    )
    label_weight: float = key("weight of that loss", 0)


@dataclass(frozen=True)
class TrainingConfig:
    outdir: str = key("parent folder of the runs; the run is outdir/expname", is_path=True)
    seed: int = key("seed of weights, latents, cameras and the order of the data", 0, 2**32)
    max_steps: int = key("train until this step", 0)
    batch_size: int = key("images a step", 1)
    accumulation_steps: int = key("parts that a step's batch is taken in, whose gradients add up to the whole batch's", 1)
    micro_batch: Literal["auto"] | int = key(
        "images in each part, at most; auto: batch_size / accumulation_steps, or what memory allows where that is less", 1
    )
    nworkers: int = key("loader processes, at most 4 are used", 0)
    persistent_workers: bool = key("keep loader processes for the whole run, or start them anew each epoch")
    optimizer: Literal["adam", "rmsprop"] = key("adam has betas (0, 0.99)")
    lr_g: float = key("learning rate of the generator", 0)
    lr_d: float = key("learning rate of the discriminator", 0)
    lr_anneal: float = key("factor on both rates at each milestone", 0, 1)
    lr_anneal_every: tuple[int, ...] = key("milestones, steps", 1)
    gan_type: Literal["standard", "wgan", "hinge"] = key("adversarial loss; standard is the non-saturating one")
    reg_type: Literal["r1", "wgan_gp", "none"] = key("gradient penalty of the discriminator")
    reg_param: float = key("its weight, per image", 0)
    reg_every: int = key("apply it every so many steps, scaled up by as much", 1)
    grad_clip: float = key("largest gradient norm of either network; 0 for no limit", 0)
    model_average_beta: float = key("decay of the generator's moving average, which samples and evaluation use", 0, 1)
    use_amp: bool = key("mixed precision (`--use_amp`)")
    amp_dtype: Literal["auto", "bfloat16", "float16"] = key(
        "auto: bfloat16 where the processor multiplies it, else float16 (card) or float32 (CPU)"
    )
    max_hours: float = key("end the run, to be continued, after so many hours; 0 for no limit", 0)
    max_bad_steps: int = key(
        "non-finite steps in a row after which the run goes back to its last checkpoint, once, then stops", 1
    )
    monitoring: Literal["tensorboard", "wandb", "none"] = key("curves beside metrics.jsonl; wandb needs `pip install wandb`")
    print_every: int = key("steps between lines in metrics.jsonl; 0 never, as for all cadences", 0)
    sample_every: int = key("steps between sample sheets (four times as often in the first 500)", 0)
    save_every_steps: int = key("steps between checkpoints of the run (model.pt)", 0)
    keep_checkpoints: int = key("newest checkpoints that are kept; backups and the best stay beside them", 1)
    save_retries: int = key("times that a checkpoint which cannot be written is tried again, before the run ends", 0, 100)
    backup_every: int = key("steps between checkpoints that are kept for good", 0)
    fid_every: int = key("steps between measurements of FID and KID, of which one is after the last step", 0)
    fid_images: int = key("images of each kind that they take, at most; 0 for as many as eval.py takes", 0)
    save_best: Literal["none", "fid", "kid"] = key("keep the best checkpoint by this as model_best.pt; needs fid_every")
    video_every: int = key("steps between rotation videos", 0)


@dataclass(frozen=True)
class MetricsConfig:
    extractor: Literal["auto", "inception-v3-compat", "efficientnet-lite0"] = key(
        "network of FID and KID; auto takes Inception where its weights lie on this machine"
    )
    weights_path: str = key("file of the Inception weights; empty looks into torch hub's cache", is_path=True)
    protocol: Literal["counts", "graf", "full"] = key(
        "how many images: n_real and n_fake; 20,000 real and 1,000 generated as GRAF reports; 50,000 of each"
    )
    n_real: int = key("real images to compare with, at most; 0 for all", 0)
    n_fake: int = key("generated images", 2)
    batch_size: int = key("images rendered at a time", 1)

    @property
    def counts(self) -> tuple[int, int]:
        """Real images at most (0 for all) and generated images, as the protocol has them."""
        return PROTOCOLS.get(self.protocol, (self.n_real, self.n_fake))


@dataclass(frozen=True)
class MemoryConfig:
    budget_gb: float = key(
        "memory that the run keeps to, GB of 2^30 bytes, of the device that it trains on; 0 for what the system allows", 0, 1e6
    )
    empty_cache: Literal["phases", "never"] | int = key(
        "when freed memory goes back to the system: after samples, metrics, checkpoints and each job of eval.py, every so many "
        "steps, or never",
        1,
    )
    interval_s: float = key("seconds between rows of memory.jsonl; 0 for none", 0, 86400)
    max_validation_outputs: int = key("images held for a sample sheet or video while training", 4)
    max_test_outputs: int = key("images held for a sheet or video in eval.py", 4)
    max_metric_rows: int = key("points that a curve of metrics.jsonl is drawn in; rows beyond are joined", 100)


@dataclass(frozen=True)
class Config:
    expname: str = key("name of the run's folder in training.outdir")
    data: DataConfig = key("the photographs and their cameras")
    nerf: NerfConfig = key("the radiance field")
    ccsr: CcsrConfig = key("super-resolution of the renderings")
    z_dist: LatentConfig = key("the latents")
    ray_sampler: RaySamplerConfig = key("the training patches")
    discriminator: DiscriminatorConfig = key("the discriminator")
    training: TrainingConfig = key("the run")
    metrics: MetricsConfig = key("FID and KID")
    memory: MemoryConfig = key("what the run may take, and how it is watched")

    @property
    def run_dir(self) -> Path:
        return Path(self.training.outdir) / self.expname

    @property
    def metrics_in_training(self) -> MetricsConfig:
        """By what a run measures itself: as eval.py does, on fewer images of each kind where training.fid_images says so."""
        (n_real, n_fake), most = self.metrics.counts, self.training.fid_images
        if most == 0 or (0 < n_real <= most and n_fake <= most):
            return self.metrics
        return dataclasses.replace(self.metrics, protocol="counts", n_real=min(n_real or most, most), n_fake=min(n_fake, most))

    @property
    def images_at_once(self) -> int:
        """Images of a step whose graph is held at a time, where memory suffices for them."""
        training = self.training
        return (
            math.ceil(training.batch_size / training.accumulation_steps)
            if training.micro_batch == "auto"
            else training.micro_batch
        )

    @property
    def rendered_scale(self) -> int:
        """Pixels of an image a ray, along a side: ccsr.scale_factor where renderings are refined, else 1."""
        return self.ccsr.scale_factor if self.ccsr.mode == "refine" else 1

    @property
    def judges_restored(self) -> bool:
        """Whether the discriminator sees both kinds of images as CCSR restores them."""
        return self.ccsr.mode == "consistency" and self.ccsr.judge == "restored"

    @property
    def patch_size(self) -> int:
        """Side in pixels of what the discriminator sees: N_samples rays, refined where ccsr.mode is refine."""
        return math.isqrt(self.ray_sampler.N_samples) * self.rendered_scale
