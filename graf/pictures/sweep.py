"""Renders objects along camera paths into image grids and videos."""

import dataclasses
from pathlib import Path

from graf.camera import azimuth_and_v, elevation_of_v, elevation_poses, rotation_poses, sweep_poses
from graf.config import Config, DataConfig
from graf.errors import GrafError
from graf.models.generator import Generator, Rendering
from graf.pictures.captions import Captions, numbered
from graf.pictures.outputs import WIDEST_VIDEO, as_uint8, picture, side_by_side, video_width, write_grid, write_video
from graf.pictures.sampling import VIEWS_AT_ONCE, Objects, fast_renderers, render_each
from graf.runtime.console import progress

import torch
from torch import Tensor

SHEET = "sweep"  # the trajectory that becomes a sheet; the others become videos
VIEWS, VIDEO_FRAMES = 8, 72
Errors = dict[str, float]  # of `low_resolution_errors`
NO_ERRORS = {"low_resolution_error": 0.0, "low_resolution_error_8bit": 0.0}


def sweep_trajectories(
    azimuths_deg: list[float],
    elevations_deg: list[float] | None,
    n_objects: int,
    config: Config,
    resolution: int | None = None,
) -> dict[str, Tensor]:
    """The cameras of `write_sweep`: of the image grid (by default at mid height) and of the videos.

    resolution: pixels per side of an object, by default data.imsize. Raises GrafError where n_objects make an image grid or
    video of more than memory.max_test_outputs images, or frames wider than a video can be.
    """
    data, most = config.data, config.memory.max_test_outputs
    trajectories = {
        SHEET: sweep_poses(
            azimuths_deg,
            elevations_deg or [elevation_of_v(sum(data.v_range) / 2)],
            data,
        ),
        "rotation": rotation_poses(VIDEO_FRAMES, data),
        "elevation": elevation_poses(VIDEO_FRAMES, data),
    }
    held = n_objects * max(map(len, trajectories.values()))
    if held > most:
        raise GrafError(
            f"--n_objects {n_objects}: an image grid or video of {held} images, more than memory.max_test_outputs {most}; take "
            "fewer objects, or raise it with --set"
        )
    side = resolution or data.imsize
    if (width := video_width(side, n_objects)) > WIDEST_VIDEO:
        raise GrafError(
            f"--n_objects {n_objects}: videos {width} pixels wide, with {side} per object, and {WIDEST_VIDEO} is the most; "
            "take fewer objects, or a smaller --resolution"
        )
    return trajectories


def write_sweep(
    generator: Generator,
    objects: Objects,
    trajectories: dict[str, Tensor],
    kinds: tuple[str, ...],
    azimuths_deg: list[float],
    out: Path,
    resolution: int | None = None,
    footer: str | None = None,
) -> tuple[list[Path], Errors]:
    """Write sweep_<kind>.png (objects down, azimuths across) and <trajectory>_<kind>.mp4 and .gif of each trajectory's cameras
    (V, 3, 4); kinds as `outputs.picture` has them.

    footer: a line below the image grids, which then get captions; None for bare pictures. Returns the files, and the largest of
    the renderings' `low_resolution_errors`.
    """
    files, errors, n, data = [], NO_ERRORS, len(objects[0]), generator.config.data
    with progress(total=n * sum(map(len, trajectories.values())), desc="rendering", unit="image") as bar:
        for trajectory, poses in trajectories.items():
            renderers = fast_renderers(generator, objects, len(poses), resolution)
            frames = {kind: [] for kind in kinds}
            for some in poses.split(VIEWS_AT_ONCE):
                rendering = render_each(renderers, some, resolution, bar)
                found = low_resolution_errors(generator, rendering)
                errors = {name: max(error, found[name]) for name, error in errors.items()}
                for kind in kinds:
                    frames[kind].append(side_by_side(picture(rendering, kind, data.near, data.far), n))
            for kind, parts in frames.items():
                pictures = torch.cat(parts)  # (V, 3, H, N * W)
                stem = out / f"{trajectory}_{kind}"
                if trajectory == SHEET:
                    views = torch.cat(pictures.tensor_split(n, dim=-1))  # object by object
                    captions = sheet_captions(poses, n, azimuths_deg, kind, data, footer)
                    files.append(write_grid(stem.with_suffix(".png"), views, len(azimuths_deg), captions))
                else:
                    files += [write_video(stem.with_suffix(suffix), pictures) for suffix in (".mp4", ".gif")]
    return files, errors


def sheet_captions(
    poses: Tensor, n_objects: int, azimuths_deg: list[float], kind: str, data: DataConfig, footer: str | None
) -> Captions:
    """Captions of an image grid of objects from cameras (V, 3, 4), each row at the same azimuths, which a camera straight above
    does not tell: columns have their azimuth, rows their object and elevation, and depth its colour bar."""
    _, v = azimuth_and_v(poses)
    elevations = [elevation_of_v(row) for row in v[:: len(azimuths_deg)].tolist()]
    return Captions(
        footer,
        [f"azimuth {angle % 360:.0f}°" for angle in azimuths_deg],
        [f"{name}\nelevation {angle:.0f}°" for name in numbered(n_objects) for angle in elevations],
        depths=(data.near, data.far) if kind == "depth" else None,
    )


def low_resolution_errors(generator: Generator, rendering: Rendering) -> Errors:
    """`low_resolution_error` of the images as computed, and as an 8-bit file holds them: clamped and rounded."""
    written = dataclasses.replace(rendering, images=as_uint8(rendering.images) / 127.5 - 1)
    return {
        "low_resolution_error": low_resolution_error(generator, rendering),
        "low_resolution_error_8bit": low_resolution_error(generator, written),
    }


def low_resolution_error(generator: Generator, rendering: Rendering) -> float:
    """max |H x' - y| of refined images x' and the field's own renderings y, in units of images in [-1, 1]; 0 where nothing is
    refined."""
    if rendering.low_images is None:
        return 0.0
    seen = generator.projection.downsample(rendering.images.to(generator.background.device)).to(rendering.low_images.device)
    return float((seen - rendering.low_images).abs().max())
