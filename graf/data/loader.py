"""Endless batches whose content is a function of the seed and the step alone, however many workers read them."""

import dataclasses
import signal
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from graf.camera import Labels
from graf.config import Config
from graf.data.seeding import generator_of
from graf.data.views import Views
from graf.data.workers import available_cores

MAX_WORKERS = 4
PREFETCH = 2  # batches a worker reads ahead


class EndlessBatches(Sampler):
    """Lists of (index, flip), one a training step, from start_step on.

    Each epoch is a permutation of the data; the images that do not fill its last batch wait for another epoch. Of world_size
    processes each takes its own share of every batch.
    """

    def __init__(self, n: int, batch_size: int, seed: int, hflip: bool, start_step: int, rank: int = 0, world_size: int = 1):
        self.n, self.batch_size, self.seed, self.hflip, self.start_step = n, batch_size, seed, hflip, start_step
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[list[tuple[int, bool]]]:
        epoch, batch = divmod(self.start_step, self.n // self.batch_size)
        while True:
            generator = generator_of(self.seed, epoch)
            order = torch.randperm(self.n, generator=generator).tolist()
            flips = ((torch.rand(self.n, generator=generator) < 0.5) & self.hflip).tolist()
            keys = list(zip(order, flips, strict=True))
            for start in range(batch * self.batch_size, self.n - self.batch_size + 1, self.batch_size):
                yield keys[start : start + self.batch_size][self.rank :: self.world_size]
            epoch, batch = epoch + 1, 0


class Batches:
    """Iterator over (images (B, 3, H, W) in [-1, 1], Labels or None) on the CPU; `close` ends its workers."""

    def __init__(self, loader: DataLoader):
        self._loader = loader
        self._batches = iter(loader)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> tuple[Tensor, Labels | None]:
        batch = next(self._batches)
        if "pose_c2w" not in batch:
            return batch["image"], None
        return batch["image"], Labels(*(batch[f.name] for f in dataclasses.fields(Labels)))

    def close(self) -> None:
        """End the worker processes; the iterator cannot be used afterwards. Deleting it does the same."""
        self._loader, self._batches = None, iter(())


def build_loader(
    dataset: Views, config: Config, device: torch.device | str, start_step: int = 0, rank: int = 0, world_size: int = 1
) -> Batches:
    """Endless training batches; start_step = k continues as if k batches had been taken.

    torch's global random state is left alone. Of world_size processes each gets training.batch_size / world_size images.
    """
    n_workers = min(config.training.nworkers, MAX_WORKERS, available_cores())
    batches = EndlessBatches(
        len(dataset), config.training.batch_size, config.training.seed, config.data.hflip, start_step, rank, world_size
    )
    loader = DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=n_workers,
        prefetch_factor=PREFETCH if n_workers else None,
        persistent_workers=n_workers > 0,
        pin_memory=torch.device(device).type == "cuda",
        worker_init_fn=_leave_interrupts_to_parent,
        generator=torch.Generator(),
    )
    return Batches(loader)


def _leave_interrupts_to_parent(_worker: int) -> None:
    """A signal to the whole process group must not take the workers from a parent that wants to finish its step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
