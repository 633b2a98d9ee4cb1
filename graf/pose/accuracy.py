"""Cameras read off images by a pose estimator: of generated views, whose cameras are known, and of held-out photographs."""

import contextlib
from collections.abc import Callable, Sequence

from graf.camera import Labels
from graf.data import Views
from graf.metrics.shapes import Subject
from graf.pictures.sampling import fresh_renderings, labels_of
from graf.pose.loading import TrainedEstimator
from graf.pose.splits import posed_splits
from graf.rotations import pose_errors
from graf.runtime.retry import retry_halved

import torch
from torch import Tensor, nn
from torch.nn import functional as F

READ_AT_ONCE = 64  # images
GUESSES = 64  # others of each image, at most, that its camera is guessed to be
NEAR_DEG = 15.0  # azimuth errors that count as right


@torch.no_grad()
def read_cameras(
    network: nn.Module,
    images_of: Callable[[Sequence[int]], Tensor],
    n: int,
    device: torch.device | str,
    autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> Tensor:
    """pose_c2w (n, 3, 4) on the CPU of n images, of which `images_of(rows)` gives some (B, 3, H, W) in [-1, 1]."""

    def read(size: int) -> Tensor:
        found = []
        for start in range(0, n, size):
            images = images_of(range(start, min(start + size, n))).to(device)
            with autocast():
                found.append(network(images).float().cpu())
        return torch.cat(found)

    was_training = network.training
    network.eval()
    try:
        return retry_halved(read, READ_AT_ONCE, "reading cameras off images")
    finally:
        network.train(was_training)


def cameras_of(estimator: TrainedEstimator, images: Tensor) -> Tensor:
    """pose_c2w (N, 3, 4) on the CPU of images (N, 3, H, W) in [-1, 1], which are brought to the size that it was trained on."""
    side, device = estimator.config.data.imsize, estimator.network.distance.device

    def some(rows: Sequence[int]) -> Tensor:
        part = images[rows.start : rows.stop].clamp(-1, 1)
        if part.shape[-2:] == (side, side):
            return part
        return F.interpolate(part, (side, side), mode="bilinear", antialias=True, align_corners=False)

    return read_cameras(estimator.network, some, len(images), device)


def photographs_of(views: Views) -> Callable[[Sequence[int]], Tensor]:
    """What gives rows of a data set as images (B, 3, W, W)."""
    return lambda rows: torch.stack([views[row]["image"] for row in rows])


def accuracy(predicted: Tensor, true: Tensor) -> dict[str, float]:
    """Median errors of pose_c2w (N, 3, 4) in degrees, and the share of azimuths within 15 degrees."""
    errors = pose_errors(predicted, true)
    medians = {name: float(values.median()) for name, values in errors._asdict().items()}
    return medians | {"within_15_deg": float((errors.azimuth_deg < NEAR_DEG).float().mean())}


def doubt(estimator: TrainedEstimator) -> str:
    """What is said against cameras that the estimator reads, by its newest validation; empty where they are good."""
    if not estimator.validation:
        return f"{estimator.checkpoint}: was never validated, so that nobody knows how far its cameras are off; train it longer"
    read, true = (estimator.validation[name].cpu() for name in ("predicted_pose", "target_pose"))
    error, guess = accuracy(read, true)["azimuth_deg"], _guess_deg(true)
    if error <= min(NEAR_DEG, guess / 2):
        return ""
    return (
        f"{estimator.checkpoint}: reads azimuths with a median error of {error:.1f} degrees on images that it was not trained "
        f"on, where guessing has {guess:.0f}; cameras that it reads are as far off, so train it longer"
    )


def _guess_deg(true: Tensor) -> float:
    """Median azimuth error in degrees where each of the cameras (N, 3, 4) is guessed to be another of them."""
    turns = range(1, min(len(true), GUESSES))
    if not turns:
        return 90.0
    return float(
        pose_errors(torch.cat([true.roll(turn, 0) for turn in turns]), true.repeat(len(turns), 1, 1)).azimuth_deg.median()
    )


def pose_accuracy(subject: Subject, estimator: TrainedEstimator) -> dict:
    """How well the cameras of fresh samples are read back off them, and of photographs that the estimator has not seen: the
    floor, below which its own errors hide those of the generator. Ready for JSON."""
    config, draw, asked = subject.config, labels_of(subject.dataset, subject.config.data), []

    def noted(n: int, rng: torch.Generator) -> Labels:
        labels = draw(n, rng)
        asked.append(labels.pose_c2w)
        return labels

    renderings = fresh_renderings(
        subject.generator, noted, subject.n, config.metrics.batch_size, subject.seed, truncation=subject.truncation
    )
    read = torch.cat([cameras_of(estimator, rendering.images) for rendering in renderings])
    held_out = posed_splits(estimator.config).test
    device = estimator.network.distance.device
    floor = accuracy(read_cameras(estimator.network, photographs_of(held_out), len(held_out), device), held_out.labels.pose_c2w)
    found = accuracy(read, torch.cat(asked).cpu())
    floor = {f"floor_{name}": value for name, value in floor.items()}
    return found | floor | {"floor_images": len(held_out), "estimator_sha256": estimator.sha256, **subject.terms}
