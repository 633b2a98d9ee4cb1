"""Finds the photographs, videos and masks in what a user names, and gives each photograph a name of its own in the output."""

import contextlib
import logging
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from graf.config.strict import one_line
from graf.data.folders import SPLITS, TRANSFORMS, camera_files, is_visible
from graf.data.labels.transforms import image_file, read_json, with_shared
from graf.data.masks import find_masks
from graf.errors import DataError
from graf.photographs.reading import READ, UNREAD

log = logging.getLogger("graf")

VIDEOS = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".3gp")


@dataclass(frozen=True)
class Source:
    """A photograph: its file, its place below what the user named, as in `chairs/red.jpg`, and its mask if there is one.

    video: place of the video that it is a frame of.
    """

    file: Path
    place: str
    mask: Path | None = None
    video: str | None = None

    @property
    def folder(self) -> str:
        """Folder of the place: the class."""
        return str(PurePosixPath(self.place).parent)


@dataclass
class Found:
    """The content of a folder: photographs, videos with their places, unreadable files with why, and other files by suffix."""

    photographs: list[Source] = field(default_factory=list)
    videos: list[Source] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    cameras: list[Path] = field(default_factory=list)  # the transforms.json of each folder that has one, or its splits


def find_sources(root: Path, masks: Path | None = None) -> Found:
    """The photographs and videos of a file or folder, links followed once, hidden ones left out.

    masks: a folder of masks, in subfolders of the same names or in none, in place of those beside the photographs.
    """
    found = Found()
    if root.is_file():
        _sort(root.parent, root.parent, [root.name], found)
    else:
        _walk(root, masks, found)
    beside = find_masks([source.file for source in found.photographs], "auto")
    if beside.doubted and not masks:
        log.warning(
            "%d photographs have a file named like a mask, such as %s, that is not black and white, and is taken for a "
            "photograph; if it is a mask (white is the object), name its folder: --cut masks DIR",
            *(len(beside.doubted), one_line(str(next(iter(beside.doubted.values()))))),
        )
    photographs = [source for source in found.photographs if source.file not in beside.files]
    mask_of = find_masks([source.file for source in photographs], os.path.abspath(masks)).of if masks else beside.of
    found.photographs = [replace(source, mask=mask_of.get(source.file)) for source in photographs]
    return found


def _walk(root: Path, masks: Path | None, found: Found) -> None:
    seen = {os.path.realpath(masks)} - {os.path.realpath(root)} if masks else set()

    def unreadable(error: OSError) -> None:
        place = Path(error.filename).relative_to(root).as_posix()
        found.left_out[place] = f"the folder cannot be read ({error.strerror})"

    for path, folders, names in os.walk(root, followlinks=True, onerror=unreadable):
        if os.path.realpath(path) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(path))
        folders[:] = sorted(filter(is_visible, folders))
        _sort(root, Path(path), sorted(names), found)


def _sort(root: Path, folder: Path, names: list[str], found: Found) -> None:
    """Sort the files of one folder into `found`, masks among the photographs."""
    images = [name for name in names if _has(name, READ)]
    still_images = {Path(name).stem for name in images}
    if cameras := {TRANSFORMS, *SPLITS}.intersection(names):
        found.cameras.append(folder / TRANSFORMS)
    for name in names:
        place = (folder / name).relative_to(root).as_posix()
        if name.startswith(".") or name in cameras:
            continue
        if _has(name, UNREAD):
            found.left_out[place] = f"{Path(name).suffix.lower()[1:]} files are not read; export it as JPEG or PNG"
        elif _has(name, VIDEOS) and Path(name).stem in still_images:
            found.left_out[place] = "the moving part of a photograph of the same name (Live Photo)"
        elif _has(name, VIDEOS):
            found.videos.append(Source(folder / name, place))
        elif name not in images:
            found.others[Path(name).suffix.lower() or name] += 1
        else:
            found.photographs.append(Source(folder / name, place))


def _has(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes)


def read_transforms(file: Path) -> dict:
    """The content of a transforms.json; where there is none, of its splits together. Raises DataError for a file that is
    none."""
    contents = [_read_transforms(one) for one in camera_files(file.parent, "transforms")]
    if len(contents) == 1:
        return contents[0]
    frames = [with_shared(content, frame) for content in reversed(contents) for frame in content["frames"]]
    return {"frames": list({photograph_of(frame, file) or str(frame["file_path"]): frame for frame in frames}.values())}


def _read_transforms(file: Path) -> dict:
    try:
        content = read_json(file)
        [frame["file_path"] for frame in content["frames"]]
    except ValueError as error:
        raise DataError(f"{file}: {error}, or take --labels none") from None
    except (KeyError, TypeError) as error:
        todo = "correct it, or take --labels none"
        raise DataError(f"{file}: not a transforms.json with frames and their file_path ({error}); {todo}") from None
    return content


def photograph_of(frame: dict, file: Path) -> Path | None:
    """The photograph that a frame of a transforms.json names, links followed; None where there is none."""
    try:
        return image_file(file.parent, frame["file_path"], READ, links_may_leave=True)
    except ValueError:
        return None


def objects_of_frames(cameras: dict[Path, dict]) -> dict[Path, str]:
    """The photographs of which a transforms.json names the object, and its name."""
    frames = ((frame, file) for file, content in cameras.items() for frame in content["frames"])
    named = {
        photograph_of(frame, file): str(frame["object"]) for frame, file in frames if isinstance(frame.get("object"), str | int)
    }
    return {photograph: name for photograph, name in named.items() if photograph}


def with_masks_of_frames(photographs: list[Source], cameras: dict[Path, dict]) -> list[Source]:
    """The photographs with the masks that frames of each transforms.json name as their mask_path, and without these masks.

    A mask that a photograph has already stays; one that is missing is passed over.
    """
    mask_of = {}
    for file, content in cameras.items():
        for frame in content["frames"]:
            with contextlib.suppress(ValueError):
                mask_of[photograph_of(frame, file)] = image_file(file.parent, frame.get("mask_path"), links_may_leave=True)
    masks = set(mask_of.values())
    return [replace(source, mask=source.mask or mask_of.get(source.file)) for source in photographs if source.file not in masks]


def output_names(sources: list[Source]) -> dict[str, str]:
    """The PNG of each photograph, by its place: `chairs/red.png` for `chairs/red.jpg`. Names that are taken, be it in capitals,
    get the suffix or a number: `red_heic.png`."""
    names: dict[str, str] = {}
    taken = set()
    for source in sources:
        path = PurePosixPath(source.place)
        stem, suffix = printable(str(path.with_suffix(""))), printable(path.suffix[1:].lower())
        candidates = [stem, f"{stem}_{suffix}", *(f"{stem}_{suffix}_{n}" for n in range(2, len(sources) + 2))]
        name = next(candidate for candidate in candidates if candidate.lower() not in taken)
        taken.add(name.lower())
        names[source.place] = f"{name}.png"
    return names


def printable(name: str) -> str:
    """A name with an underscore for what no terminal or config shows: line breaks, and bytes that are not UTF-8."""
    return "".join(character if character.isprintable() else "_" for character in name)
