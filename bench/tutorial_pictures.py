"""The pictures of docs/tutorial.md: its five steps, on photographs made here, of toy cars before plain walls.

    python bench/tutorial_pictures.py [--max_steps 4000] [--out docs]

The commands are the tutorial's, for images of half the size and fewer steps; a line tells each one's minutes.
"""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

from cutouts import pasted, plain_wall
from graf.config import load_config
from graf.data.toy_cars import load_toy_cars
from graf.errors import GrafError
from graf.finding.rounds import straight_alpha
from graf.pictures.outputs import write_image
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, progress, run_script

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SIDE = 128  # pixels of the rendered cars, which are pasted larger
SMALL = "data.imsize=64", "ray_sampler.rays_per_patch=1024"  # of two CPU cores
WIDTH = 800  # pixels of the pictures at most


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    take_photographs(args.work / "PICTURES", args.n)
    photos = args.work / "photos"
    run(args.work, "tools/prepare_photos.py", "PICTURES", "photos")
    keep(photos / "before_after.png", args.out / "tutorial_prepare.png")
    run(args.work, "tools/validate_data.py", "--config", "photos/config.yaml", "--out", "check")
    keep(args.work / "check/contact_sheet.png", args.out / "tutorial_check.png")
    training = ["--use_amp", "--max_steps", str(args.max_steps), "--set", *SMALL]
    run(args.work, "train.py", "--config", "photos/config.yaml", *training)
    config = load_config(photos / "config.yaml")
    run_dir = args.work / config.training.outdir / config.expname
    keep(newest(run_dir, "samples/*_rgb.png"), args.out / "tutorial_train.png")
    run(args.work, "eval.py", "--config", "photos/config.yaml", "--sweep", "--mesh")
    keep(newest(run_dir, "eval/*/sweep_rgb.png"), args.out / "tutorial_turn.png")
    photograph = sorted((photos / "images").iterdir())[0].relative_to(args.work)
    run(args.work, "eval.py", "--config", "photos/config.yaml", "--invert", str(photograph), "--tune", "100")
    keep(newest(run_dir, "eval/*/inversion/*/fit.png"), args.out / "tutorial_found.png")


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=positive, default=1000, help="photographs, each of another car (default 1000)")
    parser.add_argument("--max_steps", type=positive, default=4000, help="of training (default 4000; the tutorial has 20000)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the pictures (default docs)")
    parser.add_argument("--work", type=Path, default=Path("results/tutorial"), help="folder of all else, and of the commands")
    return parser.parse_args()


def take_photographs(folder: Path, n: int) -> None:
    """Write n JPEGs of toy cars somewhere near the middle of walls that differ, unless they are there. Raises GrafError where
    the folder has another number of files."""
    if folder.exists() and (there := len(list(folder.iterdir()))):
        if there != n:
            raise GrafError(f"{folder}: has {there} files instead of {n} photographs; remove it, or name another --work")
        return
    data = load_config(None, [f"data.n_images={n}", f"data.imsize={SIDE}", f"data.datadir={folder.parent / 'toy_cars'}"]).data
    rng, cut_out = np.random.default_rng(0), folder.parent / "cut_out.png"
    folder.mkdir(exist_ok=True)
    for number, car in enumerate(progress(load_toy_cars(data).images, desc="photographs")):
        write_image(cut_out, straight_alpha(car, data.background))
        pasted(cut_out, plain_wall(rng), rng)[0].save(folder / f"IMG_{number:04d}.jpg", quality=92)


def run(folder: Path, script: str, *arguments: str) -> None:
    """Run a program of the project in a folder. Raises GrafError where it fails."""
    log.info("python %s", shlex.join([script, *arguments]))
    start = time.perf_counter()
    if status := subprocess.run([sys.executable, str(ROOT / script), *arguments], cwd=folder).returncode:
        raise GrafError(f"{script} ended with status {status}")
    log.info("%s: %.1f minutes", script, (time.perf_counter() - start) / 60)


def newest(folder: Path, pattern: str) -> Path:
    """The last file of a pattern, by name. Raises GrafError where there is none."""
    if not (found := sorted(folder.glob(pattern))):
        raise GrafError(f"{folder}: no {pattern}, which the command above should have written")
    return found[-1]


def keep(picture: Path, path: Path) -> None:
    """Write a picture to where the docs have it, not wider than they show it."""
    with Image.open(picture) as image:
        image.thumbnail((WIDTH, image.height))
        image.convert("RGB").save(path, optimize=True)


if __name__ == "__main__":
    run_script(main)
