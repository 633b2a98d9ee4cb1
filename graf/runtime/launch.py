"""Joins and leaves the process group of torchrun or a batch system; when one process fails, all end."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator
from datetime import timedelta

from graf.errors import GrafError
from graf.runtime.cards import unusable_cards
from graf.runtime.device import choose_device
from graf.runtime.processes import ALONE, AnotherProcessFailed, ConnectionLost, Processes

import torch
import torch.distributed as dist

log = logging.getLogger("graf")

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # of tensors; status codes go through the CPU and keep no card waiting
TIMEOUT = timedelta(hours=2)  # longer than the first process measures FID or makes toy cars, while the others wait
INTERFACES = "with several networks GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the interface to take, such as eth0"
TENSOR_TIMEOUT = timedelta(minutes=5)  # of an exchange that all processes have agreed to


@contextlib.contextmanager
def processes_of_run(device_name: str) -> Iterator[tuple[Processes, torch.device]]:
    """The processes that torchrun's environment variables describe, and the device of this one; ALONE without the variables.

    Inside it only the first process logs. Where one fails all end: one of those that failed raises its error, the others exit
    with status 1, and without a message unless one was killed or hangs. Raises GrafError where the variables or the device do
    not fit, or processes have GPUs of different models.
    """
    rank, world_size, local_rank = (_variable(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if world_size == 1 or "RANK" not in os.environ:
        yield ALONE, choose_device(device_name)
        return
    processes, level = Processes(rank, world_size), log.level
    if not processes.first:
        log.setLevel(logging.ERROR)
    try:
        _connect()
        with _ending_together(processes):
            device = _own_device(device_name, local_rank)
            require_one_model(processes, device)
            processes = dataclasses.replace(processes, tensors=tensor_group(device))
            yield processes, device
    finally:
        log.setLevel(level)
        if dist.is_initialized():
            disconnect()


def require_one_model(processes: Processes, device: torch.device) -> None:
    """Raises GrafError where processes have GPUs of different models, or only some have one.

    Such a run is as slow as its slowest GPU, and some of its processes may train in bfloat16 and others in float16.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    first = processes.broadcast(lambda: name)
    if name != first:
        if device.type == "cpu" and (why := unusable_cards()):
            name += f" ({why})"
        raise GrafError(
            f"process {processes.rank} of {processes.world_size} has {name}, the first one {first}; a run needs GPUs of one "
            "model: choose them with CUDA_VISIBLE_DEVICES, start the run on other machines, or add --device cpu"
        )
    processes.barrier()  # nobody connects while another process is refused


def tensor_group(device: torch.device) -> dist.ProcessGroup:
    """The group that tensors on the device are summed in, with its connections made. Raises GrafError where that fails.

    An exchange in it that takes longer than TENSOR_TIMEOUT is an error of the process that waits.
    """
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # or a thread of NCCL's group aborts the process instead
    try:
        group = dist.new_group(timeout=TENSOR_TIMEOUT, backend=BACKENDS[device.type])
        dist.all_reduce(torch.zeros(1, device=device), group=group)
    except (RuntimeError, ValueError) as error:
        raise GrafError(f"the run's processes cannot exchange tensors ({str(error).splitlines()[0]}); {INTERFACES}") from None
    return group


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
        level = logging.ERROR if isinstance(error, ConnectionLost) else logging.WARNING
        log.log(level, "process %d of %d ends: %s", processes.rank, processes.world_size, error)
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


def _connect() -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise GrafError(f"environment variable {missing[0]}: not set, but WORLD_SIZE is; start the run with torchrun")
    try:
        dist.init_process_group("gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise GrafError(
            f"the run's processes cannot be reached at {where} ({str(error).splitlines()[0]}); {INTERFACES}"
        ) from None
