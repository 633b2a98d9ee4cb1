"""Counts of a training step on a pretended GPU, for bench/benchmark.py step."""

import dataclasses
from collections.abc import Iterator

from graf.camera import Labels, sample_poses
from graf.config import Config
from graf.training.state import TrainState
from graf.training.step import train_step
from pretended_gpu import GPU, PretendedGpu, pretended_gpu

import torch

BOX = (-0.95, -0.5, -0.45, 0.95, 0.5, 0.45)  # of the toy cars, where a config leaves it to the data

N_VIEWS = 16


@dataclasses.dataclass
class AnyViews:
    """A data set, as far as a training step asks it."""

    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)


def counted_step(config: Config) -> PretendedGpu:
    """What a step of whole images with a gradient penalty asks of a GPU; the first of two also makes what is kept."""
    for gpu in steps_on_pretended_gpu(with_data(config), 2):
        last = gpu
    return last


def steps_on_pretended_gpu(config: Config, n_steps: int) -> Iterator[PretendedGpu]:
    """Take n_steps steps of whole images with a gradient penalty; yields after each what it asked of the GPU."""
    with pretended_gpu() as gpu:
        state, batch, width = TrainState(config, GPU), config.training.batch_size, config.data.imsize
        images = torch.rand(batch, config.data.channels, width, width) * 2 - 1
        views = AnyViews(Labels.of_poses(sample_poses(N_VIEWS, config.data, state.rng)))
        for _ in range(n_steps):
            state.skip_to_costliest_step()
            gpu.reset()
            train_step(state, views, images.pin_memory(), views.labels[:batch])
            state.advance()
            yield gpu


def with_data(config: Config) -> Config:
    """The config as the toy cars would end its `auto`s."""
    data = config.data
    box = BOX if data.box == "auto" else data.box
    alpha = "rgba" if data.alpha == "auto" else data.alpha
    return dataclasses.replace(config, data=dataclasses.replace(data, box=box, alpha=alpha))
