"""Crops are arithmetic of boxes."""

from graf.photographs.cropping import PLACE_SPREAD, SIZE_SPREAD, Extent, around, centre_square, cropped, extent, unevenly

import numpy as np
import pytest
from PIL import Image, ImageDraw


def with_box(box, size=(100, 60)) -> Image.Image:
    image = Image.new("RGBA", size)
    ImageDraw.Draw(image).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), (255, 0, 0, 255))
    return image


def of(box, area) -> Extent:
    return Extent(box, area, cut_off=False)


def test_the_extent_is_the_box_and_the_area_of_what_is_opaque():
    assert extent(with_box((10, 20, 41, 55))) == ((10, 20, 41, 55), 31 * 35, False)
    with pytest.raises(ValueError, match="nothing of it is opaque"):
        extent(Image.new("RGBA", (9, 9), (1, 1, 1, 127)))


@pytest.mark.parametrize("box", [(0, 20, 30, 40), (70, 20, 100, 40), (40, 0, 60, 30), (40, 30, 60, 60)])
def test_an_object_along_an_edge_is_cut_off(box):
    assert extent(with_box(box)).cut_off


def test_the_square_around_an_object_has_its_margin_and_its_middle():
    assert around(of((10, 20, 50, 40), 1), 0.1) == (6, 6, 54, 54)  # 40 * 1.2 = 48 around (30, 30)
    assert around(of((0, 0, 10, 10), 1), 0.5) == (-5, -5, 15, 15)


def test_objects_have_their_area_in_the_square_unless_they_are_longer():
    assert around(of((0, 0, 10, 10), 100), 0.0, longest_ratio=2.0) == (-5, -5, 15, 15)
    assert around(of((0, 0, 5, 20), 100), 0.0, longest_ratio=2.0) == (-8, 0, 12, 20)
    assert around(of((0, 0, 10, 10), 64), 0.0, longest_ratio=2.0) == (-3, -3, 13, 13)  # not all of the box is opaque
    assert around(of((0, 0, 40, 10), 100), 0.0, longest_ratio=2.0) == (0, -15, 40, 25)


def test_uneven_frames_vary_in_size_and_place():
    found, square, rng = of((200, 210, 210, 220), 1), (100, 110, 300, 310), np.random.default_rng(0)
    frames = np.array([unevenly(square, found, 0.1, rng) for _ in range(2000)])
    sides = frames[:, 2] - frames[:, 0]
    assert (sides == frames[:, 3] - frames[:, 1]).all()
    assert np.log(sides / 200).std() == pytest.approx(SIZE_SPREAD, rel=0.1)
    places = ((frames[:, :2] + frames[:, 2:]) / 2 - (200, 210)) / sides[:, None]
    assert places.std(0) == pytest.approx(PLACE_SPREAD, rel=0.1) and abs(places.mean(0)).max() < 0.1 * PLACE_SPREAD


def test_uneven_frames_hold_the_object_and_a_third_of_its_margin():
    found, rng = of((10, 20, 70, 40), 1), np.random.default_rng(0)
    frames = np.array([unevenly(around(found, 0.1), found, 0.1, rng) for _ in range(200)])
    assert (frames <= (8, 18, 200, 200)).all() and (frames >= (-99, -99, 72, 42)).all()
    assert (frames[:, 0] == 8).any() and (frames[:, 2] == 72).any()


def test_beyond_the_frame_a_crop_is_transparent():
    image = cropped(with_box((0, 0, 10, 10)), (-5, -5, 15, 15), 512)
    assert image.size == (20, 20)
    assert image.getpixel((0, 0))[3] == 0
    assert image.getpixel((5, 5)) == (255, 0, 0, 255)


def test_only_larger_crops_are_made_smaller():
    assert cropped(with_box((0, 0, 9, 9)), (0, 0, 60, 60), 30).size == (30, 30)
    assert cropped(with_box((0, 0, 9, 9)), (0, 0, 100, 60), 50).size == (50, 30)
    assert cropped(with_box((0, 0, 9, 9)), (0, 0, 60, 60), 600).size == (60, 60)


def test_the_centre_square():
    assert centre_square((100, 60)) == (20, 0, 80, 60)
    assert centre_square((60, 100)) == (0, 20, 60, 80)
