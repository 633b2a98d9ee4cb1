"""Tidies the pixels that a cut-out takes for the object: no specks, no pinholes, and a soft edge."""

from collections.abc import Callable

import numpy as np
from scipy.ndimage import binary_fill_holes, binary_opening, gaussian_filter, label

SPECK = 0.1  # of the largest piece: smaller ones are no part of the object
FREE = 0.25  # of the largest piece: a piece of such a size that does not reach the frame is the object
HOLE = 0.003  # of the frame: smaller holes are filled
OUTLINE = 0.7  # of the object: with more of it seen through, it is an outline
SMALLEST, LARGEST = 0.005, 0.95  # share of the frame that an object covers
EDGE = 0.7  # pixels by which an edge is softened


def filled_object(mask: np.ndarray, holes: np.ndarray | None = None) -> np.ndarray:
    """The object's pixels (H, W) in a mask with specks and pinholes. Raises ValueError where it shows no object.

    holes: pixels (H, W) that may be seen through the object, as between the legs of a chair; by default those that the mask
    leaves out.
    """
    solid = binary_fill_holes(_pieces(_off_the_frame(binary_opening(mask)), lambda sizes: sizes >= SPECK * sizes.max()))
    seen_through = binary_opening(solid & (~mask if holes is None else holes))
    seen_through = _pieces(seen_through, lambda sizes: sizes >= HOLE * mask.size)
    is_outline = seen_through.sum() > OUTLINE * solid.sum()  # of an object of the wall's colour
    found = solid if is_outline else solid & ~seen_through
    if found.mean() < SMALLEST:
        raise ValueError("nothing stands out from its background")
    if found.mean() > LARGEST:
        raise ValueError("its object cannot be told from its background")
    return found


def soft(mask: np.ndarray) -> np.ndarray:
    """Opacity (H, W) in [0, 1] of an object's pixels, with a soft edge."""
    return gaussian_filter(mask.astype(np.float32), EDGE)


def _off_the_frame(mask: np.ndarray) -> np.ndarray:
    """A mask without the pieces that reach the frame, such as the edge of a table, where another may be the object."""
    pieces, n = label(mask)
    sizes = np.bincount(pieces.ravel(), minlength=n + 1)
    at_frame = np.unique(np.concatenate([pieces[0], pieces[-1], pieces[:, 0], pieces[:, -1]]))
    free = np.setdiff1d(np.arange(1, n + 1), at_frame)
    if not len(free) or sizes[free].max() < FREE * sizes[1:].max():
        return mask
    return np.isin(pieces, free)


def _pieces(mask: np.ndarray, wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The connected pieces of a mask whose sizes in pixels are wanted."""
    pieces, n = label(mask)
    if n == 0:
        return np.zeros_like(mask)
    keep = wanted(np.bincount(pieces.ravel())[1:])
    return np.concatenate([[False], keep])[pieces]
