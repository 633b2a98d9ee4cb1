"""Cost of a training step against the number of processes: python bench/benchmark_scaling.py --processes 1 2"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from graf.config import Config, load_config
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.device import keep_freed_memory
from graf.runtime.files import write_text
from graf.runtime.interruption import Interruption
from graf.runtime.limits import available_cores
from graf.runtime.processes import Processes, processes_of_run
from graf.training.state import TrainState
from memory_rows import WARM_UP_STEPS, in_own_process, timed_steps

import torch
from torch import Tensor

T = TypeVar("T")
ROW = "| %9s | %7s | %8s | %8s | %9s | %15s |"


@dataclasses.dataclass(frozen=True)
class TimedProcesses(Processes):
    """Processes that note the seconds of each exchange, for which they wait for the GPU."""

    spent: list[float] = dataclasses.field(default_factory=list)

    def all_reduce_status(self, status: int) -> int:
        return self._timed(super().all_reduce_status, status)

    def all_reduce(self, buffer: Tensor) -> Tensor:
        return self._timed(super().all_reduce, buffer)

    def _timed(self, exchange: Callable[[Any], T], given: Any) -> T:
        _wait_for_card()
        start = time.perf_counter()
        result = exchange(given)
        _wait_for_card()
        self.spent.append(time.perf_counter() - start)
        return result


def main() -> int:
    parser = Parser(__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    parser.add_argument("--processes", type=positive, nargs="+", default=[1, 2], help="numbers of processes, on this machine")
    parser.add_argument("--steps", type=positive, default=20, help="steps that are timed, after a few that are not")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as for train.py")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    parser.add_argument("--measure", action="store_true", help="be one of the processes, and print the row as JSON")
    args = parser.parse_args()
    config = load_config(args.config, args.set)  # here, so that a fault in it is reported once, not by every process
    if args.measure:
        with processes_of_run(args.device) as (processes, device):
            timed = TimedProcesses(processes.rank, processes.world_size, processes.tensors)
            row = measure(config, args.steps, device, timed)
            if processes.first:
                log.info(json.dumps(row))
        return 0
    rows = [run_in(n) for n in args.processes]
    log.info("%d steps each, global batch %d, on %s", args.steps, rows[0]["batch_size"], rows[0]["device"])
    log.info(ROW, "processes", "threads", "s / step", "images/s", "speed-up", "s of exchanges")
    log.info(ROW, *["---:"] * 6)
    for row in rows:
        seconds = row["seconds_per_step"]
        speed_up = f"{rows[0]['seconds_per_step'] / seconds:.2f}"
        images_s, exchanges = f"{row['batch_size'] / seconds:.1f}", f"{row['seconds_of_exchanges']:.4f}"
        log.info(ROW, row["processes"], row["threads"], f"{seconds:.4f}", images_s, speed_up, exchanges)
    if args.json:
        write_text(args.json, json.dumps(rows, indent=1))
    return 0


def run_in(n: int) -> dict:
    """The row that n processes measure, which share this machine's cores."""
    threads = str(max(1, available_cores() // n))
    arguments = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}", *sys.argv, "--measure"]
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    return in_own_process(arguments, environment)


def measure(config: Config, n_steps: int, device: torch.device, processes: TimedProcesses) -> dict:
    """Median seconds of a step on random photographs, and of what of it the processes spend on exchanges and waiting."""
    keep_freed_memory()
    n_classes = 2 if config.discriminator.label_loss == "MCE" else 1  # classes, as the data would have
    state = TrainState(config, device, n_classes=n_classes, processes=processes)
    steps, seconds, waited, interruption = timed_steps(state), [], [], Interruption()
    for _ in range(WARM_UP_STEPS + n_steps):
        processes.barrier()
        processes.spent.clear()
        start = time.perf_counter()
        processes.should_end(interruption)
        next(steps)
        seconds.append(time.perf_counter() - start)
        waited.append(sum(processes.spent))
    return {
        "processes": processes.world_size,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{available_cores()} cores",
        "batch_size": config.training.batch_size,
        "seconds_per_step": statistics.median(seconds[WARM_UP_STEPS:]),
        "seconds_of_exchanges": statistics.median(waited[WARM_UP_STEPS:]),
    }


def _wait_for_card() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


if __name__ == "__main__":
    run_script(main)
