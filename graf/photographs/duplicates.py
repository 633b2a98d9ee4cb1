"""Finds photographs that show the same as another: the same pixels, saved again, made smaller, or cropped a little."""

from dataclasses import dataclass, field

from graf.photographs.reading import shrunk

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates

SIDE = 48  # pixels of what is compared
BLOCK = 8  # pixels of the blocks whose largest difference counts, so that another object before the same wall is told apart
COARSE = 8  # pixels of what is compared first
FAR = 45  # root mean square levels of coarse pixels, above which two photographs are different
NEAR = 18  # levels of the block that differs most, below which they are the same
COMPARED = 6  # photographs nearest by coarse pixels, which are aligned
STEPS, BLUR = 12, 1.5
LARGEST_CHANGE = 0.2  # of scale, and of position in half sides, by a crop


@dataclass
class Look:
    """The thumbnails that photographs are compared by: pixels (SIDE, SIDE, 3) in [0, 255] before grey, and the coarse ones."""

    pixels: np.ndarray
    coarse: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        n = SIDE // COARSE
        self.coarse = self.pixels.reshape(COARSE, n, COARSE, n, 3).mean((1, 3)).ravel()


def look_of(image: Image.Image) -> Look:
    """The thumbnails of an image, RGB or RGBA; made square, as a crop changes its shape."""
    small = shrunk(image, 4 * SIDE)
    if small.mode == "RGBA":
        small = Image.alpha_composite(Image.new("RGBA", small.size, "grey"), small)
    square = small.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return Look(np.asarray(square, dtype=np.float32))


def duplicates(looks: dict[str, Look]) -> dict[str, str]:
    """Each photograph that shows the same as an earlier, better one, with that one. looks: by name, best first."""
    kept: list[str] = []
    coarse = np.empty((len(looks), 3 * COARSE**2), dtype=np.float32)
    found = {}
    for name, look in looks.items():
        distances = np.sqrt(np.square(coarse[: len(kept)] - look.coarse).mean(1))
        nearest = [i for i in np.argsort(distances)[:COMPARED] if distances[i] < FAR]
        same = next((kept[i] for i in nearest if difference(look, looks[kept[i]]) < NEAR), None)
        if same is None:
            coarse[len(kept)] = look.coarse
            kept.append(name)
        else:
            found[name] = same
    return found


def difference(one: Look, other: Look) -> float:
    """Root mean square levels by which the most different block of two photographs differs, as they are or once aligned."""
    as_they_are = _largest(np.square(one.pixels - other.pixels).mean(-1), np.ones((SIDE, SIDE), dtype=bool))
    if as_they_are < NEAR:
        return as_they_are
    x, y = _aligned(one.pixels.mean(-1), other.pixels.mean(-1))
    inside = (np.abs(x) <= 1) & (np.abs(y) <= 1)
    moved = np.stack([_at(other.pixels[..., channel], x, y) for channel in range(3)], axis=-1)
    return min(as_they_are, _largest(np.square(one.pixels - moved).mean(-1), inside))


def _aligned(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places in `other` of the pixels of `one`, (SIDE, SIDE) each in [-1, 1], by a scale and a shift along both axes.

    Gauss-Newton on blurred grey levels, as Lucas and Kanade align images (IJCAI 1981).
    """
    one, other = gaussian_filter(one, BLUR), gaussian_filter(other, BLUR)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    slope_y, slope_x = (slope * (SIDE - 1) / 2 for slope in np.gradient(other))
    change = np.zeros(4)  # of the scale along x, position along x, scale along y, position along y
    for _ in range(STEPS):
        to_x, to_y = (1 + change[0]) * x + change[1], (1 + change[2]) * y + change[3]
        inside = (np.abs(to_x) <= 1) & (np.abs(to_y) <= 1)
        at_x, at_y = _at(slope_x, to_x, to_y), _at(slope_y, to_x, to_y)
        jacobian = np.stack([at_x * x, at_x, at_y * y, at_y], axis=-1)[inside]  # (N, 4)
        step = np.linalg.lstsq(jacobian, (one - _at(other, to_x, to_y))[inside], rcond=None)[0]
        change = np.clip(change + step, -LARGEST_CHANGE, LARGEST_CHANGE)
    return (1 + change[0]) * x + change[1], (1 + change[2]) * y + change[3]


def _at(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """An image (SIDE, SIDE) at positions in [-1, 1]."""
    return map_coordinates(image, [(y + 1) * (SIDE - 1) / 2, (x + 1) * (SIDE - 1) / 2], order=1, mode="nearest")


def _largest(squares: np.ndarray, inside: np.ndarray) -> float:
    """The root of the largest mean square of a block (BLOCK pixels a side) that lies half inside."""
    n = SIDE // BLOCK
    counts = inside.reshape(n, BLOCK, n, BLOCK).sum((1, 3))
    sums = (squares * inside).reshape(n, BLOCK, n, BLOCK).sum((1, 3))
    enough = counts >= BLOCK**2 / 2
    return float(np.sqrt((sums[enough] / counts[enough]).max()))
