"""Config keys, such as the width of a network, read from the shapes of weights, for messages where they do not fit a config."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from graf.config import Config, config_to_dict, flat
from graf.config.checks import PATCH_SIZES, SCALE_FACTORS
from graf.foreign.checkpoints import Weights
from graf.models.background import PLACE
from graf.models.fields.triplane import START


@dataclass(frozen=True)
class Finding:
    """The values of a config key that give a tensor's shape, and the tensor's name."""

    values: tuple[Any, ...] | range
    source: str

    def __str__(self) -> str:
        return f"at least {self.values.start}" if isinstance(self.values, range) else " or ".join(map(str, self.values))


BACKGROUND = "background_model.mapping.0.weight"
AT_LEAST_1 = range(1, 2**31)
Findings = dict[str, Finding]


def differences(parts: dict[str, Weights], config: Config) -> Iterator[tuple[str, Any, Finding]]:
    """(key, the config's value, the finding) of every key in which the weights' shapes differ from the config."""
    in_place_of_auto = {"discriminator.low_res_steps": config.low_res_steps, "discriminator.feature_size": config.feature_size}
    values = flat(config_to_dict(config)) | in_place_of_auto
    yield from ((key, values[key], found) for key, found in config_keys_of(parts).items() if values[key] not in found.values)


def config_keys_of(parts: dict[str, Weights]) -> Findings:
    """The config keys, such as nerf.netdepth, that the weights of a generator and a discriminator determine.

    Weights of another design than ours determine fewer keys, never a wrong value.
    """
    generator, discriminator = parts.get("generator_ema", parts.get("generator", {})), parts.get("discriminator", {})
    findings: Findings = {}
    if generator:
        findings |= _field(generator) | _codes(generator) | _background(generator) | _refinement(generator)
        findings |= _encoder(generator)
    return findings | _discriminator(discriminator) if discriminator else findings


def _size(weights: Weights, name: str, dimension: int) -> int:
    """The size of one dimension of a tensor; 0 where it is missing."""
    return weights[name].shape[dimension] if name in weights and weights[name].ndim > dimension else 0


def _numbered(weights: Weights, beginning: str, ndim: int, ending: str = ".weight") -> list[str]:
    """Names of the tensors <beginning><number><ending> of so many dimensions, in the order of their numbers."""
    pattern = re.compile(re.escape(beginning) + r"(\d+)" + re.escape(ending))
    numbers = {name: int(match[1]) for name, x in weights.items() if (match := pattern.fullmatch(name)) and x.ndim == ndim}
    return sorted(numbers, key=numbers.__getitem__)


def _field(generator: Weights) -> Findings:
    """Findings about the field and the fine network; empty for another design."""
    concat, film = _numbered(generator, "field.pts_linears.", 2), _numbered(generator, "field.layers.", 2)
    convs, planes, hidden = _numbered(generator, "field.convs.", 4), "field.to_planes.weight", "field.hidden.weight"
    fine = _numbered(generator, "field_fine.pts_linears.", 2) or _numbered(generator, "field_fine.layers.", 2)
    if layers := concat or film:
        findings = {
            "nerf.conditioning": Finding(("concat" if concat else "film",), layers[0]),
            "nerf.netdepth": Finding((len(layers),), layers[-1]),
            "nerf.netwidth": Finding((len(generator[layers[0]]),), layers[0]),
        }
        if film:
            findings["nerf.multires"] = Finding(((_size(generator, film[0], 1) - 3) // 6,), film[0])
    elif convs and planes in generator and hidden in generator:
        findings = {
            "nerf.conditioning": Finding(("triplane",), convs[0]),
            "nerf.netwidth": Finding((len(generator[hidden]),), hidden),
            "nerf.plane_size": Finding((START * 2 ** (len(convs) - 1),), convs[-1]),
            "nerf.plane_channels": Finding((len(generator[planes]) // 3,), planes),
            "nerf.synthesis_width": Finding((len(generator[convs[0]]),), convs[0]),
        }
    else:
        return {}
    if fine:
        findings["nerf.netdepth_fine"] = Finding((len(fine),), fine[-1])
    if first := fine[:1] or [name for name in ("field_fine.hidden.weight",) if name in generator]:
        findings["nerf.netwidth_fine"] = Finding((len(generator[first[0]]),), first[0])
    samples = Finding(AT_LEAST_1, first[0]) if first else Finding((0,), "no field_fine")
    return findings | {"nerf.importance_samples_per_ray": samples}


def _codes(generator: Weights) -> Findings:
    """Findings about the latents, from the class embedding and mapping networks; one code for both looks like two."""
    findings: Findings = {}
    embedding = "class_embedding.weight"
    if dim := _size(generator, embedding, 1):
        findings["z_dist.dim"] = Finding((dim,), embedding)
    mappings = [_numbered(generator, f"field.{part}_mapping.", 2) for part in ("shape", "appearance")]
    if all(mappings):
        shape, appearance = (_size(generator, names[0], 1) for names in mappings)
        findings["nerf.mapping_depth"] = Finding((len(mappings[0]),), mappings[0][-1])
        one_for_both = (0,) if shape == appearance else ()
        findings.setdefault("z_dist.dim", Finding((shape + appearance, *(shape for _ in one_for_both)), mappings[0][0]))
        findings["z_dist.dim_appearance"] = Finding((appearance, *one_for_both), mappings[1][0])
    return findings


def has_background(generator: Weights) -> bool:
    """Whether a generator's weights have a network that makes backgrounds."""
    return BACKGROUND in generator


def _background(generator: Weights) -> Findings:
    if not has_background(generator):
        return {"data.background_model": Finding(("none",), f"no {BACKGROUND}")}
    return {
        "data.background_model": Finding(("plane",), BACKGROUND),
        "z_dist.dim_background": Finding((_size(generator, BACKGROUND, 1) + PLACE,), BACKGROUND),
    }


def has_encoder(generator: Weights) -> bool:
    """Whether a generator's weights have an encoder of real images."""
    return any(map(is_of_encoder, generator))


def is_of_encoder(name: str) -> bool:
    """Whether a tensor of this name in a generator's weights is the encoder's, which nothing is rendered with."""
    return name.startswith("encoder.")


def finds_cameras(generator: Weights) -> bool:
    """Whether the encoder in a generator's weights finds the cameras of images: their angles have a mean, but no variance."""
    return _size(generator, "encoder.gaussian.bias", 0) < 2 * _size(generator, "encoder.centre", 0)


def _encoder(generator: Weights) -> Findings:
    if has_encoder(generator):  # either key is above 0
        return {"encoder.finds_cameras": Finding((finds_cameras(generator),), "encoder.gaussian.bias")}
    return {f"encoder.{key}": Finding((0,), "no encoder") for key in ("first_steps", "weight")}


def _refinement(generator: Weights) -> Findings:
    """Findings about CCSR; the shapes do not determine which of its two modes trained it."""
    maps, backbone = "refinement.view_codes.maps", "refinement.backbone."
    if maps not in generator or generator[maps].ndim != 5:
        return {"ccsr.mode": Finding(("none",), f"no {maps}")}
    bins, views, channels, size, _ = generator[maps].shape
    keys = {"mode": ("refine", "consistency"), "elevation_bins": (bins,), "num_views": (views,)}
    keys |= {"code_channels": (channels,), "code_size": (size,)}
    findings = {f"ccsr.{key}": Finding(values, maps) for key, values in keys.items()}
    convs, upsampled = (_numbered(generator, f"{backbone}{name}.", 4) for name in ("convs", "upsampled_convs"))
    if blocks := _numbered(generator, f"{backbone}network.body.", 4, ".rdb1.conv1.weight"):
        growth = generator[blocks[0]].shape
        unshuffle = round((_size(generator, f"{backbone}network.conv_first.weight", 1) / 3) ** 0.5) or 1
        keys = {"rrdb.num_blocks": len(blocks), "rrdb.nf": growth[1], "rrdb.gc": growth[0]}
        keys |= {"backbone": "rrdb", "scale_factor": 4 // unshuffle}
        return findings | {f"ccsr.{key}": Finding((value,), blocks[-1]) for key, value in keys.items()}
    narrowed = _size(generator, f"{backbone}narrowing.weight", 0)
    if not (convs and upsampled and narrowed):
        return findings
    scales = tuple(scale for scale in SCALE_FACTORS if scale == 2 ** len(upsampled))
    return findings | {
        "ccsr.backbone": Finding(("light",), convs[0]),
        "ccsr.light.width": Finding((len(generator[convs[0]]),), convs[0]),
        "ccsr.light.depth": Finding((len(convs),), convs[-1]),
        "ccsr.light.width_upsampled": Finding((narrowed,), f"{backbone}narrowing.weight"),
        "ccsr.scale_factor": Finding(scales, upsampled[-1]),
    }


def _discriminator(weights: Weights) -> Findings:
    """Findings about the discriminator; empty for another design than ours or GRAF's."""
    if mixed := {name.removeprefix("graf."): x for name, x in weights.items() if name.startswith("graf.")}:
        findings = {
            key: replace(finding, source=f"graf.{finding.source}" if finding.source in mixed else finding.source)
            for key, finding in _discriminator(mixed).items()
        }
        return findings | {"discriminator.architecture": Finding(("mixed",), "graf.")} | _heads(weights, "projected.")
    embedding, pose, projected = "class_embedding.weight", "pose_embedding.0.weight", "heads.0.mixing"
    condition = "class_and_pose" if pose in weights else "class" if embedding in weights else "none"
    conditioned = {"discriminator.condition": Finding((condition,), pose if pose in weights else embedding)}
    if projected in weights:
        first = "heads.0.main.0.weight_orig"
        alpha = "rgba" if _size(weights, first, 1) > len(weights[projected]) else "ignore"
        keys = {"discriminator.architecture": Finding(("projected",), projected), "data.alpha": Finding((alpha,), first)}
        return keys | conditioned | _heads(weights)
    convs = _numbered(weights, "main.", 4, ".weight") or _numbered(weights, "main.", 4, ".weight_orig")
    if len(convs) - 3 not in range(len(PATCH_SIZES)) or len(weights[convs[-1]]) != 1:
        return {}
    first, last, label_head = convs[0], convs[-1], "class_head.weight"
    channels, side = weights[first].shape[1], PATCH_SIZES[len(convs) - 3]
    low_res = next((name for name in weights if name.startswith("coarse_entry.")), "")
    if not any(name.startswith("reconstruction.") for name in weights):  # else its weight is above 0
        conditioned["discriminator.reconstruction"] = Finding((0,), "no reconstruction")
    rays = tuple((side // scale) ** 2 for scale in (1, *SCALE_FACTORS) if side % scale == 0)  # where CCSR refines fewer
    return conditioned | {
        "discriminator.architecture": Finding(("graf",), first),
        "data.alpha": Finding(("rgba" if channels in (4, 7) else "ignore",), first),
        "discriminator.ndf": Finding((weights[last].shape[1] // 8,), last),
        "discriminator.norm": Finding(("none" if first.rsplit(".", 1)[0] + ".bias" in weights else "instance",), first),
        "discriminator.spectral_norm": Finding((first.endswith("_orig"),), first),
        "discriminator.dual": Finding((channels >= 6,), first),
        "discriminator.low_res_steps": Finding(AT_LEAST_1, low_res) if low_res else Finding((0,), "no coarse_entry"),
        "discriminator.label_loss": Finding(("MCE" if label_head in weights else "none",), label_head),
        "ray_sampler.rays_per_patch": Finding(rays, last),
    }


def _heads(weights: Weights, part: str = "") -> Findings:
    """What the projected heads see: the first one halves maps of 128 pixels three times, and maps of 64 twice."""
    halvings = _numbered(weights, f"{part}heads.0.main.", 4, ".weight_orig")
    sizes = {2: (64,), 3: (128,)}.get(len(halvings))
    return {"discriminator.feature_size": Finding(sizes, halvings[-1])} if sizes else {}
