"""Images to be inverted: their files, pixels, and the cameras of their labels."""

import dataclasses
import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path

from graf.camera import focal_length
from graf.config import DataConfig
from graf.config.name_pattern import name_pattern
from graf.data.cameras.corrections import corrected_cameras
from graf.data.decoding import EXTENSIONS, Frame, read_image, square_side, upright_size
from graf.data.folders import Folder, camera_file, camera_files, is_image, name_of_cameras
from graf.data.labels import items_by_files
from graf.data.labels.framing import fov_of_square
from graf.data.labels.intrinsics import problem_of_shape
from graf.data.labels.names import items_by_name, v_flag
from graf.data.labels.placement import depth_faults
from graf.data.masks import find_masks
from graf.data.views import edge_pixels
from graf.errors import GrafError
from graf.runtime.command_line import as_typed

import torch
from torch import Tensor

log = logging.getLogger("graf")

BACKGROUND_TOLERANCE, BACKGROUND_SHARE = 0.2, 0.5  # of 2, between black and white; of an image's edge
FOCAL_TOLERANCE = 0.01  # largest relative difference in focal length for an image's camera to be used
TIMESTAMP = re.compile(r"\d{8}_\d{6}")  # as a telephone names a photograph
AXIS_TOLERANCE = 0.01  # of the image's width, between its centre and its optical axis, likewise, beside the half pixel of ours


def target_files(paths: Sequence[Path | str], data: DataConfig) -> list[Path]:
    """The files named, with the images of each folder sorted by name, without masks of other images among them.

    Raises GrafError for a folder without images.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        inside = _photographs(path, data) if path.is_dir() else [path]
        if not inside:
            raise GrafError(f"{path}: this folder holds no images ({', '.join(EXTENSIONS)}); name images, or their folder")
        files += inside
    masks = {mask.resolve() for mask in find_masks(files, data.masks).of.values()}  # photos/*.png names them too
    if named := [file.name for file in files if file.resolve() in masks]:
        log.info("left out, as masks of other images: %s", ", ".join(named))
    return [file for file in files if file.resolve() not in masks]


def _photographs(folder: Path, data: DataConfig) -> list[Path]:
    images = sorted(file for file in folder.iterdir() if is_image(file.name))
    masks = find_masks(images, data.masks).files
    return [file for file in images if file not in masks]


def read_target(path: Path | str, data: DataConfig) -> Tensor:
    """The image as (3, imsize, imsize) in [-1, 1], prepared as training images are, and cut out by its mask if it has one.

    Raises GrafError for a file that cannot be read or is smaller than the model's images.
    """
    try:
        mask = find_masks([Path(path)], data.masks).of.get(Path(path))
        image = read_image(path, dataclasses.replace(data, alpha="ignore"), Frame(mask=mask))
        side = square_side(*upright_size(path), data.center_crop)
    except ValueError as error:
        raise GrafError(f"{path}: {str(error).partition(';')[0]}; give another image") from None
    if side < data.imsize:
        raise GrafError(f"{path}: {side} pixels per side, the model's images have {data.imsize}; give a larger image")
    return image / 127.5 - 1


def warn_of_backgrounds(paths: Sequence[Path | str], targets: Tensor, data: DataConfig) -> None:
    """Warn of targets (N, 3, W, W) in [-1, 1] that have a background where the model learned from objects that are cut out."""
    if data.alpha != "rgba":
        return
    background = 2 * torch.tensor(data.background)[:, None] - 1
    for path, image in zip(paths, targets, strict=True):
        share = ((edge_pixels(image) - background).abs().amax(0) > BACKGROUND_TOLERANCE).float().mean().item()
        if share > BACKGROUND_SHARE:
            log.warning(
                "%s: %.0f %% of its edge is not data.background, and the model learned from objects that are cut out; cut this "
                "one out first: %s FOLDER",
                *(path, 100 * share, as_typed("python", "tools/prepare_photos.py", path)),
            )


def known_poses(paths: Sequence[Path | str], data: DataConfig) -> Tensor | None:
    """The cameras (N, 3, 4) of a file of cameras above the images or of their names; None unless all have one.

    As in training, the elevation in a name is a rank, here among the names in the images' folders; with fewer of them than
    data.v has, it is unknown. Raises GrafError for an azimuth or a rank that is not in the config.
    """
    paths = [Path(path) for path in paths]
    if not all(path.is_file() for path in paths):
        return None  # reading them raises the error
    if data.labels not in ("filename", "none"):
        poses = _poses_by_files(paths, data)
        if poses is not None:
            return poses
    pattern = name_pattern(data.name_pattern)
    if data.labels not in ("auto", "filename") or not all(pattern.read(path.stem) for path in paths):
        return None
    beside = [file for folder in {path.parent for path in paths} for file in folder.iterdir() if is_image(file.name)]
    named = sorted({*paths, *(file for file in beside if pattern.read(file.stem))})
    items, _, faults = items_by_name([Folder(paths[0].parent, tuple(named))], data)
    for fault in (fault for fault in faults if Path(fault.where) in paths):
        if TIMESTAMP.fullmatch(Path(fault.where).stem):
            log.info("%s: named by date and time, so the cameras are searched for", fault.where)
            return None
        raise GrafError(f"{fault.where}: {fault.problem}")
    for fault in faults:
        if not fault.of_image:
            log.warning("%s: the cameras are searched for; %s %s", paths[0].parent, fault.where, fault.problem)
            return None
    n_known = len({item.elevation_index for item in items})
    if pattern.elevation == "elevation" and n_known < len(data.rings):
        log.warning(
            "%s: names with %d elevations, where data.v has %d, so it is unknown which these are; the cameras are searched for "
            "(to use their labels, put the images beside those of a whole set; if these are all, name each elevation: %s)",
            *(paths[0].parent, n_known, len(data.rings), v_flag(data.rings, n_known)),
        )
        return None
    poses = {item.file: item.pose_c2w for item in corrected_cameras(items, data)}
    return torch.stack([poses[path] for path in paths])


def _poses_by_files(paths: list[Path], data: DataConfig) -> Tensor | None:
    """The cameras (N, 3, 4) in the nearest file of cameras above each image, where they have the config's field of view."""
    homes = [next((folder for folder in path.absolute().parents if camera_file(folder, data.labels)), None) for path in paths]
    sizes = [upright_size(path) for path in paths]
    if None in homes or not all(size and min(size) >= data.center_crop for size in sizes):
        return None  # reading an image without a size, or smaller than its crop, raises the error
    folders = {home: Folder(home, (), camera_file(home, data.labels)) for home in homes}
    items, faults = [], []
    for folder in folders.values():
        found, wrong, _ = items_by_files([folder], folder.cameras, data)
        items += corrected_cameras(found, data)
        faults += wrong
    found = {item.file.resolve(): item for item in items}
    poses = []
    for path, home, size in zip(paths, homes, sizes, strict=True):
        item, kind = found.get(path.resolve()), folders[home].cameras
        file = name_of_cameras(home, kind)
        has_camera = item is not None and item.pose_c2w is not None
        about = {path.resolve()}
        if not has_camera and (item is not None or not items):  # the whole file is at fault
            about |= {each.resolve() for each in (file, *camera_files(home, kind))}
        own = [fault for fault in faults if Path(fault.where).resolve() in about]
        if has_camera:  # those of the file are of other images' cameras, too
            own += depth_faults({str(file): [item]}, data)
        known_faults = [f"{fault.where}: {fault.problem}" for fault in own]
        if known_faults or not has_camera:
            reason = known_faults[0] if known_faults else f"{file} has no frame of it"
        elif problem := problem_of_shape(item.size, size):
            reason = f"for it {problem.partition(';')[0]}"
        elif item.focal is not None and not math.isclose(
            item.focal * size[0], focal_length(data.fov, square_side(*size, data.center_crop)), rel_tol=FOCAL_TOLERANCE
        ):
            fov = fov_of_square(item, size, data)
            reason = f"{file} has a field of view of {fov:.2f} degrees, data.fov is {data.fov:g}"
        elif max(map(abs, item.axis)) > AXIS_TOLERANCE + 0.5 / (item.size[0] if item.size else data.imsize):
            right, down = (100 * offset for offset in item.axis)
            reason = f"{file} has its optical axis {right:.1f} % of its width right of its centre and {down:.1f} % below"
        else:
            poses.append(item.pose_c2w)
            continue
        log.warning("%s: its camera is not used, %s", path, reason)
        return None
    return torch.stack(poses)
