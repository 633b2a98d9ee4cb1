"""Reads a lens from files of cameras: the focal length, the optical axis, and what no pinhole with square pixels has."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from graf.config.strict import one_line, shown

DISTORTIONS = ("k1", "k2", "k3", "k4", "p1", "p2")
FAINT_DISTORTION, STRONG_DISTORTION = 1e-3, 0.2
BENDING_MODELS = ("FISHEYE", "EQUIRECTANGULAR", "OMNIDIRECTIONAL", "VR180", "ORTHOPHOTO", "FOV")  # parts of their names
UNDISTORT = "run `colmap image_undistorter`, and read its images and its sparse model instead"
SMALL = 0.01  # share of the focal length by which fl_y may differ
SAME_SHAPE = 0.02  # by which ratios of width to height may differ
FARTHEST_AXIS = 0.5  # of the optical axis from the centre, in units of the width


class Lens(NamedTuple):
    """A camera's lens, in units of the image's width.

    focal: the focal length, None where it is not given. axis: where the optical axis is, (right, down) of the image's centre.
    size: width and height of the image in pixels, None where they are not given.
    """

    focal: float | None
    axis: tuple[float, float] = (0.0, 0.0)
    size: tuple[float, float] | None = None


def lens(frame: Mapping[str, Any]) -> Lens:
    """The lens of a frame with keys as in transforms.json: camera_angle_x, or fl_x and w; fl_y or camera_angle_y, cx, cy, h.

    Raises ValueError for an impossible focal length, a lens that bends straight lines, pixels that are not square, and an
    optical axis outside the image.
    """
    if bending := _bending(frame):
        raise ValueError(f"{bending} bends straight lines; {UNDISTORT}")
    width, height = number(frame.get("w")), number(frame.get("h"))
    fl_x = number(frame.get("fl_x")) if "fl_x" in frame else _focal_length(frame.get("camera_angle_x"), width)
    fl_y = number(frame.get("fl_y")) if "fl_y" in frame else _focal_length(frame.get("camera_angle_y"), height)
    if fl_x > 0 and abs(fl_y / fl_x - 1) > SMALL:
        source = "" if {"fl_x", "fl_y"} <= frame.keys() else " by the angles,"
        raise ValueError(f"fl_x {fl_x:g} and fl_y {fl_y:g} differ,{source} but pixels must be square; resize the images")
    axis = tuple(_offset(frame.get(key), length, width) for key, length in (("cx", width), ("cy", height)))
    if max(map(abs, axis)) > FARTHEST_AXIS:
        raise ValueError(f"cx {shown(frame.get('cx'))} and cy {shown(frame.get('cy'))} are outside the image; export it again")
    size = (width, height) if width > 0 and height > 0 else None
    if "camera_angle_x" in frame:
        angle = number(frame["camera_angle_x"])
        if 0 < angle < math.pi:
            return Lens(0.5 / math.tan(angle / 2), axis, size)
        raise ValueError(f"camera_angle_x must lie between 0 and pi radians, found {shown(frame['camera_angle_x'])}")
    if "fl_x" not in frame:
        return Lens(None, axis, size)
    if fl_x > 0 and width > 0:
        return Lens(fl_x / width, axis, size)
    raise ValueError(f"fl_x and w must be pixels above 0, found {shown(frame['fl_x'])} and {shown(frame.get('w'))}")


def _focal_length(angle: Any, length: float) -> float:
    """In pixels, of a side with so many of them that is seen under an angle in radians."""
    return length / (2 * math.tan(number(angle) / 2)) if 0 < number(angle) < math.pi else math.nan


def _bending(frame: Mapping[str, Any]) -> str | None:
    """What of a frame says that its lens is far from a pinhole's: a model (nerfstudio), a flag (instant-ngp), a coefficient."""
    model = str(frame.get("camera_model", ""))
    if any(kind in model.upper() for kind in BENDING_MODELS):
        return f"camera_model {one_line(model)}"
    if frame.get("is_fisheye") in (True, 1):
        return "is_fisheye: true"
    strong = [key for key in DISTORTIONS if abs(number(frame.get(key))) > STRONG_DISTORTION]
    return f"{strong[0]} {number(frame[strong[0]]):g}" if strong else None


def problem_of_shape(of_camera: tuple[float, float] | None, size: tuple[int, int]) -> str | None:
    """What is wrong where a camera is of an image `of_camera` (width, height) whose rows are the columns of the upright picture
    of `size`; None for other shapes: a file may tell the size that its images had before they were cropped."""
    if of_camera is None or _same_shape(of_camera, size) or not _same_shape(of_camera, size[::-1]):
        return None
    return (
        f"is {size[0]} x {size[1]} pixels upright, but its camera is of {of_camera[0]:g} x {of_camera[1]:g}; find the cameras "
        "of upright copies, or remove the EXIF orientation of photographs whose cameras are of the pixels as they are stored"
    )


def _same_shape(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return abs(a[0] * b[1] / (a[1] * b[0]) - 1) <= SAME_SHAPE


def distortions(frame: Mapping[str, Any]) -> set[str]:
    """The keys of a frame that bend its picture noticeably, and are not used."""
    return {key for key in DISTORTIONS if abs(number(frame.get(key))) > FAINT_DISTORTION}


def number(value: Any) -> float:
    """A number of a file, NaN for anything else; JSON has integers that do not fit in a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        return math.nan
    return float(value)


def _offset(centre: Any, length: float, width: float) -> float:
    """Distance of the optical axis from the middle of a side, in units of the width; 0 where the file does not give it.

    Files measure from the picture's corner, where the centre of pixel i is at i + 1/2.
    """
    offset = (number(centre) - length / 2) / width if width > 0 else math.nan
    return offset if math.isfinite(offset) else 0.0
