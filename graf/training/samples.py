"""Image grids and videos of fixed objects, written during training."""

import logging
from pathlib import Path

from graf.camera import middle_poses, rotation_poses, view_azimuths
from graf.metrics.collapse import collapse_warning
from graf.metrics.consistency import sanity
from graf.pictures.outputs import KINDS, picture, side_by_side, write_gif, write_grid, write_video
from graf.pictures.sampling import fast_renderers, render_each, render_views, sample_objects
from graf.pictures.sweep import sheet_captions
from graf.runtime.files import optional_file
from graf.training.state import TrainState

log = logging.getLogger("graf")

SHEET_OBJECTS, SHEET_VIEWS, VIDEO_FRAMES = 4, 4, 60
MOST_FRAMES = 40  # of progress.gif


def write_samples(state: TrainState, quality: str = "") -> dict[str, float]:
    """samples/<step>_<kind>.png of fixed objects (rows) from fixed cameras (columns), by the EMA.

    quality: what was measured at this step, for the footer. Returns statistics of their silhouettes and depth, and warns where
    these show a collapse.
    """
    data = state.config.data
    n_views = min(SHEET_VIEWS, state.config.memory.max_validation_outputs // SHEET_OBJECTS)
    azimuth_deg = view_azimuths(n_views, data)
    poses = middle_poses(azimuth_deg, data)
    objects = sample_objects(state.generator_ema, SHEET_OBJECTS, state.config.training.seed)
    rendering = render_views(state.generator_ema, objects, poses)
    footer = ", ".join(filter(None, (state.config.expname, f"step {state.step:,}", quality)))
    with optional_file("sample image grids"):
        for kind in KINDS:
            captions = sheet_captions(poses, SHEET_OBJECTS, azimuth_deg.tolist(), kind, data, footer)
            write_grid(sheet_path(state, kind), picture(rendering, kind, data.near, data.far), n_views, captions)
    stats = sanity(rendering, data.near, data.far)
    if message := collapse_warning({"step": state.step} | stats):
        log.warning("step %d: %s", state.step, message)
    return stats


def sheet_path(state: TrainState, kind: str) -> Path:
    """The file of the grid of images of a kind, such as "rgb", that was written at the state's step."""
    return state.config.run_dir / "samples" / f"{state.step:08d}_{kind}.png"


def write_rotation(state: TrainState) -> None:
    """videos/<step>_rotation.mp4 of the fixed objects side by side."""
    data = state.config.data
    n_frames = min(VIDEO_FRAMES, state.config.memory.max_validation_outputs // SHEET_OBJECTS)
    objects = sample_objects(state.generator_ema, SHEET_OBJECTS, state.config.training.seed)
    rendering = render_each(fast_renderers(state.generator_ema, objects, n_frames), rotation_poses(n_frames, data))
    frames = side_by_side(picture(rendering, "rgb", data.near, data.far), SHEET_OBJECTS)
    with optional_file("videos"):
        write_video(state.config.run_dir / "videos" / f"{state.step:08d}_rotation.mp4", frames)


def write_progress(run_dir: Path, step: int) -> Path | None:
    """samples/progress.gif: the fixed objects until a step, of the run's image grids of colours; None where there are not two.

    At most MOST_FRAMES image grids are taken, evenly spread, always with the last; one is held at a time.
    """
    last = run_dir / "samples" / f"{step:08d}_rgb.png"
    grids = sorted(grid for grid in last.parent.glob("*_rgb.png") if grid <= last)
    if len(grids) < 2:
        return None
    n = min(len(grids), MOST_FRAMES)
    shown = [grids[i * (len(grids) - 1) // (n - 1)] for i in range(n)]
    path = last.with_name("progress.gif")
    try:
        with optional_file("progress.gif"):
            return write_gif(path, shown)
    except (ValueError, SyntaxError) as error:  # of a damaged image grid
        log.warning("%s is not written: an image grid of %s cannot be read (%s)", path.name, path.parent, error)
    return None
