"""Limits of this process in host memory and cores: the machine's, or its container's where that is less."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

MB, GB = 2**20, 2**30  # as GPUs, containers and ulimit count them
CODE_BYTES = 64 * MB  # that oneDNN's code takes, at most, before a limit is renewed
_resident_limit = 0  # bytes, 0 for none

# by the version of control groups: limit, use, and the part of the use that is file cache which the kernel drops on demand
MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may run on, or whose time its control groups allow where that is less (`docker run --cpus`).

    `root` is where proc/ and sys/ are looked for.
    """
    quotas = (_cores_of_quota(group, version) for group, version in _control_groups(root, "cpu"))
    return min([_cores_to_run_on(), *(math.ceil(quota) for quota in quotas if quota is not None)])


def keep_threads_within_quota(root: Path = Path("/")) -> None:
    """Let OpenMP start no more threads than control groups allow cores, unless OMP_NUM_THREADS says how many.

    PyTorch starts one per core that it may run on; threads beyond the quota are stopped while the others wait for them. Call it
    before PyTorch is imported.
    """
    if (cores := available_cores(root)) < _cores_to_run_on():
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))


def local_processes() -> int:
    """Number of the run's processes on this machine, from torchrun's variables."""
    n = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(n)) if n.isdecimal() else 1


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes that may be resident at most: the least of the machine's memory, the control groups' limits and `ulimit -v`.

    `root` is where proc/ and sys/ are looked for.
    """
    limits = [psutil.virtual_memory().total]
    for group, version in _control_groups(root, "memory"):
        limit = _number(group / MEMORY_FILES[version][0])
        if limit is not None:
            limits.append(limit)
    return min(limits + _address_space())


def memory_available(root: Path = Path("/")) -> int:
    """Bytes that this process can still allocate before it, the machine or one of its control groups runs out."""
    room = [psutil.virtual_memory().available]
    for group, version in _control_groups(root, "memory"):
        limit_file, use_file, cache_name = MEMORY_FILES[version]
        limit, used = _number(group / limit_file), _number(group / use_file)
        if limit is not None and used is not None:
            room.append(limit - used + _statistic(group / "memory.stat", cache_name))
    room += [limit - psutil.Process().memory_info().vms for limit in _address_space()]
    return max(0, min(room))


def _address_space() -> list[int]:
    """The limit that `ulimit -v` sets, where there is one."""
    if not hasattr(psutil, "RLIMIT_AS"):
        return []
    soft, _ = psutil.Process().rlimit(psutil.RLIMIT_AS)
    return [] if soft == psutil.RLIM_INFINITY else [soft]


def _cores_to_run_on() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cores_of_quota(group: Path, version: int) -> float | None:
    """Cores whose time a control group allows; None without a limit."""
    if version == 1:
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        return quota / period if quota and period and quota > 0 else None  # -1 is no limit
    try:
        quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _control_groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Folders of the control groups of this process, up to the mount, and the version, 1 or 2, on which files' names depend.

    Inside a container the path may be the host's, and only the mount itself exist; what does not exist reads as no limit.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount, version = root / "sys/fs/cgroup", 2
        if controllers:
            mount, version = mount / controller, 1
        group = mount / path.lstrip("/")
        while group != mount:
            yield group, version
            group = group.parent
        yield mount, version


def _number(path: Path) -> int | None:
    """The number in a file; None for `max`, and where there is no such file."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _statistic(path: Path, name: str) -> int:
    """A value of memory.stat, 0 where it is missing."""
    try:
        rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return next((int(row[1]) for row in rows if row[0] == name), 0)
    except (OSError, ValueError, IndexError):
        return 0


def limit_resident(budget: int) -> None:
    """Make allocations fail, on Linux, beyond so many resident bytes of this process. `renew_limit` keeps it to that."""
    global _resident_limit
    _resident_limit = budget
    renew_limit()


def renew_limit() -> None:
    """Give an allocation the room that freed blocks have left, where `limit_resident` set a limit: RLIMIT_DATA counts them,
    though they are resident no longer. CODE_BYTES more are for oneDNN's code, without which its products crash."""
    counted = process_bytes("VmData") if _resident_limit else None
    if counted is not None:
        import resource  # not on Windows

        limit = counted - psutil.Process().memory_info().rss + _resident_limit + CODE_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def process_bytes(name: str) -> int | None:
    """A size of this process from /proc, such as VmHWM or VmData (man 5 proc); None where there is none."""
    kibibytes = process_status(name)
    return None if kibibytes is None else int(kibibytes) * 1024


def process_status(name: str, pid: int | str = "self") -> str | None:
    """A value of /proc/PID/status, without its unit; None where there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split()[1] for line in lines if line.startswith(f"{name}:")), None)
