"""Cameras of a COLMAP model, as text or binary: cameras and images (https://colmap.github.io/format.html).

An image has the rotation (a quaternion, real part first) and the translation that take the world to its camera, whose x is
right, y down and z ahead. Photographs lie in `images` beside the model's folder, in `images` of the class's folder, or in
that folder itself.
"""

import logging
import math
import struct
from pathlib import Path
from typing import NamedTuple

from graf.config.strict import one_line
from graf.data.cameras.corrections import from_opencv
from graf.data.folders import Fault, Item, camera_files
from graf.data.labels.intrinsics import STRONG_DISTORTION, UNDISTORT, Lens, distortions, lens
from graf.data.labels.transforms import image_file

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

MODELS = {  # their number in binary files, and their parameters
    "SIMPLE_PINHOLE": (0, ("f", "cx", "cy")),
    "PINHOLE": (1, ("fl_x", "fl_y", "cx", "cy")),
    "SIMPLE_RADIAL": (2, ("f", "cx", "cy", "k1")),
    "RADIAL": (3, ("f", "cx", "cy", "k1", "k2")),
    "OPENCV": (4, ("fl_x", "fl_y", "cx", "cy", "k1", "k2", "p1", "p2")),
}
BY_NUMBER = {number: name for name, (number, _) in MODELS.items()}

log = logging.getLogger("graf")


class Camera(NamedTuple):
    """A camera of the model: its kind, the size of its photographs in pixels, and its parameters in COLMAP's order."""

    model: str
    width: float
    height: float
    parameters: list[float]


class Photograph(NamedTuple):
    """An image of the model: rotation (3, 3) and translation (3,) from the world to its camera."""

    name: str
    camera: int
    rotation: np.ndarray
    translation: np.ndarray


def read_colmap(folder: Path, class_index: int) -> tuple[list[Item], list[Fault]]:
    """The images of the COLMAP model in or below a folder with their cameras, and every fault of it."""
    cameras_file, images_file = camera_files(folder, "colmap")
    try:
        cameras = _read(cameras_file, _cameras_of_text, _cameras_of_binary)
        photographs = _read(images_file, _photographs_of_text, _photographs_of_binary)
    except ValueError as error:
        return [], [Fault(str(cameras_file.parent), str(error))]
    try:
        lenses = {number: camera_lens(camera) for number, camera in cameras.items()}
    except ValueError as error:
        return [], [Fault(str(cameras_file), str(error))]
    if not photographs:
        return [], [Fault(str(images_file), "has no images; reconstruct the photographs with COLMAP first")]
    items, faults = [], []
    model = cameras_file.parent
    places = [model.parent / "images", folder / "images"] if model != folder else [folder / "images"]
    images = next((place for place in places if place.is_dir()), folder)
    for photograph in sorted(photographs, key=lambda photograph: photograph.name):
        try:
            image, pose_c2w = image_file(images, photograph.name), pose_of(photograph)
            if not pose_c2w.isfinite().all():
                raise ValueError("its pose is not finite; export the model again")
            if photograph.camera not in lenses:
                raise ValueError(f"its camera {photograph.camera} is not in {cameras_file.name}")
            found = lenses[photograph.camera]
        except ValueError as error:
            faults.append(Fault(f"{images_file}: {one_line(photograph.name)}", str(error), of_image=True))
            continue
        items.append(Item(image, class_index, pose_c2w=pose_c2w, **found._asdict()))
    return items, faults


def pose_of(photograph: Photograph) -> Tensor:
    """pose_c2w (3, 4) in the suite's axes of a photograph."""
    rotation, translation = photograph.rotation, photograph.translation
    pose = np.concatenate([rotation.T, (-rotation.T @ translation)[:, None]], axis=1)
    return from_opencv(torch.from_numpy(pose)).to(torch.float32)


def camera_lens(camera: Camera) -> Lens:
    """The lens of a camera. Raises ValueError for a model that is no pinhole, and for strong distortion."""
    model, width, height, parameters = camera
    if model not in MODELS:
        raise ValueError(f"a camera's model is {model}, which bends straight lines; {UNDISTORT}")
    names = MODELS[model][1]
    if len(parameters) != len(names) or not all(map(math.isfinite, parameters)):
        wanted = f"{len(names)} parameters ({', '.join(names)})"
        raise ValueError(f"a {model} camera has {wanted}, found {len(parameters)}; export the model again")
    frame = dict(zip(names, parameters, strict=True)) | {"w": width, "h": height}
    frame |= {"fl_x": frame["f"], "fl_y": frame["f"]} if "f" in frame else {}
    bends = sorted(distortions(frame))
    if strong := [key for key in bends if abs(frame[key]) > STRONG_DISTORTION]:
        raise ValueError(f"a {model} camera has {strong[0]} {frame[strong[0]]:g}, which bends straight lines; {UNDISTORT}")
    if bends:
        log.warning("COLMAP: ignoring %s; images are taken as undistorted, or %s", ", ".join(bends), UNDISTORT)
    return lens(frame)


def _read(file: Path, of_text, of_binary):
    """A file's content, by either reader. Raises ValueError, with the file, for one that is damaged or of another kind."""
    try:
        if file.suffix == ".txt":
            lines = file.read_text(encoding="utf-8").splitlines()
            return of_text([line for line in lines if not line.startswith("#")])
        return of_binary(file.read_bytes())
    except (OSError, UnicodeDecodeError, struct.error, IndexError, KeyError, ValueError) as error:
        reason = one_line(str(getattr(error, "strerror", None) or error))
        raise ValueError(f"{file.name} cannot be read as COLMAP's ({reason}); export the model again") from None


def _cameras_of_text(lines: list[str]) -> dict[int, Camera]:
    rows = [line.split() for line in lines if line.strip()]
    return {int(n): Camera(model, float(w), float(h), list(map(float, rest))) for n, model, w, h, *rest in rows}


def _photographs_of_text(lines: list[str]) -> list[Photograph]:
    """Every image has a line, and one of its points, which may be empty."""
    rows = [line.strip().split(maxsplit=9) for line in lines[::2] if line.strip()]
    return [_photograph(row[9], int(row[8]), list(map(float, row[1:8]))) for row in rows]


def _photograph(name: str, camera: int, numbers: list[float]) -> Photograph:
    w, x, y, z, *translation = numbers
    return Photograph(name, camera, Rotation.from_quat([x, y, z, w]).as_matrix(), np.array(translation))


def _cameras_of_binary(content: bytes) -> dict[int, Camera]:
    """All cameras, or the first one of an unknown kind alone, whose length is unknown."""
    (n,), at, cameras = struct.unpack_from("<Q", content), 8, {}
    for _ in range(n):
        camera, model, width, height = struct.unpack_from("<iiQQ", content, at)
        if model not in BY_NUMBER:
            return {camera: Camera(f"number {model}", width, height, [])}
        n_parameters = len(MODELS[BY_NUMBER[model]][1])
        parameters = list(struct.unpack_from(f"<{n_parameters}d", content, at + 24))
        cameras[camera] = Camera(BY_NUMBER[model], width, height, parameters)
        at += 24 + 8 * n_parameters
    return cameras


def _photographs_of_binary(content: bytes) -> list[Photograph]:
    (n,), at, photographs = struct.unpack_from("<Q", content), 8, []
    for _ in range(n):
        _, *numbers, camera = struct.unpack_from("<i7di", content, at)
        end = content.index(b"\0", at + 64)
        (n_points,) = struct.unpack_from("<Q", content, end + 1)
        photographs.append(_photograph(content[at + 64 : end].decode("utf-8"), camera, numbers))
        at = end + 9 + 24 * n_points  # x, y and the number of a point
    return photographs
