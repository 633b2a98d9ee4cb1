"""Photographs for tests: an object of two colours before a wall, all of it drawn from a seed."""

import io

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIZE = (160, 120)  # width and height


def mask_of(seed: int, size=SIZE, shift=(0, 0)) -> Image.Image:
    """The object's silhouette: an ellipse near the middle, of its own size."""
    rng = np.random.default_rng(seed)
    width, height = size
    x, y = width / 2 + shift[0], height / 2 + shift[1]
    a, b = width * rng.uniform(0.18, 0.3), height * rng.uniform(0.2, 0.32)
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).ellipse((x - a, y - b, x + a, y + b), 255)
    return mask


def scene(seed: int, size=SIZE, shift=(0, 0), wall=None, colours=None) -> Image.Image:
    """A photograph, RGB. wall: a colour or an image; colours: the object's two, at random by default."""
    rng = np.random.default_rng(seed)
    first, second = colours or [tuple(map(int, rng.integers(0, 140, 3))) for _ in range(2)]
    page = wall.resize(size) if isinstance(wall, Image.Image) else Image.new("RGB", size, wall or (225, 225, 220))
    body = Image.new("RGB", size, first)
    stripes = ImageDraw.Draw(body)
    step, start = int(rng.integers(8, 24)), int(rng.integers(0, 8))
    for x in range(start, size[0], 2 * step):
        stripes.rectangle((x, 0, x + step // 2, size[1]), second)
    page.paste(body, (0, 0), mask_of(seed, size, shift))
    return page


def cut(seed: int) -> Image.Image:
    """The same, RGBA, transparent around the object."""
    image = scene(seed)
    image.putalpha(mask_of(seed))
    return image


def gradient(size=SIZE) -> Image.Image:
    """A wall with a gradient and a vignette."""
    y, x = np.mgrid[-1 : 1 : size[1] * 1j, -1 : 1 : size[0] * 1j]
    light = 200 + 25 * x - 10 * y - 20 * (x * x + y * y)
    return Image.fromarray(np.dstack([light, light - 5, light - 15]).clip(0, 255).astype(np.uint8))


def busy(seed: int, size=SIZE) -> Image.Image:
    """A wall of bright patches in all colours."""
    rng = np.random.default_rng(seed)
    patches = Image.fromarray(rng.integers(120, 256, (12, 16, 3), dtype=np.uint8))
    return patches.resize(size, Image.Resampling.NEAREST).filter(ImageFilter.GaussianBlur(1))


def iou(one: np.ndarray, other: np.ndarray) -> float:
    return float((one & other).sum() / (one | other).sum())


def saved_again(image: Image.Image, quality: int) -> Image.Image:
    """The image after JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)
