"""Out of memory ends no run: the work is retried in smaller pieces, by all processes of the run alike."""

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from graf.errors import CheckpointWriteError, GrafError
from graf.runtime.cleanup import clean_up
from graf.runtime.processes import ALONE, RAN_OUT, OutOfMemoryElsewhere, Processes

import torch

log = logging.getLogger("graf")

SIGNS = (
    *("can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc", "alloc_failed", "out of memory"),
    "could not create a memory",
)
FAILURES = (RuntimeError, MemoryError, OSError, CheckpointWriteError)  # among which are failed allocations
SMALLEST_CHUNK = 100  # rays that are worth taking at a time
T = TypeVar("T")


class OutOfMemory(GrafError):
    """Memory does not suffice for the smallest piece of a step."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: on the card, in PyTorch's allocator of the host, in Python itself or in the system."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError, OutOfMemory)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, (RuntimeError, CheckpointWriteError)) and any(sign in str(error).lower() for sign in SIGNS)


@dataclass(frozen=True)
class Done(Generic[T]):
    """The work was done, with this result."""

    result: T


@dataclass(frozen=True)
class RanOut:
    """Memory ran out, as `said`; the tensors and the graph of the work are gone."""

    said: str


@contextlib.contextmanager
def all_or_none(processes: Processes) -> Iterator[None]:
    """A block that all processes of a run finish, or none: memory that runs out in one of them runs out in all."""
    try:
        yield
    except OutOfMemoryElsewhere:
        raise  # all know
    except FAILURES as error:
        if is_out_of_memory(error):
            with contextlib.suppress(OutOfMemoryElsewhere):
                processes.all_reduce_status(RAN_OUT)
        raise
    processes.barrier()


def attempt(
    work: Callable[[], T], failures: tuple[type[Exception], ...] = FAILURES, processes: Processes = ALONE
) -> Done[T] | RanOut:
    """What came of the work; of many processes all get RanOut where memory ran out in one.

    An error of another class than `failures` is raised: OutOfMemory, by default, is for a caller that cannot take smaller
    pieces.
    """
    try:
        with all_or_none(processes):
            return Done(work())
    except failures as error:
        if not is_out_of_memory(error):
            raise
        return RanOut(first_line(error))


def first_line(error: BaseException) -> str:
    """What the error says, in one line; its class where it says nothing."""
    return str(error).split("\n")[0] or type(error).__name__


def retry_smaller(work: Callable[[], T], shrink: Callable[[], bool], what: str, agree: Callable[[bool], bool] = bool) -> T:
    """The result of the work, retried in smaller pieces until memory suffices.

    `shrink` makes the pieces smaller and returns whether it could. `agree` is given whether memory ran out in this process and
    returns whether it did in any, so that all retry together. Raises OutOfMemory where there is nothing smaller.
    """
    while True:
        said = ""
        try:
            result = work()
        except (*FAILURES, OutOfMemory) as error:  # what could not shrink any more may fit into a smaller whole
            if not is_out_of_memory(error):
                raise
            said = first_line(error)
        if not agree(bool(said)):
            return result
        result = None  # another process ran out of memory: this result is not used, and its memory is needed
        clean_up()
        said = said or "in another process"
        if not shrink():
            raise OutOfMemory(f"{what}: out of memory ({said}), in the smallest pieces there are")
        log.warning("%s: out of memory (%s); taken again in smaller pieces", what, said)


def halving(work: Callable[[int], T], size: int, what: str, smallest: int = 1, agree: Callable[[bool], bool] = bool) -> T:
    """The result of work(size), which takes so much at a time, or of half of it until memory suffices; as `retry_smaller`.

    Raises OutOfMemory where the half would be below `smallest`.
    """

    def shrink() -> bool:
        nonlocal size
        size //= 2
        return size >= smallest

    return retry_smaller(lambda: work(size), shrink, what, agree)
