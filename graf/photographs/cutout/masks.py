"""The opacity that a mask of the user's gives a photograph, also where it is a negative."""

from pathlib import Path

from graf.data.decoding import mask_opacity
from graf.data.masks import is_negative

import numpy as np

LEAST = 0.001  # share of the frame


def mask_pixels(file: Path, size: tuple[int, int]) -> tuple[np.ndarray, bool]:
    """The opacity (H, W) in [0, 1] that a mask gives a photograph of `size` (width, height), and whether it was a negative.

    Raises ValueError with what is wrong with the mask.
    """
    opacity = np.asarray(mask_opacity(file, size), dtype=np.float32) / 255
    seen = opacity > 0.5
    if seen.mean() < LEAST:
        raise ValueError(f"its mask shows no object: all of {file.name} is black")
    if seen.mean() > 1 - LEAST:
        raise ValueError(f"its mask shows no background: all of {file.name} is white")
    negative = is_negative(seen)
    return (1 - opacity if negative else opacity), negative
