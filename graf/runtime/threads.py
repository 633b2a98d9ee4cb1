"""Work that is done at the same time by threads of one core each, where operations are too small to be shared by cores."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item, T = TypeVar("Item"), TypeVar("T")


def threads_for(n_items: int) -> int:
    """How many threads are to take n_items; 1, in which operations take all cores, where more would leave most cores idle."""
    n_threads = torch.get_num_threads()
    return min(n_threads, n_items) if 2 * n_items >= n_threads else 1


def map_in_threads(work: Callable[[Item], T], items: Sequence[Item], n_threads: int) -> Iterator[T]:
    """work(item) of each item, in their order, of n_threads items at a time; one thread computes with all cores, as ever.

    PyTorch's operators let other threads run. An error of the work is raised when all that was begun has ended.
    """
    if n_threads == 1:
        yield from map(work, items)
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, items)
    finally:
        torch.set_num_threads(before)  # a thread's own number is everyone's for some libraries
