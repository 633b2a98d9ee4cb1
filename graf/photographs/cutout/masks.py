"""Masks that users have made themselves: which files are masks, which photograph each belongs to, and what it shows."""

from collections.abc import Iterable
from pathlib import Path

from graf.photographs.cutout.plain import border
from graf.photographs.reading import open_photograph

import numpy as np
from PIL import Image

FOLDERS = ("masks", "mask", "maps", "map")
ENDINGS = ("_mask", "-mask", "_map", "-map", "_matte", "-matte")
SHAPE = 0.02  # relative difference of width / height between a photograph and its mask
NEGATIVE = 0.95  # share of the border that is object, from which on a mask is taken for a negative
LEAST = 0.001  # share of the frame


def stem_of(mask: Path) -> str:
    """The name of the photograph that a mask belongs to, without its suffix."""
    ending = next((ending for ending in ENDINGS if mask.stem.lower().endswith(ending)), "")
    return mask.stem[: len(mask.stem) - len(ending)]


def is_mask_beside(name: str, names: Iterable[str]) -> bool:
    """Whether an image is the mask of another in its folder: bus_mask.png beside bus.jpg. names: of the folder's images."""
    stem = stem_of(Path(name))
    return stem != Path(name).stem and any(Path(other).stem == stem for other in names)


def is_mask_folder(name: str, inside: Iterable[str], beside: Iterable[str]) -> bool:
    """Whether a folder holds masks: by its name, and because most images in it are named for those beside it."""
    stems = {Path(other).stem for other in beside}
    named = [stem_of(Path(mask)) in stems for mask in inside]
    return name.lower() in FOLDERS and len(named) > 0 and 2 * sum(named) > len(named)


def mask_pixels(file: Path, size: tuple[int, int]) -> tuple[np.ndarray, bool]:
    """The opacity (H, W) in [0, 1] that a mask gives a photograph of `size` (width, height), and whether it was a negative.

    White is the object, or what is opaque in a mask with transparency. Raises ValueError with what is wrong with the mask.
    """
    try:
        image = open_photograph(file)
    except ValueError as error:
        raise ValueError(f"its mask {file.name} is {error}") from None
    shape, wanted = image.width / image.height, size[0] / size[1]
    if abs(shape / wanted - 1) > SHAPE:
        raise ValueError(f"its mask {file.name} has another shape: {image.width} x {image.height} for {size[0]} x {size[1]}")
    grey = image.getchannel("A") if image.mode == "RGBA" else image.convert("L")
    levels = np.asarray(grey)
    if levels.max() == 1:  # 0 and 1 in place of 0 and 255
        grey = Image.fromarray(levels * 255)
    opacity = np.asarray(grey.resize(size, Image.Resampling.BILINEAR), dtype=np.float32) / 255
    share = float((opacity > 0.5).mean())
    negative = share < 1 - LEAST and float((opacity > 0.5)[border(opacity.shape)].mean()) > NEGATIVE
    if share < LEAST:
        raise ValueError(f"its mask {file.name} shows no object: all of it is black")
    if share > 1 - LEAST:
        raise ValueError(f"its mask {file.name} shows no background: all of it is white")
    return (1 - opacity if negative else opacity), negative
