"""How much host memory this process may take, the machine's or its container's where that is less, and how many cores."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

MB, GB = 2**20, 2**30  # as cards, containers and ulimit count them

# limit, use, and the part of the use that is file cache which the kernel drops on demand
CGROUP_V2 = ("memory.max", "memory.current", "inactive_file")
CGROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_processes() -> int:
    """Number of the run's processes on this machine, from torchrun's variables."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(told)) if told.isdecimal() else 1


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes that may be resident at most: the least of the machine's memory, the control groups' limits and `ulimit -v`.

    `root` is where proc/ and sys/ are looked for.
    """
    limits = [psutil.virtual_memory().total]
    for group, (limit_file, _, _) in _control_groups(root):
        limit = _number(group / limit_file)
        if limit is not None:
            limits.append(limit)
    return min(limits + _address_space())


def memory_available(root: Path = Path("/")) -> int:
    """Bytes that this process can still allocate before it, the machine or one of its control groups runs out."""
    room = [psutil.virtual_memory().available]
    for group, (limit_file, use_file, cache_name) in _control_groups(root):
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


def _control_groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Folders of the control groups that this process is in, up to the mount, with the names of their files.

    Inside a container the path may be the host's, and only the mount itself exist; what does not exist reads as no limit.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, files = root / "sys/fs/cgroup", CGROUP_V2
        if controllers:
            mount, files = mount / "memory", CGROUP_V1
        group = mount / path.lstrip("/")
        while group != mount:
            yield group, files
            group = group.parent
        yield mount, files


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
