"""Small decoders reconstruct a real image from the discriminator's features, whole and a quarter of it.

FastGAN (Liu et al., Towards Faster and Stabilized GAN Training for High-fidelity Few-shot Image Synthesis, 2021, section 3.2):
features that describe all of an image cannot be those few by which a small data set is told from fakes.

Legend: B images, C channels, K side of a patch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LARGEST = 32  # pixels, the side of what is painted
QUARTERS = 4  # of an image: its corners


class Reconstruction(nn.Module):
    """Two decoders for maps of a discriminator: the last one (B, widths[1], 4, 4), of the whole image, and a random quarter of
    the one before (B, widths[0], 8, 8)."""

    def __init__(self, widths: tuple[int, int], channels: int, patch_size: int):
        super().__init__()
        n_doublings = (min(LARGEST, patch_size // 2) // 4).bit_length() - 1
        self.quarter, self.whole = (_decoder(width, channels, n_doublings) for width in widths)

    def loss(self, maps: Sequence[Tensor], images: Tensor, places: Tensor) -> Tensor:
        """Mean absolute difference of what is painted and images (B, C, K, K) in [-1, 1], of the whole and of the quarter.

        places (B,) in [0, 1) choose each image's quarter. In discriminator.low_res_steps patches of 16 have the last map alone.
        """
        losses = [_difference(self.whole(maps[-1]), images)]
        if len(maps) > 1:
            corners = (QUARTERS * places).long()
            losses.append(_difference(self.quarter(_quarters(maps[-2], corners)), _quarters(images, corners)))
        return torch.stack(losses).sum()


def _decoder(width: int, channels: int, n_doublings: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(n_doublings):
        narrower = max(16, 64 >> i)
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, narrower, 3, padding=1), nn.LeakyReLU(0.2, inplace=True)]
        width = narrower
    return nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))


def _quarters(images: Tensor, corners: Tensor) -> Tensor:
    """A corner (B, C, h / 2, w / 2) of each image (B, C, h, w): 0 and 1 the upper, 2 and 3 the lower ones."""
    four = [part for rows in images.chunk(2, dim=2) for part in rows.chunk(2, dim=3)]
    return torch.stack(four)[corners, torch.arange(len(images), device=images.device)]


def _difference(painted: Tensor, images: Tensor) -> Tensor:
    return F.l1_loss(painted.float(), F.interpolate(images, painted.shape[-1], mode="area"))
