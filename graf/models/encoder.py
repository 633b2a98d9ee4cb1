"""The encoder: from a real image and its camera to the latents of the object in it."""

from graf.config import Config

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE = 32  # pixels, of what it sees of an image
WIDTHS = (32, 64, 128, 128)  # channels of convolutions that each halve the side
HIDDEN = 256
LOG_VARIANCES = (-8.0, 4.0)  # the range of what is found


class Encoder(nn.Module):
    """The latents of a real image, as a Gaussian for each of them (Kingma & Welling, Auto-Encoding Variational Bayes, 2014).

    A generator that reconstructs what it found learns bodies and colours of all objects in the data before a discriminator
    judges their details. While it goes on to reconstruct, it cannot leave any of them out (Larsen et al., Autoencoding beyond
    Pixels, 2016).
    """

    def __init__(self, config: Config, latent_dim: int):
        super().__init__()
        self.distance = config.data.radius[1]
        widths = (config.data.channels, *WIDTHS)
        self.convs = nn.ModuleList([nn.Conv2d(n, m, 4, stride=2, padding=1) for n, m in zip(widths, WIDTHS, strict=False)])
        features = WIDTHS[-1] * (SIDE >> len(WIDTHS)) ** 2
        self.hidden = nn.Linear(features + 12, HIDDEN)
        self.gaussian = nn.Linear(HIDDEN, 2 * latent_dim)

    def forward(self, images: Tensor, pose_c2w: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the variance (B, Z) of the latents of images (B, C, W, W) in [-1, 1], which cameras pose_c2w
        (B, 3, 4) took."""
        x = F.adaptive_avg_pool2d(images, SIDE)
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.2)
        rotation, position = pose_c2w.split([3, 1], dim=2)
        found = torch.cat([x.flatten(1), rotation.flatten(1), position.flatten(1) / self.distance], dim=1)
        mean, log_variance = self.gaussian(F.leaky_relu(self.hidden(found), 0.2)).chunk(2, dim=1)
        return mean, log_variance.clamp(*LOG_VARIANCES)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The Kullback-Leibler divergence (B,), in nats, of Gaussians (B, Z) from the one of mean 0 and variance 1."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
