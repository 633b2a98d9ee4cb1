"""Files by the names that their disk lists: those of Macs and of Windows find a file by any capitals, and of Macs however
accents are encoded."""

import functools
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path


class Disk:
    """The names in folders, each read once, and how paths are spelled.

    A file that is asked for as `Masks/a.png` and listed as `masks/a.png` would be two files for whoever compares paths.
    """

    def __init__(self, folders: Iterable[Path]):
        """folders: those that keep the spelling that they have here, relative or absolute, as their parents do."""
        folders = set(folders)
        self._known, self._here = folders.union(*(folder.parents for folder in folders)), Path.cwd()
        self.names = functools.cache(self._names)
        self.folder = functools.cache(self._folder)

    def file(self, path: Path) -> Path:
        """An existing file's path, as the known folders begin and as the disk lists what is in them."""
        folder = self.folder(path.parent)
        return folder / self._listed(folder, path.name)

    def _folder(self, path: Path) -> Path:
        """The same of a folder; of one that does not exist its own path."""
        if not os.path.exists(path):
            return path
        ancestors = (path, *path.parents)
        start = next((folder for folder in ancestors if self._as_known(folder) in self._known), ancestors[-1])
        found = self._as_known(start)
        for name in path.relative_to(start).parts:
            found /= self._listed(found, name)
        return found

    def _as_known(self, path: Path) -> Path:
        """A path as it is known, relative or absolute."""
        elsewhere = path.relative_to(self._here) if path.is_relative_to(self._here) else self._here / path
        return elsewhere if elsewhere in self._known and path not in self._known else path

    def _listed(self, folder: Path, name: str) -> str:
        if name in self.names(folder):
            return name
        alike = (other for other in self.names(folder) if _key(other) == _key(name))
        return min((other for other in alike if os.path.exists(folder / other)), default=name)  # not renamed since

    def _names(self, folder: Path) -> frozenset[str]:
        """The names in a folder; none where there is no such folder."""
        try:
            return frozenset(os.listdir(folder))
        except OSError:
            return frozenset()


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).lower()
