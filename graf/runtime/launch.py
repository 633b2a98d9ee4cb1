"""Joins and leaves the process group of torchrun or a batch system; when one process fails, all end."""

import contextlib
import logging
import os
from collections.abc import Iterator
from datetime import timedelta

from graf.errors import GrafError
from graf.runtime.device import choose_device
from graf.runtime.processes import ALONE, AnotherProcessFailed, Processes

import torch
import torch.distributed as dist

log = logging.getLogger("graf")

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # status codes go through the CPU and keep no card waiting
TIMEOUT = timedelta(hours=2)  # longer than the first process measures FID or makes toy cars, while the others wait


@contextlib.contextmanager
def processes_of_run(device_name: str) -> Iterator[tuple[Processes, torch.device]]:
    """The processes that torchrun's environment variables describe, and the device of this one; ALONE without the variables.

    Inside it only the first process logs. Where one fails all end: one of those that failed raises its error, the others exit
    with status 1 and no message. Raises GrafError where the variables or the device do not fit.
    """
    rank, world_size, local_rank = (_variable(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if world_size == 1 or "RANK" not in os.environ:
        yield ALONE, choose_device(device_name)
        return
    device = _own_device(device_name, local_rank)
    _connect(device)
    processes, level = Processes(rank, world_size), log.level
    if not processes.first:
        log.setLevel(logging.ERROR)
    try:
        with _ending_together(processes):
            yield processes, device
    finally:
        log.setLevel(level)
        disconnect()


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
        log.warning("process %d of %d ends: %s", processes.rank, processes.world_size, error)
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
        n_cards = torch.cuda.device_count()
        if local_rank >= n_cards:
            raise GrafError(
                f"LOCAL_RANK {local_rank}: this machine has {n_cards} CUDA device(s); start at most so many processes on it, "
                "or add --device cpu"
            )
        return choose_device(f"cuda:{local_rank}")
    device = choose_device(name)
    if device.type == "cuda":
        raise GrafError(f"--device {name}: every process takes a card of its own; name cuda or auto")
    return device


def _connect(device: torch.device) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise GrafError(f"environment variable {missing[0]}: not set, but WORLD_SIZE is; start the run with torchrun")
    try:
        dist.init_process_group(BACKENDS[device.type], timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise GrafError(f"the run's processes cannot be reached at {where} ({str(error).splitlines()[0]})") from None
