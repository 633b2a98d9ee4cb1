"""Two critics of one image: the convolutional discriminator, which learns from these images alone, beside the projected one."""

import dataclasses

from graf.camera import Labels
from graf.config import Config
from graf.models.discriminators.convolutional import ConditionedDiscriminator, Discriminator, Scores
from graf.models.discriminators.penalties import Penalised
from graf.models.discriminators.projected import ProjectedDiscriminator

from torch import Tensor, nn


class MixedDiscriminator(ConditionedDiscriminator):
    """`graf` sees silhouettes and colours, `projected` the features of a frozen network (Sauer et al. 2021). They share
    nothing but the images: each has its own logits, embedding and gradient penalty. In low-resolution steps `graf` is alone.
    """

    def __init__(self, config: Config, n_classes: int = 1, n_elevations: int = 1):
        super().__init__(config)
        self.graf = Discriminator(config, n_classes, n_elevations)
        self.projected = ProjectedDiscriminator(config, n_classes)

    def gradient_penalty(self, reg_type: str, at: Penalised) -> Tensor:
        """The sum of both penalties; that of `graf` alone in low-resolution steps."""
        critics = (self.graf,) if self.graf.is_low_res(at.real) else (self.graf, self.projected)
        return sum(critic.gradient_penalty(reg_type, at) for critic in critics)

    def critic_of(self, weights: dict[str, Tensor]) -> nn.Module:
        """The critic that the weights are for; this network itself for those of a mixed discriminator."""
        return max((self, *self.children()), key=lambda network: len(network.state_dict().keys() & weights.keys()))

    def forward(self, images: Tensor, labels: Labels | None = None) -> Scores:
        """Scores of `discriminator_input` (B, C, K, K) in [-1, 1], those of the heads beside the others, which are alone for
        (B, C, K / 2, K / 2)."""
        if self.graf.is_low_res(images):
            return self.graf(images, labels)
        heads = self.projected(images, labels)
        return dataclasses.replace(self.graf(images, labels), projected_logits=heads.logits, judged=heads.judged)
