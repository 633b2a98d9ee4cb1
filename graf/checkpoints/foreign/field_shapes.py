"""What the shapes of a radiance field's weights say of the config."""

import re
from dataclasses import dataclass
from typing import Any

from graf.checkpoints.foreign.recognition import Weights
from graf.config import Config
from graf.models.radiance_field import encoding_width

from torch import Tensor

MOST_FREQUENCIES = 20


@dataclass(frozen=True)
class Finding:
    """A config key's value, and the tensor that tells it; certain: whether no other value gives that shape."""

    value: Any
    source: str
    certain: bool = True


Findings = dict[str, Finding]


def dimension_of(weights: Weights, name: str, dimension: int) -> Finding | None:
    """One dimension of a tensor, where there is such a one."""
    return Finding(weights[name].shape[dimension], name) if name in weights and weights[name].ndim > dimension else None


def numbered(weights: Weights, beginning: str, ndim: int, ending: str = ".weight") -> list[str]:
    """Names of the tensors <beginning><number><ending> of so many dimensions, in the order of their numbers."""
    pattern = re.compile(re.escape(beginning) + r"(\d+)" + re.escape(ending))
    numbers = {name: int(match[1]) for name, x in weights.items() if (match := pattern.fullmatch(name)) and x.ndim == ndim}
    return sorted(numbers, key=numbers.__getitem__)


def field_architecture(generator: Weights, prior: Config, dim: int | None) -> Findings:
    """What the field tells, `dim` being the latents' width where another tensor tells it. Empty for another design."""
    layers = numbered(generator, "field.pts_linears.", 2) or numbered(generator, "field.layers.", 2)
    if not layers:
        return {}
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
    views = dimension_of(generator, views_source, 1)
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
    if colour := dimension_of(generator, "field.colour_layer.weight", 1):
        views = colour.value - len(first)
        findings["nerf.use_viewdirs"] = Finding(views > 0, colour.source)
        if views > 0:
            findings["nerf.multires_views"] = Finding((views - 3) // 6, colour.source)
    shape_mapping = numbered(generator, "field.shape_mapping.", 2)
    appearance_mapping = numbered(generator, "field.appearance_mapping.", 2)
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


def fine_field_architecture(generator: Weights, prior: Config) -> Findings:
    """What the fine network tells; of nerf.importance_samples_per_ray only whether it is above 0."""
    names = numbered(generator, "field_fine.pts_linears.", 2) or numbered(generator, "field_fine.layers.", 2)
    if not names:
        return {"nerf.importance_samples_per_ray": Finding(0, "no field_fine")}
    n_samples = prior.nerf.importance_samples_per_ray or prior.nerf.samples_per_ray
    return {
        "nerf.importance_samples_per_ray": Finding(n_samples, names[0], prior.nerf.importance_samples_per_ray > 0),
        "nerf.netdepth_fine": Finding(len(names), names[-1]),
        "nerf.netwidth_fine": Finding(len(generator[names[0]]), names[0]),
    }
