"""Crops photographs square: around the object, or the centre where a camera is known, which the crop must not change."""

from typing import NamedTuple

import numpy as np
from PIL import Image

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; may reach out of the frame
SEEN = 128  # opacity of 255 from which on a pixel is the object's
CUT_OFF = 0.15  # of the object's width or height, along the frame's edge, from which on the object is taken for cut off


class Extent(NamedTuple):
    """The place of an object in its photograph, and whether the frame cuts it off."""

    box: Box
    cut_off: bool


def extent(image: Image.Image) -> Extent:
    """The object of an RGBA image. Raises ValueError where nothing of it is opaque."""
    seen = np.asarray(image.getchannel("A")) >= SEEN
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    if not len(rows):
        raise ValueError("nothing of it is opaque")
    box = int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
    width, height = box[2] - box[0], box[3] - box[1]
    at_edges = max(max(seen[0].sum(), seen[-1].sum()) / width, max(seen[:, 0].sum(), seen[:, -1].sum()) / height)
    return Extent(box, bool(at_edges > CUT_OFF))


def around(box: Box, margin: float, widest: float = 1.0) -> Box:
    """The square around a box, with a margin on all sides in units of the box's longer side. Boxes that are up to `widest`
    times as wide as high have the same height in their squares."""
    left, top, right, bottom = box
    side = round(max(right - left, (bottom - top) * max(1.0, widest)) * (1 + 2 * margin))
    left, top = (left + right - side) // 2, (top + bottom - side) // 2
    return left, top, left + side, top + side


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
