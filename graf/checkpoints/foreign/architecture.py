"""Infers config keys, such as the width of a network, from the shapes of weights.

Where several values of the keys give the same shapes, those nearest to a given config are taken and said to be guessed: the
width of GRAF's first layer, for one, is that of the encoded position and of the shape code together.
"""

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graf.checkpoints.foreign.recognition import ForeignCheckpoint, Weights
from graf.config import Config, config_from_dict, config_to_dict, flat, graf_config, merge, nested
from graf.config.checks import PATCH_SIZES
from graf.errors import CheckpointError, ConfigError
from graf.models.ccsr import prime_factors
from graf.models.radiance_field import encoding_width
from graf.models.triplane import START

from torch import Tensor

log = logging.getLogger("graf")

SCALE_FACTORS = {1: 2, 2: 4, 3: 8}  # of so many upsampling convolutions, where the config's has another number
MOST_FREQUENCIES = 20


@dataclass(frozen=True)
class Finding:
    """A config key's value, and the tensor that tells it; certain: whether no other value gives that shape."""

    value: Any
    source: str
    certain: bool = True


Findings = dict[str, Finding]


def _dimension(weights: Weights, name: str, dimension: int) -> Finding | None:
    """One dimension of a tensor, where there is such a one."""
    return Finding(weights[name].shape[dimension], name) if name in weights and weights[name].ndim > dimension else None


def _numbered(weights: Weights, beginning: str, ndim: int, ending: str = ".weight") -> list[str]:
    """Names of the tensors <beginning><number><ending> of so many dimensions, in the order of their numbers."""
    pattern = re.compile(re.escape(beginning) + r"(\d+)" + re.escape(ending))
    numbers = {name: int(match[1]) for name, x in weights.items() if (match := pattern.fullmatch(name)) and x.ndim == ndim}
    return sorted(numbers, key=numbers.__getitem__)


def read_architecture(parts: dict[str, Weights], prior: Config) -> Findings:
    """What the weights of a generator and a discriminator say of the config, by its keys such as nerf.netdepth.

    `prior` decides where the shapes leave a choice. Weights of another design than ours say less, never something false.
    """
    generator, discriminator = parts.get("generator_ema", parts.get("generator", {})), parts.get("discriminator", {})
    findings: Findings = {}
    if generator:
        findings |= _refinement(generator, prior)
        dim = findings.get("z_dist.dim") or _dimension(generator, "class_embedding.weight", 1)
        findings |= _field(generator, prior, dim.value if dim else None)
        findings |= _fine_field(generator, prior)
        knows_class = prior.discriminator.condition != "none" or prior.discriminator.label_loss != "none"
        if "class_embedding.weight" in generator and not discriminator and not knows_class:
            findings["discriminator.condition"] = Finding("class", "class_embedding.weight")
    return findings | _discriminator(discriminator, prior, findings) if discriminator else findings


def differences(findings: Findings, config: Config) -> Iterator[tuple[str, Any, Finding]]:
    """(key, the config's value, what was found) of every key in which they differ."""
    values = flat(config_to_dict(config))
    for name, finding in findings.items():
        if values[name] != finding.value:
            yield name, values[name], finding


def infer_config(found: ForeignCheckpoint, path: Path | str) -> Config:
    """A config of the checkpoint's architecture; all else is configs/graf.yaml's for GRAF's field, else configs/default.yaml's.

    Raises CheckpointError where the shapes are of no architecture of ours.
    """
    generator = found.parts.get("generator", {})
    base = "default.yaml" if any(name.startswith(("field.layers.", "field.convs.")) for name in generator) else "graf.yaml"
    prior = Config() if base == "default.yaml" else graf_config()
    findings = read_architecture(found.parts, prior)
    if generator and "nerf.conditioning" not in findings:
        raise CheckpointError(
            f"{path}: its generator is of no architecture that this suite knows; its tensors begin with {next(iter(generator))}"
        )
    raw = config_to_dict(prior)
    for name, finding in findings.items():
        raw = merge(raw, nested(name, finding.value), str(path))
    rays = math.isqrt(raw["ray_sampler"]["rays_per_patch"])
    raw["data"]["imsize"] = max(raw["data"]["imsize"], rays)  # no smaller than the patches that were cut of it
    try:
        config = config_from_dict(raw, str(path))
    except ConfigError as error:
        raise CheckpointError(f"{error} (read off its shapes); name a config with --config") from None
    changed = ", ".join(f"{name} {finding.value}" for name, _, finding in differences(findings, prior))
    log.warning(
        "%s: no config inside or beside it; read off its shapes: %s; cameras and all else as in configs/%s", path, changed, base
    )
    guessed = ", ".join(f"{name} {finding.value}" for name, finding in findings.items() if not finding.certain)
    if guessed:
        log.warning("%s: guessed, as other values give the same shapes: %s; a config says it for certain", path, guessed)
    return config


def _field(generator: Weights, prior: Config, dim: int | None) -> Findings:
    """What the field tells, `dim` being the latents' width where another tensor tells it. Empty for another design."""
    layers = _numbered(generator, "field.pts_linears.", 2) or _numbered(generator, "field.layers.", 2)
    if not layers:
        return _triplane(generator, prior, dim)
    first = generator[layers[0]]
    findings = {
        "nerf.conditioning": Finding("concat" if "pts_linears" in layers[0] else "film", layers[0]),
        "nerf.netdepth": Finding(len(layers), layers[-1]),
        "nerf.netwidth": Finding(len(first), layers[0]),
    }
    split = _concat_widths if "pts_linears" in layers[0] else _film_widths
    return findings | split(generator, first, layers[0], prior, dim)


def _concat_widths(generator: Weights, first: Tensor, source: str, prior: Config, dim: int | None) -> Findings:
    """Frequencies and codes of GRAF's field: two sums of widths, of which the summands nearest to the prior are taken."""
    nerf, latents = prior.nerf, prior.z_dist
    views_source = "field.views_linears.0.weight"
    views = _dimension(generator, views_source, 1)
    views_width = views.value - len(first) if views else 0
    candidates = []
    for multires in range(MOST_FREQUENCIES + 1):
        shape = first.shape[1] - encoding_width(multires)
        for multires_views in (None, *range(MOST_FREQUENCIES + 1)):  # None: no view directions
            appearance = views_width - (0 if multires_views is None else encoding_width(multires_views))
            if shape >= 1 and appearance >= 0 and shape + appearance == (dim or max(2, shape + appearance)):
                candidates.append((multires, multires_views, shape, appearance))
    if not candidates:
        return {}

    def distance(candidate: tuple) -> tuple:
        multires, multires_views, shape, appearance = candidate
        own = (nerf.multires, nerf.multires_views if nerf.use_viewdirs else None, latents.dim, latents.dim_appearance)
        changed = sum(a != b for a, b in zip(own, (multires, multires_views, shape + appearance, appearance), strict=True))
        return changed, shape != appearance, -multires

    multires, multires_views, shape, appearance = min(candidates, key=distance)
    certain = len(candidates) == 1
    findings = {
        "nerf.multires": Finding(multires, source, certain),
        "nerf.use_viewdirs": Finding(multires_views is not None, views_source if views else source, certain),
        "z_dist.dim": Finding(shape + appearance, source, certain),
        "z_dist.dim_appearance": Finding(appearance, views_source if views else source, certain),
    }
    if multires_views is not None:
        findings["nerf.multires_views"] = Finding(multires_views, views_source, certain)
    return findings


def _film_widths(generator: Weights, first: Tensor, source: str, prior: Config, dim: int | None) -> Findings:
    """Frequencies and codes of the modulated field, where no appearance code looks like one as wide as the shape code."""
    findings = {"nerf.multires": Finding((first.shape[1] - 3) // 6, source)}
    if colour := _dimension(generator, "field.colour_layer.weight", 1):
        views = colour.value - len(first)
        findings["nerf.use_viewdirs"] = Finding(views > 0, colour.source)
        if views > 0:
            findings["nerf.multires_views"] = Finding((views - 3) // 6, colour.source)
    return findings | _code_widths(generator, prior, dim)


def _triplane(generator: Weights, prior: Config, dim: int | None) -> Findings:
    """What a field in three planes tells. Empty for another design."""
    convs, planes, hidden = _numbered(generator, "field.convs.", 4), "field.to_planes.weight", "field.hidden.weight"
    if not convs or planes not in generator or hidden not in generator:
        return {}
    findings = {
        "nerf.conditioning": Finding("triplane", convs[0]),
        "nerf.netwidth": Finding(len(generator[hidden]), hidden),
        "nerf.plane_size": Finding(START * 2 ** (len(convs) - 1), convs[-1]),
        "nerf.plane_channels": Finding(len(generator[planes]) // 3, planes),
        "nerf.synthesis_width": Finding(len(generator[convs[0]]), convs[0]),
    }
    return findings | _code_widths(generator, prior, dim)


def _code_widths(generator: Weights, prior: Config, dim: int | None) -> Findings:
    """What the mapping networks of a field tell of the codes."""
    findings: Findings = {}
    shape_mapping = _numbered(generator, "field.shape_mapping.", 2)
    appearance_mapping = _numbered(generator, "field.appearance_mapping.", 2)
    if shape_mapping and appearance_mapping:
        shape, appearance = (generator[names[0]].shape[1] for names in (shape_mapping, appearance_mapping))
        could_be_none = shape == appearance and (dim is None or dim == shape)
        none = could_be_none and (dim == shape or prior.z_dist.dim_appearance == 0)
        appearance = 0 if none else appearance
        certain = not could_be_none or dim is not None
        findings["nerf.mapping_depth"] = Finding(len(shape_mapping), shape_mapping[-1])
        findings["z_dist.dim"] = Finding(shape + appearance, shape_mapping[0], certain)
        findings["z_dist.dim_appearance"] = Finding(appearance, appearance_mapping[0], certain)
    return findings


def _fine_field(generator: Weights, prior: Config) -> Findings:
    """What the fine network tells; of nerf.importance_samples_per_ray only whether it is above 0."""
    names = _numbered(generator, "field_fine.pts_linears.", 2) or _numbered(generator, "field_fine.layers.", 2)
    of_triplane = "field_fine.hidden.weight"
    if not names and of_triplane not in generator:
        return {"nerf.importance_samples_per_ray": Finding(0, "no field_fine")}
    depth = {"nerf.netdepth_fine": Finding(len(names), names[-1])} if names else {}
    names = names or [of_triplane]
    n_samples = prior.nerf.importance_samples_per_ray or prior.nerf.samples_per_ray
    return depth | {
        "nerf.importance_samples_per_ray": Finding(n_samples, names[0], prior.nerf.importance_samples_per_ray > 0),
        "nerf.netwidth_fine": Finding(len(generator[names[0]]), names[0]),
    }


def _refinement(generator: Weights, prior: Config) -> Findings:
    maps = "refinement.view_codes.maps"
    if maps not in generator or generator[maps].ndim != 5:
        return {"ccsr.mode": Finding("none", f"no {maps}")}
    bins, views, channels, size, _ = generator[maps].shape
    findings = {
        "ccsr.mode": Finding("consistency" if prior.ccsr.mode == "consistency" else "refine", maps, certain=False),
        "ccsr.elevation_bins": Finding(bins, maps),
        "ccsr.num_views": Finding(views, maps),
        "ccsr.code_channels": Finding(channels, maps),
        "ccsr.code_size": Finding(size, maps),
    }
    backbone = "refinement.backbone."
    if blocks := _numbered(generator, f"{backbone}network.body.", 4, ".rdb1.conv1.weight"):
        first, growth = f"{backbone}network.conv_first.weight", generator[blocks[0]]
        unshuffle = round((generator[first].shape[1] / 3) ** 0.5) if first in generator else 1
        told = {"rrdb.num_blocks": len(blocks), "rrdb.nf": growth.shape[1], "rrdb.gc": growth.shape[0]}
        told |= {"backbone": "rrdb", "scale_factor": 4 // unshuffle}
        findings |= {f"ccsr.{key}": Finding(value, blocks[-1]) for key, value in told.items()}
        latent = _dimension(generator, f"{backbone}latent_shift.weight", 1)
    else:
        findings |= _light_backbone(generator, backbone, prior)
        latent = _dimension(generator, f"{backbone}modulation.weight", 1)
    return findings | ({"z_dist.dim": latent} if latent else {})


def _light_backbone(generator: Weights, backbone: str, prior: Config) -> Findings:
    convs = _numbered(generator, f"{backbone}convs.", 4)
    narrowing = _dimension(generator, f"{backbone}narrowing.weight", 0)
    upsampled = _numbered(generator, f"{backbone}upsampled_convs.", 4)
    if not (convs and narrowing and upsampled):
        return {}
    scale = prior.ccsr.scale_factor
    if len(prime_factors(scale)) != len(upsampled):
        scale = SCALE_FACTORS.get(len(upsampled), scale)
    return {
        "ccsr.backbone": Finding("light", convs[0]),
        "ccsr.light.width": Finding(len(generator[convs[0]]), convs[0]),
        "ccsr.light.depth": Finding(len(convs), convs[-1]),
        "ccsr.light.width_upsampled": narrowing,
        "ccsr.scale_factor": Finding(scale, upsampled[-1], len(upsampled) == 3),
    }


def _discriminator(weights: Weights, prior: Config, findings: Findings) -> Findings:
    """What a discriminator tells; of the rays of a patch discriminator's patches nothing certain where they may be refined."""
    embedding, pose, projected = "class_embedding.weight", "pose_embedding.0.weight", "heads.0.mixing"
    condition = "class_and_pose" if pose in weights else "class" if embedding in weights else "none"
    conditioned = {"discriminator.condition": Finding(condition, pose if pose in weights else embedding)}
    if projected in weights:
        first = "heads.0.main.0.weight_orig"
        judges = first in weights and weights[first].shape[1] > len(weights[projected])
        alpha = Finding("judge" if judges else "ignore", first)
        return {"discriminator.architecture": Finding("projected", projected), "data.alpha": alpha} | conditioned
    convs = _numbered(weights, "main.", 4, ".weight") or _numbered(weights, "main.", 4, ".weight_orig")
    if len(convs) - 3 not in range(len(PATCH_SIZES)):
        return {}
    first, last = convs[0], convs[-1]
    mode = findings["ccsr.mode"].value if "ccsr.mode" in findings else prior.ccsr.mode
    channels = weights[first].shape[1]
    dual = mode != "none" and channels >= 6
    mode = "refine" if dual else mode
    scale = findings["ccsr.scale_factor"].value if "ccsr.scale_factor" in findings else prior.ccsr.scale_factor
    side = PATCH_SIZES[len(convs) - 3] // (scale if mode == "refine" else 1)  # rays
    label_head = "class_head.weight"
    coarse = next((name for name in weights if name.startswith("coarse_entry.")), "")
    n_coarse = prior.discriminator.low_res_steps or Config().discriminator.low_res_steps
    told = conditioned | {
        "discriminator.architecture": Finding("graf", first),
        "data.alpha": Finding("judge" if channels in (4, 7) else "ignore", first),
        "discriminator.ndf": Finding(weights[last].shape[1] // 8, last),
        "discriminator.norm": Finding("none" if first.rsplit(".", 1)[0] + ".bias" in weights else "instance", first),
        "discriminator.spectral_norm": Finding(first.endswith("_orig"), first),
        "discriminator.dual": Finding(dual, first),
        "discriminator.low_res_steps": Finding(n_coarse, coarse, certain=False) if coarse else Finding(0, "no coarse_entry"),
        "discriminator.label_loss": Finding("MCE" if label_head in weights else "none", label_head),
        "ray_sampler.rays_per_patch": Finding(side**2, last, mode == "none" and "ccsr.mode" in findings),
    }
    return told | ({"ccsr.mode": Finding(mode, first)} if dual else {})
