"""Look at a trained run and measure it: python eval.py renders angle sweeps, python eval.py --metrics fid,kid measures."""

import argparse
import dataclasses
import logging
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from graf.checkpoints.checkpoint import NEWEST, checkpoint_step, read_checkpoint
from graf.checkpoints.export import SUFFIX
from graf.checkpoints.foreign.recognition import recognise
from graf.checkpoints.generator_loading import checkpoint_config, generator_of, trained_checkpoint
from graf.checkpoints.run_folder import FOLDERS
from graf.config import Config, load_config, override
from graf.config.strict import expanded
from graf.errors import GrafError
from graf.evaluation.jobs import JOBS, STAGES, Evaluation, EvaluationSettings
from graf.evaluation.result_file import ResultFile
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import run_script
from graf.runtime.device import choose_device, keep_freed_memory
from graf.runtime.files import file_sha256

log = logging.getLogger("graf")

METRICS = ("fid", "kid", "prc")
LARGEST_SEED = 2**32  # as of training.seed
TAKEN_BY = {  # flags that only some jobs look at
    "truncation": ("metrics", "consistency", "sweep", "sheets", "mesh", "reconstruction"),
    "resolution": ("sweep", "sheets", "reconstruction"),
    "stage": ("sweep",),
    "azimuths": ("sweep",),
    "elevations": ("sweep",),
    "n_objects": ("sweep", "sheets", "mesh"),
    "mesh_resolution": ("mesh",),
    "mesh_level": ("mesh",),
}


def parser() -> argparse.ArgumentParser:
    p = Parser(
        __doc__,
        usage="%(prog)s [FLAGS]; --help lists them",  # all of them would bury an error's message
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    what = p.add_argument_group("what", "--sweep where none is named")
    what.add_argument("--sweep", action="store_true", help="angle sheet, rotation and elevation videos, colours and depth")
    what.add_argument("--metrics", type=metric_names, default=[], help="some of fid,kid,prc, against the data set")
    what.add_argument(
        "--dump_samples", type=expanded, metavar="DIR", help="with --metrics: the images measured as PNGs, in a new folder"
    )
    what.add_argument(
        "--consistency", action="store_true", help="is it one 3D object: depth-warp error, popping of a turn, checkerboards"
    )
    what.add_argument("--sheets", action="store_true", help="interpolations of shape and appearance, truncation, classes")
    what.add_argument("--neighbours", action="store_true", help="samples beside the nearest training images, real beside fake")
    what.add_argument("--mesh", action="store_true", help="each object's surface as PLY, OBJ and GLB")
    what.add_argument(
        "--reconstruction", action="store_true", help="the first object's views for COLMAP, nerfstudio, instant-ngp"
    )
    what.add_argument(
        "--invert",
        type=expanded,
        nargs="+",
        metavar="PHOTO",
        help="find latent and camera of photographs of one object; a folder is its images",
    )
    what.add_argument("--report", action="store_true", help="report.html: all of the run's results on one page")
    what.add_argument("--export", type=export_name, metavar="FILE", help="the generator and its config alone, as .safetensors")
    p.add_argument("--config", type=Path, help="YAML file that names the run, or the config of a --checkpoint")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as nerf.N_samples=64")
    p.add_argument(
        "--run", type=Path, help="a run's folder; by default that of the config, and of configs/default.yaml without one"
    )
    p.add_argument("--checkpoint", type=Path, help="a checkpoint file, ours or other people's, instead of the run's newest")
    p.add_argument("--partial", action="store_true", help="take those of the checkpoint's weights that fit the config")
    p.add_argument("--azimuths", type=angles, help="degrees, such as 0,45,90; by default 8 over the config's range")
    p.add_argument("--elevations", type=heights, help="degrees above the horizon, such as 10,30; by default mid height")
    p.add_argument("--n_objects", type=positive, default=4, help="objects down the sheet")
    p.add_argument("--truncation", type=share, default=1.0, help="scale of the latents: less is more typical")
    p.add_argument(
        "--stage", choices=list(STAGES), default="refined", help="what CCSR made, the field's own rendering, or both"
    )
    p.add_argument("--resolution", type=positive, help="pixels a side of pictures; by default data.imsize")
    p.add_argument("--mesh_resolution", type=positive, default=128, help="cells along each side of the mesh's grid")
    p.add_argument("--mesh_level", type=float, help="density at the surface; by default where silhouettes agree with opacity")
    p.add_argument("--seed", type=seed, default=0, help="of the objects' latents, and of the samples that are measured")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--out", type=Path, help="folder of the results; by default eval/step_N in the run's folder")
    return p


def with_signs(arguments: list[str]) -> list[str]:
    """The arguments with degrees such as -10,30 joined to their flag, for argparse takes them for a flag themselves."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--azimuths", "--elevations") and re.match(r"-[\d.]", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


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


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


def seed(text: str) -> int:
    if not text.isdigit() or int(text) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {LARGEST_SEED}, found {text!r}")
    return int(text)


def metric_names(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(METRICS):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(METRICS)} with commas; found {text!r}")
    return names


def export_name(text: str) -> str:
    if not text.endswith(SUFFIX):
        raise argparse.ArgumentTypeError(f"expected a file name that ends in {SUFFIX}, found {text!r}")
    return expanded(text)


def main() -> int:
    args = parser().parse_args(with_signs(sys.argv[1:]))
    if args.run and args.checkpoint:
        raise GrafError("--run beside --checkpoint: each names what to look at; leave one out (--out names the results)")
    if args.config and args.run:
        raise GrafError("--config beside --run: each names the run; leave one out (a run has its config, which --set changes)")
    refuse_unused(args)
    keep_freed_memory()
    checkpoint = find_checkpoint(args)
    content, sha256 = read_checkpoint(checkpoint), file_sha256(checkpoint)
    if args.config and args.checkpoint:
        config = load_config(args.config, args.set)
    else:
        config = override(checkpoint_config(checkpoint, content), args.set)
    if args.resolution and args.resolution % config.rendered_scale:
        scale = config.rendered_scale
        raise GrafError(f"--resolution {args.resolution}: must be a multiple of ccsr.scale_factor {scale}")
    generator = generator_of(checkpoint, content, config, choose_device(args.device), args.partial)
    step = checkpoint_step(content)
    run_dir = run_of(checkpoint, config)
    out = args.out or run_dir / "eval" / f"step_{step:08d}"
    log.info("%s, step %d: %d objects, seed %d", checkpoint, step, args.n_objects, args.seed)
    if not args.out and run_dir.resolve() not in checkpoint.resolve().parents:
        log.info("the checkpoint is in no run's folder: results go to %s; --out names another", run_dir)
    results = ResultFile(out, checkpoint, sha256, step, recognise(content, checkpoint).averaged, config)
    Evaluation(settings_of(args), generator, step, run_dir, out, results).run()
    return 0


def asked_jobs(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(job for job in JOBS if getattr(args, job)) or ("sweep",)


def settings_of(args: argparse.Namespace) -> EvaluationSettings:
    flags_taken = [field.name for field in dataclasses.fields(EvaluationSettings) if field.name != "jobs"]
    return EvaluationSettings(asked_jobs(args), **{name: getattr(args, name) for name in flags_taken})


def refuse_unused(args: argparse.Namespace) -> None:
    """Raises GrafError for a flag that nothing asked for takes."""
    if args.dump_samples and not args.metrics:
        raise GrafError("--dump_samples: writes the samples that --metrics measures; name some, such as --metrics kid")
    asked = asked_jobs(args)
    for flag, jobs in TAKEN_BY.items():
        if getattr(args, flag) != parser().get_default(flag) and not set(jobs) & set(asked):
            raise GrafError(f"--{flag}: changes nothing of {flags(asked)}; it is for {flags(jobs)}")


def flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def find_checkpoint(args: argparse.Namespace) -> Path:
    """The checkpoint that the flags name. Raises GrafError where there is none."""
    if args.checkpoint:
        return args.checkpoint
    return trained_checkpoint(args.run or load_config(args.config, args.set).run_dir)


def run_of(checkpoint: Path, config: Config) -> Path:
    """The checkpoint's run; for a checkpoint from elsewhere, a folder of its own among the runs."""
    folder = checkpoint.resolve().parent
    run_dir = folder.parent if folder.name in FOLDERS else folder
    if (run_dir / "metrics.jsonl").exists() or ((run_dir / "config.yaml").exists() and (run_dir / NEWEST).exists()):
        return run_dir
    return Path(config.training.outdir) / f"eval_{folder.name}_{checkpoint.stem}"


if __name__ == "__main__":
    run_script(main)
