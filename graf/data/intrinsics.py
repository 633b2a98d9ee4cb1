"""What a transforms.json tells of a camera besides its pose, as far as a pinhole with square pixels can have it."""

import math
from typing import Any

from graf.config.strict import shown

DISTORTIONS = ("k1", "k2", "k3", "k4", "p1", "p2")
FAINT_DISTORTION = 1e-3
SMALL, LARGE = 0.01, 0.05  # of the image's width, or of the focal length: what is told, and what is refused
LARGEST = 1e30


def focal(frame: dict) -> float | None:
    """Focal length in units of the image's width, None where nothing tells it.

    Raises ValueError for what is no focal length, for pixels that are not square, and for an image far from the optical axis.
    """
    _check_pinhole(frame)
    if "camera_angle_x" in frame:
        angle = _number(frame["camera_angle_x"])
        if 0 < angle < math.pi:
            return 0.5 / math.tan(angle / 2)
        raise ValueError(f"camera_angle_x must lie between 0 and pi radians, found {shown(frame['camera_angle_x'])}")
    if "fl_x" not in frame:
        return None
    fl_x, width = _number(frame["fl_x"]), _number(frame.get("w"))
    if fl_x > 0 and width > 0:
        return fl_x / width
    raise ValueError(f"fl_x and w must be pixels above 0, found {shown(frame['fl_x'])} and {shown(frame.get('w'))}")


def unheeded(frame: dict) -> set[str]:
    """The keys that say something of the camera which nothing here reads."""
    distorted = {key for key in DISTORTIONS if abs(_number(frame.get(key))) > FAINT_DISTORTION}
    return distorted | ({"cx", "cy"} if SMALL < _off_centre(frame) <= LARGE else set())


def _check_pinhole(frame: dict) -> None:
    fl_x, fl_y = _number(frame.get("fl_x")), _number(frame.get("fl_y"))
    if fl_x > 0 and abs(fl_y / fl_x - 1) > SMALL:
        raise ValueError(
            f"fl_x {fl_x:g} and fl_y {fl_y:g} differ, but pixels must be square; resize the images to make them so"
        )
    shift = _off_centre(frame)
    if shift > LARGE:
        raise ValueError(f"cx, cy are {shift:.1%} of the width off the image's centre; crop the images around the optical axis")


def _off_centre(frame: dict) -> float:
    """How far the optical axis is from the image's centre, in units of its width; 0 where the file does not tell."""
    width, height = _number(frame.get("w")), _number(frame.get("h"))
    if not width > 0:
        return 0.0
    shifts = abs(_number(frame.get("cx")) - width / 2), abs(_number(frame.get("cy")) - height / 2)
    return max((shift / width for shift in shifts if math.isfinite(shift)), default=0.0)


def _number(value: Any) -> float:
    """A number of the file, NaN where it is none; JSON has integers that no float holds."""
    if not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        return math.nan
    return float(value)
