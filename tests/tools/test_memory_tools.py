"""Snapshots, cleaning up, watching from outside, and the two programs that do it."""

import contextlib
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

from graf.config import CONFIG_DIR, load_config
from graf.errors import GrafError
from graf.memory import snapshot
from graf.memory import watch as watch_module
from graf.memory.leaks import LeakReport
from graf.memory.sizes import starting_sizes
from graf.memory.snapshot import record_history, take_census, write_snapshot
from graf.memory.watch import (
    NewRows,
    ProcessWatch,
    WatchSettings,
    find_process,
    find_worker,
    force_clean_up,
    observe,
    request_clean_up,
    watch_command,
    watch_pid,
)
from graf.runtime.device import clean_up, clean_up_on_signal
from graf.runtime.limits import GB, MB

import psutil
import pytest
import torch

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="POSIX signals")


@pytest.fixture
def tool(monkeypatch):
    """A program of tools/, as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return __import__


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def append(path: Path, row: dict) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def garbage():
    """A weak reference to a cycle that nobody holds, while automatic collection is off."""
    gc.disable()
    yield weakref.ref(Cycle())
    gc.enable()


def test_a_census_counts_tensors_by_shape_and_a_shared_storage_once(few_objects):
    before = take_census()
    kept = [torch.zeros(7, 4099) for _ in range(5)]
    views = [kept[0].view(4099, 7), kept[0].double()]
    now = take_census()
    gained = {(group.shape, group.dtype): n for group, n in (now.tensors - before.tensors).items()}
    assert gained == {((7, 4099), "float32"): 5, ((4099, 7), "float32"): 1, ((7, 4099), "float64"): 1}
    assert sum((now.tensor_bytes - before.tensor_bytes).values()) == (5 * 4 + 8) * 7 * 4099
    first, *_ = now.grown_since(before, 1)
    assert first == "5 tensors (7, 4099) float32 on cpu (1 MB)"
    del views


def test_a_census_leaves_out_tensors_without_memory_of_their_own(few_objects):
    """Tensors such as torch.compile makes its graphs of."""

    class Pretended(torch.Tensor):
        def untyped_storage(self):
            raise AssertionError("was asked for its memory")

    before = take_census()
    kept = [torch.zeros(11, 4099).as_subclass(Pretended), torch.nn.Parameter(torch.zeros(13, 4099))]
    gained = take_census().tensors - before.tensors
    assert (13, 4099) in [group.shape for group in gained] and len(kept) == 2


def test_a_census_counts_types(few_objects):
    before = take_census()
    kept = [Cycle() for _ in range(50)]
    name = f"{Cycle.__module__}.Cycle"
    assert (take_census().types - before.types)[name] == 50
    assert len(kept) == 50


def test_a_snapshot_is_a_file_with_what_lives(few_objects, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "TOP", 1)
    kept, functions = torch.zeros(3, 1000 * MB // 4 // 1000, 5), [lambda: None for _ in range(1001)]
    small = torch.zeros(5)
    path = write_snapshot(tmp_path, 12)
    assert [file.name for file in tmp_path.iterdir()] == ["memory_00000012.json"]
    content = json.loads(path.read_text())
    (row,) = content["tensors"]
    assert row == {"shape": list(kept.shape), "dtype": "float32", "device": "cpu", "count": 1, "bytes": 4 * kept.numel()}
    assert content["tensor_bytes"]["cpu"] >= row["bytes"] + 4 * len(small)
    assert content["types"]["builtins.function"] >= len(functions)


def test_beside_a_snapshot_lies_pytorchs_own_where_a_card_is_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(snapshot, "allocations", lambda: {"segments": [7]})
    path = write_snapshot(tmp_path, 12)
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, "memory_00000012.pickle"]
    assert pickle.loads((tmp_path / "memory_00000012.pickle").read_bytes()) == {"segments": [7]}


@pytest.mark.parametrize(("flags", "asked"), [(["--memory_snapshot"], ["history of cuda", "data"]), ([], ["data"])])
def test_for_snapshots_of_a_card_its_history_is_asked_for_before_anything_is_built(tmp_path, monkeypatch, flags, asked):
    import train

    calls = []

    def build(*_, **__):
        calls.append("data")
        raise GrafError("that suffices")

    def history(**given):
        calls.append(f"history of {given['device']}")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", history)
    monkeypatch.setattr("graf.commands.run.record_history", lambda _cpu: record_history(torch.device("cuda")))
    monkeypatch.setattr("graf.commands.train.build_dataset", build)
    monkeypatch.setattr(sys, "argv", ["train.py", "--set", f"training.outdir={tmp_path}", "--device", "cpu", *flags])
    with pytest.raises(GrafError, match="that suffices"):
        train.main()
    assert calls == asked


def test_on_a_cpu_there_is_no_history(monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: pytest.fail("a card was asked"))
    record_history(torch.device("cpu"))


def test_cleaning_up_collects_garbage(garbage):
    assert garbage() is not None
    clean_up()
    assert garbage() is None


def test_the_signal_cleans_up(garbage):
    before = signal.getsignal(signal.SIGUSR2)
    clean_up_on_signal()
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert garbage() is None
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells who handles a signal")
def test_a_clean_up_is_asked_of_who_handles_it_behind_a_shell_and_of_nobody_else():
    handles = "import os, signal; signal.signal(signal.SIGUSR2, lambda *_: (os.write(1, b'asked\\n'), os._exit(0)))"
    wait = "; print('ready', flush=True); import time; time.sleep(600)"
    for code, found in ((handles + wait, True), ("pass" + wait, False)):
        command = ["sh", "-c", '"$@"; exit 0', "sh", *python(code)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
            try:
                assert shell.stdout.readline() == "ready\n"
                worker = find_worker(shell.pid).process.pid
                asked = request_clean_up(psutil.Process(shell.pid))
                if found:
                    assert asked == worker != shell.pid
                    assert shell.stdout.readline() == "asked\n"
                else:
                    assert asked is None
                    assert shell.poll() is None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.parametrize(("lacks", "told"), [("/proc", "kill -USR2 {pid}"), ("SIGUSR2", "Windows has no SIGUSR2")])
def test_where_no_clean_up_can_be_asked_for_it_is_told_once_with_the_way_by_hand(tmp_path, monkeypatch, caplog, lacks, told):
    if lacks == "SIGUSR2":
        monkeypatch.delattr(signal, "SIGUSR2")
    else:
        monkeypatch.setattr(watch_module, "process_status", lambda *_: None)
    leak = SimpleNamespace(source="host", message=lambda unit: "it leaks")
    monkeypatch.setattr(ProcessWatch, "sample", lambda watch: [leak, leak])
    monkeypatch.setattr(watch_module, "write_report", lambda *_, **about: True)
    with subprocess.Popen(python("import sys; sys.stdin.read()"), stdin=subprocess.PIPE) as process:
        threading.Timer(0.1, process.stdin.close).start()
        watch_pid(process.pid, WatchSettings(tmp_path, interval_s=0.01, clean_up=True))
    said = [line for line in caplog.messages if line.startswith("clean-up")]
    assert len(said) == 1 and told.format(pid=process.pid) in said[0]


@pytest.mark.parametrize(
    ("asked", "told"), [(77, "process 77 gave back 200 MB"), (None, "nothing in the command handles SIGUSR2 yet")]
)
def test_what_a_clean_up_gave_back_is_told(monkeypatch, caplog, asked, told):
    held = iter((300 * MB, 100 * MB))
    watch = SimpleNamespace(tree=SimpleNamespace(read=lambda: {"host_bytes": next(held)}))
    monkeypatch.setattr(watch_module, "process_status", lambda _: "0")
    monkeypatch.setattr(watch_module, "request_clean_up", lambda _: asked)
    monkeypatch.setattr(watch_module, "CLEAN_UP_S", 0)
    with caplog.at_level("INFO", logger="graf"):
        assert force_clean_up(None, watch)  # it may be asked for again
    assert caplog.messages == [f"clean-up: {told}"]


def test_leaks_are_told_and_written_as_they_show_but_what_the_run_has_told_itself(tmp_path, monkeypatch, caplog):
    leaks = [SimpleNamespace(source=name, message=f"{name} grows per {{}}".format) for name in ("host", "workers")]
    watch = SimpleNamespace(sample=lambda: leaks, reported_by_run={"workers"}, unit="step")
    alive, reports = iter((True, None)), []
    monkeypatch.setattr(watch_module, "find_process", lambda _: next(alive))
    monkeypatch.setattr(watch_module, "write_report", lambda *given: reports.append(given))
    observe(SimpleNamespace(pid=1, wait=lambda _: None), watch, WatchSettings(tmp_path))
    assert caplog.messages == ["host grows per step"]
    assert reports == [(watch, tmp_path)] * 2


def test_new_rows_are_read_once_and_whole(tmp_path):
    path = tmp_path / "memory.jsonl"
    absent = NewRows(path)
    assert absent.read() == []
    path.write_text('{"step": 1}\n')
    rows = NewRows(path)
    with path.open("a") as file:
        file.write('{"step": 2}\n{"cut sh\n{"step": 3}\n{"ste')
        file.flush()
        assert rows.read() == [{"step": 2}, {"step": 3}]
        file.write('p": 4}\n')
    assert rows.read() == [{"step": 4}]
    assert rows.read() == []
    assert len(absent.read()) == 4


def test_the_curve_has_a_bound_and_covers_the_whole_time(monkeypatch):
    monkeypatch.setattr(watch_module, "CURVE_POINTS", 8)
    watch = ProcessWatch(os.getpid(), None, 0)
    taken = []
    monkeypatch.setattr(
        watch.tree, "read", lambda: taken.append(1) or {"host_bytes": len(taken), "workers_bytes": 900 - 2 * len(taken)}
    )
    monkeypatch.setattr(watch_module, "find_worker", lambda pid: watch.tree)
    for _ in range(100):
        watch.sample()
    assert [point["host_bytes"] for point in watch.curve] == [1, 17, 33, 49, 65, 81, 97]
    assert watch.as_report()["samples"] == 100
    assert watch.as_report()["peak_bytes"] == 1 + 898  # of the first sample, together


def test_a_watch_without_a_runs_folder_finds_growth_by_sample(monkeypatch):
    watch = ProcessWatch(os.getpid(), None, warm_up_s=0)
    levels = iter(range(1500, 5000))
    monkeypatch.setattr(watch.tree, "read", lambda: {"host_bytes": 10**9, "workers_bytes": next(levels) * MB})
    monkeypatch.setattr(watch_module, "find_worker", lambda pid: watch.tree)
    found = [report for _ in range(200) for report in watch.sample()]
    assert [(report.source, report.bytes_per_step) for report in found] == [("workers", MB)]
    assert "per sample" in found[0].message(watch.unit)
    assert watch.as_report()["leak"] and len(watch.warned_seconds) == 1


def test_growth_while_a_program_loads_is_not_judged(monkeypatch):
    watch, passed_s = ProcessWatch(os.getpid(), None, warm_up_s=60), [59]
    levels = iter(range(1500, 5000))
    monkeypatch.setattr(watch.tree, "read", lambda: {"host_bytes": next(levels) * MB, "workers_bytes": 0})
    monkeypatch.setattr(watch_module, "find_worker", lambda pid: watch.tree)
    monkeypatch.setattr(watch_module, "time", SimpleNamespace(time=lambda: watch.started + passed_s[0]))
    assert not any(watch.sample() for _ in range(200))
    assert watch.judged_samples == 0
    passed_s[0] = 60.5
    watch.sample()
    assert watch.judged_samples == 1


def test_children_are_looked_for_now_and_then_and_where_the_worker_has_ended(monkeypatch):
    watch, looked, running = ProcessWatch(os.getpid(), None, warm_up_s=60), [], [True]
    watch.tree = SimpleNamespace(
        process=SimpleNamespace(is_running=lambda: running[0]), read=lambda: {"host_bytes": GB, "workers_bytes": 0}
    )
    monkeypatch.setattr(watch_module, "find_worker", lambda pid: looked.append(watch.samples) or watch.tree)
    for _ in range(22):
        watch.sample()
    running[0] = False
    watch.sample()
    assert looked == [0, 10, 20, 22]


def test_what_the_runs_own_monitor_found_is_taken_over_and_not_found_again(tmp_path, monkeypatch):
    watch, path = ProcessWatch(os.getpid(), tmp_path, warm_up_s=0), tmp_path / "memory.jsonl"
    levels = iter(range(1500, 5000))
    monkeypatch.setattr(watch.tree, "read", lambda: {"host_bytes": next(levels) * MB, "workers_bytes": 0})
    monkeypatch.setattr(watch_module, "find_worker", lambda pid: watch.tree)
    own = LeakReport("host", 90, 80, 40.0, 2.0 * MB, GB, 2 * GB, {"metrics": 160 * MB}, ("80 tensors",))
    append(path, {"time": 0, "step": 90, "leak": own.as_row()})
    assert watch.sample() == [own]
    for step in range(1, 301):
        append(path, {"time": step, "step": step, "phase": "train"})
        assert watch.sample() == []
    assert watch.as_report()["leaks"] == [own.as_row()]


def test_growth_is_counted_by_the_steps_of_the_runs_rows(tmp_path, monkeypatch):
    watch, path = ProcessWatch(os.getpid(), tmp_path, warm_up_s=0), tmp_path / "memory.jsonl"
    levels = iter(range(1500, 5000, 2))
    monkeypatch.setattr(watch.tree, "read", lambda: {"host_bytes": next(levels) * MB, "workers_bytes": 0})
    monkeypatch.setattr(watch_module, "find_worker", lambda pid: watch.tree)
    found = []
    for step in range(2, 500, 2):  # a sample every other step
        append(path, {"time": step, "step": step, "phase": "metrics"})
        found += watch.sample()
    assert [(report.phase, report.bytes_per_step) for report in found] == [("metrics", MB)]


def test_the_commands_exit_status_is_passed_on_and_reported(tmp_path):
    assert watch_command(python("raise SystemExit(7)"), WatchSettings(tmp_path, interval_s=0.01)) == 7
    report = json.loads((tmp_path / "memory_report.json").read_text())
    assert report["exit_status"] == 7
    assert not report["leak"]
    assert (tmp_path / "memory_report.png").read_bytes().startswith(b"\x89PNG")
    killed = python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert watch_command(killed, WatchSettings(tmp_path, interval_s=0.01)) == 128 + signal.SIGKILL


def test_a_command_that_cannot_start_is_named(tmp_path):
    with pytest.raises(GrafError, match="no_such_program"):
        watch_command(["no_such_program"], WatchSettings(tmp_path))


def test_sigterm_goes_to_the_command_which_may_save(tmp_path):
    ready = tmp_path / "ready"
    code = f"import pathlib, signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(5)); pathlib.Path({str(ready)!r})"
    code += ".touch(); time.sleep(600)"

    def terminate() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=terminate, daemon=True).start()
    assert watch_command(python(code), WatchSettings(tmp_path, interval_s=0.01)) == 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_has_a_session_of_its_own_so_that_ctrl_c_reaches_it_once():
    with watch_module.started(python("import os; raise SystemExit(os.getsid(0) != os.getpid())")) as (process, _):
        assert process.wait() == 0


def test_a_signal_while_a_command_is_being_started_reaches_it(tmp_path, monkeypatch):
    def start(process, *command, real=psutil.Popen.__init__, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        real(process, *command, **options)

    monkeypatch.setattr(psutil.Popen, "__init__", start)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # so that a failure does not end the tests
    try:
        status = watch_command(python("import time; time.sleep(30)"), WatchSettings(tmp_path, interval_s=0.01))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status == 128 + signal.SIGTERM


def test_a_command_that_nohup_started_ignores_a_hangup(tmp_path):
    ignored = python("import signal; raise SystemExit(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert watch_command(ignored, WatchSettings(tmp_path, interval_s=0.01)) == 1
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_is_not_there_is_an_error(tmp_path):
    with subprocess.Popen(python("pass")) as ended:
        pass
    with pytest.raises(GrafError, match=f"--pid {ended.pid}"):
        watch_pid(ended.pid, WatchSettings(tmp_path))


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs to wait without reaping")
def test_a_process_that_only_waits_to_be_reaped_has_ended():
    with subprocess.Popen(python("pass")) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert find_process(ended.pid) is None


def test_a_process_is_watched_until_it_ends(tmp_path):
    with subprocess.Popen(python("import sys; sys.stdin.read()"), stdin=subprocess.PIPE) as process:
        threading.Timer(0.1, process.stdin.close).start()
        watch_pid(process.pid, WatchSettings(tmp_path, interval_s=0.01))
    report = json.loads((tmp_path / "memory_report.json").read_text())
    assert report["pid"] == process.pid
    assert report["curve"][0]["host_bytes"] > MB


@pytest.mark.parametrize(
    "words",
    [
        ["--"],
        ["--out", "o"],
        ["--pid", "1", "--", "true"],
        ["--self_test", "--pid", "1"],
        ["--pid", "1", "--clean_up"],
        ["--pid", "x"],
        ["--pid", "-5"],
        ["--pid", "1", "--interval_s", "inf"],
    ],
)
def test_the_detector_takes_one_thing_to_watch(tool, words, capsys):
    with pytest.raises(SystemExit) as left:
        tool("memory_leak_detector").parse(words)
    assert left.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_what_is_behind_the_dashes_is_the_command_alone(tool):
    arguments, command = tool("memory_leak_detector").parse(["--out", "o", "--", "python", "--pid", "3"])
    assert arguments.out == Path("o")
    assert arguments.pid is None
    assert command == ["python", "--pid", "3"]


@pytest.mark.parametrize(("words", "expected"), [([], True), (["--self_test"], True), (["--pid", "1"], False)])
def test_the_detector_without_arguments_tests_itself(tool, words, expected):
    assert tool("memory_leak_detector").parse(words)[0].self_test == expected


def test_the_detector_proves_itself(tool):
    assert tool("memory_leak_detector").self_test() == 0


@pytest.mark.parametrize(
    ("leak", "clean", "status"),
    [((185, 1.0), None, 0), (None, None, 1), ((210, 1.0), None, 1), ((185, 1.2), None, 1), ((185, 1.0), (190, 1.0), 1)],
)
def test_the_self_test_fails_where_it_should(tool, monkeypatch, leak, clean, status):
    detector = tool("memory_leak_detector")
    reports = {
        kind: [{"step": found[0], "bytes_per_step": found[1] * MB}] if found else []
        for kind, found in (("leak", leak), ("clean", clean))
    }
    monkeypatch.setattr(detector, "reports_of", reports.__getitem__)
    assert detector.self_test() == status


def test_ctrl_c_ends_the_self_test_without_a_verdict(tool, monkeypatch, capfd):
    detector = tool("memory_leak_detector")
    interrupted = detector.LOOP.replace("time.sleep(0.02)", "signal.raise_signal(signal.SIGINT)")
    monkeypatch.setattr(detector, "LOOP", interrupted)
    with pytest.raises(SystemExit) as left:
        detector.self_test()
    assert left.value.code == 130
    assert "Traceback" not in capfd.readouterr().err


def test_the_detector_says_where_its_report_is(tool, tmp_path, monkeypatch, caplog):
    detector = tool("memory_leak_detector")
    words = ["memory_leak_detector.py", "--out", str(tmp_path), "--interval_s", "0.01", "--", *python("raise SystemExit(3)")]
    monkeypatch.setattr(sys, "argv", words)
    with caplog.at_level("INFO", logger="graf"):
        assert detector.main() == 3
    assert caplog.messages[-1] == f"memory: {tmp_path / 'memory_report.png'}"
    assert (tmp_path / "memory_report.png").exists()


def test_a_report_that_cannot_be_written_is_not_named(tool, tmp_path, monkeypatch, caplog):
    detector = tool("memory_leak_detector")
    (tmp_path / "memory_report.json").mkdir()
    words = ["memory_leak_detector.py", "--out", str(tmp_path), "--interval_s", "0.01", "--", *python("raise SystemExit(3)")]
    monkeypatch.setattr(sys, "argv", words)
    with caplog.at_level("INFO", logger="graf"):
        assert detector.main() == 3
    assert "no report can be written" in caplog.text and "memory_report.png" not in caplog.text


def test_a_run_that_did_not_begin_leaves_no_folder_and_the_last_report(tmp_path, caplog):
    settings = WatchSettings(tmp_path / "run", tmp_path / "run", interval_s=0.01)
    assert watch_command(python("raise SystemExit(2)"), settings) == 2
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "memory_report.json").write_text("of the last session")
    assert watch_command(python("raise SystemExit(2)"), settings) == 2
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["memory_report.json"]
    assert (tmp_path / "run" / "memory_report.json").read_text() == "of the last session"
    assert "memory_report.png" not in caplog.text
    (tmp_path / "run" / "memory_report.json").unlink()
    assert watch_command(python("raise SystemExit(2)"), settings) == 2
    assert (tmp_path / "run" / "memory_report.json").is_file()  # of a run that ended before its first row


def test_training_is_started_with_the_users_folders_and_flags(tool, tmp_path, monkeypatch):
    program, started = tool("train_with_memory_monitoring"), []
    monkeypatch.setattr(program, "watch_command", lambda command, settings: started.append((command, settings)) or 3)
    images = tmp_path / "a: [strange] name"
    images.mkdir()
    words = ["--data_dir", str(images), "--output_dir", str(tmp_path / "runs #1"), "--max_steps", "9", "--set", "expname=try"]
    monkeypatch.setattr(sys, "argv", ["train_with_memory_monitoring.py", *words, "--device", "cpu"])
    assert program.main() == 3
    ((command, settings),) = started
    assert command[1] == str(ROOT / "train.py")
    assert command[-4:] == ["--max_steps", "9", "--device", "cpu"]
    config = load_config(command[3], command[5:-4])
    assert config.data.datadir == (str(images),)
    assert config.data.type == "images"
    assert config.run_dir == settings.run_dir == settings.out == tmp_path / "runs #1" / "try"
    assert config.training.batch_size == 16  # configs/safe_training.yaml without --config


def test_a_pose_estimator_is_watched_likewise(tool, tmp_path, monkeypatch):
    program, started = tool("train_with_memory_monitoring"), []
    monkeypatch.setattr(program, "watch_command", lambda command, settings: started.append((command, settings)) or 0)
    words = ["--script", "train_pose.py", "--output_dir", str(tmp_path), "--max_steps", "9"]
    monkeypatch.setattr(sys, "argv", ["train_with_memory_monitoring.py", *words])
    assert program.main() == 0
    ((command, settings),) = started
    assert command[1:4] == [str(ROOT / "train_pose.py"), "--config", str(CONFIG_DIR / "pose.yaml")]
    assert settings.run_dir == tmp_path / "pose"


def test_training_without_its_images_is_an_error(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_with_memory_monitoring.py", "--data_dir", str(tmp_path / "missing")])
    with pytest.raises(GrafError, match="--data_dir"):
        tool("train_with_memory_monitoring").main()


@pytest.mark.parametrize("interval_s", ["-1", "0", "nan", "inf"])
def test_an_interval_that_is_none_is_an_error_before_training(tool, monkeypatch, interval_s):
    program = tool("train_with_memory_monitoring")
    monkeypatch.setattr(program, "watch_command", lambda *_: pytest.fail("a training run was started"))
    monkeypatch.setattr(sys, "argv", ["train_with_memory_monitoring.py", "--interval_s", interval_s])
    with pytest.raises(GrafError, match="--interval_s .*: expected more than 0 seconds"):
        program.main()


def test_its_test_is_the_self_test(tool, monkeypatch):
    program = tool("train_with_memory_monitoring")
    monkeypatch.setattr(program, "self_test", lambda: 41)
    monkeypatch.setattr(sys, "argv", ["train_with_memory_monitoring.py", "test"])
    assert program.main() == 41


def test_the_safe_config_is_smaller_and_rarer_than_the_default():
    safe, default = load_config(CONFIG_DIR / "safe_training.yaml"), load_config()
    assert (safe.training.batch_size, safe.images_at_once) == (16, 4)
    assert starting_sizes(safe, "cuda", 0).of_batch(safe.training.batch_size) == "batch 16 in 4 parts of 4"
    assert (safe.training.nworkers, safe.training.grad_clip) == (2, 0.5)
    assert safe.training.use_amp
    for cadence in ("sample_every", "video_every"):
        assert getattr(safe.training, cadence) == 2 * getattr(default.training, cadence)
    assert safe.nerf.netwidth < default.nerf.netwidth
    assert safe.ccsr.light.width < default.ccsr.light.width
    assert safe.discriminator.ndf < default.discriminator.ndf
