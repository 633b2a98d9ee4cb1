"""A radiance field of features in three planes (EG3D, Chan et al., CVPR 2022), which a network computes from the shape code.

A sample costs three look-ups and two narrow layers: the depth of the network is spent once per image, on the planes.
Legend: B images, R rays per image, S samples per ray, P = R * S, C channels of a plane, K its side, Z latents.
"""

from graf.config import Config
from graf.models.fields.radiance_field import MappedField, film_linear

import torch
from torch import Tensor, nn
from torch.nn import functional as F

START = 4  # side of the learned map that the synthesis begins with
GROUPS = 8  # of channels that are normalised together


class TriplaneField(MappedField):
    """Two layers decode what the planes xy, xz and yz have at a point. The density follows from the shape code alone; the
    appearance code scales and shifts the colour's layer.

    The planes span data.box, each axis of it from -1 to 1, or without a box the cube of side far - near around the origin.
    """

    def __init__(self, config: Config, depth: int, width: int):
        """depth: unused, as there are two layers."""
        super().__init__()
        nerf, data = config.nerf, config.data
        channels, n_convs = nerf.synthesis_width, (nerf.plane_size // START).bit_length()
        self.start = nn.Parameter(torch.randn(1, channels, START, START))
        self.convs = styled_convs(channels, n_convs)
        self.to_planes = nn.Conv2d(channels, 3 * nerf.plane_channels, 1)
        self.hidden = nn.Linear(3 * nerf.plane_channels, width)
        self.density = nn.Linear(width, 1)
        if nerf.density_activation == "softplus":
            nn.init.constant_(self.density.bias, -1.0)  # EG3D's softplus(x - 1): thin at the start
        self.colour_layer = nn.Linear(width, width)
        self.colour = nn.Linear(width, 3)
        self._build_mapping(config, width, n_convs * 2 * channels, gain=1.0)
        half = (data.far - data.near) / 2
        low, high = torch.tensor((-half,) * 3 + (half,) * 3 if isinstance(data.box, str) else data.box).view(2, 3)
        self.register_buffer("centre", (low + high) / 2, persistent=False)
        self.register_buffer("half_size", (high - low) / 2, persistent=False)

    def styles(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Planes (B, 3, C, K, K), and the colour layer's scale and shift (B, 2, width), from latents (B, Z)."""
        of_convs, of_colour = self.mapped(latents)
        planes = self.to_planes(synthesise(self.start, self.convs, of_convs)).float().unflatten(1, (3, -1))
        return planes, of_colour.unflatten(-1, (2, -1))

    def forward(self, points: Tensor, view_directions: Tensor, styles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """points (B, R, S, 3) in scene units, and the styles of B latents; the colour does not depend on view_directions.

        Returns raw density (B, R, S) and raw colour (B, R, S, 3), before their activations, in float32.
        """
        (planes, of_colour), sizes = styles, points.shape[:3]
        h = F.relu(self.hidden(self.look_up(planes, points.flatten(1, 2))), inplace=True)
        density = self.density(h)
        h = F.relu(film_linear(self.colour_layer, h, *of_colour.unbind(1)), inplace=True)
        return density.float().view(sizes), self.colour(h).float().view(*sizes, 3)

    def look_up(self, planes: Tensor, points: Tensor) -> Tensor:
        """Features of planes (B, 3, C, K, K) at points (B, P, 3): (B, P, 3 C), bilinear between their pixels, the outer
        ones of which lie on the box's faces and go on beyond them."""
        x, y, z = ((points - self.centre) / self.half_size).unbind(-1)
        places = torch.stack([torch.stack(pair, dim=-1) for pair in ((x, y), (x, z), (y, z))], dim=1)  # (B, 3, P, 2)
        found = F.grid_sample(planes.flatten(0, 1), places.flatten(0, 1)[:, None], padding_mode="border", align_corners=True)
        return found.view(len(points), -1, points.shape[1]).mT


def styled_convs(channels: int, n: int) -> nn.ModuleList:
    """The n convolutions of `synthesise`."""
    convs = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(n)])
    for conv in convs:
        nn.init.kaiming_normal_(conv.weight, a=0.2)
        nn.init.zeros_(conv.bias)
    return convs


def synthesise(start: Tensor, convs: nn.ModuleList, styles: Tensor) -> Tensor:
    """Features (B, channels, K, K) from a learned start (1, channels, START, START), doubled before each convolution but the
    first, whose outputs the styles (B, 2 * channels * len(convs)) scale and shift."""
    styles = styles.unflatten(-1, (len(convs), 2, -1, 1, 1))
    h = start.expand(len(styles), -1, -1, -1)
    for i, conv in enumerate(convs):
        if i > 0:
            h = F.interpolate(h, scale_factor=2, mode="bilinear")
        scale, shift = styles[:, i].unbind(1)  # (B, channels, 1, 1)
        h = F.leaky_relu((1 + scale) * F.group_norm(conv(h), GROUPS) + shift, 0.2)
    return h
