"""The jobs of eval.py: what can be made of a trained generator, and by which flags.

A new job is an entry of JOBS: from it eval.py has the flags, their help, what is refused and the order.
"""

import argparse
import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graf.checkpoints import SUFFIX
from graf.config.strict import expanded
from graf.metrics.results import FEWEST_IMAGES
from graf.runtime.command_line import positive, whole_number

STAGES = {"refined": ("rgb", "depth"), "nerf": ("nerf", "depth"), "both": ("rgb", "nerf", "depth")}
FEWEST_CELLS = 8
KINDS = "_(rgb|nerf|depth)"
OBJECT_FILES = r"/(object_\d{2,}\.(ply|obj|glb)|rendered_back\.png)"
DIRECTION_SHEET = r"direction_(shape|appearance)_\d+\.png"
METRICS = (  # mmd comes with coverage
    *(*FEWEST_IMAGES, "kid_independent"),
    *("variety", "coverage", "haze", "mmd", "pose", "memorised"),
)


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of eval.py; one without a type is a switch.

    unused: the message where no job takes it. general: it could apply to any job, and is refused beside a job that ignores it.
    """

    name: str
    help: str
    type: Callable[[str], Any] | None = None
    default: Any = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    nargs: str | None = None
    unused: str = ""
    general: bool = False

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        if self.type is None:
            parser.add_argument(f"--{self.name}", action="store_true", help=self.help)
        else:
            shown = {"metavar": self.metavar, "choices": self.choices, "nargs": self.nargs, "help": self.help}
            parser.add_argument(f"--{self.name}", type=self.type, default=self.default, **shown)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of eval.py: `flag` asks for it; `run`, given an Evaluation (graf/commands/eval.py), returns the files written.

    flags: the other flags that it takes. check: called before any job runs; raises GrafError where something is missing.
    needs_dataset: the data set is loaded before any job runs. files: a regular expression of its files in --out for
    `set_others_aside`; empty where the job itself protects files of others. writes_results: False where its files lie outside
    the folder of results. samples_objects: it shows sampled objects, so that it is refused beside --invert.
    """

    flag: Flag
    run: Callable[[Any], list[Path]]
    flags: tuple[Flag, ...] = ()
    check: Callable[[Any], Any] | None = None
    needs_dataset: bool = False
    files: str = ""
    writes_results: bool = True
    samples_objects: bool = False

    @property
    def name(self) -> str:
        return self.flag.name


def checked(parse: Callable[[str], Any], valid: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    """A flag's type: parses its text; where that fails or is not valid, the error says what was expected."""

    def parsed(text: str) -> Any:
        with contextlib.suppress(ValueError, argparse.ArgumentTypeError):
            if valid(value := parse(text)):
                return value
        raise argparse.ArgumentTypeError(f"expected {expected} found {text!r}")

    return parsed


LARGEST_SEED = 2**32  # as of training.seed
seed = checked(whole_number, lambda value: 0 <= value <= LARGEST_SEED, f"a whole number from 0 to {LARGEST_SEED},")


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


degrees = checked(numbers, lambda angles: all(map(math.isfinite, angles)), "degrees with commas, such as 0,45,90;")
heights = checked(numbers, lambda angles: all(-90 <= angle <= 90 for angle in angles), "degrees from -90 to 90 with commas;")
share = checked(float, lambda value: 0 <= value <= 1, "a number from 0 to 1,")
steps = checked(whole_number, lambda number: number >= 0, "a whole number of steps,")
cells = checked(positive, lambda number: number >= FEWEST_CELLS, f"at least {FEWEST_CELLS} cells,")
metric_names = checked(
    lambda text: text.split(","), lambda names: set(names) <= set(METRICS), f"some of {','.join(METRICS)} with commas;"
)
export_name = checked(expanded, lambda name: name.endswith(SUFFIX), f"a file name that ends in {SUFFIX},")
TRUNCATION = Flag("truncation", "scale of the latents; smaller values give more typical objects", share, 1.0, general=True)
RESOLUTION = Flag("resolution", "pixels per side of pictures; by default data.imsize", positive, general=True)
LATENTS = Flag(
    "latents",
    "files of objects to show instead of sampled ones: latents.json of --invert, or files that view.py saves",
    expanded,
    metavar="FILE",
    nargs="+",
    general=True,
)
TUNE = Flag("tune", "with --invert: number of steps to fine-tune a copy of the weights, such as 100; 0: off", steps, 0)
OBJECTS = Flag(
    "n_objects",
    "number of objects of --sweep, --sheets, --directions, --mesh and --splats; one per row of an image grid",
    positive,
    4,
)
AZIMUTHS = Flag("azimuths", "azimuths of the sweep in degrees, such as 0,45,90; by default 8 over the config's range", degrees)
ELEVATIONS = Flag(
    "elevations",
    "elevations of the sweep in degrees above the horizon, such as 10,30; by default the middle of the config's range",
    heights,
)
PLAIN = Flag("plain", "image grids without captions, at the rendered size in pixels", default=False)
STAGE = Flag(
    "stage",
    "with --sweep, what to render: CCSR's output, the field's own rendering, or both",
    str,
    "refined",
    choices=tuple(STAGES),
    general=True,
)
MESH_RESOLUTION = Flag("mesh_resolution", "cells along each side of the mesh's grid", cells, 128)
MESH_LEVEL = Flag(
    "mesh_level", "density at the mesh's surface; by default the one whose silhouettes best match rendered opacity", float
)
TEXTURED = Flag("textured", "with --mesh: add a texture to the GLB, and render it for comparison with the model", default=False)
DUMP_SAMPLES = Flag(
    "dump_samples",
    "with --metrics: write the measured images as PNGs to a new folder",
    expanded,
    metavar="DIR",
    unused="writes the samples that --metrics measures; name some, such as --metrics kid",
)
ESTIMATOR = Flag(
    "estimator",
    "run of train_pose.py that estimates cameras for --metrics pose and for the start of --invert",
    expanded,
    metavar="RUN",
)
HELDOUT = Flag(
    "heldout",
    "with --metrics memorised: folder of photographs of objects that are not in the training data",
    expanded,
    metavar="DIR",
)
JOBS = (  # in the order in which they are done
    Job(
        Flag("metrics", f"measure some of {','.join(METRICS)} against the data set", metric_names),
        lambda evaluation: evaluation.metrics(),
        flags=(DUMP_SAMPLES, TRUNCATION, ESTIMATOR, HELDOUT),
        check=lambda evaluation: (evaluation.estimator, evaluation.heldout),
        needs_dataset=True,
    ),
    Job(
        Flag("consistency", "measure whether views show one 3D object: depth-warp error, popping during a turn, checkerboards"),
        lambda evaluation: evaluation.consistency(),
        flags=(TRUNCATION,),
        needs_dataset=True,
    ),
    Job(
        Flag("sweep", "image grid of viewing angles, rotation and elevation videos, in colour and depth"),
        lambda evaluation: evaluation.sweep(),
        flags=(LATENTS, AZIMUTHS, ELEVATIONS, OBJECTS, TRUNCATION, STAGE, RESOLUTION, PLAIN),
        check=lambda evaluation: evaluation.trajectories,
        files=rf"sweep{KINDS}\.png|(rotation|elevation){KINDS}\.(mp4|gif)",
        samples_objects=True,
    ),
    Job(
        Flag("sheets", "image grids and videos: interpolations of shape and appearance, truncation, classes"),
        lambda evaluation: evaluation.sheets(),
        flags=(LATENTS, OBJECTS, TRUNCATION, RESOLUTION, PLAIN),
        check=lambda evaluation: evaluation.check_sheets(),
        files=r"interpolation_(shape|appearance|both)\.(png|mp4)|(truncation|classes)\.png",
    ),
    Job(
        Flag("directions", "image grids of the first K principal directions of shape and of appearance", positive, metavar="K"),
        lambda evaluation: evaluation.directions(),
        flags=(LATENTS, OBJECTS, TRUNCATION, RESOLUTION, PLAIN),
        check=lambda evaluation: evaluation.check_sheets(of_directions=True),
        files=rf"{DIRECTION_SHEET}|directions\.json",
    ),
    Job(
        Flag("neighbours", "samples beside their nearest training images, and samples beside real images"),
        lambda evaluation: evaluation.neighbours(),
        flags=(TRUNCATION, PLAIN),
        needs_dataset=True,
        files=r"neighbours\.(png|json)|real_against_fake\.png",
    ),
    Job(
        Flag("mesh", "each object's surface as PLY, OBJ and GLB"),
        lambda evaluation: evaluation.mesh(),
        flags=(LATENTS, OBJECTS, TRUNCATION, MESH_RESOLUTION, MESH_LEVEL, TEXTURED, PLAIN),
        check=lambda evaluation: evaluation.check_mesh(),
        files=f"mesh{OBJECT_FILES}",
        samples_objects=True,
    ),
    Job(
        Flag("splats", "each object as 3D Gaussian splats, a PLY for splat viewers, rendered for comparison with the model"),
        lambda evaluation: evaluation.splats(),
        flags=(LATENTS, OBJECTS, TRUNCATION, MESH_RESOLUTION, MESH_LEVEL, PLAIN),
        check=lambda evaluation: evaluation.check_cells(),
        files=f"splats{OBJECT_FILES}",
        samples_objects=True,
    ),
    Job(
        Flag("reconstruction", "views of the first object with cameras, for COLMAP, nerfstudio and instant-ngp"),
        lambda evaluation: evaluation.reconstruction(),
        flags=(LATENTS, TRUNCATION, RESOLUTION),
        samples_objects=True,
    ),
    Job(
        Flag(
            "invert",
            "find the object of these photographs (files or a folder), and write latents.json, cameras, video, mesh and splats",
            expanded,
            metavar="PHOTO",
            nargs="+",
        ),
        lambda evaluation: evaluation.invert(),
        flags=(ESTIMATOR, TUNE, PLAIN),
        check=lambda evaluation: (evaluation.targets, evaluation.estimator),
    ),
    Job(
        Flag("report", "write all results of the run to one page, report.html, in the run's folder or --out"),
        lambda evaluation: evaluation.report(),
        files=r"curves/(losses|kid|training|memory|metrics_[\w-]+)\.png",
        writes_results=False,
    ),
    Job(
        Flag("export", "write the generator and its config as .safetensors, with a model card", export_name, metavar="FILE"),
        lambda evaluation: evaluation.export(),
        check=lambda evaluation: evaluation.check_export(),
        writes_results=False,
    ),
)
