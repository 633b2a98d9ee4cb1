"""Quality after minutes or steps of training, as a Markdown table: each variant in a process of its own, one after the other.

    python bench/measure_training.py progress --minutes 0 2 5 10                 # one config as it trains
    python bench/measure_training.py ccsr --config convolutional --minutes 10    # refined at scale 2 and 4 against not refined
    python bench/measure_training.py recipe --config convolutional --set discriminator.low_res_steps=0   # and without each part

A recipe is measured after 400 steps (--steps), more than those of low resolution or without a discriminator. Only training
steps count as time; measuring stands beside it. Nothing is kept but the table.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graf.camera import rotation_poses
from graf.config import Config, load_config
from graf.data import Views, build_dataset, build_loader, resolve
from graf.errors import GrafError
from graf.metrics.consistency import multi_view_consistency, sanity
from graf.metrics.measure import MeasureSettings, measure_generator
from graf.pictures.sampling import render_views, sample_objects
from graf.pictures.sweep import low_resolution_error
from graf.runtime.command_line import Parser, positive, whole_number
from graf.runtime.console import log, progress, run_script
from graf.runtime.device import choose_device, keep_freed_memory, peak_memory_bytes
from graf.runtime.files import check_writable, json_rows, write_text
from graf.training.state import TrainState
from graf.training.step import train_step
from recipe_parts import DEFAULT, PART_COLUMNS, PARTS, part_configs, part_quality

import torch

NOT_REFINED = "not refined"
CCSR = {"refined, scale 2": 2, "refined, scale 4": 4, NOT_REFINED: 1}  # pixels per ray; the discriminator sees as many in all
UNREFINED = ("ccsr.mode=none", "ccsr.rrdb.pretrained_path=''", "discriminator.dual=false")
COLUMNS = {  # of a row: its heading and format
    "name": ("", "{}"),
    "minutes": ("minutes", "{:g}"),
    "step": ("steps", "{}"),
    "images_per_second": ("images / s", "{:.1f}"),
    "rays_per_image": ("rays / image", "{}"),
    "peak_bytes": ("peak GiB", "{:.2f}"),
    "kid": ("KID x 1000", "{:.0f}"),
    "fid": ("FID", "{:.0f}"),
    "low_resolution_error": ("LR error", "{:.1e}"),
    "depth_warp_error": ("depth-warp error", "{:.1f}"),
    "mean_opacity": ("opacity", "{:.2f}"),
}
SCALES = {"kid": 1000, "kid_before_refinement": 1000, "peak_bytes": 2**-30}
WARPED_OBJECTS = 32
DATA_ALONE = "data"  # of a process that only makes the data set


class Table(NamedTuple):
    """note: what is said above it, of the extractor; columns as in COLUMNS."""

    note: str
    columns: dict[str, tuple[str, str]]


TIMED = Table("FID and KID by %s; depth-warp error in 8-bit steps", COLUMNS)
RECIPE = Table("KID by %s; variety as a share of the data's; haze in 8-bit steps; seconds of training alone", PART_COLUMNS)


def main() -> int:
    args = arguments()
    # Faults of a config are reported before anything is started.
    configs = variant_configs(args)
    if args.what == "recipe":
        require_long(args.steps, configs.values())
    if args.variant == DATA_ALONE:
        for config in configs.values():
            build_dataset(config)
        return 0
    if args.variant:
        keep_freed_memory()
        config, device = configs[args.variant], choose_device(args.device)
        recipe = args.what == "recipe"
        rows = [part_row(config, args.steps, device, args.cache)] if recipe else None
        for row in rows or measured_rows(config, sorted(args.minutes), device, args.cache):
            log.info(json.dumps({"name": args.variant} | row))
        return 0
    if args.json:
        check_writable(args.json)
    if args.what == "recipe":
        jobs = [(name, ["--set", f"training.seed={seed}"]) for seed in args.seeds for name in configs]
        rows, status = write_table(jobs, RECIPE, args.json)
        if len(args.seeds) > 1:
            print_spread(rows)
        return status
    return write_table(timed_jobs(configs, args.minutes), TIMED, args.json)[1]


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("what", choices=["progress", "ccsr", "recipe"])
    parser.add_argument("--minutes", type=float, nargs="+", default=[10.0], help="minutes of training at which to measure")
    parser.add_argument("--steps", type=positive, default=400, help="recipe: of each variant's training")
    parser.add_argument("--seeds", type=whole_number, nargs="+", default=[0], help="recipe: each variant is trained with each")
    parser.add_argument("--only", nargs="+", choices=[DEFAULT, *PARTS], metavar="NAME", help="recipe: of these variants alone")
    parser.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as metrics.n_fake=992")
    parser.add_argument("--no_amp", action="store_true", help="float32 instead of mixed precision")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_table(jobs: Sequence[tuple[str, list[str]]], table: Table, file: Path | None) -> tuple[list[dict], int]:
    """Print each row of the jobs, (variant, further flags), as it comes, and write all there are into the file. Returns the
    rows, and the exit status of what failed, or 0.

    A process does nothing but train until it has reported its peak: minute 0 is measured, and toy cars are made, in others.
    """
    if status := in_own_process(DATA_ALONE, [], lambda row: None):
        return [], status
    rows: list[dict] = []

    def keep(row: dict) -> None:
        rows.append(row)
        print_row(row, table, first=len(rows) == 1)
        if file:
            write_text(file, json.dumps(rows, indent=1))

    with tempfile.TemporaryDirectory() as cache:  # of the photographs' features, which are the same for all
        return rows, max([in_own_process(variant, [*flags, "--cache", cache], keep) for variant, flags in jobs])


def timed_jobs(variants: Iterable[str], minutes: list[float]) -> list[tuple[str, list[str]]]:
    """Jobs of each variant: one that measures at minute 0, if that is wanted, and one at the others."""
    goals = [some for some in ([m for m in minutes if m <= 0], [m for m in minutes if m > 0]) if some]
    return [(variant, ["--minutes", *map(str, some)]) for variant in variants for some in goals]


def variant_configs(args: argparse.Namespace) -> dict[str, Config]:
    settings = [*args.set, f"training.use_amp={str(not args.no_amp).lower()}"]
    if args.what == "recipe":
        return part_configs(args.config, settings, args.only)
    if args.what == "ccsr":
        return {name: variant_config(args.config, settings, scale) for name, scale in CCSR.items()}
    return {"trained": load_config(args.config, settings)}


def require_long(steps: int, configs: Iterable[Config]) -> None:
    """Raises GrafError where so many steps do not reach those in which all parts of a recipe learn."""
    short = max(config.short_steps for config in configs)
    if steps <= short:
        raise GrafError(
            f"--steps {steps}: the first {short} steps are without a discriminator or of low resolution; name more, or "
            "--config convolutional --set discriminator.low_res_steps=0"
        )


def variant_config(file: Path | None, settings: Sequence[str], scale: int) -> Config:
    """A file's config with the settings, and so many pixels per ray, with as many rays as keep the discriminator's view."""
    base = load_config(file, settings)
    overrides = UNREFINED if scale == 1 else ("ccsr.mode=refine", f"ccsr.scale_factor={scale}")
    rays = f"ray_sampler.rays_per_patch={(base.patch_size // scale) ** 2}"
    return load_config(file, [*settings, *overrides, rays])


def in_own_process(variant: str, flags: list[str], keep: Callable[[dict], None]) -> int:
    """Run this program for one variant, with further flags, and hand each row to `keep` as it comes. Returns the process's exit
    status, not below 0."""
    command = [sys.executable, "-u", *sys.argv, "--variant", variant, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for row in json_rows(process.stdout):
            keep(row)
    if process.returncode:
        log.warning("%s: ended with status %d", variant, process.returncode)
    return abs(process.returncode)


def measured_rows(config: Config, minutes: list[float], device: torch.device, cache: Path) -> Iterator[dict]:
    """A row at each of the minutes, of one training run. The peak of its memory is given where none of the minutes is 0."""
    dataset = build_dataset(config)
    config = resolve(config, dataset)
    idle = peak_memory_bytes(device)
    state, batches = new_run(config, dataset, device)
    trained, peak = 0.0, None
    with progress(total=round(60 * minutes[-1]), desc=config.ccsr.mode, unit="s") as bar:
        for goal in minutes:
            while trained < 60 * goal:
                seconds = timed_step(state, dataset, batches)
                trained += seconds
                bar.update(min(seconds, bar.total - bar.n))
            if goal == minutes[0] and trained:
                peak = peak_memory_bytes(device) - idle  # before any measuring, which needs more
            speed = state.step * config.training.batch_size / trained if trained else 0.0
            yield {"minutes": goal, "step": state.step, "images_per_second": speed, "peak_bytes": peak} | quality(
                state, dataset, cache
            )


def new_run(config: Config, dataset: Views, device: torch.device) -> tuple[TrainState, Iterator]:
    """A state at step 0, and the batches that it is trained on."""
    state = TrainState(config, device, len(dataset.class_names), dataset.n_elevations)
    if config.ccsr.rrdb.pretrained_path:
        state.load_pretrained_backbone(config.ccsr.rrdb.pretrained_path)
    return state, build_loader(dataset, config, device)


def timed_step(state: TrainState, dataset: Views, batches: Iterator) -> float:
    """One training step. Returns its seconds."""
    start = time.perf_counter()
    train_step(state, dataset, *next(batches))
    state.advance()
    return time.perf_counter() - start


def quality(state: TrainState, dataset: Views, cache: Path) -> dict:
    """The quality of the EMA now."""
    generator, config = state.generator_ema, state.config
    result = measure_generator(generator, dataset, MeasureSettings(("fid", "kid"), config.training.seed), cache)
    warp = multi_view_consistency(generator, WARPED_OBJECTS, config.training.seed)
    rendering = render_views(generator, sample_objects(generator, 4, config.training.seed), rotation_poses(4, config.data))
    return {
        "rays_per_image": (config.data.imsize // generator.config.rendered_scale) ** 2,
        "kid": result["values"][f"kid_{result['extractor']}"],
        "fid": result["values"][f"fid_{result['extractor']}"],
        "extractor": result["extractor"],
        "low_resolution_error": low_resolution_error(generator, rendering) if rendering.low_images is not None else None,
        "depth_warp_error": warp.get("depth_warp_error_refined", warp["depth_warp_error_nerf"]),
        "mean_opacity": sanity(rendering, config.data.near, config.data.far)["mean_opacity"],
    }


def part_row(config: Config, steps: int, device: torch.device, cache: Path) -> dict:
    """The row of a variant of the recipe, trained for so many steps."""
    dataset = build_dataset(config)
    config = resolve(config, dataset)
    state, batches = new_run(config, dataset, device)
    cpu_start = time.process_time()
    seconds = sum(timed_step(state, dataset, batches) for _ in progress(range(steps), desc="training", unit="step"))
    cpu_seconds = time.process_time() - cpu_start  # tell more than the clock's where other programs use the same cores
    row = {"seed": config.training.seed, "step": state.step}
    row |= {"seconds_per_step": seconds / steps, "cpu_seconds_per_step": cpu_seconds / steps}
    return row | part_quality(state.generator_ema, dataset, cache)


def print_row(row: dict, table: Table, first: bool) -> None:
    if first:
        log.info(table.note, row["extractor"])
        log.info("| %s |", " | ".join(heading for heading, _ in table.columns.values()))
        log.info("|%s", " --- |" * len(table.columns))
    cells = []
    for name, (_, form) in table.columns.items():
        value = row[name]
        cells.append("" if value is None else form.format(value * SCALES.get(name, 1) if name in SCALES else value))
    log.info("| %s |", " | ".join(cells))


def print_spread(rows: Sequence[dict]) -> None:
    """A table of the variants' means over their seeds, with the least and the most."""
    log.info("\n| | seeds | KID x 1000 | variety | CPU s / step |\n|%s", " --- |" * 5)
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        kid, variety, seconds = (
            [row[key] * scale for row in own if row[key] is not None]
            for key, scale in (("kid", 1000), ("share_of_variety", 1), ("cpu_seconds_per_step", 1))
        )
        log.info(
            "| %s | %d | %.0f (%.0f to %.0f) | %s | %.2f |",
            *(name, len(own), statistics.mean(kid), min(kid), max(kid)),
            f"{statistics.mean(variety):.2f} ({min(variety):.2f} to {max(variety):.2f})" if variety else "",
            statistics.mean(seconds),
        )


if __name__ == "__main__":
    run_script(main)
