"""Losses of the adversarial game. Legend: B images; logits (B,), above 0 for what looks real."""

import math

from graf.camera import Labels
from graf.config import CcsrConfig
from graf.models.discriminator import Scores
from graf.models.perception import feature_distance, features_of

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def discriminator_loss(real: Tensor, fake: Tensor, gan_type: str) -> Tensor:
    """Mean loss of the discriminator: `standard` (Goodfellow et al. 2014), `wgan` (Arjovsky et al. 2017) or `hinge`."""
    if gan_type == "standard":
        return F.softplus(-real).mean() + F.softplus(fake).mean()
    if gan_type == "hinge":
        return F.relu(1 - real).mean() + F.relu(1 + fake).mean()
    return fake.mean() - real.mean()


def generator_loss(fake: Tensor, gan_type: str) -> Tensor:
    """Mean loss of the generator; `standard` is the non-saturating one."""
    return F.softplus(-fake).mean() if gan_type == "standard" else -fake.mean()


def label_loss(scores: Scores, labels: Labels) -> Tensor:
    """Multi-task cross-entropy (MCE): that of the class plus that of the elevation bin."""
    return F.cross_entropy(scores.class_logits, labels.class_index) + F.cross_entropy(
        scores.elevation_logits, labels.elevation_index
    )


def consistency_loss(
    rendered: Tensor, restored: Tensor, detach: str, perception: nn.Module | None = None, perceptual_weight: float = 0.0
) -> Tensor:
    """Mean square between renderings and what CCSR restores of them; `detach` (nerf, ccsr, none) names who does not learn;
    for nerf, `restored` is of detached renderings.

    With a network of graf.models.perception, the distance of its features is added with its weight.
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


def r1_penalty(discriminator: nn.Module, real: Tensor, labels: Labels | None) -> Tensor:
    """Mean over images of |grad D|^2 at the real images (B, 3, K, K) (R1, Mescheder et al. 2018, eq. 9, without the half)."""
    return _image_gradient(discriminator, real.detach(), labels).square().sum(dim=(1, 2, 3)).mean()


def wgan_gp_penalty(discriminator: nn.Module, real: Tensor, fake: Tensor, labels: Labels | None, share: Tensor) -> Tensor:
    """Mean of (|grad D| - 1)^2 at the share (B, 1, 1, 1) in [0, 1) of the way from real to fake images (WGAN-GP, Gulrajani et
    al. 2017, eq. 3)."""
    between = (real + share.to(real) * (fake - real)).detach()
    norm = (_image_gradient(discriminator, between, labels).square().sum(dim=(1, 2, 3)) + 1e-12).sqrt()
    return (norm - 1).square().mean()


def _image_gradient(discriminator: nn.Module, images: Tensor, labels: Labels | None) -> Tensor:
    images = images.requires_grad_()
    logits = discriminator(images, labels).logits
    (gradient,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    return gradient
