"""Cuts an object out of a busy background with GrabCut (Rother et al., SIGGRAPH 2004) of OpenCV, an optional package."""

import functools
from types import ModuleType

from graf.data.masks import border
from graf.photographs.cutout.segments import filled_object
from graf.photographs.reading import EXTRA

import numpy as np
from scipy.ndimage import binary_dilation

ITERATIONS, REFINING_ITERATIONS = 6, 3
REACH = 0.03  # of the longer side, by which a refined object may grow
PRIOR = 0.18  # half axes of the ellipse in which the object is expected, in units of the sides


@functools.cache
def opencv() -> ModuleType | None:
    """OpenCV, or None where it is not installed."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def cut_grabcut(rgb: np.ndarray) -> np.ndarray:
    """The object's pixels (H, W) in a photograph (H, W, 3) in [0, 255]. Raises ValueError where it shows no object, or where
    OpenCV is missing."""
    height, width = rgb.shape[:2]
    y, x = np.mgrid[-0.5 : 0.5 : height * 1j, -0.5 : 0.5 : width * 1j]
    return _grabcut(rgb, probable=np.hypot(x, y) < PRIOR, possible=~border((height, width)), iterations=ITERATIONS)


def refined(rgb: np.ndarray, found: np.ndarray) -> np.ndarray:
    """The object's pixels (H, W) that were found otherwise, without its shadow and with a truer edge.

    Raises ValueError as `cut_grabcut` does.
    """
    reach = max(3, round(REACH * max(found.shape)))
    return _grabcut(rgb, found, binary_dilation(found, iterations=reach), REFINING_ITERATIONS)


def _grabcut(rgb: np.ndarray, probable: np.ndarray, possible: np.ndarray, iterations: int) -> np.ndarray:
    """The object among the possible pixels (H, W), of which those that are probable make the first model of its colours."""
    cv2 = opencv()
    if cv2 is None:
        raise ValueError(f"GrabCut needs the package opencv-python-headless: {EXTRA}")
    labels = np.select([probable & possible, possible], [cv2.GC_PR_FGD, cv2.GC_PR_BGD], cv2.GC_BGD).astype(np.uint8)
    if not np.isin(labels, (cv2.GC_BGD, cv2.GC_PR_BGD)).any():
        raise ValueError("its object cannot be told from its background")
    cv2.setRNGSeed(0)  # the same cut every time
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.grabCut(np.ascontiguousarray(rgb[..., ::-1]), labels, None, *models, iterations, cv2.GC_INIT_WITH_MASK)
    return filled_object(np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)))
