"""Measure eval.py --invert --tune on photographs that were not trained on: python bench/measure_tuning.py results/cars held/

Each folder in FOLDER has the photographs of one object, whose cameras a transforms.json or the files' names tell. The object is
found in the first one. "Unseen" is the mean PSNR of the others.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import graf
from graf.errors import GrafError
from graf.inversion import invert
from graf.inversion.results import Inversion, similarity
from graf.inversion.targets import known_poses, read_target, target_files
from graf.inversion.tuning import TuningSettings, tune
from graf.models.generator import Generator
from graf.pictures.sampling import render_views
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, progress, run_script
from graf.runtime.device import choose_device, keep_freed_memory

import torch
from torch import Tensor

COLUMNS = "found", "unseen", "seconds", "tuned", "unseen", "seconds"


def main() -> int:
    parser = Parser(__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint file, or a run's folder")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a folder per object, with 2 photographs of it or more")
    parser.add_argument("--tune", type=positive, nargs="+", default=[100], help="steps, each measured by itself")
    parser.add_argument("--keep_weight", type=float, default=TuningSettings.keep_weight, help="weight of views from elsewhere")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    args = parser.parse_args()
    keep_freed_memory()
    generator = graf.load_generator(args.checkpoint, device=choose_device(args.device))
    folders = sorted(path for path in args.folder.glob("*") if path.is_dir())
    if not folders:
        raise GrafError(f"{args.folder}: no folders here; one per object is needed, with its photographs")
    rows = []
    for folder in progress(folders, desc="finding", unit="object"):
        rows.append(measure_object(generator, folder, [TuningSettings(n, keep_weight=args.keep_weight) for n in args.tune]))
        if len(rows) == 1:
            log.info("%16s" + "%9s" * len(rows[0]), "dB", *COLUMNS, *COLUMNS[3:] * (len(args.tune) - 1))
        log.info("%16s" + "%9.2f" * len(rows[0]), folder.name[:16], *rows[-1])
    log.info("%16s" + "%9.2f" * len(rows[0]), "mean", *map(mean, zip(*rows, strict=True)))
    return 0


def measure_object(generator: Generator, folder: Path, settings: Sequence[TuningSettings]) -> list[float]:
    """PSNR of the first photograph and of the others, in dB, and seconds: as found, then tuned by each of the settings."""
    data = generator.config.data
    files = target_files([folder], data)
    poses, photographs = known_poses(files, data), torch.stack([read_target(file, data) for file in files])
    if poses is None or len(files) < 2:
        raise GrafError(f"{folder}: 2 photographs or more are needed, with known cameras (transforms.json, or file names)")
    start = time.perf_counter()
    found = invert(generator, photographs[:1], poses[:1])
    row = [found.psnr[0], unseen_psnr(generator, found, photographs[1:], poses[1:]), time.perf_counter() - start]
    for some in settings:
        start = time.perf_counter()
        tuned, seen = tune(generator, found, photographs[:1], some)
        seconds = time.perf_counter() - start
        row += [seen.psnr[0], unseen_psnr(tuned, seen, photographs[1:], poses[1:]), seconds]
    return row


def unseen_psnr(generator: Generator, found: Inversion, photographs: Tensor, poses: Tensor) -> float:
    """Mean PSNR in dB of the object from cameras (M, 3, 4) against photographs (M, 3, W, W)."""
    images = render_views(generator, (found.latents, found.class_index), poses).images
    return mean(similarity(a, b)[0] for a, b in zip(photographs, images, strict=True))


if __name__ == "__main__":
    run_script(main)
