"""The pictures of docs/bad_pictures.md: short runs that go wrong on purpose, on the toy cars.

    python bench/bad_pictures.py [walls blur ...] [--out docs]

Each picture has real images above, and below them two generated objects, each from eight azimuths: all around, or for popping
two degrees apart.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from graf.camera import middle_poses
from graf.checkpoints.generator_loading import load_generator
from graf.config import CONFIG_DIR, DataConfig, load_config
from graf.data import build_dataset
from graf.data.toy_cars import load_toy_cars
from graf.errors import GrafError
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8, write_grid, write_image
from graf.pictures.sampling import render_views, sample_objects
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.runtime.files import claim_folder
from tutorial_pictures import run

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
SIDES, OBJECTS = 8, 2
NO_MEASURING = ("training.fid_every=0", "training.monitoring=none")
FOLDER_KEYS = ("data.type=images", "data.labels=none", "discriminator.condition=none")


class Fault(NamedTuple):
    """The causes of a run that goes wrong: settings, and `--max_steps`. A run with `photographs` has toy cars without cameras:
    those of the settings, in front of plain backgrounds of random colours where `coloured`."""

    steps: int
    settings: tuple[str, ...]
    photographs: tuple[str, ...] | None = None
    coloured: bool = False
    turn_deg: float = 360.0  # of its picture


FAULTS = {
    "never_turns": Fault(
        1200, ("discriminator.low_res_steps=800",), photographs=("data.umin=-0.06", "data.umax=0.06", "data.n_images=1000")
    ),
    "walls": Fault(800, ("discriminator.low_res_steps=600",), photographs=("data.n_images=1000",), coloured=True),
    "flat": Fault(
        600, ("data.umin=0.1", "data.umax=0.1", "data.vmin=0.4", "data.vmax=0.4", "data.n_images=500", "data.box=none")
    ),
    "empty": Fault(300, ("data.box=[1.3,1.3,0.6,1.6,1.6,0.9]", "data.n_images=500")),
    "blur": Fault(300, ()),
    "one_body": Fault(700, ("discriminator.architecture=projected", "discriminator.low_res_steps=0")),
    "one_image": Fault(400, ("training.lr_g=0.01", "discriminator.low_res_steps=200")),
    "patterns": Fault(800, ("ccsr.learns_from=discriminator", "ccsr.lr_multiplier=1", "discriminator.low_res_steps=200")),
    "floaters": Fault(
        800, ("data.near=0.4", "data.far=6.8", "data.box=none", "data.alpha=ignore", "discriminator.low_res_steps=200")
    ),
    "discriminator_wins": Fault(1000, ("data.n_images=16", "discriminator.low_res_steps=0")),
    "popping": Fault(
        1500, ("ccsr.learns_from=discriminator", "ccsr.scale_factor=4", "discriminator.low_res_steps=200"), turn_deg=16
    ),
    "mirrored": Fault(1200, ("data.mirror=90", "discriminator.low_res_steps=800")),
}


def main() -> None:
    args = arguments()
    for name in args.names or FAULTS:
        fault = FAULTS[name]
        log.info("%s: %s", name, args.out / f"bad_{name}.png")
        asked = {"steps": fault.steps, "settings": [*fault.settings, *(fault.photographs or ())]}
        claim_folder(args.runs / "settings" / name, asked)  # or a run of other settings would be shown
        if fault.photographs is not None:
            write_photographs(folder_of(name, args.runs), cars_of(name, args.runs), fault.coloured)
        config = ["--config", str(CONFIG_DIR / "convolutional.yaml"), "--use_amp", "--max_steps", str(fault.steps)]
        run(Path(), "train.py", *config, "--set", *settings_of(name, args.runs))
        generator = load_generator(args.runs / name)
        dataset = build_dataset(generator.config)
        real = torch.stack([dataset[index]["image"] for index in range(SIDES)])
        write_picture(args.out / f"bad_{name}.png", generator, real, fault.turn_deg)


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FAULTS)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the pictures (default docs)")
    parser.add_argument("--runs", type=Path, default=Path("results/bad"), help="folder of the runs (default results/bad)")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(FAULTS)):
        raise GrafError(f"{' '.join(unknown)}: expected names of {', '.join(FAULTS)}")
    return args


def settings_of(name: str, runs: Path) -> list[str]:
    """The settings of a fault's run."""
    settings = [f"expname={name}", f"training.outdir={runs}", *NO_MEASURING, *FAULTS[name].settings]
    if FAULTS[name].photographs is None:
        return [*settings, f"data.datadir={runs / 'toy_cars'}"]
    return [*settings, f"data.datadir={folder_of(name, runs)}", *FOLDER_KEYS]


def folder_of(name: str, runs: Path) -> Path:
    """The folder of a run's photographs."""
    return runs / f"{name}_photographs"


def cars_of(name: str, runs: Path) -> DataConfig:
    """The toy cars that a run's photographs show."""
    return load_config(None, [f"data.datadir={runs / 'toy_cars'}", *FAULTS[name].photographs]).data


def write_photographs(folder: Path, data: DataConfig, coloured: bool) -> None:
    """Write toy cars as photographs without cameras, in front of a colour of each one's own where `coloured`, else of white,
    unless they are there."""
    if len(list(folder.glob("*.png"))) == data.n_images:
        return
    rng = torch.Generator().manual_seed(data.seed)
    for number, image in enumerate(load_toy_cars(data).images):
        behind = 255 * torch.rand(3, 1, 1, generator=rng) if coloured else torch.full((3, 1, 1), 255.0)
        opacity = image[3:] / 255  # the colours are over white already
        picture = image[:3] - (1 - opacity) * (255 - behind)
        write_image(folder / f"{number:05d}.png", picture.round().clamp(0, 255).to(torch.uint8))


def write_picture(path: Path, generator: Generator, real: Tensor, turn_deg: float) -> None:
    """Write SIDES real images (SIDES, 3, H, W) in [-1, 1] above OBJECTS generated ones, each from SIDES azimuths of a turn."""
    azimuths = 45 + turn_deg / SIDES * torch.arange(SIDES)
    objects = sample_objects(generator, OBJECTS, seed=0)
    views = render_views(generator, objects, middle_poses(azimuths, generator.config.data))
    write_grid(path, as_uint8(torch.cat([real, views.images])), SIDES)


if __name__ == "__main__":
    run_script(main)
