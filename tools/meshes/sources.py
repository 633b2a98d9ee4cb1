"""Which meshes a set shows, and whose they are: a LICENSES file with the licence texts that lie beside them."""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graf.errors import GrafError
from graf.runtime.files import write_text
from meshes.reading import SUFFIXES

LICENCE_NAME = re.compile(r"licen[cs]e|copying|copyright|credit|attribution|author|notice|readme", re.IGNORECASE)
TEXT_SUFFIXES = ("", ".txt", ".md", ".rst")
MOST_BYTES = 200_000  # a longer file is no licence


@dataclass(frozen=True)
class Source:
    """An object's name in the set, the file that it comes from, and the folder that the user named, or the file's own."""

    name: str
    file: Path
    root: Path

    @property
    def path_in_root(self) -> str:
        return self.file.relative_to(self.root).as_posix()


def find_meshes(paths: list[Path], pattern: str) -> list[Source]:
    """The files, and those in the folders that fit the pattern, each with a name of its own. Raises GrafError."""
    found: dict[Path, Path] = {}  # the root of each file
    for path in paths:
        if not path.exists():
            raise GrafError(f"{path}: no such file or folder")
        if path.is_file():
            found.setdefault(path, path.parent)
            continue
        for file in sorted(path.rglob("*")):
            inside = file.relative_to(path).as_posix()
            fits = fnmatch.fnmatchcase(inside.lower(), pattern.lower()) and not re.search(r"(^|/)\.", inside)
            if fits and file.suffix.lower() in SUFFIXES and file.is_file():
                found.setdefault(file, path)
    if not found:
        raise GrafError(f"no {', '.join(SUFFIXES)} in {', '.join(map(str, paths))} that fits --match '{pattern}'")
    sources: dict[str, Source] = {}
    for file, root in found.items():
        stem = re.sub(r"[^\w.-]+", "_", file.relative_to(root).with_suffix("").as_posix()).lstrip(".") or "mesh"
        name = next(name for n in range(len(found)) if (name := f"{stem}_{n}" if n else stem) not in sources)
        sources[name] = Source(name, file, root)
    return list(sources.values())


def licence_files(source: Source) -> list[Path]:
    """Licence texts in the file's folder and in those above it, up to the source's root."""
    folders = [folder for folder in source.file.parents if folder == source.root or source.root in folder.parents]
    return [
        file
        for folder in folders
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in TEXT_SUFFIXES
        and LICENCE_NAME.search(file.stem)
        and file.is_file()
        and file.stat().st_size <= MOST_BYTES
    ]


def write_licences(path: Path, sources: Sequence[Source]) -> None:
    """One line an object, with the numbers of its licence texts, which follow, each once."""
    numbers: dict[str, int] = {}
    texts: list[str] = []
    lines = ["The images in this folder show these objects. To pass them on, keep to the licences of the objects.", ""]
    for source in sources:
        found = []
        for file in licence_files(source):
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            if text not in numbers:
                numbers[text] = len(numbers) + 1
                texts += ["", f"--- licence {numbers[text]}: {file}", "", text]
            found.append(str(numbers[text]))
        licences = f"licence {', '.join(found)}" if found else "no licence text lies beside it"
        lines.append(f"{source.name}: {source.file}: {licences}")
    write_text(path, "\n".join(lines + texts) + "\n")
