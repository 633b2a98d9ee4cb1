"""A training step of the pose estimator: losses of cameras, and images recoloured and mirrored.

Legend: B images of a step, or of a part of one.
"""

import logging
from functools import partial

from graf.camera import Labels
from graf.pose.state import PoseState
from graf.rays import mirrored_images
from graf.runtime.guard import retry_smaller
from graf.training.accumulation import LossOfRows, Stats, accumulate, all_reduced, optimize, shrinking, whole_step

import torch
from torch import Tensor

log = logging.getLogger("graf")

ROUNDING = 1e-4  # added to squared errors under a root, whose slope is infinite at 0
LARGEST_GAIN = 0.3  # of recoloured photographs: exp of a number in +- this


def pose_step(state: PoseState, images: Tensor, labels: Labels) -> Stats:
    """One step on photographs (B, 3 or 4, W, W) with their cameras. Returns its scalars, and raises as `whole_step`."""
    images = images[:, :3].to(state.device, non_blocking=True)
    poses = labels.pose_c2w.to(state.device)
    training = state.config.training

    def drawn_loss() -> LossOfRows:
        n = len(images) * state.processes.world_size  # of all processes, of which each has its rows
        coins, order, gains = (torch.rand(n, *shape, generator=state.draws) for shape in ((), (3,), (3,)))
        mine = state.processes.rows
        shown, seen_from = images, poses
        if training.recolour:
            shown = recoloured(shown, order[mine].argsort(1).to(shown.device), gains[mine].to(shown.device))
        if training.mirror:
            shown, seen_from = mirrored(shown, seen_from, (coins[mine] < 0.5).to(shown.device))
        return lambda rows: _loss(state, shown[rows], seen_from[rows])

    def train() -> Stats:
        n = len(images) * state.processes.world_size
        gradients = partial(accumulate, state, drawn_loss, n, state.estimator, state.optimizer, state.scaler)
        sums = retry_smaller(gradients, shrinking(state), f"step {state.step}", state.processes)
        stats = all_reduced(*sums, state.processes)
        return stats | {"grad_norm": optimize(state, state.estimator, state.optimizer, state.scaler, stats)}

    return whole_step(state, images, train)


def _loss(state: PoseState, images: Tensor, poses: Tensor) -> tuple[Tensor, Stats]:
    with state.amp.autocast():
        predicted = state.estimator(images)
    rotation, translation = pose_losses(predicted, poses, state.estimator.distance)
    return rotation + translation, {"loss": rotation + translation, "loss_rotation": rotation, "loss_translation": translation}


def pose_losses(predicted: Tensor, true: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean distances of pose_c2w (B, 3, 4): of rotations as matrices, 2 sqrt(2) sin(angle / 2), and of positions / distance.

    They are not squared: where a view leaves two answers, their mean is the worst guess.
    """
    squared = (predicted - true).square()
    rotation = (squared[..., :3].sum((1, 2)) + ROUNDING).sqrt().mean()
    translation = (squared[..., 3].sum(1) / distance**2 + ROUNDING).sqrt().mean()
    return rotation, translation


def recoloured(images: Tensor, order: Tensor, share: Tensor) -> Tensor:
    """Images (B, 3, W, W) with their channels in another order (B, 3), each nearer to white or further from it.

    share (B, 3) in [0, 1): 0.5 leaves a channel as it is. White, the background, stays white.
    """
    swapped = images.gather(1, order[:, :, None, None].expand_as(images))
    gain = torch.exp(LARGEST_GAIN * (2 * share - 1))[:, :, None, None]
    return 1 - (1 - swapped) * gain


def mirrored(images: Tensor, poses: Tensor, coins: Tensor) -> tuple[Tensor, Tensor]:
    """Images (B, 3, W, W) and pose_c2w (B, 3, 4), mirrored where coins (B,) say so: left and right, and at the plane y = 0.

    The camera's own x axis turns round too, which leaves a rotation: diag(1, -1, 1) R diag(-1, 1, 1).
    """
    world = poses.new_tensor([1.0, -1.0, 1.0])[:, None]
    camera = poses.new_tensor([-1.0, 1.0, 1.0, 1.0])
    pick = coins[:, None, None]
    return torch.where(pick[..., None], mirrored_images(images), images), torch.where(pick, world * poses * camera, poses)
