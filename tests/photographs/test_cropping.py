"""Crops are arithmetic of boxes."""

from graf.photographs.cropping import around, centre_square, cropped, extent

import pytest
from PIL import Image, ImageDraw


def with_box(box, size=(100, 60)) -> Image.Image:
    image = Image.new("RGBA", size)
    ImageDraw.Draw(image).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), (255, 0, 0, 255))
    return image


def test_the_extent_is_the_box_of_what_is_opaque():
    assert extent(with_box((10, 20, 41, 55))) == ((10, 20, 41, 55), False)
    with pytest.raises(ValueError, match="nothing of it is opaque"):
        extent(Image.new("RGBA", (9, 9), (1, 1, 1, 127)))


@pytest.mark.parametrize("box", [(0, 20, 30, 40), (70, 20, 100, 40), (40, 0, 60, 30), (40, 30, 60, 60)])
def test_an_object_along_an_edge_is_cut_off(box):
    assert extent(with_box(box)).cut_off


def test_the_square_around_an_object_has_its_margin_and_its_middle():
    assert around((10, 20, 50, 40), 0.1) == (6, 6, 54, 54)  # 40 * 1.2 = 48 around (30, 30)
    assert around((0, 0, 10, 10), 0.5) == (-5, -5, 15, 15)
    assert around((0, 0, 10, 10), 0.0, widest=2.0) == (-5, -5, 15, 15)  # as high as a box of 20 x 10 in its square
    assert around((0, 0, 40, 10), 0.0, widest=2.0) == (0, -15, 40, 25)  # wider than that


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
