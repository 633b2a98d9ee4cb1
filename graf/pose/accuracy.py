"""Cameras that a pose estimator reads off images, and their errors on generated views and on held-out real images."""

import contextlib
from collections.abc import Callable, Iterator

from graf.data import Views
from graf.errors import GrafError
from graf.metrics.shapes import Subject
from graf.pictures.sampling import fresh_renderings, labels_as_in_data, recorded
from graf.pose.loading import TrainedEstimator
from graf.pose.mixture import CameraMixture, MixtureEstimator
from graf.pose.splits import posed_splits
from graf.rotations import NEAR_DEG, pose_errors
from graf.runtime.retry import retry_halved

import torch
from torch import Tensor, nn
from torch.nn import functional as F

READ_AT_ONCE = 64  # images
GUESSES = 64  # guesses per camera, at most


@torch.no_grad()
def read_cameras(
    network: nn.Module,
    images_of: Callable[[range], Tensor],
    n: int,
    device: torch.device | str,
    autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    answer: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """pose_c2w (n, 3, 4) on the CPU of n images; `images_of(indices)` returns a batch of them (B, 3, H, W) in [-1, 1].

    answer: a method of the network, whose answers (n, ...) are returned instead.
    """
    answer = answer or network

    def read_all(size: int) -> Tensor:
        found = []
        for start in range(0, n, size):
            images = images_of(range(start, min(start + size, n))).to(device)
            with autocast():
                found.append(answer(images).float().cpu())
        return torch.cat(found)

    was_training = network.training
    network.eval()
    try:
        return retry_halved(read_all, READ_AT_ONCE, "reading cameras off images")
    finally:
        network.train(was_training)


def cameras_of(estimator: TrainedEstimator, images: Tensor) -> Tensor:
    """pose_c2w (N, 3, 4) on the CPU of images (N, 3, H, W) in [-1, 1], resized to the estimator's data.imsize."""
    network = estimator.network
    return read_cameras(network, _resized(images, estimator.config.data.imsize), len(images), network.distance.device)


def confidence_of(estimator: TrainedEstimator, images: Tensor) -> Tensor | None:
    """The probability (N,) that each azimuth of `cameras_of` is right to 15 degrees; None for an estimator without a
    distribution."""
    if not isinstance(estimator.network, MixtureEstimator):
        return None
    found = mixtures(estimator, _resized(images, estimator.config.data.imsize), len(images))
    return torch.cat([mixture.confidence(mixture.most_likely()) for mixture in found])


def mixtures(estimator: TrainedEstimator, images_of: Callable[[range], Tensor], n: int) -> Iterator[CameraMixture]:
    """The cameras that n images may have, in their order, a hundred images at a time; `images_of` as `read_cameras` takes it.
    Raises GrafError for an estimator without a distribution."""
    network = estimator.network
    if not isinstance(network, MixtureEstimator):
        raise GrafError(f"{estimator.checkpoint}: gives one camera per image; train it with model.azimuth_bins=24")
    outputs = read_cameras(network, images_of, n, network.distance.device, answer=network.output)
    yield from map(network.mixture_of, outputs.split(100))


def _resized(images: Tensor, side: int) -> Callable[[range], Tensor]:
    def resized(indices: range) -> Tensor:
        part = images[indices.start : indices.stop].clamp(-1, 1)
        if part.shape[-2:] == (side, side):
            return part
        return F.interpolate(part, (side, side), mode="bilinear", antialias=True, align_corners=False)

    return resized


def images_of(views: Views) -> Callable[[range], Tensor]:
    """A function from indices to a data set's images (B, 3, W, W) in [-1, 1], for `read_cameras`."""
    return lambda indices: torch.stack([views[index]["image"] for index in indices])


def accuracy(predicted: Tensor, true: Tensor) -> dict[str, float]:
    """Median errors of pose_c2w (N, 3, 4) in degrees, and the share of azimuths within 15 degrees."""
    errors = pose_errors(predicted, true)
    medians = {name: float(values.median()) for name, values in errors._asdict().items()}
    return medians | {"within_15_deg": float((errors.azimuth_deg < NEAR_DEG).float().mean())}


def accuracy_warning(estimator: TrainedEstimator) -> str:
    """A warning, with the checkpoint's name, where the estimator's cameras cannot be trusted, else an empty string."""
    doubt = doubt_about(estimator)
    return doubt and f"{estimator.checkpoint}: {doubt}"


def doubt_about(estimator: TrainedEstimator) -> str:
    """Why the estimator's cameras cannot be trusted, by its newest validation; an empty string where they can."""
    if not estimator.validation:
        return "was never validated, so the error of its cameras is unknown; train it longer (its training.max_steps)"
    read, true = (estimator.validation[name].cpu() for name in ("predicted_pose", "target_pose"))
    found, guessed = accuracy(read, true), _guessed(true)
    for name, read_what in (("azimuth_deg", "azimuths"), ("rotation_deg", "rotations")):
        if found[name] > min(NEAR_DEG, guessed[name] / 2):
            return (
                f"reads {read_what} with a median error of {found[name]:.1f} degrees on its {len(true)} validation images, "
                f"where guessing has {guessed[name]:.0f}; expect errors as large in these cameras, or train it longer (its "
                "training.max_steps)"
            )
    return ""


def _guessed(true: Tensor) -> dict[str, float]:
    """`accuracy` where each of the cameras (N, 3, 4) is guessed to be another of them; of a single one, that of any guess."""
    guesses = [true.roll(turn, 0) for turn in range(1, min(len(true), GUESSES))]
    if not guesses:
        return {"azimuth_deg": 90.0, "rotation_deg": 90.0}
    return accuracy(torch.cat(guesses), true.repeat(len(guesses), 1, 1))


def pose_accuracy(subject: Subject, estimator: TrainedEstimator) -> dict:
    """Errors of the cameras read off fresh samples, whose cameras are known, as a dict ready for JSON.

    The floor_* values are the estimator's own errors on real images that it has not seen; they hide smaller ones of the
    generator.
    """
    config, held_out = subject.config, posed_splits(estimator.config).test  # first, as its images may be gone
    sampler, asked = recorded(labels_as_in_data(subject.dataset, config.data))
    renderings = fresh_renderings(
        subject.generator, sampler, subject.n, config.metrics.batch_size, subject.seed, truncation=subject.truncation
    )
    read = torch.cat([cameras_of(estimator, rendering.images) for rendering in renderings])
    network = estimator.network
    floor_read = read_cameras(network, images_of(held_out), len(held_out), network.distance.device)
    floor = {f"floor_{name}": value for name, value in accuracy(floor_read, held_out.labels.pose_c2w).items()}
    found = accuracy(read, torch.cat([labels.pose_c2w for labels in asked]).cpu()) | floor
    return found | {"floor_images": len(held_out), "estimator_sha256": estimator.sha256, **subject.terms}
