"""Tidies the pixels that a cut-out takes for the object: no specks, no pinholes, and a soft edge."""

import numpy as np
from scipy.ndimage import binary_fill_holes, binary_opening, gaussian_filter, label

SPECK = 0.1  # of the largest piece: smaller ones are no part of the object
HOLE = 0.003  # of the frame: smaller holes are filled
SMALLEST, LARGEST = 0.005, 0.95  # share of the frame that an object covers
EDGE = 0.7  # pixels by which an edge is softened


def filled_object(mask: np.ndarray, holes: np.ndarray | None = None) -> np.ndarray:
    """The object's pixels (H, W) in a mask with specks and pinholes. Raises ValueError where it shows no object.

    holes: pixels (H, W) that may be seen through the object, as between a chair's legs; others in it are filled.
    """
    mask = binary_opening(mask, iterations=1)
    filled = _pieces(mask, lambda sizes: sizes >= SPECK * sizes.max())
    inside = binary_fill_holes(filled) & ~filled if holes is None else binary_fill_holes(filled) & holes
    through = _pieces(binary_opening(inside), lambda sizes: sizes >= HOLE * mask.size)
    found = binary_fill_holes(filled) if holes is None else binary_fill_holes(filled) & ~through
    share = found.mean()
    if share < SMALLEST:
        raise ValueError("nothing stands out from its background")
    if share > LARGEST:
        raise ValueError("its object cannot be told from its background")
    return found


def soft(mask: np.ndarray) -> np.ndarray:
    """Opacity (H, W) in [0, 1] of an object's pixels, with a soft edge."""
    return gaussian_filter(mask.astype(np.float32), EDGE)


def _pieces(mask: np.ndarray, wanted) -> np.ndarray:
    """The connected pieces of a mask whose sizes are wanted."""
    pieces, n = label(mask)
    if n == 0:
        return np.zeros_like(mask)
    keep = wanted(np.bincount(pieces.ravel())[1:])
    return np.concatenate([[False], keep])[pieces]
