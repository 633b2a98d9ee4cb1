"""tools/monitor_training.py: what a run's files tell of it, in the terminal and in a browser."""

import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

from graf.errors import GrafError
from graf.memory.leaks import LeakReport
from graf.memory.monitor import MemoryMonitor
from graf.reporting import run_status, status_page
from graf.reporting.run_status import Limits, RunStatus, read_status, runs_below, thinned, trend
from graf.runtime.limits import GB, MB
from graf.training.logging import RunLog

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from rich.console import Console
from test_curves import result
from test_report import BROWSERS, EVIL, Page, content, probed, put_png

NOW = 1_000_000.0
SICK = {"mean_opacity": 0.01, "depth_spread": 0.0, "depth_range": 2.0, "empty_share": 1.0, "full_share": 0.0}


def put_rows(path: Path, *rows: dict, when: float = NOW) -> None:
    """Append rows to a file that is changed at `when`."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    os.utime(path, (when, when))


def memory_row(when: float, step: int, **values: object) -> dict:
    return {"time": when, "step": step, "phase": "train", "host_bytes": 2 * GB, "workers": 0, "workers_bytes": 0} | values


def put_status(run: Path, when: float = NOW, **values: object) -> None:
    """status.json of a run at step 400 of 1000, 2 steps per second, as training writes it at `when`."""
    status = {"state": "running", "time": when, "step": 400, "max_steps": 1000, "steps_per_s": 2.0, "interval_s": 5.0}
    (run / "status.json").write_text(json.dumps(status | values))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """It is NOW."""
    clock = SimpleNamespace(now=NOW)
    monkeypatch.setattr("graf.reporting.run_status.time", SimpleNamespace(time=lambda: clock.now))
    return clock


@pytest.fixture
def run(tmp_path):
    """A run at step 400 of 1000 that takes 2 steps a second, with samples."""
    run = tmp_path / "chairs & <b>tables"
    run.mkdir()
    (run / "config.yaml").write_text("training:\n  max_steps: 1000\n")
    losses = ({"step": s, "loss_d": 8 - s / 50, "loss_g": 1.5, "lr_g": 1e-3} for s in range(50, 401, 50))
    put_rows(run / "metrics.jsonl", *losses)
    rows = (memory_row(NOW - (400 - s) / 2, s, host_bytes=GB + s * MB) for s in range(0, 401, 10))
    put_rows(run / "memory.jsonl", *rows)
    for step in (200, 400):
        for kind in ("depth", "rgb"):
            path = put_png(run / "samples" / f"{step:08d}_{kind}.png", step % 251)
            os.utime(path, (NOW - (400 - step) / 2,) * 2)
    put_status(run)
    return run


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    import monitor_training

    return monitor_training


def test_of_a_log_whole_lines_are_read_and_damaged_ones_told(run):
    lines = b'{"step": 1, "loss_d": 1}\n{"cut sh\n\xff\n[1]\n\n{"step": "2"}\n{"step": 4, "loss_d": 4}\n{"st'
    (run / "metrics.jsonl").write_bytes(lines)
    status = read_status(run)
    assert status.losses == {"loss_d": (1, 4)}
    assert status.warnings == ("metrics.jsonl: 3 of its lines cannot be read and are left out",)


def test_of_a_large_file_the_end_alone_is_read(run, monkeypatch):
    monkeypatch.setattr(run_status, "TAIL_BYTES", 100)
    (run / "metrics.jsonl").unlink()
    put_rows(run / "metrics.jsonl", *({"step": 0, "loss_d": step} for step in range(1000, 2000)))  # 28 bytes each
    assert read_status(run).losses == {"loss_d": (1997, 1998, 1999)}
    assert read_status(run).warnings == ()


def test_a_trend_is_more_than_noise():
    noise = np.random.default_rng(0).normal(0, 1, 200)
    assert [trend(values.tolist()) for values in (noise, noise + np.linspace(0, 4, 200), noise - np.linspace(0, 4, 200))] == [
        "steady", "rising", "falling",
    ]  # fmt: skip
    assert trend([1.0] * 8) == "steady"
    assert trend(range(7)) == ""


def test_thinned_values_are_means_of_neighbours_and_leave_none_out():
    assert thinned([1, 2, 3, 4, 5, 9], 3) == [1.5, 3.5, 7]
    assert thinned([1, 2], 3) == [1, 2]
    assert thinned([], 3) == []
    assert thinned(range(5), 2) == [0.5, 3]


def test_a_run_on_its_way(run):
    status = read_status(run)
    assert (status.state, status.step, status.max_steps, status.phase) == ("running", 400, 1000, "train")
    assert status.steps_per_s == pytest.approx(2)
    assert status.seconds_left == pytest.approx(300)
    assert status.losses == {"loss_d": tuple(8 - s / 50 for s in range(50, 401, 50)), "loss_g": (1.5,) * 8}
    assert status.memory == {"process": tuple(GB + s * MB for s in range(0, 401, 10))}  # no workers, no GPU
    assert status.memory_s == 200
    assert [path.name for path in status.samples] == ["00000400_rgb.png", "00000400_depth.png"]
    assert status.warnings == ()


def test_what_a_run_appends_is_seen_at_the_next_look(run, clock):
    clock.now += 50
    put_rows(run / "memory.jsonl", memory_row(clock.now, 600, phase="sample", gpu_temperature_c=61, gpu_power_w=210.5))
    status = read_status(run)
    assert (status.step, status.phase) == (600, "sample")
    assert status.steps_per_s == 2
    assert status.gpu == {"gpu_temperature_c": 61, "gpu_power_w": 210.5}


def test_states_of_a_run(run, clock):
    clock.now = NOW + 59
    assert read_status(run).state == "running"
    clock.now = NOW + 61
    assert read_status(run).state == "silent"
    assert read_status(run).seconds_left is None
    put_status(run, interval_s=6.2)  # steps so slow that 62 s without news are usual
    assert read_status(run).state == "running"
    put_status(run, state="stopped")
    put_rows(run / "memory.jsonl", memory_row(NOW + 1, 401))
    assert read_status(run).state == "stopped"
    assert read_status(run).seconds_left is None
    put_status(run, clock.now, state="finished", step=1000)
    assert read_status(run).state == "finished"
    put_status(run, clock.now, step=1000, max_steps=2000)  # and is continued
    assert read_status(run).state == "running"


def test_a_run_of_before_status_json_has_the_step_of_its_last_row_and_no_speed(run, clock):
    (run / "status.json").unlink()
    status = read_status(run)
    assert (status.state, status.step, status.max_steps, status.steps_per_s) == ("running", 400, 1000, None)
    (run / "memory.jsonl").unlink()
    assert (read_status(run).state, read_status(run).step) == ("running", 400)
    clock.now += 61
    assert read_status(run).state == "silent"
    put_rows(run / "metrics.jsonl", {"step": 1000, "loss_d": 1.0})
    assert read_status(run).state == "finished"
    (run / "config.yaml").write_text("training: [cut")
    assert (read_status(run).state, read_status(run).max_steps) == ("silent", None)


@pytest.mark.parametrize("damaged", ["[]", "{", "[" * 100_000, '{"step": "x", "time": null, "max_steps": []}'])
def test_a_status_file_that_cannot_be_read_is_as_none(run, damaged):
    (run / "status.json").write_text(damaged)
    assert (read_status(run).step, read_status(run).max_steps, read_status(run).steps_per_s) == (400, 1000, None)


def test_a_run_that_has_not_written_yet(tmp_path, program):
    status = read_status(tmp_path)
    assert (status.state, status.step, status.max_steps, status.steps_per_s) == ("starting", 0, None, None)
    assert "has not taken a step yet" in text_of(program.page(status))
    assert "has not taken a step yet" in Page(status_page.html(status)).text
    (tmp_path / "config.yaml").write_text("training: [cut")
    put_rows(tmp_path / "memory.jsonl", memory_row(NOW, 0))
    assert read_status(tmp_path).state == "starting"


def test_of_a_copy_the_times_of_its_files_tell_nothing(run, clock):
    clock.now = NOW + 90_000
    for file in filter(Path.is_file, run.rglob("*")):
        os.utime(file, (clock.now, clock.now))
    assert (read_status(run).state, read_status(run).written) == ("silent", NOW)


def test_damage_is_told(run, program):
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n{"step": 4\n\n')
    status = read_status(run)
    (lines,) = status.warnings
    assert lines == "metrics.jsonl: 2 of its lines cannot be read and are left out"
    assert lines in text_of(program.page(status))


def test_warnings_tell_of_leaks_collapse_and_values_that_are_not_finite(run):
    leak = LeakReport("host", 300, 160, 80.0, 2 * MB, GB, 3 * GB, {"train": 320 * MB})
    put_rows(run / "memory.jsonl", {"time": NOW - 600, "step": 300, "leak": leak.as_row()}, memory_row(NOW, 401))
    put_rows(run / "metrics.jsonl", {"step": 400} | SICK, {"step": 410, "loss_d": None}, {"step": 420, "loss_d": None})
    leaks, collapse, values = read_status(run).warnings
    assert leaks == f"{leak.message()} (10 min ago)"
    assert collapse.startswith("step 400: 100% of the sample images are empty")
    assert values == "values that were not finite, of the last 10 rows: loss_d in 2"


GPU = {"gpu_used_bytes": 39 * GB, "gpu_total_bytes": 40 * GB, "gpu_temperature_c": 88}  # 97.5 %


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(), ["the GPU is 98% full (39.00 of 40.00 GB, all processes together)", "the GPU is at 88 C"]),
        (Limits(card_percent=97.5, hot_c=88), ["the GPU is 98% full", "the GPU is at 88 C"]),
        (Limits(card_percent=98, hot_c=88), ["the GPU is at 88 C"]),
        (Limits(card_percent=98, hot_c=89), []),
    ],
)
def test_a_nearly_full_gpu_and_a_hot_one_are_warned_of_while_the_run_goes_on(run, limits, told):
    put_rows(run / "memory.jsonl", memory_row(NOW, 401, **GPU))
    found = read_status(run, limits).warnings
    assert len(found) == len(told)
    assert all(line.startswith(start) for line, start in zip(found, told, strict=True))
    put_status(run, step=1000)
    assert read_status(run, limits).warnings == ()


@pytest.mark.parametrize(("hot_cpu_c", "told"), [(95, True), (96, True), (97, False)])
def test_a_hot_cpu_is_warned_of_and_told(run, hot_cpu_c, told):
    put_rows(run / "memory.jsonl", memory_row(NOW, 401, run_cpu_percent=100, machine_cpu_percent=50, cpu_temperature_c=96))
    status = read_status(run, Limits(hot_cpu_c=hot_cpu_c))
    assert [warning.startswith("the CPU is at 96 C") for warning in status.warnings] == [True] * told
    assert status_page.facts(status)["cpu"] == "1.0 cores busy with the run, 50 % of the machine's in all, 96 C"


@pytest.mark.parametrize(("late", "slowdown", "told"), [(1.5, 2, True), (1.5, 3.5, False), (0.5, 2, False), (None, 2, False)])
def test_steps_slower_than_their_median_are_warned_of(run, late, slowdown, told):
    put_status(run, seconds_per_step=0.5, late_seconds_per_step=late)
    found = read_status(run, Limits(slowdown=slowdown)).warnings
    assert len(found) == told
    if told:
        assert found[0].startswith("a step takes 1.5 s of late, 3.0 times the median of such steps, 0.5 s; ")


def test_the_cpu_is_told_while_the_run_goes_on(run, clock, program):
    put_rows(run / "memory.jsonl", memory_row(NOW, 400, run_cpu_percent=185.3, machine_cpu_percent=61.5))
    status = read_status(run)
    assert status_page.facts(status)["cpu"] == "1.9 cores busy with the run, 62 % of the machine's in all"
    assert "1.9 cores busy" in text_of(program.page(status)) and "1.9 cores busy" in Page(status_page.html(status)).text
    put_rows(run / "memory.jsonl", memory_row(NOW, 1000, run_cpu_percent=185.3, machine_cpu_percent=61.5, gpu_power_w=300))
    put_status(run, step=1000)
    assert status_page.facts(read_status(run)).keys() == {"state", "step", "speed"}


def test_the_memory_of_a_run_that_is_over_does_not_rise(run, program):
    for over in (False, True):
        if over:
            put_status(run, step=1000)
        status = read_status(run)
        for text in (text_of(program.page(status)), Page(status_page.html(status)).text):
            assert ("rising" in text) is not over
            assert "falling" in text  # of loss_d, which tells of the training


def test_a_leak_row_of_another_version_and_odd_numbers_are_left_out(run):
    other_leak = {"time": NOW, "step": 400, "leak": {"source": "host"}}
    put_rows(run / "memory.jsonl", other_leak, memory_row(NOW, 400, host_bytes=10**400))
    odd = {"step": 450, "loss_d": "x", "loss_g": float("nan")}
    put_rows(run / "metrics.jsonl", odd, {"step": 460} | SICK | {"empty_share": "x"})
    status = read_status(run)
    assert status.warnings == ()
    assert len(status.memory["process"]) == 41
    assert len(status.losses["loss_g"]) == 8


def test_rows_are_understood_as_the_run_writes_them(tmp_path, smoke):
    run_log = RunLog(tmp_path, smoke("training.monitoring=none"), 0)
    run_log.scalars({"loss_d": torch.tensor(0.5), "opacity": 0.2}, 3)
    run_log.close()
    monitor = MemoryMonitor(tmp_path / "memory.jsonl", 0, torch.device("cpu"))
    monitor.step_done(3)
    monitor._sample(unique=True)
    status = read_status(tmp_path)
    assert (status.step, status.phase, status.losses) == (3, "train", {"loss_d": (0.5,)})
    assert status.memory["process"][0] > MB


def text_of(page, **options) -> str:
    console = Console(file=io.StringIO(), width=80, **options)
    console.print(page)
    return console.file.getvalue()


def test_the_terminals_page_tells_all_in_80_columns(run, program):
    put_rows(run / "memory.jsonl", memory_row(NOW, 400, gpu_temperature_c=61, gpu_utilization_percent=98))
    put_rows(run / "metrics.jsonl", {"step": 400, "loss_g": None})
    text = text_of(program.page(read_status(run)))
    for part in ("running", "400 of 1,000 (40.0%)", "2 steps per second", "in 5 min, about ", "61 C, 98 % busy", "400_rgb.png"):
        assert part in text
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert lines["loss_d"][:4] == ["0", "0", "7", "falling"]
    assert lines["process"][:7] == ["2.00", "GB", "1.00", "GB", "2.00", "GB", "rising"]
    assert "warning: values that were not finite" in text


def test_distances_of_the_newest_protocol_are_told_with_it(run, program):
    assert read_status(run).measured is None
    kids = {100: 0.4, 200: 0.3, 300: 0.2}
    rows = ({"step": step, "evaluation": result(kid, n_fake=7 if step == 100 else 30)} for step, kid in kids.items())
    unfinished = {"step": 400, "evaluation": result(values={"kid_efficientnet-lite0": None})}
    put_rows(run / "metrics.jsonl", *rows, unfinished, {"step": 400, "evaluation": {"values": {"pose_deg": 3.0}}})
    status = read_status(run)
    assert (status.measured.step, status.measured.values) == (300, {"KID": (0.3, 0.2), "FID": (3.0, 2.0)})
    told = "KID 0.2, FID 2 at step 300 (30 generated and 20 real images, efficientnet-lite0)"
    assert status_page.facts(status)["quality"] == told
    page = Page(status_page.html(status))
    assert told in page.text and "KID 0.2 0.2 0.3" in page.text
    assert told in " ".join(text_of(program.page(status)).replace("\n", " ").split())


def test_the_page_has_a_bar_with_the_time_left_and_colours_before_depth(run):
    page = Page(status_page.html(read_status(run)))
    assert [attributes for tag, attributes in page.tags if tag == "progress"] == [{"max": "1000", "value": "400"}]
    assert "40%, 5 min left" in page.text
    assert page.captions == ["samples/00000400_rgb.png", "samples/00000400_depth.png"]
    assert page.text.index("samples/") < page.text.index("loss_d")
    (run / "config.yaml").unlink()  # how many steps there will be is not known
    (run / "status.json").unlink()
    assert "progress" not in {tag for tag, _ in Page(status_page.html(read_status(run))).tags}


def test_a_curve_goes_from_the_lowest_bar_to_the_highest(program):
    assert program.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == program.BARS
    assert program.sparkline([0, 0, 7, 7], 2, program.ASCII_BARS) == "_@"
    assert program.sparkline([3.0] * 5, 4) == program.BARS[0] * 4


def test_a_name_is_text_and_no_markup(run, program):
    put_rows(run / "metrics.jsonl", {"step": 400, "loss_[red]x[/red]": 1, f"loss_{EVIL}": 2})
    status = read_status(run)
    assert "loss_[red]x[/red]" in text_of(program.page(status))
    assert EVIL not in status_page.html(status)


def leave_with(program, monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["monitor_training.py", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        program.run_script(program.main)
    return ended.value.code


def test_once_prints_a_page_and_leaves(run, program, monkeypatch, capsys):
    assert leave_with(program, monkeypatch, run, "--once") == 0
    assert "400 of 1,000" in capsys.readouterr().out


@pytest.mark.parametrize("interval_s", ["0", "-1", "nan", "inf"])
def test_an_interval_is_seconds_above_0(run, program, monkeypatch, capsys, interval_s):
    assert leave_with(program, monkeypatch, run, "--interval_s", interval_s) == 2
    assert "expected seconds above 0" in capsys.readouterr().err


@pytest.fixture
def results(tmp_path, monkeypatch):
    """results/ with the runs old and sets/new, of which the latter was written last, and a folder that is none."""
    monkeypatch.chdir(tmp_path)
    for name, when in (("old", NOW - 9000), ("sets/new", NOW - 50)):
        (tmp_path / "results" / name).mkdir(parents=True)
        put_rows(tmp_path / "results" / name / "memory.jsonl", memory_row(when - 5, 1), memory_row(when, 11), when=when)
    (tmp_path / "results" / "data_check").mkdir()
    return tmp_path / "results"


def test_without_a_run_the_newest_is_shown(results, program, monkeypatch, capsys):
    assert leave_with(program, monkeypatch, "--once") == 0
    assert capsys.readouterr().out.startswith("results/sets/new\n")
    shutil.rmtree(results)
    assert leave_with(program, monkeypatch, "--once") == 2
    assert "results: no run here; start one with python train.py" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cameras/round_1/estimator", "cameras/round_0/start_1/generator"])
def test_a_run_of_find_cameras_is_seen_too(results, program, monkeypatch, capsys, name):
    (results / name / "runs" / "inside").mkdir(parents=True)
    put_rows(results / name / "memory.jsonl", memory_row(NOW - 5, 1), memory_row(NOW, 11), when=NOW)
    put_rows(results / name / "runs" / "inside" / "memory.jsonl", memory_row(NOW, 1), when=NOW + 5)
    assert leave_with(program, monkeypatch, "--once") == 0
    assert capsys.readouterr().out.startswith(f"results/{name}\n")


def test_a_link_around_lists_no_run_twice(results):
    before = runs_below(results)
    (results / "around").symlink_to(results)
    assert runs_below(results) == before


def test_of_a_folder_of_runs_the_runs_are_listed(results, program, monkeypatch, capsys):
    assert leave_with(program, monkeypatch, "results") == 2
    first, *runs = capsys.readouterr().err.splitlines()
    assert first.endswith("results: name one of the runs in it, the newest first:")
    assert runs[0] == "  results/sets/new: step 11, running"
    assert runs[1].startswith("  results/old: step 11, silent for")


def test_a_folder_where_nothing_is_of_a_run_is_none_and_one_that_is_locked_starts(tmp_path, program, monkeypatch, capsys):
    (tmp_path / "photo.png").touch()
    assert leave_with(program, monkeypatch, tmp_path, "--once") == 2
    assert f"{tmp_path}: no run here (none of config.yaml, metrics.jsonl, " in capsys.readouterr().err
    (tmp_path / "run.lock").touch()
    assert leave_with(program, monkeypatch, tmp_path, "--once") == 0
    assert "has not taken a step yet" in capsys.readouterr().out


def test_a_run_that_is_not_there_is_status_2(tmp_path, program, monkeypatch, capsys):
    assert leave_with(program, monkeypatch, tmp_path / "missing", "--web") == 2
    assert "missing: no such folder; name that of a run" in capsys.readouterr().err
    (tmp_path / "model.pt").touch()
    assert leave_with(program, monkeypatch, tmp_path / "model.pt") == 2
    assert f"model.pt: a file; name the folder of the run, such as {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--interval_s", "0"], ["--once", "--web"], ["--port", "x"]])
def test_flags_that_make_no_sense_are_refused(words, run, program, monkeypatch, capsys):
    assert leave_with(program, monkeypatch, run, *words) == 2
    assert "error: " in capsys.readouterr().err


def test_the_live_page_follows_the_run_until_ctrl_c(run, program, monkeypatch):
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt
        put_status(run, step=500 + len(looks))

    monkeypatch.setattr(program.time, "sleep", sleep)
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40)
    program.show(lambda: read_status(run), console, 1.5, once=False)
    assert looks == [1.5] * 3
    shown = console.file.getvalue()
    assert shown.index("400 of") < shown.index("501 of") < shown.index("502 of")


def test_a_warning_is_seen_in_a_terminal_of_24_lines(run, program, monkeypatch):
    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program.time, "sleep", sleep)
    put_rows(run / "memory.jsonl", memory_row(NOW, 401, **GPU))
    put_rows(run / "metrics.jsonl", {"step": 401} | {f"loss_{i}": 1.0 for i in range(20)})
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    program.show(lambda: read_status(run), console, 1.5, once=False)
    live, leave_screen, _ = console.file.getvalue().partition("\x1b[?1049l")
    assert leave_screen and "% full" in live


def test_ctrl_c_ends_the_server_quietly(run, program, monkeypatch, capsys, caplog):
    def interrupt(_server) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status_page.ThreadingHTTPServer, "serve_forever", interrupt)
    with caplog.at_level("INFO", logger="graf"):
        assert leave_with(program, monkeypatch, run, "--web", "--port", "0") == 0
    assert "http://127.0.0.1:" in caplog.text
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def served(run):
    """The port at which the run's page is served."""
    with status_page.make_server(lambda: read_status(run), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def fetch(port: int) -> tuple[Page, dict]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        return Page(answer.read().decode()), dict(answer.headers)


def test_the_page_has_all_numbers_and_the_newest_samples_byte_for_byte(run, served):
    page, headers = fetch(served)
    assert (headers["Refresh"], headers["Cache-Control"]) == ("5", "no-store")
    for part in ("40% chairs & <b>tables", "running", "400 of 1,000", "in 5 min", "loss_d 0 0 7 falling", "process 1.39 GB"):
        assert part in page.text
    pictures = [content(attributes) for _, attributes in page.media]
    assert pictures == [("image/png", (run / "samples" / f"00000400_{kind}.png").read_bytes()) for kind in ("depth", "rgb")]
    assert page.links == []
    assert not any("src" in attributes and not attributes["src"].startswith("data:") for _, attributes in page.tags)
    put_status(run, step=450)
    assert "450 of 1,000" in fetch(served)[0].text


@pytest.mark.parametrize(
    "path",
    ["/config.yaml", "/samples/00000400_rgb.png", "/../config.yaml", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%5c.."],
)
def test_no_path_leads_to_a_file(served, path):
    connection = http.client.HTTPConnection("127.0.0.1", served, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 404
    assert b"max_steps" not in answer.read()
    connection.close()


@pytest.mark.parametrize("host", ["example.org:80", "example.org"])
def test_a_page_under_another_name_is_refused(served, host):
    request = urllib.request.Request(f"http://127.0.0.1:{served}/", headers={"Host": host})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=60)


def test_a_curve_rises_on_the_page_where_its_values_rise():
    """Pixels from above, one of them free at either side."""
    top, bottom = "1.0", f"{status_page.CURVE_HEIGHT - 1:.1f}"
    assert status_page.polyline([3.0, 7.0, 3.0]) == [bottom, top, bottom]


def test_a_port_that_is_taken_is_named(run, served):
    with pytest.raises(GrafError, match=f"--port {served}: .*name another"):
        status_page.make_server(lambda: read_status(run), served)


def test_samples_that_vanish_or_are_large_leave_the_page_whole(run, monkeypatch):
    status = read_status(run)
    status.samples[0].unlink()
    monkeypatch.setattr(status_page, "FILE_MB", 0)
    page = Page(status_page.html(status))
    assert page.media == []
    assert "00000400_depth.png: over 0 MB, not shown" in page.text


def test_the_time_left_is_that_of_steps_that_take_as_long_as_the_last_ones(run, clock):
    put_status(run, same_pace_until=500)
    assert read_status(run).seconds_left == pytest.approx(50)
    facts = status_page.facts(read_status(run))
    assert facts["step 500"].startswith("in 50 s") and "end" not in facts
    assert "40%, 50 s to step 500" in Page(status_page.html(read_status(run))).text
    put_rows(run / "memory.jsonl", memory_row(clock.now + 1, 500))  # newer, and of the last step of its kind
    assert read_status(run).seconds_left is None
    put_status(run, clock.now + 2, step=501, same_pace_until=1000)
    assert "about" in status_page.facts(read_status(run))["end"]
    for damaged in ("x", [], True):
        put_status(run, clock.now + 2, same_pace_until=damaged)
        assert read_status(run).seconds_left == pytest.approx(300)  # from step 400 to step 1000


def test_an_end_too_far_for_a_date_has_none():
    status = RunStatus(Path("run"), NOW, 1, 10**9, 1e-6, written=NOW)
    assert status_page.facts(status)["end"] == "in 11574074062.5 days"


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_of_the_page_lies_beyond_the_edge_of_a_telephone(run, tmp_path, width):
    gpu = dict.fromkeys(("allocated_bytes", "reserved_bytes", "gpu_used_bytes", "gpu_total_bytes"), 140.12 * GB)
    put_rows(run / "memory.jsonl", memory_row(NOW, 401, workers_bytes=GB, **gpu, gpu_temperature_c=88))
    put_rows(run / "metrics.jsonl", *({"step": 401 + i, "loss_label": -0.00012345 * 0.9**i} for i in range(20)))
    (tmp_path / "page.html").write_text(status_page.html(read_status(run)), encoding="utf-8")
    found = probed(tmp_path / "page.html", tmp_path, width)
    assert len(found["images"]) == 2
    assert found["broken"] == []
    assert found["bodyWidth"][0] <= found["bodyWidth"][1]


def test_a_browser_shows_the_samples_and_complains_of_nothing(run, served, tmp_path):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser here (looked for {', '.join(BROWSERS)})")
    magenta = np.zeros((64, 64, 3), dtype=np.uint8)
    magenta[..., (0, 2)] = 255
    imageio.imwrite(run / "samples" / "00000400_rgb.png", magenta)
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--window-size=1000,1600"),
            *(f"--screenshot={shot}", f"http://127.0.0.1:{served}/"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    pixels = imageio.imread(shot)[..., :3]
    assert (pixels == (255, 0, 255)).all(-1).sum() == 512 * 512  # enlarged by a whole factor, without blur
