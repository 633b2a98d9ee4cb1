"""The discriminator's input, and the losses of the GAN.

Legend: B images, K side of a patch; logits (B,), above 0 for what looks real.
"""

import dataclasses
import math
from collections.abc import Callable

from graf.camera import Labels
from graf.config import CcsrConfig, DiscriminatorConfig
from graf.models.discriminators.convolutional import Scores
from graf.models.perception import feature_distance, features_of
from graf.models.projection import ConsistencyEnforcingModule
from graf.training.statistics import accuracy_by_pairs, accuracy_by_sign

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur

NARROWEST_BLUR = 0.2  # pixels; a narrower blur changes nothing


def discriminator_input(
    images: Tensor,
    low: Tensor | None,
    alpha: Tensor | None,
    config: DiscriminatorConfig,
    projection: ConsistencyEnforcingModule | None,
    blur: float = 0.0,
    mirrored: Tensor | None = None,
    places: Tensor | None = None,
) -> Tensor:
    """The discriminator's input (B, C, K, K), float32, for images (B, 3, K, K): `blurred` with the standard deviation `blur`;
    then with discriminator.dual their enlarged low-resolution images, with alpha their opacity, blurred as they are; mirrored;
    with discriminator.augment `augmented` at places (B, 4).

    low (B, 3, k, k): what the images were refined from; None for real images, which go through the same downsampling H.
    alpha (B, 1, k, k) in [-1, 1]: opacity as it was rendered, which is enlarged; that of real images (B, 1, K, K) goes through
    H before. projection: that has H; None where images are not refined, and opacity has their size. mirrored (B, 1, 1, 1): the
    images to flip, None for no flips. Patches have no optical axis, and no camera is judged with them.
    """
    side = images.shape[-1]
    with torch.autocast(images.device.type, enabled=False):
        seen = [blurred(images.float(), blur)]
        if config.dual:
            low = projection.downsample(images) if low is None else low.float()
            seen.append(F.interpolate(low, side, mode="bilinear"))
        if alpha is not None:
            alpha = alpha.float()
            if projection is not None:
                low_alpha = projection.downsample(alpha) if alpha.shape[-1] == side else alpha
                alpha = F.interpolate(low_alpha, side, mode="bilinear")
            seen.append(blurred(alpha, blur))
        seen = torch.cat(seen, dim=1)
        seen = seen if mirrored is None else torch.where(mirrored, seen.flip(3), seen)
        return augmented(seen, places) if config.augment else seen


def augmented(images: Tensor, places: Tensor) -> Tensor:
    """Images (B, C, K, K) shifted by up to an eighth of their side, and then covered by a square of half of it (DiffAugment,
    Zhao et al. 2020, without its colours); places (B, 4) in [0, 1) say where.

    Both are filled with 0, which is grey and half opaque: so the discriminator sees how far an image was shifted, and a
    generator cannot pass off objects that stand beside their place as shifted ones.
    """
    shift, centre = (2 * places[:, :2] - 1) / 4, places[:, 2:, None]  # the frame reaches from -1 to 1, and from 0 to 1
    unmoved = torch.eye(2, dtype=shift.dtype, device=shift.device).expand(len(images), 2, 2)
    matrix = torch.cat([unmoved, shift[..., None]], dim=2)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    images = F.grid_sample(images, grid, mode="nearest", align_corners=False)
    pixels = (torch.arange(images.shape[-1], device=images.device) + 0.5) / images.shape[-1]
    column, row = ((pixels - centre).abs() < 1 / 4).unbind(1)  # (B, K) each
    return images * ~(row[:, None, :, None] & column[:, None, None])


def faded_sigma(config: DiscriminatorConfig, step: int, stride: int = 1) -> float:
    """The standard deviation, in pixels of a patch, by which images are blurred at a step: it falls from
    discriminator.blur_sigma to 0 at blur_steps; 0 where it would be too narrow to blur anything. stride: the pixels of a whole
    patch's side for each of one of low resolution, which is blurred by as much of the image.

    A discriminator that sees sharp images from the start judges by edges before there is a shape to have them; Karras et al.
    (Alias-Free Generative Adversarial Networks, 2021) blur early on too.
    """
    sigma = config.blur_sigma / stride * (1 - step / config.blur_steps) if step < config.blur_steps else 0.0
    return sigma if sigma >= NARROWEST_BLUR else 0.0


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Images (B, C, H, W) blurred with a standard deviation in pixels; themselves where it is 0."""
    if not sigma:
        return images
    size = 2 * math.ceil(3 * sigma) + 1
    return gaussian_blur(images, [size, size], [sigma, sigma])


@dataclasses.dataclass(frozen=True)
class GanLoss:
    """An adversarial loss of logits of real images (B,) and of fakes (n B,), n for each row.

    of_discriminator(real, fake) and of_generator(fake, real): mean losses; accuracy(real, fake): the share of images that the
    discriminator tells apart, None where its logits have no level for that. A `paired` loss compares each fake with the real
    image of its row, which has the same class and camera; others get real None in of_generator.
    """

    of_discriminator: Callable[[Tensor, Tensor], Tensor]
    of_generator: Callable[[Tensor, Tensor | None], Tensor]
    accuracy: Callable[[Tensor, Tensor], Tensor] | None
    paired: bool = False


GAN_LOSSES = {  # by training.gan_type
    "standard": GanLoss(  # Goodfellow et al. 2014, the generator's the non-saturating one
        lambda real, fake: F.softplus(-real).mean() + F.softplus(fake).mean(),
        lambda fake, _: F.softplus(-fake).mean(),
        accuracy_by_sign,
    ),
    "wgan": GanLoss(  # Arjovsky et al. 2017
        lambda real, fake: fake.mean() - real.mean(), lambda fake, _: -fake.mean(), None
    ),
    "hinge": GanLoss(
        lambda real, fake: F.relu(1 - real).mean() + F.relu(1 + fake).mean(), lambda fake, _: -fake.mean(), accuracy_by_sign
    ),
    "relativistic": GanLoss(  # RpGAN, Jolicoeur-Martineau 2019; R3GAN, Huang et al. 2024
        lambda real, fake: F.softplus(fake.view(-1, len(real)) - real).mean(),
        lambda fake, real: F.softplus(real - fake).mean(),
        accuracy_by_pairs,
        paired=True,
    ),
}


def discriminator_loss(real: Tensor, fake: Tensor, gan_type: str) -> Tensor:
    """The discriminator's mean loss of logits real (B,) and fake (n B,)."""
    return GAN_LOSSES[gan_type].of_discriminator(real, fake)


def generator_loss(fake: Tensor, gan_type: str, real: Tensor | None = None) -> Tensor:
    """The generator's mean loss of logits fake (B,); a paired one wants the logits real (B,) of their rows too."""
    return GAN_LOSSES[gan_type].of_generator(fake, real)


def label_loss(scores: Scores, labels: Labels) -> Tensor:
    """Multi-task cross-entropy (MCE): that of the class plus that of the elevation bin."""
    return F.cross_entropy(scores.class_logits, labels.class_index) + F.cross_entropy(
        scores.elevation_logits, labels.elevation_index
    )


def consistency_loss(
    rendered: Tensor, restored: Tensor, detach: str, perception: nn.Module | None = None, perceptual_weight: float = 0.0
) -> Tensor:
    """Mean square difference of renderings and what CCSR restores of them. `detach` (nerf, ccsr, none) names the network that
    gets no gradient; for nerf, `restored` must come from detached renderings.

    With a network of graf.models.perception, the weighted distance of its features is added.
    """
    rendered = rendered.detach() if detach == "nerf" else rendered
    restored = restored.detach() if detach == "ccsr" else restored
    loss = F.mse_loss(restored, rendered)
    if perception is not None:
        distance = feature_distance(features_of(perception, restored), features_of(perception, rendered))
        loss = loss + perceptual_weight * distance.mean()
    return loss


def consistency_weight(ccsr: CcsrConfig, step: int) -> float:
    """Weight of the consistency loss at a training step: alpha_init * exp(-alpha_decay * step)."""
    return ccsr.alpha_init * math.exp(-ccsr.alpha_decay * step)
