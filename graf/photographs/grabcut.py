"""Cuts an object out of a busy background with GrabCut (Rother et al., SIGGRAPH 2004) of OpenCV, an optional package."""

import functools
from types import ModuleType

from graf.photographs.plain import border
from graf.photographs.reading import EXTRA
from graf.photographs.segments import filled_object

import numpy as np

ITERATIONS = 6
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
    cv2 = opencv()
    if cv2 is None:
        raise ValueError(f"GrabCut needs the package opencv-python-headless: {EXTRA}")
    height, width = rgb.shape[:2]
    y, x = np.mgrid[-0.5 : 0.5 : height * 1j, -0.5 : 0.5 : width * 1j]
    labels = np.where(np.hypot(x, y) < PRIOR, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
    labels[border((height, width))] = cv2.GC_BGD
    cv2.setRNGSeed(0)  # the same cut every time
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.grabCut(np.ascontiguousarray(rgb[..., ::-1]), labels, None, *models, ITERATIONS, cv2.GC_INIT_WITH_MASK)
    return filled_object((labels == cv2.GC_FGD) | (labels == cv2.GC_PR_FGD))
