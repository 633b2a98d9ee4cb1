"""Reads a photograph as it comes from a telephone: HEIC, EXIF rotation, any mode of Pillow; says why one cannot be read."""

import os
from pathlib import Path

from graf.data.decoding import EXTENSIONS, OPENED, UNREAD_EXTENSIONS, open_straight

import numpy as np
from PIL import Image

HEIC = (".heic", ".heif", ".hif")
READ = (*EXTENSIONS, *HEIC, ".jfif", ".gif", ".mpo")
UNREAD = tuple(suffix for suffix in UNREAD_EXTENSIONS if suffix not in READ)
EXTRA = 'pip install --editable ".[photographs]"'
MAY_MOVE = ("GIF", "PNG", "WEBP")  # formats of animations; the further images of others are previews or pages
HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
HEAD = 16  # bytes, in which a file says that it is HEIC


def open_photograph(file: Path) -> Image.Image:
    """The photograph, upright, with 8 bits: RGB, or RGBA with straight alpha. Raises ValueError with what is wrong with it."""
    if not os.path.isfile(file):
        raise ValueError("a link to nothing" if os.path.islink(file) else "missing, or no file")
    formats = OPENED
    if _is_heic(file):
        _register_heic()
        formats = ("HEIF",)
    try:
        image = open_straight(file, formats)
    except ValueError as error:
        problem, replaceable, _ = str(error).partition("; re")
        raise ValueError(f"{problem}; take another copy of it" if replaceable else problem) from None
    if _is_animation(file):
        raise ValueError("an animation; save the images that you want of it as PNG")
    return image


def luminance(image: Image.Image) -> np.ndarray:
    """Grey levels (H, W) in [0, 255] of an image, before white where it is transparent."""
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("L"), dtype=np.float32)


def shrunk(image: Image.Image, longest: int) -> Image.Image:
    """The image, made smaller where it is more than `longest` pixels wide or high."""
    factor = longest / max(image.size)
    size = tuple(max(1, round(side * factor)) for side in image.size)
    return image.resize(size, Image.Resampling.BOX) if factor < 1 else image


def _is_heic(file: Path) -> bool:
    """Whether the content is HEIC, whatever the name says: telephones export some as .jpg."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(HEAD)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    return head[4:8] == b"ftyp" and head[8:12] in HEIC_BRANDS


def _register_heic() -> None:
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        raise ValueError(f"a HEIC file, which the package pillow-heif reads: {EXTRA}") from None
    register_heif_opener()


def _is_animation(file: Path) -> bool:
    with Image.open(file) as image:
        return image.format in MAY_MOVE and getattr(image, "is_animated", False)
