"""Speed and memory of a training step, each variant in a process of its own.

python bench/benchmark.py speed      # steps of GRAF's network in turns, A B A B: plain PyTorch and this package; then
                                     # the default's step by part, against what the machine can do. With --config: of that
python bench/benchmark.py render --checkpoint FILE     # seconds per frame: plain, exact, as one object's, and the fast way
python bench/benchmark.py loader     # seconds that a step waits for 12-megapixel photographs, kept decoded and not
python bench/benchmark.py start      # seconds of --help, and to the first step of a training run
python bench/benchmark.py growth     # is the cost linear in rays, samples and batch? --picture FILE draws it
python bench/benchmark.py busy       # train.py alone and beside a busy process, in turns
python bench/benchmark.py ccsr       # a step in mixed precision, refined and not, with 20 and 64 samples per ray
python bench/benchmark.py batches    # a GPU's images per second and memory with 1, 4 and 16 times the config's batch
python bench/benchmark.py memory     # GRAF's network: plain PyTorch, this package, and each way to need less
python bench/benchmark.py rules      # what the house rules about memory are worth
python bench/benchmark.py gpus       # memory, operations and bytes of steps on four GPUs, counted, and a bound of their speed
python bench/benchmark.py step       # what a step asks of a GPU, counted on a pretended one: operations, waits, copies
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import loader_rows as loader
import memory_rows as memory
import speed_rows as speed
import step_rows as counted
from graf.checkpoints.generator_loading import load_generator
from graf.config import CONFIG_DIR, Config, load_config
from graf.errors import GrafError
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.device import choose_device
from graf.runtime.files import save_figure, write_text
from graf.runtime.limits import GB, MB
from graf.runtime.out_of_memory import OutOfMemory
from measure_training import CCSR, NOT_REFINED, variant_config
from plain_step import PlainGenerator

import torch
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent

FLOAT32, AMP = "training.use_amp=false", "training.use_amp=true"
SPEED = {"plain": (FLOAT32,), "float32": (FLOAT32,), "system allocator": (FLOAT32,), "amp": (AMP,)}
QUICK_RAYS = 256
MEDIANS = ("seconds", "cpu_seconds", "flop_utilisation", "share_of_step", "images_per_second")
LEAST_SPEEDUP = {"float32": 1.6, "amp": 4.5}  # over plain
MOST_MEMORY = 0.65  # of plain's
MOST_TIME_OF_AMP = 1.05  # of float32's
PARTS = "parts"
FRAMES = ("plain", "exact", "object", "fast")
LEAST_SPEEDUP_OF_FRAMES = 10  # over plain, fast, at this many pixels a side:
JUDGED_PIXELS = 128
PIXELS = (64, 128, 256, 512)
STARTS = ("train.py --help", "eval.py --help", "first step")
NEVER = (*(f"training.{name}_every=0" for name in ("sample", "fid", "backup", "video")), "discriminator.low_res_steps=0")
GROWN = {  # by a factor of at least 8; a patch is a square of 16, 32 or 64 rays
    "rays per image": ("ray_sampler.rays_per_patch", (256, 1024, 4096)),
    "samples per ray": ("nerf.samples_per_ray", (8, 16, 32, 64)),
    "images": ("training.batch_size", (2, 4, 8, 16)),
}
MOST_DEVIATION = 0.1  # of a step's seconds from a straight line
LEAST_SPEED_BESIDE = 0.4  # of the speed alone, beside one busy process
BUSY = "while True: pass"
COUNTED = {  # configs with overrides
    "default": (FLOAT32,),
    "default, bfloat16": (AMP,),
    "convolutional": (FLOAT32,),
    "cars_128": (),
    "graf": (),
}
SIZED = ("default", "cars_128", "cars_128_gpu", "cars_256_gpu")
BATCHES = (1, 4, 16)  # times the config's
LAUNCHED, LAYERS = "training.cuda_graphs=none", "training.fused_field=none"
WAYS = {  # of a batch's steps, the first of which the others are compared with
    "float32": (FLOAT32, LAUNCHED),
    "mixed precision": (AMP, LAUNCHED, LAYERS),
    "+ CUDA graphs": (AMP, LAYERS),
    "+ compiled field": (AMP, LAYERS, "training.compile=true"),
    "fused field": (AMP, LAUNCHED),
    "fused field + CUDA graphs": (AMP,),
}
SETTLED = "discriminator.low_res_steps=0", "discriminator.blur_steps=0"  # steps as they are in most of a run
SAMPLES = (20, 64)  # per ray: those of configs/film_64.yaml, and GRAF's
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
    p.add_argument(
        "--steps",
        type=positive,
        help="steps that are timed; by default 10, busy 20, batches, loader 30, memory 3, or a minute's",
    )
    p.add_argument("--rounds", type=positive, default=2, help="turns of each variant (default: 2)")
    p.add_argument("--quick", action="store_true", help="speed: a sixteenth of the rays")
    p.add_argument("--dtype", default="auto", choices=["auto", "bfloat16"], help="speed: training.amp_dtype (default: auto)")
    p.add_argument(
        "--times", type=positive, nargs="+", default=BATCHES, help="batches: multiples of the config's (default: 1 4 16)"
    )
    p.add_argument("--rays", type=int, nargs="+", choices=RAYS, default=RAYS, help="memory: rays per image")
    p.add_argument(
        "--variants",
        nargs="+",
        choices=list(memory.VARIANTS),
        default=list(memory.VARIANTS),
        help="memory: variants to measure",
    )
    p.add_argument("--most_gb", type=float, default=12, help="memory: leave out what is expected to take more (default: 12)")
    p.add_argument("--count", action="store_true", help="memory: count what tensors hold, by their shapes, without computing")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--checkpoint", type=Path, help="render: a trained generator, as for eval.py")
    p.add_argument("--pixels", type=positive, nargs="+", default=PIXELS, help="render: sides of the frames")
    p.add_argument("--picture", type=Path, metavar="FILE", help="growth: draw it into this PNG")
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows into this file too")
    p.add_argument("--row", help=argparse.SUPPRESS)
    return p


def in_own_process(row: dict) -> dict | list[dict]:
    return memory.in_own_process([*sys.argv, "--row", json.dumps(row)])


def measured_row(args: argparse.Namespace, row: dict) -> dict | list[dict]:
    """The work of one row's process."""
    device = choose_device(args.device)
    if args.what == "memory" and args.count:
        return memory.count_memory(row["name"], row["rays"])
    if args.what == "memory":
        return memory.measure_memory(row["name"], row["rays"], args.steps or 3, device)
    if args.what == "rules":
        return memory.measure_rules(load_config(args.config), args.steps or 20, device)
    if args.what == "batches":
        return measured_batch(args, row, device)
    if args.what == "ccsr":
        settings = ["training.use_amp=true", f"nerf.samples_per_ray={row['samples']}"]
        config = variant_config(args.config, settings, CCSR[row["name"]])
        return row | memory.measure_steps(config, True, args.steps or 10, device)
    if args.what == "growth":
        builds = {
            name: {value: load_config(args.config, ("nerf.checkpoint_rays=0", f"{key}={value}")) for value in values}
            for name, (key, values) in GROWN.items()
        }
        return speed.growth_rows(builds, device, args.steps or 10)
    if args.what == "render":
        return row | speed.frame_row(load_generator(args.checkpoint, device=str(device)), row, args.steps or 10)
    if args.what == "loader":
        config = loader.loader_config(args.config, Path(row["folder"], "photographs"), row["name"])
        return row | loader.loader_row(config, Path(row["folder"], "cache"), args.steps or 30, device)
    if args.what == "start":
        return row | start_row(args, row["name"])
    if row["name"] == PARTS:
        config = speed_config(args, *SPEED[row["of"]], LAUNCHED, default=CONFIG_DIR / "default.yaml")
        return speed.part_rows(config, device, args.steps or 10)
    config, plain = speed_config(args, *SPEED[row["name"]]), row["name"] == "plain"
    found = memory.measure_steps(config, row["name"] in ("float32", "amp"), args.steps or 10, device, plain)
    return row | speed.utilised(found, config, plain, device)


def speed_config(args: argparse.Namespace, *settings: str, default: Path | None = None) -> Config:
    """The config of --config, or of the default file, else GRAF's network."""
    settings = (*settings, f"training.amp_dtype={args.dtype}")
    if file := args.config or default:
        return load_config(file, settings)
    return memory.network(QUICK_RAYS if args.quick else 4096, (*memory.DEFAULT, *settings))


def speed_rows(args: argparse.Namespace) -> list[dict]:
    """Rows of training speed; a config has no plain step, which knows GRAF's network alone."""
    names = [name for name in SPEED if name != "plain"] if args.config else list(SPEED)
    rows = in_turns(names, args.rounds)
    speed_verdicts(rows)
    formats = [row["name"] for row in rows if row["name"] == "float32" or row["dtype"] != "float32"]
    return rows + [part for name in formats for part in parts_table(name)]


def speed_verdicts(rows: list[dict]) -> None:
    by_name = {row["name"]: row for row in rows}
    plain, float32, amp = by_name.get("plain"), by_name["float32"], by_name["amp"]
    for name, least in LEAST_SPEEDUP.items():
        if plain and (name == "float32" or amp["dtype"] != "float32"):
            speedup = by_name[name]["speedup_over_plain"]
            log.info("%s: %.2f x plain; at least %.1f: %s", name, speedup, least, met(speedup >= least))
    if plain:
        share = float32["peak_bytes"] / plain["peak_bytes"]
        log.info("float32: %.2f of plain's memory; at most %.2f: %s", share, MOST_MEMORY, met(share <= MOST_MEMORY))
    for key, what in (("seconds", "seconds"), ("cpu_seconds", "CPU seconds")):
        share = amp[key] / float32[key]
        held = met(share <= MOST_TIME_OF_AMP)
        log.info("amp: %.2f of the %s of float32; at most %.2f: %s", share, what, MOST_TIME_OF_AMP, held)


def in_turns(names: Sequence[str], rounds: int, **of_all: int | str) -> list[dict]:
    """A row per name, each measured in processes of its own, in turns: medians, and the first name's seconds over its own.

    Of a machine that others use, CPU seconds say more than those of the clock.
    """
    turns = [in_own_process({"name": name} | of_all) for _ in range(rounds) for name in names]
    rows: list[dict] = []
    log.info(
        "%s\n| name | dtype | seconds | least to most | CPU seconds | x %s | peak MB | utilisation |",
        turns[0]["work"],
        names[0],
    )
    log.info("|%s", " --- |" * 8)
    for name in names:
        own = [turn for turn in turns if turn["name"] == name]
        seconds = [turn["seconds"] for turn in own]
        row = own[0] | {key: statistics.median(turn[key] for turn in own) for key in MEDIANS if own[0].get(key) is not None}
        row |= {"least": min(seconds), "most": max(seconds)}
        row["speedup_over_plain"] = (rows[0] if rows else row)["seconds"] / row["seconds"]
        spread = f"{row['least']:.3f} to {row['most']:.3f}"
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / MB:.0f}"
        utilisation = "" if row["flop_utilisation"] is None else f"{row['flop_utilisation']:.2f}"
        figures = spread, row["cpu_seconds"], row["speedup_over_plain"], peak, utilisation
        log.info("| %s | %s | %.3f | %s | %.3f | %.2f | %s | %s |", name, row["dtype"], row["seconds"], *figures)
        rows.append(row)
    return rows


def parts_table(name: str) -> list[dict]:
    """The parts of a step of that row of SPEED."""
    rows = in_own_process({"name": PARTS, "of": name})
    first = rows[0]
    rates = first["instructions"], first["dtype"], first["product_rate"] / 1e9, first["copy_rate"] / 1e9
    log.info("\n%s\n%s: a product of %s takes %.0f GFLOP/s, a copy %.1f GB/s", first["work"], *rates)
    log.info(
        "| part | GFLOP | GB | seconds | of the product's rate | of the copy's rate |\n| --- | --- | --- | --- | --- | --- |"
    )
    for row in rows:
        figures = row["flops"] / 1e9, row["bytes"] / 1e9, row["seconds"], row["flop_utilisation"], row["copy_utilisation"]
        log.info("| %s | %.2f | %.3f | %.4f | %.2f | %.2f |", row["name"], *figures)
    step = rows[-1]
    least = step["flops"] / step["product_rate"], step["bytes"] / step["copy_rate"]
    share = sum(least) / step["seconds"]
    log.info("at these rates products take %.3f s and bytes %.3f s, together %.2f of the step", *least, share)
    return rows


def render_rows(args: argparse.Namespace) -> list[dict]:
    """Seconds of a frame of one turning object, in each way of speed.frame_row that its generator knows."""
    if args.checkpoint is None:
        raise GrafError("render: name a trained generator with --checkpoint FILE; an untrained one has no empty space")
    plain_too = PlainGenerator.knows(load_generator(args.checkpoint).config.nerf)
    rows = []
    for pixels in args.pixels:
        rows += in_turns(FRAMES if plain_too else FRAMES[1:], args.rounds, pixels=pixels)
        if plain_too and pixels == JUDGED_PIXELS:
            speedup = rows[-1]["speedup_over_plain"]
            held = met(speedup >= LEAST_SPEEDUP_OF_FRAMES)
            log.info("fast: %.1f x plain; at least %d: %s", speedup, LEAST_SPEEDUP_OF_FRAMES, held)
    return rows


def loader_rows(args: argparse.Namespace) -> list[dict]:
    """Seconds that a training step waits for its batch, by how photographs are kept."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "photographs").mkdir()
        loader.put_photographs(Path(folder, "photographs"))
        rows = in_turns(tuple(loader.KEPT), args.rounds, folder=folder)
    for row in rows:
        figures = 100 * row["share_of_step"], row["images_per_second"]
        log.info("%s: %.1f %% of the time is spent waiting, %.2f images per second", row["name"], *figures)
    return rows


def start_rows(args: argparse.Namespace) -> list[dict]:
    log.info("the data is made first, where there is none")
    start_row(args, STARTS[-1])
    return in_turns(STARTS, args.rounds)


def start_row(args: argparse.Namespace, name: str) -> dict:
    """Seconds of a command until it ends, or of a training run until its first step is logged."""
    config = load_config(args.config)
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    before, start = os.times(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trains = name == STARTS[-1]
        command = training_command(args, folder, 1) if trains else [str(ROOT / name.split()[0]), "--help"]
        with running(command, environment) as process:
            if trains:
                time_of_row(Path(folder, config.expname, "metrics.jsonl"), 1, process)
            else:
                process.wait()
            seconds = time.perf_counter() - start
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    found = {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": None, "flop_utilisation": None}
    return speed.described(config, choose_device(args.device)) | {"work": f"start, {config.expname}"} | found


def growth_rows(args: argparse.Namespace) -> list[dict]:
    """The rows of a quantity lie on a straight line, a fixed part and one that grows, where the cost is linear."""
    rows = in_own_process({})
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    log.info("| | %s |\n|%s", "value | seconds | of the line", " --- |" * 4)
    for name in GROWN:
        own = [row for row in rows if row["name"] == name]
        values, seconds = [row["value"] for row in own], [row["seconds"] for row in own]
        fixed, slope, deviation = speed.straight_line(values, seconds)
        line = [fixed + slope * value for value in values]
        for value, taken, expected in zip(values, seconds, line, strict=True):
            log.info("| %s | %d | %.3f | %.2f |", name, value, taken, taken / expected)
        held = met(deviation <= MOST_DEVIATION)
        log.info("%s: within %.0f %%; at most %.0f %%: %s", name, 100 * deviation, 100 * MOST_DEVIATION, held)
        factors = [value / values[0] for value in values]
        (drawn,) = axes.plot(factors, line, linewidth=0.8)
        axes.plot(factors, seconds, "o", color=drawn.get_color(), label=f"{name}, from {values[0]}")
    axes.set(xlabel="times as many", ylabel="seconds per step", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    if args.picture:
        save_figure(figure, args.picture)
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
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as others:
        for _ in range(n_busy):
            others.enter_context(running(["-c", BUSY]))
        command = training_command(args, folder, memory.WARM_UP_STEPS + steps)
        training = others.enter_context(running(command, environment))
        rows = Path(folder, config.expname, "metrics.jsonl")
        start = time_of_row(rows, memory.WARM_UP_STEPS, training)
        return steps / (time_of_row(rows, memory.WARM_UP_STEPS + steps, training) - start)


def training_command(args: argparse.Namespace, folder: str, n_steps: int) -> list[str]:
    """Train for so many steps, with a row for each, and nothing else."""
    settings = [f"training.outdir={folder}", "training.print_every=1", "training.monitoring=none", *NEVER]
    command = [str(ROOT / "train.py"), "--device", args.device, "--max_steps", str(n_steps), "--set", *settings]
    return command + (["--config", str(args.config)] if args.config else [])


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
    """The time at which the training has written its n-th row. Raises GrafError where it ends before."""
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


def batch_rows(args: argparse.Namespace) -> list[dict]:
    """Images per second and peak memory of steps with multiples of the config's batch, in each of WAYS."""
    log.info("| batch | step | number format | images / s | x float32 | launches | busy | peak MiB |\n|%s", " --- |" * 8)
    rows = []
    for times in args.times:
        ways = []
        for name in WAYS:
            row = in_own_process({"times": times, "name": name})
            ways.append(row)
            if row["images_per_second"] is None:
                log.info("| %d | %s | | out of memory | | | | |", row["batch"], name)
                continue
            row["times_float32"] = row["images_per_second"] / (ways[0]["images_per_second"] or math.nan)
            way = name if row["recorded"] or LAUNCHED in WAYS[name] else f"{name} (not recorded)"
            on_gpu = ("", "") if row["launches"] is None else (row["launches"], f"{row['busy_share']:.2f}")
            figures = row["number_format"], row["images_per_second"], row["times_float32"], *on_gpu, row["peak_bytes"] / MB
            log.info("| %d | %s | %s | %.1f | %.2f | %s | %s | %.0f |", row["batch"], way, *figures)
        rows += ways
    return rows


def measured_batch(args: argparse.Namespace, row: dict, device: torch.device) -> dict:
    """The row of so many times the config's batch, computed at once; images_per_second is None where it does not fit."""
    batch = row["times"] * load_config(args.config).training.batch_size
    at_once = f"training.batch_size={batch}", f"training.micro_batch={batch}", "nerf.checkpoint_rays=0"
    config = load_config(args.config, (*at_once, *SETTLED, *WAYS[row["name"]]))
    row |= {"batch": batch, "images_per_second": None}
    with contextlib.suppress(OutOfMemory, torch.OutOfMemoryError):
        row |= speed.throughput(counted.with_data(config), device, args.steps or 30)
    return row


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


def step_rows(args: argparse.Namespace) -> list[dict]:
    """Counts of a step of each of COUNTED, or of --config, on a pretended GPU; and each line that waits or mixes devices."""
    log.info("| config | operations | waits | of two devices | copies to the GPU | not pinned |\n|%s", " --- |" * 6)
    rows = []
    for name, overrides in {args.config: ()}.items() if args.config else COUNTED.items():
        gpu = counted.counted_step(load_config(args.config or name.partition(",")[0], overrides))
        named = {name: getattr(gpu, name) for name in ("launches", "waits", "mixtures", "copies", "unpinned")}
        row = {"config": str(name)} | {name: noted.total() for name, noted in named.items()}
        log.info("| %s |", " | ".join(str(value) for value in row.values()))
        for name in ("waits", "mixtures", "unpinned"):
            for what, times in sorted(named[name].items()):
                log.info("%s: %d x %s", name, times, what)
        row["adds_in_no_order"] = counted.adds_in_no_order(gpu)
        log.info("adds in no fixed order on CUDA: %s", ", ".join(row["adds_in_no_order"]))
        rows.append(row)
    return rows


def gpu_rows(args: argparse.Namespace) -> list[dict]:
    """Memory by the planner, operations and bytes of a step of each of SIZED, or of --config, in the parts that each GPU of
    counted.GPUS has memory for; and the images per second that its bandwidth and launches would allow."""
    log.info(
        "| config | batch | GPU | images at a time | GB | operations | GB touched | images / s at most |\n|%s", " --- |" * 8
    )
    rows = []
    for path in [args.config] if args.config else [CONFIG_DIR / f"{name}.yaml" for name in SIZED]:
        for row in counted.estimated_rows(load_config(path)):
            rows.append({"config": path.stem} | row)
            values = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in rows[-1].values())
            log.info("| %s |", " | ".join(values))
    return rows


TABLES = {
    "speed": speed_rows,
    "render": render_rows,
    "loader": loader_rows,
    "start": start_rows,
    "growth": growth_rows,
    "busy": busy_rows,
    "ccsr": ccsr_rows,
    "batches": batch_rows,
    "memory": memory_rows,
    "rules": rule_rows,
    "step": step_rows,
    "gpus": gpu_rows,
}


if __name__ == "__main__":
    run_script(main)
