"""The square of a photograph that is trained on, so that its camera has the field of view data.fov and its axis in the middle.

A pinhole's picture cropped around another point is the picture of a pinhole whose axis goes through that point: photographs of
several focal lengths, or with the optical axis off the centre, are cropped to one camera, exactly.
"""

import logging
import math
from collections.abc import Sequence

from graf.config import DataConfig
from graf.data.decoding import Frame
from graf.data.folders import Item

LARGEST_SHIFT = 0.01  # of the optical axis from where data.imsize pixels have it, in units of the width, that is left alone
SAME_FOCAL = 0.01  # relative difference in focal length that is left alone

log = logging.getLogger("graf")


def frames_of(items: Sequence[Item], data: DataConfig) -> list[Frame]:
    """The square of each image: the largest at the centre where all images have a central axis and one focal length, in units
    of their width and in units of that square. Otherwise it is what data.fov sees around the optical axis."""
    focals = [item.focal for item in items if item.focal is not None]
    of_squares = [_focal_of_square(item, data) for item in items if item.focal is not None]
    pixel = 1 / (2 * data.imsize)  # pixel i stands at i - W / 2 of the axis, and its centre at i + 1/2 of the picture's corner
    shifts = [max(abs(offset - pixel) for offset in item.axis) for item in items if item.focal is not None]
    is_uniform = not focals or (
        all(max(some) <= (1 + SAME_FOCAL) * min(some) for some in (focals, of_squares)) and max(shifts) <= LARGEST_SHIFT + pixel
    )
    if is_uniform or data.orthographic:
        return [Frame(mask=item.mask) for item in items]
    log.info(
        "the images' focal lengths are %.3g to %.3g of their width, %.3g to %.3g of their centre square, and their optical "
        "axes up to %.1f %% of the width off the centre; each is cropped around its axis to data.fov %g, and what lies outside "
        "is data.background",
        *(min(focals), max(focals), min(of_squares), max(of_squares), 100 * max(shifts), data.fov),
    )
    return [_frame(item, data) for item in items]


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
