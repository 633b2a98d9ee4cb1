"""Write a transforms.json for photographs without cameras, with the poses that a pose estimator predicts.

    python tools/label_poses.py photos --estimator results/pose

The file is written beside the photographs, one in each class folder, in the format that train.py, nerfstudio and instant-ngp
read. The cameras are in the world frame that the estimator was trained in, with its data.fov. docs/cameras.md says how accurate
they are.
"""

import argparse
import dataclasses
from pathlib import Path

from graf.camera import azimuth_and_v, elevation_of_v
from graf.config import Config, DataConfig
from graf.config.reading import as_yaml
from graf.data.decoding import EXTENSIONS, upright_size
from graf.data.folders import NAME_YOURS, TRANSFORMS, Item, camera_file, camera_files, find_folders
from graf.data.labels.placement import is_out_of_reach
from graf.data.validation import raise_or_skip
from graf.errors import GrafError
from graf.inversion.targets import read_target
from graf.pose.accuracy import accuracy_warning, cameras_of, confidence_of
from graf.pose.labelling import transforms_of
from graf.pose.loading import load_estimator
from graf.runtime.command_line import Parser, as_typed
from graf.runtime.console import log, run_script
from graf.runtime.device import choose_device
from graf.runtime.files import write_text

import torch
from torch import Tensor

CAMERA_KEYS = ("background", "near", "far", "radius", "fov", "orthographic", "center_crop", "masks")  # that training needs too
FEWEST_VALIDATED = 10  # images that tell an estimator's error
SHOWN = 10  # photographs whose cameras, or faults, are logged


def main() -> int:
    args = parser().parse_args()
    if not args.photos.is_dir():
        raise GrafError(f"{args.photos}: no such folder; name the folder of the photographs")
    estimator = load_estimator(args.estimator, choose_device(args.device))
    data = estimator.config.data
    homes = photographs_by_home(args.photos, data)
    for file in (file for home in homes for file in camera_files(home, "transforms")):
        if not args.overwrite:
            raise GrafError(f"{file}: exists already; --overwrite replaces it with the estimator's cameras")
    if warning := accuracy_warning(estimator):
        log.warning("%s", warning)
    elif (n_validated := len(estimator.validation["target_pose"])) < FEWEST_VALIDATED:
        log.warning("%s: its error was measured on %d images only, and may be larger", estimator.checkpoint, n_validated)
    paths = [path for inside in homes.values() for path in inside]
    images = read_all(paths, data)
    poses, confidence = cameras_of(estimator, images), confidence_of(estimator, images)
    poses = within_reach(poses, paths, data)
    sizes = [upright_size(path) for path in paths]
    azimuth_deg, v = azimuth_and_v(poses)
    for path, azimuth, height in list(zip(paths, azimuth_deg.tolist(), v.tolist(), strict=True))[:SHOWN]:
        log.info("%s: azimuth %.0f, elevation %.0f degrees", path.relative_to(args.photos), azimuth, elevation_of_v(height))
    start = 0
    for home, inside in homes.items():
        rows = slice(start, start := start + len(inside))
        names = [path.relative_to(home).as_posix() for path in inside]
        sure = None if confidence is None else confidence[rows]
        write_text(home / TRANSFORMS, transforms_of(names, sizes[rows], poses[rows], data, confidence=sure))
        log.info("%s: the cameras of %d photographs", home / TRANSFORMS, len(inside))
    check = ["python", "tools/validate_data.py", "--data_dir", args.photos]
    if changed := settings(data, len(paths)):
        check += ["--set", *changed]
    log.info("%s draws them", as_typed(*check))
    return 0


def within_reach(poses: Tensor, paths: list[Path], data: DataConfig) -> Tensor:
    """Cameras (N, 3, 4) of which those at whose distance nothing would be seen have the median distance of the others; the log
    names one. Where most are such, the estimator has its reasons, and all stay."""
    outside = is_out_of_reach([Item(path, 0, pose_c2w=pose) for path, pose in zip(paths, poses, strict=True)], data)
    if not outside.any() or 2 * outside.sum() >= len(paths):
        return poses
    distances, moved = poses[..., 3].norm(dim=-1), poses.clone()
    usual, first = distances[~outside].median(), int(outside.nonzero()[0])
    log.warning(
        "%d of %d cameras were estimated at a distance from which nothing is seen, such as %.3g of %s; they get that of the "
        "others, %.3g",
        *(int(outside.sum()), len(paths), distances[first], paths[first], usual),
    )
    moved[outside, :, 3] *= (usual / distances[outside])[:, None]
    return moved


def photographs_by_home(photos: Path, data: DataConfig) -> dict[Path, list[Path]]:
    """The images in a folder and below it as training finds them, by the folder of their transforms.json: their own, or the
    highest above it that has images or cameras too, since a file of cameras hides what is below it. Raises DataError."""
    found = find_folders(dataclasses.replace(data, type="images", datadir=(str(photos),), labels="none"))
    if not found.folders and all(fault.problem.endswith(NAME_YOURS) for fault in found.faults):
        raise GrafError(
            f"{photos}: no images ({', '.join(EXTENSIONS)}) in the folder or below it; name the photographs' folder"
        )
    raise_or_skip(found.faults, data)
    with_images = {folder.path for folder in found.folders}
    homes: dict[Path, list[Path]] = {}
    for folder in found.folders:
        around = [path for path in (*reversed(folder.path.parents), folder.path) if path.is_relative_to(photos)]
        home = next(path for path in around if path in with_images or camera_file(path, "auto"))
        homes.setdefault(home, []).extend(folder.images)
    for home, inside in homes.items():
        if len(folders := {path.parent for path in inside}) > 1:
            log.warning(
                "%s: its %s names the images of %d folders, which become one class; to keep one class per folder, leave only "
                "folders in it: move its own images into one, and its files of cameras away",
                *(home, TRANSFORMS, len(folders)),
            )
    return homes


def read_all(paths: list[Path], data: DataConfig) -> Tensor:
    """The photographs (N, 3, H, W), as the estimator sees them. Raises GrafError with all that cannot be read."""
    images, problems = [], []
    for path in paths:
        try:
            images.append(read_target(path, data))
        except GrafError as error:
            problems.append(str(error))
    if problems:
        more = [f"... and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise GrafError("\n".join([*problems[:SHOWN], *more]))
    return torch.stack(images)


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("photos", type=Path, metavar="PHOTOS", help="a folder of photographs, or of one folder per class")
    p.add_argument("--estimator", type=Path, required=True, metavar="RUN", help="a run of train_pose.py, or its checkpoint")
    p.add_argument("--overwrite", action="store_true", help="replace an existing transforms.json")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    return p


def settings(data: DataConfig, n_images: int) -> list[str]:
    """The --set values to train on the photographs: the estimator's camera settings that differ from the defaults, and a
    smaller batch size where there are few images."""
    default = Config()
    fields = [f for f in dataclasses.fields(DataConfig) if f.name in CAMERA_KEYS and getattr(data, f.name) != f.default]
    found = [f"data.{f.name}={as_yaml(getattr(data, f.name), f.metadata['words'])}" for f in fields]
    if n_images < default.training.batch_size:
        found.append(f"training.batch_size={n_images}")
    return found


if __name__ == "__main__":
    run_script(main)
