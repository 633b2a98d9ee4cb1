"""Speed and memory of a training step, each variant in a process of its own.

python bench/benchmark.py step       # a config's step in float32 and in mixed precision
python bench/benchmark.py amp        # the same two in turns, A B A B: does mixed precision cost time on this processor?
python bench/benchmark.py busy       # train.py alone and beside a busy process, in turns
python bench/benchmark.py ccsr       # a step in mixed precision, refined and not, with 20 and 64 samples per ray
python bench/benchmark.py memory     # GRAF's network: plain PyTorch, this package, and each way to need less
python bench/benchmark.py rules      # what the house rules about memory are worth
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import memory_rows as memory
from graf.config import load_config
from graf.errors import GrafError
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.device import choose_device
from graf.runtime.files import write_text
from graf.runtime.limits import GB, MB
from graf.runtime.precision import AmpSettings
from measure_training import CCSR, NOT_REFINED, variant_config

ROOT = Path(__file__).resolve().parent.parent

STEP_VARIANTS = {  # name: (mixed precision, freed memory kept)
    "float32": (False, True),
    "amp": (True, True),
    "amp, system allocator": (True, False),
}
MOST_TIME_OF_AMP = 1.05  # of float32's
LEAST_SPEED_BESIDE = 0.4  # of the speed alone, beside one busy process
BUSY = "while True: pass"
SAMPLES = (20, 64)  # per ray: the default's, and GRAF's
RAYS = (1024, 4096, 16384)


def main() -> int:
    args = parser().parse_args()
    if args.row:
        log.info(json.dumps(measured_row(args, json.loads(args.row))))
        return 0
    rows = TABLES[args.what](args)
    if args.json:
        write_text(args.json, json.dumps(rows, indent=1))
    return 0


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("what", choices=list(TABLES))
    p.add_argument("--config", type=Path, help="YAML file, of all but memory; by default configs/default.yaml")
    p.add_argument("--steps", type=positive, help="steps that are timed; by default 20, of ccsr 10, of memory 3, or a minute's")
    p.add_argument("--rounds", type=positive, default=2, help="amp, busy: turns of each of the two (default: 2)")
    p.add_argument("--dtype", default="auto", choices=["auto", "bfloat16"], help="amp: training.amp_dtype (default: auto)")
    p.add_argument("--rays", type=int, nargs="+", choices=RAYS, default=RAYS, help="memory: rays per image")
    p.add_argument("--variants", nargs="+", choices=list(memory.VARIANTS), default=list(memory.VARIANTS), help="memory: which")
    p.add_argument("--most_gb", type=float, default=12, help="memory: leave out what is expected to take more (default: 12)")
    p.add_argument("--count", action="store_true", help="memory: count what tensors hold, by their shapes, without computing")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows into this file too")
    p.add_argument("--row", help=argparse.SUPPRESS)
    return p


def in_own_process(row: dict) -> dict | list[dict]:
    return memory.in_own_process([*sys.argv, "--row", json.dumps(row)])


def measured_row(args: argparse.Namespace, row: dict) -> dict | list[dict]:
    """What the process of one row does."""
    device = choose_device(args.device)
    if args.what == "memory" and args.count:
        return memory.count_memory(row["name"], row["rays"])
    if args.what == "memory":
        return memory.measure_memory(row["name"], row["rays"], args.steps or 3, device)
    if args.what == "rules":
        return memory.measure_rules(load_config(args.config), args.steps or 20, device)
    if args.what == "ccsr":
        settings = ["training.use_amp=true", f"nerf.samples_per_ray={row['samples']}"]
        config = variant_config(args.config, settings, CCSR[row["name"]])
        return row | memory.measure_steps(config, True, args.steps or 10, device)
    amp, kept = STEP_VARIANTS[row["name"]]
    config = load_config(args.config, [f"training.use_amp={str(amp).lower()}", f"training.amp_dtype={args.dtype}"])
    row["number_format"] = AmpSettings.choose(config.training, device).number_format
    return row | memory.measure_steps(config, kept, args.steps or 20, device)


def step_rows(args: argparse.Namespace) -> list[dict]:
    rows = [in_own_process({"name": name}) for name in STEP_VARIANTS]
    log.info("%-24s %10s %10s %14s %14s", "variant", "format", "steps / s", "x float32", "peak MiB")
    for row in rows:
        speed = rows[0]["seconds_per_step"] / row["seconds_per_step"]
        figures = row["number_format"], 1 / row["seconds_per_step"], speed, row["peak_bytes"] / MB
        log.info("%-24s %10s %10.2f %14.2f %14.0f", row["name"], *figures)
    return rows


def amp_rows(args: argparse.Namespace) -> list[dict]:
    """Each turn is a process of its own; of a machine that others use, CPU seconds say more than those of the clock."""
    rows = [in_own_process({"name": name}) for _ in range(args.rounds) for name in ("float32", "amp")]
    log.info("| variant | format | seconds per step | CPU seconds per step |\n| --- | --- | --- | --- |")
    for row in rows:
        figures = row["seconds_per_step"], row["cpu_seconds_per_step"]
        log.info("| %s | %s | %.3f | %.3f |", row["name"], row["number_format"], *figures)
    for key, what in (("seconds_per_step", "seconds"), ("cpu_seconds_per_step", "CPU seconds")):
        medians = {name: statistics.median(row[key] for row in rows if row["name"] == name) for name in ("float32", "amp")}
        share = medians["amp"] / medians["float32"]
        held = met(share <= MOST_TIME_OF_AMP)
        log.info("medians: %.2f of the %s of float32; at most %.2f: %s", share, what, MOST_TIME_OF_AMP, held)
    return rows


def busy_rows(args: argparse.Namespace) -> list[dict]:
    """Steps per second of `python train.py`, started as a user starts it."""
    names = {"alone": 0, "beside a busy process": 1}
    rows = []
    log.info("| train.py | steps / s |\n| --- | --- |")
    for name in [*names] * args.rounds:
        rows.append({"name": name, "steps_per_second": training_speed(args, names[name])})
        log.info("| %s | %.2f |", name, rows[-1]["steps_per_second"])
    alone, beside = (statistics.median(row["steps_per_second"] for row in rows if row["name"] == name) for name in names)
    share = beside / alone
    log.info("medians: %.2f of the speed alone; at least %.2f: %s", share, LEAST_SPEED_BESIDE, met(share >= LEAST_SPEED_BESIDE))
    return rows


def training_speed(args: argparse.Namespace, n_busy: int) -> float:
    """Steps per second, without the first ones, of train.py with so many busy processes beside it."""
    steps, config = args.steps or 20, load_config(args.config)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}  # set here by graf itself
    never = [f"training.{name}_every=0" for name in ("sample", "fid", "backup", "video")]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as others:
        settings = [f"training.outdir={folder}", "training.print_every=1", "training.monitoring=none", *never]
        length = ["--max_steps", str(memory.WARM_UP_STEPS + steps)]
        command = [str(ROOT / "train.py"), "--device", args.device, *length, "--set", *settings]
        for _ in range(n_busy):
            others.enter_context(running(["-c", BUSY]))
        training = others.enter_context(running(command + (["--config", str(args.config)] if args.config else []), environment))
        rows = Path(folder, config.expname, "metrics.jsonl")
        start = time_of_row(rows, memory.WARM_UP_STEPS, training)
        return steps / (time_of_row(rows, memory.WARM_UP_STEPS + steps, training) - start)


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """A Python process that ends with the block."""
    with subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def time_of_row(path: Path, n: int, training: subprocess.Popen) -> float:
    """When the training has written its n-th row. Raises GrafError where it ends before."""
    while True:
        over = training.poll() is not None
        if path.exists() and path.read_bytes().count(b"\n") >= n:
            return time.perf_counter()
        if over:
            raise GrafError(f"train.py ended with status {training.returncode} before step {n}; start it by itself to see why")
        time.sleep(0.01)


def ccsr_rows(args: argparse.Namespace) -> list[dict]:
    """Time and memory of a step with each of CCSR's variants; the discriminator sees as many pixels in all of them."""
    rows: list[dict] = []
    log.info("| samples per ray | step | seconds | times as fast | peak MiB |\n| --- | --- | --- | --- | --- |")
    for samples in SAMPLES:
        variants = [in_own_process({"name": name, "samples": samples}) for name in CCSR]
        unrefined = next(row["seconds_per_step"] for row in variants if row["name"] == NOT_REFINED)
        for row in variants:
            row["times_as_fast"] = unrefined / row["seconds_per_step"]
            figures = row["seconds_per_step"], row["times_as_fast"], row["peak_bytes"] / MB
            log.info("| %d | %s | %.2f | %.1f | %.0f |", samples, row["name"], *figures)
        rows += variants
    return rows


def memory_rows(args: argparse.Namespace) -> list[dict]:
    rows: list[dict] = []
    log.info("| rays per image | step | peak GB | of plain's | seconds | of default's |\n| --- | --- | --- | --- | --- | --- |")
    for rays in sorted(args.rays):
        for name in args.variants:
            expected = memory.expected_bytes(rows, name, rays)
            if expected > args.most_gb * GB and not args.count:
                log.info("| %s | %s | about %.0f, left out | | | |", f"{rays:,}", name, expected / GB)
                continue
            rows = memory.compared([*rows, in_own_process({"name": name, "rays": rays})])
            row, share, time_of_default = rows[-1], percent(rows[-1]["peak_over_plain"]), percent(rows[-1]["time_over_default"])
            size, seconds = row["peak_bytes"] / GB, row["seconds_per_step"]
            seconds = "" if seconds is None else f"{seconds:.1f}"
            name = f"{name} ({row['number_format']})" if memory.AMP in memory.VARIANTS[name] else name
            log.info("| %s | %s | %.2f | %s | %s | %s |", f"{rays:,}", name, size, share, seconds, time_of_default)
    log.info("")
    for line in memory.verdicts(rows):
        log.info("%s", line)
    return rows


def rule_rows(args: argparse.Namespace) -> list[dict]:
    rows = in_own_process({})
    log.info("| rule | kept | broken |\n| --- | --- | --- |")
    for row in rows:
        size, unit = (MB, "MB") if row["unit"] == "bytes" else (1, "s")
        log.info("| %s | %.2f %s | %.2f %s |", row["name"], row["kept"] / size, unit, row["broken"] / size, unit)
    return rows


def met(holds: bool) -> str:
    return "met" if holds else "MISSED"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


TABLES = {"step": step_rows, "amp": amp_rows, "busy": busy_rows, "ccsr": ccsr_rows, "memory": memory_rows, "rules": rule_rows}


if __name__ == "__main__":
    run_script(main)
