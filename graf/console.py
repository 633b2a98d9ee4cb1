"""What the scripts share: messages on the terminal, progress bars, and errors as exit statuses."""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from graf.errors import GrafError
from graf.files import not_worth_a_run
from graf.memory.survival import is_out_of_memory

log = logging.getLogger("graf")


class _TqdmHandler(logging.Handler):
    """Log lines above a running progress bar instead of through it."""

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


def progress(items: Iterable | None = None, **options: Any) -> tqdm:
    """A tqdm bar on a terminal; one line a minute where stderr is a file or a pipe."""
    if sys.stderr.isatty():
        return tqdm(items, dynamic_ncols=True, **options)
    return tqdm(items, file=_Lines(), mininterval=60, maxinterval=60, ncols=100, **options)


@contextlib.contextmanager
def _lost_files_as_warnings() -> Iterator[None]:
    """No traceback where a thread or a destructor, such as TensorBoard's or imageio's, finds the disk full."""
    before = threading.excepthook, sys.unraisablehook

    def hook(told: Any, otherwise: Callable[[Any], object]) -> None:
        if not isinstance(told.exc_value, OSError):
            otherwise(told)
            return
        with not_worth_a_run("files in the background"):
            raise told.exc_value

    threading.excepthook = lambda told: hook(told, before[0])
    sys.unraisablehook = lambda told: hook(told, before[1])
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before


def run_script(main: Callable[[], int | None]) -> None:
    """Run a script's main: messages to the terminal, a GrafError to stderr with its exit status, mostly 2.

    A file that cannot be read or written ends it with status 1, Ctrl-C with 130.
    """
    handler = _TqdmHandler()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        with _lost_files_as_warnings():
            status = main()
    except GrafError as error:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error}\n")
        status = error.exit_status
    except OSError as error:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error.filename or 'a file'}: {error.strerror or error}\n")
        status = 1
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        said = str(error).split("\n")[0] or type(error).__name__
        sys.stderr.write(
            f"{Path(sys.argv[0]).name}: error: out of memory ({said}); tools/check_system.py names edits that fit\n"
        )
        status = 2
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        status = 130
    finally:
        log.removeHandler(handler)
    sys.exit(status)
