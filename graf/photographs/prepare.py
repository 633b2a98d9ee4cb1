"""Prepares photographs: finds them, leaves out the unfit and the doubled, cuts out and crops the others.

Nothing is written where the photographs come from. Each photograph that is found ends as a PNG or with a reason.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from graf.config import DataConfig
from graf.config.name_pattern import NAMED_BY_RANK, NamePattern, name_pattern
from graf.config.strict import one_line
from graf.data.decoding import stored_orientation
from graf.data.folders import IMAGES, Folder, camera_file
from graf.data.labels import FILES, label_source
from graf.data.labels.names import is_azimuth
from graf.data.validation import warn_of_turned
from graf.errors import DataError
from graf.photographs.duplicates import Look, duplicates, look_of
from graf.photographs.faults import sharpness_or_fault
from graf.photographs.making import Made, Options, at_one_area, made_before, make_photograph, remove_stale
from graf.photographs.objects import Count, colours, count_objects
from graf.photographs.reading import open_photograph
from graf.photographs.sources import (
    Found,
    Source,
    find_sources,
    objects_of_frames,
    output_names,
    photograph_of,
    read_transforms,
    with_masks_of_frames,
)
from graf.photographs.videos import video_frames
from graf.runtime.console import progress
from graf.runtime.limits import available_cores
from graf.runtime.threads import map_in_threads

import numpy as np
from PIL import Image

log = logging.getLogger("graf")

Each, T = TypeVar("Each"), TypeVar("T")


class Examined(NamedTuple):
    """The known facts about a photograph that can be used."""

    source: Source
    shorter: int  # pixels
    sharp: float
    look: Look


@dataclass
class Prepared:
    """All that became of photographs. left_out: why, by place; labels: where cameras are known from, as data.labels."""

    made: list[Made]
    left_out: dict[str, str]
    labels: str
    objects: Count
    n_videos: int
    cameras: dict[Path, dict] = field(default_factory=dict)  # what each transforms.json holds
    others: Counter[str] = field(default_factory=Counter)
    renamed: list[str] = field(default_factory=list)
    name_pattern: str = NAMED_BY_RANK


def all_cut(made: list[Made]) -> bool:
    """Whether all photographs have transparency."""
    return all(each.how != "none" for each in made)


def prepare(root: Path, out: Path, frames: Path, options: Options) -> Prepared:
    """Prepare the photographs of a file or folder into out/images, of which PNGs that an interrupted run made are kept.

    frames: a folder for the frames of videos, which may go when what is made is no longer compared with them.

    Raises DataError for a transforms.json that cannot be read, or names no photograph, before anything is made.
    """
    found = find_sources(root, options.masks)
    if (kind := camera_file(root, options.labels)) in ("colmap", "eg3d"):
        log.warning(
            "%s: its %s is not carried over; to train with these cameras, set data.datadir: %s", root, FILES[kind], root
        )
    left_out = dict(found.left_out)
    labels, pattern = _labels(found.photographs, found.cameras, options), name_pattern(options.name_pattern)
    cameras = {file: read_transforms(file) for file in found.cameras} if labels == "transforms" else {}
    photographs = with_masks_of_frames(found.photographs, cameras)
    sources = [*photographs, *_all_frames(found, options, frames, left_out)]
    examined = _examine(sources, options, left_out)
    if labels == "transforms":
        examined = _named(examined, cameras, left_out)
        _warn_of_turned([each.source for each in examined])
    if labels == "filename":
        examined = _with_cameras(examined, pattern, left_out)
    if labels == "none" and not options.keep_duplicates:
        examined = _different(examined, left_out)
    names = output_names([each.source for each in examined])
    made = _make(examined, {place: out / IMAGES / name for place, name in names.items()}, options, labels, left_out)
    if options.longest_ratio:
        left_out |= {each.source.place: "is not cut out, as its object's size requires" for each in made if each.how == "none"}
        made = [each for each in made if each.how != "none"]
    if options.scale == "area" and labels == "none" and made and all_cut(made):
        made = at_one_area(made, options)
    remove_stale(out / IMAGES, {each.file for each in made})
    kept = [each.source for each in made]
    colours_of = {each.source.place: _colours_in(each.file) for each in made}
    counted = count_objects(kept, colours_of, None if labels == "none" else pattern, objects_of_frames(cameras))
    renamed = [place for place, name in names.items() if Path(name).stem != Path(place).stem]
    more = {"cameras": cameras, "others": found.others, "renamed": renamed, "name_pattern": options.name_pattern}
    return Prepared(made, left_out, labels, counted, len(found.videos), **more)


def _all_frames(found: Found, options: Options, folder: Path, left_out: dict[str, str]) -> list[Source]:
    frames, taken = [], {source.place for source in found.photographs}
    for number, video in enumerate(progress(found.videos, desc="reading videos", disable=not found.videos)):
        try:
            frames += _named_apart(video_frames(video, options.every_s, folder / str(number)), taken)
        except ValueError as error:
            left_out[video.place] = str(error)
        taken |= {frame.place for frame in frames}
    return frames


def _named_apart(frames: list[Source], taken: set[str]) -> list[Source]:
    """A video's frames, with its suffix in their names where one of them has the name of another photograph or frame."""
    stem = frames[0].video
    while not taken.isdisjoint(frame.place for frame in frames):
        frames = [replace(frame, place=f"{stem}_{number:04d}.png") for number, frame in enumerate(frames, start=1)]
        stem += "_"
    return frames


def _labels(photographs: list[Source], cameras: list[Path], options: Options) -> str:
    """The source of the photographs' cameras: transforms, filename or none."""
    if options.labels == "none":
        return "none"
    folder = Folder(Path(), tuple(source.file for source in photographs), "transforms" if cameras else None)
    return label_source(DataConfig(name_pattern=options.name_pattern), [folder])


def _examine(sources: list[Source], options: Options, left_out: dict[str, str]) -> list[Examined]:
    """The photographs that can be read and are fit; the reasons of the others go to left_out."""

    def examine(source: Source) -> Examined | str:
        try:
            image = open_photograph(source.file)
        except ValueError as error:
            return str(error)
        sharp = sharpness_or_fault(image, options.smallest)
        return sharp if isinstance(sharp, str) else Examined(source, min(image.size), sharp, look_of(image))

    return _kept(examine, {source.place: source for source in sources}, "examining", left_out)


def _kept(work: Callable[[Each], T | str], photographs: dict[str, Each], desc: str, left_out: dict[str, str]) -> list[T]:
    """What the work makes of photographs, by their places, on all cores; a string is a reason, which goes to left_out."""
    results = map_in_threads(work, list(photographs.values()), available_cores())
    shown = progress(results, desc=desc, total=len(photographs), disable=not photographs)
    outcomes = dict(zip(photographs, shown, strict=True))
    left_out.update({place: outcome for place, outcome in outcomes.items() if isinstance(outcome, str)})
    return [outcome for outcome in outcomes.values() if not isinstance(outcome, str)]


def _named(examined: list[Examined], cameras: dict[Path, dict], left_out: dict[str, str]) -> list[Examined]:
    """The photographs that a transforms.json names; the others are left out. Raises DataError for a file that names none of
    those below it."""
    named: set[Path | None] = set()
    for file, content in cameras.items():
        of_frames = {photograph_of(frame, file) for frame in content["frames"]}
        below = {each.source.file for each in examined if each.source.file.is_relative_to(file.parent)}
        if below and below.isdisjoint(of_frames):
            raise DataError(f"{file}: no file_path names a photograph that was kept; correct them, or take --labels none")
        named |= of_frames
    _warn_of_unnamed_folders(examined, [file.parent for file in cameras])
    for each in examined:
        if each.source.file not in named:
            left_out[each.source.place] = "no transforms.json names it; --labels none takes all without cameras"
    return [each for each in examined if each.source.file in named]


def _warn_of_unnamed_folders(examined: list[Examined], homes: list[Path]) -> None:
    """Warn of folders that lie in none with a transforms.json, and whose photographs are left out for it."""
    photographs = [each.source for each in examined if not each.source.video]
    outside = sorted({one.folder for one in photographs if not any(map(one.file.is_relative_to, homes))})
    if outside:
        log.warning(
            "%d folders have no transforms.json in them or above, such as %s: their photographs are left out; give them one, "
            "or take --labels none to take all without cameras",
            *(len(outside), one_line(outside[0])),
        )


def _warn_of_turned(sources: list[Source]) -> None:
    """Warn as training does of photographs that are stored turned, which their PNGs are not."""
    warn_of_turned([source.place for source in sources if stored_orientation(source.file) != 1], len(sources))


def _with_cameras(examined: list[Examined], pattern: NamePattern, left_out: dict[str, str]) -> list[Examined]:
    """The photographs whose names are cameras, one of each name; the others are left out."""
    kept: dict[str, Examined] = {}
    for each in examined:
        path = Path(each.source.place)
        name = f"{path.parent}/{path.stem.lower()}"  # names that differ in capitals alone are one on some disks
        parts = pattern.read(path.stem)
        if parts is None:
            left_out[each.source.place] = (
                "no camera in its name, while others have one; --labels none takes all without cameras"
            )
        elif pattern.azimuth == "azimuth_deg" and not is_azimuth(parts["azimuth_deg"], pattern):
            left_out[each.source.place] = (
                f"the azimuth {parts['azimuth_deg']} in its name is outside [0, 360) degrees; rename it"
            )
        elif name in kept:
            left_out[each.source.place] = f"the same camera as {kept[name].source.place}, by its name"
        else:
            kept[name] = each
    return list(kept.values())


def _different(examined: list[Examined], left_out: dict[str, str]) -> list[Examined]:
    """One of those that show the same: the one with most pixels, the sharpest, or of the shortest name."""
    best_first = sorted(examined, key=lambda each: (-each.shorter, -each.sharp, len(each.source.place), each.source.place))
    doubled = duplicates({each.source.place: each.look for each in best_first})
    for place, original in doubled.items():
        left_out[place] = f"shows the same as {original}, or almost; --keep_duplicates keeps it"
    return [each for each in examined if each.source.place not in doubled]


def _make(
    examined: list[Examined], files: dict[str, Path], options: Options, labels: str, left_out: dict[str, str]
) -> list[Made]:
    def make(each: Examined) -> Made | str:
        file = files[each.source.place]
        try:
            return made_before(each.source, file) or make_photograph(each.source, file, options, labels)
        except ValueError as error:
            return str(error)

    return _kept(make, {each.source.place: each for each in examined}, "cutting out", left_out)


def _colours_in(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return colours(image)
