"""Does a run keep to memory.budget_gb, and is it the same run? The same steps unlimited and under a part of their natural peak.

    python bench/measure_budget.py --steps 20 --share 0.6

Each runs in a process of its own; under the limit an allocation beyond it fails (RLIMIT_DATA on the CPU), as `ulimit -v` or a
control group would have it. Exit status 0 where all steps were taken within the budget and the losses agree to --tolerance.
"""

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

from graf.config import load_config
from graf.memory.budget import enforce_budget
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.device import choose_device, keep_freed_memory, peak_memory_bytes
from graf.runtime.files import write_text
from graf.runtime.limits import GB
from graf.training.state import TrainState
from memory_rows import in_own_process, timed_steps

LARGE = ("nerf.netwidth=128", "nerf.netdepth=6", "training.batch_size=16", "training.reg_type=r1")


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--steps", type=positive, default=20, help="steps of training, on noise instead of images")
    parser.add_argument("--share", type=float, default=0.6, help="share of the unlimited run's peak that the other run gets")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="largest relative difference of the last losses")
    parser.add_argument("--set", nargs="+", default=list(LARGE), metavar="KEY=VALUE", help="what differs from the default")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    parser.add_argument("--budget_gb", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.budget_gb is not None:
        log.info(json.dumps(steps_within(args)))
        return 0
    unlimited = in_own_process([*sys.argv, "--budget_gb", "0"])
    budget_gb = args.share * unlimited["peak_bytes"] / GB
    limited = in_own_process([*sys.argv, "--budget_gb", str(budget_gb)])
    for name, row in (("unlimited", unlimited), (f"budget {budget_gb:.2f} GB", limited)):
        log.info(
            "%-16s %d steps, peak %.2f GB, %s; loss_d %.6f, loss_g %.6f",
            *(name, row["steps"], row["peak_bytes"] / GB, row["sizes"], row["loss_d"], row["loss_g"]),
        )
    difference = max(abs(limited[name] / unlimited[name] - 1) for name in ("loss_d", "loss_g"))
    within = limited["peak_bytes"] <= budget_gb * GB
    log.info("largest relative difference of the losses: %.1e; within the budget: %s", difference, "yes" if within else "NO")
    if args.json:
        write_text(args.json, json.dumps([unlimited, limited], indent=1))
    return 0 if within and difference <= args.tolerance else 1


def steps_within(args: argparse.Namespace) -> dict:
    """Take the steps; returns the last one's losses and the process's peak."""
    keep_freed_memory()
    device = choose_device(args.device)
    config = load_config(None, [*args.set, f"memory.budget_gb={args.budget_gb}"])
    enforce_budget(config.memory, device)
    state = TrainState(config, device)
    for _, stats in islice(timed_steps(state), args.steps):
        losses = {name: float(stats[name]) for name in ("loss_d", "loss_g")}
        state.sizes.step_done()
    return losses | {"steps": args.steps, "peak_bytes": peak_memory_bytes(device), "sizes": str(state.sizes)}


if __name__ == "__main__":
    run_script(main)
