"""Many views of one object: its styles are computed once, and samples that cannot be seen are left out.

A grid over data.box bounds the object's density in each cell. Where even the upper bound is nothing, space is empty (Mueller et
al., Instant Neural Graphics Primitives, 2022, section 5.3); what the lower bounds hide is behind something opaque. Bounds from
points of a grid are no proof, so the first view is also rendered exactly, and so are all others where the two differ.

Legend: B images, R rays per image, S samples per ray, N points, G points of the grid along a side (x, y, z).
"""

import logging
import math
from typing import Any

from graf.camera import Labels
from graf.config import NerfConfig
from graf.models.generator import Generator, Rendering
from graf.private_torch import shallow_copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

log = logging.getLogger("graf")

LEFT_OUT = 1 / 510  # opacity of a ray, at most, that is not computed: half a step of a file's 8 bits
TOLERANCE = 2 / 255  # of colours and opacity in [0, 1]
EVALUATED_SHARE = 1 / 4  # of a ray's samples, by which the rays at a time are chosen
WORTH = 4  # samples per point of the grid that pay for it
FEWEST_VIEWS = 4  # that pay for the first one's exact rendering
MOST_POINTS = 2**19  # of a grid; a finer one is not made
POINTS_AT_ONCE = 2**17


class ObjectRenderer:
    """Renders one object, of latents (1, Z) and class_index (1,), from many cameras.

    The images are those of `Generator.render`. With `fast`, samples that cannot be seen are left out where a grid can tell
    which: in a data.box, of a field without very fine waves. Images are within 2 / 255 of the exact ones in the first view,
    which is rendered both ways; where they are not, this view and all others are rendered exactly. Products stay in 32 bits:
    in bfloat16 edges move by up to 7 / 255 with fine position encodings.
    """

    def __init__(self, generator: Generator, latents: Tensor, class_index: Tensor, fast: bool):
        self.generator, self.latents, self.class_index = generator, latents, class_index
        self._fast = only_what_is_seen(generator, latents, class_index) if fast and has_grid(generator) else None
        self._compared = False

    def render(self, pose_c2w: Tensor, resolution: int | None = None) -> Rendering:
        """The object from cameras (V, 3, 4), as Generator.render; on the latents' device."""
        if self._fast is None:
            return self._render(self.generator, pose_c2w, resolution)
        found = self._render(self._fast, pose_c2w, resolution)
        if not self._compared:
            exact, self._compared = self._render(self.generator, pose_c2w[:1], resolution), True
            if (difference := _largest_difference(found, exact)) > TOLERANCE:
                log.info("fast rendering differs by %.0f / 255 from the exact one: rendering exactly", 255 * difference)
                self._fast = None
                return self.render(pose_c2w, resolution)
        return found

    def _render(self, generator: Generator, pose_c2w: Tensor, resolution: int | None) -> Rendering:
        n = len(pose_c2w)
        return generator.render(self.latents.expand(n, -1), pose_c2w, resolution, self.class_index.expand(n))


def _largest_difference(found: Rendering, exact: Rendering) -> float:
    """The largest difference of a pixel's colours or opacity, in [0, 1], between the first views of two renderings."""
    colours = (found.images[0].clamp(-1, 1) - exact.images[0].clamp(-1, 1)).abs().max() / 2
    return max(colours.item(), (found.opacity[0] - exact.opacity[0]).abs().max().item())


def has_grid(generator: Generator) -> bool:
    """Whether density can be bounded by a grid of points that are near enough to each other."""
    return generator.box is not None and math.prod(grid_size(generator.box, generator.config.nerf)) <= MOST_POINTS


def pays(generator: Generator, n_views: int, resolution: int | None = None) -> bool:
    """Whether so many views have enough samples for a grid of their object to save more than it costs."""
    if n_views < FEWEST_VIEWS or not has_grid(generator):
        return False
    config = generator.config
    side = (resolution or config.data.imsize) // config.rendered_scale
    return n_views * side**2 * config.nerf.rendered_samples_per_ray >= WORTH * math.prod(grid_size(generator.box, config.nerf))


def grid_size(box: Tensor, nerf: NerfConfig) -> tuple[int, ...]:
    """Points of the grid along x, y and z, on the faces of the box (2, 3) and between them: no wider apart, on any axis, than
    two samples of a ray through the box are, nor than half of the positional encoding's shortest wave."""
    half_a_wave = math.pi / 2 ** max(0, nerf.multires - 1)
    sides = (box[1] - box[0]).tolist()
    return tuple(1 + max(nerf.rendered_samples_per_ray, math.ceil(side / half_a_wave)) for side in sides)


@torch.inference_mode()
def only_what_is_seen(generator: Generator, latents: Tensor, class_index: Tensor) -> Generator:
    """A copy of the generator, which shares its weights, for images of one object, of latents (1, Z) and class_index (1,):
    its fields are `SeenField`s."""
    device = generator.background.device
    latents = generator.condition(latents.to(device), Labels(None, class_index.to(device), class_index))
    of_object = shallow_copy(generator, lambda parameter: parameter, lambda part: part)
    of_object.evaluated_share = EVALUATED_SHARE
    for name, style in zip(("field", "field_fine"), generator.styles(latents), strict=False):
        setattr(of_object, name, SeenField(getattr(generator, name), style, generator.box, generator.config.nerf))
    return of_object


class SeenField(nn.Module):
    """A field in the styles of one object, evaluated only at samples that can be seen; the density of the others is 0.

    Density around a point of the grid over the box (2, 3) is taken to lie between the lowest and the highest at the point
    itself and at its 26 neighbours.
    """

    def __init__(self, field: nn.Module, styles: Any, box: Tensor, nerf: NerfConfig):
        super().__init__()
        self.field, self.of_object = field, styles
        self.size = grid_size(box, nerf)
        axes = [torch.linspace(low, high, n, device=box.device) for low, high, n in zip(*box.tolist(), self.size, strict=True)]
        self.low, self.spacing = box[0], (box[1] - box[0]) / (torch.tensor(self.size, device=box.device) - 1)
        pieces = torch.cartesian_prod(*axes).split(POINTS_AT_ONCE)
        found = torch.cat([density_at(field, points, styles, nerf) for points in pieces]).view(1, *self.size)
        highest, lowest = (sign * F.max_pool3d(sign * found, 3, stride=1, padding=1) for sign in (1, -1))
        self.highest, self.lowest = highest.flatten(), lowest.flatten()

    def styles(self, latents: Tensor) -> Any:
        """The object's own styles, computed once."""
        return self.of_object

    def forward(self, points: Tensor, view_directions: Tensor, styles: Any) -> tuple[Tensor, Tensor]:
        """`ConcatField.forward`, with points in their order along rays; raw density is -inf where nothing is evaluated."""
        seen = self.is_seen(points).flatten().nonzero()[:, 0]
        density, colour = points.new_full(points.shape[:3], -math.inf), torch.zeros_like(points)
        if len(seen) == 0:
            return density, colour
        directions = view_directions.flatten(0, 1)[seen // points.shape[2]]
        found = self.field(points.flatten(0, 2)[None, seen, None], directions[None], styles)  # (1, N, 1), (1, N, 1, 3)
        density.view(-1)[seen] = found[0].flatten()
        colour.view(-1, 3)[seen] = found[1].view(-1, 3)
        return density, colour

    def cells(self, points: Tensor) -> Tensor:
        """The index of the grid's point that is nearest to each of the points (..., 3)."""
        x, y, z = ((points - self.low) / self.spacing).round().long().unbind(-1)
        nx, ny, nz = self.size
        return (x.clamp(0, nx - 1) * ny + y.clamp(0, ny - 1)) * nz + z.clamp(0, nz - 1)

    def is_seen(self, points: Tensor) -> Tensor:
        """Whether samples (B, R, S) at points (B, R, S, 3), in their order along rays, can change a pixel."""
        cells = self.cells(points)
        lengths = (points[..., 1:, :] - points[..., :-1, :]).norm(dim=-1)
        lengths = torch.cat([lengths, lengths[..., -1:]], dim=-1)
        before = F.pad((self.lowest[cells] * lengths)[..., :-1].cumsum(-1), (1, 0))  # optical depth, at least
        opacity = self.highest[cells] * lengths * torch.exp(-before)  # at most
        return (opacity > LEFT_OUT / 2 / points.shape[-2]) & (before < -math.log(LEFT_OUT / 2))


def density_at(field: nn.Module, points: Tensor, styles: Any, nerf: NerfConfig) -> Tensor:
    """Density (N,), in 1 / scene unit, of a field at points (N, 3), in the styles of one object."""
    activation = F.relu if nerf.density_activation == "relu" else F.softplus
    ahead = points.new_tensor([[[0.0, 0.0, -1.0]]])  # a direction, on which density does not depend
    return activation(field(points[None, None], ahead, styles)[0][0, 0])
