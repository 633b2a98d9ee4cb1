"""Maps work over threads of one core each, where operations are too small to be shared by cores."""

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from graf.runtime.out_of_memory import is_out_of_memory

import torch

log = logging.getLogger("graf")

Item, T = TypeVar("Item"), TypeVar("T")


def threads_for(n_items: int) -> int:
    """The number of threads for n_items; 1, in which operations use all cores, where more would leave most cores idle."""
    n_threads = torch.get_num_threads()
    return min(n_threads, n_items) if 2 * n_items >= n_threads else 1


def map_in_threads(work: Callable[[Item], T], items: Sequence[Item], n_threads: int) -> Iterator[T]:
    """Yield work(item) of each item, in order, n_threads items at a time; one thread computes with all cores.

    PyTorch's operators let other threads run. An error of the work is raised when all that was begun has ended. If the system
    starts no more threads, the caller's does all of the work, to the same bits: items that were begun are computed again.
    """
    if n_threads == 1:
        yield from map(work, items)
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                results = pool.map(work, items)
            except RuntimeError as error:  # a thread could not start; an error of the work comes out of `results`
                if not is_out_of_memory(error):
                    raise
                pool.shutdown(cancel_futures=True)
                warn_of_one_thread(str(error))
                torch.set_num_threads(1)
                results = map(work, items)
            yield from results
    finally:
        torch.set_num_threads(before)  # a thread's own number is everyone's for some libraries


@functools.cache
def warn_of_one_thread(why: str) -> None:
    """Log, once per process, that one thread does the work of several."""
    log.warning("the system cannot start more threads (%s); one thread does their work, more slowly", why)
