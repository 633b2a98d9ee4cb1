"""Sharpness is a share of an edge's contrast, worked out by hand; faults follow from it and from brightness and size."""

from graf.photographs.faults import sharpness, sharpness_or_fault

import numpy as np
import pytest
from PIL import Image, ImageFilter
from scenes import cut, scene


def ramp(width: int) -> np.ndarray:
    """Grey levels (64, 64) from 0 to 200 over so many pixels, and the same turned, in two halves."""
    row = np.interp(np.arange(64), [32, 32 + width], [0, 200])
    across = np.tile(row, (64, 1))
    return np.where(np.arange(64)[:, None] < 32, across, across.T).astype(np.float32)


@pytest.mark.parametrize(("width", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.125)])
def test_the_share_of_a_ramp_is_one_over_its_width(width, share):
    contrast, found = sharpness(np.tile(np.interp(np.arange(64), [30, 30 + width], [0, 200]), (64, 1)).astype(np.float32))
    assert (contrast, found) == (200, pytest.approx(share, abs=0.02))


def test_blur_along_one_axis_is_blur():
    image = scene(1, size=(256, 192)).convert("L")
    sharp = sharpness(np.asarray(image, dtype=np.float32))[1]
    shaken = sharpness(np.asarray(image.filter(ImageFilter.BoxBlur((8, 0))), dtype=np.float32))[1]
    assert sharp > 0.5
    assert shaken < 0.2


def test_a_sharp_photograph_has_no_fault_and_noise_is_no_help_to_a_blurred_one():
    assert isinstance(sharpness_or_fault(scene(1), 64), float)
    blurred = np.asarray(scene(1, size=(256, 192)).filter(ImageFilter.GaussianBlur(5)), dtype=float)
    noisy = blurred + np.random.default_rng(0).normal(0, 3, blurred.shape)
    assert sharpness_or_fault(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), 64).startswith("blurred: ")


def test_a_large_photograph_is_judged_in_the_detail_that_is_used():
    """Blur of 3 pixels of 1024 does not show in 256."""
    assert isinstance(sharpness_or_fault(scene(1, size=(1024, 768)).filter(ImageFilter.GaussianBlur(2)), 64), float)
    assert isinstance(sharpness_or_fault(scene(1, size=(256, 192)).filter(ImageFilter.GaussianBlur(3)), 64), str)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (scene(1, size=(63, 200)), "too small: 63 x 200 pixels, at least 64 per side are needed"),
        (Image.new("RGB", (99, 99), "black"), "too dark: 95% of it is below grey level 0 of 255"),
        (Image.new("RGB", (99, 99), "white"), "blank: its strongest edges span 0 grey levels of 255"),
        (Image.new("RGBA", (99, 99), (9, 9, 9, 0)), "transparent throughout"),
    ],
)
def test_faults_have_words(image, reason):
    assert sharpness_or_fault(image, 64) == reason


def test_a_black_object_that_is_cut_out_is_not_dark():
    black = Image.new("RGBA", (160, 120), "black")
    black.putalpha(cut(1).getchannel("A"))
    assert isinstance(sharpness_or_fault(black, 64), float)
    assert sharpness_or_fault(black.convert("RGB"), 64).startswith("too dark")
