"""Makes the PNG of one photograph, cut out and cropped, with a note of how, by which an interrupted run is continued."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from graf.config.name_pattern import NAMED_BY_RANK
from graf.photographs.cropping import Box, around, centre_square, cropped, extent
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
WIDE = 0.95  # share of the photographs whose objects have the same height in their frames
ROUNDING = 2  # pixels by which a frame that is made again may differ


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
    scale: Literal["height", "own"] = "height"  # height: objects have one height in their frames; own: each fills its frame
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
    object_box, cut_off = extent(image) if image.mode == "RGBA" else (None, False)
    box = _frame(image.size, object_box, options.margin, labels)
    side = min(box[2] - box[0], box[3] - box[1])
    if labels == "none" and side < options.smallest:
        raise ValueError(f"its object is too small: {side} pixels with its margin, at least {options.smallest} are needed")
    part = cropped(image, box, options.largest)
    if how not in ("kept", "none"):
        part = without_fringe(part)
    _write(file, part, {"of": _content(source), "how": how, "side": side, "cut_off": cut_off})
    return Made(source, file, how, side, cut_off)


def at_one_height(made: list[Made], options: Options) -> list[Made]:
    """Frame cut-out photographs again, so that objects have one height in their frames: an object that is turned keeps its
    height, and a frame of its own would show its front as large as its side. Objects that are wider than those of WIDE of the
    photographs fill their frames."""
    boxes = map_in_threads(_object_box, [each.file for each in made], available_cores())
    boxes = list(progress(boxes, desc="sizes", total=len(made)))
    widest = float(np.quantile([(right - left) / (bottom - top) for left, top, right, bottom in boxes], WIDE))

    def framed(each: Made, object_box: Box) -> Made:
        with Image.open(each.file, formats=("PNG",)) as image:
            whole, box = (0, 0, *image.size), around(object_box, options.margin, widest)
            if max(abs(a - b) for a, b in zip(box, whole, strict=True)) <= ROUNDING:
                return each
            side = round(each.side * (box[2] - box[0]) / image.width)
            _write(each.file, cropped(image, box, options.largest), json.loads(image.text[NOTE]) | {"side": side})
        return each._replace(side=side)

    return list(map_in_threads(lambda pair: framed(*pair), list(zip(made, boxes, strict=True)), available_cores()))


def _object_box(file: Path) -> Box:
    with Image.open(file, formats=("PNG",)) as image:
        return extent(image).box


def _write(file: Path, image: Image.Image, note: dict) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text(NOTE, json.dumps(note))
    with whole_file(file) as temporary:
        image.save(temporary, pnginfo=info)


def _frame(size: tuple[int, int], object_box: Box | None, margin: float, labels: str) -> Box:
    """The part of an image that is kept: with cameras what these saw, else the object with its margin."""
    if labels == "transforms":  # its cameras are those of the whole image
        return 0, 0, *size
    if labels == "filename" or object_box is None:
        return centre_square(size)
    return around(object_box, margin)


def _content(source: Source) -> list[str]:
    return [file_sha256(file) for file in (source.file, source.mask) if file]


def made_before(source: Source, file: Path) -> Made | None:
    """The result that an interrupted run has made of a photograph that has not changed since."""
    note = _note(file)
    if not note or note.pop("of", None) != _content(source):
        return None
    return Made(source, file, **note)


def _note(file: Path) -> dict:
    """The notes of `make_photograph` in a PNG; {} where it did not make it."""
    try:
        with Image.open(file, formats=("PNG",)) as image:
            return json.loads(image.text[NOTE])
    except (OSError, ValueError, KeyError):
        return {}


def remove_stale(folder: Path, made: set[Path]) -> None:
    """Remove PNGs that an interrupted run made of photographs that have changed or gone since."""
    for file in folder.rglob("*.png"):
        if file not in made and _note(file):
            file.unlink()
