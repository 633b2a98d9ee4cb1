"""Shared by all programs: messages on the terminal, progress bars, and exit statuses of errors."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from graf.errors import GrafError
from graf.runtime.files import encodable, warn_of_lost
from graf.runtime.out_of_memory import first_line, is_out_of_memory

from tqdm import tqdm
from tqdm.utils import ObjectWrapper

log = logging.getLogger("graf")
tqdm.set_lock(threading.RLock())  # its own is for several processes too, and starts one that warns where a signal ends this

UNKNOWN_SIZE = {"ncols": 160, "nrows": 24}  # of a terminal that does not report its own


class _TqdmHandler(logging.Handler):
    """Writes log lines above a running progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        tqdm.write(prefix + record.getMessage(), file=sys.stderr if prefix else sys.stdout)


class _Lines:
    """A stream that turns a progress bar's carriage returns into lines, for logs."""

    def write(self, text: str) -> None:
        text = text.replace("\r", "\n").strip()
        if text:
            sys.stderr.write(text + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


class _Lossy(ObjectWrapper):
    """A terminal stream that drops what cannot be written, as to a full disk or a closed pipe, and writes `encodable` text."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            try:
                self._wrapped.write(text)
            except UnicodeEncodeError as error:
                self._wrapped.write(encodable(text, error.encoding))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._wrapped.flush()


@contextlib.contextmanager
def _lossy_terminal() -> Iterator[None]:
    """Keep output that cannot be written from ending a run: log lines, progress bars, prints of libraries."""
    streams = sys.stdout, sys.stderr
    with contextlib.redirect_stdout(_Lossy(sys.stdout)), contextlib.redirect_stderr(_Lossy(sys.stderr)):
        yield
    for stream in streams:
        try:
            stream.flush()
        except OSError:  # Python flushes once more, and would end with a status of its own
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def progress(items: Iterable | None = None, bar: type[tqdm] = tqdm, **options: Any) -> tqdm:
    """A tqdm bar on a terminal; one line a minute where stderr is a file or a pipe."""
    if sys.stderr.isatty():
        known = all(os.get_terminal_size(sys.stderr.fileno()))  # not so on a serial line, on which tqdm would be silent
        return bar(items, **({"dynamic_ncols": True} if known else UNKNOWN_SIZE), **options)
    return bar(items, file=_Lines(), mininterval=60, maxinterval=60, ncols=160, **options)


@contextlib.contextmanager
def _lost_files_as_warnings() -> Iterator[None]:
    """Print no traceback where a thread or a destructor, such as TensorBoard's or imageio's, finds the disk full."""
    before = threading.excepthook, sys.unraisablehook

    def warning_of_lost_files(hook: Callable[[Any], object]) -> Callable[[Any], object]:
        return lambda unraised: (
            warn_of_lost("files in the background", unraised.exc_value)
            if isinstance(unraised.exc_value, OSError)
            else hook(unraised)
        )

    threading.excepthook, sys.unraisablehook = map(warning_of_lost_files, before)
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `5.0 h` or `3.1 days`."""
    for size, name, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.{digits}f} {name}"
    return f"{seconds:.0f} s"


def run_script(main: Callable[[], int | None]) -> None:
    """Run a script's main: messages to the terminal, a GrafError to stderr with its exit status, mostly 2.

    A file that cannot be read or written ends it with status 1, Ctrl-C with 130. A closed terminal does not end it.
    """
    with _lossy_terminal():
        handler, level = _TqdmHandler(), log.level
        log.setLevel(logging.INFO)
        log.addHandler(handler)
        try:
            with _lost_files_as_warnings():
                status = main()
        except GrafError as error:
            sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error}\n")
            status = error.exit_status
        except (OSError, MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                advice = "a smaller result takes less, and tools/check_system.py names edits of a config that fit"
                message, status = f"out of memory ({first_line(error)}); {advice}", 2
            elif isinstance(error, OSError):
                message, status = f"{error.filename or 'a file'}: {error.strerror or error}", 1
            else:
                raise
            sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {message}\n")
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted\n")
            status = 130
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
    sys.exit(status)
