"""The planner's whole estimate, with its gaps and the process, against the memory that two shipped configs' steps take."""

import subprocess
import sys
from pathlib import Path

from graf.config import CONFIG_DIR

import pytest

ROOT = Path(__file__).parents[2]
STEPS = """
import sys
import graf, torch
sys.path.insert(0, "tools")
from check_system import take_steps
from graf.config import load_config
from graf.data.views import expected_labels
from graf.memory.planner import estimate_step
from graf.runtime.device import peak_memory_bytes
device, config = torch.device("cpu"), load_config(sys.argv[1], sys.argv[2:])
take_steps(config, expected_labels(config.data), device)
print(peak_memory_bytes(device), estimate_step(config).total_bytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak of the resident set")
@pytest.mark.parametrize("name", ["low_memory_1gb.yaml", "default.yaml"])
def test_the_whole_estimate_is_near_the_peak_of_real_steps(name):
    command = [sys.executable, "-c", STEPS, str(CONFIG_DIR / name), "memory.budget_gb=0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, estimate = map(int, done.stdout.split()[-2:])
    assert 0.75 <= estimate / peak <= 1.25, f"{estimate / 2**20:.0f} MB estimated, {peak / 2**20:.0f} MB taken"
