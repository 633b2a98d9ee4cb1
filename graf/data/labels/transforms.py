"""Cameras of a transforms.json, as NeRF-Blender and instant-ngp write it.

    {"camera_angle_x": 0.56, "frames": [{"file_path": "images/0", "transform_matrix": [[...], ...]}, ...]}

The horizontal field of view is camera_angle_x in radians, or fl_x and w in pixels; a frame may have its own. The matrix maps
camera to world, in the project's own convention: z up, looking along -z. Cameras are pinholes with square pixels; a frame may
have its own focal length and an optical axis off the centre (cx, cy). `object` names what a frame shows, mask_path its mask.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

from graf.config.strict import one_line, shown
from graf.data.decoding import EXTENSIONS
from graf.data.disk import as_listed
from graf.data.folders import Fault, Item, camera_files, is_within
from graf.data.labels.intrinsics import Lens, distortions, lens

import torch
from torch import Tensor

TOLERANCE = 1e-3  # of rotations: files carry few decimals
FOCAL_KEYS = ("camera_angle_x", "camera_angle_y", "fl_x", "fl_y")
LARGEST_FILE = 2**28  # characters

log = logging.getLogger("graf")


def read_transforms(folder: Path, class_index: int) -> tuple[list[Item], list[Fault]]:
    """The images named in a folder's transforms.json, or in those of its splits, with their cameras, and every fault of it.
    What two splits name is taken from the first."""
    items, faults = {}, []
    for file in camera_files(folder, "transforms"):
        found, wrong = _read_file(file, class_index)
        items |= {item.file: item for item in found if item.file not in items}
        faults += wrong
    return list(items.values()), faults


def with_shared(content: dict, frame: dict) -> dict:
    """A frame with what its file says of all frames; its own focal length comes before the file's lengths and angles."""
    has_own = "fl_x" in frame or "camera_angle_x" in frame
    of_others = {"frames", *(FOCAL_KEYS if has_own else ())}
    return {key: value for key, value in content.items() if key not in of_others} | frame


def _read_file(file: Path, class_index: int) -> tuple[list[Item], list[Fault]]:
    folder = file.parent
    try:
        content = read_json(file)
    except ValueError as error:
        return [], [Fault(str(file), str(error))]
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames:
        return [], [Fault(str(file), "has no frames; expected a list of file_path and transform_matrix")]
    items, faults, ignored, sizeless = [], [], set(), set()
    frame_of: dict[Path, int] = {}
    for number, frame in enumerate(frames):
        if not isinstance(frame, dict):
            faults.append(Fault(f"{file}: frame {number}", "expected file_path and transform_matrix", of_image=True))
            continue
        image, pose_c2w, found, where = None, None, Lens(None), f"{file}: frame {number} ({shown(frame.get('file_path'))})"
        try:
            image = image_file(folder, frame.get("file_path"))
            if frame_of.setdefault(image, number) != number:
                problem = f"names the image of frame {frame_of[image]} again; remove one of them"
                faults.append(Fault(where, problem, of_image=True))
                continue
        except ValueError as error:
            faults.append(Fault(where, str(error), of_image=True))
        intrinsics = with_shared(content, frame)
        try:
            pose_c2w = rigid_pose(frame.get("transform_matrix"))
        except ValueError as error:
            faults.append(Fault(str(image or where), f"in {file.name}: {error}", of_image=True))
        try:
            found = lens(intrinsics)
            ignored |= distortions(intrinsics)
        except ValueError as error:
            faults.append(Fault(str(image or where), f"in {file.name}: {error}", of_image=True))
        sizeless |= {axis for axis, side in (("cx", "w"), ("cy", "h")) if axis in intrinsics and side not in intrinsics}
        if image:
            name, mask, confidence = frame.get("object"), frame.get("mask_path"), frame.get("confidence")
            items.append(
                Item(
                    image,
                    class_index,
                    pose_c2w=pose_c2w,
                    **found._asdict(),
                    object=f"{folder.name}/{name}" if isinstance(name, str | int) else None,
                    mask=_mask_file(folder, mask, where, faults) if mask is not None else None,
                    confidence=confidence if isinstance(confidence, int | float) else None,
                )
            )
    if ignored:
        keys = ", ".join(sorted(ignored))
        log.warning("%s: ignoring %s; images are taken as undistorted", file, keys)
    if sizeless:
        keys = " and ".join(sorted(sizeless))
        log.warning("%s: ignoring %s, which count in pixels of w and h; add the size that the images had", file, keys)
    return items, faults


def _mask_file(folder: Path, mask_path: Any, where: str, faults: list[Fault]) -> Path | None:
    try:
        return image_file(folder, mask_path)
    except ValueError as error:
        faults.append(Fault(where, f"mask_path: {error}", of_image=True))
        return None


def read_json(file: Path) -> Any:
    """The file's content. Raises ValueError, with what to do, where it is not a file, too large, or no JSON."""
    try:
        if not file.is_file():
            raise ValueError("no file")
        with open(file, encoding="utf-8-sig") as stream:  # some editors of Windows write a mark first
            text = stream.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ValueError("too long")
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        reason = one_line(str(getattr(error, "strerror", None) or error))
        raise ValueError(f"not readable as JSON ({reason}); correct or export it again") from None


def image_file(folder: Path, file_path: Any, extensions: tuple[str, ...] = EXTENSIONS, links_may_leave: bool = False) -> Path:
    """The image of a frame, whose extension may be left out, in or below the folder. Raises ValueError.

    links_may_leave: the name has to lie in the folder, and may be a link to elsewhere.
    """
    if not isinstance(file_path, str) or not file_path.strip() or "\0" in file_path:
        raise ValueError("file_path must name an image beside the file")
    for name in dict.fromkeys((file_path, file_path.replace("\\", "/"))):  # Windows
        for suffix in ("", *extensions, *map(str.upper, extensions)):
            candidate = folder / f"{name}{suffix}"
            if os.path.isfile(candidate):  # no error for a name that is too long
                return as_listed(_inside(candidate, folder, links_may_leave), folder)
    _inside(folder / name, folder, links_may_leave)
    raise ValueError("the file of this frame is missing; put it back or remove the frame")


def _inside(path: Path, folder: Path, links_may_leave: bool) -> Path:
    """A path, by its name below the folder. Raises ValueError for one outside, be it by a link unless links may leave it."""
    absolute, home = os.path.abspath(path), os.path.abspath(folder)
    if links_may_leave and Path(absolute).is_relative_to(home):
        return folder / os.path.relpath(absolute, home)
    if not is_within(path, folder):
        raise ValueError("file_path leaves the folder; move the image into it and name it relative to it")
    if path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts:
        return path
    return folder / os.path.relpath(os.path.realpath(path), os.path.realpath(folder))


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
