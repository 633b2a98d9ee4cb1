"""Quality after minutes of training, as a Markdown table: each variant in a process of its own, one after the other.

    python bench/measure_training.py progress --minutes 0 2 5 10     # one config as it trains
    python bench/measure_training.py ccsr --minutes 10               # refined at scale 2 and 4 against not refined

Only training steps count as time; measuring stands beside it. Nothing is kept but the table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graf.camera import rotation_poses
from graf.config import Config, load_config
from graf.data import Views, build_dataset, build_loader, fit_to_data, settled
from graf.evaluation.consistency import multi_view_consistency, sanity
from graf.evaluation.metrics import MeasureSettings, measure_generator
from graf.evaluation.sampling import render_views, sample_objects
from graf.evaluation.sweep import low_resolution_error
from graf.runtime.command_line import Parser
from graf.runtime.console import log, progress, run_script
from graf.runtime.device import choose_device, keep_freed_memory, peak_memory_bytes
from graf.runtime.files import check_writable, json_rows, write_text
from graf.training.state import TrainState
from graf.training.steps import train_step

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
SCALES = {"kid": 1000, "peak_bytes": 2**-30}
WARPED_OBJECTS = 32
DATA_ALONE = "data"  # of a process that only makes the data set


def main() -> int:
    parser = Parser(__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("what", choices=["progress", "ccsr"])
    parser.add_argument("--minutes", type=float, nargs="+", default=[10.0], help="of training, at which to measure")
    parser.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as metrics.n_fake=992")
    parser.add_argument("--no_amp", action="store_true", help="float32 instead of mixed precision")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    args = parser.parse_args()
    variants = {"trained": None} if args.what == "progress" else CCSR
    settings = [*args.set, f"training.use_amp={str(not args.no_amp).lower()}"]
    # Faults of a config are reported before anything is started.
    configs = {name: variant_config(args.config, settings, scale) for name, scale in variants.items()}
    if args.variant == DATA_ALONE:
        build_dataset(next(iter(configs.values())))
        return 0
    if args.variant:
        keep_freed_memory()
        for row in measured_rows(configs[args.variant], sorted(args.minutes), choose_device(args.device)):
            log.info(json.dumps({"name": args.variant} | row))
        return 0
    if args.json:
        check_writable(args.json)
    return write_table(list(variants), args.minutes, args.json)


def write_table(variants: list[str], minutes: list[float], file: Path | None) -> int:
    """Print each row as it comes, and write all there are into the file. Returns the exit status of what failed, or 0.

    A process does nothing but train until it has reported its peak: minute 0 is measured, and toy cars are made, in others.
    """
    if status := in_own_process(DATA_ALONE, minutes, lambda row: None):
        return status
    rows: list[dict] = []

    def keep(row: dict) -> None:
        rows.append(row)
        print_row(row, first=len(rows) == 1)
        if file:
            write_text(file, json.dumps(rows, indent=1))

    goals = [some for some in ([m for m in minutes if m <= 0], [m for m in minutes if m > 0]) if some]
    return max([in_own_process(variant, some, keep) for variant in variants for some in goals])


def variant_config(file: Path | None, settings: Sequence[str], scale: int | None) -> Config:
    """A file's config with the settings, and so many pixels per ray, with as many rays as keep the discriminator's view."""
    base = load_config(file, settings)
    if scale is None:
        return base
    overrides = UNREFINED if scale == 1 else ("ccsr.mode=refine", f"ccsr.scale_factor={scale}")
    rays = f"ray_sampler.rays_per_patch={(base.patch_size // scale) ** 2}"
    return load_config(file, [*settings, *overrides, rays])


def in_own_process(variant: str, minutes: list[float], keep: Callable[[dict], None]) -> int:
    """Hand each row of a variant to `keep` as it comes. Returns the process's exit status, not below 0."""
    command = [sys.executable, "-u", *sys.argv, "--variant", variant, "--minutes", *map(str, minutes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for row in json_rows(process.stdout):
            keep(row)
    if process.returncode:
        log.warning("%s: ended with status %d", variant, process.returncode)
    return abs(process.returncode)


def measured_rows(config: Config, minutes: list[float], device: torch.device) -> Iterator[dict]:
    """A row at each of the minutes, of one training run. The peak of its memory is given where none of the minutes is 0."""
    dataset = build_dataset(config)
    config = settled(fit_to_data(config, dataset.knowledge), dataset)
    idle = peak_memory_bytes(device)
    state = TrainState(config, device, len(dataset.class_names), dataset.n_elevations)
    if config.ccsr.rrdb.pretrained_path:
        state.load_pretrained_backbone(config.ccsr.rrdb.pretrained_path)
    batches = build_loader(dataset, config, device)
    trained, peak = 0.0, None
    with (
        progress(total=round(60 * minutes[-1]), desc=config.ccsr.mode, unit="s") as bar,
        tempfile.TemporaryDirectory() as cache,
    ):
        for goal in minutes:
            while trained < 60 * goal:
                start = time.perf_counter()
                train_step(state, dataset, *next(batches))
                seconds = time.perf_counter() - start
                trained += seconds
                bar.update(min(seconds, bar.total - bar.n))
            if goal == minutes[0] and trained:
                peak = peak_memory_bytes(device) - idle  # before any measuring, which needs more
            speed = state.step * config.training.batch_size / trained if trained else 0.0
            yield {"minutes": goal, "step": state.step, "images_per_second": speed, "peak_bytes": peak} | quality(
                state, dataset, Path(cache)
            )


def quality(state: TrainState, dataset: Views, cache: Path) -> dict:
    """What the moving average is worth now."""
    generator, config = state.generator_ema, state.config
    result = measure_generator(generator, dataset, MeasureSettings(("fid", "kid"), config.training.seed), cache)
    warp = multi_view_consistency(generator, WARPED_OBJECTS, config.training.seed)
    rendering = render_views(generator, sample_objects(generator, 4, config.training.seed), rotation_poses(4, config.data))
    return {
        "rays_per_image": (config.data.imsize // config.rendered_scale) ** 2,
        "kid": result["values"][f"kid_{result['extractor']}"],
        "fid": result["values"][f"fid_{result['extractor']}"],
        "extractor": result["extractor"],
        "low_resolution_error": low_resolution_error(generator, rendering) if rendering.low_images is not None else None,
        "depth_warp_error": warp.get("depth_warp_error_refined", warp["depth_warp_error_nerf"]),
        "mean_opacity": sanity(rendering, config.data.near, config.data.far)["mean_opacity"],
    }


def print_row(row: dict, first: bool) -> None:
    if first:
        log.info("FID and KID by %s; depth-warp error in 8-bit steps", row["extractor"])
        log.info("| %s |", " | ".join(heading for heading, _ in COLUMNS.values()))
        log.info("|%s", " --- |" * len(COLUMNS))
    cells = []
    for name, (_, form) in COLUMNS.items():
        value = row[name]
        cells.append("" if value is None else form.format(value * SCALES.get(name, 1) if name in SCALES else value))
    log.info("| %s |", " | ".join(cells))


if __name__ == "__main__":
    run_script(main)
