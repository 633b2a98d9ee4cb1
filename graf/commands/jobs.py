"""The jobs of eval.py: what can be made of a trained generator, and by which flags.

A new job is an entry of JOBS: from it eval.py has the flags, their help, what is refused and the order.
"""

import argparse
import contextlib
import dataclasses
import math
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

from graf.checkpoints import SUFFIX
from graf.config.strict import expanded
from graf.metrics.results import FEWEST_IMAGES
from graf.runtime.command_line import positive

STAGES = {"refined": ("rgb", "depth"), "nerf": ("nerf", "depth"), "both": ("rgb", "nerf", "depth")}
FEWEST_CELLS = 8
KINDS = "_(rgb|nerf|depth)"
OBJECT_FILES = r"/(object_\d{2,}\.(ply|obj|glb)|rendered_back\.png)"
METRICS = (*FEWEST_IMAGES, "kid_independent", "variety", "coverage", "haze", "mmd", "pose")  # mmd comes with coverage
# What jobs need of an Evaluation, the quick first.
NEEDS = ("trajectories", "card", "unwrapping", "photographs", "estimator", "dataset")


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of eval.py. One without a type is a switch.

    unused: why it is refused where no job takes it. general: it could say of any job which images are meant, and is refused
    beside one that does not take it.
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
    """One thing that eval.py makes: the flag that asks for it, the work on an Evaluation (graf/commands/eval.py), which returns
    the files written, the other flags that it takes, and what it needs of NEEDS, so that it may fail before any work.
    names: a regular expression of the files that it writes to --out, as `own_files.make_way` takes it; empty where the job
    itself looks whose files are there. elsewhere: it writes no results into --out. sampled: it shows sampled objects, which
    nobody wants of --invert."""

    flag: Flag
    run: Callable[[Any], list[Path]]
    flags: tuple[Flag, ...] = ()
    needs: str | None = None
    names: str = ""
    elsewhere: bool = False
    sampled: bool = False

    @property
    def name(self) -> str:
        return self.flag.name


def checked(parse: Callable[[str], Any], valid: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    """A flag's type: what `parse` makes of its text, where that is valid; otherwise the error says what was expected."""

    def parsed(text: str) -> Any:
        with contextlib.suppress(ValueError, argparse.ArgumentTypeError):
            if valid(value := parse(text)):
                return value
        raise argparse.ArgumentTypeError(f"expected {expected} found {text!r}")

    return parsed


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


angles = checked(numbers, lambda found: all(map(math.isfinite, found)), "degrees with commas, such as 0,45,90;")
heights = checked(numbers, lambda found: all(-90 <= angle <= 90 for angle in found), "degrees from -90 to 90 with commas;")
share = checked(float, lambda value: 0 <= value <= 1, "a number from 0 to 1,")
cells = checked(positive, lambda number: number >= FEWEST_CELLS, f"at least {FEWEST_CELLS} cells,")
metric_names = checked(
    lambda text: text.split(","), lambda names: set(names) <= set(METRICS), f"some of {','.join(METRICS)} with commas;"
)
export_name = checked(expanded, lambda name: name.endswith(SUFFIX), f"a file name that ends in {SUFFIX},")
TRUNCATION = Flag("truncation", "scale of the latents: less is more typical", share, 1.0, general=True)
RESOLUTION = Flag("resolution", "pixels a side of pictures; by default data.imsize", positive, general=True)
OBJECTS = Flag("n_objects", "objects of --sweep, --sheets, --mesh and --splats, one per row of a sheet", positive, 4)
AZIMUTHS = Flag("azimuths", "degrees, such as 0,45,90; by default 8 over the config's range", angles)
ELEVATIONS = Flag("elevations", "degrees above the horizon, such as 10,30; by default mid height", heights)
PLAIN = Flag("plain", "sheets without captions, in the pixels as rendered", default=False)
STAGE = Flag("stage", "CCSR's output, the field's own rendering, or both", str, "refined", choices=tuple(STAGES), general=True)
MESH_RESOLUTION = Flag("mesh_resolution", "cells along each side of the mesh's grid", cells, 128)
MESH_LEVEL = Flag("mesh_level", "density at the surface; by default where its silhouettes best match rendered opacity", float)
TEXTURED = Flag("textured", "with --mesh: the GLB has a texture, and is rendered back for a check", default=False)
DUMP_SAMPLES = Flag(
    "dump_samples",
    "with --metrics: the images measured as PNGs, in a new folder",
    expanded,
    metavar="DIR",
    unused="writes the samples that --metrics measures; name some, such as --metrics kid",
)
ESTIMATOR = Flag(
    "estimator",
    "a run of train_pose.py: --metrics pose reads generated views with it, --invert starts from its cameras",
    expanded,
    metavar="RUN",
)
JOBS = (  # in the order in which they are done
    Job(
        Flag("metrics", f"some of {','.join(METRICS)}, against the data set", metric_names),
        methodcaller("metrics"),
        flags=(DUMP_SAMPLES, TRUNCATION, ESTIMATOR),
        needs="dataset",
    ),
    Job(
        Flag("consistency", "is it one 3D object: depth-warp error, popping while turning, checkerboards"),
        methodcaller("consistency"),
        flags=(TRUNCATION,),
        needs="dataset",
    ),
    Job(
        Flag("sweep", "angle sheet, rotation and elevation videos, colours and depth"),
        methodcaller("sweep"),
        flags=(AZIMUTHS, ELEVATIONS, OBJECTS, TRUNCATION, STAGE, RESOLUTION, PLAIN),
        needs="trajectories",
        names=rf"sweep{KINDS}\.png|(rotation|elevation){KINDS}\.(mp4|gif)",
        sampled=True,
    ),
    Job(
        Flag("sheets", "interpolations of shape and appearance, truncation, classes"),
        methodcaller("sheets"),
        flags=(OBJECTS, TRUNCATION, RESOLUTION, PLAIN),
        names=r"interpolation_(shape|appearance|both)\.(png|mp4)|(truncation|classes)\.png",
    ),
    Job(
        Flag("neighbours", "samples beside the nearest training images, real beside fake"),
        methodcaller("neighbours"),
        flags=(TRUNCATION, PLAIN),
        needs="dataset",
        names=r"neighbours\.(png|json)|real_against_fake\.png",
    ),
    Job(
        Flag("mesh", "each object's surface as PLY, OBJ and GLB"),
        methodcaller("mesh"),
        flags=(OBJECTS, TRUNCATION, MESH_RESOLUTION, MESH_LEVEL, TEXTURED, PLAIN),
        needs="unwrapping",
        names=f"mesh{OBJECT_FILES}",
        sampled=True,
    ),
    Job(
        Flag("splats", "each object as 3D Gaussian splats, a PLY for splat viewers, rendered back for a check"),
        methodcaller("splats"),
        flags=(OBJECTS, TRUNCATION, MESH_RESOLUTION, MESH_LEVEL, PLAIN),
        names=f"splats{OBJECT_FILES}",
        sampled=True,
    ),
    Job(
        Flag("reconstruction", "the first object's views for COLMAP, nerfstudio, instant-ngp"),
        methodcaller("reconstruction"),
        flags=(TRUNCATION, RESOLUTION),
        sampled=True,
    ),
    Job(
        Flag(
            "invert",
            "find latent and camera of photographs of one object; a folder is its images",
            expanded,
            metavar="PHOTO",
            nargs="+",
        ),
        methodcaller("invert"),
        flags=(ESTIMATOR, PLAIN),
        needs="photographs",
    ),
    Job(
        Flag("report", "report.html: all of the run's results on one page, in the run's folder or that of --out"),
        methodcaller("report"),
        names=r"curves/(losses|kid|training|memory|metrics_[\w-]+)\.png",
        elsewhere=True,
    ),
    Job(
        Flag("export", "the generator and its config alone, as .safetensors, and its model card", export_name, metavar="FILE"),
        methodcaller("export"),
        needs="card",
        elsewhere=True,
    ),
)
