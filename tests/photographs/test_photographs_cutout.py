"""Cut-outs lie on the silhouettes that the photographs were made with; what cannot be cut out says so."""

import sys

from graf.photographs.cutout import grabcut
from graf.photographs.cutout.masks import mask_pixels
from graf.photographs.cutout.plain import cut_plain
from graf.photographs.cutout.ways import cut_out, without_fringe

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter
from scenes import SIZE, busy, cut, gradient, iou, mask_of, scene


def found_in(image: Image.Image) -> np.ndarray:
    return np.asarray(image.getchannel("A")) > 127


def truth(seed: int, **options) -> np.ndarray:
    return np.asarray(mask_of(seed, **options)) > 127


@pytest.fixture
def without_opencv(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    grabcut.opencv.cache_clear()
    yield
    grabcut.opencv.cache_clear()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wall", [None, "white", (60, 90, 160), gradient()], ids=["grey", "white", "blue", "gradient"])
def test_a_plain_wall_is_cut_away(seed, wall):
    image, how = cut_out(scene(seed, wall=wall), "plain")
    assert how == "plain"
    assert iou(found_in(image), truth(seed)) > 0.95


def test_a_soft_shadow_is_wall_and_a_speck_is_no_object():
    wall = Image.new("L", SIZE, 225)
    ImageDraw.Draw(wall).ellipse((40, 70, 130, 112), 190)
    wall = wall.filter(ImageFilter.GaussianBlur(9)).convert("RGB")
    wall.paste((255, 0, 0), (5, 5, 9, 9))
    assert iou(cut_plain(np.asarray(scene(1, wall=wall))), truth(1)) > 0.93


def test_a_hole_through_the_object_is_wall_and_wall_coloured_paint_is_none_when_it_is_small():
    image = Image.new("RGB", SIZE, (225, 225, 220))
    draw = ImageDraw.Draw(image)
    draw.rectangle((40, 20, 120, 100), (120, 40, 30))
    draw.rectangle((60, 40, 90, 80), (225, 225, 220))  # as between the legs of a chair
    draw.rectangle((100, 50, 103, 53), (225, 225, 220))
    found = cut_plain(np.asarray(image))
    assert not found[60, 75]
    assert found[51, 101]
    assert found.sum() == pytest.approx(81 * 81 - 31 * 41, rel=0.03)


def test_an_object_at_the_edge_is_cut_out():
    image, how = cut_out(scene(2, shift=(50, 0)), "plain")
    assert how == "plain"
    assert iou(found_in(image), truth(2, shift=(50, 0))) > 0.9


def test_a_white_object_before_a_white_wall_is_found_or_said_to_be_none():
    """With an outline it is found; without one there is nothing to see."""
    image = Image.new("RGB", SIZE, (240, 240, 240))
    ImageDraw.Draw(image).ellipse((50, 30, 110, 90), (241, 241, 241), outline=(190, 190, 190), width=2)
    found = cut_plain(np.asarray(image))
    assert found[60, 80] and found.sum() == pytest.approx(np.pi * 30.5**2, rel=0.05)
    with pytest.raises(ValueError, match="nothing stands out from its background"):
        cut_plain(np.full((120, 160, 3), 240, dtype=np.uint8))


def test_a_busy_wall_is_not_plain():
    with pytest.raises(ValueError, match=r"its border is not of one colour: [\d.]+% of it is, 90% are needed"):
        cut_out(scene(1, wall=busy(1)), "plain")


@pytest.mark.parametrize("seed", range(3))
def test_grabcut_finds_an_object_before_a_busy_wall(seed):
    pytest.importorskip("cv2")
    image, how = cut_out(scene(seed, wall=busy(seed)), "auto")
    assert how == "grabcut"
    assert iou(found_in(image), truth(seed)) > 0.8


@pytest.mark.parametrize("seed", range(3))
def test_a_plain_wall_s_cut_is_refined_where_opencv_is(seed):
    pytest.importorskip("cv2")
    image, how = cut_out(scene(seed), "auto")
    assert how == "refined"
    assert iou(found_in(image), truth(seed)) > 0.97


def test_grabcut_cuts_the_same_twice():
    pytest.importorskip("cv2")
    first, second = (cut_out(scene(1, wall=busy(1)), "grabcut").image for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_edge_of_a_table_is_no_object():
    """It reaches the frame, and the object does not."""
    wall = Image.new("RGB", SIZE, (225, 225, 220))
    ImageDraw.Draw(wall).polygon([(60, 0), (160, 0), (160, 12)], (120, 120, 160))
    image = wall.copy()
    image.paste(scene(1), (0, 0), mask_of(1))
    with pytest.raises(ValueError, match="its border is not of one colour"):
        cut_plain(np.asarray(image))
    ImageDraw.Draw(wall).polygon([(60, 0), (160, 0), (160, 12)], (225, 225, 220))
    ImageDraw.Draw(wall).rectangle((0, 0, 35, 9), (120, 120, 160))
    wall.paste(scene(1), (0, 0), mask_of(1))
    assert iou(cut_plain(np.asarray(wall)), truth(1)) > 0.95


def test_without_opencv_a_busy_wall_stays_and_grabcut_names_the_extra(without_opencv):
    image, how = cut_out(scene(1, wall=busy(1)), "auto")
    assert (image.mode, how) == ("RGB", "none")
    assert cut_out(scene(1), "auto").how == "plain"
    with pytest.raises(ValueError, match=r"opencv-python-headless: pip install .*photographs"):
        cut_out(scene(1), "grabcut")


@pytest.mark.parametrize("way", ["auto", "plain", "grabcut", "none"])
def test_transparency_is_kept_as_it_is(way):
    image, how = cut_out(cut(1), way)
    assert how == "kept"
    np.testing.assert_array_equal(image, cut(1))


def test_transparency_that_is_opaque_throughout_is_none():
    assert cut_out(scene(1).convert("RGBA"), "plain").how == "plain"
    assert cut_out(scene(1).convert("RGBA"), "none").image.mode == "RGB"


def test_masks_alone_need_a_mask():
    with pytest.raises(ValueError, match="there is no mask for it"):
        cut_out(cut(1), "masks")


@pytest.mark.parametrize("negative", [False, True])
def test_a_mask_shows_the_same_object_as_its_negative(tmp_path, negative):
    object_ = np.zeros((40, 30), dtype=bool)
    object_[10:30, 8:20] = True
    Image.fromarray((255 * (object_ ^ negative)).astype(np.uint8)).save(tmp_path / "mask.png")
    opacity, was_negative = mask_pixels(tmp_path / "mask.png", (30, 40))
    assert np.array_equal(opacity, object_) and was_negative == negative


def test_half_transparent_pixels_get_the_colour_of_the_object():
    image = Image.new("RGBA", (5, 1), (255, 255, 255, 0))
    for x, pixel in enumerate([(200, 0, 0, 255), (227, 120, 120, 128)]):
        image.putpixel((x, 0), pixel)
    assert [without_fringe(image).getpixel((x, 0)) for x in range(3)] == [(200, 0, 0, 255), (200, 0, 0, 128), (200, 0, 0, 0)]
