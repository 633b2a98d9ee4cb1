"""Between steps memory may run out as in them: what is made there is tried again, then left, and no run is lost for it."""

import json
import math
from types import SimpleNamespace

from graf.checkpoints.checkpoint import BEST, NEWEST, Checkpoint, read_checkpoint
from graf.checkpoints.record import read_record
from graf.config import load_config
from graf.data import Views
from graf.errors import CheckpointWriteError, DataError, GrafError
from graf.foreign.checkpoints import checkpoint_step
from graf.memory.monitor import MemoryMonitor
from graf.metrics.results import COMPARABLE
from graf.runtime.interruption import Interruption
from graf.runtime.limits import GB
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.processes import ALONE, AnotherProcessFailed
from graf.training import fid, loop, samples, session
from graf.training.health import Derailed
from graf.training.logging import RunLog
from graf.training.loop import train
from graf.training.state import TrainState

import pytest
import torch

CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."
MADE = {  # between steps: its phase, and what of graf.training.loop makes it
    "metrics": ("metrics", "evaluate"),
    "checkpoint": ("checkpoint", "save_newest"),
    "backup": ("checkpoint", "save"),
    "sample": ("sample", "write_samples"),
    "video": ("video", "write_rotation"),
}
CADENCES = ("training.max_steps=3", "training.print_every=1", "training.monitoring=none", "memory.interval_s=0") + tuple(
    f"training.{name}" for name in ("save_every=2", "backup_every=2", "sample_every=8", "video_every=2", "fid_every=2")
)  # samples come four times as often in the beginning and at the end


class Grey(Views):
    """Eight grey photographs, 16 x 16, without cameras."""

    def __init__(self):
        super().__init__([f"{i}.png" for i in range(8)], ["things"], torch.zeros(8, dtype=torch.long), None, "fingerprint")

    def read(self, index):
        return torch.full((3, 16, 16), 128, dtype=torch.uint8)


def step(state, *_):
    """One that nobody learns from."""
    return dict.fromkeys(("loss_d", "loss_g", "opacity"), torch.tensor(1.0))


@pytest.fixture
def build(smoke, tmp_path, monkeypatch):
    def build(*overrides):
        config = smoke(*CADENCES, "discriminator.condition=none", f"training.outdir={tmp_path}", *overrides)
        config.run_dir.mkdir(parents=True, exist_ok=True)
        return TrainState(config, torch.device("cpu"))

    monkeypatch.setattr(loop, "write_rotation", lambda *_: None)
    monkeypatch.setattr(session, "save", lambda *_: None)
    monkeypatch.setattr(loop, "train_step", step)
    monkeypatch.setattr(loop, "write_samples", lambda *_: {})
    monkeypatch.setattr(loop, "evaluate", lambda *_: {"values": {}})
    return build


def failing(monkeypatch, name, times, error=None):
    """What of the loop or its session is called `name` runs out of memory so often. Returns the steps of its calls."""
    where = loop if hasattr(loop, name) else session
    real, calls = getattr(where, name), []

    def work(*given):
        calls.append(next(part.step for part in given if isinstance(part, TrainState | Checkpoint)))
        if len(calls) <= times:
            raise error or RuntimeError(CPU_ALLOCATOR)
        return real(*given)

    monkeypatch.setattr(where, name, work)
    return calls


def saved_step(state):
    return checkpoint_step(read_checkpoint(state.config.run_dir / NEWEST))


@pytest.mark.parametrize(
    "error", [RuntimeError(CPU_ALLOCATOR), MemoryError(), OutOfMemory("rendering")], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("made", MADE)
def test_what_ran_out_of_memory_once_is_made_again(build, monkeypatch, caplog, made, error):
    state, calls = build(), failing(monkeypatch, MADE[made][1], 1, error)
    train(state, Grey(), Interruption())
    assert calls[:2] == [2, 2]
    assert state.step == saved_step(state) == 3
    assert "out of memory twice" not in caplog.text


@pytest.mark.parametrize("made", MADE)
def test_what_ran_out_of_memory_twice_is_left_with_a_warning(build, monkeypatch, caplog, made):
    state, calls = build(), failing(monkeypatch, MADE[made][1], 2)
    train(state, Grey(), Interruption())
    assert calls[:2] == [2, 2]
    assert state.step == saved_step(state) == 3
    assert f"step 2: out of memory twice ({CPU_ALLOCATOR}); no {MADE[made][0]} this time" in caplog.text


@pytest.mark.parametrize(("every", "steps"), [(0, []), (1, [1, 2, 3]), (2, [2, 3]), (3, [3]), (5, [3])])
def test_a_run_measures_itself_after_its_last_step_too_and_tells_of_that(build, monkeypatch, every, steps):
    state, measured = build(f"training.fid_every={every}"), []
    monkeypatch.setattr(loop, "evaluate", lambda state, _: measured.append(state.step) or {"values": {}, "step": state.step})
    assert train(state, Grey(), Interruption()).get("step") == (3 if every else None)
    assert measured == steps


@pytest.mark.parametrize(("first_steps", "steps"), [(1, [2, 3]), (2, [3]), (9, [3])])
def test_nothing_is_measured_in_an_encoders_first_steps_but_after_the_last_one(build, monkeypatch, first_steps, steps):
    state, measured = build("training.fid_every=1", f"encoder.first_steps={first_steps}"), []
    monkeypatch.setattr(loop, "evaluate", lambda state, _: measured.append(state.step) or {})
    train(state, Grey(), Interruption())
    assert measured == steps


@pytest.mark.parametrize(("every", "steps"), [(0, []), (4, [1, 2, 3]), (8, [2, 3]), (16, [3])])
def test_a_run_ends_with_a_sheet_of_what_it_has_learned(build, monkeypatch, every, steps):
    state, written = build(f"training.sample_every={every}"), []
    monkeypatch.setattr(loop, "write_samples", lambda state, *_: written.append(state.step) or {})
    train(state, Grey(), Interruption())
    assert written == steps


@pytest.mark.parametrize(("every", "steps"), [(0, []), (4, [1, 2, 4, 6, 7]), (8, [2, 6, 7]), (5, [2, 5, 6, 7])])
def test_image_grids_are_written_more_often_at_first_and_at_last(build, monkeypatch, every, steps):
    state, written = build(f"training.sample_every={every}", "training.max_steps=7"), []
    monkeypatch.setattr(loop, "OFTEN_SEEN_STEPS", 2)
    monkeypatch.setattr(loop, "write_samples", lambda state, *_: written.append(state.step) or {})
    train(state, Grey(), Interruption())
    assert written == steps


def test_walls_are_told_of_without_image_grids_too(build, monkeypatch, caplog):
    state, looked_at = build("training.sample_every=0"), []
    walls = {"edge_opacity": 0.9, "thinness": 1.0, "likeness": 1.0}
    monkeypatch.setattr("graf.metrics.sides.LOOKED_AT", (2, 3))
    monkeypatch.setattr("graf.metrics.sides.views_all_around", lambda generator, seed: looked_at.append(generator) or ())
    monkeypatch.setattr("graf.metrics.sides.all_around", lambda: walls)
    train(state, Grey(), Interruption())
    assert looked_at == [state.generator_ema]
    told = [message for message in caplog.messages if "walls fill it from all sides" in message]
    assert len(told) == 1 and told[0].startswith("step 2: ") and "data.camera_prior=front" in told[0]


def test_each_row_of_the_log_is_looked_at_for_a_collapse(build, monkeypatch):
    seen = []
    monkeypatch.setattr(loop.CollapseWatch, "check", lambda watch, row, step: seen.append((step, row["opacity"])))
    train(build("training.max_steps=5", "training.print_every=2"), Grey(), Interruption())
    assert seen == [(2, 1.0), (4, 1.0)]


def test_the_first_steps_of_another_kind_are_told_of(build, caplog):
    with caplog.at_level("INFO"):
        train(build("encoder.first_steps=1", "encoder.weight=1", "discriminator.low_res_steps=1"), Grey(), Interruption())
    told = [message for message in caplog.messages if "on the discriminator" in message]
    assert [message.split(" the ")[0] for message in told] == ["from step 1 on", "from step 2 on"]


def test_an_older_measurement_is_not_told_as_that_of_the_last_step(build, monkeypatch):
    state = build("training.fid_every=2")
    monkeypatch.setattr(loop, "evaluate", lambda state, _: {"values": {}} if state.step == 2 else {})
    assert train(state, Grey(), Interruption()) == {}


def test_a_checkpoint_that_names_a_failed_allocation_is_one(build, monkeypatch, caplog):
    state = build()
    no_memory = CheckpointWriteError("model.pt: cannot be written (std::bad_alloc)")
    no_memory.__cause__ = RuntimeError("std::bad_alloc")
    calls = failing(monkeypatch, "save_newest", 2, no_memory)
    train(state, Grey(), Interruption())
    assert calls == [2, 2, 3]
    assert saved_step(state) == 3
    state = build("training.max_steps=5")
    failing(monkeypatch, "save_newest", 1, CheckpointWriteError("model.pt: cannot be written (no space left on device)"))
    with pytest.raises(CheckpointWriteError):
        train(state, Grey(), Interruption())


def test_a_checkpoint_that_falls_on_a_bad_step_is_saved_at_the_next_good_one(build, monkeypatch):
    """A single overflow in float16 is such a step. A backup that falls on it is left out."""
    state = build("training.max_steps=7", "training.save_every=3", "training.backup_every=3")
    calls, backups = failing(monkeypatch, "save_newest", 0), failing(monkeypatch, "save", 0)

    def overflowing(state, *_):
        return step(state) | {"grad_norm_d": torch.tensor(math.nan if state.step in (2, 3) else 1.0)}  # 3 and 4 are skipped

    monkeypatch.setattr(loop, "train_step", overflowing)
    train(state, Grey(), Interruption())
    assert calls == [5, 6, 7] and backups == [6]


def test_seconds_per_step_are_those_since_the_last_row_or_the_way_back(build, monkeypatch):
    state, clock, found = build("training.max_steps=4", "training.print_every=2"), SimpleNamespace(now=0.0), []
    durations = iter((1.0, None, 5.0, 5.0, 7.0, 9.0))

    def timed(state, *_):
        if (seconds := next(durations)) is None:
            raise Derailed("loss_d is nan")
        clock.now += seconds
        return step(state)

    monkeypatch.setattr(loop, "train_step", timed)
    monkeypatch.setattr(session, "roll_back_all", lambda state, trouble: setattr(state, "step", 0))
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(RunLog, "speed", lambda log, seconds, step: found.append(seconds))
    train(state, Grey(), Interruption())
    assert found == [5, 8]


def test_a_step_that_is_taken_again_has_the_same_real_images(build, monkeypatch):
    class Greys(Grey):
        def read(self, index):
            return torch.full((3, 16, 16), 30 * index, dtype=torch.uint8)

    seen = []

    def noted(state, dataset, images, labels):
        seen.append((state.step, images[:, 0, 0, 0].tolist()))
        if len(seen) == 3:
            raise Derailed("loss_d is nan")
        return step(state)

    monkeypatch.setattr(loop, "train_step", noted)
    monkeypatch.setattr(session, "roll_back_all", lambda state, trouble: setattr(state, "step", 0))
    train(build(), Greys(), Interruption())
    assert seen[3:] == seen[:3] and seen[0][1] != seen[1][1]


def test_the_lowest_losses_of_a_run_are_noted(build):
    state = build()
    train(state, Grey(), Interruption())
    assert state.lowest_losses == dict.fromkeys(("loss_d", "loss_g"), {"value": 1.0, "step": 1})


@pytest.mark.parametrize("asked", [True, False])
def test_what_memory_holds_is_written_beside_checkpoints_where_that_is_asked_for(build, monkeypatch, asked):
    state, written = build(), []
    monkeypatch.setattr(session, "write_snapshot", lambda folder, step: written.append((folder, step)))
    train(state, Grey(), Interruption(), memory_snapshot=asked)
    assert written == ([(state.config.run_dir / "memory", step) for step in (2, 3)] if asked else [])


@pytest.mark.parametrize(("empty_cache", "emptied"), [("2", [2, 4]), ("phases", [])])
def test_the_cache_is_emptied_after_so_many_steps(build, monkeypatch, empty_cache, emptied):
    state, steps = build("training.max_steps=5", f"memory.empty_cache={empty_cache}"), []
    monkeypatch.setattr(session, "clean_up", lambda: steps.append(state.step))
    train(state, Grey(), Interruption())
    assert steps == emptied


def test_the_log_tells_of_memory_once_a_minute(build, monkeypatch, caplog):
    """Of steps that take 40 seconds, after every other one."""
    state = build("training.max_steps=5")
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: 40.0 * state.step))
    monkeypatch.setattr(session, "MEMORY_LINE_STEPS", 1)
    monkeypatch.setattr(MemoryMonitor, "summary", lambda _: "much memory")
    with caplog.at_level("INFO", "graf"):
        train(state, Grey(), Interruption())
    told = [message for message in caplog.messages if message.endswith(": much memory")]
    assert told == ["step 2: much memory", "step 4: much memory"]


def test_live_scales_of_the_gradients_are_in_the_rows(build):
    def scales(state):
        train(state, Grey(), Interruption())
        rows = [json.loads(line) for line in (state.config.run_dir / "metrics.jsonl").read_text().splitlines()]
        return [(row.get("gradient_scale_g"), row.get("gradient_scale_d")) for row in rows if "loss_d" in row]

    assert scales(build("training.max_steps=1")) == [(None, None)]
    state = build("training.max_steps=1")
    state.scaler_g, state.scaler_d = torch.amp.GradScaler("cpu", init_scale=64.0), torch.amp.GradScaler("cpu", init_scale=32.0)
    assert scales(state) == [(64, 32)]


def test_a_run_whose_last_checkpoint_has_no_room_says_so(build, monkeypatch):
    state = build("training.save_every=0")
    failing(monkeypatch, "save_newest", 2)
    with pytest.raises(OutOfMemory, match="step 3: no memory for a checkpoint"):
        train(state, Grey(), Interruption())


@pytest.mark.parametrize(
    ("save_every", "told"), [(0, "the run has no checkpoint yet"), (2, "the last one, of step 2, is intact")]
)
def test_it_says_what_is_left_too(build, monkeypatch, save_every, told):
    real = session.save_newest

    def saves(checkpoint, *given):
        if checkpoint.step == 3:
            raise RuntimeError(CPU_ALLOCATOR)
        real(checkpoint, *given)

    monkeypatch.setattr(session, "save_newest", saves)
    with pytest.raises(OutOfMemory, match=f"step 3: no memory for a checkpoint; {told}"):
        train(build(f"training.save_every={save_every}"), Grey(), Interruption())


@pytest.mark.parametrize("error", [RuntimeError(CPU_ALLOCATOR), MemoryError()], ids=lambda e: type(e).__name__)
def test_out_of_memory_anywhere_else_ends_a_run_saved_with_advice(build, monkeypatch, error):
    state, real = build("training.save_every=0"), session.RunLog.scalars

    def fails(rows, *given):
        if state.step == 2:
            raise error
        return real(rows, *given)

    monkeypatch.setattr(session.RunLog, "scalars", fails)
    with pytest.raises(OutOfMemory, match=r"step 2: out of memory .*tools/check_system\.py"):
        train(state, Grey(), Interruption())
    assert saved_step(state) == 2


@pytest.mark.parametrize("error", [RuntimeError(CPU_ALLOCATOR), CheckpointWriteError("model.pt: no space left")])
def test_a_last_checkpoint_hides_no_out_of_memory_that_ends_a_run(build, monkeypatch, caplog, error):
    state = build("training.save_every=0", "training.sample_every=0")
    failing(monkeypatch, "save_newest", 9, error)
    monkeypatch.setattr(session.RunLog, "scalars", lambda *_: (_ for _ in ()).throw(MemoryError("no room for a row")))
    with pytest.raises(OutOfMemory, match=r"step 1: out of memory .no room for a row.*tools/check_system\.py"):
        train(state, Grey(), Interruption())
    assert ("no memory for a checkpoint" if isinstance(error, RuntimeError) else str(error)) in caplog.text


def test_the_best_so_far_is_one_that_there_is_a_file_of(build, monkeypatch):
    """Or what is measured again would be no better than itself, and never kept."""
    state, kept = build("training.save_best=fid"), []
    terms = dict.fromkeys(COMPARABLE, 1) | {"extractor": "e", "values": {"fid_e": 3.0}}
    monkeypatch.setattr(fid, "measure_generator", lambda *_, **__: dict(terms))
    monkeypatch.setattr(fid, "summary", lambda _: "")

    def save_once_too_large(*given):
        kept.append(given)
        if len(kept) == 1:
            raise MemoryError

    monkeypatch.setattr(fid, "save", save_once_too_large)
    with pytest.raises(MemoryError):
        fid.evaluate(state, Grey())
    assert state.best is None
    fid.evaluate(state, Grey())
    assert state.best["value"] == 3.0 and len(kept) == 2


def test_the_best_so_far_is_that_of_the_runs_folder(build, monkeypatch):
    """Not of the checkpoint that it goes on from, which may be an earlier one, or another run's."""
    state, measured = build("training.save_best=kid"), {}
    terms = dict.fromkeys(COMPARABLE, 1) | {"extractor": "e"}
    monkeypatch.setattr(fid, "measure_generator", lambda *_, **__: terms | {"values": {"kid_e": measured["now"]}})
    monkeypatch.setattr(fid, "summary", lambda _: "")

    def kept_after(value):
        measured["now"] = value
        fid.evaluate(state, Grey())
        return read_record(state.config.run_dir / BEST).metrics["best"]["value"]

    before = {"value": 0.01, "step": 1, "terms": {"metric": "kid"} | dict.fromkeys(COMPARABLE, 1)}
    state.best = before  # of another run's checkpoint
    assert kept_after(0.3) == 0.3
    assert kept_after(0.2) == 0.2
    state.best = None  # of an earlier checkpoint
    assert kept_after(0.25) == 0.2
    assert state.best["value"] == 0.2  # as if it had never been killed
    state.step, state.best = state.step - 1, before  # gone back to a step at which that was not yet measured
    assert kept_after(0.25) == 0.2 and state.best is before


def test_a_model_that_draws_nothing_finite_is_not_measured_and_training_goes_on(build, monkeypatch, caplog):
    few = ("metrics.extractor=efficientnet-lite0", "metrics.n_real=4", "metrics.n_fake=4")
    state, rows = build("training.save_best=kid", *few), []
    monkeypatch.setattr(loop, "evaluate", fid.evaluate)
    monkeypatch.setattr(session.RunLog, "evaluation", lambda *row: rows.append(row))
    for parameter in state.generator_ema.parameters():
        parameter.data.fill_(float("nan"))
    train(state, Grey(), Interruption())
    assert state.step == 3 and rows == [] and state.best is None
    assert "step 2: FID and KID cannot be measured (metrics: 4 of 4 generated images" in caplog.text


def test_processes_that_measure_together_end_with_a_checkpoint(build, monkeypatch):
    """If another process runs out of memory amid the metrics, the first one may see any error."""
    state = build("training.save_every=0")
    monkeypatch.setattr(type(state.processes), "alone", False)
    monkeypatch.setattr(type(state.processes), "all_reduce_status", lambda _, status: status)
    monkeypatch.setattr(type(state.processes), "require_same", lambda *_: None)
    monkeypatch.setattr(loop, "evaluate", lambda *_: (_ for _ in ()).throw(AssertionError("the stream ended early")))
    with pytest.raises(AssertionError):
        train(state, Grey(), Interruption())
    assert saved_step(state) == 2


@pytest.mark.parametrize(
    ("error", "bad_steps", "saves"),
    [(AssertionError(), 0, 1), (AssertionError(), 3, 0), (CheckpointWriteError("model_best.pt: no space left"), 0, 0)],
)
def test_a_last_checkpoint_hides_no_error_of_the_metrics(build, monkeypatch, caplog, error, bad_steps, saves):
    """On a disk where it cannot be written either; nor is it tried twice, nor worth anything amid bad steps."""
    state = build("training.save_every=0")
    calls = failing(monkeypatch, "save_newest", 1, CheckpointWriteError("model.pt: no space left"))
    failing(monkeypatch, "evaluate", 1, error)
    state.bad_steps = bad_steps
    monkeypatch.setattr(loop, "check_numbers", lambda *_, **__: None)  # which counts them
    with pytest.raises(type(error)) as caught:
        train(state, Grey(), Interruption())
    assert caught.value is error and state.step == 2
    assert len(calls) == caplog.text.count("model.pt: no space left") == saves


def grey_until(step, state, error):
    """Grey photographs whose files end a run that has taken so many steps."""

    class Spoiled(Grey):
        def read(self, index):
            if state.step == step:
                raise error
            return super().read(index)

    return Spoiled()


ENDS = [  # of a run: by a photograph, by loaders that keep dying, by anything else, by another process's end
    DataError("3.png: is missing, or not a file that can be read"),
    GrafError("step 2: loader processes died 5 times over one batch"),
    ValueError("a mistake of ours"),
    AnotherProcessFailed("another process of the run failed, and says why"),
]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_an_error_between_saves_ends_a_run_whose_steps_are_all_saved(build, caplog, error):
    state = build("training.save_every=0", "training.sample_every=0")
    with caplog.at_level("INFO"), pytest.raises(type(error), match=str(error)):
        train(state, grey_until(2, state, error), Interruption())
    assert state.step == saved_step(state) == 2
    assert "step 2: saved, as an error ends the run; --resume auto continues from there" in caplog.text


def test_an_error_at_a_step_that_is_saved_writes_nothing(build, monkeypatch, caplog):
    state, calls = build("training.sample_every=0"), failing(monkeypatch, "save_newest", 0)
    with caplog.at_level("INFO"), pytest.raises(DataError):
        train(state, grey_until(2, state, DataError("3.png: is missing")), Interruption())
    assert calls == [2] and "saved, as an error" not in caplog.text
    untrained = build("expname=untrained")
    with pytest.raises(DataError):
        train(untrained, grey_until(0, untrained, DataError("3.png: is missing")), Interruption())
    assert calls == [2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_what_is_to_end_a_run_at_once_saves_nothing(build, monkeypatch, error):
    """The second Ctrl-C is such an error."""
    state, calls = build("training.save_every=0", "training.sample_every=0"), failing(monkeypatch, "save_newest", 0)
    with pytest.raises(type(error)):
        train(state, grey_until(2, state, error), Interruption())
    assert state.step == 2 and calls == []


def test_a_sample_sheet_holds_no_more_images_than_it_may(build, monkeypatch):
    held, real = [], samples.render_views
    monkeypatch.setattr(samples, "render_views", lambda *given: held.append(real(*given)) or held[-1])
    samples.write_samples(build("memory.max_validation_outputs=11"))
    assert len(held[0].images) == 8


def test_an_image_grid_that_shows_a_collapse_is_told_of(build, monkeypatch, caplog):
    monkeypatch.setattr(samples, "collapse_warning", lambda stats: f"collapsed at {stats['step']}")
    state = build("memory.max_validation_outputs=4")
    state.step = 3
    samples.write_samples(state)
    assert "step 3: collapsed at 3" in caplog.messages


def test_image_grids_and_videos_are_the_averages(build, monkeypatch):
    state, renderers = build("memory.max_validation_outputs=8"), []
    write_rotation = samples.write_rotation
    for name in ("render_views", "fast_renderers"):
        real = getattr(samples, name)
        monkeypatch.setattr(samples, name, lambda *given, real=real: renderers.append(given[0]) or real(*given))
    monkeypatch.setattr(samples, "write_video", lambda *_: None)
    samples.write_samples(state)
    write_rotation(state)
    assert renderers == [state.generator_ema] * 2


def test_the_line_tells_images_losses_quality_and_memory(build):
    state = build("training.batch_size=8")
    state.step, state.images_seen = 400, 2400  # of which 200 had 4 images
    monitor = SimpleNamespace(latest=lambda: {"reserved_bytes": 3e9, "host_bytes": 1.5e9, "workers_bytes": 7.0})
    told = session.progress_text(
        state, {"loss_d": 1.23456, "loss_g": 2.0, "opacity": 0.5}, ("loss_d", "loss_g"), "KID 0.07", monitor
    )
    assert told == f"2,400 images, loss_d 1.235, loss_g 2.000, KID 0.07, host {1.5e9 / GB:.2f} GB, GPU {3e9 / GB:.2f} GB"
    monitor.latest = dict  # before the first reading
    assert session.progress_text(state, {}, (), "", monitor) == "2,400 images"


def test_the_monitor_is_told_the_budget_of_the_device(build, monkeypatch):
    state, given = build(), []
    monkeypatch.setattr(session, "watched_budget", lambda *_: 6 << 30)
    monkeypatch.setattr(session, "MemoryMonitor", lambda *a: given.extend(a[3:]) or monitor_of(state))
    train(state, Grey(), Interruption())
    assert given == [6 << 30]


def monitor_of(state):
    return MemoryMonitor(state.config.run_dir / "memory.jsonl", 0, state.device)


def test_the_line_tells_what_was_measured_after_the_last_step(build, monkeypatch):
    state, said = build(), []
    monkeypatch.setattr(loop, "evaluate", lambda state, _: {"values": {"kid_lite0": 0.07}, "step": state.step})
    monkeypatch.setattr(session.RunLog, "evaluation", lambda *_: None)
    monkeypatch.setattr(session, "progress_text", lambda state, numbers, shown, quality, monitor: said.append(quality) or "")
    train(state, Grey(), Interruption())
    assert said == ["", "KID 0.07", "KID 0.07"]


def test_the_bar_tells_speed_and_time_of_the_steps_that_take_as_long(monkeypatch, capsys):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("graf.training.pace.time", SimpleNamespace(monotonic=lambda: clock.now))
    settings = ("training.max_steps=60", "encoder.first_steps=20", "discriminator.low_res_steps=10", "ccsr.unrefined_steps=0")
    bar = session._progress_bar(load_config(None, settings), 10, shown=True)

    def after(steps: int, seconds: float) -> str:
        clock.now += seconds
        bar.update(steps)
        return str(bar)

    assert "step 10 of 60, ?step/s, ? to step 20" in str(bar)
    assert "step 15 of 60,  5.00step/s, 00:01 to step 20" in after(5, 1.0)
    assert "step 20 of 60,  5.00step/s, 00:00 to step 20" in after(5, 1.0)
    clock.now += 100  # for a measurement before the first step of another kind
    assert "step 21 of 60, ?step/s, ? to step 30" in after(1, 2.0)
    assert "step 26 of 60,  2.00s/step, 00:08 to step 30" in after(5, 10.0)
    assert "step 23 of 60, ?step/s, ? to step 30" in after(-3, 1.0)  # rolled back
    assert "step 24 of 60,  3.00s/step, 00:18 to step 30" in after(1, 3.0)
    after(7, 4.0)
    assert "step 32 of 60,  4.00s/step, 01:52 left" in after(1, 4.0)
    assert "step 60 of 60,  2.00step/s, 00:00 left" in after(28, 10.5)
    bar.close()
    assert "00:00 left" in capsys.readouterr().err.splitlines()[-1]


def test_what_is_due_by_minutes_is_due_by_the_first_clock_and_from_when_it_last_was(monkeypatch):
    clock, said = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: clock.now))
    processes = SimpleNamespace(first=True, any=lambda flag: said.append(flag) or flag)
    cadences = session.Cadences(processes)
    due = []
    for clock.now in (0, 59, 60, 61, 119, 120, 500):
        due.append((cadences.due("fid_every", 3, "1min"), cadences.due("sample_every", 3, "5min")))
    assert due == [(False, False)] * 2 + [(True, False)] + [(False, False)] * 2 + [(True, False), (True, True)]
    asked = len(said)
    assert cadences.due("save_every", 4, 2) and not cadences.due("save_every", 3, 2) and not cadences.due("save_every", 4, 0)
    assert len(said) == asked  # steps need no agreement
    processes.first = False
    clock.now = 5000.0
    assert not cadences.due("fid_every", 3, "1min")


def test_minutes_go_on_where_a_run_was_interrupted(monkeypatch):
    """As in jobs of an hour each, of work that is due every 90 minutes."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: clock.now))
    waited_s, due = {"video_every": 60.0}, []
    for job in range(3):
        clock.now = 1e6 * job  # the run waits for its next job
        cadences = session.Cadences(ALONE, waited_s)
        for minute in range(61):
            clock.now = 1e6 * job + 60 * minute
            if cadences.due("fid_every", 3, "90min"):
                due.append((job, minute))
        waited_s = cadences.waited_s()
    assert due == [(1, 30), (2, 60)]
    assert waited_s == {"fid_every": 0, "video_every": 60 + 3 * 3600}  # the latter was never asked for
    assert not cadences.due("video_every", 3, 2) and cadences.waited_s() == {"fid_every": 0}  # by steps now


def test_a_checkpoint_has_what_was_waited_for(build):
    state = build("training.max_steps=2", "training.save_every=100min", "training.sample_every=0", "training.fid_every=420min")
    train(state, Grey(), Interruption())
    waited_s = read_checkpoint(state.config.run_dir / NEWEST)["state"]["waited_s"]
    assert set(waited_s) == {"save_every", "fid_every"} and all(seconds > 0 for seconds in waited_s.values())
    state.load_state_dict(state.state_dict() | {"waited_s": waited_s})
    assert state.waited_s == waited_s


def test_a_run_goes_on_waiting_for_what_is_due_by_minutes(build, monkeypatch):
    state = build("training.max_steps=3", "training.save_every=1", "training.sample_every=100min", "training.video_every=90min")
    state.waited_s = {"sample_every": 6000.0, "video_every": 60.0}
    drawn, saved = [], []
    monkeypatch.setattr(loop, "write_sheet", lambda session, quality: drawn.append(session.state.step))
    monkeypatch.setattr(session, "save_newest", lambda checkpoint, numbers: saved.append(checkpoint.state["waited_s"]))
    train(state, Grey(), Interruption())
    assert drawn == [1, 3] and all(waited_s["video_every"] >= 60 for waited_s in saved)  # also before it was first asked for


def test_a_run_saves_and_draws_by_minutes(build, monkeypatch):
    state = build("training.max_steps=3", "training.save_every=100min", "training.sample_every=0.000001min")
    drawn = []
    monkeypatch.setattr(loop, "write_sheet", lambda session, quality: drawn.append(session.state.step))
    train(state, Grey(), Interruption())
    assert drawn == [1, 2, 3]
    assert saved_step(state) == 3  # at the end alone
