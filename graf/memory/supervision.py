"""Running a command, or joining a process that runs, with its memory watched from outside."""

import contextlib
import logging
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graf.errors import GrafError
from graf.memory.watch import ProcessWatch, find_process, write_report
from graf.runtime.cleanup import request_clean_up
from graf.runtime.limits import MB

import psutil

log = logging.getLogger("graf")

CLEAN_UP_S = 2.0  # after which what a clean-up gave back is measured


@dataclass(frozen=True)
class WatchSettings:
    """How to watch, and where the report goes."""

    out: Path
    run_dir: Path | None = None
    interval_s: float = 1.0
    warm_up_s: float = 60.0
    clean_up: bool = False


def watch_command(command: list[str], settings: WatchSettings) -> int:
    """Run the command and watch it. Returns its exit status, 128 + the signal's number where one ended it, as shells have it.

    The command has a session of its own, or Ctrl-C in a terminal would reach it twice. Raises GrafError where it cannot start.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    try:
        process = psutil.Popen(command, start_new_session=True)
    except OSError as error:
        raise GrafError(f"{command[0]}: cannot be started ({error.strerror}); the command behind -- is run as it is") from None
    with forwarded_signals(process):  # before anything that takes time
        watch = ProcessWatch(process.pid, settings.run_dir, settings.warm_up_s)
        try:
            observe(process, watch, settings)
        finally:
            status = process.wait()
    if not watch.judged_samples:
        log.warning("memory: too short to tell a leak, or no rows in %s", watch.log.path if watch.log else "the first minute")
    write_report(watch, settings.out, command=shlex.join(command), exit_status=status)
    return status if status >= 0 else 128 - status


def watch_pid(pid: int, settings: WatchSettings) -> None:
    """Watch a process until it ends or Ctrl-C. Raises GrafError where there is none, or none that may be watched."""
    process = find_process(pid)
    if process is None:
        raise GrafError(f"--pid {pid}: no such process runs here")
    watch = ProcessWatch(pid, settings.run_dir, settings.warm_up_s)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            observe(process, watch, settings)
    except psutil.AccessDenied:
        raise GrafError(f"--pid {pid}: its memory is not ours to read; it is another user's process") from None
    write_report(watch, settings.out, pid=pid)


def observe(process: psutil.Process, watch: ProcessWatch, settings: WatchSettings) -> None:
    """Sample until the process has ended, and warn of leaks as they show."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while find_process(process.pid) is not None:
            for report in watch.sample():
                if report.source not in watch.told_by_run:
                    log.warning("%s", report.message(watch.unit))
                if settings.clean_up:
                    force_clean_up(process, watch)
                write_report(watch, settings.out)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(settings.interval_s)


def force_clean_up(process: psutil.Process, watch: ProcessWatch) -> None:
    """Have the training clean up, and say what it gave back."""
    before = watch.tree.read()["host_bytes"]
    asked = request_clean_up(process)
    if asked is None:
        log.warning("clean-up: nothing in the command handles SIGUSR2 yet")
        return
    time.sleep(CLEAN_UP_S)
    log.info("clean-up: process %d gave back %.0f MB", asked, (before - watch.tree.read()["host_bytes"]) / MB)


@contextlib.contextmanager
def forwarded_signals(process: psutil.Process) -> Iterator[None]:
    """Inside it, what would end this program goes to the process instead, which may have something to save."""

    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
