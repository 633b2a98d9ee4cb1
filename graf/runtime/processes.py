"""A training run in many processes, each with a card or a share of the cores, as torchrun or a batch system starts them.

Each process computes its own rows of every batch; the gradients are all-reduced once per network and step, and everything else
each process does as a run in one would. Before the processes exchange tensors or objects they all-reduce a status code, a small
number on the CPU: 0, or that one of them ran out of memory, received a signal, or failed. So no process waits for one that is
not coming: a process that fails takes part in the next all-reduce with FAILED, and the others end with it.

Tensors are summed in a group of their own, with a timeout of minutes, as all processes have just said that they come: where one
is lost in between, the others end. Status codes may wait for hours, such as for the first process's FID.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from graf.errors import ConfigError, GrafError
from graf.runtime.interruption import SIGNALS, Interruption

import torch
import torch.distributed as dist
from torch import Tensor

RAN_OUT = 500  # status of a process that ran out of memory where it cannot simply retry; signals are below it
FAILED = 1000  # and above: status of a process that fails, the first process's being the largest
T, U = TypeVar("T"), TypeVar("U")


class AnotherProcessFailed(GrafError):
    """This process ends because another one of the run does, whose message says why."""


class ConnectionLost(AnotherProcessFailed):
    """Another process was killed or hangs, or the network to it is gone: this process's message is the only one."""


class OutOfMemoryElsewhere(MemoryError):
    """Another process of the run ran out of memory."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run, of which this one is the `rank`-th of `world_size`. Without others nothing here waits.

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
        """Whether this is the process that writes files and talks to the user."""
        return self.rank == 0

    @property
    def rows(self) -> slice:
        """This process's rows of a batch, as graf.data.loader deals them."""
        return slice(self.rank, None, self.world_size)

    def share_of(self, batch_size: int) -> int:
        """Images of a batch for each process. Raises ConfigError where they cannot be dealt evenly."""
        if batch_size % self.world_size:
            raise ConfigError(
                f"training.batch_size: {batch_size} images cannot be dealt evenly to {self.world_size} processes; set it to a "
                f"multiple of {self.world_size}, or start another number of processes"
            )
        return batch_size // self.world_size

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. Raises AnotherProcessFailed, as all that exchanges something does."""
        return self.all_reduce_status(int(flag)) > 0

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.all_reduce_status(0)

    def in_turn(self, work: Callable[[], T]) -> T:
        """The work's result; the other processes begin when the first one is done, and find what it left on the disk."""
        if not self.first:
            self.barrier()
        result = work()
        if self.first:
            self.barrier()
        return result

    def broadcast(self, make: Callable[[], T]) -> T:
        """What `make` returns in the first process, which alone calls it, for all processes."""
        return self._all_gather(make() if self.first else None)[0]

    def require_same(self, value: object, what: str) -> None:
        """Raises GrafError in a process whose value is not the first one's."""
        if self.broadcast(lambda: value) != value:
            raise GrafError(
                f"process {self.rank} of {self.world_size}: {what} differ from the first process's; start all processes on "
                "machines of one kind, with the same versions and the same folders"
            )

    def all_reduce(self, buffer: Tensor) -> Tensor:
        """The buffer, which now holds the sum over all processes; call `any` or `barrier` just before."""
        if not self.alone:
            with _connected():
                dist.all_reduce(buffer, group=self.tensors)
        return buffer

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """The built-in map with the work dealt to all processes: the first is given all results, the others none.

        All must have the same items. Where one stops early, such as the first by closing its iterator, so do the others; the
        first then raises OutOfMemoryElsewhere, as its results are not all.
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
                        raise OutOfMemoryElsewhere("in another process")
                    return
                results: list | None = [None] * self.world_size if self.first else None
                with _connected():
                    dist.gather_object(result, results)
                yield from (results or [])[: len(some)]
        except (AnotherProcessFailed, OutOfMemoryElsewhere):
            raise
        except (Exception, GeneratorExit):
            self.any(True)
            raise
        self.any(False)

    def to_end(self, interruption: Interruption) -> bool:
        """Whether the run is to end after this step: where any process has had a signal, or the first one's time is up."""
        if self.alone:
            return interruption.requested
        time_is_up = self.first and interruption.requested
        signal = self.all_reduce_status(interruption.signal or (SIGNALS[-1] if time_is_up else 0))
        if signal and not interruption.requested:
            interruption.signal = signal
        return signal > 0

    def smallest(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """The smallest tuple of numbers that any process has."""
        return min(self._all_gather(numbers))

    def all_reduce_status(self, status: int) -> int:
        """The largest status code of all processes. Raises AnotherProcessFailed or OutOfMemoryElsewhere where that is one's."""
        if self.alone:
            return status
        largest = self._largest(status)
        if largest >= FAILED:
            raise AnotherProcessFailed("another process of the run failed, and says why")
        if largest >= RAN_OUT:
            raise OutOfMemoryElsewhere("in another process")
        return largest

    def report_failure(self) -> bool:
        """Tell the other processes that this one fails. Returns whether it is the first one to, whose message is shown."""
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
        """The small values of all processes, by their rank."""
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
        said = str(error).splitlines()[0].split("] ", 1)[-1].split(". ")[0]  # without the library's file, line and greetings
        raise ConnectionLost(f"another process of the run is gone or hangs, or the network to it ({said})") from None
