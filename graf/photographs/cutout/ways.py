"""Cuts the object of a photograph out: by its mask, its own transparency, the colour of a plain wall, or GrabCut."""

from pathlib import Path
from typing import Literal, NamedTuple, get_args

from graf.photographs.cutout.grabcut import cut_grabcut, opencv, refined
from graf.photographs.cutout.masks import mask_pixels
from graf.photographs.cutout.plain import cut_plain
from graf.photographs.cutout.segments import soft
from graf.photographs.reading import shrunk

import numpy as np
from PIL import Image
from scipy.ndimage import distance_transform_edt

Cut = Literal["auto", "plain", "grabcut", "masks", "none"]
WAYS = get_args(Cut)
CUTTERS = {"plain": cut_plain, "grabcut": cut_grabcut, "refined": lambda rgb: refined(rgb, cut_plain(rgb))}
LOOKED_AT = 480  # pixels of the longer side at which objects are looked for
CERTAIN = 0.99  # opacity from which on a pixel's colour is the object's alone


class CutOut(NamedTuple):
    """A photograph, RGBA where it was cut out, and how: mask, negative mask, kept (its transparency), plain, refined (plain,
    then GrabCut), grabcut or none."""

    image: Image.Image
    how: str


def cut_out(image: Image.Image, cut: Cut, mask: Path | None = None) -> CutOut:
    """Cut the object out of an image, RGB or RGBA. Transparency that it has is kept, except for `masks`.

    Raises ValueError, in words for a table of what was left out, where the way that was asked for finds no object.
    """
    if cut in ("auto", "masks") and mask is not None:
        opacity, negative = mask_pixels(mask, image.size)
        return CutOut(_with_opacity(image, opacity), "negative mask" if negative else "mask")
    if cut == "masks":
        raise ValueError("there is no mask for it")
    if image.mode == "RGBA" and image.getchannel("A").getextrema()[0] < 255:
        return CutOut(image, "kept")
    image = image.convert("RGB")
    if cut == "none":
        return CutOut(image, "none")
    if cut == "auto":
        return _automatic(image)
    return _cut_by(image, cut)


def _automatic(image: Image.Image) -> CutOut:
    """The first way that works: plain, refined by GrabCut where OpenCV is installed; GrabCut alone; none."""
    for way in ("refined", "grabcut") if opencv() else ("plain",):
        try:
            return _cut_by(image, way)
        except ValueError:
            continue
    return CutOut(image, "none")


def _cut_by(image: Image.Image, way: str) -> CutOut:
    found = soft(CUTTERS[way](np.asarray(shrunk(image, LOOKED_AT))))
    opacity = Image.fromarray(found).resize(image.size, Image.Resampling.BICUBIC)
    return CutOut(_with_opacity(image, np.asarray(opacity)), way)


def _with_opacity(image: Image.Image, opacity: np.ndarray) -> Image.Image:
    levels = (opacity.clip(0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(np.dstack([np.asarray(image.convert("RGB")), levels]))


def without_fringe(image: Image.Image) -> Image.Image:
    """An RGBA image whose half transparent pixels have the colour of the nearest opaque one, not of the wall behind it."""
    pixels = np.array(image)
    certain = pixels[..., 3] >= CERTAIN * 255
    if certain.any():
        nearest = distance_transform_edt(~certain, return_distances=False, return_indices=True)
        pixels[..., :3] = pixels[..., :3][tuple(nearest)]
    return Image.fromarray(pixels)
