"""Consistency-controlling super-resolution: enlarges a rendering by s so that, downsampled again, it is the rendering.

View codes and latents modulate a backbone that proposes detail; `Refinement` joins these and the projection.

The projection that makes a proposal consistent is in projection.py, the heavy backbone in rrdb.py. A backbone is any module
with forward(low (B, 3, h, w), codes (B, C, h, w), latents (B, Z)) -> proposal (B, 3, s h, s w), images in [-1, 1].

Legend: B images, C channels of the codes, h x w low-resolution pixels, s scale factor, Z latents, M side of a code map.
"""

from graf.camera import azimuth_and_v
from graf.config import Config
from graf.models.projection import ConsistencyEnforcingModule
from graf.models.rrdb import RRDBBackbone, RRDBNet

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CODE_STD = 0.1  # of the codes at the start: small beside the image, so that an untrained sweep hardly depends on the view
DETAIL_GAIN = 0.1  # of the light backbone's last layer at the start: detail begins as a faint addition to the interpolation


class Refinement(nn.Module):
    """Consistency-controlling super-resolution (Super-NeRF, arXiv 2304.13518): view code, backbone, projection.

    Downsampling its output gives exactly its input.
    """

    def __init__(self, config: Config):
        super().__init__()
        ccsr, data = config.ccsr, config.data
        self.view_codes = ViewCodes(
            ccsr.num_views,
            ccsr.elevation_bins,
            ccsr.code_channels,
            data.v_range,
            ccsr.code_size,
            data.u_range if data.camera_prior == "front" else None,
        )
        if ccsr.backbone == "light":
            self.backbone = LightBackbone(
                ccsr.scale_factor,
                ccsr.code_channels,
                config.z_dist.dim,
                ccsr.light.width,
                ccsr.light.depth,
                ccsr.light.width_upsampled,
            )
        else:
            network = RRDBNet(ccsr.scale_factor, ccsr.rrdb.num_blocks, ccsr.rrdb.nf, ccsr.rrdb.gc)
            network.requires_grad_(not ccsr.rrdb.freeze)
            self.backbone = RRDBBackbone(network, ccsr.code_channels, config.z_dist.dim)
        self.projection = ConsistencyEnforcingModule(ccsr.kernel, ccsr.scale_factor)

    def forward(self, low: Tensor, latents: Tensor, pose_c2w: Tensor, low_grid: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Refined images (B, 3, s h, s w), not clamped, of renderings low (B, 3, h, w), both about [-1, 1]; and the drift
        (B, 1) of the backbone's proposals.

        latents (B, Z); pose_c2w (B, 3, 4); low_grid (B or 1, h, w, 2) where the rendering's rays pass, in pixels of a frame of
        side `width`.
        """
        codes = self.view_codes(*azimuth_and_v(pose_c2w), low_grid, width)
        proposal = self.backbone(low, codes, latents)
        return self.projection(proposal, low), self.projection.drift(proposal, low)


class ViewCodes(nn.Module):
    """Learnable code maps of cameras: one per bin of azimuth and elevation, interpolated linearly between bins.

    Azimuth bin k of N is centred at 360 k / N degrees, and the last bin is next to the first; with a u_range, azimuth bins go
    from its one end to the other. Elevation bins go from v_range[0] to v_range[1]. Both ends are included; beyond them the
    nearest bin is used. A map spans the whole frame at any resolution.
    """

    def __init__(
        self,
        num_views: int,
        elevation_bins: int,
        channels: int,
        v_range: tuple[float, float],
        map_size: int = 8,
        u_range: tuple[float, float] | None = None,
    ):
        super().__init__()
        self.v_range, self.u_range = v_range, u_range
        self.maps = nn.Parameter(CODE_STD * torch.randn(elevation_bins, num_views, channels, map_size, map_size))

    def forward(self, azimuth_deg: Tensor, v: Tensor, grid: Tensor, width: int) -> Tensor:
        """Codes (B, C, h, w) of views from azimuth_deg (B,) and v (B,), any numbers.

        grid (B or 1, h, w, 2): positions in the frame of `width` pixels, in pixels from 0 to width - 1, as for camera_rays.
        """
        maps = self.interpolate(azimuth_deg, v)  # (B, C, M, M)
        positions = (2 * grid.to(maps) + 1) / width - 1  # -1 and 1 are the frame's edges
        positions = positions.expand(len(maps), -1, -1, -1)
        return F.grid_sample(maps, positions, mode="bilinear", padding_mode="border", align_corners=False)

    def interpolate(self, azimuth_deg: Tensor, v: Tensor) -> Tensor:
        """Code maps (B, C, M, M) of views from azimuth_deg (B,) and v (B,)."""
        n_elevations, n_azimuths = self.maps.shape[:2]
        if self.u_range is None:
            column, right = split_position(azimuth_deg * (n_azimuths / 360))
        else:
            u = (azimuth_deg / 360 + 0.5) % 1 - 0.5  # from behind on, so that the front is not cut at azimuth 0
            column, right = bin_position(u, self.u_range, n_azimuths)
        columns = torch.stack([column, column + 1], dim=-1) % n_azimuths  # (B, 2)
        row, below = bin_position(v, self.v_range, n_elevations)
        rows = torch.stack([row, row + 1], dim=-1).clamp_max(n_elevations - 1)  # (B, 2)
        across = torch.stack([1 - right, right], dim=-1)
        down = torch.stack([1 - below, below], dim=-1)
        corners = self.maps[rows[:, :, None], columns[:, None, :]]  # (B, 2, 2, C, M, M)
        weights = (down[:, :, None] * across[:, None, :]).to(corners)  # (B, 2, 2)
        return (weights[..., None, None, None] * corners).sum(dim=(1, 2))


def bin_position(value: Tensor, bounds: tuple[float, float], n: int) -> tuple[Tensor, Tensor]:
    """`split_position` of values (B,) among n bins whose first and last are centred at the bounds; 0 of a single bin."""
    if n == 1:  # of values that are not finite, too
        return torch.zeros_like(value, dtype=torch.long), torch.zeros_like(value)
    low, high = bounds
    return split_position(((value - low) / max(high - low, 1e-9)).clamp(0, 1) * (n - 1))


def split_position(position: Tensor) -> tuple[Tensor, Tensor]:
    """The integer part, int64, and the fractional part in [0, 1) of positions >= 0."""
    whole = position.floor()
    return whole.long(), position - whole


class LightBackbone(nn.Module):
    """A few convolutions at low resolution, scaled and shifted by the latents, and a narrow one after each doubling.

    Features are enlarged by interpolation and then convolved, all pixels alike, never shuffled from channels to pixels: a flat
    input gives a flat output at any weights, so there is no checkerboard to unlearn (Odena et al., Deconvolution and
    Checkerboard Artifacts, Distill 2016). The proposal is the bicubic interpolation plus the detail.
    """

    def __init__(self, scale_factor: int, code_channels: int, latent_dim: int, width: int, depth: int, width_upsampled: int):
        """scale_factor: a power of two."""
        super().__init__()
        self.scale_factor = scale_factor
        self.convs = nn.ModuleList([conv3x3(3 + code_channels if i == 0 else width, width) for i in range(depth)])
        self.modulation = nn.Linear(latent_dim, depth * 2 * width)
        nn.init.normal_(self.modulation.weight, std=0.25 / latent_dim**0.5)
        nn.init.zeros_(self.modulation.bias)
        self.narrowing = nn.Conv2d(width, width_upsampled, 1)
        doublings = scale_factor.bit_length() - 1
        self.upsampled_convs = nn.ModuleList([conv3x3(width_upsampled, width_upsampled) for _ in range(doublings)])
        self.last = conv3x3(width_upsampled, 3, gain=DETAIL_GAIN)

    def forward(self, low: Tensor, codes: Tensor, latents: Tensor) -> Tensor:
        styles = self.modulation(latents).view(len(low), len(self.convs), 2, -1, 1, 1)  # (B, depth, 2, width, 1, 1)
        h = torch.cat([low, codes.to(low)], dim=1).contiguous(memory_format=torch.channels_last)  # a third faster in bfloat16
        for conv, (scale, shift) in zip(self.convs, (style.unbind(1) for style in styles.unbind(1)), strict=True):
            h = F.leaky_relu(torch.addcmul(shift, conv(h), 1 + scale), 0.2)
        h = self.narrowing(h)
        for conv in self.upsampled_convs:
            h = F.leaky_relu(conv(F.interpolate(h, scale_factor=2, mode="bilinear")), 0.2)
        interpolated = F.interpolate(low, scale_factor=self.scale_factor, mode="bicubic")
        return interpolated + self.last(h)


class SameSizeConv2d(nn.Conv2d):
    """A 3 x 3 convolution of an image with its edges repeated: zeros would draw a frame around it."""

    def forward(self, x: Tensor) -> Tensor:
        # On the CPU autocast pads in float32, which with its conversions took a fifth of CCSR's time
        with torch.autocast(x.device.type, enabled=False):
            padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        return F.conv2d(padded, self.weight, self.bias)


def conv3x3(width_in: int, width: int, gain: float = 1.0) -> nn.Conv2d:
    """A convolution that keeps the size, initialised for leaky activations of slope 0.2 (He et al. 2015), times `gain`."""
    conv = SameSizeConv2d(width_in, width, 3)
    nn.init.kaiming_normal_(conv.weight, a=0.2)
    nn.init.zeros_(conv.bias)
    with torch.no_grad():
        conv.weight.mul_(gain)
    return conv
