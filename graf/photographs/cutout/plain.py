"""Cuts an object out of a photograph before a plain wall, whose colour may change slowly across it, as by a vignette."""

from graf.data.masks import border
from graf.photographs.cutout.segments import filled_object

import numpy as np
from scipy.ndimage import binary_propagation, gaussian_gradient_magnitude, maximum_filter
from skimage.color import rgb2lab

TRIMMED_FITS = 8
LOOSEST, TIGHTEST = 14.0, 6.0  # distance from the wall's colour in CIELAB units, at which the object begins
SPREADS = 4.0  # the same in standard deviations of the wall's own colours
PLAIN = 0.9  # share of the border that must have the wall's colour
ROUGHEST = 5.0  # standard deviation of a plain wall's colours, CIELAB units
GRAIN = 1 / 240  # of the longer side, over which a cloth's texture is smoothed before it is looked for edges
DEEPEST_SHADOW, SHADOW_TINT, SHADOW_SLOPE = 35.0, 5.0, 2.5  # lightness, chroma and lightness per pixel, CIELAB units


def cut_plain(rgb: np.ndarray) -> np.ndarray:
    """The object's pixels (H, W) in a photograph (H, W, 3) in [0, 255]. Raises ValueError where its border is not of one
    colour, or nothing stands out from it."""
    lab = rgb2lab(rgb / 255.0)
    ring = border(lab.shape[:2])
    wall, tolerance, share = _wall(lab, ring)
    if share < PLAIN:
        raise ValueError(f"its border is not of one colour: {share:.1%} of it is, {PLAIN:.0%} are needed")
    is_wall = _reached(_distance(lab, wall) < tolerance, ring)
    wall, tolerance, _ = _wall(lab, is_wall)  # of all of the wall, no longer of its border only
    near = _distance(lab, wall) < tolerance
    is_wall = _reached(near | _shadow(lab, wall), ring & near)
    return filled_object(~is_wall, holes=_distance(lab, wall) < tolerance / 2)


def _wall(lab: np.ndarray, where: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The wall's colour at every pixel (H, W, 3), fitted to the pixels `where` it may be, without those that differ; the
    distance from it at which the object begins; the share of the pixels that have it."""
    height, width = where.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=-1)
    sampled = np.flatnonzero(where)[:: max(1, where.sum() // 4000)]
    of_where, colours = terms.reshape(-1, 6)[sampled], lab.reshape(-1, 3)[sampled]
    weights = np.ones(len(sampled))
    for _ in range(TRIMMED_FITS):  # iteratively reweighted, Cauchy's weights
        fit = np.linalg.lstsq(of_where * weights[:, None], colours * weights[:, None], rcond=None)[0]
        distance = np.linalg.norm(colours - of_where @ fit, axis=1)
        spread = max(float(np.median(distance)), 0.5)
        weights = 1 / np.sqrt(1 + np.square(distance / (2 * spread)))
    tolerance = float(np.clip(SPREADS * spread, TIGHTEST, LOOSEST))
    share = float((distance < tolerance).mean()) if spread < ROUGHEST else 0.0
    return terms @ fit, tolerance, share


def _distance(lab: np.ndarray, wall: np.ndarray) -> np.ndarray:
    return np.linalg.norm(lab - wall, axis=-1)


def _shadow(lab: np.ndarray, wall: np.ndarray) -> np.ndarray:
    """Pixels that are the wall, softly shaded: darker, of its tint, without an edge."""
    grain = max(1.0, GRAIN * max(lab.shape))
    darker = wall[..., 0] - lab[..., 0]
    tint = np.linalg.norm((lab - wall)[..., 1:], axis=-1)
    slope = maximum_filter(gaussian_gradient_magnitude(lab[..., 0], grain), 3)  # on top of a thin line it is flat
    return (darker > 0) & (darker < DEEPEST_SHADOW) & (tint < SHADOW_TINT) & (slope < SHADOW_SLOPE)


def _reached(passable: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """The passable pixels that are connected to the seeds."""
    return binary_propagation(seeds & passable, mask=passable)
