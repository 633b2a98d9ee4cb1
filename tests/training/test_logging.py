"""A run's numbers on the disk: rows that go on where a run does, and what is lost without ending it."""

import json
import sys
from types import SimpleNamespace

import graf.runtime.files
from graf.errors import GrafError
from graf.pictures.outputs import write_image
from graf.training import samples
from graf.training.logging import RunLog, tag_of
from graf.training.samples import write_progress

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from full_disk import small_files
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.fixture(autouse=True)
def nothing_given_up(monkeypatch):
    monkeypatch.setattr(graf.runtime.files, "_lost", set())


def test_rows_after_the_step_and_lines_that_are_none_are_dropped(smoke, tmp_path):
    rows = [
        b'{"step": 1, "loss_d": 2.0}',
        b"3",
        b"{}",
        b'{"step": null}',
        b'{"st\xff',
        b"\xff\xfe",
        b'{"step": 2}',
        b'{"step": 3}',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(rows) + b'\n{"step": 2, "cut')
    RunLog(tmp_path, smoke("training.monitoring=none"), step=2).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1, "loss_d": 2.0}\n{"step": 2}\n'


@pytest.mark.parametrize("end", [b"", b'{"step": 2, "cut'])
def test_rows_at_the_end_are_dropped_without_room_for_a_copy(smoke, tmp_path, end):
    rows = [b'{"step": %d}\n' % step for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(rows) + end)
    with small_files(0):
        RunLog(tmp_path, smoke("training.monitoring=none"), step=2).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(rows[:2])


def test_a_row_that_found_no_room_leaves_no_half_line(smoke, tmp_path):
    log = RunLog(tmp_path, smoke("training.monitoring=none"), step=0)
    log.scalars({"loss_d": 1.0}, 1)
    with small_files(40):
        log.scalars({"loss_d": 2.0}, 2)
    log.scalars({"loss_d": 3.0}, 3)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 3]


def test_a_log_that_cannot_be_opened_ends_no_run(smoke, tmp_path, caplog):
    (tmp_path / "metrics.jsonl").mkdir()
    (tmp_path / "tensorboard").write_text("a file is in the way")
    log = RunLog(tmp_path, smoke("training.monitoring=tensorboard"), step=0)
    assert log.scalars({"loss_d": 1.0}, 1) == {"loss_d": 1.0}
    log.close()
    assert "rows of metrics.jsonl cannot be written" in caplog.text
    assert "TensorBoard's events cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("loss_d", "losses/loss_d"),
        ("penalty", "losses/penalty"),
        ("logit_fake", "logits/logit_fake"),
        ("grad_norm_g", "gradients/grad_norm_g"),
        ("gradient_scale_d", "gradients/gradient_scale_d"),
        ("divergence", "losses/divergence"),
        ("lr_g", "rates/lr_g"),
        ("lr", "rates/lr"),
        ("val_azimuth_deg", "metrics/val_azimuth_deg"),
        ("opacity", "images/opacity"),
    ],
)
def test_curves_are_grouped(name, tag):
    assert tag_of(name) == tag


def test_tensorboard_has_the_config_a_picture_and_the_time_of_a_step(smoke, tmp_path):
    log = RunLog(tmp_path, smoke("training.monitoring=tensorboard"), step=0)
    imageio.imwrite(tmp_path / "sheet.png", np.zeros((4, 4, 3), np.uint8))
    log.scalars({"loss_d": 1.0}, 10)
    log.memory({"host_bytes": 1e9, "machine_cpu_percent": 50.0, "gpu_temperature_c": 61.0}, 10)
    log.speed(0.5, 10)
    log.picture("samples", tmp_path / "sheet.png", 10)
    log.picture("samples", tmp_path / "missing.png", 20)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    readings = {"memory/host_bytes", "machine/machine_cpu_percent", "machine/gpu_temperature_c"}
    assert {"losses/loss_d", "speed/seconds_per_step", "speed/steps_per_second"} | readings == set(tags["scalars"])
    assert tags["images"] == ["samples"] and [image.step for image in events.Images("samples")] == [10]
    (config,) = events.Tensors("config/text_summary")
    assert b"netwidth" in config.tensor_proto.string_val[0]
    assert not (tmp_path / "metrics.jsonl").read_text().count("seconds")


def test_a_continued_run_hides_what_comes_after_its_step(smoke, tmp_path, monkeypatch):
    hidden_from, config = [], smoke("training.monitoring=tensorboard")

    def writer(folder, purge_step):
        hidden_from.append(purge_step)
        return SimpleNamespace(add_text=lambda *_: None, close=lambda: None)

    monkeypatch.setattr("graf.training.logging.SummaryWriter", writer)
    log = RunLog(tmp_path, config, step=10)
    log.continue_after(4)
    log.close()
    assert hidden_from == [11, 5]


def plotted(run_dir):
    """The steps of a curve in TensorBoard, whose files of one second it reads in the order of their names: 10 before 9."""
    steps = []
    for file in (run_dir / "tensorboard").iterdir():
        events = EventAccumulator(str(file))
        events.Reload()
        steps += [event.step for event in events.Scalars("losses/loss_d")]
    return sorted(steps)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_goes_on_once_a_full_disk_has_room(smoke, tmp_path):
    log, steps = RunLog(tmp_path, smoke("training.monitoring=tensorboard"), step=0), iter(range(1, 10_000))
    log.scalars({"loss_d": 1.0}, next(steps))
    log.tensorboard.flush()
    with small_files(0):
        for _ in range(2):  # the writer that there is, and one of the full disk; both write in a thread
            log.scalars({"loss_d": 1.0}, next(steps))
            while log.tensorboard is not None:
                log.scalars({"loss_d": 1.0}, next(steps))
    last = next(steps)
    log.scalars({"loss_d": 1.0}, last)
    log.close()
    assert all(file.stat().st_size for file in (tmp_path / "tensorboard").iterdir())
    assert plotted(tmp_path) == [1, last]


def test_tensorboard_begins_late_where_the_disk_was_full_at_the_start(smoke, tmp_path):
    (tmp_path / "tensorboard").write_text("a file is in the way")
    log = RunLog(tmp_path, smoke("training.monitoring=tensorboard"), step=0)
    (tmp_path / "tensorboard").unlink()
    log.scalars({"loss_d": 1.0}, 1)
    log.close()
    assert plotted(tmp_path) == [1]


def test_wandb_knows_a_run_that_is_continued(smoke, tmp_path, monkeypatch):
    started, logged, axes = [], [], []
    run = SimpleNamespace(
        finish=lambda: None,
        log=logged.append,
        define_metric=lambda name, step_metric: axes.append((name, step_metric)),
    )
    wandb = SimpleNamespace(init=lambda **given: (started.append(given["id"]), run)[1])
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for name, step in (("a", 0), ("a", 2), ("b", 0)):
        (tmp_path / name).mkdir(exist_ok=True)
        log = RunLog(tmp_path / name, smoke("training.monitoring=wandb"), step)
        log.scalars({"loss_d": 0.5}, step + 1)
        log.close()
    assert started[0] == started[1] != started[2]
    assert axes == [("*", "step")] * 3 and [row["step"] for row in logged] == [1, 3, 1]


def test_a_wandb_that_does_not_start_is_told(smoke, tmp_path, monkeypatch):
    def fail(**_):
        raise Exception("api_key not configured (no-tty)\ncall wandb.login")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=fail))
    with pytest.raises(GrafError, match=r"wandb does not start \(api_key not configured \(no-tty\)\); run `wandb login`, or"):
        RunLog(tmp_path, smoke("training.monitoring=wandb"), 0)


def test_progress_is_shown_until_its_step_from_the_first_grid_to_the_last(tmp_path, monkeypatch):
    """Grids of later steps are of before the run went back; of five, three are spread evenly."""
    (tmp_path / "samples").mkdir()
    for step in (10, 20, 30, 40, 50, 60):
        write_image(tmp_path / "samples" / f"{step:08d}_rgb.png", torch.zeros(3, 8, 8, dtype=torch.uint8))
    monkeypatch.setattr(samples, "write_gif", lambda path, shown: [int(grid.name[:8]) for grid in shown])
    assert write_progress(tmp_path, 50) == [10, 20, 30, 40, 50]
    monkeypatch.setattr(samples, "MOST_FRAMES", 3)
    assert write_progress(tmp_path, 50) == [10, 30, 50]
    assert write_progress(tmp_path, 10) is None


@pytest.mark.parametrize("damage", [b"", b"no picture"])
def test_a_damaged_sheet_ends_no_run(tmp_path, caplog, damage):
    sheets = tmp_path / "samples"
    sheets.mkdir()
    for step in (10, 20):
        write_image(sheets / f"{step:08d}_rgb.png", torch.zeros(3, 8, 8, dtype=torch.uint8))
    (sheets / "00000010_rgb.png").write_bytes(damage)
    assert write_progress(tmp_path, 20) is None
    assert "progress.gif is not written: an image grid of" in caplog.text and not (sheets / "progress.gif").exists()
