"""A background behind the field: an image per object, the same from all cameras (VoxGRAF, Schwarz et al. 2022; GSGAN, Hyun
& Heo 2024).

Legend: B images, h x w rays of each, C codes, K side of the plane in pixels.
"""

import math

from graf.config import Config
from graf.models.fields.radiance_field import mapping_network
from graf.models.fields.triplane import START, styled_convs, synthesise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 32  # channels, a multiple of those that are normalised together
MAPPING_DEPTH = 2
PLACE = 2  # numbers of a code that say where on the plane the frame lies


class BackgroundPlane(nn.Module):
    """A convolutional network that makes an image of a code, of at least as many pixels a side as the field's rendering. The
    frame sees a window of half its sides.

    Where the window lies, two numbers of the code say that the network does not see: whatever stands at the same place in all
    real images, as aligned faces do, cannot be painted on the plane and is left to the field.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.dim, side = config.z_dist.dim_background, config.data.imsize // config.rendered_scale
        n_convs = 1 + max(0, math.ceil(math.log2(side / START)))
        self.codes_are_gaussian = config.z_dist.type == "gauss"
        self.start = nn.Parameter(torch.randn(1, WIDTH, START, START))
        self.convs = styled_convs(WIDTH, n_convs)
        self.mapping = mapping_network(self.dim - PLACE, 2 * WIDTH, n_convs * 2 * WIDTH, MAPPING_DEPTH, gain=1.0)
        self.to_colours = nn.Conv2d(WIDTH, 3, 1)

    def forward(self, codes: Tensor, grid: Tensor, width: int) -> Tensor:
        """Colours (B, 3, h, w) in [-1, 1] of codes (B, C) where the rays of a grid (B or 1, h, w, 2) pass, in pixels of a frame
        of side `width`."""
        features = synthesise(self.start, self.convs, self.mapping(codes[:, PLACE:]))  # (B, WIDTH, K, K)
        plane = torch.tanh(self.to_colours(features).float())
        in_frame = (2 * grid.to(plane) + 1) / width - 1  # -1 and 1 are the frame's edges
        place = codes[:, None, None, :PLACE].to(plane)
        if self.codes_are_gaussian:
            place = torch.erf(place / 2**0.5)  # uniform in [-1, 1], as other codes are
        positions = (in_frame + place) / 2
        return F.grid_sample(plane, positions, mode="bilinear", padding_mode="border", align_corners=False)
