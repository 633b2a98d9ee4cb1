"""The projected discriminator: it judges an image by its features in a frozen ImageNet network (Sauer et al. 2021).

Legend: B images, K their side in pixels; a stage is a depth of the frozen network, with features (B, C, s, s).
"""

import functools
from typing import NamedTuple

from graf.camera import Labels
from graf.config import Config
from graf.models.discriminators.convolutional import (
    EMBEDDING_WIDTH,
    ConditionedDiscriminator,
    Scores,
    SpectralConv,
)
from graf.models.discriminators.penalised_conv import gradients_by_images_alone, product_dtype
from graf.models.discriminators.penalties import Penalised
from graf.models.perception import (
    EFFICIENTNET,
    EFFICIENTNET_1,
    SIZE,
    feature_network,
    outputs_of,
    with_strides_last,
    without_norms,
)

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn import functional as F


class Stage(NamedTuple):
    """A layer of the frozen network: the shape and standard deviation of its features for images of toy cars, of SIZE pixels,
    and the number of channels that they are mixed into."""

    block: int
    channels: int
    side: int
    deviation: float
    mixed: int


STAGES = {  # by discriminator.feature_network
    EFFICIENTNET: (
        Stage(block=2, channels=24, side=32, deviation=8.4, mixed=32),
        Stage(block=4, channels=40, side=16, deviation=8.5, mixed=64),
        Stage(block=10, channels=112, side=8, deviation=6.8, mixed=96),
        Stage(block=15, channels=320, side=4, deviation=2.9, mixed=128),
    ),
    EFFICIENTNET_1: (
        Stage(block=3, channels=24, side=32, deviation=10.0, mixed=32),
        Stage(block=6, channels=40, side=16, deviation=10.3, mixed=64),
        Stage(block=14, channels=112, side=8, deviation=7.9, mixed=96),
        Stage(block=20, channels=320, side=4, deviation=2.9, mixed=128),
    ),
}
HALVED_TO = {16: 64, 8: 128, 4: 128}  # a head's channels, by the side of their maps
POSITIONS = 4  # along each side, at most, in which a head judges an image
MIXING_SEED = 5
# With the same training.reg_param as R1. With 10 the heads outran the generator within 40 steps; with 100 their logits stayed
# below 1
PENALTY_WEIGHT = 30


def stages_of(config: Config) -> list[Stage]:
    """The stages of the config's frozen network, with the sides that they have for its feature_size."""
    stages = STAGES[config.discriminator.frozen_network]
    return [stage._replace(side=stage.side * config.feature_size // SIZE) for stage in stages]


@functools.cache
def frozen_network(device: torch.device, name: str = EFFICIENTNET, dtype: torch.dtype = torch.float32) -> EfficientNet:
    """The network whose features are judged, with its weights in that dtype. It is no part of the discriminator, which would
    train it, average and save it."""
    with torch.inference_mode(False):  # whoever asks first: others may want gradients
        network = without_norms(feature_network(name))
        if (device.type, dtype) == ("cpu", torch.bfloat16):
            network = with_strides_last(network)
        return network.to(device, dtype, memory_format=torch.channels_last)


class ProjectedDiscriminator(ConditionedDiscriminator):
    """A head for each stage of a frozen EfficientNet-Lite, whose features a fixed random projection mixes before (Projected
    GANs Converge Faster, Sauer et al. 2021; here without their mixing across stages).

    An image's fourth channel is its opacity, which the frozen network does not know and each head sees beside the features. A
    condition enters by projection, as in Discriminator.
    """

    def __init__(self, config: Config, n_classes: int = 1, n_elevations: int = 1):
        """n_elevations: unused, as there are no label heads."""
        super().__init__(config)
        channels, conditioned = config.data.channels, self.config.condition != "none"
        rng = torch.Generator().manual_seed(MIXING_SEED)
        self.heads = nn.ModuleList(Head(stage, channels, conditioned, rng) for stage in stages_of(config))
        self.feature_size = config.feature_size
        self._build_embedding(n_classes)

    def forward(self, images: Tensor, labels: Labels | None = None) -> Scores:
        """Scores of `discriminator_input` (B, C, K, K) in [-1, 1], of any side, with a logit for each position of each head;
        labels where there is a condition."""
        features = self.features(images)
        return Scores(torch.cat(self.logits(features, labels), dim=1).float(), judged=tuple(features))

    def gradient_penalty(self, reg_type: str, at: Penalised) -> Tensor:
        """R1 at the features of real images that were judged: the mean over images of the heads' summed |grad|^2, each of its
        mean logit with respect to its features; times PENALTY_WEIGHT. reg_type is not used.

        A penalty at the images would need a double backward pass through the frozen network.
        """
        features = [x.detach().float().requires_grad_() for x in at.judged]
        means = [logits.mean(1).sum() for logits in self.logits(features, at.real_labels)]
        with gradients_by_images_alone():
            gradients = torch.autograd.grad(sum(means), features, create_graph=True)
        return PENALTY_WEIGHT * sum(g.square().sum(dim=(1, 2, 3)).mean() for g in gradients)

    def features(self, images: Tensor) -> list[Tensor]:
        """The features that each head judges, of images (B, C, K, K) in [-1, 1]: (B, mixed, s, s) of its stage, then opacity
        (B, 4, s, s) where images have one."""
        colours, opacity = images.float().tensor_split([3], dim=1)
        colours = colours.contiguous(memory_format=torch.channels_last)  # which is faster
        network, blocks = self.config.frozen_network, [stage.block for stage in STAGES[self.config.frozen_network]]
        frozen = frozen_network(images.device, network, product_dtype(colours))
        outputs = outputs_of(frozen, colours, blocks, self.feature_size)
        return [head.mix(output, opacity) for head, output in zip(self.heads, outputs, strict=True)]

    def logits(self, features: list[Tensor], labels: Labels | None = None) -> list[Tensor]:
        """Logits (B, positions) of each head for its features, above 0 for what looks real."""
        known = None if self.config.condition == "none" else F.normalize(self._embed(labels), dim=-1)
        return [head(x, known) for head, x in zip(self.heads, features, strict=True)]


class Head(nn.Module):
    """Judges the features of a stage: convolutions that halve their side down to POSITIONS, each spectrally normalised."""

    def __init__(self, stage: Stage, channels: int, conditioned: bool, rng: torch.Generator):
        super().__init__()
        # Of standardised features about standardised mixtures, the same in all runs
        mixing = torch.randn(stage.mixed, stage.channels, 1, 1, generator=rng, device="cpu")
        self.register_buffer("mixing", mixing / (stage.deviation * stage.channels**0.5))
        width, layers = stage.mixed + 4 * (channels - 3), []
        for side, halved in HALVED_TO.items():
            if side < stage.side:
                layers += [SpectralConv(width, halved, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
                width = halved
        if stage.side <= POSITIONS:  # nothing to halve
            layers += [SpectralConv(width, HALVED_TO[POSITIONS], 3, padding=1), nn.LeakyReLU(0.2)]
            width = HALVED_TO[POSITIONS]
        self.main = nn.Sequential(*layers)
        self.last = SpectralConv(width, 1, 1)
        self.projection = SpectralConv(width, EMBEDDING_WIDTH, min(POSITIONS, stage.side)) if conditioned else None

    def mix(self, output: Tensor, opacity: Tensor) -> Tensor:
        """Features (B, mixed + 4 or 0, s, s) of the frozen network's (B, C, s, s) and of opacity (B, 1 or 0, K, K)."""
        x = F.conv2d(output, self.mixing)
        if opacity.shape[1]:  # at twice the resolution, four numbers a position
            opacity = F.pixel_unshuffle(F.adaptive_avg_pool2d(opacity, 2 * x.shape[-1]), 2)
            x = torch.cat([x, opacity], dim=1)
        return x

    def forward(self, features: Tensor, known: Tensor | None) -> Tensor:
        """Logits (B, positions) of features (B, mixed + 4 or 0, s, s); known: the embedding (B, EMBEDDING_WIDTH) of labels."""
        x = self.main(features)
        logits = self.last(x).flatten(1)
        if self.projection is not None:
            logits = logits + (self.projection(x).flatten(1) * known).sum(-1, keepdim=True)
        return logits
