"""Waiting threads sleep in every program, started as a user starts it: graf is imported before torch, whose OpenMP library
reads the environment when it is loaded and never again."""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in (ROOT, ROOT / "tools", ROOT / "bench")
    for path in folder.glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)
TOLD_BY_USERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # the first is set here already, by the tests' own import of graf

gnu_openmp = pytest.mark.skipif(
    not sys.platform.startswith("linux") or "OpenMP" not in torch.__config__.parallel_info(), reason="tells its spin count"
)


def spin_count(command: list[str], **variables: str) -> int | None:
    """How often a waiting thread of the program looks before it sleeps; None where it loads no OpenMP library."""
    environment = {name: value for name, value in os.environ.items() if name not in TOLD_BY_USERS}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | variables
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        told = (re.search(r"GOMP_SPINCOUNT = '(\d+)'", line) for line in process.stderr)
        found = next((int(match[1]) for match in told if match), None)
        process.kill()  # the rest of its imports takes much longer
    return found


def example_of_readme() -> str:
    """The imports of README's Python example."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## From Python")[1]
    return "\n".join(re.findall(r"^    ((?:import|from) .+)$", section.split("\n## ")[0], re.MULTILINE))


@gnu_openmp
def test_every_program_lets_waiting_threads_sleep():
    commands = {name: [name, "--help"] for name in SCRIPTS} | {
        "train.py": ["train.py", "--dry_run"],
        "eval.py": ["eval.py"],
    }  # which their help does not load
    commands["README's example"] = ["-c", example_of_readme()]
    with ThreadPoolExecutor(4) as pool:
        counts = dict(zip(commands, pool.map(spin_count, commands.values()), strict=True))
    assert {name: count for name, count in counts.items() if count} == {}
    assert {"train.py", "eval.py", "tools/check_system.py", "README's example"} <= {n for n, c in counts.items() if c == 0}


def test_ctrl_c_while_pytorch_is_loaded_ends_in_a_line(tmp_path):
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's background jobs ignore it
    (tmp_path / "torch.py").write_text(f"import os, signal\n{heard}\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for program in ("train.py", "eval.py", "tools/check_system.py", "tools/validate_data.py"):
        ended = subprocess.run([sys.executable, program], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert ended.returncode in (130, -signal.SIGINT), program  # a shell makes 130 of both
        assert (program, ended.stderr) == (program, "\ninterrupted\n")


@gnu_openmp
def test_what_the_user_says_of_waiting_threads_holds():
    assert spin_count(["-c", "import graf, torch"], OMP_WAIT_POLICY="ACTIVE") > 0
    assert spin_count(["-c", "import graf, torch"], GOMP_SPINCOUNT="7") == 7
    assert spin_count(["-c", "import torch, graf"]) > 0  # or this test would find nothing
