"""The encoder: from a real image and its camera to the latents of the object in it, or from the image alone to both.

Legend: B images, Z latents, A angles of a camera where it has to be found, else 0.
"""

from graf.camera import look_at_origin, position_on_sphere, v_of_elevations
from graf.config import Config
from graf.rays import mirrored_images

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE = 32  # pixels, of what it sees of an image
WIDTHS = (32, 64, 128, 128)  # channels of convolutions that each halve the side
HIDDEN = 256
LOG_VARIANCES = (-8.0, 4.0)  # the range of what is found
REMEMBERED = 1600  # images, over which moments are averaged
ANGLES = 2  # azimuth and elevation, which come before the latents
STEEPEST = 80.0  # degrees, of elevations that are found


class Encoder(nn.Module):
    """The latents of a real image, as a Gaussian for each of them (Kingma & Welling, Auto-Encoding Variational Bayes, 2014).

    A generator that reconstructs what it found learns bodies and colours of all objects in the data before a discriminator
    judges their details. While it goes on to reconstruct, it cannot leave any of them out (Larsen et al., Autoencoding beyond
    Pixels, 2016).

    What its network finds is whitened: over many images, latents have mean 0, variance 1 and no correlation, as those that are
    sampled have. Without that the divergence of each image's own latents, which weighs little, leaves most sampled ones where
    no image's are. Whitening follows the moments of the last images as batch normalisation does, from step to step instead of
    within a batch (Huang et al., Decorrelated Batch Normalization, CVPR 2018).

    Of images without cameras that show fronts, which are the same on both sides, it finds the camera too, at the mean distance
    of data.radius: angles are whitened with the latents, and so have the prior's spread. An image and its mirror image have the
    same latents, elevation and opposite azimuths. So what differs between the sides of an image has to come from where it is
    seen from.
    """

    def __init__(self, config: Config, latent_dim: int):
        super().__init__()
        self.data = config.data
        self.n_angles = ANGLES if config.encoder.finds_cameras else 0
        widths = (config.data.channels, *WIDTHS)
        self.convs = nn.ModuleList([nn.Conv2d(n, m, 4, stride=2, padding=1) for n, m in zip(widths, WIDTHS, strict=False)])
        features = WIDTHS[-1] * (SIDE >> len(WIDTHS)) ** 2
        self.hidden = nn.Linear(features + (0 if self.n_angles else 12), HIDDEN)
        self.gaussian = nn.Linear(HIDDEN, self.n_angles + 2 * latent_dim)
        self.register_buffer("centre", torch.zeros(self.n_angles + latent_dim))
        self.register_buffer("whitening", torch.eye(self.n_angles + latent_dim))

    def forward(self, images: Tensor, pose_c2w: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean (B, A + Z) of angles and latents, and the logarithm of the latents' variance (B, Z), before they are whitened,
        of images (B, C, W, W) in [-1, 1], which cameras pose_c2w (B, 3, 4) took; None where they are to be found."""
        if self.n_angles:
            own, mirrored = self._seen(torch.cat([images, mirrored_images(images)]), []).chunk(2)
            found = torch.cat([own[:, :1] - mirrored[:, :1], own[:, 1:] + mirrored[:, 1:]], dim=1) / 2
        else:
            rotation, position = pose_c2w.split([3, 1], dim=2)
            found = self._seen(images, [rotation.flatten(1), position.flatten(1) / self.data.radius[1]])
        mean, log_variance = found.split(len(self.centre), dim=1)
        return mean, log_variance.clamp(*LOG_VARIANCES)

    def _seen(self, images: Tensor, cameras: list[Tensor]) -> Tensor:
        x = F.adaptive_avg_pool2d(images, SIDE)
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.2)
        return self.gaussian(F.leaky_relu(self.hidden(torch.cat([x.flatten(1), *cameras], dim=1)), 0.2))

    def sample(self, mean: Tensor, log_variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        """Latents (B, Z) for the generator from this network's Gaussians, of which `forward` gave the moments, and noise
        (B, Z), and the cameras (B, 3, 4) where it finds them."""
        found = self.whitened(mean + self._of_latents((0.5 * log_variance).exp() * noise))
        angles, latents = found.split([self.n_angles, noise.shape[1]], dim=1)
        return latents, self._cameras(angles) if self.n_angles else None

    def whitened(self, found: Tensor) -> Tensor:
        """Angles and latents (B, A + Z) of mean 0 and variance 1, of ones (B, A + Z) from this network's Gaussians."""
        return (found - self.centre) @ self.whitening.mT

    def _of_latents(self, values: Tensor) -> Tensor:
        """Values (..., Z) of latents behind zeros for the angles: (..., A + Z)."""
        return F.pad(values, (self.n_angles, 0))

    def _cameras(self, angles: Tensor) -> Tensor:
        azimuth_deg = self.data.azimuth_std_deg * angles[:, 0]
        elevation_deg = (self.data.elevation_std_deg * angles[:, 1]).clamp(-STEEPEST, STEEPEST)
        direction = position_on_sphere(azimuth_deg / 360, v_of_elevations(elevation_deg))
        return look_at_origin(sum(self.data.radius) / 2 * direction)

    @torch.no_grad()
    def moments(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """First and second moments (1 + A + Z, A + Z) of what is whitened, from Gaussians, for `follow`. Those of a batch are
        the weighted sum of those of its parts. Where azimuths are found, they are those of images and mirror images."""
        found = self.whitened(mean)
        variances = (self.whitening * self._of_latents(log_variance.exp().mean(0))) @ self.whitening.mT
        moments = torch.cat([found.mean(0, keepdim=True), found.mT @ found / len(found) + variances])
        if self.n_angles:  # an azimuth and its opposite have no mean, nor anything in common with the rest
            moments[0, 0] = 0
            moments[1, 1:] = 0
            moments[2:, 0] = 0
        return moments

    @torch.no_grad()
    def follow(self, moments: Tensor, n_images: int, learned: Tensor) -> None:
        """Let the whitening follow the moments of a step's images, unless the step was skipped: then `learned` (a bool) is
        false, and they may not be finite."""
        moments = torch.where(learned, moments, 0).to(self.centre)
        share = min(1.0, n_images / REMEMBERED) * learned
        shift, second = share * moments[0], moments[1:]
        # What is whitened is whitened once more: its covariance is near 1, and has a root in float32 whatever the network finds
        identity = torch.eye(len(shift), device=shift.device)
        factor, _ = torch.linalg.cholesky_ex(identity.lerp(second, share) - shift.outer(shift))
        self.centre += torch.linalg.solve_triangular(self.whitening, shift[:, None], upper=False)[:, 0]
        self.whitening.copy_(torch.linalg.solve_triangular(factor, self.whitening, upper=False))


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The Kullback-Leibler divergence (B,), in nats, of Gaussians from the one of mean 0 and variance 1, by their means
    (B, A + Z) and the logarithms of variances (B, Z): angles add half of their squares. That of what is found before it is
    whitened holds its scale, to which nothing else is sensitive."""
    return 0.5 * (mean.square().sum(1) + (log_variance.exp() - 1 - log_variance).sum(1))
