"""The images in a config's folders, and the labels in their names: DIR/<elevation>_<azimuth>.png.

Every folder that directly holds images is a class. The number before the underscore ranks the elevations of the whole set;
the rank is the index into data.v. The number after it is the azimuth in degrees.
"""

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from graf.camera import poses_at
from graf.config import DataConfig
from graf.data.decoding import EXTENSIONS, UNREAD_EXTENSIONS
from graf.errors import DataError

import torch
from torch import Tensor

TRANSFORMS = "transforms.json"
GRAF = "https://github.com/autonomousvision/graf"
NAME_YOURS = "set data.datadir to the folder of your images"
PUBLISHED = {  # where to get the data of the configs' data.datadir
    "data/carla": f"data/download_carla.sh of {GRAF}",
    "data/cats": f"https://www.kaggle.com/crawford/cat-dataset, cut by data/preprocess_cats.py of {GRAF}",
    "data/celebA": "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, its folder Img/img_align_celeba",
    "data/cub": f"CUB-200-2011 and its segmentations, linked and cut out by data/preprocess_cub.py of {GRAF}",
}
NUMBER = r"(-?[0-9]+(?:\.[0-9]+)?)"
LABEL = re.compile(f"{NUMBER}_{NUMBER}")
VIEW = re.compile(r"(.*?)[-_ ]?[0-9]+")  # the name of an object, and the number of a view


@dataclass(frozen=True)
class Fault:
    """A place (a file, a folder or a key), and its problem with the cure. data.on_bad_file: skip ignores those of images."""

    where: str
    problem: str
    of_image: bool = False


@dataclass(frozen=True)
class Folder:
    """A class: its images, or a transforms.json that names them."""

    path: Path
    images: tuple[Path, ...]
    has_transforms: bool


@dataclass(frozen=True)
class Item:
    """One image with its labels; focal is that of the uncropped image in units of its width, where a file gives it."""

    file: Path
    class_index: int
    elevation_index: int = 0
    pose_c2w: Tensor | None = None
    focal: float | None = None


class Found(NamedTuple):
    """The class folders, their faults, and the number of images in formats that are not read, by suffix."""

    folders: list[Folder]
    faults: list[Fault]
    unread: Counter[str]


def find_folders(data: DataConfig) -> Found:
    """The class folders in data.datadir and its subfolders, in order, each once; hidden files and folders are left out."""
    found, seen = Found([], [], Counter()), set()
    roots_of = {pattern: _roots(pattern) for pattern in data.datadir}
    homes = [os.path.realpath(root) for roots in roots_of.values() for root in roots]
    for pattern, roots in roots_of.items():
        if not roots:
            cure = f"its images come from {PUBLISHED[pattern]}" if pattern in PUBLISHED else NAME_YOURS
            found.faults.append(Fault(pattern, f"no such folder; {cure}"))
        for root in roots:
            if not Path(root).is_dir():
                found.faults.append(Fault(root, "is a file; data.datadir names folders"))
                continue
            searched, n_faults, unread = os.path.realpath(root) in seen, len(found.faults), Counter()
            inside = list(_walk(Path(root), homes, data.labels in ("auto", "transforms"), seen, found.faults, unread))
            if not inside and not searched and len(found.faults) == n_faults:  # no other fault says why
                cure = how_to_convert(unread) if unread else NAME_YOURS
                found.faults.append(Fault(root, f"no images ({', '.join(EXTENSIONS)}) in the folder or below it; {cure}"))
            found.folders.extend(inside)
            found.unread.update(unread)
    return found


def require_folders(data: DataConfig, named_in: Path) -> None:
    """Raises DataError where a folder of data.datadir does not exist, as in another working directory than the run's.

    named_in: the run's config, or the checkpoint that contains it.
    """
    for pattern in data.datadir if data.type == "images" else ():
        if not _roots(pattern):
            here = "" if os.path.isabs(pattern) else f" in {Path.cwd()}"
            raise DataError(
                f"{pattern}: no such folder{here}; the run's config ({named_in}) names it as data.datadir. Say where its "
                "images are: --set data.datadir=FOLDER"
            )


def _roots(pattern: str) -> list[str]:
    """The folder of this name, or those that match the pattern."""
    return [pattern] if os.path.exists(pattern) else sorted(filter(os.path.isdir, glob.glob(pattern)))


def how_to_convert(unread: Counter[str]) -> str:
    """A message about images in formats that are not read, counted by suffix."""
    counts = ", ".join(f"{n:,} {suffix}" for suffix, n in unread.most_common())
    patterns = " ".join(f"*{suffix}" for suffix, _ in unread.most_common())
    return (
        f"passed over {counts}, formats that are not read; to train on them, convert them to jpg or png, for example by "
        f"ImageMagick's `mogrify -format jpg {patterns}`"
    )


def _walk(
    root: Path, homes: list[str], use_transforms: bool, seen: set[str], faults: list[Fault], unread: Counter[str]
) -> Iterator[Folder]:
    def unreadable(error: OSError) -> None:
        faults.append(Fault(error.filename, f"the folder cannot be read ({error.strerror})"))

    def is_inside(path: Path) -> bool:
        if not path.is_symlink() or any(is_within(path, home) for home in homes):
            return True
        target = os.path.realpath(path)
        if os.path.isdir(path):
            cure = "remove the link, or name in data.datadir the folder that it leads to"
            faults.append(Fault(str(path), f"is a link to {target}, outside the data; {cure}"))
        else:  # the same message for all links into a folder, so that they are counted together
            cure = "put a copy of the file in its place, or name in data.datadir the folders of which all images are wanted"
            problem = f"is a link into {os.path.dirname(target)}, outside the data; {cure}"
            faults.append(Fault(str(path), problem, of_image=is_image(path.name)))
        return False

    for path, subfolders, names in os.walk(root, followlinks=True, onerror=unreadable):
        if os.path.realpath(path) in seen:
            subfolders.clear()
            continue
        seen.add(os.path.realpath(path))
        visible = sorted(name for name in subfolders if not name.startswith("."))
        subfolders[:] = [name for name in visible if is_inside(Path(path, name))]
        images, has_transforms = (), use_transforms and TRANSFORMS in names and is_inside(Path(path, TRANSFORMS))
        if has_transforms:  # it names the images, those below it too
            subfolders.clear()
        else:
            unread.update(os.path.splitext(name)[1] for name in names if is_image(name, UNREAD_EXTENSIONS))
            images = tuple(Path(path, name) for name in sorted(names) if is_image(name) and is_inside(Path(path, name)))
        if images or has_transforms:
            yield Folder(Path(path), images, has_transforms)


def is_within(path: Path, folder: str | os.PathLike) -> bool:
    """Whether a path, with links resolved, is a folder or lies in it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def is_image(name: str, extensions: tuple[str, ...] = EXTENSIONS) -> bool:
    return name.lower().endswith(extensions) and not name.startswith(".")


def object_of(file: str) -> str:
    """The object in an image by its path: `cars/bus` for cars/bus_03.png, or its folder where the name is of a view only."""
    path = Path(file)
    match = VIEW.fullmatch(path.stem)
    if LABEL.fullmatch(path.stem) or (match and not match[1]):
        return path.parent.name
    return f"{path.parent.name}/{match[1] if match else path.stem}"


def label_source(data: DataConfig, folders: list[Folder]) -> str:
    """`transforms`, `filename` or `none`: data.labels, with `auto` resolved to the first of them that the folders offer.

    Names such as 20240714_150107, none of which can be an angle, are timestamps.
    """
    if data.labels != "auto":
        return data.labels
    if any(folder.has_transforms for folder in folders):
        return "transforms"
    matches = (LABEL.fullmatch(file.stem) for folder in folders for file in folder.images)
    return "filename" if any(match and _is_azimuth(match[2]) for match in matches) else "none"


def _is_azimuth(text: str) -> bool:
    return 0 <= float(text) < 360


def elevation_prefixes(folders: list[Folder]) -> list[float]:
    """The elevation prefixes of the file names in ascending order: the position is the index into data.v."""
    matches = (LABEL.fullmatch(file.stem) for folder in folders for file in folder.images)
    return sorted({float(match[1]) for match in matches if match})


def v_flag(v: tuple[float, ...], n: int) -> str:
    """The flag that sets data.v to its first n values."""
    return f'--set "data.v=[{",".join(f"{value:g}" for value in v[:n])}]"'


def items_by_name(folders: list[Folder], data: DataConfig) -> tuple[list[Item], list[Fault]]:
    """The images with the cameras given by their names, at the middle of data.radius; and a fault per name without one."""
    prefixes, items, faults = elevation_prefixes(folders), [], []
    for class_index, file in ((index, file) for index, folder in enumerate(folders) for file in folder.images):
        match = LABEL.fullmatch(file.stem)
        if problem := _label_problem(match, prefixes, data):
            faults.append(Fault(str(file), problem, of_image=True))
            items.append(Item(file, class_index))
            continue
        elevation_index = prefixes.index(float(match[1]))
        azimuth_deg, v = torch.tensor(float(match[2])), torch.tensor(data.v[elevation_index])
        items.append(Item(file, class_index, elevation_index, poses_at(azimuth_deg, v, sum(data.radius) / 2)))
    return items, faults


def _label_problem(match: re.Match | None, prefixes: list[float], data: DataConfig) -> str | None:
    """What is wrong with the label in a file's name, and what to do; None for a label that gives a camera."""
    if not match:
        return (
            "no label in the name; expected <elevation>_<azimuth>, as in 0_0090.png "
            "(or set data.labels: none to train without cameras)"
        )
    if not _is_azimuth(match[2]):
        return (
            f"the azimuth {match[2]} is outside [0, 360) degrees; name the file for the angle {float(match[2]) % 360:g} "
            "(or set data.labels: none, if it is no angle)"
        )
    rank = prefixes.index(float(match[1]))
    if rank < len(data.v):
        return None
    found = ", ".join(f"{prefix:g}" for prefix in prefixes[:8]) + (", ..." if len(prefixes) > 8 else "")
    return (
        f"the elevation {match[1]} is number {rank + 1} of those in the names ({found}), but data.v has only {len(data.v)}; "
        "give data.v one entry for each"
    )
