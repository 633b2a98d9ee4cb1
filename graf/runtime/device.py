"""The device of a run: choosing it, why PyTorch cannot use a GPU, and how its memory and the CPU's are kept or given back."""

import atexit
import contextlib
import ctypes
import dataclasses
import gc
import logging
import os
import signal
import sys

from graf.errors import GrafError
from graf.runtime.limits import process_bytes, renew_limit
from graf.runtime.out_of_memory import first_line

import psutil
import pynvml
import torch

log = logging.getLogger("graf")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
FEWEST_FROZEN = 10_000  # objects, where a program froze what it imported; Python 3.12 freezes some hundred of its own
LARGEST_KEPT = 6 * 2**20  # bytes: holes of larger blocks would double what a wide network's step holds


def choose_device(name: str) -> torch.device:
    """`auto` (CUDA where there is one), `cpu`, `cuda`, `cuda:1`, or `mps`: an Apple GPU, which was not tested. A CUDA GPU has
    its index, and becomes the current device.

    `auto` warns where it takes the CPU beside a GPU that PyTorch cannot use. Raises GrafError for what this machine lacks.
    """
    if name == "auto" and not torch.cuda.is_available():
        return _cpu_instead(unusable_gpus())
    try:
        device = torch.device("cuda" if name == "auto" else name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise GrafError(f"--device {name}: expected auto, cpu, cuda, cuda:N or mps")
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise GrafError(f"--device {name}: PyTorch sees no Apple GPU here; try --device auto")
        log.warning("--device mps: no Apple GPU was at hand to test this program on; it computes in float32 there")
    if device.type != "cuda":
        return device
    if why := unusable_gpus():
        raise GrafError(f"--device {name}: {why}; or take --device cpu")
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= n_devices:
        raise GrafError(f"--device {name}: PyTorch sees {n_devices} CUDA device(s) here; try --device auto")
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if why := lacks_kernels(device.index):
        if name == "auto":
            return _cpu_instead(why)
        raise GrafError(f"--device {name}: {why}; or take --device cpu")
    torch.cuda.set_device(device)
    return device


def _cpu_instead(why: str) -> torch.device:
    """The CPU, with a warning where a GPU cannot be used."""
    if why:
        log.warning("%s. The CPU is taken; --device cpu does so without this warning", why)
    return torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version, the highest version of CUDA that it supports, and the names of the GPUs."""

    version: str
    cuda: tuple[int, int]  # major and minor
    gpus: tuple[str, ...]


def nvidia_driver() -> Driver | None:
    """The driver, by its library NVML; None where there is none, or none that answers."""
    try:
        pynvml.nvmlInit()
        try:
            cuda = pynvml.nvmlSystemGetCudaDriverVersion()  # such as 12020 for 12.2
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            gpus = tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
            return Driver(str(pynvml.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10), gpus)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def unusable_gpus() -> str:
    """Why PyTorch can use none of the GPUs that the driver has here, and the cure; "" where there is no such GPU.

    A driver for CUDA 12.2 runs PyTorch for any CUDA 12: within a major version newer libraries run on older drivers.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    hidden_by_user = not visible or visible.startswith("-")
    if torch.cuda.is_available() or hidden_by_user or not (driver := nvidia_driver()) or not driver.gpus:
        return ""
    major, minor = driver.cuda
    unusable = f"{', '.join(dict.fromkeys(driver.gpus))} cannot be used by PyTorch {torch.__version__}, which is built"
    fits = f"install PyTorch for CUDA {major} (an index such as cu{major}x), whose address the selector on pytorch.org shows"
    supports = f"driver {driver.version}, which supports CUDA up to {major}.{minor}"
    if torch.version.cuda is None:
        return f"{unusable} without CUDA; for {supports}, {fits}"
    if int(torch.version.cuda.split(".")[0]) > major:
        return f"{unusable} for CUDA {torch.version.cuda}, with {supports}; {fits}, or a newer driver"
    try:
        torch.cuda.init()
        message = "no GPU is visible"
    except (RuntimeError, AssertionError) as error:
        message = first_line(error)
    return f"{unusable} for CUDA {torch.version.cuda}, with {supports}: {message}"


def lacks_kernels(index: int) -> str:
    """Why PyTorch cannot compute on this GPU, though the driver can, and the cure; "" where it can.

    A GPU runs what was compiled for its own major version, up to its minor one (sm_75), or for any version up to its own if
    it is compiled further at the start (compute_120).
    """
    built_for = torch.cuda.get_arch_list() if torch.version.cuda else []
    capability = torch.cuda.get_device_capability(index)
    if not built_for or any(_runs(architecture, capability) for architecture in built_for):
        return ""
    gpu, version = torch.cuda.get_device_name(index), ".".join(map(str, capability))
    return (
        f"{gpu}, of compute capability {version}, cannot be used by PyTorch {torch.__version__}, which is built for "
        f"{', '.join(built_for)}; install an older PyTorch (from 2.6 on), or one for an older CUDA, from pytorch.org"
    )


def _runs(architecture: str, capability: tuple[int, int]) -> bool:
    kind, _, digits = architecture.partition("_")
    if not digits.isdecimal():  # sm_90a: the features of one GPU alone
        return False
    version = divmod(int(digits), 10)
    return version <= capability and (kind == "compute" or version[0] == capability[0])


def keep_freed_memory() -> None:
    """Let glibc keep all but the largest freed blocks for the next step, which avoids page faults.

    A training step on the CPU is 1.5 times as fast with it (bench/benchmark.py speed prints it).
    """
    _call_glibc("mallopt", M_MMAP_THRESHOLD, LARGEST_KEPT)
    _call_glibc("mallopt", M_TRIM_THRESHOLD, 2**31 - 1)


def freeze_imports() -> None:
    """Exclude all objects that exist now from garbage collection, which looks at each one in every `clean_up`: imported modules
    are hundreds of thousands, and never garbage.

    They are excluded from censuses of memory too. Call it when a program starts; where the process has frozen objects already,
    nothing is done.
    """
    if gc.get_freeze_count() < FEWEST_FROZEN:
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # Triton's binding tells of each of its objects that is left at the end


def clean_up() -> None:
    """Collect garbage, empty PyTorch's cache of the GPU, and hand glibc's free blocks back to the kernel.

    The next steps have to allocate their memory again, which costs time: worth it after a phase of another size, not per step.
    """
    gc.collect()
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # by a signal amid a recording
        torch.cuda.empty_cache()
    _call_glibc("malloc_trim", 0)
    renew_limit()


def clean_up_on_signal() -> None:
    """Clean up on SIGUSR2, which tools/memory_leak_detector.py sends. Call it from the main thread; on Windows it does nothing.

    Nothing is logged: the signal may come in the middle of a write to the log.
    """
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, lambda _number, _frame: clean_up())


def _call_glibc(function: str, *numbers: int) -> None:
    """Call a function of glibc; does nothing on other systems and with another C library."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            getattr(ctypes.CDLL("libc.so.6"), function)(*numbers)


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process has held: allocated on a GPU, or resident in the host's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    own = process_bytes("VmHWM")  # on Linux ru_maxrss survives exec, so it may be the peak of another program
    if own is not None:
        return own
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # KiB elsewhere
