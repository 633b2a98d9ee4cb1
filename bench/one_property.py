"""One property of images at a time, of generated ones and of photographs alike: outlines, opacity, surfaces, colours.

Everything is at the field's resolution, so that CCSR and the number of rays have no part in it. Distances of different
properties are not of one scale: a share of the whole is not to be read off them.

Legend: N images, h rays along each side of a view.
"""

import dataclasses

from check_metrics import Part
from graf.config import Config
from graf.data.car_shapes import make_car
from graf.data.raycast import AMBIENT, DIFFUSE, LIGHT
from graf.metrics.consistency import stages
from graf.metrics.shapes import OPAQUE, Surfaces, exact_surfaces, field_rays, surfaces
from graf.models.generator import Generator, Rendering

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

SOLID = 0.9  # opacity from which a pixel has the object's own colour
QUANTILES = 256


@dataclasses.dataclass(frozen=True)
class Looks:
    """images (N, 3, h, h) in [-1, 1] as the field would render them; opacity (N, 1, h, h) in [0, 1] and the surface that rays
    meet, each None where it is not known."""

    images: Tensor
    opacity: Tensor | None
    surface: Surfaces | None


class Pictures(Dataset):
    """Images (N, 3, H, W) in [-1, 1] as a data set to be measured against."""

    fingerprint = "pictures"  # distances are cached per call

    def __init__(self, images: Tensor):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": self.images[index]}


def generated_looks(rendering: Rendering, pose_c2w: Tensor, config: Config) -> Looks:
    """Looks of the field's renderings from cameras (N, 3, 4)."""
    view = stages(rendering, pose_c2w)["nerf"]
    opaque, depth = (values.flatten(1) for values in (view.opacity > OPAQUE, view.depth))
    surface = surfaces(opaque, depth, field_rays(pose_c2w, view.depth.shape[-1], config))
    return Looks(view.images, view.opacity, surface)


def photographed_looks(part: Part, generator: Generator) -> Looks:
    """Photographs as the field could render them at best. Toy cars alone have a known surface."""
    config, projection = generator.config, generator.projection
    dataset, indices = part.dataset, part.indices
    downsample = projection.downsample if projection else torch.nn.Identity()
    alphas, surface = [dataset.opacity(i, config.data) for i in indices], None
    opacity = None if any(alpha is None for alpha in alphas) else downsample(torch.stack(alphas)[:, None])
    if config.data.type == "toy_cars" and dataset.posed:
        cars, side = [make_car(config.data.seed, i) for i in indices], config.data.imsize // config.rendered_scale
        surface = exact_surfaces(cars, dataset.labels.pose_c2w[torch.tensor(indices)], side, config)
    return Looks(downsample(part.images), opacity, surface)


def properties(looks: Looks) -> dict[str, Tensor]:
    """Pictures (N, 3, h, h) in [-1, 1] by the property that they show, of those that are known."""
    found = {"all of them: the field's rendering": looks.images}
    if looks.opacity is not None:
        found["outlines: opacity above one half, in black and white"] = as_white(looks.opacity > OPAQUE)
        found["edges: opacity as it is"] = as_white(looks.opacity)
    if looks.surface is not None:
        found["faces: surfaces in one grey, lit from one side"] = relief(looks.surface)
    return found


def as_white(opacity: Tensor) -> Tensor:
    """White objects on black (N, 3, h, h) of opacity (N, 1, h, h)."""
    return (2 * opacity.float() - 1).expand(-1, 3, -1, -1)


def relief(surface: Surfaces) -> Tensor:
    """Grey objects (N, 3, h, h) on white, lit as toy cars are; black where a neighbour of a point is not on the object.

    Normals are those of the plane through the four neighbours of a point.
    """
    opaque, points = surface
    right, left = points.roll(-1, 2), points.roll(1, 2)
    below, above = points.roll(-1, 1), points.roll(1, 1)
    normals = F.normalize(torch.linalg.cross(right - left, above - below), dim=-1)  # towards the camera
    shade = AMBIENT + DIFFUSE * (normals @ normals.new_tensor(LIGHT)).clamp_min(0)  # (N, h, h)
    inside = opaque & opaque.roll(1, 1) & opaque.roll(-1, 1) & opaque.roll(1, 2) & opaque.roll(-1, 2)
    grey = torch.where(opaque, torch.where(inside, shade.clamp(0, 1), 0.0), 1.0)
    return (2 * grey - 1)[:, None].expand(-1, 3, -1, -1)


def recoloured(photographed: Looks, generated: Looks) -> Tensor:
    """Photographs (N, 3, h, h) in [-1, 1] whose objects' reds, greens and blues are distributed as those of generated objects,
    each by a rising curve; the share of a pixel that the background has stays as it is."""
    quantiles, mapped = np.linspace(0, 1, QUANTILES), []
    for channel in range(3):
        ours, theirs = (np.quantile(object_values(looks, channel), quantiles) for looks in (photographed, generated))
        values = photographed.images[:, channel].numpy()
        mapped.append(torch.from_numpy(np.interp(values, ours, theirs)).to(photographed.images))
    return torch.lerp(photographed.images, torch.stack(mapped, dim=1), photographed.opacity)


def object_values(looks: Looks, channel: int) -> np.ndarray:
    return looks.images[:, channel][looks.opacity[:, 0] >= SOLID].numpy()
