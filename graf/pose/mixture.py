"""A pose estimator that answers with a distribution over azimuths: the front and the rear of a car may look alike.

Legend: B images, K components of the mixture, one per bin of the circle, A = 360 arcs of a degree.
"""

import dataclasses
import functools
import math

from graf.camera import azimuth_and_v, poses_at
from graf.config.schema import PoseModelConfig
from graf.pose.network import PoseEstimator
from graf.rotations import NEAR_DEG

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, VonMises
from torch.nn import functional as F

ARCS = 360
NEAR_ARCS = int(NEAR_DEG)  # to either side of an answer; what is within them counts as the same answer
MEAN_SHIFTS = 8  # steps from a sample to the peak that it is from (Comaniciu and Meer 2002)
SHARPEST = 1000.0  # concentration of a component, 1.8 degrees of standard deviation: an arc is no wider


@dataclasses.dataclass(frozen=True)
class CameraMixture:
    """The likely cameras of B images: a mixture of von Mises distributions over the azimuth, and one height.

    logits (B, K) of the components; centre_deg (B, K) in degrees; concentration (B, K) in [1, 1000]; v (B,) in [0, 1].
    """

    logits: Tensor
    centre_deg: Tensor
    concentration: Tensor
    v: Tensor

    def log_prob(self, azimuth_deg: Tensor) -> Tensor:
        """Log density (..., B), per radian, of azimuths (..., B) in degrees."""
        centre = _wrapped(torch.deg2rad(self.centre_deg))
        components = VonMises(centre, self.concentration, validate_args=False)
        mixture = MixtureSameFamily(Categorical(logits=self.logits), components, validate_args=False)
        return mixture.log_prob(_wrapped(torch.deg2rad(azimuth_deg)))

    @functools.cached_property
    def shares(self) -> Tensor:
        """Probability (B, A) of each arc from a whole degree to the next; a row's sum is 1."""
        middles = torch.arange(ARCS, device=self.v.device) + 0.5
        return self.log_prob(middles[:, None].expand(-1, len(self.v))).T.softmax(dim=1)

    def sample(self, rng: torch.Generator) -> Tensor:
        """An azimuth (B,) in [0, 360) of each image, at random by its probability; on the CPU, where `rng` is."""
        arcs = torch.multinomial(self.shares.cpu(), 1, generator=rng)[:, 0]
        return arcs + torch.rand(len(arcs), generator=rng)

    def sample_answer(self, rng: torch.Generator) -> Tensor:
        """One of the azimuths (B,) in [0, 360) that each image may have, such as its front's or its rear's, at random by its
        probability: the middle of the peak that a sample is from, so that a peak's width adds no error."""
        azimuth_deg = self.sample(rng).to(self.v.device)
        for _ in range(MEAN_SHIFTS):
            azimuth_deg = self._mean_near(azimuth_deg.round().long() % ARCS)
        return azimuth_deg

    def most_likely(self) -> Tensor:
        """The azimuth (B,) in [0, 360) of each image: the mean over the 30 degrees that are most probable together."""
        return self._mean_near(_near(self.shares).argmax(dim=1))

    def _mean_near(self, degree: Tensor) -> Tensor:
        """The mean (B,) over the 30 degrees about whole degrees (B,), by their probability."""
        offsets = torch.arange(-NEAR_ARCS, NEAR_ARCS, device=degree.device)
        weights = self.shares.gather(1, (degree[:, None] + offsets) % ARCS)
        return (degree + (weights * (offsets + 0.5)).sum(1) / weights.sum(1)) % ARCS

    def confidence(self, azimuth_deg: Tensor) -> Tensor:
        """Probability (B,) that the true azimuth is within 15 degrees, to a degree, of azimuth_deg (B,)."""
        shares = self.shares
        place = (azimuth_deg.to(shares.device).round().long() % ARCS)[:, None]
        return _near(shares).gather(1, place)[:, 0]


class MixtureEstimator(PoseEstimator):
    """Predicts a `CameraMixture` of images whose cameras look at the origin, upright, from one distance."""

    def __init__(self, config: PoseModelConfig, distance: float = 1.0):
        super().__init__(config, distance, n_outputs=3 * config.azimuth_bins + 1)
        self.n_bins = config.azimuth_bins

    def forward(self, images: Tensor) -> Tensor:
        """pose_c2w (B, 3, 4) of the most likely cameras of images (B, 3, H, W) in [-1, 1]."""
        mixture = self.mixture(images)
        return poses_at(mixture.most_likely(), mixture.v, self.distance)

    def mixture(self, images: Tensor) -> CameraMixture:
        """The cameras that images (B, 3, H, W) in [-1, 1] may have; float32, under autocast too."""
        return self.mixture_of(self.output(images))

    def mixture_of(self, output: Tensor) -> CameraMixture:
        """The mixture that the network's output (B, 3 K + 1) says."""
        logits, offset, sharpness = output[:, :-1].unflatten(1, (3, self.n_bins)).unbind(1)
        width = 360 / self.n_bins
        centres = width * (torch.arange(self.n_bins, device=output.device) + 0.5)
        concentration = (1 + F.softplus(sharpness + self.n_bins / 4)).clamp_max(SHARPEST)
        return CameraMixture(logits, centres + width * offset.tanh(), concentration, output[:, -1].sigmoid())


def mixture_losses(mixture: CameraMixture, pose_c2w: Tensor, height_weight: Tensor) -> tuple[Tensor, Tensor]:
    """The mean negative log likelihood of the azimuths of pose_c2w (B, 3, 4), per radian, and the mean error of their heights,
    by weights (B,), in units of the camera's distance."""
    azimuth_deg, v = azimuth_and_v(pose_c2w)
    return -mixture.log_prob(azimuth_deg).mean(), 2 * (height_weight * (mixture.v - v).abs()).mean()


def _wrapped(angle: Tensor) -> Tensor:
    """An angle in radians, in [-pi, pi), where PyTorch's VonMises has it."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def _near(shares: Tensor) -> Tensor:
    """Probability (B, A) of the 30 arcs about each whole degree."""
    around = F.pad(shares, (NEAR_ARCS, NEAR_ARCS - 1), mode="circular")
    return around.unfold(1, 2 * NEAR_ARCS, 1).sum(dim=2)


def build_estimator(config: PoseModelConfig, distance: float = 1.0) -> PoseEstimator:
    """The estimator of a config, untrained; `distance` as `PoseEstimator` has it."""
    return (MixtureEstimator if config.azimuth_bins else PoseEstimator)(config, distance)
