"""Makes the PNG of one photograph, cut out and cropped, with a note of how, by which an interrupted run is continued."""

import contextlib
import hashlib
import json
import logging
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from graf.config.name_pattern import NAMED_BY_RANK
from graf.config.strict import one_line
from graf.data.decoding import UNREADABLE
from graf.photographs.cropping import Box, Extent, around, centre_square, cropped, extent, unevenly
from graf.photographs.cutout.ways import Cut, cut_out, without_fringe
from graf.photographs.reading import open_photograph
from graf.photographs.sources import Source
from graf.runtime.console import progress
from graf.runtime.files import file_sha256, whole_file
from graf.runtime.limits import available_cores
from graf.runtime.threads import map_in_threads

import numpy as np
from PIL import Image, PngImagePlugin

NOTE = "graf_ccsr"  # text in a PNG: how it was made
CORRECTED = "corrected"  # how: by the user, whose PNG it is now
SAME_AREA_SHARE = 0.95  # of the photographs; longer objects fill their frames
ROUNDING = 2  # pixels by which a frame that is made again may differ

log = logging.getLogger("graf")


@dataclass(frozen=True)
class Options:
    """Choices for preparing photographs; see the flags of tools/prepare_photos.py."""

    cut: Cut = "auto"
    masks: Path | None = None
    every_s: float = 0.5
    margin: float = 0.1  # around the object, in units of its longer side
    largest: int = 512  # pixels a side of what is written
    smallest: int = 64  # pixels a side that a photograph, and its object, must have
    keep_duplicates: bool = False
    scale: Literal["area", "own"] = "area"  # area: objects have about one area in their frames; own: each fills its frame
    longest_ratio: float = 0.0  # area: `longest_ratio_in` a set whose objects have this area; 0: of the photographs themselves
    labels: str = "auto"  # none: names are no cameras
    name_pattern: str = NAMED_BY_RANK  # data.name_pattern


class Made(NamedTuple):
    """A prepared photograph: its PNG, how it was cut out, pixels a side, and whether the frame cuts its object off."""

    source: Source
    file: Path
    how: str
    side: int
    cut_off: bool


def make_photograph(source: Source, file: Path, options: Options, labels: str) -> Made:
    """Cut out, crop and write one photograph. Raises ValueError with why it is left out."""
    image, how = cut_out(open_photograph(source.file), options.cut, source.mask)
    found = extent(image) if image.mode == "RGBA" else None
    cut_off = found is not None and found.cut_off
    box = _frame(image.size, found, options.margin, labels)
    side = min(box[2] - box[0], box[3] - box[1])
    if side < options.smallest:
        raise ValueError(f"its object is too small: {side} pixels with its margin, at least {options.smallest} are needed")
    part = cropped(image, box, options.largest)
    if how not in ("kept", "none"):
        part = without_fringe(part)
    note = {"of": _content(source), "at": _place(source, file), "how": how, "side": side, "cut_off": cut_off}
    _write(file, part, note)
    return Made(source, file, how, side, cut_off)


def at_one_area(made: list[Made], options: Options) -> list[Made]:
    """Frame cut-out photographs again, so that objects have about one area in their frames, as if all had been seen from one
    distance: the root of a turning object's area changes less than its width and height. Objects that are longer than those of
    SAME_AREA_SHARE of the photographs fill their frames. Those that are to be like another set's do not vary as these do."""
    extents = _extents([None if each.how == CORRECTED else each.file for each in made])
    longest_ratio = options.longest_ratio or _longest_ratio(extents)

    def framed(each: Made, found: Extent | None) -> Made:
        if found is None:
            return each
        with Image.open(each.file, formats=("PNG",)) as image:
            whole, even = (0, 0, *image.size), around(found, options.margin, longest_ratio)
            rng = np.random.default_rng(zlib.crc32(os.fsencode(each.source.place)))
            box = even if options.longest_ratio else unevenly(even, found, options.margin, rng)
            if max(abs(a - b) for a, b in zip(box, whole, strict=True)) <= ROUNDING:
                return each
            note = json.loads(image.text[NOTE])
            scale = note.get("across", each.side) / image.width  # pixels of the photograph per pixel of its PNG
            side, across = round(scale * (even[2] - even[0])), scale * (box[2] - box[0])
            _write(each.file, cropped(image, box, options.largest), note | {"side": side, "across": across})
        return each._replace(side=side)

    return list(map_in_threads(lambda pair: framed(*pair), list(zip(made, extents, strict=True)), available_cores()))


def longest_ratio_in(images: Path) -> float:
    """The length of the longest objects of a prepared set, in units of the root of their area; 0 where none is cut out.
    Pictures that are damaged, or that the user has corrected, do not count."""
    own = map_in_threads(lambda file: file if _note(file) else None, sorted(images.rglob("*.png")), available_cores())
    return _longest_ratio(_extents(list(own)))


def _longest_ratio(extents: Sequence[Extent | None]) -> float:
    ratios = [found.longer / math.sqrt(found.area) for found in extents if found]
    return float(np.quantile(ratios, SAME_AREA_SHARE)) if ratios else 0.0


def _extents(files: Sequence[Path | None]) -> list[Extent | None]:
    """The object in each PNG; None where there is no file, and where the object is too thin to be opaque in it."""
    return list(progress(map_in_threads(_extent, files, available_cores()), desc="sizes", total=len(files), disable=not files))


def _extent(file: Path | None) -> Extent | None:
    with contextlib.suppress(ValueError):
        if file:
            with Image.open(file, formats=("PNG",)) as image:
                return extent(image)
    return None


def _write(file: Path, image: Image.Image, note: dict) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text(NOTE, json.dumps(note | {"pixels": _digest(image)}))
    with whole_file(file) as temporary:
        image.save(temporary, pnginfo=info)


def _frame(size: tuple[int, int], found: Extent | None, margin: float, labels: str) -> Box:
    """The part of an image that is kept: with cameras what these saw, else the object with its margin."""
    if labels == "transforms":  # its cameras are those of the whole image
        return 0, 0, *size
    if labels == "filename" or found is None:
        return centre_square(size)
    return around(found, margin)


def _place(source: Source, file: Path) -> str:
    """The place of a PNG below the images' folder, which is as deep there as its photograph is below what the user named."""
    return "/".join(file.parts[-len(PurePosixPath(source.place).parts) :])


def _content(source: Source) -> list[str]:
    return [file_sha256(file) for file in (source.file, source.mask) if file]


def made_before(source: Source, file: Path) -> Made | None:
    """The result that an interrupted run has made of a photograph that has not changed since, or the PNG that stands there
    without our note: the user has corrected it. Raises ValueError where that cannot be read."""
    note = _note(file)
    if not note and file.exists():
        try:
            image = open_photograph(file)
        except ValueError:
            raise ValueError(f"{file} is no picture that can be read; remove it to have it made anew") from None
        log.warning("%s: was changed by another program, and stays as it is; remove it to have it made anew", file)
        return Made(source, file, CORRECTED if image.mode == "RGBA" else "none", min(image.size), cut_off=False)
    if not note or note.pop("of", None) != _content(source):
        return None
    return Made(source, file, note["how"], note["side"], note["cut_off"])


def _note(file: Path) -> dict:
    """The notes of `make_photograph` in a PNG; {} where it did not make its pixels: who edits them may keep the text."""
    try:
        with Image.open(file, formats=("PNG",)) as image:
            note = json.loads(image.text[NOTE])
            return note if note.get("pixels") in (None, _digest(image)) else {}  # older notes have none
    except UNREADABLE + (KeyError, AttributeError):
        return {}


def _digest(image: Image.Image) -> str:
    """Of its pixels, however they are stored."""
    return hashlib.sha256(repr(image.size).encode() + image.convert("RGBA").tobytes()).hexdigest()[:16]


def remove_stale(folder: Path, made: set[Path]) -> None:
    """Remove PNGs that an earlier run made of photographs that have changed or gone since, and log it. Those that the user has
    moved or copied to where they are stay, with a warning."""
    others = {file: note for file in sorted(folder.rglob("*.png")) if file not in made and (note := _note(file))}
    place_of = {file: file.relative_to(folder).as_posix() for file in others}
    moved = [file for file, place in place_of.items() if others[file].get("at", place) != place]  # older notes have none
    stale = sorted(others.keys() - moved)
    for file in stale:
        file.unlink()
    if stale:
        log.info(
            "%d pictures removed from %s, whose photographs are gone or left out now, such as %s",
            *(len(stale), folder, one_line(place_of[stale[0]])),
        )
    if moved:
        log.warning(
            "%d pictures in %s are not where this tool wrote them, such as %s; they stay, and training takes them too: remove "
            "copies that you do not want",
            *(len(moved), folder, one_line(place_of[moved[0]])),
        )
