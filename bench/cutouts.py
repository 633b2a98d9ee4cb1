"""How exactly photographs are cut out: python bench/cutouts.py FOLDER [FOLDER ...] [--n 100] [--photographs FOLDER]

Pastes RGBA images before plain walls (a colour, a gradient, a vignette, noise) and before busy ones (noise of several scales,
rectangles), and with --photographs before those of a folder; cuts them out in each way of tools/prepare_photos.py --cut, and
prints the mean IoU with their own opacity. What is left out because no object is found is counted, and no part of the mean.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graf.data.decoding import open_rgb, open_straight
from graf.data.folders import is_image
from graf.data.views import spread
from graf.errors import GrafError
from graf.photographs.cropping import extent
from graf.photographs.cutout.ways import WAYS, cut_out
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, progress, run_script

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 256  # pixels of the photographs that are made
OBJECT = (0.4, 0.8)  # longer side of a pasted object, in units of SIDE, from and to
OFF_CENTRE = 0.08  # of SIDE, at most along each axis
SCALES = {4: 0.35, 8: 0.25, 16: 0.15, 32: 0.15, 64: 0.1}  # cells per side of busy noise, and its share
RECTANGLES = 12

Background = Callable[[np.random.Generator], Image.Image]


class Row(NamedTuple):
    """A way of cutting out, before a kind of background: mean and lowest decile of the IoU of n images, and images left out."""

    background: str
    way: str
    mean: float
    low: float
    n: int
    left_out: int


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="RGBA images, also in folders below")
    parser.add_argument("--n", type=positive, default=100, help="images of each folder, evenly spread (default 100)")
    parser.add_argument("--photographs", type=Path, metavar="FOLDER", help="photographs to paste before as well")
    arguments = parser.parse_args()
    backgrounds: dict[str, Background] = {"plain": plain_wall, "busy": busy_wall}
    if arguments.photographs:
        walls = images_below(arguments.photographs)
        backgrounds["photographs"] = lambda rng: photograph(walls, rng)
    log.info("| folder | background | --cut | mean IoU | lowest tenth | cut out | left out |\n|---|---|---|---|---|---|---|")
    for folder in arguments.folders:
        for row in measure(spread(images_below(folder), arguments.n), backgrounds):
            log.info("| %s | %s | %s | %.3f | %.3f | %d | %d |", folder.name, *row)


def images_below(folder: Path) -> list[Path]:
    """The images in a folder and those below it. Raises GrafError where there are none."""
    found = sorted(file for file in folder.rglob("*") if is_image(file.name))
    if not found:
        raise GrafError(f"{folder}: no images in it")
    return found


def measure(files: Sequence[Path], backgrounds: dict[str, Background]) -> Iterator[Row]:
    """The rows of a table, for each background and way. Raises GrafError for an image that has no transparency."""
    for name, background in backgrounds.items():
        rng = np.random.default_rng(0)
        overlaps: dict[str, list[float]] = {way: [] for way in WAYS}
        for file in progress(files, desc=name):
            image, opacity = pasted(file, background(rng), rng)
            for way in WAYS:
                if (found := opacity_by(way, image, opacity)) is not None:
                    overlaps[way].append(iou(found, opacity))
        for way, of_way in overlaps.items():
            mean, low = (float(np.mean(of_way)), float(np.quantile(of_way, 0.1))) if of_way else (np.nan, np.nan)
            yield Row(name, way, mean, low, len(of_way), len(files) - len(of_way))


def pasted(file: Path, wall: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, np.ndarray]:
    """An image's object somewhere near the middle of a wall, RGB, and its opacity (SIDE, SIDE) in [0, 1]."""
    image = open_straight(file)
    if image.mode != "RGBA":
        raise GrafError(f"{file}: has no transparency to compare with")
    thing = image.crop(extent(image).box)
    factor = SIDE * rng.uniform(*OBJECT) / max(thing.size)
    thing = thing.resize([max(1, round(side * factor)) for side in thing.size], Image.Resampling.LANCZOS)
    shift = SIDE * rng.uniform(-OFF_CENTRE, OFF_CENTRE, 2)
    page = Image.new("RGBA", (SIDE, SIDE))
    page.paste(thing, (round((SIDE - thing.width) / 2 + shift[0]), round((SIDE - thing.height) / 2 + shift[1])))
    whole = Image.alpha_composite(wall.convert("RGBA"), page).convert("RGB")
    return whole, np.asarray(page.getchannel("A"), dtype=np.float32) / 255


def opacity_by(way: str, image: Image.Image, opacity: np.ndarray) -> np.ndarray | None:
    """The opacity (SIDE, SIDE) that a way finds, 1 throughout where it leaves the image whole; None where it is left out.

    The mask that `masks` gets is the true one at half the size.
    """
    with tempfile.TemporaryDirectory() as folder:
        mask = None
        if way == "masks":
            mask = Path(folder, "mask.png")
            Image.fromarray((255 * opacity).round().astype(np.uint8)).resize((SIDE // 2, SIDE // 2)).save(mask)
        try:
            found = cut_out(image, way, mask).image
        except ValueError:
            return None
    return np.asarray(found.getchannel("A"), dtype=np.float32) / 255 if found.mode == "RGBA" else np.ones_like(opacity)


def iou(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of what is more than half opaque."""
    one, other = one > 0.5, other > 0.5
    return float((one & other).sum() / max(1, (one | other).sum()))


def plain_wall(rng: np.random.Generator) -> Image.Image:
    """A wall of one colour, with a gradient, a vignette and a camera's noise."""
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    light = rng.uniform(-25, 25) * x + rng.uniform(-25, 25) * y - rng.uniform(0, 30) * (x * x + y * y)
    colour = rng.uniform(90, 245) + rng.uniform(-25, 25, 3)
    pixels = colour + light[..., None] + rng.normal(0, 2, (SIDE, SIDE, 3))
    return Image.fromarray(pixels.clip(0, 255).round().astype(np.uint8))


def busy_wall(rng: np.random.Generator) -> Image.Image:
    """Noise of several scales in all colours, with rectangles."""
    pixels = np.zeros((SIDE, SIDE, 3))
    for cells, share in SCALES.items():
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        pixels += share * np.asarray(noise.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    wall = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(wall)
    for _ in range(RECTANGLES):
        left, top = rng.integers(-SIDE // 6, SIDE, 2)
        width, height = rng.integers(SIDE // 25, SIDE // 2.5, 2)
        draw.rectangle((left, top, left + width, top + height), tuple(map(int, rng.integers(0, 256, 3))))
    return wall.filter(ImageFilter.GaussianBlur(1))


def photograph(files: Sequence[Path], rng: np.random.Generator) -> Image.Image:
    """One of the photographs, stretched to a square."""
    return open_rgb(files[rng.integers(len(files))], (1.0, 1.0, 1.0)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


if __name__ == "__main__":
    run_script(main)
