"""Renders objects along camera paths into sheets and videos, a frame per file, so that an interrupted sweep continues.

Frames are `frames/<trajectory>/<kind>_<number>.png` in the results' folder, with the objects side by side; `made_from.json`
beside them records what they show. Frames of something else are replaced; files of other programs never are.
"""

import dataclasses
import hashlib
import json
import logging
from pathlib import Path

from graf.camera import (
    azimuth_and_v,
    elevation_of_v,
    elevation_poses,
    middle_elevation,
    rotation_poses,
    sweep_poses,
    view_azimuths,
)
from graf.config import Config, DataConfig
from graf.config.digest import rendering_sha256
from graf.errors import GrafError
from graf.models.generator import Generator, Rendering, weights_hash
from graf.pictures.captions import Captions, numbered
from graf.pictures.outputs import as_uint8, picture, side_by_side, write_grid, write_image, write_video
from graf.pictures.sampling import VIEWS_AT_ONCE, Objects, fast_renderers, render_each
from graf.runtime.console import progress
from graf.runtime.files import read_object, write_text

import imageio.v2 as imageio
import torch
from torch import Tensor
from tqdm import tqdm

log = logging.getLogger("graf")

MANIFEST = "made_from.json"
SHEET = "sweep"  # the trajectory that becomes a sheet; the others become videos
VIEWS, VIDEO_FRAMES = 8, 72
Errors = dict[str, float]  # of `low_resolution_errors`
NO_ERRORS = {"low_resolution_error": 0.0, "low_resolution_error_8bit": 0.0}


def sweep_trajectories(
    azimuths_deg: list[float] | None, elevations_deg: list[float] | None, n_objects: int, config: Config
) -> dict[str, Tensor]:
    """The cameras of `write_sweep`: of the sheet, by default VIEWS over the config's range at mid height, and of the videos.

    Raises GrafError where so many objects make a sheet or video of more than memory.max_test_outputs images.
    """
    data, most = config.data, config.memory.max_test_outputs
    trajectories = {
        SHEET: sweep_poses(
            azimuths_deg or view_azimuths(VIEWS, data).tolist(), elevations_deg or [middle_elevation(data)], data
        ),
        "rotation": rotation_poses(VIDEO_FRAMES, data),
        "elevation": elevation_poses(VIDEO_FRAMES, data),
    }
    held = n_objects * max(map(len, trajectories.values()))
    if held > most:
        raise GrafError(
            f"--n_objects {n_objects}: a sheet or video of {held} images, more than memory.max_test_outputs {most}; take fewer "
            "objects, or raise it with --set"
        )
    return trajectories


def write_sweep(
    generator: Generator,
    objects: Objects,
    trajectories: dict[str, Tensor],
    kinds: tuple[str, ...],
    columns: int,
    out: Path,
    resolution: int | None = None,
    footer: str | None = None,
) -> tuple[list[Path], Errors]:
    """sweep_<kind>.png (objects down, `columns` views across) and <trajectory>_<kind>.mp4 and .gif of each trajectory's cameras
    (V, 3, 4); kinds as `outputs.picture` knows them.

    footer: a line below the sheets, which get captions then; None for bare pictures.
    Frames that are there already are kept. Returns the files, and the largest of their `low_resolution_errors`.
    """
    files, errors, n = [], NO_ERRORS, len(objects[0])
    sweep = {
        name: Frames(out / "frames" / name, generator, objects, poses, kinds, resolution)
        for name, poses in trajectories.items()
    }
    total, left = n * sum(map(len, trajectories.values())), n * sum(len(frames.missing()) for frames in sweep.values())
    with progress(total=total, initial=total - left, desc="rendering", unit="image") as bar:
        for name, frames in sweep.items():
            errors = largest(errors, frames.render(bar))
            for kind in kinds:
                pictures = frames.read(kind)
                if name == SHEET:
                    views = torch.cat(pictures.tensor_split(n, dim=-1))  # object by object
                    captions = sheet_captions(trajectories[name], n, columns, kind, generator.config.data, footer)
                    files.append(write_grid(out / f"{name}_{kind}.png", views, columns, captions))
                else:
                    files += [write_video(out / f"{name}_{kind}{suffix}", pictures) for suffix in (".mp4", ".gif")]
    return files, errors


def sheet_captions(poses: Tensor, n_objects: int, columns: int, kind: str, data: DataConfig, footer: str | None) -> Captions:
    """Of a sheet of objects from cameras (V, 3, 4), in rows of the same azimuths: each column's azimuth, each row's object and
    elevation, and of depths the colours."""
    azimuth_deg, v = azimuth_and_v(poses)
    elevations = [elevation_of_v(row) for row in v[::columns].tolist()]
    return Captions(
        footer,
        [f"azimuth {angle:.0f}°" for angle in azimuth_deg[:columns].tolist()],
        [f"{name}\nelevation {angle:.0f}°" for name in numbered(n_objects) for angle in elevations],
        depths=(data.near, data.far) if kind == "depth" else None,
    )


class Frames:
    """The frames of one trajectory in a folder: those that are missing are rendered, the others kept."""

    def __init__(
        self,
        folder: Path,
        generator: Generator,
        objects: Objects,
        poses: Tensor,
        kinds: tuple[str, ...],
        resolution: int | None,
    ):
        self.folder, self.manifest, self.generator = folder, folder / MANIFEST, generator
        self.objects, self.poses, self.kinds, self.resolution = objects, poses, kinds, resolution
        self.made_from = made_from(generator, objects, poses, resolution)

    def render(self, bar: tqdm | None = None) -> Errors:
        """Write the missing frames. Returns the largest `low_resolution_errors` of all that the folder holds."""
        errors = self._start()
        missing = self.missing()
        renderers = fast_renderers(self.generator, self.objects, len(self.poses), self.resolution) if missing else []
        for start in range(0, len(missing), VIEWS_AT_ONCE):  # a sweep can be stopped between two of these without loss
            some = missing[start : start + VIEWS_AT_ONCE]
            rendering = render_each(renderers, self.poses[some], self.resolution, bar)
            errors = largest(errors, low_resolution_errors(self.generator, rendering))
            self._write_manifest(errors)
            data = self.generator.config.data
            for kind in self.kinds:
                frames = side_by_side(picture(rendering, kind, data.near, data.far), len(self.objects[0]))
                for i, frame in zip(some, frames, strict=True):
                    write_image(self.path(kind, i), frame)
        return errors

    def missing(self) -> list[int]:
        """The frames to be rendered: all of them where those in the folder cannot be kept."""
        can_stay = self._can_stay(read_object(self.manifest))
        files = [[self.path(kind, i) for kind in self.kinds] for i in range(len(self.poses))]
        return [i for i, kinds in enumerate(files) if not (can_stay and all(file.exists() for file in kinds))]

    def read(self, kind: str) -> Tensor:
        """The frames (V, 3, H, N * W) uint8 of a kind."""
        frames = [torch.from_numpy(imageio.imread(self.path(kind, i))) for i in range(len(self.poses))]
        return torch.stack(frames).movedim(-1, 1)

    def path(self, kind: str, index: int) -> Path:
        return self.folder / f"{kind}_{index:05d}.png"

    def _start(self) -> Errors:
        """Remove frames of other objects or cameras. Returns the errors of the frames that are kept."""
        require_ours(self.folder)
        if self.manifest.exists():
            found = read_object(self.manifest)
            if self._can_stay(found):
                return {name: found[name] for name in NO_ERRORS}
            same = found.get("made_from") == self.made_from
            reason = "whose errors are not all known" if same else "of other weights, settings, objects or cameras"
            log.info("%s: frames %s are replaced", self.folder, reason)
            for frame in self.folder.glob("*_?????.png"):  # the manifest stays until the next: without one they are not ours
                frame.unlink()
        self._write_manifest(NO_ERRORS)
        return NO_ERRORS

    def _can_stay(self, manifest: dict) -> bool:
        return manifest.get("made_from") == self.made_from and manifest.keys() >= NO_ERRORS.keys()

    def _write_manifest(self, errors: Errors) -> None:
        write_text(self.manifest, json.dumps({"made_from": self.made_from} | errors, indent=1))


def require_ours(folder: Path) -> None:
    """Raises GrafError where the folder is not empty but has no manifest, which marks its pictures as ours."""
    if folder.is_dir() and not (folder / MANIFEST).exists() and any(folder.iterdir()):
        raise GrafError(
            f"{folder}: pictures would be written here, but it holds files that were not made by this program (it has no "
            f"{MANIFEST}); name another folder with --out, or move them away"
        )


def low_resolution_errors(generator: Generator, rendering: Rendering) -> Errors:
    """`low_resolution_error` of the images as computed, and as a file of 8 bits holds them: clamped and rounded."""
    written = dataclasses.replace(rendering, images=as_uint8(rendering.images) / 127.5 - 1)
    return dict(zip(NO_ERRORS, (low_resolution_error(generator, shown) for shown in (rendering, written)), strict=True))


def largest(ours: Errors, theirs: Errors) -> Errors:
    return {name: max(error, theirs[name]) for name, error in ours.items()}


def low_resolution_error(generator: Generator, rendering: Rendering) -> float:
    """max |H x' - y| of refined images x' and the field's own renderings y, in units of images in [-1, 1]; 0 where nothing is
    refined."""
    if rendering.low_images is None:
        return 0.0
    projection = generator.refinement.projection
    seen = projection.downsample(rendering.images.to(generator.background.device)).to(rendering.low_images.device)
    return float((seen - rendering.low_images).abs().max())


def made_from(generator: Generator, objects: Objects, poses: Tensor, resolution: int | None) -> str:
    """A digest of all that pictures depend on: pictures with the same digest can be kept."""
    settings = weights_hash(generator), rendering_sha256(generator.config), resolution
    digest = hashlib.sha256(repr(settings).encode())
    for tensor in (*objects, poses):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
