"""Image grids with captions along their edges."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from graf.pictures.fonts import font_file

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.utils import make_grid

SMALLEST_TILE = 128  # pixels; smaller pictures are enlarged
GAP, BAR = 8, 16  # pixels around texts, and across the colour bar
TEXT, INK = 14, "#333333"
DEPTH_COLOURS = "magma"


@dataclass(frozen=True)
class Captions:
    """Texts above the columns of an image grid, left of its rows, and below it: a note and a footer.

    Where footer is None, the grid has no captions at all. depths: the depths in scene units of the brightest and the darkest
    colour.
    """

    footer: str | None
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()
    note: str = ""
    depths: tuple[float, float] | None = None


def captioned(pictures: Tensor, columns: int, captions: Captions) -> Tensor:
    """One picture (3, H, W) of uint8 pictures (N, 3, H, W) in so many columns, enlarged where smaller than SMALLEST_TILE."""
    pictures = enlarged(pictures, SMALLEST_TILE / min(pictures.shape[-2:]))
    tiles = make_grid(torch.cat([pictures, pictures[:1]]), nrow=columns, padding=GAP // 2, pad_value=255)  # one is not padded
    height, width = (side + GAP // 2 for side in pictures.shape[-2:])
    n_rows = -(-len(pictures) // columns)
    tiles = tiles[:, : n_rows * height + GAP // 2, : min(len(pictures), columns) * width + GAP // 2]
    left = max(map(_width, captions.rows), default=0) + GAP
    top = 2 * TEXT if captions.columns else 0
    depths = [f"{depth:g}" for depth in captions.depths or ()]
    right = BAR + 3 * GAP + max(map(_width, (*depths, "depth"))) if depths else 0
    below = "; ".join(filter(None, (captions.note, captions.footer)))
    foot = 2 * TEXT if below else 0
    page_width = max(left + tiles.shape[2] + right, left + _width(below) + GAP)
    page = Image.new("RGB", (page_width, top + tiles.shape[1] + foot), "white")
    page.paste(Image.fromarray(tiles.movedim(0, -1).numpy()), (left, top))
    draw = ImageDraw.Draw(page)

    def write(x: float, y: float, text: str, anchor: str) -> None:
        draw.text((x, y), text, INK, _font(text), anchor, align="right")

    for i, text in enumerate(captions.columns):
        write(left + (i + 0.5) * width, top / 2, text, "mm")
    for i, text in enumerate(captions.rows):
        write(left, top + (i + 0.5) * height, text, "rm")
    write(left + GAP // 2, top + tiles.shape[1] + foot / 2, below, "lm")
    if depths:
        x, end = left + tiles.shape[2] + GAP, top + tiles.shape[1] - GAP // 2
        page.paste(_colour_bar(end - top - GAP // 2), (x, top + GAP // 2))
        for y, text in zip((top + GAP, (top + end) / 2, end - GAP), (depths[0], "depth", depths[1]), strict=True):
            write(x + BAR + GAP, y, text, "lm")
    return torch.from_numpy(np.array(page)).movedim(-1, 0)


def enlarged(pictures: Tensor, factor: float) -> Tensor:
    """Enlarge pictures (..., H, W) by the factor, rounded up, each pixel becoming a square; up to a factor of 1 unchanged."""
    factor = math.ceil(factor)
    return pictures.repeat_interleave(factor, -2).repeat_interleave(factor, -1) if factor > 1 else pictures


def numbered(n: int, name: str = "object") -> list[str]:
    """Names of n objects, counted from 0 as in their file names."""
    return [f"{name} {i}" for i in range(n)]


def _font(text: str) -> ImageFont.FreeTypeFont:
    """Pillow's own font, or another for letters that it does not have."""
    return ImageFont.load_default(TEXT) if text.isascii() else ImageFont.truetype(font_file(text), TEXT)


def _width(text: str) -> int:
    return max(math.ceil(_font(text).getlength(line)) for line in text.split("\n"))


def _colour_bar(height: int) -> Image.Image:
    """The colours of depth, near at the top."""
    colours = matplotlib.colormaps[DEPTH_COLOURS](np.linspace(1, 0, height))[:, None, :3]
    return Image.fromarray((255 * colours).round().astype(np.uint8)).resize((BAR, height))
