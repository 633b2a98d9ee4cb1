"""The patch discriminator: one logit per image, conditioned on class and camera.

graf/models/discriminators/projected.py has another one, and graf/models/discriminators/mixed.py both.

Legend: B patches, K their side in pixels, C channels.
"""

import dataclasses
from typing import Any

from graf.camera import Labels
from graf.config import Config
from graf.models.discriminators.penalised_conv import PenalisedConv2d
from graf.models.discriminators.penalties import Penalised, r1_penalty, wgan_gp_penalty
from graf.models.discriminators.reconstruction import Reconstruction
from graf.tensors import Rows

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.spectral_norm import SpectralNorm

EMBEDDING_WIDTH = 128
POWER_ITERATIONS = 15  # of the spectral norms before the first step
LOW_RES_STRIDE = 2  # pixels along a side of which a patch has one in discriminator.low_res_steps
POSE_WIDTH = 12  # a camera as numbers: its rotation, and its position over the distance


@dataclasses.dataclass(frozen=True)
class Scores(Rows):
    """logits (B,), of a projected one (B, positions), above 0 for what looks real; class_logits (B, classes), elevation_logits
    (B, bins) or None each; projected_logits (B, positions) of a mixed one's heads; maps: the features (B, C, s, s) that
    discriminator.reconstruction paints from; judged: those of a frozen network that heads judge."""

    logits: Tensor
    class_logits: Tensor | None = None
    elevation_logits: Tensor | None = None
    projected_logits: Tensor | None = None
    maps: tuple[Tensor, ...] = ()
    judged: tuple[Tensor, ...] = ()


class ConditionedDiscriminator(nn.Module):
    """The parts that discriminators share: an embedding of class and camera, spectral norms that follow the weights, and the
    gradient penalty.

    A subclass has forward(images, labels) -> Scores, of `discriminator_input` (B, C, K, K) in [-1, 1].
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config.discriminator
        self.class_embedding = self.pose_embedding = None

    def update_spectral_norms(self, iterations: int = 1) -> None:
        """Let the spectral norms follow the weights, after each step."""
        for layer in self.modules():
            if isinstance(layer, SpectralConv):
                for _ in range(iterations):
                    layer.follow_weight()

    def gradient_penalty(self, reg_type: str, at: Penalised) -> Tensor:
        """The penalty training.reg_type, for training.reg_param to weigh: at real images, at fakes too, or for wgan_gp between
        both. A subclass may have a penalty of its own."""
        match reg_type:
            case "r1":
                return r1_penalty(self, at.real, at.real_labels)
            case "r1_r2":
                return r1_penalty(self, at.real, at.real_labels) + r1_penalty(self, at.fake, at.fake_labels)
            case "wgan_gp":
                return wgan_gp_penalty(self, at.real, at.fake[: len(at.real)], at.real_labels, at.interpolation)
        raise NotImplementedError(f"training.reg_type: {reg_type} has no penalty in {type(self).__name__}")

    def critic_of(self, weights: dict[str, Tensor]) -> nn.Module:
        """The part of this network that the weights of another run's discriminator are for."""
        return self

    def _build_embedding(self, n_classes: int) -> None:
        if self.config.condition != "none":
            self.class_embedding = nn.Embedding(n_classes, EMBEDDING_WIDTH)
        if self.config.condition == "class_and_pose":
            self.pose_embedding = nn.Sequential(
                nn.Linear(POSE_WIDTH, EMBEDDING_WIDTH), nn.LeakyReLU(0.2), nn.Linear(EMBEDDING_WIDTH, EMBEDDING_WIDTH)
            )

    def _embed(self, labels: Labels) -> Tensor:
        """Embedding (B, EMBEDDING_WIDTH) of the labels that the discriminator is conditioned on."""
        known = self.class_embedding(labels.class_index)
        if self.pose_embedding is not None:
            rotation, position = labels.pose_c2w[..., :3], labels.pose_c2w[..., 3]
            position = F.normalize(position, dim=-1)
            known = known + self.pose_embedding(torch.cat([rotation.flatten(1), position], dim=-1))
        return known


class Discriminator(ConditionedDiscriminator):
    """GRAF's convolutional discriminator of patches of side 16, 32, 64, 128 or 256 (DCGAN layers).

    An image has data.channels, and with discriminator.dual three more.
    With instance and spectral normalisation and no condition its parameters have the official code's names and shapes.
    A condition enters by projection (Miyato & Koyama 2018): the logit gains the inner product of the image's features with
    an embedding of class and camera.
    """

    def __init__(self, config: Config, n_classes: int = 1, n_elevations: int = 1):
        super().__init__(config)
        self.patch_size, self.coarse_entry = config.patch_size, None
        channels, config = config.data.channels + 3 * config.discriminator.dual, config.discriminator
        ndf = config.ndf
        n_halvings = (self.patch_size // 16).bit_length() - 1  # down to 16 pixels
        widths = [max(1, 2 * ndf // 2**i) for i in reversed(range(n_halvings))] + [4 * ndf, 8 * ndf]
        layers: list[nn.Module] = []
        for i, (width_in, width) in enumerate(zip([channels, *widths], widths, strict=False)):
            layers.append(self._conv(width_in, width, stride=2, padding=1))
            first_of_several = i == 0 and self.patch_size >= 64
            if config.norm == "instance" and not first_of_several:
                layers.append(nn.InstanceNorm2d(width))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            if i == 1:
                self.shared_from = len(layers)
        self.main = nn.Sequential(*layers, self._conv(widths[-1], 1, stride=1, padding=0))
        if config.low_res_steps:  # in place of the first two layers
            entry = self._conv(channels, widths[1], stride=2, padding=1)
            self.coarse_entry = nn.Sequential(entry, nn.LeakyReLU(0.2, inplace=True))

        features = widths[-1] * 4 * 4
        self.projection = nn.Linear(features, EMBEDDING_WIDTH) if config.condition != "none" else None
        self._build_embedding(n_classes)
        self.reconstruction = Reconstruction(widths[-2:], channels, self.patch_size) if config.reconstruction else None
        self.class_head = self.elevation_head = None
        if config.label_loss == "MCE":
            self.class_head = nn.Linear(features, n_classes)
            self.elevation_head = nn.Linear(features, n_elevations)

    def is_low_res(self, images: Tensor) -> bool:
        """Whether images (B, C, K, K) are those of discriminator.low_res_steps."""
        return images.shape[-1] < self.patch_size

    def forward(self, images: Tensor, labels: Labels | None = None) -> Scores:
        """Scores of `discriminator_input` (B, C, K, K) in [-1, 1], or (B, C, K / 2, K / 2) in low-resolution steps; labels
        where there is a condition."""
        layers = (*self.coarse_entry, *self.main[self.shared_from : -1]) if self.is_low_res(images) else self.main[:-1]
        maps: tuple[Tensor, ...] = ()
        for layer in layers:
            images = layer(images)
            if isinstance(layer, nn.LeakyReLU):
                maps = (*maps[-1:], images)
        logits = self.main[-1](images).flatten(1)[:, 0]
        features = images.flatten(1)  # of (B, C, 4, 4)
        if self.projection is not None:
            logits = logits + (self.projection(features) * self._embed(labels)).mean(-1) * EMBEDDING_WIDTH**0.5
        if self.class_head is None:
            return Scores(logits.float(), maps=maps)
        return Scores(logits.float(), self.class_head(features).float(), self.elevation_head(features).float(), maps=maps)

    def _conv(self, width_in: int, width: int, stride: int, padding: int) -> nn.Module:
        conv = SpectralConv if self.config.spectral_norm else PenalisedConv2d
        return conv(width_in, width, 4, stride, padding, bias=self.config.norm == "none")


class SpectralConv(PenalisedConv2d):
    """A convolution with its weight divided by its largest singular value, parameters and buffers named as by torch's
    `spectral_norm`. That keeps the divided weight in the module, where threads would mix up their graphs."""

    def __init__(self, *sizes: int, **options: Any):
        super().__init__(*sizes, **options)
        self.norm = SpectralNorm.apply(self, "weight", n_power_iterations=1, dim=0, eps=1e-12)
        self._forward_pre_hooks.clear()
        del self.weight  # the undivided one is weight_orig
        for _ in range(0 if self.weight_orig.is_meta else POWER_ITERATIONS):  # the planner builds one of shapes alone
            self.follow_weight()

    def divided_weight(self) -> Tensor:
        """(C_out, C_in, k, k) whose largest singular value, as a matrix (C_out, k k C_in), is about 1."""
        return self.weight_orig / self._singular_value()

    def forward(self, images: Tensor) -> Tensor:
        if images.numel() < self.weight_orig.numel():  # dividing them costs less
            return self._conv_forward(images / self._singular_value().to(images.dtype), self.weight_orig, self.bias)
        return self._conv_forward(images, self.divided_weight(), self.bias)

    @torch.no_grad()
    def follow_weight(self) -> None:
        """One iteration towards the weight's first singular vectors (power iteration, Miyato et al. 2018, algorithm 1)."""
        weight = self.weight_orig.flatten(1)
        F.normalize(torch.mv(weight.t(), self.weight_u), dim=0, eps=self.norm.eps, out=self.weight_v)
        F.normalize(torch.mv(weight, self.weight_v), dim=0, eps=self.norm.eps, out=self.weight_u)

    def _singular_value(self) -> Tensor:
        return torch.dot(self.weight_u, torch.mv(self.weight_orig.flatten(1), self.weight_v))
