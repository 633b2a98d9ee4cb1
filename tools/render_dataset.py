"""Render 3D models into a set of images with known cameras, ready to train on.

    python tools/render_dataset.py models --match '*chair*' --out data/chairs
    python train.py --config data/chairs/config.yaml --use_amp

Models are OBJ, GLB, glTF, OFF, PLY or STL files, or folders to search for them, with their colours and textures. Each is scaled
to a bounding box of diagonal 2 around the origin, z up. The set has RGBA images, their cameras, config.yaml, and LICENSES with
every source and the licence texts found beside it. After an interruption the same command continues the set.

Exit status 0: models were rendered; those that could not be rendered are listed. 2: no model could be rendered.
"""

import argparse
import fnmatch
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graf.camera import poses_at, sample_poses, v_of_elevation
from graf.config import Config, config_from_dict, config_to_dict, load_config, merge
from graf.config.checks import PATCH_SIZES
from graf.data.advice.warnings import with_steps
from graf.data.folders import TRANSFORMS
from graf.errors import GrafError
from graf.rng import seeded_rng
from graf.runtime.command_line import Parser, as_typed, whole_number
from graf.runtime.console import log, progress, run_script
from graf.runtime.files import claim_folder, file_sha256, whole_file, write_text, write_unless_changed
from meshes.reading import SUFFIXES, read_mesh
from meshes.views import MeshRenderer

import torch
import yaml
from PIL import Image
from torch import Tensor

LICENCE_NAME = re.compile(r"licen[cs]e|copying|copyright|credit|attribution|author|notice|readme", re.IGNORECASE)
TEXT_SUFFIXES = ("", ".txt", ".md", ".rst")
LARGEST_LICENCE = 200_000  # bytes


class View(NamedTuple):
    """An image to render: its file, relative to the data set's folder, and its camera (3, 4)."""

    file: str
    pose_c2w: Tensor


class Source(NamedTuple):
    """An object's name in the set, the file that it comes from, and the folder that the user named, or the file's own."""

    name: str
    file: Path
    root: Path


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("meshes", nargs="+", type=Path, metavar="MESHES", help="files, or folders to search")
    p.add_argument("--out", required=True, type=Path, help="folder to write the data set to")
    p.add_argument("--match", default="*", metavar="PATTERN", help="only files whose path matches, e.g. '*chair*'")
    p.add_argument(
        "--labels",
        choices=("transforms", "filename"),
        default="transforms",
        help="transforms (default): random cameras in one transforms.json; filename: one folder and class per object, and "
        "images named <elevation>_<azimuth>.png, evenly around the object",
    )
    p.add_argument(
        "--views", type=whole_number, default=24, help="images per object; with --labels filename: per elevation (default 24)"
    )
    p.add_argument("--resolution", type=whole_number, default=64, help="pixels per side (default 64)")
    p.add_argument("--fov", type=float, default=32.0, help="field of view, degrees (default 32)")
    p.add_argument("--radius", type=float, default=3.6, help="distance of the camera; objects are 2 across (default 3.6)")
    p.add_argument(
        "--elevations",
        nargs="+",
        type=float,
        default=[5.0, 20.0, 35.0],
        metavar="DEGREES",
        help="degrees above the horizon: one ring of cameras at each (filename), or random ones between the lowest and the "
        "highest (transforms) (default 5 20 35)",
    )
    p.add_argument("--up", choices=("y", "z"), default="y", help="axis of the models that points up (default y)")
    p.add_argument("--seed", type=whole_number, default=0, help="seed of the random cameras")
    return p


def main() -> int:
    arguments = parser().parse_args()
    layer = config_layer(arguments)
    where = "the flags, as a config"
    config = config_from_dict(merge(config_to_dict(load_config()), layer, where), where)
    sources = find_meshes(arguments.meshes, arguments.match)
    renderer = MeshRenderer(config.data)
    settings = {name: value for name, value in vars(arguments).items() if name not in ("meshes", "out", "match")}
    settings["meshes"] = {source.name: source.file.relative_to(source.root).as_posix() for source in sources}
    settings["sha256"] = sha256 = {source.name: file_sha256(source.file) for source in sources}  # older sets have none
    claim_folder(arguments.out, in_order(settings), lambda kept, _: in_order({"sha256": sha256} | kept))
    rendered: dict[Source, list[View]] = {}
    faults = []
    for index, source in enumerate(progress(sources, desc="rendering", unit="mesh")):
        try:
            rendered[source] = render_mesh(renderer, source, views_of(source.name, index, arguments, config), arguments)
        except ValueError as error:
            faults.append(f"  {source.file}: {error}")
    if faults:
        log.warning("%d of %d meshes could not be rendered:\n%s", len(faults), len(sources), "\n".join(faults))
    if not rendered:
        return 2
    views = [view for views in rendered.values() for view in views]
    if arguments.labels == "transforms":
        frames = [{"file_path": file, "transform_matrix": [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]} for file, pose in views]
        content = {"camera_angle_x": math.radians(config.data.fov), "frames": frames}  # as NeRF-Blender has it
        write_text(arguments.out / TRANSFORMS, json.dumps(content, indent=1))
    else:
        layer["data"] |= heights_of(elevations_seen(views, arguments.elevations))
    config_file = arguments.out / "config.yaml"
    write_licences(arguments.out / "LICENSES", list(rendered))
    write_config(config_file, layer, config, len(views))
    training = as_typed("python", "train.py", "--config", config_file)
    log.info("%d images of %d meshes; train with: %s", len(views), len(rendered), training)
    return 0


def in_order(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with pairs instead of a mapping of meshes where the cameras of each depend on its place among them, so that
    a set without one of them is another set."""
    if settings["labels"] != "transforms":
        return settings
    return settings | {"meshes": [list(pair) for pair in dict(settings["meshes"]).items()]}


def config_layer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The config keys for training on the set that differ from the defaults. Raises GrafError."""
    if arguments.views < 1:
        raise GrafError(f"--views: must be at least 1, found {arguments.views}")
    if not arguments.radius > 1.01:
        raise GrafError(f"--radius: objects extend 1 from the origin, cameras must be further out; found {arguments.radius:g}")
    if not all(-90 <= elevation <= 90 for elevation in arguments.elevations):
        raise GrafError(f"--elevations: must lie between -90 and 90 degrees, found {arguments.elevations}")
    half_fov = math.radians(arguments.fov) / 2
    if math.isfinite(half_fov) and arguments.radius * math.sin(half_fov) < 0.95:  # the ball around the origin that is in view
        log.warning("with --radius %g and --fov %g objects may be cut off", arguments.radius, arguments.fov)
    return {
        "expname": arguments.out.resolve().name,
        "data": {
            "type": "images",
            "datadir": [str(arguments.out)],
            "labels": arguments.labels,
            "imsize": arguments.resolution,
            "fov": arguments.fov,
            "radius": arguments.radius,
            "near": round(arguments.radius - 1, 6),
            "far": round(arguments.radius + 1, 6),
            **heights_of(arguments.elevations),
        },
        "ray_sampler": patch_settings(arguments.resolution),
    }


def heights_of(elevations: list[float]) -> dict[str, Any]:
    """The data keys for cameras at these elevations, in degrees."""
    v = [round(v_of_elevation(elevation), 6) for elevation in sorted(set(elevations))]
    return {"v": v, "vmin": min(v), "vmax": max(v)}


def elevations_seen(views: list[View], elevations: list[float]) -> list[float]:
    """The elevations that occur in file names: in training, the rank among the names is the index in data.v."""
    named = {Path(view.file).name.split("_")[0] for view in views}
    return [elevation for elevation in elevations if f"{elevation:g}" in named]


def patch_settings(resolution: int) -> dict[str, Any]:
    """The ray_sampler keys for the largest patch that fits: the whole frame, or else anywhere in it at any scale."""
    scale = load_config().rendered_scale
    if resolution < PATCH_SIZES[0] or resolution % scale:
        raise GrafError(f"--resolution: must be a multiple of {scale} and at least {PATCH_SIZES[0]}, found {resolution}")
    patch = max(size for size in PATCH_SIZES if size <= resolution)
    rays = {"rays_per_patch": (patch // scale) ** 2}
    if patch < resolution:
        rays |= {"min_scale": patch / resolution, "random_scale": True, "random_shift": True}
    return rays


def views_of(name: str, index: int, arguments: argparse.Namespace, config: Config) -> list[View]:
    """The images to render of object number `index`."""
    if arguments.labels == "transforms":
        poses = sample_poses(arguments.views, config.data, seeded_rng(arguments.seed, index))
        return [View(f"images/{name}/{number:03d}.png", pose) for number, pose in enumerate(poses)]
    azimuths = [f"{360 * number / arguments.views:04g}" for number in range(arguments.views)]
    return [
        View(f"{name}/{elevation:g}_{azimuth}.png", poses_at(torch.tensor(float(azimuth)), torch.tensor(v), arguments.radius))
        for elevation, v in zip(sorted(set(arguments.elevations)), config.data.v, strict=True)
        for azimuth in azimuths
    ]


def render_mesh(renderer: MeshRenderer, source: Source, views: list[View], arguments: argparse.Namespace) -> list[View]:
    """Render the missing views; return the views in which something is visible. Raises ValueError for a bad mesh."""
    missing = [view for view in views if not (arguments.out / view.file).exists()]
    if missing:
        renderer.show(read_mesh(source.file, arguments.up))
    for view in missing:
        pixels = renderer.render(view.pose_c2w)
        if pixels[..., 3].any():
            with whole_file(arguments.out / view.file) as temporary:
                Image.fromarray(pixels.numpy()).save(temporary)
    seen = [view for view in views if (arguments.out / view.file).exists()]
    if not seen:
        raise ValueError("nothing of it is visible")
    return seen


def write_config(file: Path, layer: dict[str, Any], config: Config, n_images: int) -> None:
    """Write the set's config, with steps for as many images, in batches no larger than the set. A file that differs is the
    user's and stays."""
    if n_images < config.training.batch_size:
        layer = layer | {"training": {"batch_size": n_images}}
    write_unless_changed(file, yaml.safe_dump(with_steps(layer, n_images, posed=True), sort_keys=False))


def find_meshes(paths: list[Path], pattern: str) -> list[Source]:
    """The files, and those in the folders that match the pattern, each with a unique name. Raises GrafError."""
    found: dict[Path, Path] = {}  # the root of each file
    for path in paths:
        if not path.exists():
            raise GrafError(f"{path}: no such file or folder")
        if path.is_file():
            found.setdefault(path, path.parent)
            continue
        for file in sorted(path.rglob("*")):
            inside = file.relative_to(path).as_posix()
            fits = fnmatch.fnmatchcase(inside.lower(), pattern.lower()) and not re.search(r"(^|/)\.", inside)
            if fits and file.suffix.lower() in SUFFIXES and file.is_file():
                found.setdefault(file, path)
    if not found:
        raise GrafError(f"no {', '.join(SUFFIXES)} in {', '.join(map(str, paths))} that matches --match '{pattern}'")
    sources: dict[str, Source] = {}  # by names in lower case, as a disk may not tell capitals apart
    for file, root in found.items():
        stem = re.sub(r"[^\w.-]+", "_", file.relative_to(root).with_suffix("").as_posix()).lstrip(".") or "mesh"
        name = next(name for n in range(len(found)) if (name := f"{stem}_{n}" if n else stem).lower() not in sources)
        sources[name.lower()] = Source(name, file, root)
    return list(sources.values())


def licence_files(source: Source) -> list[Path]:
    """Licence texts in the file's folder and its parents, up to the source's root."""
    folders = [folder for folder in source.file.parents if folder == source.root or source.root in folder.parents]
    return [
        file
        for folder in folders
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in TEXT_SUFFIXES
        and LICENCE_NAME.search(file.stem)
        and file.is_file()
        and file.stat().st_size <= LARGEST_LICENCE
    ]


def write_licences(path: Path, sources: Sequence[Source]) -> None:
    """Write one line per object with the numbers of its licence texts, followed by each text once."""
    numbers: dict[str, int] = {}
    texts: list[str] = []
    lines = ["The images in this folder show these objects. To pass them on, follow the licences of the objects.", ""]
    for source in sources:
        found = []
        for file in licence_files(source):
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            if text not in numbers:
                numbers[text] = len(numbers) + 1
                texts += ["", f"--- licence {numbers[text]}: {file}", "", text]
            found.append(str(numbers[text]))
        licences = f"licence {', '.join(found)}" if found else "no licence text found beside it"
        lines.append(f"{source.name}: {source.file}: {licences}")
    write_text(path, "\n".join(lines + texts) + "\n")


if __name__ == "__main__":
    run_script(main)
