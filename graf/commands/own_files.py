"""Tells the files in a folder of results that this program made, so that files of others are not replaced."""

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from graf.runtime.files import file_sha256, read_object, set_aside, write_text

log = logging.getLogger("graf")

MARK = ".made_by_eval.json"  # the jobs of eval.py that have written to a folder


def set_others_aside(folder: Path, job: str, names: str) -> None:
    """Rename files in the way of a job, with a warning, unless MARK says that the job has written to the folder before.

    names: a regular expression of the job's files, relative to the folder and at most one folder below it.
    """
    made = read_object(folder / MARK).get("jobs")
    made = made if isinstance(made, list) else []
    if job in made:
        return
    for path in sorted((*folder.glob("*"), *folder.glob("*/*"))):
        if path.is_file() and re.fullmatch(names, path.relative_to(folder).as_posix()):
            log.warning("%s: not known as a file that eval.py made; it is now %s", path, set_aside(path).name)
    write_text(folder / MARK, json.dumps({"jobs": [*made, job]}))


def hashes_of(files: Iterable[Path]) -> dict[Path, str]:
    """The files with their sha256."""
    return {file: file_sha256(file) for file in files}


def remove_earlier(folder: Path, earlier: Mapping[Path, str], written: Collection[Path]) -> None:
    """Remove files that a job wrote there `earlier`, such as objects of another seed, except those `written` since; the log
    tells which went, and which have another content than their hash."""
    gone = [file for file in earlier if file not in written]
    for file in gone:
        file.unlink()
    changed = [file for file in earlier if file in written and file_sha256(file) != earlier[file]]
    for done, files in (("removed", gone), ("replaced", changed)):
        if files:
            names = ", ".join(sorted(file.name for file in files))
            log.info("%s: %s what an earlier command wrote: %s; --out keeps results apart", folder, done, names)
