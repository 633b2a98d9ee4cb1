"""Render angle sweeps and videos of a trained run: python eval.py"""

import argparse
import logging
import math
from pathlib import Path

from graf.camera import elevation_of_v, elevation_poses, rotation_poses, sweep_poses, view_azimuths
from graf.config import Config, load_config, override
from graf.console import progress, run_script
from graf.device import choose_device, keep_freed_memory
from graf.errors import GrafError
from graf.evaluation.outputs import picture, side_by_side, write_grid, write_video
from graf.evaluation.sampling import render_views, sample_objects
from graf.models.generator import Generator
from graf.training.checkpoint import NEWEST, checkpoint_config, checkpoint_step, generator_of, read_checkpoint

log = logging.getLogger("graf")

STAGES = {"refined": ("rgb", "depth"), "nerf": ("nerf", "depth"), "both": ("rgb", "nerf", "depth")}
VIDEO_FRAMES = 72
VIEWS = 8


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--config", help="YAML file that names the run, or the config of a --checkpoint")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as nerf.N_samples=64")
    p.add_argument("--run", help="a run's folder; by default that of the config, and of configs/default.yaml without one")
    p.add_argument("--checkpoint", help="a checkpoint file, ours or the official GRAF's, instead of the run's newest")
    p.add_argument("--azimuths", type=angles, help="degrees, such as 0,45,90; by default 8 over the config's range")
    p.add_argument("--elevations", type=heights, help="degrees above the horizon, such as 10,30; by default mid height")
    p.add_argument("--n_objects", type=positive, default=4, help="objects down the sheet")
    p.add_argument(
        "--stage", choices=list(STAGES), default="refined", help="what CCSR made, the field's own rendering, or both"
    )
    p.add_argument("--resolution", type=positive, help="pixels a side; by default data.imsize")
    p.add_argument("--seed", type=int, default=0, help="of the objects' latents")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--out", help="folder of the results; by default eval/step_N in the run's folder")
    return p


def angles(text: str) -> list[float]:
    try:
        degrees = [float(part) for part in text.split(",")]
    except ValueError:
        degrees = [math.nan]
    if not all(map(math.isfinite, degrees)):
        raise argparse.ArgumentTypeError(f"expected degrees with commas, such as 0,45,90; found {text!r}")
    return degrees


def heights(text: str) -> list[float]:
    degrees = angles(text)
    if max(map(abs, degrees)) > 90:
        raise argparse.ArgumentTypeError(f"expected degrees from -90 to 90, found {text!r}")
    return degrees


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return int(text)


def main() -> int:
    args = parser().parse_args()
    keep_freed_memory()
    checkpoint = find_checkpoint(args)
    content = read_checkpoint(checkpoint)
    if args.config and args.checkpoint:
        config = load_config(args.config, args.set)
    else:
        config = override(checkpoint_config(checkpoint, content), args.set)
    generator = generator_of(checkpoint, content, config, choose_device(args.device))
    out = Path(args.out) if args.out else default_out(checkpoint, config, checkpoint_step(content))
    log.info("%s, step %d: %d objects, seed %d", checkpoint, checkpoint_step(content), args.n_objects, args.seed)
    files = write_sweep(generator, config, args, out)
    for file in files:
        log.info("%s", file)
    return 0


def find_checkpoint(args: argparse.Namespace) -> Path:
    """The checkpoint that the flags name. Raises GrafError where there is none."""
    if args.checkpoint:
        return Path(args.checkpoint)
    run_dir = Path(args.run) if args.run else load_config(args.config, args.set).run_dir
    if not (run_dir / NEWEST).exists():
        raise GrafError(
            f"{run_dir}: no trained run here ({NEWEST} is missing); train one with train.py, or name one with --run"
        )
    return run_dir / NEWEST


def default_out(checkpoint: Path, config: Config, step: int) -> Path:
    """Beside the run; for a checkpoint from elsewhere, a folder of its own among the runs."""
    folder = checkpoint.resolve().parent
    run_dir = folder.parent if folder.name == "backups" else folder
    if not (run_dir / NEWEST).exists() or not (run_dir / "metrics.jsonl").exists():
        run_dir = Path(config.training.outdir) / f"eval_{folder.name}"
    return run_dir / "eval" / f"step_{step:08d}"


def write_sweep(generator: Generator, config: Config, args: argparse.Namespace, out: Path) -> list[Path]:
    """The angle sheet (objects down, azimuths across), and rotation and elevation videos, rgb and depth."""
    data = config.data
    azimuths = args.azimuths or view_azimuths(VIEWS, data).tolist()
    elevations = args.elevations or [elevation_of_v((data.vmin + data.vmax) / 2)]
    objects = sample_objects(generator, args.n_objects, args.seed)
    trajectories = {
        "sweep": sweep_poses(azimuths, elevations, data),
        "rotation": rotation_poses(VIDEO_FRAMES, data),
        "elevation": elevation_poses(VIDEO_FRAMES, data),
    }
    files, error = [], 0.0
    with progress(total=args.n_objects * sum(map(len, trajectories.values())), desc="rendering", unit="image") as bar:
        for name, poses in trajectories.items():
            rendering = render_views(generator, objects, poses, args.resolution, bar)
            if rendering.low_images is not None:
                seen = generator.refinement.projection.downsample(rendering.images)
                error = max(error, float((seen - rendering.low_images).abs().max()))
            for kind in STAGES[args.stage]:
                pictures = picture(rendering, kind, data.near, data.far)
                if name == "sweep":
                    files.append(write_grid(out / f"sweep_{kind}.png", pictures, len(azimuths)))
                    continue
                frames = side_by_side(pictures, args.n_objects)
                files += [write_video(out / f"{name}_{kind}{suffix}", frames) for suffix in (".mp4", ".gif")]
    if config.ccsr.mode == "refine":
        log.info("low-resolution consistency error: max |H x' - y| = %.1e of images in [-1, 1]", error)
    return files


if __name__ == "__main__":
    run_script(main)
