"""A run in many processes, each with a card or a share of the cores, as torchrun or a batch system starts them.

Every process takes its own rows of each batch, and gradients are summed once a network and step; all else each process does as
a run in one would. Before the processes exchange anything they say a word to each other, a small number on the CPU: that all
is well, or that one ran out of memory, was asked to stop, or fails. A process that fails says so in the place of its next
word, so that the others end with it instead of waiting for what never comes.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from graf.errors import ConfigError, GrafError
from graf.runtime.guard import Done, RanOut, attempt
from graf.runtime.interruption import SIGNALS, Interruption

import torch
import torch.distributed as dist
from torch import Tensor

HALF_DONE = 500  # the word of a process that ran out of memory where it cannot simply try again; signals are below it
FAILED = 1000  # and above: the word of a process that fails, the first process's being the largest
T, U = TypeVar("T"), TypeVar("U")


class AnotherProcessFailed(GrafError):
    """This process ends because another one of the run does, whose message says why."""


class OutOfMemoryElsewhere(MemoryError):
    """Another process of the run ran out of memory."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run, of which this one is the `rank`-th of `world_size`. Without others nothing here waits."""

    rank: int = 0
    world_size: int = 1

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
        return self._word(int(flag)) > 0

    def attempt(self, work: Callable[[], T]) -> Done[T] | RanOut:
        """As graf.runtime.guard.attempt, but of all processes or none: where memory runs out in one, all get RanOut."""
        told = []

        def listening() -> T:
            try:
                return work()
            except OutOfMemoryElsewhere:
                told.append(True)
                raise

        outcome = attempt(listening)
        ran_out = isinstance(outcome, RanOut)
        if not told:
            with contextlib.suppress(OutOfMemoryElsewhere):
                self._word(HALF_DONE if ran_out else 0)
                return outcome
        return outcome if ran_out else RanOut("in another process")

    def together(self) -> None:
        """Wait until all processes are here."""
        self._word(0)

    def in_turn(self, work: Callable[[], T]) -> T:
        """The work's result; the other processes begin when the first one is done, and find what it left on the disk."""
        if not self.first:
            self.together()
        result = work()
        if self.first:
            self.together()
        return result

    def from_first(self, work: Callable[[], T]) -> T:
        """What the work gives the first process, which alone does it."""
        result = [work() if self.first else None]
        self.together()
        if not self.alone:
            with _connected():
                dist.broadcast_object_list(result)
        return result[0]

    def require_same(self, value: object, what: str) -> None:
        """Raises GrafError in a process whose value is not the first one's."""
        if self.from_first(lambda: value) != value:
            raise GrafError(
                f"process {self.rank} of {self.world_size}: {what} differ from the first process's; start all processes on "
                "machines of one kind, with the same versions and the same folders"
            )

    def sum_(self, buffer: Tensor) -> Tensor:
        """The buffer with the sum over all processes in it; `any` must have been asked just before."""
        if not self.alone:
            with _connected():
                dist.all_reduce(buffer)
        return buffer

    def map(self, work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """The built-in map with the work dealt to all processes: the first is given all results, the others none.

        All must have the same items. Where one leaves off early, be it the first by closing its iterator, so do the others; the
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
                yield from self._gather(result)[: len(some)]
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
        word = self._word(interruption.signal or (SIGNALS[-1] if time_is_up else 0))
        if word and not interruption.requested:
            interruption.signal = word
        return word > 0

    def smallest(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """The smallest tuple of numbers that any process has."""
        if self.alone:
            return numbers
        self.together()
        found: list = [None] * self.world_size
        with _connected():
            dist.all_gather_object(found, numbers)
        return min(found)

    def speaks(self) -> bool:
        """Say that this process fails. Returns whether it is the first one to, whose message is the one to show."""
        word = FAILED + self.world_size - self.rank
        try:
            return self._largest(word) == word
        except AnotherProcessFailed:  # nobody is left to listen
            return True

    def _word(self, word: int) -> int:
        """The largest word of all processes."""
        if self.alone:
            return word
        largest = self._largest(word)
        if largest >= FAILED:
            raise AnotherProcessFailed("another process of the run failed, and says why")
        if largest >= HALF_DONE:
            raise OutOfMemoryElsewhere("in another process")
        return largest

    def _largest(self, word: int) -> int:
        said = torch.tensor(word)
        with _connected():
            dist.all_reduce(said, dist.ReduceOp.MAX)
        return int(said)

    def _gather(self, result: U) -> list[U]:
        """The results of all processes in the first one, nothing in the others."""
        results: list | None = [None] * self.world_size if self.first else None
        with _connected():
            dist.gather_object(result, results)
        return results or []


ALONE = Processes()


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0].split("] ", 1)[-1].split(". ")[0]  # without the library's file, line and greetings
        raise AnotherProcessFailed(f"another process of the run is gone, or the network to it ({said})") from None
