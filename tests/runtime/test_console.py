"""What is said on the terminal, and a terminal that cannot be written."""

import os
import select
import struct
import subprocess
import sys
from pathlib import Path

from graf.runtime.console import log, progress, run_script

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import multiprocessing, sys
from graf.runtime.console import log, progress, run_script
from graf.errors import GrafError

def main():
    for i in progress(range(20), desc="bar", unit="step"):
        log.info("%s", "line " * 400)
        log.warning("%s", "warning " * 400)
    sys.stderr.write("from a library\\n")
    worker = multiprocessing.get_context("fork").Process(target=print, args=("from a worker",))
    worker.start()
    worker.join()
    open(sys.argv[1], "w").write(f"done, {worker.exitcode}")
    if sys.argv[2:]:
        raise GrafError("a mistake")

run_script(main)
"""


BESIDE = """
import multiprocessing, psutil
multiprocessing.set_start_method("spawn")
from graf.runtime.console import log, progress
from tqdm import tqdm
tqdm.write("a line")
print(psutil.Process().children())
"""


def test_a_line_above_a_bar_starts_no_process():
    """tqdm's own lock did where Python does not fork, and a program that SIGTERM ended told of a leaked semaphore."""
    done = subprocess.run([sys.executable, "-c", BESIDE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "a line\n[]\n"


def run(tmp_path, redirection, *arguments):
    """The exit status of the script in a shell, and whether it came to its end."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = f"set -o pipefail; {sys.executable} script.py done.txt {' '.join(arguments)} {redirection}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=environment)
    return done.returncode, (tmp_path / "done.txt").exists() and (tmp_path / "done.txt").read_text(), done


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("redirection", ["> /dev/full 2>&1", "2>&1 | head -n 1"])
def test_a_terminal_that_cannot_be_written_changes_neither_the_run_nor_its_exit_status(tmp_path, redirection):
    assert run(tmp_path, redirection, "fail")[:2] == (2, "done, 0")


def read_until(terminal, wanted, seconds=60):
    """What a pseudo terminal shows, which may arrive in pieces, until it holds `wanted` or nothing more comes."""
    shown = b""
    while wanted not in shown and select.select([terminal], [], [], seconds)[0]:
        shown += os.read(terminal, 10_000)
    return shown


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo terminal")
@pytest.mark.parametrize("size", [(0, 0), (0, 150), (24, 0), (40, 150)])  # rows and columns; 0 where nobody has told
def test_a_bar_is_seen_on_a_terminal_of_any_size(size, monkeypatch):
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress(total=2, bar_format="{desc} {n_fmt} of {total_fmt}", desc="training") as bar:
            bar.update(2)
            bar.refresh()
        terminal.flush()
        assert b"training 2 of 2" in read_until(leader, b"2 of 2")
    os.close(leader)


@pytest.mark.skipif(os.name != "posix", reason="fork")
def test_all_that_is_said_arrives_where_it_can(tmp_path):
    status, ended, done = run(tmp_path, "", "fail")
    assert (status, ended) == (2, "done, 0")
    assert done.stdout.count("line " * 400) == 20
    assert done.stdout.count("from a worker") == 1
    assert done.stderr.count("warning: " + "warning " * 400) == 20
    assert "20/20" in done.stderr
    assert done.stderr.endswith("from a library\nscript.py: error: a mistake\n")


def test_a_script_leaves_the_log_as_it_was():
    before = log.level, list(log.handlers)
    with pytest.raises(SystemExit):
        run_script(lambda: 0)
    assert (log.level, log.handlers) == before
