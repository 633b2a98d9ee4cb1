"""The inversion loss, the difference between target images and renderings of an object, and its optimisation.

Legend: H hypotheses, N target images of one object, P pairs of both, Z latents, w side of the images compared.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from graf.camera import Labels, poses_at
from graf.config import Config
from graf.models.generator import NOISE_STEPS, Generator
from graf.models.perception import feature_distance, features_of
from graf.rays import full_grid, low_resolution_grid
from graf.tensors import Rows

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

RAYS_AT_ONCE = 4096  # with gradients: about half a gigabyte of the default field
POLE = 1e-3  # least distance of v from 0 and 1, where azimuth has no gradient


@dataclasses.dataclass(frozen=True)
class InversionSettings:
    """Settings of the search and of the loss.

    azimuths, heights: first guesses of the camera over the config's range; search_size, fit_size: about how many pixels a side
    are compared; rates: Adam's, in standard deviations of the latents, degrees, and v. The loss is the mean square of pixel
    differences, feature_weight times that of features, and latent_weight times the mean square of the latents.
    """

    azimuths: int = 24
    heights: int = 3
    search_size: int = 32
    search_steps: int = 20
    fit_size: int = 64
    fit_steps: int = 100
    latent_rate: float = 0.1
    azimuth_rate: float = 3.0
    v_rate: float = 0.01
    feature_weight: float = 0.05
    latent_weight: float = 0.01
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Hypotheses(Rows):
    """H objects, latents (H, Z) and class_index (H,), each with N cameras, azimuth_deg and v (H, N)."""

    latents: Tensor
    class_index: Tensor
    azimuth_deg: Tensor
    v: Tensor

    def __len__(self) -> int:
        return len(self.latents)

    @staticmethod
    def cat(parts: Sequence["Hypotheses"]) -> "Hypotheses":
        return Hypotheses(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


@dataclasses.dataclass(frozen=True)
class InversionLoss:
    """The loss between targets (N, 3, w, w) and renderings of an object through the grid (1, w, w, 2).

    Cameras are those of the hypotheses unless poses (N, 3, 4) are known. Without a network, only pixels are compared.
    rays_at_once: as for `Generator.forward`.
    """

    generator: Generator
    settings: InversionSettings
    targets: Tensor
    grid: Tensor
    poses: Tensor | None
    network: EfficientNet | None
    features: list[Tensor]
    rays_at_once: int = 0

    def for_target(self, n: int) -> "InversionLoss":
        """The loss of target n alone, by pixels only."""
        return dataclasses.replace(self, targets=self.targets[n : n + 1], network=None, features=[])

    def poses_of(self, h: Hypotheses) -> Tensor:
        """The cameras (H, N, 3, 4) of the hypotheses, or the known poses."""
        if self.poses is not None:
            return self.poses.expand(len(h), -1, -1, -1)
        return poses_at(h.azimuth_deg, h.v, sum(self.generator.config.data.radius) / 2)

    def render(self, latents: Tensor, class_index: Tensor, pose_c2w: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Images (P, 3, w, w); with `rng`, from fewer and jittered samples per ray, as in training."""
        labels = Labels(pose_c2w, class_index, torch.zeros_like(class_index))
        config, noise = self.generator.config, None
        if rng is not None:
            n_rays = self.grid[..., 0].numel() // config.rendered_scale**2
            noise = self.generator.sample_noise(len(latents), NOISE_STEPS, rng, n_rays)
        return self.generator(latents, labels, self.grid, config.data.imsize, noise, self.rays_at_once).images

    def losses(self, h: Hypotheses, i: Tensor, n: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Losses (P,) of pairs: hypotheses i (P,) with targets n (P,)."""
        images = self.render(h.latents[i], h.class_index[i], self.poses_of(h)[i, n], rng)
        loss = (images - self.targets[n]).square().mean(dim=(1, 2, 3))
        if self.network is not None:
            distance = feature_distance(features_of(self.network, images), [known[n] for known in self.features])
            loss = loss + self.settings.feature_weight * distance
        return loss + self.settings.latent_weight * h.latents[i].square().mean(dim=1)

    @torch.no_grad()
    def evaluate(self, h: Hypotheses) -> Tensor:
        """Mean losses (H,) over targets, rendered without jitter."""
        return torch.cat([self.losses(h, *pairs) for pairs in self._pairs(h)]).view(len(h), -1).mean(dim=1)

    def fit(self, h: Hypotheses, steps: int, bar: tqdm | None) -> tuple[Hypotheses, Tensor]:
        """Optimise each hypothesis independently; return them and their losses (H,). Known cameras are kept."""
        rates = {"latents": self.settings.latent_rate}
        if self.poses is None:
            rates |= {"azimuth_deg": self.settings.azimuth_rate, "v": self.settings.v_rate}
        h = Hypotheses(*(x.clone() for x in vars(h).values()))
        learned = [getattr(h, name).requires_grad_() for name in rates]
        groups = [{"params": [x], "lr": rate} for x, rate in zip(learned, rates.values(), strict=True)]
        optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
        rng = torch.Generator(self.grid.device).manual_seed(self.settings.seed)
        for _ in range(steps):
            optimizer.zero_grad()
            for i, n in self._pairs(h):
                loss = self.losses(h, i, n, rng).sum() / len(self.targets)
                loss.backward(inputs=learned)
                if bar is not None:
                    bar.update(len(i))
            optimizer.step()
            schedule.step()
            keep_in_range(h, self.generator.config)
        h = Hypotheses(*(x.detach() for x in vars(h).values()))
        return h, self.evaluate(h)

    def _pairs(self, h: Hypotheses) -> Iterator[tuple[Tensor, Tensor]]:
        """The indices i and n of all pairs of a hypothesis and a target, some pairs at a time."""
        n = len(self.targets)
        rays = self.targets[0, 0].numel() // self.generator.config.rendered_scale**2
        for pairs in torch.arange(len(h) * n, device=self.grid.device).split(max(1, RAYS_AT_ONCE // rays)):
            yield pairs // n, pairs % n


def inversion_loss(
    generator: Generator,
    targets: Tensor,
    poses: Tensor | None,
    settings: InversionSettings,
    size: int,
    network: EfficientNet | None,
) -> InversionLoss:
    """The loss of targets (N, 3, W, W) at about `size` pixels per side."""
    width = targets.shape[-1]
    factor = pooling(width, size, generator.config.rendered_scale)
    grid = low_resolution_grid(full_grid(width, targets.device), factor)
    small = F.avg_pool2d(targets, factor)
    features = [] if network is None else features_of(network, small)
    return InversionLoss(generator, settings, small, grid, poses, network, features)


def pooling(width: int, size: int, scale: int) -> int:
    """The factor that pools `width` pixels to about `size`, which remains a multiple of `scale`."""
    factors = [k for k in range(1, width + 1) if width % (k * scale) == 0]
    return min(factors, key=lambda k: abs(math.log(width / (k * size))))


@torch.no_grad()
def keep_in_range(h: Hypotheses, config: Config) -> None:
    """Move cameras that left the config's range to its nearer end, and off the poles; clamp uniform latents to their range. In
    place."""
    (left, right), (top, bottom) = config.data.u_range, config.data.v_range
    h.v.clamp_(max(top, POLE), min(bottom, 1 - POLE))
    if right - left < 1:
        middle_deg = 180 * (left + right)
        h.azimuth_deg.add_(180 - middle_deg).remainder_(360).add_(middle_deg - 180).clamp_(360 * left, 360 * right)
    if config.z_dist.type == "uniform":
        h.latents.clamp_(-1, 1)
