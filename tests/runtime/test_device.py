"""What graf.runtime.device says of the memory that was taken."""

import subprocess
import sys
from pathlib import Path

from graf.runtime import device

import pytest
import torch

PEAK = """
import torch
from graf.runtime.device import peak_memory_bytes
kept = torch.ones(12 * 2**20)
print(peak_memory_bytes(torch.device("cpu")))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak of the resident set")
def test_a_peak_is_this_process_own():
    """Linux hands ru_maxrss on through exec: what the starter of a process holds is not what the process held."""
    ballast = bytearray(b"x") * (1000 * 2**20)
    done = subprocess.run([sys.executable, "-c", PEAK], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 48 * 2**20 < int(done.stdout) < len(ballast)


def test_a_system_that_does_not_tell_has_ru_maxrss(monkeypatch):
    pytest.importorskip("resource")
    monkeypatch.setattr(device, "process_bytes", lambda name: None)
    assert device.peak_memory_bytes(torch.device("cpu")) > 2**20


def test_sizes_that_are_not_told_are_none():
    assert device.process_bytes("VmNothing") is None
