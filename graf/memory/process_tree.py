"""Memory and CPU time of a process and of its children; without PyTorch, which the outside watcher does not load."""

from collections.abc import Callable

import psutil


class ProcessTree:
    """The memory of a process and of its children, such as loader workers. Children that end are left out."""

    def __init__(self, pid: int | None = None):
        """pid: by default this process's. Raises psutil.NoSuchProcess."""
        self.process = psutil.Process(pid)
        self.children: list[psutil.Process] = []

    def resident_bytes(self) -> int:
        """The resident set of the process alone. Raises psutil.Error where it has ended."""
        return self.process.memory_info().rss

    def find_children(self) -> None:
        """Look for new children; seldom, because it reads the machine's whole process table."""
        self.children = self.process.children(recursive=True)

    def read(self) -> dict[str, int]:
        """Resident bytes of the process and of its children, and how many they are. Raises psutil.Error where it has ended.

        Pages that children share with it, such as those of a fork, count for each of them.
        """
        host = self.resident_bytes()
        workers = self._over_children(lambda child: child.memory_info().rss)
        return {"host_bytes": host, "workers": len(self.children), "workers_bytes": workers}

    def read_unique(self) -> dict[str, int]:
        """Bytes held by the process alone, and by its children alone; empty where the system cannot tell.

        The kernel walks every page for it: a few milliseconds per GB. Raises psutil.NoSuchProcess where it has ended.
        """
        try:
            host = self.process.memory_full_info().uss
            workers = self._over_children(lambda child: child.memory_full_info().uss)
        except (psutil.AccessDenied, AttributeError):
            return {}
        return {"host_unique_bytes": host, "workers_unique_bytes": workers}

    def cpu_seconds(self) -> float:
        """CPU seconds of the process, its children, and children that have ended."""
        own = self.process.cpu_times()
        ended = getattr(own, "children_user", 0) + getattr(own, "children_system", 0)
        return own.user + own.system + ended + self._over_children(lambda child: sum(child.cpu_times()[:2]))

    def _over_children(self, read: Callable[[psutil.Process], float]) -> float:
        alive, total = [], 0
        for child in self.children:
            try:
                total += read(child)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
            alive.append(child)
        self.children = alive
        return total
