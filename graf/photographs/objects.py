"""Estimates how many different objects photographs show: by videos, camera names, file names, and likeness of colours."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from graf.config.name_pattern import NamePattern
from graf.data.folders import VIEW
from graf.photographs.sources import Source

import numpy as np
from PIL import Image
from skimage.color import rgb2lab

CAMERA_NAMES = re.compile(
    r"(img|dsc|dscn|dscf|pxl|mvimg|p|photo|image|picture|pic|frame|foto|screenshot|wa|view|r)?", re.IGNORECASE
)
NUMBERS = re.compile(r"[\d\W_]+$")
BINS = 4  # of each CIELAB coordinate
ALIKE = 0.6  # share of their colours that photographs of one object have in common


class Count(NamedTuple):
    """The number of different objects, and how it was counted, such as `2 by videos, about 5 by likeness`."""

    number: int
    how: str


def colours(image: Image.Image) -> np.ndarray:
    """Histogram (BINS^3,), of sum 1, of the CIELAB colours of an image's opaque pixels."""
    small = np.asarray(image.convert("RGBA").resize((48, 48), Image.Resampling.BOX))
    lab = rgb2lab(small[..., :3] / 255.0)[small[..., 3] > 127]  # (N, 3)
    ranges = [(0, 100), (-40, 40), (-40, 40)]
    histogram = np.histogramdd(lab.clip([0, -40, -40], [100, 40, 40]), bins=BINS, range=ranges)[0].ravel()
    return histogram / max(1.0, histogram.sum())


def count_objects(
    sources: Iterable[Source],
    colours_of: dict[str, np.ndarray],
    posed_by: NamePattern | None,
    object_of: Mapping[Path, str] = MappingProxyType({}),
) -> Count:
    """Count the different objects of photographs. colours_of: `colours` by place; posed_by: the pattern of their names where
    they have cameras, None without; object_of: the objects that a file of cameras names, by photographs' files.

    A video is one object, and so is a folder of photographs with cameras whose names have no <object>. Names such as bus_01
    and bus_02 are one object where a folder has several such names; a telephone's own names say nothing. Other photographs of a
    folder are of one object as long as each has colours like one before it.
    """
    ways: Counter[str] = Counter()
    folders: dict[str, list[Source]] = defaultdict(list)
    videos = set()
    for source in sources:
        if source.video:
            videos.add(source.video)
        else:
            folders[source.folder].append(source)
    ways["by videos"] = len(videos)
    for inside in folders.values():
        stems = [_stem(source.place) for source in inside]
        if posed_by:
            ways["by their cameras' file"] += len({object_of[source.file] for source in inside if source.file in object_of})
            unnamed = [source for source in inside if source.file not in object_of]
            named = {(posed_by.read(PurePosixPath(source.place).stem) or {}).get("object") for source in unnamed}
            ways["by folders and <object>" if "object" in posed_by.parts else "by folders"] += len(named)
        elif all(stems) and 1 < len(set(stems)) < len(inside):
            ways["by file names"] += len(set(stems))
        else:
            ways["by likeness of photographs that follow each other"] += _runs([colours_of[source.place] for source in inside])
    how = ", ".join(f"{n} {way}" for way, n in ways.items() if n)
    return Count(sum(ways.values()), how)


def _stem(place: str) -> str:
    """The object's name in a photograph's, '' for a telephone's own: `bus` of bus_03.jpg, `car3` of car3-066-153.jpg."""
    stem = PurePosixPath(place).stem
    match = VIEW.fullmatch(stem)
    name = NUMBERS.sub("", match[1]) if match and "-" not in stem else stem.partition("-")[0]
    return "" if CAMERA_NAMES.fullmatch(name) else name


def _runs(histograms: list[np.ndarray]) -> int:
    """The number of runs of histograms in which each has more than ALIKE in common with one before it in the run."""
    number, run = 0, []
    for histogram in histograms:
        if not any(np.minimum(histogram, other).sum() > ALIKE for other in run):
            number, run = number + 1, []
        run.append(histogram)
    return number
