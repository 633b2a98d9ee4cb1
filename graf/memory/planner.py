"""Estimates the memory of a training step from its config, part by part, and finds the smallest edits that make it fit.

A step has three moments at which most is held, and its peak is the largest of them:
- in the discriminator's step, both batches' features and those of the gradient penalty, with its double backward;
- in the generator's step, where the backward pass begins: the field's, CCSR's and the discriminator's activations together;
- where it reaches the field: what the field's layers keep, and the gradients that go from one to the next, which are those of a
  piece of the rays.

The numbers of maps that a layer keeps were counted with every tensor's allocation tracked (tests/memory/test_planner.py, which
holds the estimate against that count for all shipped configs).

Legend: B images of a part of the step, R rays per image, S samples per ray, K side of a patch, C channels.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

from graf.config import Config, TrainingConfig, override
from graf.config.checks import FEWEST_RAYS
from graf.config.reading import as_yaml
from graf.data.loader import loader_processes, start_method
from graf.errors import ConfigError
from graf.models.background import WIDTH
from graf.models.ccsr import LightBackbone
from graf.models.discriminators.convolutional import Discriminator
from graf.models.discriminators.mixed import MixedDiscriminator
from graf.models.discriminators.projected import ProjectedDiscriminator, stages_of
from graf.models.fields.fused_film import rows_at_once, scratch_bytes
from graf.models.fields.fusing import why_not_fused
from graf.models.fields.radiance_field import encoding_width
from graf.models.fields.triplane import START
from graf.models.generator import Generator
from graf.models.perception import EFFICIENTNET, EFFICIENTNET_1, SIZE
from graf.models.registry import build_discriminator
from graf.models.rrdb import RRDBNet
from graf.pieces import rays_of_a_piece
from graf.rays import RAY_SPACING
from graf.runtime.limits import MB
from graf.runtime.precision import AmpSettings

import psutil
import torch
from torch import nn

FLOAT = 4  # bytes
LOADED_BYTES = 400 * MB, 800 * MB  # of Python with its libraries, at least and at most: by PyTorch's version and build
LOADER_BYTES = 320 * MB  # of a loader process that is not forked, without the pages that it shares with others
FIRST_STEP_BYTES = 64 * MB  # what they load when they are first used
GRAIN = 64 * MB  # of what was measured: a resumed run is to plan as it did before
# Of tensors' bytes: freed blocks that the allocator keeps and cannot use again at once
GAPS = {"cpu": 0.3, "cuda": 0.15, "mps": 0.15}
COMPOSITING = 18  # floats per sample between the field and the pixel: points, depths, raw and activated outputs, weights
COMPOSITING_LEFT = 5  # of them while the field's own layers are gone through backwards
PERCEPTION_BYTES = 23 * MB  # features of an image in EfficientNet-Lite0, in float32
PROJECTED_BYTES = {  # the same of a projected discriminator, in which it is deeper and has no normalisations
    EFFICIENTNET: 17 * MB,
    EFFICIENTNET_1: 21 * MB,
}
PROJECTED_AT_ONCE = 2 * MB  # of them where none is kept for a backward pass
PERCEPTION_WEIGHTS = 18 * MB
MAPS_OF_SYNTHESIS = 5  # that each convolution of a triplane keeps: its input, its output, normalised, scaled, activated
SMALLEST_SAMPLES, SMALLEST_WIDTH = 8, 16  # below these nothing recognisable is learned
RAYS_AT_ONCE = (16384, 4096, 1024)


def bytes_without_tensors(held_bytes: int) -> int:
    """Memory of a process that trains on the CPU, but its tensors, by what it holds when it has loaded its libraries: more than
    those take, such as a notebook's own arrays, is not counted."""
    loaded = min(max(held_bytes, LOADED_BYTES[0]), LOADED_BYTES[1])
    return math.ceil((loaded + FIRST_STEP_BYTES) / GRAIN) * GRAIN


PROCESS_BYTES = {"cuda": 500 * MB}  # by the kind of device: of CUDA, a GPU's context


def measure_process() -> None:
    """Take what this process holds now for what it holds without tensors: call it once all libraries are loaded."""
    taken = bytes_without_tensors(psutil.Process().memory_info().rss)
    PROCESS_BYTES["cpu"] = PROCESS_BYTES["mps"] = taken  # they share their memory


measure_process()  # for what plans before


def loader_bytes(config: Config) -> int:
    """Memory of the run's loader processes but their images: of forks none, which share what the process that trains has."""
    return 0 if start_method() == "fork" else LOADER_BYTES * loader_processes(config)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes by part at the moment of a step when most is held (`moment`), and what is no tensor: gaps that the allocator
    leaves between them, and the process itself with its libraries and, where the host's memory is planned, its loader
    processes."""

    moment: str
    parts: dict[str, int]
    gaps_bytes: int
    process_bytes: int

    @property
    def step_bytes(self) -> int:
        """Peak of what tensors hold."""
        return sum(self.parts.values())

    @property
    def total_bytes(self) -> int:
        return self.step_bytes + self.gaps_bytes + self.process_bytes


def estimate_step(
    config: Config, device_type: str = "cpu", n_classes: int = 1, n_elevations: int = 1, n_processes: int = 1
) -> Estimate:
    """The peak memory of a training step of the config, on `cpu` (the host's) or `cuda` (the GPU's), in one of n_processes that
    share a batch: of one without CCSR where the last ones are (ccsr.unrefined_steps), if that takes more."""
    generator, discriminator = _networks(_without_sizes(config), n_classes, n_elevations)
    batch, amp = config.images_at_once, AmpSettings.choose(config.training, torch.device(device_type))
    n_threads = min(torch.get_num_threads(), batch) if device_type == "cpu" else 1  # that share the images out
    kinds = (config, config.unrefined()) if config.unrefined_steps else (config,)
    of_all = generator, discriminator, batch, amp.dtype, device_type, n_threads, n_processes
    steps = (_Step(kind, *of_all) for kind in kinds)
    return max(map(_estimate, steps), key=lambda estimate: estimate.total_bytes)


def _without_sizes(config: Config) -> Config:
    """The config without what networks are built alike for: its steps and their parts, as smaller ones are tried."""
    nerf = dataclasses.replace(config.nerf, checkpoint_rays="auto")
    return dataclasses.replace(config, expname="", nerf=nerf, training=TrainingConfig())


@functools.lru_cache(maxsize=2)
def _networks(config: Config, n_classes: int, n_elevations: int) -> tuple[Generator, nn.Module]:
    """The generator and the discriminator as shapes alone. They are kept, as building them takes longer than the estimate."""
    with torch.device("meta"):
        return Generator(config, n_classes), build_discriminator(config, n_classes, n_elevations)


def _estimate(step: "_Step") -> Estimate:
    """The peak memory of a step."""
    config, rays = step.config, step.config.ray_sampler.rays_per_patch
    field_kept, field_backward = step.field(rays)
    of_reconstructions, _ = dataclasses.replace(step, finds_cameras=config.encoder.finds_cameras).field(rays // RAY_SPACING**2)
    reconstructions = {"reconstructions": of_reconstructions + step.background()} if config.encoder.weight > 0 else {}
    moments = {
        "discriminator step": {
            "gradients of parts": step.gradients_of_parts(step.discriminator),
            "discriminator": sum(critic.discriminator_step() for critic in step.critics()),
        },
        "generator step, backward pass begins": reconstructions
        | {
            "rays and field": field_kept,
            "background": step.background(),
            "ccsr": step.refinement(),
            "discriminator": sum(critic.scores() for critic in step.critics()),
        },
        "generator step, backward pass in the field": reconstructions
        | {
            "gradients of parts": step.gradients_of_parts(step.generator),
            "rays and field": field_backward,
        },
    }
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = step.persistent() | {"images": step.images(), "noise of rays": step.noise()} | moments[moment]
    process = PROCESS_BYTES[step.device_type] + (0 if step.device_type == "cuda" else loader_bytes(config))
    return Estimate(moment, parts, int(GAPS[step.device_type] * sum(parts.values())), process)


def _weights(network: nn.Module, learning: bool = False) -> int:
    return FLOAT * sum(p.numel() for p in network.parameters() if p.requires_grad or not learning)


@dataclasses.dataclass(frozen=True)
class _Step:
    """A training step, and what decides how much it holds; its methods return bytes, or numbers where they say so."""

    config: Config
    generator: Generator
    discriminator: nn.Module
    batch: int  # images at a time
    dtype: torch.dtype  # of the numbers that a network keeps
    device_type: str
    n_threads: int
    n_processes: int = 1  # of the run, which share its batch
    finds_cameras: bool = False  # and so needs the gradient of the points at which a field is evaluated

    @property
    def size(self) -> int:
        """Bytes of a number that a network keeps."""
        return self.dtype.itemsize

    @functools.cached_property
    def field_networks(self) -> list[tuple[int, int, int]]:
        """Depth, width and samples per ray of the field, and of the fine one where there is one."""
        nerf = self.config.nerf
        networks = [(nerf.netdepth, nerf.netwidth, nerf.samples_per_ray)]
        if nerf.importance_samples_per_ray > 0:
            networks.append((nerf.netdepth_fine, nerf.netwidth_fine, nerf.samples_per_ray + nerf.importance_samples_per_ray))
        return networks

    @property
    def renderings(self) -> int:
        """Renderings per image: two where the coarse one is scored beside the fine one."""
        return len(self.field_networks)

    @functools.cached_property
    def is_fused(self) -> bool:
        """Whether a field's layers are one operation, on the machine at hand."""
        return not self.finds_cameras and not why_not_fused(self.config, self.device_type, self.dtype)

    @property
    def is_projected(self) -> bool:
        return isinstance(self.discriminator, ProjectedDiscriminator)

    def critics(self) -> list["_Step"]:
        """The step with each critic of a mixed discriminator."""
        if not isinstance(self.discriminator, MixedDiscriminator):
            return [self]
        return [dataclasses.replace(self, discriminator=critic) for critic in self.discriminator.children()]

    def persistent(self) -> dict[str, int]:
        """Memory held from step to step. It includes gradients, which live until the next step's replace them."""
        weights = _weights(self.generator) + _weights(self.discriminator)
        learning = _weights(self.generator, learning=True) + _weights(self.discriminator, learning=True)
        return {
            "weights": weights
            + PERCEPTION_WEIGHTS * ((self.config.ccsr.perceptual_weight > 0) + self.config.discriminator.has_heads),
            "gradients": learning,
            "optimizers": learning * (2 if self.config.training.optimizer == "adam" else 1),
            "EMA": _weights(self.generator),
        }

    def gradients_of_parts(self, network: nn.Module) -> int:
        """Per-thread gradients awaiting summation."""
        at_once = self.batch == self.config.training.batch_size and self.n_threads == 1
        return 0 if at_once else self.n_threads * _weights(network, learning=True)

    def images(self) -> int:
        """The real images of a step, and patches: their grids (2 channels, twice), real and generated ones and both joined."""
        channels = self.config.data.channels
        real = channels * self.config.training.batch_size // self.n_processes * self.config.data.imsize**2
        return FLOAT * (real + (4 + 3 * channels) * self.batch * self.config.patch_size**2)

    def noise(self) -> int:
        """Jitter of samples and noise of densities for both networks' steps, sampled at once for all images; on a GPU those of
        other processes are freed."""
        images = self.config.training.batch_size // (self.n_processes if self.device_type == "cuda" else 1)
        nerf, rays = self.config.nerf, images * self.config.ray_sampler.rays_per_patch
        samples = [n_samples for _, _, n_samples in self.field_networks]
        return 2 * FLOAT * rays * (samples[-1] * nerf.perturb + sum(samples) * (nerf.raw_noise_std > 0))

    def field(self, rays_per_image: int) -> tuple[int, int]:
        """Memory that rendering holds for the backward pass, and the peak while that pass is in the field.

        It goes through some rays at a time. The others' activations wait, unless nerf.checkpoint_rays has them computed again.
        Where density is a ReLU's, samples without it keep nothing; as their number is not known, all are taken to have some.
        """
        nerf, rays = self.config.nerf, self.batch * rays_per_image
        others_wait = nerf.checkpoint_rays in ("auto", 0) or nerf.checkpoint_rays >= rays
        at_once = rays_of_a_piece(nerf, rays, self.device_type) if others_wait else nerf.checkpoint_rays
        kept = peak = scratch = 0  # per ray, but scratch
        for depth, width, n_samples in self.field_networks:
            sample_kept, sample_peak = self._field_sample(depth, width)
            kept, peak = kept + n_samples * sample_kept, max(peak, kept + n_samples * sample_peak)
            if self.is_fused:
                rows = rows_at_once(self.batch, math.ceil(n_samples * at_once / self.batch), depth + 1, width, self.size)
                scratch = max(scratch, scratch_bytes(self.batch, rows, depth + 1, width, self.size))
        weights, planes = self._modulated_weights(), self._planes()
        if not others_wait:
            return planes, peak * at_once + weights + planes + scratch
        weights = weights * math.ceil(rays / at_once) + planes  # a copy per piece
        return kept * rays + weights, kept * (rays - at_once) + peak * at_once + weights + scratch

    def _field_sample(self, depth: int, width: int) -> tuple[int, int]:
        """`field` for one sample. A layer keeps its activated output, where that is not computed again; some more are in
        flight where the density's and the colour's gradients meet."""
        if self.is_fused:
            return COMPOSITING * FLOAT, COMPOSITING * FLOAT  # its own layers are in the scratch
        nerf, size = self.config.nerf, self.size
        inputs, layers, in_flight = 0, max(1, depth - 1), 4
        if nerf.conditioning == "triplane":  # what the planes have at the sample, and where it was looked up
            layers, in_flight = 2, 2
            inputs = 3 * nerf.plane_channels * size + 3 * 2 * FLOAT
        elif nerf.conditioning != "concat":  # a film, or one that is taken for a film
            layers, in_flight = depth + 1, 2
            inputs = encoding_width(nerf.multires) * size
            if nerf.use_viewdirs:  # joined to each sample's features
                inputs += (width + encoding_width(nerf.multires_views)) * size
        kept = inputs + layers * width * size
        return kept + COMPOSITING * FLOAT, kept + in_flight * width * size + COMPOSITING_LEFT * FLOAT

    def _modulated_weights(self) -> int:
        """Copies of the field's weights that each image has: of all layers of a film, of one of a triplane."""
        conditioning = self.config.nerf.conditioning
        if conditioning == "concat":
            return 0
        layers = [(1 if conditioning == "triplane" else depth + 1, width) for depth, width, _ in self.field_networks]
        return self.batch * self.size * sum(n_layers * width**2 for n_layers, width in layers)

    def _planes(self) -> int:
        """Bytes that the synthesis of each image's planes keeps, and of the planes and their gradients."""
        nerf = self.config.nerf
        if nerf.conditioning != "triplane":
            return 0
        pixels = _synthesised_pixels((nerf.plane_size // START).bit_length())
        planes = 2 * 3 * nerf.plane_channels * nerf.plane_size**2 * FLOAT
        return self.renderings * self.batch * (MAPS_OF_SYNTHESIS * nerf.synthesis_width * pixels * self.size + planes)

    def background(self) -> int:
        """Memory that the background network keeps."""
        network = self.generator.background_model
        if network is None:
            return 0
        return self.batch * MAPS_OF_SYNTHESIS * WIDTH * _synthesised_pixels(len(network.convs)) * self.size

    def refinement(self) -> int:
        """Bytes that CCSR keeps for the backward pass: of the backbone, and of the perceptual loss where there is one."""
        config, refinement = self.config, self.generator.refinement
        if config.ccsr.mode == "none":
            return 0
        side = config.patch_size // config.ccsr.scale_factor
        is_light = isinstance(refinement.backbone, LightBackbone)
        numbers = _light(refinement.backbone, side) if is_light else _rrdb(refinement.backbone.network, side)
        kept = numbers * self.batch * self.size
        if config.ccsr.mode == "refine":  # the coarse rendering is refined too, and real images are restored
            kept *= self.renderings + config.restores_real_images
        if config.judges_restored:  # the coarse rendering is restored too, and the fine one once more without the field
            kept *= self.renderings + (config.ccsr.detach == "nerf")
        if config.ccsr.mode == "consistency" and config.ccsr.perceptual_weight > 0:
            kept += 2 * self.batch * PERCEPTION_BYTES * self.size // FLOAT
        return kept

    def features(self) -> int:
        """Numbers that scoring a batch of images keeps: what convolutions put out, twice where a normalisation or an activation
        keeps its input; of a projected discriminator also what its heads judge."""
        total = 0
        if self.is_projected:
            for stage, head in zip(stages_of(self.config), self.discriminator.heads, strict=True):
                total += head.main[0].in_channels * stage.side**2 + 2 * _outputs(head.main, stage.side)
            return self.batch * total
        twice, is_graf = self.config.discriminator.norm == "instance", isinstance(self.discriminator, Discriminator)
        layers = self.discriminator.main[:-1] if is_graf else self.discriminator.modules()  # taken to follow each other
        return self.batch * _outputs(layers, self.config.patch_size) * (2 if twice else 1)

    def reconstruction(self) -> int:
        """Numbers that painting a batch of images from the discriminator's features keeps: what convolutions take and give."""
        if self.config.discriminator.reconstruction == 0:
            return 0
        total = 0
        for decoder in self.discriminator.reconstruction.children():
            side = 4
            for layer in decoder:
                side *= 2 if isinstance(layer, nn.Upsample) else 1
                total += (layer.in_channels + layer.out_channels) * side**2 if isinstance(layer, nn.Conv2d) else 0
        return self.batch * total

    def scores(self) -> int:
        """Bytes that scoring one batch keeps, and its coarse rendering where there is one."""
        has_spectral_norms = self.config.discriminator.spectral_norm or self.is_projected
        weights = self.n_threads * _weights(self.discriminator) if has_spectral_norms else 0  # normalised copies
        frozen = self.batch * self._frozen_bytes() * self.size // FLOAT if self.is_projected else 0
        return self.renderings * (self.features() * self.size + frozen) + weights

    def _frozen_bytes(self) -> int:
        """Features of an image in the frozen network, in float32."""
        return PROJECTED_BYTES[self.config.discriminator.frozen_network] * self.config.feature_size**2 // SIZE**2

    def discriminator_step(self) -> int:
        """Bytes held beside the gradients: real and fake scored, and the penalty's forward, gradient and second gradient.

        Layers' weights have copies meanwhile, per thread: second gradients to be added, and in mixed precision converted ones.
        """
        training, features = self.config.training, self.features()
        has_penalty = training.reg_type != "none"
        scored = ((self.renderings + 1) * features + self.reconstruction()) * self.size
        penalty = 2 * features * FLOAT if has_penalty else features * self.size // 2
        if training.reg_type == "r1_r2":  # at the fakes too, of which there are two batches with a fine network
            penalty *= self.renderings + 1
        if self.is_projected:
            copies = 2.0 if has_penalty else 1.0  # of heads, of which one ends before the next begins
            penalty = max(penalty, self.batch * PROJECTED_AT_ONCE)
        else:
            copies = 1.0 if has_penalty else 0.5
        copies *= 1.5 if self.size < FLOAT else 1
        return int(scored + penalty + copies * self.n_threads * _weights(self.discriminator))


def _outputs(layers: Iterable[nn.Module], side: int) -> int:
    """Numbers per image that the convolutions among the layers put out, from maps of this side."""
    total = 0
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            side //= layer.stride[0]
            total += layer.out_channels * side**2
    return total


def _synthesised_pixels(n_convs: int) -> int:
    """Pixels of the maps that so many convolutions of a synthesis put out, together."""
    return sum((START * 2**i) ** 2 for i in range(n_convs))


def _light(backbone: LightBackbone, side: int) -> int:
    """Numbers per image that the light backbone keeps: four maps per convolution (its padded input and what it was padded from,
    its output, that output modulated)."""
    width, narrow = backbone.convs[0].out_channels, backbone.last.in_channels
    kept = 4 * len(backbone.convs) * width * side**2 + narrow * side**2
    for _ in backbone.upsampled_convs:
        side *= 2
        kept += 4 * narrow * side**2
    return kept + (narrow + 3 * 3) * side**2


def _rrdb(network: RRDBNet, side: int) -> int:
    """Numbers per image that RRDBNet keeps: the growing inputs of its dense blocks, and the maps of its two upsamplings."""
    nf, gc = network.conv_first.out_channels, network.body[0].rdb1.conv1.out_channels
    side = math.ceil(side / network.unshuffle)
    a_block = 5 * nf + 14 * gc
    trunk = (3 * len(network.body) * a_block + 4 * nf) * side**2
    return trunk + nf * (2 * (2 * side) ** 2 + 5 * (4 * side) ** 2)


def smallest_edits(config: Config, budget_bytes: int, device_type: str = "cpu") -> tuple[str, ...] | None:
    """The `section.key=value` overrides of least cost with which a step fits into the budget; () where it does already.

    Settings are tried in the order of their cost: number format, then settings that only cost time, then the batch, then
    quality. Each is changed as far as needed, and earlier ones that turn out to be unnecessary are left out. None where
    nothing suffices.
    """

    def needed(edits: tuple[str, ...]) -> int:
        return estimate_step(override(config, edits), device_type).total_bytes

    taken: tuple[str, ...] = ()
    least = needed(taken)
    if least <= budget_bytes:
        return taken
    for key, values in _ladder(config):
        before = taken
        for value in values:
            edits = (*before, f"{key}={as_yaml(value)}")
            try:
                found = needed(edits)
            except ConfigError:  # such as a patch of a size that the discriminator does not have
                continue
            if found >= least:  # such as a width that no kernel has
                continue
            taken, least = edits, found
            if least <= budget_bytes:
                # Leave out earlier ones that are not needed any more
                for earlier in before:
                    fewer = tuple(edit for edit in taken if edit != earlier)
                    taken = fewer if needed(fewer) <= budget_bytes else taken
                return taken
    return None


def _ladder(config: Config) -> Iterator[tuple[str, list[Any]]]:
    """The settings to change, in the order of their cost, each with its values, milder ones first."""
    training, nerf, rays = config.training, config.nerf, config.ray_sampler.rays_per_patch
    if loader_bytes(config):
        yield "training.nworkers", [0]
    if not training.use_amp:
        yield "training.use_amp", [True]
    if training.micro_batch == "auto":  # the same gradient, in the end one image at a time
        doubled = (training.accumulation_steps * 2**i for i in range(1, training.batch_size.bit_length() + 1))
        yield "training.accumulation_steps", [n for n in doubled if n <= training.batch_size]
    else:
        yield "training.micro_batch", _halvings(training.micro_batch, 1)
    held = nerf.checkpoint_rays if nerf.checkpoint_rays not in ("auto", 0) else math.inf
    yield "nerf.checkpoint_rays", [n for n in RAYS_AT_ONCE if n < held]
    if config.unrefined_steps:
        yield "ccsr.unrefined_steps", [0]
    yield "nerf.samples_per_ray", _halvings(nerf.samples_per_ray, SMALLEST_SAMPLES)
    if config.discriminator.has_heads:
        yield "discriminator.architecture", ["graf"]
    if config.ccsr.mode != "none" and config.ccsr.backbone == "rrdb":
        yield "ccsr.backbone", ["light"]
    yield "nerf.netwidth", _halvings(nerf.netwidth, SMALLEST_WIDTH)
    if nerf.importance_samples_per_ray > 0:
        yield "nerf.importance_samples_per_ray", [0]
    if rays // 4 >= FEWEST_RAYS:
        yield "ray_sampler.rays_per_patch", [rays // 4]


def _halvings(value: int, last: int) -> list[int]:
    """Smaller values down to the last, each about half of the one before."""
    return [max(value // 2**i, last) for i in range(1, value.bit_length()) if value // 2 ** (i - 1) > last]
