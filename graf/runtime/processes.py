"""A training run in many processes (ranks), each with a GPU or a share of the cores, as torchrun or a batch system starts them.

Each rank computes its own images of every batch; the gradients are all-reduced once per network and step, and everything else
each rank does as a run in one process would. Before ranks exchange tensors or objects they all-reduce a status code, a small
number on the CPU: 0, or that one of them ran out of memory, received a signal, or failed. So no rank waits for one that is not
coming: a rank that fails takes part in the next all-reduce with FAILED, and the others end with it.

Tensors are summed in a group of their own, with a timeout of minutes, as all ranks have just said that they come: if one is
lost in between, the others end. Status codes may wait for hours, such as for the first rank's FID.
"""

import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import TypeVar

from graf.errors import ConfigError, GrafError
from graf.runtime.device import choose_device, unusable_gpus
from graf.runtime.interruption import SIGNALS, Interruption

import torch
import torch.distributed as dist
from torch import Tensor

log = logging.getLogger("graf")

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # of tensors; status codes go through the CPU and keep no GPU waiting
TIMEOUT = timedelta(hours=2)  # longer than the first rank measures FID or makes toy cars, while the others wait
MEETING_TIMEOUT = timedelta(minutes=15)  # of all processes at the start, on machines that may start one after the other
PATIENCE_S = 20  # until it is said that this process waits for the others at the start
TENSOR_TIMEOUT = timedelta(minutes=5)  # of an exchange that all ranks have agreed to
INTERFACES = "with several networks GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the interface to take, such as eth0"
RAN_OUT = 500  # status of a rank that ran out of memory where it cannot simply retry; signals are below it
FAILED = 1000  # and above: status of a rank that fails, the first rank's being the largest
T, U = TypeVar("T"), TypeVar("U")


class AnotherProcessFailed(GrafError):
    """This process ends because another one of the run does, whose message says why."""


class ConnectionLost(AnotherProcessFailed):
    """Another process was killed or hangs, or the network to it is gone: this process's message is the only one."""


class OtherRankOutOfMemory(MemoryError):
    """Another rank of the run ran out of memory."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run, of which this one has `rank` of `world_size`. In a run of one, nothing here waits.

    tensors: the group that tensors are summed in; None for the one that status codes and objects go through. status: holds the
    code that is exchanged, to the end: in torch 2.6 a thread of the connection that has its last reference, once an exchange
    has failed, waits for Python's lock while Python waits for the thread.
    """

    rank: int = 0
    world_size: int = 1
    tensors: dist.ProcessGroup | None = None
    status: Tensor = dataclasses.field(default_factory=lambda: torch.tensor(0), compare=False, repr=False)

    @property
    def alone(self) -> bool:
        return self.world_size == 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and logs."""
        return self.rank == 0

    @property
    def rank_slice(self) -> slice:
        """This rank's images of a batch, as graf.data.loader deals them."""
        return slice(self.rank, None, self.world_size)

    def share_of(self, batch_size: int) -> int:
        """Images of a batch per rank. Raises ConfigError where they cannot be dealt evenly."""
        if batch_size % self.world_size:
            raise ConfigError(
                f"training.batch_size: {batch_size} images cannot be dealt evenly to {self.world_size} processes; set it to a "
                f"multiple of {self.world_size}, or start another number of processes"
            )
        return batch_size // self.world_size

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any rank. Raises AnotherProcessFailed, as all that exchanges something does."""
        return self.all_reduce_status(int(flag)) > 0

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.all_reduce_status(0)

    def in_turn(self, work: Callable[[], T]) -> T:
        """Return the work's result; the other ranks begin when the first one is done, and find what it left on the disk."""
        if not self.first:
            self.barrier()
        result = work()
        if self.first:
            self.barrier()
        return result

    def broadcast(self, make: Callable[[], T]) -> T:
        """Return in all ranks what `make` returns in the first, which alone calls it."""
        return self._all_gather(make() if self.first else None)[0]

    def require_same(self, value: object, what: str) -> None:
        """Raises GrafError in a rank whose value is not the first one's."""
        if self.broadcast(lambda: value) != value:
            raise GrafError(
                f"process {self.rank} of {self.world_size}: {what} differ from the first process's; start all processes on "
                "machines of one kind, with the same versions and the same folders"
            )

    def all_reduce(self, buffer: Tensor) -> Tensor:
        """Sum the buffer over all ranks, in place, and return it; call `any` or `barrier` just before."""
        if not self.alone:
            with _connected():
                _sum(buffer, self.tensors)
        return buffer

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """The built-in map with the work dealt to all ranks: the first is given all results, the others none.

        All must have the same items. If one stops early, such as the first by closing its iterator, so do the others; the
        first then raises OtherRankOutOfMemory, as its results are not all.
        """
        if self.alone:
            yield from map(work, items)
            return
        items = iter(items)
        try:
            while some := list(islice(items, self.world_size)):
                result = work(some[self.rank]) if self.rank < len(some) else None
                if self.any(False):
                    if self.first:
                        raise OtherRankOutOfMemory("in another process")
                    return
                results: list | None = [None] * self.world_size if self.first else None
                with _connected():
                    dist.gather_object(result, results)
                yield from (results or [])[: len(some)]
        except (AnotherProcessFailed, OtherRankOutOfMemory):
            raise
        except (Exception, GeneratorExit):
            self.any(True)
            raise
        self.any(False)

    def should_end(self, interruption: Interruption) -> bool:
        """Whether the run is to end after this step: if any rank has had a signal, or the first one's time is up."""
        if self.alone:
            return interruption.requested
        time_is_up = self.first and interruption.requested
        signal = self.all_reduce_status(interruption.signal or (SIGNALS[-1] if time_is_up else 0))
        if signal and not interruption.requested:
            interruption.signal = signal
        return signal > 0

    def minimum(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """The smallest tuple of numbers that any rank has."""
        return min(self._all_gather(numbers))

    def all_reduce_status(self, status: int) -> int:
        """The largest status code of all ranks. Raises AnotherProcessFailed or OtherRankOutOfMemory where that is one's."""
        if self.alone:
            return status
        largest = self._largest(status)
        if largest >= FAILED:
            raise AnotherProcessFailed("another process of the run failed, and says why")
        if largest >= RAN_OUT:
            raise OtherRankOutOfMemory("in another process")
        return largest

    def report_failure(self) -> bool:
        """Tell the other ranks that this one fails. Returns whether it is the first one to, whose message is shown."""
        status = FAILED + self.world_size - self.rank
        try:
            return self._largest(status) == status
        except AnotherProcessFailed:  # the others have ended already
            return True

    def _largest(self, status: int) -> int:
        self.status.fill_(status)
        with _connected():
            dist.all_reduce(self.status, dist.ReduceOp.MAX)
        return int(self.status)

    def _all_gather(self, value: T) -> list[T]:
        """The small values of all ranks."""
        if self.alone:
            return [value]
        self.barrier()
        values: list = [None] * self.world_size
        with _connected():
            dist.all_gather_object(values, value)
        return values


ALONE = Processes()


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0].split("] ", 1)[-1].split(". ")[0]  # without the library's file, line and greetings
        raise ConnectionLost(f"another process of the run is gone or hangs, or the network to it ({reason})") from None


@contextlib.contextmanager
def processes_of_run(device_name: str) -> Iterator[tuple[Processes, torch.device]]:
    """The processes that torchrun's environment variables describe, and the device of this one; ALONE without the variables.

    Inside this context only the first rank logs. If one fails all end: one of those that failed raises its error, the others
    exit with status 1, and without a message unless one was killed or hangs. Raises GrafError where the variables or the device
    do not fit, or ranks have GPUs of different models.
    """
    rank, world_size, local_rank = (_variable(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if world_size == 1 or "RANK" not in os.environ:
        yield ALONE, choose_device(device_name)
        return
    processes, level = Processes(rank, world_size), log.level
    try:
        _connect()
        if not processes.first:
            log.setLevel(logging.ERROR)
        with _ending_together(processes):
            device = _own_device(device_name, local_rank)
            require_one_model(processes, device)
            processes = dataclasses.replace(processes, tensors=tensor_group(device))
            yield processes, device
    finally:
        log.setLevel(level)
        if dist.is_initialized():
            disconnect()


def require_one_model(processes: Processes, device: torch.device) -> None:
    """Raises GrafError where ranks have GPUs of different models, or only some have one.

    Such a run is as slow as its slowest GPU, and some of its ranks may train in bfloat16 and others in float16.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    first = processes.broadcast(lambda: name)
    if name != first:
        if device.type == "cpu" and (why := unusable_gpus()):
            name += f" ({why})"
        raise GrafError(
            f"process {processes.rank} of {processes.world_size} has {name}, the first one {first}; a run needs GPUs of one "
            "model: choose them with CUDA_VISIBLE_DEVICES, start the run on other machines, or add --device cpu"
        )
    processes.barrier()  # nobody connects while another process is refused


def tensor_group(device: torch.device) -> dist.ProcessGroup:
    """The group that tensors on the device are summed in, with its connections made. Raises GrafError where that fails.

    An exchange in it that takes longer than TENSOR_TIMEOUT is an error of the process that waits.
    """
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # or a thread of NCCL's group aborts the process instead
    try:
        group = dist.new_group(timeout=TENSOR_TIMEOUT, backend=BACKENDS[device.type])
        _sum(torch.zeros(1, device=device), group)
    except (RuntimeError, ValueError) as error:
        raise GrafError(f"the run's processes cannot exchange tensors ({str(error).splitlines()[0]}); {INTERFACES}") from None
    return group


def _sum(buffer: Tensor, group: dist.ProcessGroup) -> None:
    """Sum the buffer over all ranks, in place, and wait for it. From torch 2.8 on an all_reduce that is not asked for its work
    returns before it is done on a GPU, where nothing would then notice that another rank is gone."""
    dist.all_reduce(buffer, group=group, async_op=True).wait()


def disconnect() -> None:
    """Destroy the process group and wait for its threads; that another process is gone is no error any more.

    A thread that still releases a message while Python shuts down would end this process by SIGABRT, whatever its own exit
    status.
    """
    try:
        dist.destroy_process_group()
    except RuntimeError as error:
        log.debug("destroying the process group: %s", error)


@contextlib.contextmanager
def _ending_together(processes: Processes) -> Iterator[None]:
    try:
        yield
        processes.barrier()  # a launcher ends all processes when the first has left
    except AnotherProcessFailed as error:
        level = logging.ERROR if isinstance(error, ConnectionLost) else logging.WARNING
        log.log(level, "process %d of %d ends: %s", processes.rank, processes.world_size, error)
        raise SystemExit(1) from None
    except Exception:
        if not processes.report_failure():
            raise SystemExit(1) from None
        raise


def _variable(name: str) -> int:
    value = os.environ.get(name, "1" if name == "WORLD_SIZE" else "0")
    if not value.isdecimal():
        raise GrafError(f"environment variable {name}: expected a number, found {value!r}; torchrun sets it")
    return int(value)


def _own_device(name: str, local_rank: int) -> torch.device:
    if name in ("auto", "cuda") and torch.cuda.is_available():
        n_gpus = torch.cuda.device_count()
        if local_rank >= n_gpus:
            raise GrafError(
                f"LOCAL_RANK {local_rank}: this machine has {n_gpus} CUDA device(s); start at most so many processes on it, "
                "or add --device cpu"
            )
        return choose_device(f"cuda:{local_rank}")
    device = choose_device(name)
    if device.type == "cuda":
        raise GrafError(f"--device {name}: every process takes a GPU of its own; name cuda or auto")
    if device.type not in BACKENDS:
        raise GrafError(f"--device {name}: an Apple GPU trains in one process; start the program without torchrun")
    return device


def _connect() -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise GrafError(f"environment variable {missing[0]}: not set, but WORLD_SIZE is; start the run with torchrun")
    where, n_processes = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", os.environ["WORLD_SIZE"]
    waiting = threading.Timer(PATIENCE_S, log.info, ("waiting at %s for all %s processes of the run", where, n_processes))
    waiting.daemon = True
    waiting.start()
    try:
        store, rank, world_size = next(dist.rendezvous("env://", timeout=MEETING_TIMEOUT))
        store.set(f"graf/{rank}", "here")
        store.wait([f"graf/{other}" for other in range(world_size)], MEETING_TIMEOUT)  # torchrun's own store waits for nobody
        store.set_timeout(TIMEOUT)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise GrafError(
            f"the run's processes cannot be reached at {where} ({str(error).splitlines()[0]}); {INTERFACES}"
        ) from None
    finally:
        waiting.cancel()
