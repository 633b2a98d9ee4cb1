"""ESRGAN's generator as a backbone of CCSR (Wang et al., ESRGAN, ECCVW 2018; Real-ESRGAN, Wang et al., ICCVW 2021).

Modules are named as in BasicSR, so that its files load as they are; see foreign/esrgan.py for the others.
"""

from graf.errors import ConfigError

import torch
from torch import Tensor, nn
from torch.nn import functional as F

RESIDUAL_SCALE = 0.2  # of every residual branch (ESRGAN, sec. 3.1)
NATIVE_SCALE = 4  # a smaller scale first folds pixels into channels, as Real-ESRGAN's x2 network does


class ResidualDenseBlock(nn.Module):
    """Five convolutions, each of which sees the outputs of those before it."""

    def __init__(self, nf: int, gc: int):
        super().__init__()
        self.conv1 = nn.Conv2d(nf, gc, 3, padding=1)
        self.conv2 = nn.Conv2d(nf + gc, gc, 3, padding=1)
        self.conv3 = nn.Conv2d(nf + 2 * gc, gc, 3, padding=1)
        self.conv4 = nn.Conv2d(nf + 3 * gc, gc, 3, padding=1)
        self.conv5 = nn.Conv2d(nf + 4 * gc, nf, 3, padding=1)
        for conv in self.children():
            nn.init.kaiming_normal_(conv.weight)
            conv.weight.data.mul_(0.1)  # ESRGAN, sec. 3.1: a small start keeps the deep network stable
            nn.init.zeros_(conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        seen = x
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            seen = torch.cat([seen, F.leaky_relu(conv(seen), 0.2)], dim=1)
        return x + RESIDUAL_SCALE * self.conv5(seen)


class RRDB(nn.Module):
    """Residual in residual dense block."""

    def __init__(self, nf: int, gc: int):
        super().__init__()
        self.rdb1 = ResidualDenseBlock(nf, gc)
        self.rdb2 = ResidualDenseBlock(nf, gc)
        self.rdb3 = ResidualDenseBlock(nf, gc)

    def forward(self, x: Tensor) -> Tensor:
        return x + RESIDUAL_SCALE * self.rdb3(self.rdb2(self.rdb1(x)))


class RRDBNet(nn.Module):
    """ESRGAN's generator: RGB images in [0, 1] to `scale_factor` (1, 2 or 4) times their size.

    Trunk and upsampling always enlarge 4 times; at a smaller scale factor, blocks of u x u pixels are first folded into
    channels, u = 4 / scale_factor.
    """

    def __init__(self, scale_factor: int = NATIVE_SCALE, num_blocks: int = 23, nf: int = 64, gc: int = 32):
        super().__init__()
        if scale_factor not in (1, 2, 4):
            raise ConfigError(f"ccsr.scale_factor: the rrdb backbone upscales by 1, 2 or 4, not by {scale_factor}")
        self.unshuffle = NATIVE_SCALE // scale_factor
        self.scale_factor = scale_factor
        self.conv_first = nn.Conv2d(3 * self.unshuffle**2, nf, 3, padding=1)
        self.body = nn.Sequential(*[RRDB(nf, gc) for _ in range(num_blocks)])
        self.conv_body = nn.Conv2d(nf, nf, 3, padding=1)
        self.conv_up1 = nn.Conv2d(nf, nf, 3, padding=1)
        self.conv_up2 = nn.Conv2d(nf, nf, 3, padding=1)
        self.conv_hr = nn.Conv2d(nf, nf, 3, padding=1)
        self.conv_last = nn.Conv2d(nf, 3, 3, padding=1)

    def forward(self, images: Tensor, extra: Tensor | float = 0.0) -> Tensor:
        """images (B, 3, h, w) in [0, 1] to (B, 3, s h, s w), about [0, 1]. `extra` is added after the first convolution."""
        h, w = images.shape[-2:]
        features = self.conv_first(fold_pixels(images, self.unshuffle)) + extra
        features = features + self.conv_body(self.body(features))
        for conv in (self.conv_up1, self.conv_up2):
            features = F.leaky_relu(conv(F.interpolate(features, scale_factor=2, mode="nearest")), 0.2)
        upscaled = self.conv_last(F.leaky_relu(self.conv_hr(features), 0.2))
        return upscaled[..., : h * self.scale_factor, : w * self.scale_factor]


class RRDBBackbone(nn.Module):
    """RRDBNet conditioned on view and latents: their codes are added after its first convolution.

    Both additions start at zero, so that pretrained weights keep their effect, and stay trainable where `network` is frozen.
    """

    def __init__(self, network: RRDBNet, code_channels: int, latent_dim: int):
        super().__init__()
        self.network = network
        nf = network.conv_first.out_channels
        self.code_conv = nn.Conv2d(code_channels * network.unshuffle**2, nf, 3, padding=1)
        self.latent_shift = nn.Linear(latent_dim, nf, bias=False)
        for parameter in (*self.code_conv.parameters(), *self.latent_shift.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, low: Tensor, codes: Tensor, latents: Tensor) -> Tensor:
        """low (B, 3, h, w) in [-1, 1], codes (B, C, h, w), latents (B, Z): the proposal (B, 3, s h, s w)."""
        extra = self.code_conv(fold_pixels(codes, self.network.unshuffle)) + self.latent_shift(latents)[:, :, None, None]
        return self.network((low + 1) / 2, extra) * 2 - 1


def fold_pixels(x: Tensor, u: int) -> Tensor:
    """Blocks of u x u pixels as channels: (B, C, h, w) to (B, C u u, h / u, w / u), the last row and column repeated to fit."""
    h, w = x.shape[-2:]
    return F.pixel_unshuffle(F.pad(x, (0, -w % u, 0, -h % u), mode="replicate"), u)
