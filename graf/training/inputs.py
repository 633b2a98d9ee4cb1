"""The inputs of a training step: real images, and everything random that it takes, sampled before any of it is computed.

Legend: B images of a step, or of a part of one, K side of a patch, W side of an image.
"""

import dataclasses
import math
from typing import TypeVar

from graf.camera import Labels
from graf.config import Config
from graf.data import Views, as_floats, sample_labels
from graf.models.discriminators.convolutional import LOW_RES_STRIDE
from graf.rays import RAY_SPACING, low_resolution_grid, one_pixel_per_block, sample_patch_grid
from graf.rendering import RayNoise
from graf.tensors import Rows, each_tensor
from graf.training.learn import retried
from graf.training.losses import GAN_LOSSES
from graf.training.state import TrainState

import torch
from torch import Tensor

T = TypeVar("T")

PLACES = 5  # numbers per image in Inputs.places
ALIGNMENT = 16  # bytes, of each tensor in a block


@dataclasses.dataclass(frozen=True)
class Inputs(Rows):
    """Random inputs of B images: latents (B, Z); labels; grid (B, K, K, 2), the patches' positions in pixels; mirrored
    (B, 1, 1, 1), whether the discriminator sees an image mirrored; interpolation (B, 1, 1, 1) in [0, 1), of WGAN-GP;
    places (B, 5) in [0, 1), four for discriminator.augment and one for its reconstruction, (B, 0) without both; the noise of
    their rays."""

    latents: Tensor
    labels: Labels
    grid: Tensor
    mirrored: Tensor
    interpolation: Tensor
    places: Tensor
    noise: RayNoise


@dataclasses.dataclass(frozen=True)
class Batch(Rows):
    """The data that one network learns from in a step, in one process: B fakes' inputs and, in the same rows, real images
    (B, data.channels, W, W) in [-1, 1] with their labels, and with the inputs of their patches for the discriminator.

    encoder_inputs: those of the real images' reconstructions.
    """

    fake_inputs: Inputs
    real_images: Tensor
    real_labels: Labels
    real_inputs: Inputs | None = None
    encoder_inputs: Inputs | None = None

    def __len__(self) -> int:
        return len(self.fake_inputs.latents)


def sample_step(state: TrainState, dataset: Views, images: Tensor, labels: Labels) -> tuple[Batch, Batch]:
    """The discriminator's and the generator's batch of a step, on its device, for this process's real images and labels from
    the loader."""

    def sample() -> tuple[Batch, Batch]:
        real_images = as_floats(images.to(state.device, non_blocking=state.device.type == "cuda"))
        n = len(images) * state.processes.world_size
        for_d = discriminator_batch(state, sample_fake_labels(state, dataset, n), real_images, labels)
        for_g = generator_batch(state, sample_fake_labels(state, dataset, n), real_images, labels)
        return in_one_copy((for_d, for_g), state.device)

    return retried(state, sample)


def sample_fake_labels(state: TrainState, dataset: Views, n: int) -> Labels:
    """Labels of n fakes by `sample_labels`, half of them mirrored where data.mirror mirrors half of the real images."""
    data = state.config.data
    labels = sample_labels(dataset, n, data, state.rng)
    return labels if data.mirror == "none" else labels.mirrored(torch.rand(n, generator=state.rng) < 0.5, data.mirror)


def discriminator_batch(state: TrainState, fake_labels: Labels, images: Tensor, labels: Labels) -> Batch:
    """Real images (B, data.channels, W, W) with their labels, and as many fakes.

    In a run of N processes each brings its own B images and the fake_labels of all N * B, in the order of their rows. The
    relativistic loss takes those of the real images instead.
    """
    mine = state.processes.rank_slice
    for_real = sample_inputs(state, fake_labels, rendered=False)[mine]
    for_fakes = sample_inputs(state, fake_labels)[mine]
    for_real = dataclasses.replace(for_real, labels=labels.with_cameras(for_real.labels))  # sampled cameras if there are none
    return Batch(paired(state, for_fakes, labels), images, labels, for_real)


def generator_batch(state: TrainState, fake_labels: Labels, images: Tensor, labels: Labels) -> Batch:
    """Fakes of fake_labels, those of all processes, and this process's real images, for CCSR to restore and for losses that
    compare fakes with them or reconstruct them."""
    mine = state.processes.rank_slice
    fake = sample_inputs(state, fake_labels)[mine]
    batch = Batch(paired(state, fake, labels), images, labels)
    if state.step < state.config.encoder.first_steps or state.config.encoder.weight > 0:
        inputs = reconstruction_inputs(state, fake_labels)[mine]
        return dataclasses.replace(batch, encoder_inputs=dataclasses.replace(inputs, labels=labels))
    return batch


def sample_inputs(state: TrainState, labels: Labels, rendered: bool = True, grid: Tensor | None = None) -> Inputs:
    """Random inputs, one per label, on the CPU but for the noise and the grid of whole frames, which are on the state's device;
    real images are not `rendered` and have no rays. The grid is that of all pixels which the discriminator sees, of which CCSR
    refines a block from one ray, unless one of rays is given."""
    config, n = state.config, len(labels)
    if grid is None:
        grid = low_resolution_grid(sample_grid(state, n, state.device), low_res_stride(config, state.step))
        n_rays = (grid.shape[1] // state.generator.config.rendered_scale) ** 2
    else:
        n_rays = grid.shape[1] ** 2
    coins = torch.rand(2, n, 1, 1, 1, generator=state.rng)
    takes_places = config.discriminator.augment or config.discriminator.reconstruction > 0
    return Inputs(
        latents=state.sample_latents(n),
        labels=labels,
        grid=grid,
        mirrored=coins[0] < 0.5 * config.discriminator.hflip,
        interpolation=coins[1],
        places=torch.rand(n, PLACES * takes_places, generator=state.rng),
        noise=state.generator.sample_noise(n, state.step, state.device_rng, n_rays) if rendered else RayNoise(),
    )


def reconstruction_inputs(state: TrainState, labels: Labels) -> Inputs:
    """Inputs of real images' reconstructions, one per label: as those of fakes, but the grid (B, K / s, K / s, 2) has only the
    pixels that rays pass through, one at random from each s x s block of the patch.

    A ray through the centre of a block, compared with the mean of its pixels, learns edges as soft as the block is large.
    Single pixels teach sharp ones, and may be few: twice as far apart as a rendering's rays they teach as much.
    """
    grid = sample_grid(state, len(labels), torch.device("cpu"))
    side = RAY_SPACING * state.generator.config.rendered_scale
    return sample_inputs(state, labels, grid=one_pixel_per_block(grid, side, state.rng))


def sample_grid(state: TrainState, n: int, device: torch.device) -> Tensor:
    """Positions (n, K, K, 2) of n patches of this step (`sample_patch_grid`), those of whole frames on the device."""
    config = state.config
    return sample_patch_grid(n, config.patch_size, config.data.imsize, config.ray_sampler, state.step, state.rng, device)


def low_res_stride(config: Config, step: int) -> int:
    """Pixels along a side of which a patch of a step has one."""
    return LOW_RES_STRIDE if config.low_res_steps and step < config.short_steps else 1


def in_one_copy(batches: T, device: torch.device) -> T:
    """Tuples of tensors or batches with all of their tensors on the device: those of the CPU are copied there in one block of
    pinned memory, which is not waited for. Those that are there lose the rows of other processes."""
    if device.type == "cpu":
        return batches
    found: dict[int, Tensor] = {}
    each_tensor(batches, lambda x: found.setdefault(id(x), x) if x.device.type == "cpu" else x)
    sizes = [math.ceil(x.nbytes / ALIGNMENT) * ALIGNMENT for x in found.values()]
    block = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")

    def as_in_block(block: Tensor) -> list[Tensor]:
        parts = zip(block.split(sizes), found.values(), strict=True)
        return [part[: x.nbytes].view(x.dtype).view(x.shape) for part, x in parts]

    for part, x in zip(as_in_block(block), found.values(), strict=True):
        part.copy_(x)
    moved = dict(zip(found, as_in_block(block.to(device, non_blocking=device.type == "cuda")), strict=True))
    return each_tensor(batches, lambda x: moved[id(x)] if id(x) in moved else _without_other_rows(x))


def _without_other_rows(x: Tensor) -> Tensor:
    return x.contiguous() if x.untyped_storage().nbytes() > x.nbytes else x


def paired(state: TrainState, fake: Inputs, labels: Labels) -> Inputs:
    """Inputs of fakes with the labels of the real images in their rows, for a paired loss: its pairs share class and
    camera, as in R3GAN, so that they differ in nothing that the discriminator is told. Unknown cameras stay sampled."""
    if not GAN_LOSSES[state.config.training.gan_type].paired:
        return fake
    return dataclasses.replace(fake, labels=labels.with_cameras(fake.labels))
