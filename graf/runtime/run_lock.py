"""One run per folder at a time: a lock file names the process that trains in it.

The file is written under a temporary name and then hard-linked to its own, which is atomic on local disks and network drives.
Its existence is the lock, not an advisory lock of the system, which some network drives do not pass on to other machines.
Whether a lock was left by a killed run is decided by looking up its process, which is possible on this machine only. For a
process on another machine or in another container a person has to decide, except for a SLURM job that was requeued: it is not
running anywhere else.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import platform
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from graf.errors import GrafError, RunFolderError
from graf.runtime.files import write_text
from graf.runtime.interruption import heard_by

import psutil

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

log = logging.getLogger("graf")

NAME = "run.lock"
CLOCK_TOLERANCE_S = 1.0  # between two readings of a process's start time


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that holds a lock. started: seconds since boot on Linux, else since 1970; neither moves with the clock.

    namespace: the Linux namespace in which its process id is unique (containers have their own); slurm_job and slurm_restarts:
    its batch job, and how often that was requeued; empty and 0 where there is none.
    """

    pid: int
    host: str
    boot_id: str
    started: float
    namespace: str = ""
    slurm_job: str = ""
    slurm_restarts: int = 0


@contextlib.contextmanager
def run_lock(run_dir: Path, flag: str = "") -> Iterator[None]:
    """Lock the folder against other runs in this context. A lock that a killed run on this machine left is taken over. flag:
    the one that names another folder, where no config does.

    A missing folder is made, and removed again if it stays empty. Raises GrafError where another run has the folder, or a
    process on another machine may have it, RunFolderError where the lock cannot be written.
    """
    path, made = run_dir / NAME, not run_dir.exists()
    me = _this_process()
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        while not _create(path, me):
            _take_over(path, me, flag or "--set expname=...")
            if _read(path) == me:
                break
    except OSError as error:
        raise RunFolderError(_why_not_writable(run_dir, error, flag)) from None
    try:
        yield
    finally:
        with heard_by(signal.SIG_IGN), contextlib.suppress(OSError):  # the folder may be gone
            if _read(path) == me:
                path.unlink()
            if made:
                run_dir.rmdir()  # refuses unless it is empty


def _why_not_writable(run_dir: Path, error: OSError, flag: str) -> str:
    """The folder's fault, and the cure."""
    at_fault = next(filter(os.path.exists, (run_dir, *run_dir.parents)), run_dir)
    or_else = f"choose another folder with {flag or '--set training.outdir=...'}"
    if not at_fault.is_dir():
        key = "expname" if at_fault == run_dir else "training.outdir"
        return f"{at_fault}: is a file, not a folder; move it, or name another folder with {flag or f'--set {key}=...'}"
    if isinstance(error, PermissionError):
        return f"{at_fault}: no permission to write in this folder; have it granted, or {or_else}"
    room = "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
    return f"{run_dir}: cannot be written ({error}); {room}{or_else}"


def _create(path: Path, me: Holder) -> bool:
    """Create the lock file atomically; False where there is one already."""
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.partial{path.suffix}")
    try:
        _write_new(temporary, me)
        try:
            os.link(temporary, path)
        except (FileExistsError, FileNotFoundError):  # the latter where another run took it for a killed one's
            return False
        except OSError:  # a disk without links
            _write_new(path, me)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def _write_new(path: Path, me: Holder) -> None:
    """Write a new lock file, whole or not at all. Raises FileExistsError where there is one."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(me)))
            file.flush()
            os.fsync(descriptor)
    except OSError:
        path.unlink()
        raise


def _take_over(path: Path, me: Holder, flag: str) -> None:
    """Replace a lock whose process has ended. Raises GrafError where it may be alive; does nothing where the file has changed.

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
        _refuse_if_alive(path, holder, me, flag)
        if fcntl is None:
            found.close()  # Windows replaces no open file
        write_text(path, json.dumps(dataclasses.asdict(me)))
        log.warning("%s: left by process %d, which has ended; taken over", path, holder.pid)


def _refuse_if_alive(path: Path, holder: Holder, me: Holder, flag: str) -> None:
    """Raises GrafError unless the holder has certainly ended."""
    if holder.slurm_job == me.slurm_job and holder.slurm_restarts < me.slurm_restarts:
        return
    # Locks written before there were namespaces in them are judged by their process alone.
    contained = holder.boot_id == me.boot_id and holder.namespace and holder.namespace != me.namespace
    if _host(holder) != _host(me) or contained:
        where = f"in another container on {holder.host}" if contained else f"on {holder.host}"
        raise GrafError(
            f"{path}: process {holder.pid} {where} trains in this folder, or did until it was killed, which cannot be seen "
            f"from {'this one' if contained else me.host}; if it has ended, delete that file, else name another folder with "
            f"{flag}"
        )
    if holder.boot_id == me.boot_id and _is_running(holder):
        raise GrafError(
            f"{path}: process {holder.pid} on {holder.host} is training in this folder; wait for it or end it, or name another "
            f"folder with {flag}"
        )


def _host(holder: Holder) -> str:
    """The name of the holder's machine; on macOS without its end, which changes with the network (`.local`, `.fritz.box`)."""
    return holder.host.partition(".")[0] if sys.platform == "darwin" else holder.host


def _is_running(holder: Holder) -> bool:
    """Whether this very process is alive: not a later one with the same id, and not a zombie."""
    try:
        process = psutil.Process(holder.pid)
        same = abs(_started(process) - holder.started) <= CLOCK_TOLERANCE_S
        return same and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # somebody's process has the number, and will not tell since when
        return True


def _read(path: Path) -> Holder | None:
    try:
        holder = Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    kinds = {field.name: (int, float) if field.type is float else field.type for field in dataclasses.fields(Holder)}
    return holder if all(isinstance(getattr(holder, name), kind) for name, kind in kinds.items()) else None


def _this_process() -> Holder:
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    boot_id = namespace = ""
    with contextlib.suppress(OSError):  # only Linux has them
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    with contextlib.suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return Holder(
        os.getpid(),
        platform.node(),
        boot_id,
        _started(psutil.Process()),
        namespace,
        os.environ.get("SLURM_JOB_ID", ""),
        int(restarts) if restarts.isdecimal() else 0,
    )


def _started(process: psutil.Process) -> float:
    since_1970 = process.create_time()
    # On Linux psutil adds the time of boot, which moves whenever the clock is set.
    return since_1970 - psutil.boot_time() if sys.platform.startswith("linux") else since_1970
