"""Single readings of load, heat and memory: processes, the CPU, PyTorch's allocator on a GPU, and the GPU itself."""

import logging
import time

from graf.memory.process_tree import ProcessTree

import psutil
import torch

log = logging.getLogger("graf")

GPU_READINGS = {  # through NVML, where `pip install nvidia-ml-py` and the driver allow it
    "gpu_utilization_percent": torch.cuda.utilization,
    "gpu_temperature_c": torch.cuda.temperature,
    "gpu_power_w": lambda device: torch.cuda.power_draw(device) / 1000,
}
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal")  # drivers in Linux


class CpuLoad:
    """CPU load since the last reading: of the run's processes, 100 percent per core, and of the whole machine."""

    def __init__(self, tree: ProcessTree):
        self.tree = tree
        self._before = time.monotonic(), tree.cpu_seconds()
        psutil.cpu_percent()  # the next reading covers the time from here on

    def read(self) -> dict[str, float]:
        """CPU use of the run and of the machine, in percent. Raises psutil.Error where the process has ended."""
        (then, spent), now, seconds = self._before, time.monotonic(), self.tree.cpu_seconds()
        self._before = now, seconds
        run_percent = 100 * max(0.0, seconds - spent) / max(now - then, 1e-3)
        return {"run_cpu_percent": round(run_percent, 1), "machine_cpu_percent": psutil.cpu_percent()}


def read_heat() -> dict[str, float]:
    """Degrees Celsius of the CPU's hottest sensor; empty where none can be read, as in most virtual machines."""
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError):  # systems but Linux and FreeBSD have none
        return {}
    found = [sensor.current for driver in CPU_SENSORS for sensor in sensors.get(driver, ())]
    return {"cpu_temperature_c": max(found)} if found else {}


def read_allocator(device: torch.device) -> dict[str, float]:
    """Bytes that tensors hold on the GPU, bytes that PyTorch has reserved for them, and the fragmentation: the share of the
    reserved bytes in gaps between tensors, which emptying the cache does not give back. Empty before the GPU's first use.
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats(device)
    if not stats:
        return {}
    reserved = stats["reserved_bytes.all.current"]
    return {
        "allocated_bytes": stats["allocated_bytes.all.current"],
        "allocated_peak_bytes": stats["allocated_bytes.all.peak"],
        "reserved_bytes": reserved,
        "fragmentation": stats["inactive_split_bytes.all.current"] / max(reserved, 1),
    }


class Gpu:
    """A GPU as the driver sees it, all processes together. Readings that fail are not tried again."""

    def __init__(self, device: torch.device):
        self.device = device
        self._readings = dict(GPU_READINGS) if device.type == "cuda" else {}

    def read(self) -> dict[str, float]:
        """Used and total bytes, and by NVML use in percent, temperature in degrees Celsius, power in watts."""
        if self.device.type != "cuda" or not torch.cuda.is_initialized():
            return {}
        free, total = torch.cuda.mem_get_info(self.device)
        values = {"gpu_used_bytes": total - free, "gpu_total_bytes": total}
        for name, read in list(self._readings.items()):
            try:
                values[name] = read(self.device)
            except Exception as error:  # NVML has an error class for each of its codes, and may be missing altogether
                log.debug("%s cannot be read (%s)", name, error)
                del self._readings[name]
        return values
