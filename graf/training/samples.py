"""What a run shows of itself while it trains: sheets and videos of fixed objects, and FID and KID."""

import logging
import math

from graf.camera import middle_poses, rotation_poses, view_azimuths
from graf.checkpoints.checkpoint import BEST
from graf.checkpoints.run_folder import save
from graf.data import Views
from graf.evaluation.image_streams import NotFinite
from graf.evaluation.metrics import comparable, measure_generator, summary
from graf.evaluation.outputs import KINDS, picture, side_by_side, write_grid, write_video
from graf.evaluation.sampling import render_views, sample_objects
from graf.evaluation.sanity import collapse_warning, sanity
from graf.runtime.files import not_worth_a_run
from graf.training.state import TrainState

log = logging.getLogger("graf")

SHEET_OBJECTS, SHEET_VIEWS, VIDEO_FRAMES = 4, 4, 60


def write_samples(state: TrainState) -> dict[str, float]:
    """samples/<step>_<kind>.png of fixed objects (rows) from fixed cameras (columns), by the moving average.

    Returns what they tell of silhouettes and depth, and warns where that is a collapse.
    """
    data = state.config.data
    n_views = min(SHEET_VIEWS, state.config.memory.max_validation_outputs // SHEET_OBJECTS)
    poses = middle_poses(view_azimuths(n_views, data), data)
    objects = sample_objects(state.generator_ema, SHEET_OBJECTS, state.config.training.seed)
    rendering = render_views(state.generator_ema, objects, poses)
    with not_worth_a_run("sample sheets"):
        for kind in KINDS:
            path = state.config.run_dir / "samples" / f"{state.step:08d}_{kind}.png"
            write_grid(path, picture(rendering, kind, data.near, data.far), n_views)
    stats = sanity(rendering, data.near, data.far)
    if message := collapse_warning({"step": state.step} | stats):
        log.warning("step %d: %s", state.step, message)
    return stats


def write_rotation(state: TrainState) -> None:
    """videos/<step>_rotation.mp4 of the fixed objects side by side."""
    data = state.config.data
    n_frames = min(VIDEO_FRAMES, state.config.memory.max_validation_outputs // SHEET_OBJECTS)
    objects = sample_objects(state.generator_ema, SHEET_OBJECTS, state.config.training.seed)
    rendering = render_views(state.generator_ema, objects, rotation_poses(n_frames, data))
    frames = side_by_side(picture(rendering, "rgb", data.near, data.far), SHEET_OBJECTS)
    with not_worth_a_run("videos"):
        write_video(state.config.run_dir / "videos" / f"{state.step:08d}_rotation.mp4", frames)


def evaluate(state: TrainState, dataset: Views) -> dict:
    """FID and KID of the moving average with their protocol, and model_best.pt where they are the best by training.save_best.

    The run's random state is left untouched. Of a run's processes all render and the first measures; the others return {}, and
    so does the first where a file cannot be read or written, such as the run's cache, or where the images are not finite: the
    log tells each time.
    """
    config, processes = state.config, state.processes
    folder, seed, options = config.run_dir / "cache", config.training.seed, config.metrics_in_training
    if processes.first:
        log.info("step %d: measuring FID and KID of %d generated images", state.step, options.counts[1])
    try:
        result = measure_generator(
            state.generator_ema, dataset, ("fid", "kid"), seed, folder, processes=processes, options=options
        )
    except (OSError, NotFinite) as error:
        log.warning("step %d: FID and KID cannot be measured (%s); training goes on", state.step, error)
        return {}
    if not result:
        return {}
    result |= {"step": state.step, "ema": True}
    log.info("step %d: %s", state.step, summary(result))
    before = state.best
    if config.training.save_best != "none" and is_best(result, state):
        try:
            save(config.run_dir / BEST, state)
        except Exception:
            state.best = before  # there is no file of this one
            raise
        log.info("step %d: the best %s so far; kept as %s", state.step, config.training.save_best.upper(), BEST)
    return result


def is_best(result: dict, state: TrainState) -> bool:
    """Whether a result of `measure` is the run's best by training.save_best, and if so remember it as state.best.

    A result that cannot be compared with the best so far, being under another protocol, begins anew.
    """
    metric = state.config.training.save_best
    value, terms = result["values"][f"{metric}_{result['extractor']}"], {"metric": metric} | comparable(result)
    best = state.best
    if not math.isfinite(value) or (best is not None and best["terms"] == terms and best["value"] <= value):
        return False
    state.best = {"value": value, "step": state.step, "terms": terms}
    return True
