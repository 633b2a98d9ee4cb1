"""What the discriminator is shown of images, real and generated alike."""

import math

from graf.config import DiscriminatorConfig
from graf.models.ccsr import Refinement

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

NARROWEST_BLUR = 0.2  # pixels: what is narrower changes nothing


def judged_images(
    images: Tensor, low: Tensor | None, config: DiscriminatorConfig, refinement: Refinement | None, step: int
) -> Tensor:
    """Images (B, 3, K, K) as a discriminator of the config sees them at a step: blurred early on and, with discriminator.dual,
    above their low-resolution images, enlarged: (B, 3 or 6, K, K), float32.

    low (B, 3, k, k): what the images were refined from; None for photographs, which go through the same downsampling H.
    """
    with torch.autocast(images.device.type, enabled=False):
        seen = faded_blur(images.float(), config.blur_sigma, config.blur_steps, step)
        if not config.dual:
            return seen
        low = refinement.projection.downsample(images) if low is None else low.float()
        return torch.cat([seen, F.interpolate(low, seen.shape[-1], mode="bilinear")], dim=1)


def faded_blur(images: Tensor, sigma: float, steps: int, step: int) -> Tensor:
    """Images (B, 3, H, W) blurred with a standard deviation in pixels that falls from `sigma` at step 0 to 0 at `steps`.

    A discriminator that sees sharp images from the start judges by edges before there is a shape to have them; Karras et al.
    (Alias-Free Generative Adversarial Networks, 2021) blur early on too.
    """
    sigma = sigma * (1 - step / steps) if step < steps else 0.0
    if sigma < NARROWEST_BLUR:
        return images
    size = 2 * math.ceil(3 * sigma) + 1
    return gaussian_blur(images, [size, size], [sigma, sigma])
