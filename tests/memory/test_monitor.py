"""The monitor's rows, lines and warnings; and that nothing that goes wrong in it reaches the training."""

import errno
import itertools
import json
import logging
import subprocess
import sys
import time
from types import SimpleNamespace

from graf.memory import monitor as monitor_module
from graf.memory import readings
from graf.memory.monitor import MemoryMonitor, drop_cut_line, pause
from graf.memory.process_tree import ProcessTree
from graf.memory.readings import CpuLoad, Gpu, read_allocator
from graf.runtime.limits import GB, MB

import psutil
import pytest
import torch
from full_disk import small_files

CPU = torch.device("cpu")
SLEEP = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "memory.jsonl"


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def planted(monitor: MemoryMonitor, monkeypatch, levels_mb) -> None:
    """Let the resident set be what levels_mb says, one value a look, and have every step looked at."""
    levels = iter(levels_mb)
    monkeypatch.setattr(monitor._tree, "resident_bytes", lambda: int(next(levels) * MB))
    monkeypatch.setattr(monitor_module, "pause", lambda interval_s, spent_s: 0)


def test_a_thread_that_cannot_be_started_costs_the_rows_and_not_the_run(no_new_threads, path, caplog):
    with MemoryMonitor(path, 0.005, CPU) as monitor:
        monitor.step_done(1)
    assert caplog.messages == ["memory monitor: no rows are written (RuntimeError: can't start new thread)"]
    assert not path.exists()


def test_rows_tell_time_step_phase_and_bytes(path, monkeypatch):
    monkeypatch.setattr(monitor_module, "CPU_SHARE", 1e3)  # no wait but the interval's
    with MemoryMonitor(path, 0.005, CPU) as monitor:
        monitor.step_done(7)
        with monitor.phase("sample"):
            wait_for(lambda: path.exists() and any(row["phase"] == "sample" for row in rows(path)))
    found = rows(path)
    assert found[-1]["step"] == 7
    assert found[-1]["phase"] == "train"
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)
    assert all(row["run_cpu_percent"] >= 0 and 0 <= row["machine_cpu_percent"] <= 100 for row in found)
    assert found[0]["host_unique_bytes"] <= found[0]["host_bytes"]
    assert "host_unique_bytes" not in found[1]  # costs too much for every row
    assert all(row["monitor_cpu_share"] > 0 for row in found)
    assert monitor.latest()["host_bytes"] == found[-1]["host_bytes"]
    assert "host_unique_bytes" in monitor.latest()  # of an earlier row
    assert all(isinstance(value, (int, float)) for value in monitor.latest().values())
    assert not monitor._thread.is_alive()


def test_the_load_is_cpu_time_over_the_time_that_went_by(monkeypatch):
    """Two cores were busy for 4 s with the process, its child and one that has ended meanwhile; then none was."""
    clock, times = [0.0], SimpleNamespace(user=1.0, system=0.5, children_user=0.25, children_system=0.25)
    child = SimpleNamespace(cpu_times=lambda: (clock[0] / 2, 1.0, 99.0))
    tree = ProcessTree()
    tree.process, tree.children = SimpleNamespace(cpu_times=lambda: times), [child]
    monkeypatch.setattr(readings, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(readings.psutil, "cpu_percent", lambda: 62.5)
    load = CpuLoad(tree)
    clock[0], times.user, times.children_user = 4.0, 5.0, 2.25  # 4 s, 2 s of the ended child, 2 s of the child
    assert load.read() == {"run_cpu_percent": 200.0, "machine_cpu_percent": 62.5}
    tree.children = []  # whose time is known no longer
    clock[0] = 8.0
    assert load.read()["run_cpu_percent"] == 0


def test_without_an_interval_there_is_no_thread_and_no_file(path):
    with MemoryMonitor(path, 0, CPU) as monitor:
        monitor.step_done(1)
        assert not monitor._thread.is_alive()
    assert not path.exists()


def test_the_pause_keeps_the_thread_within_its_share():
    assert pause(interval_s=10, spent_s=0.01) == 10
    assert pause(interval_s=1, spent_s=0.01) == pytest.approx(4)  # 0.01 s in 4 s is a quarter of a percent


def test_the_monitors_share_counts_its_rows_and_its_looks_after_steps(path, monkeypatch):
    """Each look at the clock is a second after the one before."""
    monitor, ticks, shares = MemoryMonitor(path, 10, CPU), itertools.count(), []
    clock = SimpleNamespace(time=time.time, monotonic=lambda: monitor._started + 1000, thread_time=lambda: next(ticks))
    monkeypatch.setattr(monitor_module, "time", clock)
    monitor.step_done(1)  # takes a second
    for _ in range(2):  # each takes a second until its share is told, and another one
        monitor._sample(unique=False)
        shares.append(monitor.latest()["monitor_cpu_share"])
    assert shares == pytest.approx([2 / 1000, 4 / 1000])


def test_steps_are_looked_at_no_more_often_than_the_share_allows(few_objects, path, monkeypatch):
    monitor, looks = MemoryMonitor(path, 0, CPU), []
    monkeypatch.setattr(monitor._tree, "resident_bytes", lambda: looks.append(1) or GB)
    monkeypatch.setattr(monitor_module, "pause", lambda interval_s, spent_s: 3600)
    for step in range(50):
        monitor.step_done(step)
    assert len(looks) == 1


def test_the_line_has_gigabytes_of_card_and_host(path, monkeypatch):
    monitor = MemoryMonitor(path, 0, CPU)
    monkeypatch.setattr(
        monitor_module, "read_allocator", lambda device: {"allocated_bytes": 1.5 * GB, "reserved_bytes": 2.25 * GB}
    )
    monkeypatch.setattr(monitor._tree, "resident_bytes", lambda: 3 * GB)
    monitor._latest = {"workers_unique_bytes": GB / 2}
    assert monitor.summary() == "memory: allocated 1.50 GB, reserved 2.25 GB, host 3.50 GB"
    monkeypatch.setattr(monitor_module, "read_allocator", lambda device: {})  # as on a CPU
    assert monitor.summary() == "memory: host 3.50 GB"


def test_phases_nest_and_end_with_an_exception_that_passes(path):
    monitor = MemoryMonitor(path, 0, CPU)
    with pytest.raises(ZeroDivisionError), monitor.phase("metrics"):
        with monitor.phase("sample"):
            assert monitor._phase == "sample"
        assert monitor._phase == "metrics"
        raise ZeroDivisionError
    assert monitor._phase == "train"


def test_a_planted_leak_is_warned_of_written_and_named(few_objects, path, monkeypatch, caplog):
    monitor = MemoryMonitor(path, 0, CPU)
    planted(monitor, monkeypatch, range(1500, 5000))
    kept = []
    with caplog.at_level(logging.WARNING, logger="graf"):
        for step in range(1, 201):
            kept.append(torch.zeros(64, 4099))
            monitor.step_done(step)
    (report,) = monitor.reports
    assert report.bytes_per_step == MB
    assert report.suspects[0].startswith(f"{report.step - monitor_module.CENSUS_STEPS} tensors (64, 4099) float32 on cpu")
    assert [record.getMessage() for record in caplog.records] == [report.message()]
    assert [row["leak"]["step"] for row in rows(path)] == [report.step]


def test_a_leak_is_told_where_objects_cannot_be_counted(few_objects, path, monkeypatch):
    monitor = MemoryMonitor(path, 0, CPU)
    planted(monitor, monkeypatch, range(1500, 5000))
    monkeypatch.setattr(monitor_module, "take_census", lambda: 1 / 0)
    for step in range(1, 201):
        monitor.step_done(step)
    (report,) = monitor.reports
    assert report.bytes_per_step == MB and report.suspects == ()


def test_growth_of_the_workers_is_put_down_to_no_object_of_this_process(few_objects, path, monkeypatch):
    monitor, kept = MemoryMonitor(path, 0, CPU), []
    planted(monitor, monkeypatch, [1500] * 400)
    grown = (100 * MB + n * MB for n in range(200))
    monkeypatch.setattr(monitor._tree, "read", lambda: {"host_bytes": 1500 * MB, "workers": 1, "workers_bytes": next(grown)})
    for step in range(1, 201):
        kept.append(torch.zeros(64, 4099))
        monitor.step_done(step)
        monitor._sample(unique=False)
    (report,) = monitor.reports
    assert report.source == "workers" and report.suspects == ()


def test_growth_in_a_phase_is_put_down_to_it(few_objects, path, monkeypatch):
    monitor = MemoryMonitor(path, 0, CPU)
    levels = (1500 + step + extra for step in range(400) for extra in (0, 0, 1))  # after the step, before and after sampling
    planted(monitor, monkeypatch, levels)
    for step in range(1, 201):
        monitor.step_done(step)
        with monitor.phase("sample"):
            pass
    assert monitor.reports[0].phase == "sample"


def test_a_budget_is_the_limit_that_counts(few_objects, path, monkeypatch):
    monitor = MemoryMonitor(path, 0, CPU, budget_bytes=3 * GB)
    planted(monitor, monkeypatch, range(1500, 5000))
    for step in range(1, 201):
        monitor.step_done(step)
    assert monitor.reports[0].limit_bytes == 3 * GB


def test_the_host_and_the_gpu_have_a_limit_each(path, monkeypatch):
    monkeypatch.setattr(monitor_module, "memory_available", lambda: 5 * GB)
    for device, limits in ((CPU, [3 * GB, 3 * GB]), (torch.device("cuda"), [6 * GB, 6 * GB, 3 * GB])):
        monitor = MemoryMonitor(path, 0, device, budget_bytes=3 * GB)
        for source in ("host", "workers", "device")[: len(limits)]:
            monitor._judge(source, GB)
        assert [detector.limit_bytes for detector in monitor._detectors.values()] == limits


def test_a_row_that_found_no_room_leaves_no_half_line(path):
    monitor = MemoryMonitor(path, 0.1, CPU)
    monitor._sample(unique=False)
    with small_files(path.stat().st_size + 10):
        monitor._sample(unique=False)
    monitor._sample(unique=False)
    assert len(rows(path)) == 2


def test_a_failing_disk_is_said_once(tmp_path, caplog):
    (tmp_path / "run").write_text("a file where the folder should be")
    monitor = MemoryMonitor(tmp_path / "run" / "memory.jsonl", 1, CPU)
    with caplog.at_level(logging.WARNING, logger="graf"):
        for _ in range(3):
            monitor._sample(unique=False)
    assert len(caplog.records) == 1
    assert monitor.latest()["host_bytes"] > 0


def test_a_fault_in_reading_does_not_reach_the_training(path, monkeypatch, caplog):
    monitor = MemoryMonitor(path, 0, CPU)
    monkeypatch.setattr(monitor._tree, "resident_bytes", lambda: 1 / 0)
    monkeypatch.setattr(monitor_module, "take_census", lambda: 1 / 0)
    with caplog.at_level(logging.WARNING, logger="graf"):
        for step in range(1, 50):
            monitor.step_done(step)
        with monitor.phase("save"):
            pass
        assert monitor.summary().startswith("memory: ")
    assert len(caplog.records) == 2  # of reading, and of counting


def test_workers_are_counted_until_they_die():
    tree = ProcessTree()
    tree.find_children()  # such as what multiprocessing leaves behind
    before = tree.read()["workers"]
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        tree.find_children()
        alive = tree.read()
        unique = tree.read_unique()
        child.kill()
    assert alive["workers"] == before + 1
    assert alive["workers_bytes"] > MB
    assert 0 < unique["workers_unique_bytes"] <= alive["workers_bytes"]
    assert tree.read()["workers"] == before


def test_workers_of_workers_count_and_what_the_system_does_not_tell_is_left_out():
    """As of a fork server; and on macOS, what a process holds alone is told to nobody."""

    def refuse():
        raise psutil.AccessDenied

    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=7), memory_full_info=refuse)
    process.children = lambda recursive=False: [process] * (2 if recursive else 1)
    tree = ProcessTree()
    tree.process = process
    tree.find_children()
    assert tree.read() == {"host_bytes": 7, "workers": 2, "workers_bytes": 14}
    assert tree.read_unique() == {}


def test_workers_are_looked_for_with_the_rows_that_cost_more(path, monkeypatch):
    monitor, looks = MemoryMonitor(path, 1, CPU), []
    monkeypatch.setattr(monitor._tree, "find_children", lambda: looks.append(1))
    for unique in (True, False, True):
        monitor._sample(unique)
    assert len(looks) == 2


def test_fragmentation_is_the_share_in_gaps(monkeypatch):
    stats = {
        "allocated_bytes.all.current": 600,
        "allocated_bytes.all.peak": 900,
        "reserved_bytes.all.current": 1000,
        "inactive_split_bytes.all.current": 250,
    }
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    assert read_allocator(torch.device("cuda")) == {
        "allocated_bytes": 600, "allocated_peak_bytes": 900, "reserved_bytes": 1000, "fragmentation": 0.25,
    }  # fmt: skip
    assert read_allocator(CPU) == {}


def test_the_heat_of_the_processor_is_that_of_its_hottest_sensor(monkeypatch):
    sensors = {"nvme": [SimpleNamespace(current=99.0)], "coretemp": [SimpleNamespace(current=c) for c in (61.0, 72.0)]}
    monkeypatch.setattr(readings.psutil, "sensors_temperatures", lambda: sensors, raising=False)
    assert readings.read_heat() == {"cpu_temperature_c": 72.0}
    del sensors["coretemp"]
    assert readings.read_heat() == {}

    def fails():
        raise OSError(errno.EIO, "a sensor that is switched off")

    monkeypatch.setattr(readings.psutil, "sensors_temperatures", fails)
    assert readings.read_heat() == {}
    monkeypatch.delattr(readings.psutil, "sensors_temperatures")  # as on Windows
    assert readings.read_heat() == {}


def test_a_card_is_asked_once_for_what_it_cannot_tell(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 1000))
    monkeypatch.setattr(
        readings, "GPU_READINGS", {"gpu_power_w": lambda d: asked.append(1) or 1 / 0, "gpu_temperature_c": lambda d: 61}
    )
    gpu = Gpu(torch.device("cuda"))
    for _ in range(3):
        assert gpu.read() == {"gpu_used_bytes": 700, "gpu_total_bytes": 1000, "gpu_temperature_c": 61}
    assert len(asked) == 1


def test_a_row_that_a_crash_cut_short_is_dropped(tmp_path):
    path = tmp_path / "memory.jsonl"
    drop_cut_line(path)
    assert not path.exists()
    path.write_text('{"step": 1}\n{"st')
    drop_cut_line(path)
    drop_cut_line(path)
    assert path.read_text() == '{"step": 1}\n'
    path.write_text('{"st')
    drop_cut_line(path)
    assert path.read_text() == ""
    whole = '{"step": 1}\n' * 10_000  # longer than what is read of its end
    path.write_text(whole + '{"st')
    drop_cut_line(path)
    assert path.read_text() == whole


def test_a_run_that_goes_on_after_a_crash_begins_with_a_line_of_its_own(path):
    path.parent.mkdir()
    path.write_text('{"step": 1}\n{"st')
    with MemoryMonitor(path, 3600, CPU):
        pass
    first, *others = rows(path)
    assert first == {"step": 1} and others
