"""A command starts without what it does not need: PyTorch takes seconds to load, a line of help should not."""

import json
import subprocess
import sys

import pytest
from command_line import ROOT

HEAVY = ("torch", "torchvision", "torch_fidelity", "scipy", "matplotlib")
LIGHT_TOOLS = [f"tools/{name}.py" for name in ("monitor_training", "memory_leak_detector", "train_with_memory_monitoring")]
BLOCKED = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({HEAVY}))  # an import of None fails
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_blocked(program: str, *arguments: str, status: int = 0) -> str:
    """Output of a program to which HEAVY modules are missing."""
    command = [sys.executable, "-c", BLOCKED, str(ROOT / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("program", ["train.py", "eval.py", *LIGHT_TOOLS])
def test_help_loads_nothing_heavy(program):
    assert "--version" in run_blocked(program, "--help")


def test_a_run_is_monitored_without_pytorch(tmp_path):
    rows = [{"step": step, "time": 1e9 + step, "loss_d": 0.7, "loss_g": 0.6 + step} for step in range(1, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = run_blocked("tools/monitor_training.py", str(tmp_path), "--once")
    assert "loss_g" in page and "3.6" in page


@pytest.mark.parametrize(
    ("mistake", "message"),
    [(["--device", "cpu", "--sed", "3"], "unrecognized"), (["--set", "training.batchsize=4"], "unknown key 'batchsize'")],
)
@pytest.mark.parametrize("program", ["train.py", "eval.py"])
def test_a_typo_is_told_before_anything_heavy_is_loaded(program, mistake, message):
    assert message in run_blocked(program, *mistake, status=2)
