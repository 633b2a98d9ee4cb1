"""A training step of the pose estimator: camera losses, and augmentation by recolouring, blur, framing and mirroring.

Legend: B images of a step, or of a part of one.
"""

import dataclasses
import math

from graf.camera import Labels
from graf.pose.mixture import MixtureEstimator, mixture_losses
from graf.pose.state import PoseState
from graf.rays import cut_patch, full_grid, mirrored_where
from graf.tensors import Rows
from graf.training.inputs import in_one_copy
from graf.training.learn import Stats, learn, retried, whole_step

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-4  # added to squared errors under a root, whose slope is infinite at 0
NO_BLUR = 0.1  # pixels; a smaller Gaussian changes nothing
KEPT_FRAMES = 0.5  # of a mixture's images, where training.reframe changes the others
PLACES_PER_SIZE = 0.3  # as in graf/photographs/cropping.py: spread of places, in frames, by that of log sizes
LARGEST_GAIN = 0.3  # of recolouring: exp of a number in +- this


@dataclasses.dataclass(frozen=True)
class PoseBatch(Rows):
    """Augmented images (B, 3, W, W) in [-1, 1] with their pose_c2w (B, 3, 4), and the weight (B,) of the error of a height."""

    images: Tensor
    pose_c2w: Tensor
    height_weight: Tensor

    def __len__(self) -> int:
        return len(self.images)


def pose_step(state: PoseState, images: Tensor, labels: Labels) -> Stats:
    """One step on images (B, 3 or 4, W, W) with their cameras. Returns and raises as graf.training.step.train_step."""
    with whole_step(state):
        stats = learn(state, state.player, sample_batch(state, images, labels), pose_objective)
    return stats | state.learning_rates()


def sample_batch(state: PoseState, images: Tensor, labels: Labels) -> PoseBatch:
    """This process's images, augmented at random as the keys of `training` say."""
    training = state.config.training

    def sample() -> PoseBatch:
        shown = images[:, :3].to(state.device, non_blocking=state.device.type == "cuda")
        n = len(images) * state.processes.world_size  # sampled for all processes; each takes its part
        coins, order, gains = (torch.rand(n, *shape, generator=state.rng) for shape in ((), (3,), (3,)))
        sigmas = training.blur * torch.rand(n, generator=state.rng) if training.blur else torch.zeros(n)
        sampled = order.argsort(1), gains, coins < 0.5, sigmas, *sample_frames(state, n)
        own = tuple(values[state.processes.rank_slice] for values in sampled)
        poses, orders, gains, flips, sigmas, frames, height_weight = in_one_copy((labels.pose_c2w, *own), state.device)
        if training.recolour:
            shown = recoloured(shown, orders, gains)
        if training.blur:
            shown = blurred(shown, sigmas, training.blur)
        if training.reframe:
            shown = reframed(shown, frames[:, :1], frames[:, 1:])
        if training.mirror:
            shown, poses = mirrored(shown, poses, flips)
        return PoseBatch(shown, poses, height_weight)

    return retried(state, sample)


def sample_frames(state: PoseState, n: int) -> tuple[Tensor, Tensor]:
    """Log sizes and shifts (n, 3) for `reframed`, and the weight (n,) of the error of a height.

    A mixture learns azimuths from all images, and heights from the half that keep their frames: a place in the frame tells the
    camera's height.
    """
    reframe = state.config.training.reframe
    if not reframe:
        return torch.zeros(n, 3), torch.ones(n)
    spreads = reframe * torch.tensor([1.0, PLACES_PER_SIZE, PLACES_PER_SIZE])
    frames = spreads * torch.cat([torch.randn(n, k, generator=state.rng) for k in (1, 2)], dim=1)
    if not isinstance(state.estimator, MixtureEstimator):
        return frames, torch.ones(n)
    kept = torch.rand(n, generator=state.rng) < KEPT_FRAMES
    return frames * ~kept[:, None], kept / KEPT_FRAMES


def pose_objective(state: PoseState, batch: PoseBatch) -> tuple[Tensor, Stats]:
    """The sum of two losses on B images, and values for the log: of rotation and translation, or of azimuth and height where
    the estimator answers with a mixture."""
    if isinstance(state.estimator, MixtureEstimator):
        with state.amp.autocast():
            mixture = state.estimator.mixture(batch.images)
        azimuth, height = mixture_losses(mixture, batch.pose_c2w, batch.height_weight)
        return azimuth + height, {"loss": azimuth + height, "loss_azimuth": azimuth, "loss_height": height}
    with state.amp.autocast():
        predicted = state.estimator(batch.images)
    rotation, translation = pose_losses(predicted, batch.pose_c2w, state.estimator.distance)
    return rotation + translation, {"loss": rotation + translation, "loss_rotation": rotation, "loss_translation": translation}


def pose_losses(predicted: Tensor, true: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean errors of pose_c2w (B, 3, 4): rotation, as 2 sqrt(2) sin(angle / 2), and position, in units of `distance`.

    They are not squared: where a view allows two answers, their mean is the worst guess.
    """
    squared = (predicted - true).square()
    rotation = (squared[..., :3].sum((1, 2)) + EPSILON).sqrt().mean()
    translation = (squared[..., 3].sum(1) / distance**2 + EPSILON).sqrt().mean()
    return rotation, translation


def recoloured(images: Tensor, order: Tensor, gain: Tensor) -> Tensor:
    """Images (B, 3, W, W) with their channels in another order (B, 3), each moved towards white or away from it.

    gain (B, 3) in [0, 1): 0.5 leaves a channel as it is. White, the background, stays white.
    """
    swapped = images.gather(1, order[:, :, None, None].expand_as(images))
    return 1 - (1 - swapped) * torch.exp(LARGEST_GAIN * (2 * gain - 1))[:, :, None, None]


def blurred(images: Tensor, sigma: Tensor, largest: float) -> Tensor:
    """Images (B, 3, W, W), each blurred by a Gaussian of its own standard deviation (B,), in pixels, `largest` at most."""
    reach = math.ceil(2 * largest)
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    kernels = torch.exp(-((offsets / sigma[:, None].clamp_min(NO_BLUR)) ** 2) / 2).repeat_interleave(3, dim=0)  # (3 B, K)
    kernels = (kernels / kernels.sum(1, keepdim=True)).to(images.dtype)
    planes = F.pad(images, (reach,) * 4, mode="replicate").flatten(0, 1)[None]  # (1, 3 B, W + 2 reach, W + 2 reach)
    planes = F.conv2d(planes, kernels[:, None, :, None], groups=planes.shape[1])
    return F.conv2d(planes, kernels[:, None, None, :], groups=planes.shape[1])[0].unflatten(0, (-1, 3))


def reframed(images: Tensor, log_size: Tensor, shift: Tensor) -> Tensor:
    """Images (B, 3, W, W) whose contents are exp(log_size) (B, 1) times as large, about W / 2, and shifted (B, 2) to the right
    and down, in frames. Pixels at the border stand in for what lies outside."""
    width = images.shape[-1]
    scale, moved = log_size.exp()[:, None, None], width * shift[:, None, None]
    return cut_patch(images, (full_grid(width, images.device) - width / 2 - moved) / scale + width / 2)


def mirrored(images: Tensor, poses: Tensor, flip: Tensor) -> tuple[Tensor, Tensor]:
    """Images (B, 3, W, W) and pose_c2w (B, 3, 4), mirrored at the plane y = 0 where `flip` (B,) is true."""
    return mirrored_where(flip, images), Labels.of_poses(poses).mirrored(flip, 0).pose_c2w
