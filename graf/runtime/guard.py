"""Out-of-memory ends no run: the work is taken again in smaller pieces."""

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from graf.errors import CheckpointWriteError, GrafError
from graf.runtime.cleanup import clean_up

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


def attempt(work: Callable[[], T], failures: tuple[type[Exception], ...] = FAILURES) -> Done[T] | RanOut:
    """What came of the work.

    An error of another class than `failures` is raised: OutOfMemory, by default, is for who cannot take smaller pieces.
    """
    try:
        return Done(work())
    except failures as error:
        if not is_out_of_memory(error):
            raise
        return RanOut(first_line(error))


def first_line(error: BaseException) -> str:
    """What the error says, in one line; its class where it says nothing."""
    return str(error).split("\n")[0] or type(error).__name__


def surviving(work: Callable[[], T], shrink: Callable[[], bool], what: str, agree: Callable[[bool], bool] = bool) -> T:
    """The work's result, repeated in smaller pieces until memory suffices.

    `shrink` makes the pieces smaller and tells whether it could; `agree` makes all processes of a run take the same way, given
    whether this one failed. Raises OutOfMemory where there is nothing smaller.
    """
    while True:
        outcome = attempt(work, (*FAILURES, OutOfMemory))  # what could not shrink any more may fit into a smaller whole
        ran_out = isinstance(outcome, RanOut)
        if not agree(ran_out):
            return outcome.result
        said = outcome.said if ran_out else "in another process"
        del outcome  # a result that is not to be: its memory is needed
        clean_up()
        if not shrink():
            raise OutOfMemory(f"{what}: out of memory ({said}), in the smallest pieces there are")
        log.warning("%s: out of memory (%s); taken again in smaller pieces", what, said)


def halving(work: Callable[[int], T], size: int, what: str, smallest: int = 1, agree: Callable[[bool], bool] = bool) -> T:
    """The result of work(size), which takes so much at a time, or of half of it until memory suffices; as `surviving`.

    Raises OutOfMemory where the half would be below `smallest`.
    """

    def shrink() -> bool:
        nonlocal size
        size //= 2
        return size >= smallest

    return surviving(lambda: work(size), shrink, what, agree)
