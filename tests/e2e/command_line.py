"""The scripts as a user starts them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMOKE = ["--config", str(ROOT / "configs" / "smoke.yaml"), "--device", "cpu"]


def run(script: str, *arguments: str, cwd: Path, status: int = 0) -> str:
    """Output of a script in a fresh process; the test fails on any other exit status."""
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == status, output
    assert "Traceback" not in output
    return output
