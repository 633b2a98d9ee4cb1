"""Retries work in smaller pieces where memory runs out, in all processes of a run alike."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from graf.runtime.device import clean_up
from graf.runtime.out_of_memory import OutOfMemory, first_line, is_out_of_memory
from graf.runtime.processes import ALONE, RAN_OUT, OtherRankOutOfMemory, Processes

log = logging.getLogger("graf")

_warned: set[str] = set()  # what was halved with a warning
T = TypeVar("T")


@dataclass
class Outcome:
    """The outcome of a block of `attempt`: `ran_out` is the error message of an out-of-memory, or "" on success."""

    ran_out: str = ""


@contextlib.contextmanager
def attempt(processes: Processes = ALONE, even_smallest: bool = False) -> Iterator[Outcome]:
    """Run a block; if any rank runs out of memory, all ranks report it.

    An out-of-memory ends the block, not the run. Any other error is raised, and so is OutOfMemory, which the smallest pieces
    raise, without `even_smallest`.
    """
    outcome = Outcome()
    try:
        yield outcome
        processes.barrier()
    except OtherRankOutOfMemory as error:  # all know
        outcome.ran_out = first_line(error)
    except Exception as error:
        if not is_out_of_memory(error) or (isinstance(error, OutOfMemory) and not even_smallest):
            raise
        with contextlib.suppress(OtherRankOutOfMemory):
            processes.all_reduce_status(RAN_OUT)
        outcome.ran_out = first_line(error)


def retry_smaller(
    work: Callable[[], T], shrink: Callable[[], bool], what: str, processes: Processes = ALONE, warn_once: bool = False
) -> T:
    """Return the work's result, tried again in smaller pieces until memory suffices in all `processes`.

    `shrink` makes the pieces smaller and returns whether it could. With `warn_once` only the first retry of `what` in this
    process is logged. Raises OutOfMemory where there is nothing smaller.
    """
    while True:
        result, ran_out = None, ""
        try:
            result = work()
        except Exception as error:  # an OutOfMemory too: what could not shrink any more may fit into a smaller whole
            if not is_out_of_memory(error):
                raise
            ran_out = first_line(error)
        if not processes.any(bool(ran_out)):
            return result
        result = None  # another process ran out of memory: this result is not used, and its memory is needed
        clean_up()
        message = ran_out or "in another process"
        if not shrink():
            raise OutOfMemory(f"{what}: out of memory ({message}), in the smallest pieces there are")
        if not warn_once or what not in _warned:
            log.warning("%s: out of memory (%s); retried in smaller pieces", what, message)
            _warned.add(what)


def retry_halved(work: Callable[[int], T], size: int, what: str, smallest: int = 1, processes: Processes = ALONE) -> T:
    """Return work(size), tried again with half the size, but not below `smallest`, as by `retry_smaller`.

    One warning per process: the next call starts with the whole size again.
    """

    def shrink() -> bool:
        nonlocal size
        size //= 2
        return size >= smallest

    return retry_smaller(lambda: work(size), shrink, what, processes, warn_once=True)
