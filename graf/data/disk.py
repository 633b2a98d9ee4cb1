"""Files by the names that their disk lists. Disks of Macs and of Windows, and memory sticks, find a file by any capitals, some
also however accents are encoded: one file would be two for whoever compares paths."""

import functools
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path


class Disk:
    """Some folders, and the names in any folder, each read once."""

    def __init__(self, folders: Iterable[Path]):
        self._folders = dict.fromkeys(folders)
        self._names: dict[str, frozenset[str]] = {}
        self._same: dict[Path, Path] = {}
        self._spellings: dict[str, str] = {}

    def folder(self, path: Path) -> Path:
        """The one of the folders to which a path leads, by whatever name, link or working directory; else the path."""
        if path in self._folders:
            return path
        if path not in self._same:
            self._same[path] = self._by_place.get(self._place(path), path)
        return self._same[path]

    def names(self, folder: Path | str) -> frozenset[str]:
        """The names in a folder; none where there is no such folder."""
        place = os.fspath(folder)
        if place not in self._names:
            self._names[place] = frozenset(_names_in(place))
        return self._names[place]

    @functools.cached_property
    def _by_place(self) -> dict[str, Path]:
        return {self._place(folder): folder for folder in reversed(self._folders)}  # the first of several

    def _place(self, path: Path) -> str:
        return self._spelled(os.path.realpath(path)) if os.path.exists(path) else os.fspath(path)

    def _spelled(self, place: str) -> str:
        if place not in self._spellings:
            parent, name = os.path.split(place)
            if name and name not in (names := self.names(parent)):
                name = min((other for other in names if _key(other) == _key(name)), default=name)
            self._spellings[place] = os.path.join(self._spelled(parent), name) if name else place
        return self._spellings[place]


def as_listed(file: Path, folder: Path) -> Path:
    """The path of an existing file below the folder by the names that the disk lists; the folder's own path stays."""
    found = folder
    for name in file.relative_to(folder).parts:
        names = _names_by_key(found, found.stat().st_mtime_ns)
        found /= names.get(name) or names.get(_key(name), name)
    return found


@functools.lru_cache(maxsize=64)
def _names_by_key(folder: Path, _changed: int) -> dict[str, str]:
    """The names in a folder, by themselves and by their keys. _changed: when the folder did, of which this is cached."""
    names = _names_in(folder)
    return {_key(name): name for name in names} | {name: name for name in names}


def _names_in(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).lower()
