"""Image files to square tensors, whatever their mode: alpha over the background, 16 bits, palettes, EXIF rotation."""

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from graf.config import DataConfig
from graf.config.strict import one_line

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
UNREAD_EXTENSIONS = (  # other images, counted in a warning
    *(".heic", ".heif", ".avif", ".gif", ".jfif", ".jp2", ".jxl", ".psd", ".exr", ".hdr", ".tga", ".svg"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2", ".pef", ".srw"),  # camera raw files
)
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")  # of EXTENSIONS
OPENED = (*FORMATS, "GIF")  # whatever the extension; EPS would be run as a program
NO_IMAGE = f"not an image, or damaged, or of another format than {', '.join(FORMATS)}"
NO_ALPHA = "has no transparency for data.alpha: rgba to compare silhouettes by; cut its object out, or set data.alpha: ignore"
UNREADABLE = OSError, ValueError, SyntaxError, Image.DecompressionBombError  # Pillow's errors for a file or its header
TELL_ORIENTATION = "exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"  # entries of Pillow's info
MOST_PIXELS = 2**26  # decoding takes up to 40 bytes per pixel; larger JPEGs are decoded at half their size
THUMBNAIL = 8  # pixels a side

LARGEST_FRAME = 1.5  # in units of an image's longer side
MASK_GREY = 8  # a mask's channels differ by no more
MASK_SHAPE = 0.02  # by which its ratio of width to height may differ from the image's
MASK_EXTREMES = 0.9  # share of a mask's pixels that are nearly black or nearly white

T = TypeVar("T")

warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # MOST_PIXELS is the limit


class MaskError(ValueError):
    """A mask that cannot be used, in words that name it."""


class Frame(NamedTuple):
    """The square of an image that is trained on, in units of the image's width: its side, None for the largest at the centre
    (or data.center_crop), and its centre, (right, down) of the image's; and the file of the object's mask."""

    side: float | None = None
    centre: tuple[float, float] = (0.0, 0.0)
    mask: Path | None = None


CENTRE_SQUARE = Frame()


def read_image(file: str | os.PathLike, data: DataConfig, frame: Frame = CENTRE_SQUARE) -> Tensor:
    """The file as (3, imsize, imsize) uint8: upright, on data.background, cropped to its frame, resized with LANCZOS.

    With data.alpha: rgba its opacity is a fourth channel. Raises ValueError with what is wrong and what to do.
    """
    image, alpha = open_with_alpha(file, data, frame.mask)
    return square_tensor(image, alpha if data.alpha == "rgba" else None, data, frame)


def square_tensor(image: Image.Image, alpha: Image.Image | None, data: DataConfig, frame: Frame = CENTRE_SQUARE) -> Tensor:
    """An RGB image as (3, imsize, imsize) uint8, cropped and resized; with an opacity as the fourth channel."""
    outside = tuple(round(255 * value) for value in data.background)
    parts = [_square(image, data, frame, outside)] + ([] if alpha is None else [_square(alpha, data, frame, 0)])
    return torch.from_numpy(np.dstack([np.array(part) for part in parts])).permute(2, 0, 1)


def thumbnail(image: Image.Image, data: DataConfig) -> Tensor:
    """The centre square of an RGB image at 8 x 8 pixels, by which images are compared: (3, 8, 8) uint8."""
    small = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX, box=_square_box(image, data))
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


def read_alpha(file: str | os.PathLike, data: DataConfig, frame: Frame = CENTRE_SQUARE) -> Tensor | None:
    """The file's opacity as (imsize, imsize) uint8, cropped and resized as by `read_image`; None for an image without
    transparency. Raises ValueError as `read_image` does."""
    can_skip, may_halve = data.on_bad_file == "error", not data.center_crop
    alpha = _open(file, can_skip, lambda image: _alpha_channel(_cut_out(image, frame.mask)), may_halve=may_halve)
    return None if alpha is None else torch.from_numpy(np.array(_square(alpha, data, frame, 0)))


def open_with_alpha(
    file: str | os.PathLike, data: DataConfig, mask: Path | None = None
) -> tuple[Image.Image, Image.Image | None]:
    """The whole file as from `open_rgb`, cut out by its mask if any, and its opacity (8 bits): None with data.alpha: ignore, or
    without transparency.

    Raises ValueError as `read_image` does.
    """

    def rgb_and_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
        image = _cut_out(image, mask)
        return _on_background(image, data.background), None if data.alpha == "ignore" else _alpha_channel(image)

    image, alpha = _open(file, data.on_bad_file == "error", rgb_and_alpha, may_halve=not data.center_crop)
    if alpha is None and data.alpha == "rgba":
        raise ValueError(NO_ALPHA)
    return image, alpha


def open_rgb(file: str | os.PathLike, background: tuple[float, float, float]) -> Image.Image:
    """The whole file, decoded, upright and opaque, as an 8-bit RGB image. Raises ValueError as `read_image` does.

    Raises MemoryError where memory runs out, which is not the file's fault.
    """
    return _open(file, True, lambda image: _on_background(image, background))


def open_straight(file: str | os.PathLike, formats: tuple[str, ...] = OPENED) -> Image.Image:
    """The whole file, decoded and upright, with 8 bits: RGBA with straight alpha where it has transparency, else RGB.

    formats: names of Pillow's formats to try. Raises as `open_rgb` does.
    """

    def straight(image: Image.Image) -> Image.Image:
        return image.convert("RGBA") if _alpha_channel(image) else _on_background(image, (1.0, 1.0, 1.0))

    return _open(file, False, straight, formats)


def _open(
    file: str | os.PathLike,
    can_skip: bool,
    convert: Callable[[Image.Image], T],
    formats: tuple[str, ...] = OPENED,
    may_halve: bool = True,
) -> T:
    """`convert` of a file's decoded, upright image. may_halve: not where its pixels are counted. Raises as `open_rgb` does."""
    cure = "replace it, remove it, or set data.on_bad_file: skip" if can_skip else "replace or remove it"
    if not os.path.isfile(file):  # opening a pipe would block
        raise ValueError(f"is missing, or not a file that can be read; {cure}")
    try:
        with Image.open(file, formats=formats) as image:
            if may_halve and image.width * image.height > MOST_PIXELS:
                image.draft("RGB", (image.width // 2, image.height // 2))  # a JPEG is decoded at half its size
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels, more than {MOST_PIXELS:,}")
            return convert(ImageOps.exif_transpose(image))
    except (MemoryError, MaskError):
        raise
    except Image.DecompressionBombError as error:
        smaller = f"save it with fewer than {MOST_PIXELS // 10**6} megapixels"
        raise ValueError(f"cannot be read ({error}); {smaller}") from error
    except Exception as error:  # Pillow raises errors of many kinds for a damaged file, struct.error among them
        reason = NO_IMAGE if isinstance(error, UnidentifiedImageError) else one_line(str(error))
        raise ValueError(f"cannot be read ({reason}); {cure}") from error


def stored_orientation(file: str | os.PathLike) -> int:
    """How an image's pixels are stored, by EXIF: 1 upright, 2 to 4 turned or mirrored, 5 to 8 with rows for columns; 1 for a
    TIFF, which Pillow turns itself, and for a file of other formats, as HEIC."""
    try:
        with Image.open(file, formats=OPENED) as image:
            return 1 if image.format == "TIFF" else _orientation(image)
    except UNREADABLE:
        return 1


def _orientation(image: Image.Image) -> int:
    # To search a PNG's end for it, Pillow would decode the image
    is_told = image.format in ("JPEG", "MPO") or any(name in image.info for name in TELL_ORIENTATION)
    found = image.getexif().get(ExifTags.Base.Orientation) if is_told else None
    return found if found in range(2, 9) else 1


def upright_size(file: str | os.PathLike) -> tuple[int, int] | None:
    """Width and height of an image that is turned upright, by its header; None where it cannot be read."""
    if not os.path.isfile(file):  # opening a pipe would block
        return None
    try:
        with Image.open(file, formats=OPENED) as image:
            turned = _orientation(image) > 4
            if image.format == "TIFF" and ExifTags.Base.Orientation in image.tag_v2:
                # Pillow turns it by itself, older versions after they have measured it
                stored = tuple(map(image.tag_v2.get, (ExifTags.Base.ImageWidth, ExifTags.Base.ImageLength)))
                turned = image.tag_v2[ExifTags.Base.Orientation] > 4 and image.size == stored
            return image.size[::-1] if turned else image.size
    except UNREADABLE:
        return None


def square_side(width: int, height: int, center_crop: int) -> int:
    """Side in pixels of the centre square to crop from an image. Raises ValueError where center_crop does not fit."""
    largest = min(width, height)
    if center_crop > largest:
        raise ValueError(f"is {width} x {height}, smaller than data.center_crop {center_crop}; set it to {largest} or 0")
    return center_crop or largest


def _square(image: Image.Image, data: DataConfig, frame: Frame, outside: int | tuple[int, ...]) -> Image.Image:
    """The frame's square, data.imsize pixels a side; with the colour `outside` where it leaves the image."""
    if frame.side is None:
        image = image.crop(_square_box(image, data))
        return image if image.width == data.imsize else image.resize((data.imsize, data.imsize), Image.Resampling.LANCZOS)
    side = frame.side * image.width
    if side > LARGEST_FRAME * max(image.size):
        raise ValueError(f"shows far less than data.fov {data.fov:g}; set data.fov to the photographs' field of view")
    left, top = (length / 2 + offset * image.width - side / 2 for length, offset in zip(image.size, frame.centre, strict=True))
    margin = max(0, *(math.ceil(over) for over in (-left, -top, left + side - image.width, top + side - image.height)))
    image = ImageOps.expand(image, margin, fill=outside) if margin else image
    box = (left + margin, top + margin, left + side + margin, top + side + margin)
    return image.resize((data.imsize, data.imsize), Image.Resampling.LANCZOS, box=box)


def _square_box(image: Image.Image, data: DataConfig) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the centre square, pixels."""
    side = square_side(*image.size, data.center_crop)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return left, top, left + side, top + side


def looks_like_mask(file: Path) -> bool:
    """Whether an image is grey and almost all of its pixels are nearly black or nearly white, some of either."""
    try:
        with Image.open(file, formats=OPENED) as image:
            pixels = np.asarray(image.convert("RGB").resize((64, 64), Image.Resampling.NEAREST), dtype=np.int16)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False
    grey = pixels.mean(-1)
    white = grey.max() if grey.max() <= 1 else 255
    low, high = grey < 0.1 * white, grey > 0.9 * white
    is_grey = (pixels.max(-1) - pixels.min(-1)).max() <= MASK_GREY
    return bool(is_grey and (low | high).mean() > MASK_EXTREMES and low.any() and high.any())


def mask_opacity(mask: Path, size: tuple[int, int]) -> Image.Image:
    """The opacity (8 bits) that a mask gives an image of `size` (width, height): its grey levels, or its own opacity where it
    has transparent pixels.

    Raises MaskError for a mask that cannot be read or has another shape.
    """
    name = f"its mask cannot be used: {mask.parent.name}/{mask.name}"
    try:
        image = open_straight(mask)
    except ValueError as error:
        raise MaskError(f"{name} {error}") from None
    if abs(image.width * size[1] / (image.height * size[0]) - 1) > MASK_SHAPE:
        raise MaskError(f"{name} is {image.width} x {image.height}, of another shape than {size[0]} x {size[1]}")
    is_cut_out = image.mode == "RGBA" and image.getchannel("A").getextrema()[0] < 255
    opacity = image.getchannel("A") if is_cut_out else image.convert("L")
    if opacity.getextrema()[1] == 1:  # 0 and 1 for background and object
        opacity = opacity.point(lambda value: 255 * value)
    return opacity if opacity.size == size else opacity.resize(size, Image.Resampling.BILINEAR)


def _cut_out(image: Image.Image, mask: Path | None) -> Image.Image:
    """The image with a mask as its opacity, if any. Raises MaskError as `mask_opacity` does."""
    if mask is None:
        return image
    rgb = _on_background(image, (1, 1, 1))
    rgb.putalpha(mask_opacity(mask, image.size))
    return rgb


def _alpha_channel(image: Image.Image) -> Image.Image | None:
    has_alpha = image.has_transparency_data and not image.mode.startswith("I")  # 16 bits are read without transparency
    return image.convert("RGBA").getchannel("A") if has_alpha else None


def _on_background(image: Image.Image, background: tuple[float, float, float]) -> Image.Image:
    """An 8-bit RGB image, composited over the background where it has transparency."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image, dtype=np.float32) / 257).round().clip(0, 255).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = np.asarray(image.convert("RGBA"), dtype=np.float32)  # (H, W, 4), straight alpha
    alpha = rgba[..., 3:] / 255
    rgb = alpha * rgba[..., :3] + (1 - alpha) * 255 * np.array(background, dtype=np.float32)
    return Image.fromarray(rgb.round().astype(np.uint8))
