"""The square of a photograph that is trained on, so that its camera has the field of view data.fov and its axis in the middle.

A pinhole's picture cropped around another point is the picture of a pinhole whose axis goes through that point: photographs of
several focal lengths, or with the optical axis off the centre, are cropped to one camera, exactly.
"""

import logging
import math
from collections.abc import Sequence

from graf.config import DataConfig
from graf.data.decoding import Frame, square_side
from graf.data.folders import Item

LARGEST_SHIFT = 0.01  # of the optical axis from where data.imsize pixels have it, in units of the width, that is left alone
SAME_FOCAL = 0.01  # relative difference in focal length that is left alone
FOV_TOLERANCE_DEG = 0.5
NARROWEST_FOV = 0.8  # of the narrowest photograph's field of view, below which data.fov cuts too much off

log = logging.getLogger("graf")


def frames_of(items: Sequence[Item], data: DataConfig) -> list[Frame]:
    """The square of each image: the largest at the centre where all images have a central axis and one focal length, in units
    of their width and in units of that square. Otherwise it is what data.fov sees around the optical axis."""
    if not are_cropped(items, data):
        return [Frame(mask=item.mask) for item in items]
    focals, of_squares, _ = _lenses(items, data)
    off_centre = max(abs(offset) for item in items if item.focal is not None for offset in item.axis)
    log.info(
        "the images' focal lengths are %.3g to %.3g of their width, %.3g to %.3g of their centre square, and their optical "
        "axes up to %.1f %% of the width off the centre; each is cropped around its axis to data.fov %g, and what lies outside "
        "is data.background",
        *(min(focals), max(focals), min(of_squares), max(of_squares), 100 * off_centre, data.fov),
    )
    return [_frame(item, data) for item in items]


def are_cropped(items: Sequence[Item], data: DataConfig) -> bool:
    """Whether the images are cropped to data.fov, because they have several focal lengths or optical axes off the centre."""
    focals, of_squares, shifts = _lenses(items, data)
    if not focals or data.orthographic:
        return False
    have_one = all(max(some) <= (1 + SAME_FOCAL) * min(some) for some in (focals, of_squares))
    return not have_one or max(shifts) > LARGEST_SHIFT + _half_pixel(data)


def fov_of_square(item: Item, size: tuple[int, int], data: DataConfig) -> float:
    """Horizontal field of view in degrees of the centre square of an image of (width, height) pixels, which keeps the focal
    length. Raises ValueError where data.center_crop does not fit."""
    return math.degrees(2 * math.atan(square_side(*size, data.center_crop) / (2 * item.focal * size[0])))


def _lenses(items: Sequence[Item], data: DataConfig) -> tuple[list[float], list[float], list[float]]:
    """Focal lengths in units of the images' widths and of their centre squares, and shifts of their optical axes."""
    known = [item for item in items if item.focal is not None]
    shifts = [max(abs(offset - _half_pixel(data)) for offset in item.axis) for item in known]
    return [item.focal for item in known], [_focal_of_square(item, data) for item in known], shifts


def _half_pixel(data: DataConfig) -> float:
    """Pixel i stands at i - W / 2 of the axis, and its centre at i + 1/2 of the picture's corner."""
    return 1 / (2 * data.imsize)


def _focal_of_square(item: Item, data: DataConfig) -> float:
    """The focal length in units of the side of the centre square, of the width where the image's height is not known."""
    if item.size is None or data.center_crop:
        return item.focal
    return item.focal * item.size[0] / min(item.size)


def _frame(item: Item, data: DataConfig) -> Frame:
    if item.focal is None:
        return Frame(mask=item.mask)
    side = 2 * item.focal * math.tan(math.radians(data.fov) / 2)
    right, down = (offset - side / (2 * data.imsize) for offset in item.axis)
    return Frame(side, (right, down), item.mask)
