"""The NVIDIA cards of this machine as the driver sees them, which also tells of those that PyTorch cannot use."""

import dataclasses
import os

from graf.runtime.out_of_memory import first_line

import pynvml
import torch


@dataclasses.dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version, the highest version of CUDA that it supports, and the names of the cards."""

    version: str
    cuda: tuple[int, int]  # major and minor
    cards: tuple[str, ...]


def nvidia_driver() -> Driver | None:
    """The driver, by its library NVML; None where there is none, or none that answers."""
    try:
        pynvml.nvmlInit()
        try:
            cuda = pynvml.nvmlSystemGetCudaDriverVersion()  # such as 12020 for 12.2
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            cards = tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
            return Driver(str(pynvml.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10), cards)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def unusable_cards() -> str:
    """Why PyTorch can use none of the cards that the driver has here, and the cure; "" where there is no such card.

    A driver for CUDA 12.2 runs PyTorch for any CUDA 12: within a major version newer libraries run on older drivers.
    """
    if torch.cuda.is_available() or _hidden() or not (driver := nvidia_driver()) or not driver.cards:
        return ""
    major, minor = driver.cuda
    here = f"{', '.join(dict.fromkeys(driver.cards))} cannot be used by PyTorch {torch.__version__}"
    fits = f"install PyTorch for CUDA {major} (an index such as cu{major}x), whose address the selector on pytorch.org shows"
    supports = f"driver {driver.version}, which supports CUDA up to {major}.{minor}"
    if torch.version.cuda is None:
        return f"{here}, which is built without CUDA; for {supports}, {fits}"
    if int(torch.version.cuda.split(".")[0]) > major:
        return f"{here}, which is built for CUDA {torch.version.cuda}, with {supports}; {fits}, or a newer driver"
    return f"{here}, which is built for CUDA {torch.version.cuda}, with {supports}: {_said()}"


def _hidden() -> bool:
    """Whether the user hides all cards, by an empty or negative CUDA_VISIBLE_DEVICES."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return not first or first.startswith("-")


def _said() -> str:
    """What PyTorch says of starting CUDA, in a line."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return first_line(error)
    return "no card is visible"
