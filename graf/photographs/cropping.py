"""Crops photographs square: around the object, or the centre where a camera is known, which the crop must not change."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; may reach out of the frame
SEEN = 128  # opacity of 255 from which on a pixel is the object's
SIZE_SPREAD = 0.1  # standard deviation of the log of frames' sides; 0.09 is that of the root of toy cars' areas
PLACE_SPREAD = 0.03  # the same of their places, in units of their sides; toy cars stand 0.03 and 0.02 beside the middle
CUT_OFF = 0.15  # of the object's width or height, along the frame's edge, from which on the object is taken for cut off


class Extent(NamedTuple):
    """The place of an object in its photograph, its area in pixels, and whether the frame cuts it off."""

    box: Box
    area: int
    cut_off: bool

    @property
    def longer(self) -> int:
        """The longer side of its box, pixels."""
        left, top, right, bottom = self.box
        return max(right - left, bottom - top)


def extent(image: Image.Image) -> Extent:
    """The object of an RGBA image. Raises ValueError where nothing of it is opaque."""
    seen = np.asarray(image.getchannel("A")) >= SEEN
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    if not len(rows):
        raise ValueError("nothing of it is opaque")
    box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    width, height = box[2] - box[0], box[3] - box[1]
    at_edges = max(max(seen[0].sum(), seen[-1].sum()) / width, max(seen[:, 0].sum(), seen[:, -1].sum()) / height)
    return Extent(box, int(seen.sum()), bool(at_edges > CUT_OFF))


def around(found: Extent, margin: float, longest_ratio: float = 0.0) -> Box:
    """The square around an object, with a margin on all sides in units of its longer side. Objects that are up to
    `longest_ratio` times as long as the root of their area have the same area in their squares."""
    left, top, right, bottom = found.box
    side = round(max(found.longer, longest_ratio * math.sqrt(found.area)) * (1 + 2 * margin))
    left, top = (left + right - side) // 2, (top + bottom - side) // 2
    return left, top, left + side, top + side


def unevenly(square: Box, found: Extent, margin: float, rng: np.random.Generator) -> Box:
    """A square of another size in another place, sampled around those of a square, with the object in it and at least a third
    of its margin.

    All renderings are seen from one distance, so the areas of their objects vary. If photographs had exactly one area, the
    discriminator would know them by it.
    """
    left, top, right, bottom = square
    floor = round(found.longer * margin / 3)
    side = max(found.longer + 2 * floor, round((right - left) * math.exp(SIZE_SPREAD * rng.standard_normal())))
    corner = []
    for middle, low, high in zip(((left + right) / 2, (top + bottom) / 2), found.box[:2], found.box[2:], strict=True):
        start = round(middle - side / 2 + PLACE_SPREAD * side * rng.standard_normal())
        corner.append(min(low - floor, max(high + floor - side, start)))
    return *corner, corner[0] + side, corner[1] + side


def centre_square(size: tuple[int, int]) -> Box:
    """The largest square at the centre of an image of `size` (width, height)."""
    side = min(size)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    return left, top, left + side, top + side


def cropped(image: Image.Image, box: Box, largest: int) -> Image.Image:
    """The box of an image, transparent beyond its frame, made smaller to `largest` pixels a side where it is larger."""
    part = image.crop(box)
    side = min(largest, max(part.size))
    size = tuple(max(1, round(length * side / max(part.size))) for length in part.size)
    return part if part.size == size else part.resize(size, Image.Resampling.LANCZOS)
