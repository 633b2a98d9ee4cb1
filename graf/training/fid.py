"""FID and KID during training, and model_best.pt of the step where they are lowest."""

import logging

from graf.checkpoints.checkpoint import BEST
from graf.checkpoints.record import read_record
from graf.checkpoints.run_folder import save
from graf.data import Views
from graf.metrics.measure import NO_RESULT, MeasureSettings, measure_generator
from graf.metrics.results import new_best, summary
from graf.training.state import TrainState

log = logging.getLogger("graf")


def evaluate(state: TrainState, dataset: Views) -> dict:
    """FID and KID of the EMA with their protocol, and model_best.pt where they are the best by training.save_best.

    The run's random state is left untouched. All processes of a run render and the first measures; the others return {}, and
    so does the first where a file cannot be read or written, such as a photograph or the run's cache, or where the images are
    not finite: the log says so each time.
    """
    config, processes = state.config, state.processes
    settings = MeasureSettings(("fid", "kid"), config.training.seed, options=config.metrics_in_training)
    if processes.first:
        log.info("step %d: measuring FID and KID of %d generated images", state.step, settings.options.counts[1])
    try:
        result = measure_generator(state.generator_ema, dataset, settings, config.run_dir / "cache", processes=processes)
    except NO_RESULT as error:
        log.warning("step %d: FID and KID cannot be measured (%s); training continues", state.step, error)
        return {}
    if not result:
        return {}
    result |= {"step": state.step, "ema": True}
    log.info("step %d: %s", state.step, summary(result))
    if config.training.save_best != "none":
        _save_best(state, result)
    return result


def _save_best(state: TrainState, result: dict) -> None:
    """Write model_best.pt where the result is the run's best, and remember it as state.best. What it is compared with is the
    file's, as the run may have gone back to an earlier step or begun with another run's checkpoint."""
    metric, file, before = state.config.training.save_best, state.config.run_dir / BEST, state.best
    record = read_record(file)
    kept = None if not file.exists() else record.metrics["best"] if record else before
    best = new_best(result, kept, metric, state.step)
    if best is None:
        if kept and kept["step"] <= state.step:  # by this run, before it was killed and began again
            state.best = kept
        return
    state.best = best
    try:
        save(file, state.checkpoint())
    except Exception:
        state.best = before  # there is no file of this one
        raise
    log.info("step %d: the best %s so far; kept as %s", state.step, metric.upper(), BEST)
