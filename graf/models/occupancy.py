"""Many views of one object: its styles are computed once, and samples that cannot be seen are left out.

A coarse grid bounds the object's density in each cell. Where even the upper bound is nothing, space is empty (Mueller et al.,
Instant Neural Graphics Primitives, 2022, section 5.3); what the lower bounds hide is behind something opaque.

Legend: B images, R rays per image, S samples per ray, N points, G cells along a side.
"""

import copy
import math
from typing import Any

from graf.camera import Labels
from graf.config import Config, DataConfig, NerfConfig
from graf.models.generator import Generator, Rendering
from graf.rendering import FAR_AWAY

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CELLS = 32  # along each side of a grid
LEFT_OUT = 1 / 510  # opacity of a ray, at most, that is not computed: half a step of a file's 8 bits
PIECE = 4  # times the rays at a time, as few of their samples are evaluated
WORTH = 4  # samples per cell that pay for a grid


class ObjectRenderer:
    """Renders one object, of latents (1, Z) and class_index (1,), from many cameras.

    The images are those of `Generator.render`. With `fast` they are within 2 / 255 of these: samples that cannot be seen are
    left out. Products stay in 32 bits: in bfloat16 edges move by up to 7 / 255 with fine position encodings.
    """

    def __init__(self, generator: Generator, latents: Tensor, class_index: Tensor, fast: bool):
        self.latents, self.class_index = latents, class_index
        self.generator = only_what_is_seen(generator, latents, class_index) if fast else generator

    def render(self, pose_c2w: Tensor, resolution: int | None = None) -> Rendering:
        """The object from cameras (V, 3, 4), as Generator.render; on the latents' device."""
        n = len(pose_c2w)
        return self.generator.render(self.latents.expand(n, -1), pose_c2w, resolution, self.class_index.expand(n))


def pays(config: Config, n_views: int, resolution: int | None = None) -> bool:
    """Whether so many views have enough samples for a grid of their object to save more than it costs."""
    side = (resolution or config.data.imsize) // config.rendered_scale
    samples = config.nerf.render_samples_per_ray or config.nerf.samples_per_ray
    return n_views * side**2 * samples >= WORTH * CELLS**3


@torch.inference_mode()
def only_what_is_seen(generator: Generator, latents: Tensor, class_index: Tensor) -> Generator:
    """A copy of the generator, which shares its weights, for images of one object, of latents (1, Z) and class_index (1,):
    its fields are `SeenField`s."""
    device = generator.background.device
    latents = generator.condition(latents.to(device), Labels(None, class_index.to(device), class_index))
    of_object = copy.copy(generator)
    of_object._modules = dict(generator._modules)
    of_object.piece_of_frame *= PIECE
    box = around(generator.config.data).to(device) if generator.box is None else generator.box
    for name, style in zip(("field", "field_fine"), generator.styles(latents), strict=False):
        setattr(of_object, name, SeenField(getattr(generator, name), style, box, generator.config.nerf, generator.box is None))
    return of_object


class SeenField(nn.Module):
    """A field in the styles of one object, evaluated only at samples that can be seen; the density of the others is 0.

    Density within a cell is taken to lie between the lowest and the highest at its own centre and those of its 26 neighbours.
    The outer cells have their centres on the faces of the box (2, 3). Beyond them nothing is known, and the field is evaluated.
    """

    def __init__(self, field: nn.Module, styles: Any, box: Tensor, nerf: NerfConfig, boundless: bool):
        super().__init__()
        self.field, self.of_object = field, styles
        self.endless = boundless and nerf.density_activation == "relu"  # as rays end in Generator._shade
        self.low, self.spacing = box[0], (box[1] - box[0]) / (CELLS - 1)
        index = torch.arange(CELLS, device=box.device)
        centres = self.low + torch.cartesian_prod(index, index, index) * self.spacing
        found = density_at(field, centres, styles, nerf).view(1, CELLS, CELLS, CELLS)
        highest, lowest = (sign * F.max_pool3d(sign * found, 3, stride=1, padding=1) for sign in (1, -1))
        self.highest = F.pad(highest, (1,) * 6, value=math.inf).flatten()
        self.lowest = F.pad(lowest, (1,) * 6).flatten()

    def styles(self, latents: Tensor) -> Any:
        """Those of the object."""
        return self.of_object

    def forward(self, points: Tensor, view_directions: Tensor, styles: Any) -> tuple[Tensor, Tensor]:
        """As ConcatField.forward, with points in their order along rays; raw density is -inf where nothing is evaluated."""
        seen = self.is_seen(points).flatten().nonzero()[:, 0]
        density, colour = points.new_full(points.shape[:3], -math.inf), torch.zeros_like(points)
        if len(seen) == 0:
            return density, colour
        directions = view_directions.flatten(0, 1)[seen // points.shape[2]]
        found = self.field(points.flatten(0, 2)[None, seen, None], directions[None], styles)  # (1, N, 1), (1, N, 1, 3)
        density.view(-1)[seen] = found[0].flatten()
        colour.view(-1, 3)[seen] = found[1].view(-1, 3)
        return density, colour

    def is_seen(self, points: Tensor) -> Tensor:
        """Which samples (B, R, S) at points (B, R, S, 3), in their order along rays, can change a pixel."""
        x, y, z = ((points - self.low) / self.spacing + 1.5).clamp(0, CELLS + 1).long().unbind(-1)
        cells = (x * (CELLS + 2) + y) * (CELLS + 2) + z
        lengths = (points[..., 1:, :] - points[..., :-1, :]).norm(dim=-1)
        last = torch.full_like(lengths[..., :1], FAR_AWAY) if self.endless else lengths[..., -1:]
        lengths = torch.cat([lengths, last], dim=-1)
        before = F.pad((self.lowest[cells] * lengths)[..., :-1].cumsum(-1), (1, 0))  # optical depth, at least
        opacity = self.highest[cells] * lengths * torch.exp(-before)  # at most
        return (opacity > LEFT_OUT / 2 / points.shape[-2]) & (before < -math.log(LEFT_OUT / 2))


def density_at(field: nn.Module, points: Tensor, styles: Any, nerf: NerfConfig) -> Tensor:
    """Density (N,), in 1 / scene unit, of a field at points (N, 3), in the styles of one object."""
    activation = F.relu if nerf.density_activation == "relu" else F.softplus
    ahead = points.new_tensor([[[0.0, 0.0, -1.0]]])  # a direction, on which density does not depend
    return activation(field(points[None, None], ahead, styles)[0][0, 0])


def around(data: DataConfig) -> Tensor:
    """The cube (2, 3) around the origin that holds all that cameras see between near and far."""
    farthest, diagonal = data.radius[1], math.sqrt(2)  # near and far are those of the farthest camera
    aside = (data.far - data.near) / 2 if data.orthographic else data.far * math.tan(math.radians(data.fov) / 2)
    reach = math.hypot(max(farthest - data.near, data.far - farthest), diagonal * aside)
    return torch.tensor([[-reach] * 3, [reach] * 3])
