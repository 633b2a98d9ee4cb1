"""The images in a config's folders, and the files of cameras beside them.

Every folder that directly holds images is a class, or one with a file of cameras, which names the images in it and below it.
"""

import glob
import os
import re
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from graf.config import DataConfig
from graf.config.name_pattern import NAMED_BY_RANK, name_pattern
from graf.data.decoding import EXTENSIONS, UNREAD_EXTENSIONS
from graf.data.masks import Masks, find_masks
from graf.errors import DataError, GrafError
from graf.runtime.command_line import as_typed

from torch import Tensor

TRANSFORMS, DATASET_JSON = "transforms.json", "dataset.json"
SPLITS = tuple(f"transforms_{split}.json" for split in ("train", "val", "test"))  # NeRF-Blender's, where there is no other
CameraFile = Literal["transforms", "eg3d", "colmap"]
COLMAP_FOLDERS = ("", "sparse", "sparse/0", "colmap/sparse/0")
UNDISTORTED = "dense/sparse"  # the model of dense/images, and the first where these are there
HIDDEN = ("@eaDir", "__MACOSX")  # folders of Synology and of macOS
PEEKED = 2**16  # characters
GRAF = "https://github.com/autonomousvision/graf"
NAME_YOURS = "set data.datadir to the folder of your images"
PUBLISHED = {  # where to get the data of the configs' data.datadir
    "data/carla": f"data/download_carla.sh of {GRAF}",
    "data/cats": f"https://www.kaggle.com/crawford/cat-dataset, cut by data/preprocess_cats.py of {GRAF}",
    "data/celebA": "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, its folder Img/img_align_celeba",
    "data/cub": f"CUB-200-2011 and its segmentations, linked and cut out by data/preprocess_cub.py of {GRAF}",
}
IMAGES, SHEET, CONFIG = "images", "before_after.png", "config.yaml"  # in a folder that prepare_photos.py made
VIEW = re.compile(r"(.*?)[-_ ]?[0-9]+")  # the name of an object, and the number of a view


@dataclass(frozen=True)
class Fault:
    """A place (a file, a folder or a key), and its problem with the cure. data.on_bad_file: skip ignores those of images."""

    where: str
    problem: str
    of_image: bool = False


@dataclass(frozen=True)
class Folder:
    """A class: its images, or a file of cameras that names them."""

    path: Path
    images: tuple[Path, ...]
    cameras: CameraFile | None = None


@dataclass(frozen=True)
class Item:
    """One image with its labels and what a file says of its frame, in units of the uncropped image's width: the focal length,
    and where the optical axis is, (right, down) of the centre. size: width and height that the file gives for the image, which
    may have been made smaller since. confidence: of a camera that was found, in [0, 1]."""

    file: Path
    class_index: int
    elevation_index: int = 0
    pose_c2w: Tensor | None = None
    focal: float | None = None
    axis: tuple[float, float] = (0.0, 0.0)
    size: tuple[float, float] | None = None
    object: str | None = None
    mask: Path | None = None
    confidence: float | None = None


class Found(NamedTuple):
    """The class folders, their faults, the number of images in formats that are not read, by suffix, and the masks of the
    folders' images."""

    folders: list[Folder]
    faults: list[Fault]
    unread: Counter[str]
    mask_of: dict[Path, Path]


def find_folders(data: DataConfig) -> Found:
    """The class folders in data.datadir and its subfolders, in order, each once; hidden files and folders are left out, and
    masks, which data.masks tells from photographs."""
    found = _all_folders(data)
    masks = find_masks([file for folder in found.folders for file in folder.images], data.masks)
    found.faults.extend(doubted_masks(masks))
    found.unread.subtract(Counter(mask.suffix for mask in masks.of.values() if is_image(mask.name, UNREAD_EXTENSIONS)))
    return Found(_without(masks.files, found.folders), found.faults, +found.unread, masks.of)


def doubted_masks(masks: Masks) -> list[Fault]:
    """A fault where most images have a file with a mask's name that does not look like one."""
    if not masks.doubted:
        return []
    problem = (
        f"{len(masks.doubted)} images have a file named like a mask, such as {next(iter(masks.doubted.values()))}, that is not "
        f"black and white; set {masks.pattern} to take them for masks (white is the object), or none to train on them"
    )
    return [Fault("data.masks", problem)]


def _without(masks: frozenset[Path], folders: list[Folder]) -> list[Folder]:
    """The folders without these images, and without those that held nothing else."""
    kept = [replace(folder, images=tuple(file for file in folder.images if file not in masks)) for folder in folders]
    return [folder for folder in kept if folder.images or folder.cameras]


def _all_folders(data: DataConfig) -> Found:
    found, seen = Found([], [], Counter(), {}), set()
    roots_of = {pattern: matching_folders(pattern) for pattern in data.datadir}
    homes = [os.path.realpath(root) for roots in roots_of.values() for root in roots]
    for pattern, roots in roots_of.items():
        if not roots:
            cure = f"its images come from {PUBLISHED[pattern]}" if pattern in PUBLISHED else NAME_YOURS
            found.faults.append(Fault(pattern, f"no such folder; {cure}"))
        for root in roots:
            if not Path(root).is_dir():
                found.faults.append(Fault(root, "is a file; data.datadir names folders"))
                continue
            if _is_prepared(Path(root)):
                images, config = Path(root, IMAGES), Path(root, CONFIG)
                cure = f"its images are in {images}: name that folder, or take --config {as_typed(config)}"
                found.faults.append(Fault(root, f"was made by prepare_photos.py; {cure}"))
                continue
            searched, n_faults, unread = os.path.realpath(root) in seen, len(found.faults), Counter()
            inside = list(_walk(Path(root), homes, data.labels, seen, found.faults, unread))
            if not inside and not searched and len(found.faults) == n_faults:  # no other fault says why
                cure = how_to_convert(unread) if unread else NAME_YOURS
                found.faults.append(Fault(root, f"no images ({', '.join(EXTENSIONS)}) in the folder or below it; {cure}"))
            found.folders.extend(inside)
            found.unread.update(unread)
    return found


def _is_prepared(folder: Path) -> bool:
    return (folder / IMAGES).is_dir() and (folder / SHEET).is_file()


def require_folders(data: DataConfig, named_in: Path) -> None:
    """Raises DataError where a folder of data.datadir does not exist, as in another working directory than the run's.

    named_in: the run's config, or the checkpoint that contains it.
    """
    for pattern in data.datadir if data.type == "images" else ():
        if not matching_folders(pattern):
            here = "" if os.path.isabs(pattern) else f" in {Path.cwd()}"
            raise DataError(
                f"{pattern}: no such folder{here}; the run's config ({named_in}) names it as data.datadir. Say where its "
                "images are: --set data.datadir=FOLDER"
            )


def require_outside(out: Path, data: DataConfig) -> None:
    """Raises GrafError where what is written to a folder would be taken for photographs by the next command."""
    inside = [folder for folder in data.datadir if is_within(out, folder)]
    if data.type == "images" and inside:
        raise GrafError(f"--out {out}: lies within the photographs' folder {inside[0]}; name a folder outside of it")


def matching_folders(pattern: str) -> list[str]:
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
    root: Path, homes: list[str], labels: str, seen: set[str], faults: list[Fault], unread: Counter[str]
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
        visible = sorted(filter(is_visible, subfolders))
        subfolders[:] = [name for name in visible if is_inside(Path(path, name))]
        images, cameras = (), camera_file(Path(path), labels)
        if cameras and all(
            is_inside(file) for file in camera_files(Path(path), cameras)
        ):  # it names the images, and those below
            subfolders.clear()
        else:
            unread.update(os.path.splitext(name)[1] for name in names if is_image(name, UNREAD_EXTENSIONS))
            images = tuple(Path(path, name) for name in sorted(names) if is_image(name) and is_inside(Path(path, name)))
        if images or cameras:
            yield Folder(Path(path), images, cameras)


def camera_file(folder: Path, labels: str) -> CameraFile | None:
    """The first kind of file with cameras in a folder, of those that data.labels allows."""
    for kind in typing.get_args(CameraFile):
        files = camera_files(folder, kind) if labels in ("auto", kind) else []
        if files and (kind != "eg3d" or labels == kind or has_poses(files[0])):
            return kind
    return None


def camera_files(folder: Path, kind: CameraFile) -> list[Path]:
    """The files in a folder that have the cameras of its images; none where it has no file of this kind."""
    if kind == "colmap":
        has_undistorted = (folder / "dense/images").is_dir()
        names = (UNDISTORTED, *COLMAP_FOLDERS) if has_undistorted else (*COLMAP_FOLDERS, UNDISTORTED)
        models = [folder / name for name in names]
        files = [(model / f"cameras{suffix}", model / f"images{suffix}") for model in models for suffix in (".bin", ".txt")]
        return list(next((pair for pair in files if all(file.is_file() for file in pair)), ()))
    files = [folder / {"transforms": TRANSFORMS, "eg3d": DATASET_JSON}[kind]]
    if kind == "transforms" and not files[0].exists():
        files = [folder / name for name in SPLITS]
    return [file for file in files if file.exists()]


def name_of_cameras(folder: Path, kind: CameraFile) -> Path:
    """The file that faults of a folder's cameras name; for several splits `transforms_*.json`."""
    files = camera_files(folder, kind)
    return files[0].with_name("transforms_*.json") if kind == "transforms" and len(files) > 1 else files[-1]


def has_poses(dataset_json: Path) -> bool:
    """Whether the labels of a dataset.json are lists, as EG3D's; StyleGAN's are numbers of classes."""
    try:
        with open(dataset_json, encoding="utf-8", errors="replace") as file:
            return re.search(r'"labels"\s*:\s*\[\s*\[\s*"[^"]*"\s*,\s*\[', file.read(PEEKED)) is not None
    except OSError:
        return False


def is_within(path: Path, folder: str | os.PathLike) -> bool:
    """Whether a path, with links resolved, is a folder or lies in it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def is_visible(folder: str) -> bool:
    """Whether the name of a folder is none of those that systems hide, or fill with thumbnails and metadata."""
    return not folder.startswith(".") and folder not in HIDDEN


def images_below(folder: Path) -> list[Path]:
    """The images in a folder and its subfolders, without hidden ones; links to folders are not followed."""
    found = []
    for path, subfolders, names in os.walk(folder):
        subfolders[:] = filter(is_visible, subfolders)
        found += [Path(path, name) for name in names if is_image(name)]
    return found


def images_in(folder: Path) -> list[Path]:
    """The images in a folder itself, without hidden ones."""
    return [Path(folder, name) for name in os.listdir(folder) if is_image(name)] if folder.is_dir() else []


def is_image(name: str, extensions: tuple[str, ...] = EXTENSIONS) -> bool:
    return name.lower().endswith(extensions) and not name.startswith(".")


def object_of(file: str) -> str:
    """The object in an image by its path: `cars/bus` for cars/bus_03.png, or its folder where the name is of a view only."""
    path = Path(file)
    match = VIEW.fullmatch(path.stem)
    if name_pattern(NAMED_BY_RANK).read(path.stem) or (match and not match[1]):
        return path.parent.name
    return f"{path.parent.name}/{match[1] if match else path.stem}"
