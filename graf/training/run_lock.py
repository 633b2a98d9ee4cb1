"""One training a folder: a lock file that says who has it.

The file is made by O_EXCL, which is atomic on local disks and on network drives. Its existence is the lock, not an advisory
lock of the system's, which some network drives do not pass on to other machines. What a killed run leaves behind is told by
its process: on this machine it can be looked up, on another it cannot, and a person has to decide.
"""

import contextlib
import dataclasses
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from graf.errors import GrafError
from graf.files import whole_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

log = logging.getLogger("graf")

NAME = "run.lock"
CLOCK_TOLERANCE_S = 1.0  # of what a system tells twice of a process's start


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process. started: seconds since boot on Linux, since 1970 elsewhere, neither of which moves with the clock."""

    pid: int
    host: str
    boot_id: str
    started: float


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the folder against other trainings while entered. A lock that a killed run on this machine left is taken over.

    The folder is made where it is missing, and removed again where it stays empty. Raises GrafError where another run has the
    folder, or a process on another machine may have it, or the lock cannot be written.
    """
    path, made = run_dir / NAME, not run_dir.exists()
    me = _this_process()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        while not _create(path, me):
            _take_over(path, me)
            if _read(path) == me:
                break
    except OSError as error:
        raise GrafError(
            f"{run_dir}: cannot be written ({error}); choose another folder with --set training.outdir=..."
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            if _read(path) == me:
                path.unlink()
            if made:
                run_dir.rmdir()  # refuses unless it is empty


def _create(path: Path, me: Holder) -> bool:
    """Make the lock file; False where there is one."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(me)))
        file.flush()
        os.fsync(descriptor)
    return True


def _take_over(path: Path, me: Holder) -> None:
    """Replace a lock whose process is no more. Raises GrafError where it may live; does nothing where the file has changed.

    Of several runs that find the same stale file, only the first to lock it replaces it; the others then see another file.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as found:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a disk without such locks
                fcntl.flock(found, fcntl.LOCK_EX)
        if os.fstat(found.fileno()).st_ino != path.stat().st_ino:
            return
        holder = _read(path)
        if holder is None:
            raise GrafError(f"{path}: not a lock that can be read; delete the file if no training runs in this folder")
        _refuse_if_alive(path, holder)
        with whole_file(path) as temporary:
            temporary.write_text(json.dumps(dataclasses.asdict(me)), encoding="utf-8")
        log.warning("%s: left by process %d, which is no more; taken over", path, holder.pid)


def _refuse_if_alive(path: Path, holder: Holder) -> None:
    if holder.host != platform.node():
        raise GrafError(
            f"{path}: process {holder.pid} on {holder.host} trains in this folder, or did until it was killed, which cannot be "
            f"seen from {platform.node()}; if it has ended, delete that file, else name another folder with --set expname=..."
        )
    if holder.boot_id == _boot_id() and _is_running(holder):
        raise GrafError(
            f"{path}: process {holder.pid} on {holder.host} is training in this folder; wait for it or end it, or name another "
            "folder with --set expname=..."
        )


def _is_running(holder: Holder) -> bool:
    """Whether the very process lives, not another that was given its number later."""
    try:
        return abs(_started(psutil.Process(holder.pid)) - holder.started) <= CLOCK_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # somebody's process has the number, and will not tell since when
        return True


def _read(path: Path) -> Holder | None:
    try:
        holder = Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    kinds = {"pid": int, "host": str, "boot_id": str, "started": (int, float)}
    return holder if all(isinstance(getattr(holder, name), kind) for name, kind in kinds.items()) else None


def _this_process() -> Holder:
    return Holder(os.getpid(), platform.node(), _boot_id(), _started(psutil.Process()))


def _started(process: psutil.Process) -> float:
    since_1970 = process.create_time()
    # On Linux psutil adds the time of boot, which moves whenever the clock is set.
    return since_1970 - psutil.boot_time() if sys.platform.startswith("linux") else since_1970


def _boot_id() -> str:
    """Of this machine since it was started; empty where the system has no such thing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
