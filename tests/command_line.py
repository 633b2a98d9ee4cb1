"""The scripts as a user types them."""

import importlib
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from graf.runtime.console import run_script

import pytest

ROOT = Path(__file__).parents[1]
SMOKE = ["--config", str(ROOT / "configs" / "smoke.yaml"), "--device", "cpu"]


def run(script: str, *arguments: str, cwd: Path, status: int = 0) -> str:
    """Output of a script in a fresh process, with as many threads as a user's; the test fails on any other exit status."""
    command = [sys.executable, str(ROOT / script), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == status, output
    assert "Traceback" not in output
    return output


def call(script: str, *arguments: str, cwd: Path, status: int = 0) -> str:
    """The same in this process, which has imported everything: for what does not depend on a fresh one."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
        patch.chdir(cwd)
        patch.syspath_prepend(str(ROOT))
        patch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            run_script(importlib.import_module(script.removesuffix(".py").replace("/", ".")).main)
    assert (ended.value.code or 0) == status, output.getvalue()
    return output.getvalue()
