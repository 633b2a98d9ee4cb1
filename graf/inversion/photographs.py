"""Photographs to be inverted: their pixels, and the cameras given by their labels."""

import dataclasses
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from graf.camera import focal_length
from graf.config import DataConfig
from graf.data.decoding import EXTENSIONS, open_rgb, read_image, square_side
from graf.data.folders import LABEL, TRANSFORMS, Folder, is_image, items_by_name, v_flag
from graf.data.transforms import items_by_transforms
from graf.errors import GrafError

import torch
from torch import Tensor

log = logging.getLogger("graf")

FOCAL_TOLERANCE = 0.01  # relative difference in focal length up to which a photograph's camera is used


def photograph_files(paths: Sequence[Path | str]) -> list[Path]:
    """The named files; a folder is replaced by its images, sorted by name. Raises GrafError for a folder without any."""
    files: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(file for file in path.iterdir() if is_image(file.name)) if path.is_dir() else [path]
        if not inside:
            raise GrafError(f"{path}: this folder holds no images ({', '.join(EXTENSIONS)}); name photographs, or their folder")
        files += inside
    return files


def read_photograph(path: Path | str, data: DataConfig) -> Tensor:
    """The file as (3, imsize, imsize) in [-1, 1], prepared as the photographs of training are.

    Raises GrafError for a file that cannot be read or is smaller than the model's images.
    """
    try:
        side = square_side(*open_rgb(path, data.background).size, data.center_crop)
        image = read_image(Path(path), dataclasses.replace(data, alpha="ignore"))
    except ValueError as error:
        raise GrafError(f"{path}: {str(error).partition(';')[0]}; give another photograph") from None
    if side < data.imsize:
        raise GrafError(f"{path}: {side} pixels a side, the model's images have {data.imsize}; give a larger photograph")
    return image / 127.5 - 1


def labelled_poses(paths: Sequence[Path | str], data: DataConfig) -> Tensor | None:
    """The cameras (N, 3, 4) that a transforms.json above the photographs or the names <elevation>_<azimuth> tell, or None where
    not every photograph has one.

    As in training the elevation of a name is a rank, here that among the names in the photographs' folders; with fewer of them
    than data.v has, it is not known. Raises GrafError for an azimuth or a rank that the config does not know.
    """
    paths = [Path(path) for path in paths]
    if not all(path.is_file() for path in paths):
        return None  # which reading them will say
    if data.labels in ("auto", "transforms"):
        poses = _poses_by_transforms(paths, data)
        if poses is not None:
            return poses
    if data.labels not in ("auto", "filename") or not all(LABEL.fullmatch(path.stem) for path in paths):
        return None
    beside = [file for folder in {path.parent for path in paths} for file in folder.iterdir() if is_image(file.name)]
    named = sorted({*paths, *(file for file in beside if LABEL.fullmatch(file.stem))})
    items, faults = items_by_name([Folder(paths[0].parent, tuple(named), has_transforms=False)], data)
    for fault in faults:
        if Path(fault.where) in paths:
            raise GrafError(f"{fault.where}: {fault.problem}")
    n_known = len({item.elevation_index for item in items})
    if n_known < len(data.v):
        log.warning(
            "%s: the names tell %d elevations, data.v %d, so that it is not known which they are; the cameras are searched for "
            "(to have theirs put the photographs among those of a whole set; if these are all of it, say what each is: %s)",
            *(paths[0].parent, n_known, len(data.v), v_flag(data.v, n_known)),
        )
        return None
    poses = {item.file: item.pose_c2w for item in items}
    return torch.stack([poses[path] for path in paths])


def _poses_by_transforms(paths: list[Path], data: DataConfig) -> Tensor | None:
    """The cameras (N, 3, 4) in the transforms.json next above each photograph, where they have the config's field of view."""
    homes = [next((folder for folder in path.parents if (folder / TRANSFORMS).is_file()), None) for path in paths]
    if None in homes:
        return None
    items, faults = items_by_transforms([Folder(home, (), has_transforms=True) for home in dict.fromkeys(homes)], data)
    wanted = focal_length(data.fov, 1)
    found = {item.file.resolve(): item for item in items}
    poses = []
    for path, home in zip(paths, homes, strict=True):
        item = found.get(path.resolve())
        if item is None or item.pose_c2w is None:
            about = {path.resolve()} if items else {path.resolve(), (home / TRANSFORMS).resolve()}
            told = [f"{fault.where}: {fault.problem}" for fault in faults if Path(fault.where).resolve() in about]
            reason = told[0] if told else f"{home / TRANSFORMS} has no frame of it"
        elif item.focal is not None and not math.isclose(item.focal, wanted, rel_tol=FOCAL_TOLERANCE):
            fov = math.degrees(2 * math.atan(0.5 / item.focal))
            reason = f"{home / TRANSFORMS} tells a field of view of {fov:.2f} degrees, data.fov is {data.fov:g}"
        else:
            poses.append(item.pose_c2w)
            continue
        log.warning("%s: its camera is not taken, %s", path, reason)
        return None
    return torch.stack(poses)
