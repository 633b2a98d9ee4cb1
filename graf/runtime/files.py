"""Writes files completely or not at all, warns of files that cannot be written, and reads JSON."""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from graf.errors import GrafError

import psutil

log = logging.getLogger("graf")

SETTINGS = "settings.json"  # of a folder that a tool claimed
OF_FILE_MANAGERS = ".ds_store", "desktop.ini", "thumbs.db"  # in folders that were looked at
REPLACE_TRIES, REPLACE_PAUSE_S = 20 if os.name == "nt" else 1, 0.05  # Windows replaces no file that another process reads
ABANDONED_S = 3600  # a temporary file without a write for so long is abandoned
_lost: set[str] = set()  # kinds of files whose loss was logged


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path` to write to; renamed to it when the block ends well, removed when it does not.

    The temporary name keeps the suffix, by which image and video writers choose their format. Content and name are on the
    disk, not in a cache of the system, when this returns. A missing folder is made. An OSError names `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield temporary
        with open(temporary, "r+b") as file:  # Windows syncs no file that is open for reading only
            os.fsync(file.fileno())
        _replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        if str(error.filename) == str(temporary):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _replace(source: Path, target: Path) -> None:
    """os.replace, tried again for a second where it may be refused for a moment."""
    for tries_left in reversed(range(REPLACE_TRIES)):
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if not tries_left:
                raise
            time.sleep(REPLACE_PAUSE_S)


def set_aside(path: Path) -> Path:
    """Rename a file to the first free of NAME_1, NAME_2, ... with its suffix. Returns the new path."""
    return path.rename(first_free(path.with_stem(f"{path.stem}_{i}") for i in itertools.count(1)))


def first_free(paths: Iterable[Path]) -> Path:
    """The first path where there is nothing yet."""
    return next(path for path in paths if not path.exists())


def is_taken(path: Path) -> bool:
    """Whether a file is there, or a folder with anything but what file managers put in it."""
    return path.exists() and (not path.is_dir() or any(file.name.lower() not in OF_FILE_MANAGERS for file in path.iterdir()))


def make_writable_folder(folder: Path) -> None:
    """Make the folder, and check that a file can be written in it. Raises OSError where either fails."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()


def check_writable(file: Path | str) -> None:
    """Make the file's folder, and the file if need be. Raises OSError where it cannot be written."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a"):
        pass


def write_text(path: Path | str, text: str) -> None:
    """Write the `encodable` text, in UTF-8, as a whole file."""
    with whole_file(path) as temporary:
        temporary.write_text(encodable(text), encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append a line to a file. Where that fails, as on a full disk, the file is as before: the next line would be glued to half
    of this one."""
    left = f"{line}\n".encode()
    with open(path, "ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(size)
            raise


def write_unless_changed(file: Path, text: str) -> None:
    """Write a text that the user may change: a file that differs stays, with a warning. Raises OSError."""
    if not file.exists():
        write_text(file, text)
    elif file.read_text(encoding="utf-8", errors="replace") != text:
        log.warning("%s: not overwritten, but it differs from what this tool would write; remove it to get that", file)


def save_figure(figure: Any, path: Path, dpi: int = 100) -> None:
    """Write a figure of matplotlib, whose import is slow and so not here, as a whole file. Boxes in place of letters that its
    fonts lack are no matter for a warning."""
    with whole_file(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(temporary, dpi=dpi)


def encodable(text: str, encoding: str = "utf-8") -> str:
    """The text with escapes for what the encoding does not have, as in the name of a file that is not UTF-8."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def kept_json(path: Path, compute: Callable[[], Any]) -> Any:
    """The content of a JSON file; where it is missing or damaged, what `compute` returns, which is written there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = compute()
    with optional_file("what is kept for the next time"):
        write_text(path, json.dumps(content))
    return content


def claim_folder(out: Path, settings: dict[str, Any], completed: Callable[[dict, str], dict] | None = None) -> None:
    """Create the folder, or continue a set of the same settings in it. Raises GrafError where it contains anything else.

    completed: adds the keys that the settings of an older version lack; it takes them and the file's name.
    """
    file = out / SETTINGS
    if file.exists():
        try:
            kept = dict(json.loads(file.read_text(encoding="utf-8")))
            kept = completed(kept, str(file)) if completed else kept
        except (ValueError, TypeError, KeyError, AttributeError):
            raise GrafError(f"{file}: cannot be read; choose another --out") from None
        if differing := list(_differing_keys(kept, settings)):
            raise GrafError(f"{out}: contains a set with other {', '.join(differing)} (see {SETTINGS}); choose another --out")
        log.info("%s: continuing the set in it", out)
        return
    if is_taken(out):
        raise GrafError(f"{out}: exists already and was not made by this tool; nothing was written, choose another --out")
    write_text(file, json.dumps(settings, indent=1))


def _differing_keys(kept: Any, asked: Any, name: str = "") -> Iterator[str]:
    """The dotted names of the settings that are not the kept ones."""
    if isinstance(kept, dict) and isinstance(asked, dict):
        for key, value in asked.items():
            yield from _differing_keys(kept.get(key), value, f"{name}.{key}" if name else key)
    elif kept != asked:
        yield name


def json_rows(lines: Iterable[str | bytes]) -> Iterator[dict]:
    """The rows of JSON lines, such as metrics.jsonl, without damaged lines, such as one that a crash cut short."""
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def read_object(path: Path) -> dict:
    """The object in a JSON file; {} where there is no file, or one of anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def readable_object(path: Path) -> dict:
    """The object in a JSON file, as by `read_object`, or {} if the file cannot be read: for callers to whom an unreadable file
    is an empty one."""
    try:
        return read_object(path)
    except OSError:
        return {}


def remove_leftovers(folder: Path, own: tuple[str, ...] = ()) -> None:
    """Remove temporary files of `whole_file` that killed processes left behind.

    own: patterns of names that only the caller writes. Others stay for an hour after their last write: they may belong to a
    process on another machine, which cannot be seen from here.
    """
    for leftover in folder.glob(".*.partial*"):
        pid = leftover.name.rpartition(".partial")[0].rpartition(".")[2]
        if pid.isdecimal() and psutil.pid_exists(int(pid)):
            continue
        with contextlib.suppress(OSError):
            if any(map(leftover.match, own)) or time.time() - leftover.stat().st_mtime > ABANDONED_S:
                leftover.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that they survive a power cut; Windows and some network drives cannot."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    with open(path, "rb") as file:
        return stream_sha256(file)


def stream_sha256(file: BinaryIO) -> str:
    """sha256 of an open file's bytes from its current position to its end."""
    digest = hashlib.sha256()
    while block := file.read(2**20):
        digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def optional_file(kind: str) -> Iterator[None]:
    """A block whose file may be lost, as on a full disk, without ending the run.

    kind: what is lost, such as "sample grids"; its loss is logged once.
    """
    try:
        yield
    except OSError as error:
        warn_of_lost(kind, error)


def warn_of_lost(kind: str, error: OSError) -> None:
    """Log, once per kind of file, that files are not written."""
    if kind not in _lost:
        _lost.add(kind)
        log.warning("%s cannot be written (%s); the program goes on, and this is logged once", kind, error)
