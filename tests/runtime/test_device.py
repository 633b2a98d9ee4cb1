"""The device that is chosen, why a GPU cannot be, and the memory that was taken."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from graf.errors import GrafError
from graf.runtime import device
from graf.runtime.device import Driver, choose_device, nvidia_driver, unusable_gpus

import pynvml
import pytest
import torch

GPU = "NVIDIA GeForce GTX 1650"
PYTORCH = f"{GPU} cannot be used by PyTorch {torch.__version__}, which is built"
SUPPORTS = "driver 535.54, which supports CUDA up to 12.2"
FITS = "install PyTorch for CUDA 12 (an index such as cu12x), whose address the selector on pytorch.org shows"
PEAK = """
import torch
from graf.runtime.device import peak_memory_bytes
kept = torch.ones(12 * 2**20)
print(peak_memory_bytes(torch.device("cpu")))
"""


def test_the_driver_tells_its_version_and_gpus(driver):
    driver(GPU, "NVIDIA T4", version="470.1", cuda=11040)
    assert nvidia_driver() == Driver("470.1", (11, 4), (GPU, "NVIDIA T4"))


@pytest.mark.parametrize(
    ("built_for", "said"),
    [
        ("13.0", f"{PYTORCH} for CUDA 13.0, with {SUPPORTS}; {FITS}, or a newer driver"),
        (None, f"{PYTORCH} without CUDA; for {SUPPORTS}, {FITS}"),
        ("12.8", f"{PYTORCH} for CUDA 12.8, with {SUPPORTS}: CUDA unknown error"),  # of one major version: not too old
    ],
)
def test_gpus_that_pytorch_cannot_use_are_told_with_the_cure(driver, caplog, built_for, said):
    driver(GPU, built_for=built_for, said="CUDA unknown error\nand more")
    assert unusable_gpus() == said
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == [f"{said}. The CPU is taken; --device cpu does so without this warning"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    for name in ("cuda", "cuda:0"):
        with pytest.raises(GrafError) as raised:
            choose_device(name)
        assert str(raised.value) == f"--device {name}: {said}; or take --device cpu"


@pytest.mark.parametrize(
    ("capability", "usable"), [((6, 1), False), ((7, 5), True), ((8, 9), True), ((9, 0), False), ((12, 1), True)]
)
def test_a_gpu_for_which_pytorch_was_not_built_is_told_and_not_taken(cards, caplog, capability, usable):
    cards(GPU, capability=capability)
    if usable:
        assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0) and not caplog.messages
        return
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(GrafError, match="--device cuda:0: .* or take --device cpu"):
        choose_device("cuda:0")
    version = f"{capability[0]}.{capability[1]}"
    said = f"{GPU}, of compute capability {version}, cannot be used by PyTorch {torch.__version__}, which is built for sm_75, "
    assert caplog.text.count(said) == 1 and "install an older PyTorch (from 2.6 on)" in caplog.text


@pytest.mark.parametrize("hidden", ["", "-1", " ,0"])
def test_gpus_that_the_user_hides_are_not_told_of(driver, caplog, monkeypatch, hidden):
    driver(GPU)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(GrafError, match="--device cuda: PyTorch sees 0 CUDA device"):
        choose_device("cuda")
    assert caplog.messages == []


def test_without_a_driver_or_gpus_there_is_nothing_to_tell(driver, caplog, monkeypatch):
    driver()
    assert choose_device("auto") == torch.device("cpu")
    driver(GPU)

    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert nvidia_driver() is None
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak of the resident set")
def test_a_peak_is_this_process_own():
    """Linux hands ru_maxrss on through exec: what the starter of a process holds is not what the process held."""
    ballast = bytearray(b"x") * (1000 * 2**20)
    done = subprocess.run([sys.executable, "-c", PEAK], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 48 * 2**20 < int(done.stdout) < len(ballast)


AT_THE_END = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count()))
from graf.runtime.device import freeze_imports
freeze_imports()
assert gc.get_freeze_count() > 0
"""


def test_what_is_frozen_is_collected_at_the_end():
    command = [sys.executable, "-c", AT_THE_END]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_system_that_does_not_tell_has_ru_maxrss(monkeypatch):
    pytest.importorskip("resource")
    monkeypatch.setattr(device, "process_bytes", lambda name: None)
    assert device.peak_memory_bytes(torch.device("cpu")) > 2**20


def test_windows_tells_its_own_peak(monkeypatch):
    monkeypatch.setattr(device, "process_bytes", lambda name: None)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(device.psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=7)))
    assert device.peak_memory_bytes(torch.device("cpu")) == 7


def test_sizes_that_are_not_told_are_none():
    assert device.process_bytes("VmNothing") is None


def test_an_apple_gpu_is_taken_when_asked_for_and_said_to_be_untested(monkeypatch, caplog):
    with pytest.raises(GrafError, match="--device mps: PyTorch sees no Apple GPU here; try --device auto"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == torch.device("mps")
    assert "no Apple GPU was at hand to test this program on" in caplog.text
