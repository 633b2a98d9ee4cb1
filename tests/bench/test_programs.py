"""Programs that need train.py or eval.py beside their own folder find them, whatever the working directory is."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("name", ["fuzz.py", "torture.py", "write_tables.py"])
def test_a_program_started_elsewhere_tells_its_flags(name, tmp_path):
    done = subprocess.run([sys.executable, str(BENCH / name), "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {name}")
