"""A disk without room, for tests."""

import contextlib

import pytest


@contextlib.contextmanager
def small_files(size):
    """No file may grow beyond a size, as on a disk that is full; nor may the file that pytest writes to, if it does to one."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
