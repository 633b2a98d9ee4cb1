"""Cards that the driver has and PyTorch cannot use: nobody trains on the CPU beside one without being told why."""

import logging

from graf.errors import GrafError
from graf.runtime.cards import Driver, nvidia_driver, unusable_cards
from graf.runtime.device import choose_device

import pynvml
import pytest
import torch

CARD = "NVIDIA GeForce GTX 1650"
PYTORCH = f"{CARD} cannot be used by PyTorch {torch.__version__}, which is built"
SUPPORTS = "driver 535.54, which supports CUDA up to 12.2"
FITS = "install PyTorch for CUDA 12 (an index such as cu12x), whose address the selector on pytorch.org shows"


def test_the_driver_tells_its_version_and_cards(driver):
    driver(CARD, "NVIDIA T4", version="470.1", cuda=11040)
    assert nvidia_driver() == Driver("470.1", (11, 4), (CARD, "NVIDIA T4"))


@pytest.mark.parametrize(
    ("built_for", "said"),
    [
        ("13.0", f"{PYTORCH} for CUDA 13.0, with {SUPPORTS}; {FITS}, or a newer driver"),
        (None, f"{PYTORCH} without CUDA; for {SUPPORTS}, {FITS}"),
        ("12.8", f"{PYTORCH} for CUDA 12.8, with {SUPPORTS}: CUDA unknown error"),  # of one major version: not too old
    ],
)
def test_cards_that_pytorch_cannot_use_are_told_with_the_cure(driver, caplog, built_for, said):
    driver(CARD, built_for=built_for, said="CUDA unknown error\nand more")
    assert unusable_cards() == said
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == [f"{said}. The CPU is taken; --device cpu does so without this warning"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    for name in ("cuda", "cuda:0"):
        with pytest.raises(GrafError) as raised:
            choose_device(name)
        assert str(raised.value) == f"--device {name}: {said}; or take --device cpu"


@pytest.mark.parametrize("hidden", ["", "-1", " ,0"])
def test_cards_that_the_user_hides_are_not_told_of(driver, caplog, monkeypatch, hidden):
    driver(CARD)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(GrafError, match="--device cuda: PyTorch sees 0 CUDA device"):
        choose_device("cuda")
    assert caplog.messages == []


def test_without_a_driver_or_cards_there_is_nothing_to_tell(driver, caplog, monkeypatch):
    driver()
    assert choose_device("auto") == torch.device("cpu")
    driver(CARD)

    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert nvidia_driver() is None
    assert choose_device("auto") == torch.device("cpu")
    assert caplog.messages == []
