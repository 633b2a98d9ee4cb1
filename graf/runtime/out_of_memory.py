"""Recognises failed allocations, also without PyTorch."""

import errno

from graf.errors import CheckpointWriteError, GrafError

SIGNS = (
    *("can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc", "alloc_failed", "out of memory"),
    "could not create a memory",
    "can't start new thread",  # whose stack finds no room
    "allocation_failed",  # cuDNN 9
    # Handles, made at a GPU's first product, convolution and decomposition, find no room
    *("cublas_status_not_initialized", "cudnn_status_not_initialized", "cusolverdncreate"),
    "unable to find an engine to execute",  # none of cuDNN's has room for what it needs
)
NO_ROOM_FOR_CODE = "could not create a primitive"  # all that oneDNN says then; of unsupported shapes it says more


class OutOfMemory(GrafError, MemoryError):
    """Memory does not suffice for the smallest piece of a step."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: on the GPU, in PyTorch's allocator of the host, in Python itself or in the system."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # PyTorch's
        return True
    if isinstance(error, CheckpointWriteError):  # its text holds a path, which may say anything
        return error.__cause__ is not None and is_out_of_memory(error.__cause__)
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    return first_line(error) == NO_ROOM_FOR_CODE or any(sign in str(error).lower() for sign in SIGNS)


def is_machine_fault(error: Exception) -> bool:
    """Whether reading failed because of memory or the disk, rather than because of the file's content."""
    if isinstance(error, OSError):
        return error.errno not in (None, errno.EINVAL)  # EINVAL: a damaged file names a bad offset
    return is_out_of_memory(error)


def first_line(error: BaseException) -> str:
    """The error's message, in one line; its class where it has none."""
    return str(error).split("\n")[0] or type(error).__name__
