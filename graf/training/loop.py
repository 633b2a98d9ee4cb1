"""The training loop of a generator: take a step, then whatever is due after it, until the run ends."""

import math
from functools import partial

from graf.config import TrainingConfig
from graf.data import Views
from graf.memory.sizes import with_advice
from graf.metrics.collapse import CollapseWatch
from graf.metrics.sides import SideWatch
from graf.runtime.console import log
from graf.runtime.interruption import Interruption
from graf.training.fid import evaluate
from graf.training.health import Derailed, check_numbers
from graf.training.pace import what_begins
from graf.training.samples import sheet_path, write_rotation, write_samples
from graf.training.session import Session, advised, due, running
from graf.training.state import TrainState
from graf.training.step import train_step

SHOWN = ("loss_d", "loss_g", "loss_encoder", "opacity")  # beside the progress bar
OFTEN_SEEN_STEPS = 500  # the first and the last, in which image grids are written four times as often


def train(state: TrainState, dataset: Views, interruption: Interruption, memory_snapshot: bool = False) -> dict:
    """Train until training.max_steps or an interruption, and leave a checkpoint either way.

    Returns what was measured after the last step, such as FID and KID, {} for nothing. With `memory_snapshot`, what memory
    holds is written beside each checkpoint. After training.max_bad_steps consecutive non-finite steps the run is rolled back,
    once. Raises Derailed where that did not help, OutOfMemory where memory ran out and nothing can be made smaller.
    """
    config, training, measured = state.config, state.config.training, {}
    watch, sides = CollapseWatch(), SideWatch(dataset, config.data)
    advice = advised(lambda error: with_advice(error, config, state.sizes, state.device))
    with advice, running(state, dataset, interruption, memory_snapshot, SHOWN) as session:
        while session.goes_on():
            # A step, or back to the last good checkpoint
            images, labels = session.next_batch()
            try:
                stats = train_step(state, dataset, images, labels)
                state.advance()
                check_numbers(state, stats, images)
            except Derailed as trouble:
                session.roll_back(trouble)
                continue
            session.step_done()
            if begins := what_begins(config, state.step):
                log.info("%s", begins)
            last = state.step == training.max_steps
            # Numbers of the step, and FID and KID
            if due(state.step, training.print_every):
                row = session.log_step(stats)
                watch.check(row, state.step)
            measured = {}
            judged = state.step > config.encoder.first_steps
            if (session.due("fid_every") and judged) or (training.fid_every and last):
                measured = session.optional_together("metrics", partial(evaluate, state, dataset), otherwise={})
            if measured:
                session.log.evaluation(measured, state.step)
                session.quality = kid_text(measured) or session.quality
            # Checkpoints, and pictures of the EMA
            session.save_what_is_due()
            if session.due("sample_every") or often_seen(state.step, training) or (training.sample_every and last):
                session.optional("sample", partial(write_sheet, session, kid_text(measured)))
            if sides.due(state.step):
                session.optional("look from all sides", partial(sides.check, state.generator_ema, state.step, training.seed))
            if session.due("video_every"):
                session.optional("video", partial(write_rotation, state))
            session.tidy_up()
    return measured


def write_sheet(session: Session, quality: str) -> None:
    """Write image grids of fixed objects, log their statistics and the grid of colours."""
    state = session.state
    session.log.scalars(write_samples(state, quality), state.step)
    session.log.picture("samples", sheet_path(state, "rgb"), state.step)


def kid_text(measured: dict) -> str:
    """The KID of a measurement, "" where there is none."""
    kids = (value for name, value in measured.get("values", {}).items() if name.startswith("kid_"))
    return next((f"KID {value:.4g}" for value in kids), "")


def often_seen(step: int, training: TrainingConfig) -> bool:
    """Whether an image grid follows this step because it is early or late, if grids are counted in steps."""
    every = training.sample_every
    early_or_late = step <= OFTEN_SEEN_STEPS or step > training.max_steps - OFTEN_SEEN_STEPS
    return isinstance(every, int) and early_or_late and due(step, math.ceil(every / 4))
