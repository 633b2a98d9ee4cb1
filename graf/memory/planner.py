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
import math
from collections.abc import Iterable, Iterator
from typing import Any

from graf.config import Config
from graf.config.checks import FEWEST_RAYS, check_config
from graf.config.reading import as_yaml
from graf.errors import ConfigError
from graf.models.ccsr import LightBackbone
from graf.models.generator import Generator
from graf.models.projected import STAGES, ProjectedDiscriminator, build_discriminator
from graf.models.radiance_field import encoding_width
from graf.models.rrdb import RRDBNet
from graf.models.triplane import START
from graf.pieces import rays_of_a_piece
from graf.runtime.limits import MB
from graf.runtime.precision import AmpSettings

import psutil
import torch
from torch import nn

FLOAT = 4  # bytes
LOADED_BYTES = 400 * MB, 800 * MB  # of Python with its libraries, at least and at most: by PyTorch's version and build
FIRST_STEP_BYTES = 64 * MB  # what they load when they are first used
GRAIN = 64 * MB  # of what was measured: a resumed run is to plan as it did before
GAPS = {"cpu": 0.3, "cuda": 0.15}  # of tensors' bytes: freed blocks that the allocator keeps and cannot use again at once
COMPOSITING = 18  # floats per sample between the field and the pixel: points, depths, raw and activated outputs, weights
COMPOSITING_LEFT = 5  # of them while the field's own layers are gone through backwards
PERCEPTION_BYTES = 23 * MB  # features of an image in EfficientNet-Lite0, in float32
PROJECTED_BYTES = 19 * MB  # the same of a projected discriminator, in which it is deeper and has no normalisations
PROJECTED_AT_ONCE = 4 * MB  # of them where none is kept for a backward pass
PERCEPTION_WEIGHTS = 18 * MB
MAPS_OF_SYNTHESIS = 5  # that each convolution of a triplane keeps: its input, its output, normalised, scaled, activated
SMALLEST_SAMPLES, SMALLEST_WIDTH = 8, 16  # below these nothing recognisable is learned
RAYS_AT_ONCE = (16384, 4096, 1024)


def process_bytes(held_bytes: int) -> int:
    """Memory of a process that trains on the CPU, but its tensors, by what it holds when it has loaded its libraries: more than
    those take, such as a notebook's own arrays, is not counted."""
    loaded = min(max(held_bytes, LOADED_BYTES[0]), LOADED_BYTES[1])
    return math.ceil((loaded + FIRST_STEP_BYTES) / GRAIN) * GRAIN


PROCESS_BYTES = {"cpu": process_bytes(psutil.Process().memory_info().rss), "cuda": 500 * MB}  # of CUDA, a GPU's context


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes by part at the moment of a step when most is held (`moment`), and what is no tensor: gaps that the allocator
    leaves between them, and the process itself with its libraries."""

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


def estimate_step(config: Config, device_type: str = "cpu", n_classes: int = 1, n_elevations: int = 1) -> Estimate:
    """The peak memory of a training step of the config, on `cpu` (the host's) or `cuda` (the card's)."""
    with torch.device("meta"):  # shapes alone
        generator = Generator(config, n_classes)
        discriminator = build_discriminator(config, n_classes, n_elevations)
    held = _persistent(config, generator, discriminator)
    amp = AmpSettings.choose(config.training, torch.device(device_type))
    size = amp.dtype.itemsize  # bytes of a number that a network keeps
    batch = config.images_at_once
    drawn = {"images": _images(config, batch), "noise of rays": _noise(config)}
    field_kept, field_backward = _field(config, batch, size)
    n_threads = min(torch.get_num_threads(), batch) if device_type == "cpu" else 1  # that share the images out
    scores = _scores(config, discriminator, batch, size, n_threads)
    part_g, part_d = (_gradients_of_parts(config, network, n_threads) for network in (generator, discriminator))
    moments = {
        "discriminator step": {
            "gradients of parts": part_d,
            "discriminator": _discriminator_step(config, discriminator, batch, size, n_threads),
        },
        "generator step, backward pass begins": {
            "rays and field": field_kept,
            "ccsr": _refinement(config, generator, batch, size),
            "discriminator": scores,
        },
        "generator step, backward pass in the field": {"gradients of parts": part_g, "rays and field": field_backward},
    }
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = held | drawn | moments[moment]
    return Estimate(moment, parts, int(GAPS[device_type] * sum(parts.values())), PROCESS_BYTES[device_type])


def _weights(network: nn.Module, learning: bool = False) -> int:
    return FLOAT * sum(p.numel() for p in network.parameters() if p.requires_grad or not learning)


def _persistent(config: Config, generator: nn.Module, discriminator: nn.Module) -> dict[str, int]:
    """What is held from step to step. Gradients are among it: they live until the next step's take their place."""
    learning = _weights(generator, learning=True) + _weights(discriminator, learning=True)
    perception = PERCEPTION_WEIGHTS * ((config.ccsr.perceptual_weight > 0) + _is_projected(config))
    return {
        "weights": _weights(generator) + _weights(discriminator) + perception,
        "gradients": learning,
        "optimizers": learning * (2 if config.training.optimizer == "adam" else 1),
        "moving average": _weights(generator),
    }


def _gradients_of_parts(config: Config, network: nn.Module, n_threads: int) -> int:
    """Bytes of per-thread gradients awaiting summation."""
    at_once = config.images_at_once == config.training.batch_size and n_threads == 1
    return 0 if at_once else n_threads * _weights(network, learning=True)


def _images(config: Config, batch: int) -> int:
    """The photographs of a step, and patches: their grids (2 channels, twice), real and generated ones and both joined."""
    channels = config.data.channels
    photographs = channels * config.training.batch_size * config.data.imsize**2
    return FLOAT * (photographs + (4 + 3 * channels) * batch * config.patch_size**2)


def _noise(config: Config) -> int:
    """What chance decides of samples, drawn for all images of a step at once (jitter, and noise of densities)."""
    nerf, rays = config.nerf, config.training.batch_size * config.ray_sampler.rays_per_patch
    coarse, fine = nerf.samples_per_ray, nerf.importance_samples_per_ray
    jittered = coarse + fine if nerf.perturb else 0
    disturbed = (coarse + (coarse + fine if fine else 0)) if nerf.raw_noise_std > 0 else 0
    return FLOAT * rays * (jittered + disturbed)


def _field(config: Config, batch: int, size: int) -> tuple[int, int]:
    """Bytes that rendering holds for the backward pass, and the most while that pass is in the field.

    It goes through some rays at a time. The others' activations wait, unless nerf.checkpoint_rays has them computed again.
    Where density is a ReLU's, samples without it keep nothing; as their number is not known, all are taken to have some.
    """
    nerf, rays = config.nerf, batch * config.ray_sampler.rays_per_patch
    others_wait = nerf.checkpoint_rays in ("auto", 0) or nerf.checkpoint_rays >= rays
    at_once = min(rays, rays_of_a_piece(nerf)) if others_wait else nerf.checkpoint_rays
    coarse = _field_a_sample(config, nerf.netdepth, nerf.netwidth, size)
    kept, peak = (nerf.samples_per_ray * bytes_a_sample for bytes_a_sample in coarse)
    if nerf.importance_samples_per_ray > 0:
        fine = _field_a_sample(config, nerf.netdepth_fine, nerf.netwidth_fine, size)
        n_samples = nerf.samples_per_ray + nerf.importance_samples_per_ray
        kept, peak = kept + n_samples * fine[0], max(peak, kept + n_samples * fine[1])
    weights, planes = _modulated_weights(config, batch, size), _planes(config, batch, size)
    if not others_wait:
        return planes, peak * at_once + weights + planes
    weights = weights * math.ceil(rays / at_once) + planes  # a copy per piece
    return kept * rays + weights, kept * (rays - at_once) + peak * at_once + weights


def _modulated_weights(config: Config, batch: int, size: int) -> int:
    """Bytes of the copies of the field's weights that each image has: of all layers of a film, of one of a triplane."""
    nerf = config.nerf
    depths = (0, 0) if nerf.conditioning == "triplane" else (nerf.netdepth, nerf.netdepth_fine)
    numbers = (depths[0] + 1) * nerf.netwidth**2
    if nerf.importance_samples_per_ray > 0:
        numbers += (depths[1] + 1) * nerf.netwidth_fine**2
    return 0 if nerf.conditioning == "concat" else batch * numbers * size


def _planes(config: Config, batch: int, size: int) -> int:
    """Bytes that the synthesis of each image's planes keeps, and that the planes and their gradients take."""
    nerf = config.nerf
    if nerf.conditioning != "triplane":
        return 0
    pixels = sum((START * 2**i) ** 2 for i in range((nerf.plane_size // START).bit_length()))
    planes = 2 * 3 * nerf.plane_channels * nerf.plane_size**2 * FLOAT
    fields = 2 if nerf.importance_samples_per_ray > 0 else 1
    return fields * batch * (MAPS_OF_SYNTHESIS * nerf.synthesis_width * pixels * size + planes)


def _field_a_sample(config: Config, depth: int, width: int, size: int) -> tuple[int, int]:
    """As `_field`, of one sample. A layer keeps its activated output, where that is not computed again; some more are in flight
    where the density's and the colour's gradients meet."""
    nerf = config.nerf
    inputs, layers, in_flight = 0, max(1, depth - 1), 4
    if nerf.conditioning == "triplane":
        layers, in_flight = 2, 2
        inputs = (
            3 * nerf.plane_channels * size + 3 * 2 * FLOAT
        )  # what the planes have at the sample, and where it was looked up
    if nerf.conditioning == "film":
        layers, in_flight = depth + 1, 2
        inputs = encoding_width(nerf.multires) * size
        if nerf.use_viewdirs:  # joined to each sample's features
            inputs += (width + encoding_width(nerf.multires_views)) * size
    kept = inputs + layers * width * size
    return int(kept + COMPOSITING * FLOAT), int(kept + in_flight * width * size + COMPOSITING_LEFT * FLOAT)


def _refinement(config: Config, generator: Generator, batch: int, size: int) -> int:
    """Bytes that CCSR keeps for the backward pass: of the backbone, and of the perceptual loss where there is one."""
    if generator.refinement is None:
        return 0
    side = config.patch_size // config.ccsr.scale_factor
    backbone = generator.refinement.backbone
    of_backbone = _light if isinstance(backbone, LightBackbone) else _rrdb
    network = backbone if isinstance(backbone, LightBackbone) else backbone.network
    kept = of_backbone(network, side) * batch * size
    if config.ccsr.mode == "refine":  # the coarse rendering is refined too, and photographs are restored
        kept *= 1 + (config.nerf.importance_samples_per_ray > 0) + config.restores_photographs
    if config.judges_restored:  # the coarse rendering is restored too, and the fine one once more without the field
        kept *= 1 + (config.nerf.importance_samples_per_ray > 0) + (config.ccsr.detach == "nerf")
    if config.ccsr.mode == "consistency" and config.ccsr.perceptual_weight > 0:
        kept += 2 * batch * PERCEPTION_BYTES * size // FLOAT
    return kept


def _light(backbone: LightBackbone, side: int) -> int:
    """Numbers per image that the light backbone keeps: four maps per convolution (its padded input and what it was padded from,
    its output, that output modulated)."""
    width, narrow = backbone.convs[0].out_channels, backbone.last.in_channels
    kept = 4 * len(backbone.convs) * width * side**2 + narrow * side**2
    for factor in backbone.factors:
        side *= factor
        kept += 4 * narrow * side**2
    return kept + (narrow + 3 * 3) * side**2


def _rrdb(network: RRDBNet, side: int) -> int:
    """Numbers an image that RRDBNet keeps: the growing inputs of its dense blocks, and the maps of its two upsamplings."""
    nf, gc = network.conv_first.out_channels, network.body[0].rdb1.conv1.out_channels
    side = math.ceil(side / network.unshuffle)
    a_block = 5 * nf + 14 * gc
    trunk = (3 * len(network.body) * a_block + 4 * nf) * side**2
    return trunk + nf * (2 * (2 * side) ** 2 + 5 * (4 * side) ** 2)


def _is_projected(config: Config) -> bool:
    return config.discriminator.architecture == "projected"


def _features_of_heads(discriminator: ProjectedDiscriminator, batch: int) -> int:
    """Numbers that scoring a batch of images keeps: what the heads judge, and what their convolutions put out, which the
    activations keep too."""
    total = 0
    for stage, head in zip(STAGES, discriminator.heads, strict=True):
        side = stage.side
        total += head.main[0].in_channels * side**2
        for conv in head.main[::2]:
            side //= conv.stride[0]
            total += 2 * conv.out_channels * side**2
    return batch * total


def _features(config: Config, discriminator: nn.Module, batch: int) -> int:
    """Numbers that scoring a batch of images keeps: what convolutions put out, twice where a normalisation keeps its input."""
    if _is_projected(config):
        return _features_of_heads(discriminator, batch)
    total, side = 0, config.patch_size
    for layer in discriminator.main[:-1]:
        if isinstance(layer, nn.Conv2d):
            side //= layer.stride[0]
            total += layer.out_channels * side**2
    return batch * total * (2 if config.discriminator.norm == "instance" else 1)


def _scores(config: Config, discriminator: nn.Module, batch: int, size: int, n_threads: int) -> int:
    """Bytes that scoring one batch keeps, and its coarse rendering where there is one."""
    judged = 2 if config.nerf.importance_samples_per_ray > 0 else 1
    weights = n_threads * _weights(discriminator) if _has_spectral_norms(config) else 0  # normalised copies
    frozen = batch * PROJECTED_BYTES * size // FLOAT if _is_projected(config) else 0
    return judged * (_features(config, discriminator, batch) * size + frozen) + weights


def _has_spectral_norms(config: Config) -> bool:
    return config.discriminator.spectral_norm or _is_projected(config)


def _discriminator_step(config: Config, discriminator: nn.Module, batch: int, size: int, n_threads: int) -> int:
    """Bytes beside the gradients: real and fake scored, and the penalty's forward, gradient and gradient of the gradient.

    Layers' weights have copies meanwhile, of each thread: second gradients to be added, and normalised ones for each scoring.
    """
    weights = n_threads * _weights(discriminator)
    features, has_penalty = _features(config, discriminator, batch), config.training.reg_type != "none"
    scored = (3 if config.nerf.importance_samples_per_ray > 0 else 2) * features * size
    penalty = 2 * features * FLOAT if has_penalty else features * size // 2
    if config.training.reg_type == "r1_r2":  # at the fakes too, of which there are two batches with a fine network
        penalty *= 3 if config.nerf.importance_samples_per_ray > 0 else 2
    if _is_projected(config):
        copies = 3.0 if has_penalty else 1.5  # of heads, of which one ends before the next begins
        penalty = max(penalty, batch * PROJECTED_AT_ONCE)
    else:
        copies = (1.0 if has_penalty else 0.5) + (0.5 if size < FLOAT else 0)
        copies += 3 * config.discriminator.spectral_norm
    return int(scored + penalty + copies * weights)


@dataclasses.dataclass(frozen=True)
class Edit:
    """Another value of one key."""

    section: str
    key: str
    value: Any

    def applied(self, config: Config) -> Config:
        section = dataclasses.replace(getattr(config, self.section), **{self.key: self.value})
        return dataclasses.replace(config, **{self.section: section})

    def __str__(self) -> str:
        return f"{self.section}.{self.key}={as_yaml(self.value)}"


def smallest_edits(config: Config, budget_bytes: int, device_type: str = "cpu") -> tuple[str, ...] | None:
    """The `section.key=value` overrides of least cost with which a step fits into the budget; () where it does already.

    Settings are tried in the order of their cost: number format, then settings that only cost time, then the batch, then
    quality. Each is changed as far as needed, and earlier ones that turn out to be unnecessary are left out. None where
    nothing suffices.
    """

    def enough(edits: tuple[Edit, ...]) -> bool:
        edited = config
        for edit in edits:
            edited = edit.applied(edited)
        if edits:
            check_config(edited, ", ".join(map(str, edits)))
        return estimate_step(edited, device_type).total_bytes <= budget_bytes

    # Take edits until a step fits
    taken: tuple[Edit, ...] = ()
    if enough(taken):
        return ()
    for steps in _ladders(config):
        before = taken
        for edit in steps:
            try:
                ends = enough((*before, edit))
            except ConfigError:  # such as a patch of a size that the discriminator does not have
                continue
            taken = (*before, edit)
            if ends:
                # Leave out earlier ones that are not needed any more
                for earlier in before:
                    fewer = tuple(other for other in taken if other != earlier)
                    taken = fewer if enough(fewer) else taken
                return tuple(map(str, taken))
    return None


def _ladders(config: Config) -> Iterator[list[Edit]]:
    """For each setting its edits, milder ones first."""
    training, nerf, rays = config.training, config.nerf, config.ray_sampler.rays_per_patch

    if not training.use_amp:
        yield _edits("training.use_amp", [True])
    if training.micro_batch == "auto":  # the same gradient, in the end one image at a time
        yield _edits("training.accumulation_steps", _doublings(2 * training.accumulation_steps, training.batch_size))
    else:
        yield _edits("training.micro_batch", _halvings(training.micro_batch, 1))
    held = nerf.checkpoint_rays if nerf.checkpoint_rays not in ("auto", 0) else math.inf
    yield _edits("nerf.checkpoint_rays", (n for n in RAYS_AT_ONCE if n < held))
    yield _edits("nerf.samples_per_ray", _halvings(nerf.samples_per_ray, SMALLEST_SAMPLES))
    if config.ccsr.mode != "none" and config.ccsr.backbone == "rrdb":
        yield _edits("ccsr.backbone", ["light"])
    yield _edits("nerf.netwidth", _halvings(nerf.netwidth, SMALLEST_WIDTH))
    if nerf.importance_samples_per_ray > 0:
        yield _edits("nerf.importance_samples_per_ray", [0])
    if rays // 4 >= FEWEST_RAYS:
        yield _edits("ray_sampler.rays_per_patch", [rays // 4])


def _edits(key: str, values: Iterable[Any]) -> list[Edit]:
    return [Edit(*key.split("."), value) for value in values]


def _doublings(first: int, last: int) -> list[int]:
    return [first * 2**i for i in range(last.bit_length()) if first * 2**i <= last]


def _halvings(value: int, last: int) -> list[int]:
    """Smaller values down to the last, each about half of the one before."""
    return [max(value // 2**i, last) for i in range(1, value.bit_length()) if value // 2 ** (i - 1) > last]
