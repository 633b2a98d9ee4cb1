"""Penalties on a discriminator's gradient with respect to the images that it judges."""

from typing import NamedTuple

from graf.camera import Labels
from graf.models.discriminators.penalised_conv import gradients_by_images_alone

import torch
from torch import Tensor, nn


class Penalised(NamedTuple):
    """What a gradient penalty may be at: real images (B, C, K, K) and fakes (n B, C, K, K) with their labels, the interpolation
    (B, 1, 1, 1) in [0, 1) between both, and what heads judged of the real images (`Scores.judged`)."""

    real: Tensor
    fake: Tensor
    real_labels: Labels
    fake_labels: Labels
    interpolation: Tensor
    judged: tuple[Tensor, ...]


def r1_penalty(discriminator: nn.Module, images: Tensor, labels: Labels | None) -> Tensor:
    """Mean over images (B, C, K, K) of |grad D|^2: R1 at real ones, R2 at fakes (Mescheder et al. 2018, eq. 9 and 10, without
    the half)."""
    return _image_gradient(discriminator, images.detach(), labels).square().sum(dim=(1, 2, 3)).mean()


def wgan_gp_penalty(
    discriminator: nn.Module, real: Tensor, fake: Tensor, labels: Labels | None, interpolation: Tensor
) -> Tensor:
    """Mean of (|grad D| - 1)^2 at real + interpolation * (fake - real), interpolation (B, 1, 1, 1) in [0, 1) (WGAN-GP,
    Gulrajani et al. 2017, eq. 3)."""
    between = (real + interpolation.to(real) * (fake - real)).detach()
    norm = (_image_gradient(discriminator, between, labels).square().sum(dim=(1, 2, 3)) + 1e-12).sqrt()
    return (norm - 1).square().mean()


def _image_gradient(discriminator: nn.Module, images: Tensor, labels: Labels | None) -> Tensor:
    images = images.requires_grad_()
    logits = discriminator(images, labels).logits
    with gradients_by_images_alone():
        (gradient,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
    return gradient
