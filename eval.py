"""Look at a trained run and measure it: python eval.py renders angle sweeps, python eval.py --metrics fid,kid measures."""

import argparse
import dataclasses
import functools
import json
import logging
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from graf.camera import elevation_poses, middle_elevation, rotation_poses, sweep_poses, view_azimuths
from graf.config import Config, load_config, override
from graf.console import progress, run_script
from graf.data import Views, build_dataset
from graf.device import choose_device, keep_freed_memory
from graf.errors import GrafError
from graf.evaluation.consistency import multi_view_consistency
from graf.evaluation.inversion import invert_files, labelled_poses
from graf.evaluation.mesh import NoSurface, extract_mesh, write_mesh
from graf.evaluation.metrics import measure_generator, merged, rendering_sha256, summary
from graf.evaluation.neighbours import neighbour_sheet
from graf.evaluation.reconstruction import reconstruction_poses, write_reconstruction
from graf.evaluation.report import write_report
from graf.evaluation.sampling import render_views, sample_objects
from graf.evaluation.sanity import sanity
from graf.evaluation.sheets import (
    class_rows,
    interpolation_sheet,
    interpolation_video,
    real_against_fake_grid,
    sheet_pose,
    truncation_sheet,
)
from graf.evaluation.smoothness import nyquist_against_real, rotation_smoothness
from graf.evaluation.sweep import write_sweep
from graf.files import file_sha256, whole_file
from graf.models.generator import Generator
from graf.training.checkpoint import checkpoint_step, read_checkpoint
from graf.training.checkpoint_files import FOLDERS
from graf.training.export import SUFFIX, write_export
from graf.training.foreign_checkpoints import recognise
from graf.training.generator_loading import checkpoint_config, generator_of, trained_checkpoint

log = logging.getLogger("graf")

STAGES = {"refined": ("rgb", "depth"), "nerf": ("nerf", "depth"), "both": ("rgb", "nerf", "depth")}
METRICS = ("fid", "kid", "prc")
JOBS = (
    *("metrics", "consistency", "sweep", "sheets", "neighbours"),
    *("mesh", "reconstruction", "invert", "report", "export"),
)
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
VIDEO_FRAMES = 72
VIEWS = 8
CONSISTENCY_OBJECTS, TURNED_OBJECTS, NYQUIST_IMAGES, SANITY_VIEWS = 64, 4, 256, 8
METRICS_FILE = "metrics.json"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        usage="%(prog)s [FLAGS]; --help lists them",  # all of them would bury an error's message
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    what = p.add_argument_group("what", "--sweep where none is named")
    what.add_argument("--sweep", action="store_true", help="angle sheet, rotation and elevation videos, colours and depth")
    what.add_argument("--metrics", type=metric_names, default=[], help="some of fid,kid,prc, against the data set")
    what.add_argument("--dump_samples", metavar="DIR", help="with --metrics: the images measured as PNGs, in a new folder")
    what.add_argument(
        "--consistency", action="store_true", help="is it one 3D object: depth-warp error, popping of a turn, checkerboards"
    )
    what.add_argument("--sheets", action="store_true", help="interpolations of shape and appearance, truncation, classes")
    what.add_argument("--neighbours", action="store_true", help="samples beside the nearest training images, real beside fake")
    what.add_argument("--mesh", action="store_true", help="each object's surface as PLY, OBJ and GLB")
    what.add_argument(
        "--reconstruction", action="store_true", help="the first object's views for COLMAP, nerfstudio, instant-ngp"
    )
    what.add_argument("--invert", nargs="+", metavar="PHOTO", help="find latent and camera of photographs of one object")
    what.add_argument("--report", action="store_true", help="report.html: all of the run's results on one page")
    what.add_argument("--export", type=export_name, metavar="FILE", help="the generator and its config alone, as .safetensors")
    p.add_argument("--config", help="YAML file that names the run, or the config of a --checkpoint")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as nerf.N_samples=64")
    p.add_argument("--run", help="a run's folder; by default that of the config, and of configs/default.yaml without one")
    p.add_argument("--checkpoint", help="a checkpoint file, ours or other people's, instead of the run's newest")
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
    p.add_argument("--seed", type=int, default=0, help="of the objects' latents, and of the samples that are measured")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--out", help="folder of the results; by default eval/step_N in the run's folder")
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


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return int(text)


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r}")
    return value


def metric_names(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(METRICS):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(METRICS)} with commas; found {text!r}")
    return names


def export_name(text: str) -> str:
    if not text.endswith(SUFFIX):
        raise argparse.ArgumentTypeError(f"expected a file name that ends in {SUFFIX}, found {text!r}")
    return text


def main() -> int:
    args = parser().parse_args(with_signs(sys.argv[1:]))
    if args.config and args.run:
        raise GrafError("--config beside --run: each names the run; leave one out (a run has its config, which --set changes)")
    refuse_unused(args)
    keep_freed_memory()
    checkpoint = find_checkpoint(args)
    content = read_checkpoint(checkpoint)
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
    out = Path(args.out) if args.out else run_dir / "eval" / f"step_{step:08d}"
    log.info("%s, step %d: %d objects, seed %d", checkpoint, step, args.n_objects, args.seed)
    averaged = recognise(content, checkpoint).averaged
    evaluation = Evaluation(args, generator, checkpoint, step, averaged, run_dir, out)
    for file in evaluation.run():
        log.info("%s", file)
    return 0


def asked_jobs(args: argparse.Namespace) -> list[str]:
    return [job for job in JOBS if getattr(args, job)] or ["sweep"]


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
        return Path(args.checkpoint)
    return trained_checkpoint(Path(args.run) if args.run else load_config(args.config, args.set).run_dir)


def run_of(checkpoint: Path, config: Config) -> Path:
    """The checkpoint's run; for a checkpoint from elsewhere, a folder of its own among the runs."""
    folder = checkpoint.resolve().parent
    run_dir = folder.parent if folder.name in FOLDERS else folder
    if not (run_dir / "metrics.jsonl").exists():
        return Path(config.training.outdir) / f"eval_{folder.name}"
    return run_dir


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One checkpoint, and what the flags ask to be made of it."""

    args: argparse.Namespace
    generator: Generator
    checkpoint: Path
    step: int
    averaged: bool
    run_dir: Path
    out: Path

    def run(self) -> list[Path]:
        """Do all that is asked for. Returns the files written."""
        return list(dict.fromkeys(file for job in asked_jobs(self.args) for file in getattr(self, job)()))

    @functools.cached_property
    def dataset(self) -> Views:
        return build_dataset(self.generator.config)

    @functools.cached_property
    def objects(self) -> tuple:
        return sample_objects(self.generator, self.args.n_objects, self.args.seed, self.args.truncation)

    def sweep(self) -> list[Path]:
        args, data = self.args, self.generator.config.data
        azimuths = args.azimuths or view_azimuths(VIEWS, data).tolist()
        elevations = args.elevations or [middle_elevation(data)]
        trajectories = {
            "sweep": sweep_poses(azimuths, elevations, data),
            "rotation": rotation_poses(VIDEO_FRAMES, data),
            "elevation": elevation_poses(VIDEO_FRAMES, data),
        }
        held, most = args.n_objects * max(map(len, trajectories.values())), self.generator.config.memory.max_test_outputs
        if held > most:
            raise GrafError(
                f"--n_objects {args.n_objects}: a sheet or video of {held} images, more than memory.max_test_outputs {most}; "
                "take fewer objects, or raise it with --set"
            )
        total = args.n_objects * sum(map(len, trajectories.values()))
        with progress(total=total, desc="rendering", unit="image") as bar:
            files, errors = write_sweep(
                self.generator, self.objects, trajectories, STAGES[args.stage], len(azimuths), self.out, args.resolution, bar
            )
        if self.generator.config.ccsr.mode == "refine":
            exact = errors["low_resolution_error"]
            log.info("low-resolution consistency error: max |H x' - y| = %.1e of images in [-1, 1]", exact)
            log.info("the same of their files, in 8 bits: %.1e", errors["low_resolution_error_8bit"])
            files.append(self.keep({"sweep": errors | self.rendered_by}))
        return files

    def metrics(self) -> list[Path]:
        """Distances to the data, in metrics.json, with their protocol."""
        args, config = self.args, self.generator.config
        dump = Path(args.dump_samples) if args.dump_samples else None
        with progress(total=config.metrics.counts[1], desc="measuring", unit="image") as bar:
            result = measure_generator(
                self.generator,
                self.dataset,
                args.metrics,
                args.seed,
                self.run_dir / "cache",
                dump,
                bar,
                truncation=args.truncation,
            )
        log.info("%s", summary(result))
        return [self.keep(merged(self.kept(), result))]

    def consistency(self) -> list[Path]:
        """Whether objects are one and solid, in metrics.json."""
        args, data = self.args, self.generator.config.data
        result = multi_view_consistency(self.generator, CONSISTENCY_OBJECTS, args.seed, truncation=args.truncation)
        result |= rotation_smoothness(self.generator, TURNED_OBJECTS, args.seed, truncation=args.truncation)
        result |= nyquist_against_real(self.generator, self.dataset, NYQUIST_IMAGES, args.seed, args.truncation)
        objects = sample_objects(self.generator, TURNED_OBJECTS, args.seed, args.truncation)
        result |= sanity(render_views(self.generator, objects, rotation_poses(SANITY_VIEWS, data)), data.near, data.far)
        for name, value in result.items():
            log.info("%s: %s", name, "nothing to compare" if value is None else f"{value:.4g}")
        return [self.keep({"consistency": result | self.rendered_by})]

    def kept(self) -> dict:
        """What metrics.json says of this very checkpoint."""
        try:
            content = json.loads((self.out / METRICS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict) or content.get("checkpoint_sha256") != self.checkpoint_sha256:
            return {}
        for name in ("consistency", "sweep"):  # numbers of images that other settings drew are no part of this result
            if name in content and not (isinstance(content[name], dict) and content[name].items() >= self.rendered_by.items()):
                del content[name]
        return content

    def keep(self, result: dict) -> Path:
        """Write a result into metrics.json, beside what that says of this checkpoint already."""
        identity = {
            "step": self.step,
            "ema": self.averaged,
            "checkpoint": self.checkpoint.name,
            "checkpoint_sha256": self.checkpoint_sha256,
        }
        return write_json(self.out / METRICS_FILE, self.kept() | identity | result)

    @property
    def rendered_by(self) -> dict[str, str]:
        return {"rendering_sha256": rendering_sha256(self.generator.config)}

    @functools.cached_property
    def checkpoint_sha256(self) -> str:
        return file_sha256(self.checkpoint)

    def sheets(self) -> list[Path]:
        pose, resolution = sheet_pose(self.generator.config.data), self.args.resolution
        corners = sample_objects(self.generator, 4, self.args.seed, self.args.truncation)
        files = interpolation_sheet(self.generator, corners, pose, self.out, resolution=resolution)
        files += interpolation_video(self.generator, corners, pose, self.out, resolution=resolution)
        objects = sample_objects(self.generator, self.args.n_objects, self.args.seed)  # the sheet truncates them itself
        files += truncation_sheet(self.generator, objects, pose, self.out, resolution=resolution)
        if self.generator.class_embedding is not None:
            files += class_rows(self.generator, self.objects[0], pose, self.out, resolution)
        return files

    def neighbours(self) -> list[Path]:
        neighbour_sheet(self.generator, self.dataset, self.out, seed=self.args.seed)
        files = real_against_fake_grid(self.generator, self.dataset, self.out, seed=self.args.seed)
        return [self.out / "neighbours.png", self.out / "neighbours.json", *files]

    def mesh(self) -> list[Path]:
        files, resolution = [], self.args.mesh_resolution
        with progress(total=self.args.n_objects * resolution, desc="mesh", unit="slice") as bar:
            for i, (latent, class_index) in enumerate(zip(*self.objects, strict=True)):
                try:
                    surface = extract_mesh(
                        self.generator, latent[None], class_index[None], resolution, self.args.mesh_level, bar
                    )
                except NoSurface as error:
                    log.warning("object %d: %s", i, error)
                    no_surface = error
                    continue
                files += write_mesh(surface, self.out / "mesh" / f"object_{i:02d}")
        if not files:
            raise no_surface
        return files

    def reconstruction(self) -> list[Path]:
        poses = reconstruction_poses(self.generator.config.data)
        latents, classes = self.objects
        with progress(total=len(poses), desc="reconstruction", unit="image") as bar:
            out, resolution = self.out / "reconstruction", self.args.resolution
            return write_reconstruction(self.generator, latents[:1], classes[:1], poses, out, resolution, bar)

    def invert(self) -> list[Path]:
        photographs = self.args.invert
        poses = labelled_poses(photographs, self.generator.config.data)
        with progress(desc="inversion", unit="rendering") as bar:
            return invert_files(self.generator, photographs, self.out / "inversion", poses, self.args.seed, bar)

    def report(self) -> list[Path]:
        points = self.generator.config.memory.max_metric_rows
        return [write_report(self.run_dir, self.run_dir / "report.html", self.out, points)]

    def export(self) -> list[Path]:
        return [write_export(self.args.export, self.generator, self.step)]


def write_json(path: Path, content: dict) -> Path:
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return path


if __name__ == "__main__":
    run_script(main)
