"""Masks of the object as files of their own, beside the photographs or in folders of masks: grey, white where the object is.

data.masks is `auto`, `none`, a folder, or a pattern from the photograph's folder in which NAME is the photograph's name without
its extension, NAME.EXT with it, and a folder FOLDER one with the name of the photograph's: `maps/NAME-map.png`,
`../../cut/FOLDER/NAME`, `../masks/NAME.EXT.png` (COLMAP's). An extension may be left out.
"""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from graf.data.decoding import EXTENSIONS, looks_like_mask
from graf.data.disk import Disk

import numpy as np

MASK_EXTENSIONS = (*EXTENSIONS, ".gif")  # Carvana's are gif
SPELLED = (*MASK_EXTENSIONS, *map(str.upper, MASK_EXTENSIONS))
WORDS = ("mask", "map", "alpha", "matte", "seg", "segmentation")
SUFFIXES = ("", ".EXT.png", *(f"{mark}{word}" for word in WORDS for mark in "_-."))
_FOLDERS = ("masks", "mask", "maps", "map", "alphas", "alpha", "mattes", "segmentations", "segmentation", "silhouettes")
FOLDERS = (*_FOLDERS, *map(str.capitalize, _FOLDERS))
CLASSES = ("map", "alpha")  # in the names of folders that may be of photographs, too
SAMPLE = 200  # photographs that a pattern is tried on
RING = 0.03  # of the sides: the border of a frame
LOOKED_AT = 9  # masks that are opened, of which most have to look like masks
NEGATIVE = 0.95  # share of the border that is object, from which on a mask is taken for a negative


class Masks(NamedTuple):
    """The mask of each photograph that has one, and all files that are masks. doubted: a file of most photographs that has a
    mask's name and does not look like one, and the pattern of these names."""

    of: dict[Path, Path]
    files: frozenset[Path]
    doubted: dict[Path, Path] = {}
    pattern: str = ""


Find = Callable[[Path], Path | None]


def find_masks(files: Sequence[Path], masks: str) -> Masks:
    """The masks of photographs among and beside these files, by data.masks."""
    if masks == "none" or not files:
        return Masks({}, frozenset())
    disk = Disk(file.parent for file in files)
    if masks == "auto":
        pattern, are_masks = _recognised(files, disk)
        find = _by(pattern, disk)
    else:
        pattern, are_masks = masks, True
        find = _first([_by(pattern, disk, from_here=True) for pattern in _patterns(masks)])
    found = {file: mask for file in files if (mask := find(file)) and mask != file}
    used = set(found.values())
    mask_of = {file: mask for file, mask in found.items() if file not in used}
    if not are_masks:
        may_be_class = pattern.endswith("/NAME") and any(word in pattern.lower() for word in CLASSES)
        may_be_class |= _are_shared(mask_of)
        are_many = 2 * len(mask_of) > len(files) - len(used.intersection(files))
        return Masks({}, frozenset(), mask_of if are_many and not may_be_class else {}, pattern.removeprefix("./"))
    return Masks(mask_of, frozenset(used | _others_of(used, mask_of, files)))


def _are_shared(mask_of: dict[Path, Path]) -> bool:
    """Whether photographs of several folders have one mask: it is in the folder of one more class."""
    return len({(file.parent, mask) for file, mask in mask_of.items()}) > len(set(mask_of.values()))


def border(size: tuple[int, int]) -> np.ndarray:
    """The pixels (H, W) along the frame."""
    ring = np.ones(size, dtype=bool)
    y, x = (max(2, round(RING * side)) for side in size)
    ring[y:-y, x:-x] = False
    return ring


def is_negative(seen: np.ndarray) -> bool:
    """Whether a mask, whose object these pixels (H, W) are, shows the border as object: it is black for the object."""
    return bool(seen[border(seen.shape)].mean() > NEGATIVE)


def _others_of(used: set[Path], mask_of: dict[Path, Path], files: Sequence[Path]) -> set[Path]:
    """Files in folders of nothing but masks whose photographs are missing."""
    folders = {mask.parent for mask in used} - {file.parent for file in mask_of}
    return {file for file in files if file.parent in folders}


def _patterns(masks: str) -> list[str]:
    """The patterns that a value of data.masks stands for: itself, or those of the names in a folder and in its subfolders."""
    if "NAME" in Path(masks).name:
        return [masks]
    return [f"{folder}/NAME{suffix}" for folder in (f"{masks}/FOLDER", masks) for suffix in SUFFIXES]


def _by(pattern: str, disk: Disk, from_here: bool = False) -> Find:
    """Finds masks by one pattern from the photograph's folder; also from_here, the working directory."""
    place = Path(pattern)

    def find(file: Path) -> Path | None:
        name = place.name.replace("NAME.EXT", file.name).replace("NAME", file.stem)
        names = [name] if name.lower().endswith(MASK_EXTENSIONS) else [name + suffix for suffix in SPELLED]
        homes = (file.parent, Path()) if from_here else (file.parent,)
        folders = [disk.folder(_folder(home, place.parent, file.parent.name)) for home in homes]
        found = (folder / name for folder in folders for name in names if name in disk.names(folder))
        return next((mask for mask in found if mask != file), None)

    return find


@functools.lru_cache(maxsize=4096)
def _folder(home: Path, pattern: Path, name: str) -> Path:
    """The folder that a pattern means, from another one; name: for FOLDER."""
    return Path(os.path.normpath(home.joinpath(*(name if part == "FOLDER" else part for part in pattern.parts))))


def _first(finds: Iterable[Find]) -> Find:
    finds = list(finds)
    return lambda file: next((mask for find in finds if (mask := find(file))), None)


def _recognised(files: Sequence[Path], disk: Disk) -> tuple[str, bool]:
    """The pattern that most photographs have a mask by, and whether these look like masks."""
    some = files[:: -(-len(files) // SAMPLE)]
    near = (Path(form.format(name)) for form in ("{}", "../{}", "../../{}/FOLDER") for name in FOLDERS)
    folders = [
        ".",
        *(folder for folder in near if any(disk.names(_folder(file.parent, folder, file.parent.name)) for file in some)),
    ]
    patterns = [f"{folder}/NAME{suffix}" for folder in folders for suffix in SUFFIXES if folder != "." or suffix]
    by_pattern = [(p, [mask for file in some if (mask := find(file))]) for p in patterns for find in [_by(p, disk)]]
    pattern, masks = max(by_pattern, key=lambda pair: len(pair[1]))
    looked_at = masks[:: -(-len(masks) // LOOKED_AT)] if masks else []
    return pattern, 2 * sum(map(looks_like_mask, looked_at)) > len(looked_at)  # some may be damaged, or empty
