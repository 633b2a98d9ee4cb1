"""The memory budget of a run, and a limit that turns exceeding it into an out-of-memory error, which a step survives."""

import logging
import sys

from graf.config import MemoryConfig
from graf.errors import GrafError
from graf.runtime.limits import GB, limit_resident, local_processes, memory_limit

import psutil
import torch

log = logging.getLogger("graf")


def budget_bytes(memory: MemoryConfig, device: torch.device) -> int:
    """Bytes that the process may use on the device: memory.budget_gb, else what the machine or the process's control group has,
    or what is free on the GPU or held there by the process already. A GPU belongs to one process; host memory is shared by
    the run's processes on the machine."""
    asked = int(memory.budget_gb * GB)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        limit = free + torch.cuda.memory_reserved(device)
        return min(asked or limit, limit)
    limit = memory_limit()
    return min(asked or limit, limit) // local_processes()


def watched_budget(memory: MemoryConfig, device: torch.device) -> int:
    """The process's part of memory.budget_gb on the device, for the monitor; 0 where none is set."""
    return budget_bytes(memory, device) if memory.budget_gb else 0


def enforce_budget(memory: MemoryConfig, device: torch.device) -> None:
    """Make allocations beyond the budget fail, before the system kills the process.

    On a GPU by PyTorch's own limit; on Linux's CPU by RLIMIT_DATA, where memory.budget_gb or a control group names a limit
    below the machine's; other systems enforce none, which is logged. With a GPU the host's memory is watched, not limited,
    because CUDA itself maps an unknown amount of it. Raises GrafError where the idle process already uses more than
    memory.budget_gb.
    """
    budget = budget_bytes(memory, device)
    if device.type == "cuda":
        if memory.budget_gb:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), device)
        return
    # The host's memory: what Python takes of it, then the limit
    resident = psutil.Process().memory_info().rss
    if memory.budget_gb and budget <= resident:
        n = local_processes()
        where = "" if n == 1 else f" in the {n} processes here"
        raise GrafError(
            f"memory.budget_gb: {memory.budget_gb:g} GB is less than the {n * resident / GB:.2f} GB that Python and its "
            f"libraries take{where} without training; raise it"
        )
    total = psutil.virtual_memory().total
    named = memory.budget_gb or memory_limit() < total  # a share of the whole machine is no limit
    if not named or budget >= total:
        return
    if sys.platform.startswith("linux"):
        limit_resident(budget)
        log.info("memory: the run keeps to %.2f GB", budget / GB)
    else:
        log.warning("memory.budget_gb: only Linux makes allocations beyond it fail; here steps are planned by it, not limited")
