"""Cameras of a transforms.json, as NeRF-Blender and instant-ngp write it.

    {"camera_angle_x": 0.56, "frames": [{"file_path": "images/0", "transform_matrix": [[...], ...]}, ...]}

The horizontal field of view is camera_angle_x in radians, or fl_x and w in pixels; a frame may have its own. The matrix maps
camera to world, in the project's own convention: z up, looking along -z. Cameras are pinholes with square pixels; a file's
distortion or offset is an error where it is large, a warning where it is small.
"""

import json
import logging
import math
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from graf.config import DataConfig
from graf.config.strict import one_line, shown
from graf.data.decoding import EXTENSIONS
from graf.data.folders import TRANSFORMS, Fault, Folder, Item, is_within
from graf.rays import depth_bounds

import torch
from torch import Tensor

TOLERANCE = 1e-3  # of rotations: files carry few decimals
LARGEST_FILE = 2**28  # characters
RADIUS_TOLERANCE = 0.05  # of data.radius
DISTORTIONS = ("k1", "k2", "k3", "k4", "p1", "p2")
FAINT_DISTORTION = 1e-3
SMALL, LARGE = 0.01, 0.05  # share of the image's width or focal length: above SMALL a warning, above LARGE an error
LARGEST_NUMBER = 1e30

log = logging.getLogger("graf")


def items_by_transforms(folders: list[Folder], data: DataConfig) -> tuple[list[Item], list[Fault]]:
    """The images named in the folders' transforms.json with their cameras, and every fault of those files."""
    items, faults = [], []
    for class_index, folder in enumerate(folders):
        if not folder.has_transforms:
            cure = "add one, or set data.labels: filename or none"
            faults.append(Fault(str(folder.path), f"no {TRANSFORMS} has the cameras of these images; {cure}"))
            continue
        found, wrong = _read_folder(folder.path, class_index)
        items += found
        wrong += _depth_faults(found, str(folder.path / TRANSFORMS), data)
        if not wrong:
            _warn_of_radius(found, str(folder.path / TRANSFORMS), data)
        faults += wrong
    return items, faults


def _read_folder(folder: Path, class_index: int) -> tuple[list[Item], list[Fault]]:
    file = folder / TRANSFORMS
    try:
        content = json.loads(_read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        reason = one_line(str(getattr(error, "strerror", None) or error))
        return [], [Fault(str(file), f"not readable as JSON ({reason}); correct or export it again")]
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames:
        return [], [Fault(str(file), "has no frames; expected a list of file_path and transform_matrix")]
    items, faults, ignored = [], [], set()
    frame_of: dict[Path, int] = {}
    for number, frame in enumerate(frames):
        if not isinstance(frame, dict):
            faults.append(Fault(f"{file}: frame {number}", "expected file_path and transform_matrix", of_image=True))
            continue
        image, camera, where = None, {}, f"{file}: frame {number} ({shown(frame.get('file_path'))})"
        try:
            image = _image_file(folder, frame.get("file_path"))
            if frame_of.setdefault(image, number) != number:
                problem = f"names the image of frame {frame_of[image]} again; remove one of them"
                faults.append(Fault(where, problem, of_image=True))
                continue
        except ValueError as error:
            faults.append(Fault(where, str(error), of_image=True))
        intrinsics = {**content, **frame}
        for name, read, source in (("pose_c2w", rigid_pose, frame.get("transform_matrix")), ("focal", focal, intrinsics)):
            try:
                camera[name] = read(source)
            except ValueError as error:
                faults.append(Fault(str(image or where), f"in {TRANSFORMS}: {error}", of_image=True))
        ignored |= ignored_keys(intrinsics)
        if image:
            items.append(Item(image, class_index, **camera))
    if ignored:
        keys = ", ".join(sorted(ignored))
        log.warning("%s: ignoring %s; images are taken as undistorted, with the optical axis at their centre", file, keys)
    return items, faults


def _read_text(file: Path) -> str:
    """The file's text. Raises OSError or ValueError where it is not a file, or too large for a transforms.json."""
    if not file.is_file():
        raise ValueError("no file")
    with open(file, encoding="utf-8") as stream:
        text = stream.read(LARGEST_FILE + 1)
    if len(text) > LARGEST_FILE:
        raise ValueError("too long")
    return text


def _image_file(folder: Path, file_path: Any) -> Path:
    """The image of a frame, whose extension may be left out. Raises ValueError."""
    if not isinstance(file_path, str) or not file_path.strip() or "\0" in file_path:
        raise ValueError("file_path must name an image beside the file")
    outside = "file_path leaves the folder; move the image into it and name it relative to it"
    path = PurePosixPath(file_path)
    if path.is_absolute() or ".." in re.split(r"[/\\]", file_path) or Path(file_path).is_absolute():
        raise ValueError(outside)
    for suffix in ("", *EXTENSIONS, *map(str.upper, EXTENSIONS)):
        candidate = folder / f"{path}{suffix}"
        if os.path.isfile(candidate):  # no error for a name that is too long
            if not is_within(candidate, folder):  # by a link in it
                raise ValueError(outside)
            return candidate
    raise ValueError("the file of this frame is missing; put it back or remove the frame")


def rigid_pose(matrix: Any) -> Tensor:
    """pose_c2w (3, 4) from nested lists (4, 4) or (3, 4). Raises ValueError where they are not a rotation and a position."""
    expected = "transform_matrix must be 4 x 4 or 3 x 4 numbers"
    try:
        pose = torch.tensor(matrix, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(expected) from None
    if tuple(pose.shape) not in ((4, 4), (3, 4)):
        raise ValueError(f"{expected}, found shape {tuple(pose.shape)}")
    if not pose.to(torch.float32).isfinite().all():
        raise ValueError("transform_matrix has values that are not finite; export the camera again")
    if len(pose) == 4 and not torch.allclose(pose[3], pose.new_tensor([0, 0, 0, 1]), atol=TOLERANCE):
        raise ValueError("the last row of transform_matrix must be 0, 0, 0, 1 (is the matrix transposed?)")
    rotation = pose[:3, :3]
    if not torch.allclose(rotation.T @ rotation, torch.eye(3, dtype=pose.dtype), atol=TOLERANCE):
        raise ValueError("the columns of transform_matrix are not orthonormal; remove scale and shear from the camera")
    if torch.linalg.det(rotation) < 0:
        raise ValueError("transform_matrix mirrors (determinant -1); export the camera without a flipped axis")
    return pose[:3].to(torch.float32)


def focal(frame: dict) -> float | None:
    """Focal length in units of the image's width; None where the file does not give it.

    Raises ValueError for an impossible focal length, pixels that are not square, and an optical axis far from the centre.
    """
    fl_x, fl_y, shift = _number(frame.get("fl_x")), _number(frame.get("fl_y")), _off_centre(frame)
    if fl_x > 0 and abs(fl_y / fl_x - 1) > SMALL:
        raise ValueError(f"fl_x {fl_x:g} and fl_y {fl_y:g} differ, but pixels must be square; resize the images")
    if shift > LARGE:
        raise ValueError(f"cx, cy are {shift:.1%} of the width off the image's centre; crop the images around the optical axis")
    if "camera_angle_x" in frame:
        angle = _number(frame["camera_angle_x"])
        if 0 < angle < math.pi:
            return 0.5 / math.tan(angle / 2)
        raise ValueError(f"camera_angle_x must lie between 0 and pi radians, found {shown(frame['camera_angle_x'])}")
    if "fl_x" not in frame:
        return None
    width = _number(frame.get("w"))
    if fl_x > 0 and width > 0:
        return fl_x / width
    raise ValueError(f"fl_x and w must be pixels above 0, found {shown(frame['fl_x'])} and {shown(frame.get('w'))}")


def ignored_keys(frame: dict) -> set[str]:
    """The keys of a frame that describe its camera but are not used."""
    distorted = {key for key in DISTORTIONS if abs(_number(frame.get(key))) > FAINT_DISTORTION}
    return distorted | ({"cx", "cy"} if SMALL < _off_centre(frame) <= LARGE else set())


def _off_centre(frame: dict) -> float:
    """Distance of the optical axis from the image's centre, in units of its width; 0 where the file does not give it."""
    width, height = _number(frame.get("w")), _number(frame.get("h"))
    if not width > 0:
        return 0.0
    shifts = abs(_number(frame.get("cx")) - width / 2), abs(_number(frame.get("cy")) - height / 2)
    return max((shift / width for shift in shifts if math.isfinite(shift)), default=0.0)


def _number(value: Any) -> float:
    """A number of the file, NaN for anything else; JSON has integers that do not fit in a float."""
    if not isinstance(value, (int, float)) or not abs(value) < LARGEST_NUMBER:
        return math.nan
    return float(value)


def _depth_faults(items: list[Item], where: str, data: DataConfig) -> list[Fault]:
    """Faults of cameras that look away from the origin, where the object is, or whose near and far do not enclose it."""
    items = [item for item in items if item.pose_c2w is not None]
    if not items:
        return []
    pose_c2w = torch.stack([item.pose_c2w for item in items])
    depth = (pose_c2w[:, :, 2] * pose_c2w[:, :, 3]).sum(dim=1)  # of the origin, planar
    away = (
        f"its camera in {TRANSFORMS} looks away from the origin, where the object is expected; a camera looks along its own -z "
        "(for poses of OpenCV or COLMAP negate the second and third column)"
    )
    faults = [Fault(str(items[i].file), away, of_image=True) for i in (depth <= 0).nonzero()[:, 0].tolist()]
    near, far = depth_bounds(pose_c2w, data)
    outside = (depth > 0) & ((depth < near[:, 0]) | (depth > far[:, 0]))
    if outside.any():
        margin, ahead = (data.far - data.near) / 2, depth[depth > 0]
        low, high = ahead.min().item(), ahead.max().item()
        example = items[int(outside.nonzero()[0])].file.name
        problem = (
            f"the cameras are {low:.3g} to {high:.3g} from the origin, and for {int(outside.sum())} of {len(items)}, such as "
            f"that of {example}, it is not between data.near {data.near:g} and data.far {data.far:g}; "
            f"set data.radius: {(low + high) / 2:.4g}, data.near: {max(low - margin, low / 10):.4g} and "
            f"data.far: {high + margin:.4g}"
        )
        faults.append(Fault(where, problem))
    return faults


def _warn_of_radius(items: list[Item], where: str, data: DataConfig) -> None:
    """Warn where data.radius, used for videos and samples, is not the distance of the images' cameras."""
    distances = [item.pose_c2w[:, 3].norm().item() for item in items if item.pose_c2w is not None]
    if not distances:
        return
    (low, high), (nearest, farthest) = data.radius, (min(distances), max(distances))
    if nearest < low * (1 - RADIUS_TOLERANCE) or farthest > high * (1 + RADIUS_TOLERANCE):
        log.warning(
            "%s: the cameras are %.4g to %.4g from the origin, but data.radius, used for samples and videos, is %s; set "
            "data.radius: %.4g",
            *(where, nearest, farthest, f"{low:g}" if low == high else f"{low:g} to {high:g}", (nearest + farthest) / 2),
        )
