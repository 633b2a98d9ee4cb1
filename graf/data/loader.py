"""Endless batches that depend on the seed and the step only, not on the number of workers."""

import logging
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess

from graf.camera import Labels
from graf.config import Config, DataConfig
from graf.data.views import Views, as_floats
from graf.errors import DataError, GrafError
from graf.rays import mirrored_where
from graf.rng import seeded_rng
from graf.runtime.console import progress
from graf.runtime.device import clean_up
from graf.runtime.interruption import SIGNALS, held_back
from graf.runtime.limits import GB, available_cores
from graf.runtime.out_of_memory import first_line, is_out_of_memory

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

MAX_WORKERS = 4
MOST_DEATHS = 4  # of workers per batch; one more ends the run
EXIT_WAIT_S = 1.0  # for a worker to exit after its batch failed, and for its exit code
MOST_SUBSTITUTES = 100  # images tried in place of a faulty one

Read = tuple[tuple[Tensor, Labels] | None, list[str]]

log = logging.getLogger("graf")


class EndlessBatches(Sampler):
    """Lists of (index, flip), one per training step, from start_step on.

    Each epoch is a permutation of the data; images that do not fill its last batch are dropped. Each of world_size processes
    takes its own share of every batch.
    """

    def __init__(self, n: int, batch_size: int, seed: int, flips: bool, start_step: int, rank: int = 0, world_size: int = 1):
        self.n, self.batch_size, self.seed, self.flips, self.start_step = n, batch_size, seed, flips, start_step
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[list[tuple[int, bool]]]:
        epoch, batch = divmod(self.start_step, self.n // self.batch_size)
        while True:
            rng = seeded_rng(self.seed, epoch)
            order = torch.randperm(self.n, generator=rng).tolist()
            flips = ((torch.rand(self.n, generator=rng) < 0.5) & self.flips).tolist()
            keys = list(zip(order, flips, strict=True))
            for start in range(batch * self.batch_size, self.n - self.batch_size + 1, self.batch_size):
                yield keys[start : start + self.batch_size][self.rank :: self.world_size]
            epoch, batch = epoch + 1, 0


class BatchReader(Dataset):
    """Reads whole batches of views; with `skip`, an image that cannot be read is replaced by the next one that can."""

    def __init__(self, views: Views, data: DataConfig):
        self.views, self.data = views, data
        self.tries = 1 + MOST_SUBSTITUTES * (data.on_bad_file == "skip")

    def __getitem__(self, keys: list[tuple[int, bool]]) -> Read:
        """The batch and the problems with its files; None where these end the run, which a worker must not raise: torch would
        put its traceback into the message."""
        rows, images, problems = [], [], []
        for index, _ in keys:
            for row in range(index, index + min(self.tries, len(self.views))):
                try:
                    images.append(as_floats(self.views.read(row % len(self.views))))
                except DataError as error:
                    problems.append(str(error))
                else:
                    rows.append(row % len(self.views))
                    break
            else:
                return None, problems
        images, flips = torch.stack(images), torch.tensor([flip for _, flip in keys])
        images = mirrored_where(flips, images) if flips.any() else images
        return (images, self.views.labels_at(torch.tensor(rows)).mirrored(flips, self.data.mirror)), problems


class Batches:
    """Iterator over (images (B, data.channels, H, W) in [-1, 1], their Labels) on the CPU; `close` ends its workers.

    open_loader(step) returns a loader of the batches from that step on. Workers that die are restarted from the current batch;
    unless `renew_every` is 0, all are restarted every so many steps. Raises DataError where a file cannot be read, GrafError
    where workers keep dying.
    """

    def __init__(self, open_loader: Callable[[int], DataLoader], start_step: int, renew_every: int = 0):
        self._open_loader, self._step, self._renew_every = open_loader, start_step, renew_every
        self._workers: list[BaseProcess] = []
        self._reported: set[str] = set()
        self._open()

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> tuple[Tensor, Labels]:
        batch, problems = self._read()
        if batch is None:
            raise DataError(problems[-1])
        for problem in problems:
            if problem not in self._reported:
                self._reported.add(problem)
                log.warning("%s; until then another image takes its place (data.on_bad_file: skip)", problem)
        self._step += 1
        if self._renew_every and self._step % self._renew_every == 0:
            self._open()
        return batch

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes; the iterator cannot be used afterwards. Deleting it does the same."""
        for worker in self._workers:  # they only read, and may wait for a lock that a dead one held
            worker.kill()
        self._batches, self._workers = iter(()), []

    def _open(self) -> None:
        self.close()
        before = multiprocessing.active_children()
        loader = self._open_loader(self._step)
        with held_back():  # from workers that do not ignore signals yet: one that is not forked imports PyTorch before
            self._batches = iter(loader)
            self._workers = [child for child in multiprocessing.active_children() if child not in before]
            if self._workers:
                # A worker that dies while it looks at torch's event for their end leaves it locked, and setting it would hang.
                # `close` kills the workers instead, so torch gets another event to set. Workers that are not forked look for
                # the event by its name, which is gone with the last reference.
                self._event_of_workers = self._batches._workers_done_event
                self._batches._workers_done_event = threading.Event()
        leave_deaths_to_reader()

    def _read(self) -> Read:
        deaths = 0
        while True:
            dead = ended(self._workers)
            try:
                if not dead:
                    return next(self._batches)
            except (RuntimeError, OSError, EOFError):  # torch's errors when a worker dies
                dead = ended(self._workers, EXIT_WAIT_S) if self._workers else []
                if not dead:
                    raise
            deaths += 1
            how = ", ".join(how_it_ended(worker) for worker in dead)
            if deaths > MOST_DEATHS:
                raise GrafError(
                    f"step {self._step}: loader processes died {deaths} times over one batch ({how}), mostly for want of "
                    "memory or of shared memory (/dev/shm); set training.nworkers=1, or 0 to read without them"
                )
            log.warning("step %d: a loader process died (%s); restarted from this step's batch", self._step, how)
            self._open()


class DeviceBatches:
    """The batches of `Batches`, by `next`, as uint8, of images (N, data.channels, H, W) that all lie on the device."""

    def __init__(self, images: Tensor, dataset: Views, batches: EndlessBatches, data: DataConfig):
        self._images, self._dataset, self._batches, self._data = images, dataset, iter(batches), data

    def __next__(self) -> tuple[Tensor, Labels]:
        index, flips = map(torch.tensor, zip(*next(self._batches), strict=True))
        chosen = self._images[self._moved(index)]
        if flips.any():
            chosen = mirrored_where(self._moved(flips), chosen)
        return chosen, self._dataset.labels_at(index).mirrored(flips, self._data.mirror)

    def close(self) -> None:
        """Do nothing: the images stay on the GPU for the next iterator."""

    def _moved(self, values: Tensor) -> Tensor:
        device = self._images.device
        return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def images_on_device(dataset: Views, config: Config, device: torch.device, room_bytes: int) -> Tensor | None:
    """All images (N, data.channels, H, W) uint8 on a GPU. None on a CPU, with data.cache_device: none, where they do not fit in
    room_bytes, and where one cannot be read, which is then told as its batch is loaded."""
    data = config.data
    size = len(dataset) * data.channels * data.imsize**2
    if data.cache_device == "none" or device.type == "cpu" or size > room_bytes:
        return None
    try:
        images = torch.empty(len(dataset), data.channels, data.imsize, data.imsize, dtype=torch.uint8, device=device)
        bar = progress(range(len(dataset)), desc="images to the GPU", unit="image", disable=not log.isEnabledFor(logging.INFO))
        for index in bar:
            images[index] = dataset.read(index).to(device)
    except DataError:
        return None
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.warning(
            "data.cache_device: the images do not fit on the GPU (%s); they are loaded batch by batch", first_line(error)
        )
        clean_up()
        return None
    log.info("data.cache_device: all %d images are kept on the GPU, %.2f GB", len(dataset), size / GB)
    return images


def build_loader(
    dataset: Views,
    config: Config,
    device: torch.device | str,
    start_step: int = 0,
    rank: int = 0,
    world_size: int = 1,
    images: Tensor | None = None,
) -> Batches | DeviceBatches:
    """Endless training batches; start_step = k continues as if k batches had been taken.

    torch's global random state is not touched. Each of world_size processes gets training.batch_size / world_size images. With
    the `images` of images_on_device nothing is loaded, and there are no workers.
    """
    data, training = config.data, config.training
    n_workers = loader_processes(config)
    n, batch_size = len(dataset), training.batch_size

    def batches_from(step: int) -> EndlessBatches:
        return EndlessBatches(n, batch_size, training.seed, data.hflip or data.mirror != "none", step, rank, world_size)

    if images is not None:
        return DeviceBatches(images, dataset, batches_from(start_step), data)

    def open_loader(step: int) -> DataLoader:
        if n_workers and start_method() != "fork" and os.name == "posix":
            multiprocessing.resource_tracker.ensure_running()  # the first worker would start it, which lets signals through
        return DataLoader(
            BatchReader(dataset, data),
            batch_size=None,  # the reader makes whole batches
            sampler=batches_from(step),
            num_workers=n_workers,
            prefetch_factor=data.prefetch_factor if n_workers else None,  # torch refuses a number without workers
            pin_memory=torch.device(device).type == "cuda",
            multiprocessing_context=start_method() if n_workers else None,
            worker_init_fn=leave_interrupts_to_parent,
            generator=torch.Generator(),
        )

    renew = n_workers > 0 and not training.persistent_workers
    return Batches(open_loader, start_step, renew_every=n // batch_size if renew else 0)


def loader_processes(config: Config) -> int:
    """The number of loader processes: training.nworkers, but not more than there are cores."""
    return min(config.training.nworkers, MAX_WORKERS, available_cores())


def start_method() -> str:
    """How loader processes start: as forks on Linux, where Python does so by itself up to 3.13, and elsewhere as Python does.
    A process that is not forked imports PyTorch anew and has no images in memory but its own."""
    return "fork" if sys.platform == "linux" else multiprocessing.get_start_method()


def leave_interrupts_to_parent(_worker: int) -> None:
    """Ignore signals in a worker: one sent to the process group must not stop it while the parent finishes its step."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def leave_deaths_to_reader() -> None:
    """Remove torch's handler of SIGCHLD, which raises a worker's death in the middle of a step or checkpoint; `Batches` looks
    for dead workers itself."""
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGCHLD)
    if str(getattr(handler, "__module__", "")).startswith("torch."):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def ended(workers: Sequence[BaseProcess], within_s: float = 0.0) -> list[BaseProcess]:
    """The workers that have ended; if none has, the first to end within the time."""
    by_sentinel = {worker.sentinel: worker for worker in workers}
    found = [by_sentinel[sentinel] for sentinel in multiprocessing.connection.wait(list(by_sentinel), within_s)]
    for worker in found:
        worker.join(EXIT_WAIT_S)
    return found


def how_it_ended(worker: BaseProcess) -> str:
    """`SIGKILL`, `signal 40` for one without a name, or `exit status 1`."""
    code = worker.exitcode or 0
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
