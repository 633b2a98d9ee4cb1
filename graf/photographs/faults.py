"""Finds photographs that are unfit to learn from: too few pixels, too dark, blank or blurred."""

from graf.photographs.reading import luminance, shrunk

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

JUDGED = 256  # pixels of the longer side at which sharpness is judged: what is blurred in finer detail does not matter
DARK = 50  # grey level that the brightest pixels of a photograph exceed
BRIGHTEST = 95  # percent of the pixels that are darker than these
BLANK = 12  # grey levels between which the strongest edges of a blank photograph lie
BLURRED = 0.2  # share of an edge's contrast between neighbouring pixels
REACH = 4  # pixels to either side of an edge
MINOR = 0.25  # of the contrast along the other axis: with less, edges along this one say nothing
STRONGEST = 0.01  # share of the pixels that are the strongest edges


def sharpness_or_fault(image: Image.Image, smallest: int) -> float | str:
    """How sharp a photograph is, by `sharpness`, or why it is left out, in words.

    smallest: pixels that its shorter side must have.
    """
    width, height = image.size
    if min(width, height) < smallest:
        return f"too small: {width} x {height} pixels, at least {smallest} per side are needed"
    if image.mode == "RGBA" and not np.asarray(image.getchannel("A")).any():
        return "transparent throughout"
    small = shrunk(image, JUDGED)
    grey = luminance(small)
    level = float(np.percentile(grey, BRIGHTEST))
    if level < DARK and small.mode != "RGBA":  # a black object that is cut out is no dark photograph
        return f"too dark: {BRIGHTEST}% of it is below grey level {level:.0f} of 255"
    contrast, sharp = sharpness(grey)
    if contrast < BLANK:
        return f"blank: its strongest edges span {contrast:.0f} grey levels of 255"
    if sharp < BLURRED:
        return f"blurred: neighbouring pixels have {sharp:.0%} of an edge's contrast, {BLURRED:.0%} are needed"
    return sharp


def sharpness(grey: np.ndarray) -> tuple[float, float]:
    """How sharp the strongest edges of grey levels (H, W) are: their contrast in levels, and the share of it that two
    neighbouring pixels have, 1 for a step and 1 / (2 REACH) for a ramp.

    Edges across rows and across columns are judged separately, and the lower share counts: motion blurs one of them.
    """
    found = [_edges(along) for along in (grey, grey.T)]
    contrast = max(contrast for contrast, _ in found)
    shares = [share for strength, share in found if strength > MINOR * contrast]
    return contrast, min(shares, default=0.0)


def _edges(grey: np.ndarray) -> tuple[float, float]:
    """The median contrast across 2 REACH pixels of the strongest edges along the first axis, and its median steepest share."""
    if len(grey) <= 2 * REACH:
        return 0.0, 0.0
    contrast = np.abs(grey[2 * REACH :] - grey[: -2 * REACH])  # (H - 2 REACH, W)
    steps = sliding_window_view(np.abs(np.diff(grey, axis=0)), 2 * REACH, axis=0).max(-1)  # likewise
    n = max(1, int(STRONGEST * contrast.size))
    strongest = np.argpartition(contrast.ravel(), -n)[-n:]
    contrast, steps = contrast.ravel()[strongest], steps.ravel()[strongest]
    return float(np.median(contrast)), float(np.median(steps / np.maximum(contrast, 1)))
