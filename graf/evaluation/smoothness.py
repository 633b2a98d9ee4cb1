"""What a viewer would see as popping between frames, or as a checkerboard within one."""

from graf.camera import middle_poses
from graf.config import DataConfig
from graf.data import Views
from graf.evaluation.sampling import fresh_samples, labels_of, render_views, sample_objects
from graf.models.generator import Generator
from graf.runtime.console import progress

import torch
from torch import Tensor

FRAMES_AT_ONCE = 30


def rotation_smoothness(
    generator: Generator, n_objects: int, seed: int, step_deg: float = 1.0, truncation: float = 1.0
) -> dict[str, float | None]:
    """Differences between neighbouring frames of a turn in steps of step_deg, over the config's azimuths at mid height.

    A difference is the mean over pixels and channels, in 8-bit steps. popping is the largest difference over the median one of
    the same object, for the object where that is worst: near 1 for an even turn, large where a frame jumps. All are None where
    the azimuths are too few for two frames.
    """
    poses = turn(step_deg, generator.config.data)
    if len(poses) < 2:
        unknown = dict.fromkeys(("frame_difference_median", "frame_difference_max", "popping"))
        return {"turn_step_deg": step_deg} | unknown
    latents, classes = sample_objects(generator, n_objects, seed, truncation)
    differences = []
    with progress(total=n_objects * len(poses), desc="turns", unit="image") as bar:
        for latent, class_index in zip(latents.split(1), classes.split(1), strict=True):
            before, steps = None, []
            for some in poses.split(FRAMES_AT_ONCE):  # a turn at 256 pixels would fill memory
                images = render_views(generator, (latent, class_index), some, bar=bar).images
                frames = images if before is None else torch.cat([before, images])
                steps.append((frames[1:] - frames[:-1]).abs().mean(dim=(1, 2, 3)) * 127.5)
                before = images[-1:]
            differences.append(torch.cat(steps))
    steps = torch.stack(differences)  # (N, frames - 1)
    return {
        "turn_step_deg": step_deg,
        "frame_difference_median": steps.median().item(),
        "frame_difference_max": steps.max().item(),
        "popping": popping(steps).max().item(),
    }


def turn(step_deg: float, data: DataConfig) -> Tensor:
    """pose_c2w (V, 3, 4) from umin to umax in steps of step_deg, both ends included, at mid height."""
    azimuth_deg = torch.arange(360 * data.umin, 360 * data.umax + 1e-3, step_deg)
    return middle_poses(azimuth_deg, data)


def popping(differences: Tensor) -> Tensor:
    """Largest over median (N,) of frame differences (N, T); 1 where nothing moves at all."""
    largest, median = differences.max(dim=1).values, differences.median(dim=1).values
    return torch.where(largest > 0, largest / median.clamp_min(1e-12), 1.0)


def nyquist_against_real(generator: Generator, dataset: Views, n: int, seed: int, truncation: float = 1.0) -> dict[str, float]:
    """`nyquist_energy` of n fresh samples at the data's cameras, and of as many real images."""
    config = generator.config
    rng = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(dataset), generator=rng)[:n].tolist()
    draw_labels, batch_size = labels_of(dataset, config.data), config.metrics.batch_size
    with progress(total=n, desc="samples", unit="image") as bar:
        fakes = torch.cat([*fresh_samples(generator, draw_labels, n, batch_size, seed, bar, truncation=truncation)])
    return {
        "nyquist_ppm_generated": nyquist_energy(fakes),
        "nyquist_ppm_real": nyquist_energy(torch.stack([dataset[i]["image"] for i in index])),
    }


def nyquist_energy(images: Tensor) -> float:
    """Share of the variance of images (N, 3, H, W) that alternates from pixel to pixel along x or y, in parts per million: what
    a 2 x 2 checkerboard, or stripes a pixel wide, would raise. Of odd sides, which have no such frequency, the last row or
    column is left out."""
    height, width = (side - side % 2 for side in images.shape[-2:])
    images = images[..., :height, :width]
    centred = images.double() - images.double().mean(dim=(-2, -1), keepdim=True)
    power = torch.fft.fft2(centred).abs().square().sum(dim=(0, 1))  # (H, W)
    row, column = height // 2, width // 2
    at_nyquist = power[row].sum() + power[:, column].sum() - power[row, column]
    return (1e6 * at_nyquist / power.sum().clamp_min(1e-300)).item()
