"""Photographs as telephones save them are read, or their fault is told with what to do."""

import sys
from pathlib import Path

from graf.photographs import reading
from graf.photographs.reading import open_photograph, shrunk

import numpy as np
import pytest
from PIL import Image
from scenes import SIZE, mask_of, saved_again, scene

HEIC_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0"


def test_a_heic_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for name in ("a.heic", "b.jpg"):  # some are exported with another name
        (tmp_path / name).write_bytes(HEIC_HEAD + bytes(100))
        with pytest.raises(ValueError, match=r"a HEIC file, which the package pillow-heif reads: pip install .*photographs"):
            open_photograph(tmp_path / name)


def test_a_heic_is_read(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.from_pillow(scene(1)).save(tmp_path / "a.heic", quality=90)
    image = open_photograph(tmp_path / "a.heic")
    assert (image.mode, image.size) == ("RGB", SIZE)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(scene(1), dtype=int)).mean() < 4


def test_a_damaged_heic_is_told(tmp_path):
    pytest.importorskip("pillow_heif")
    (tmp_path / "a.heic").write_bytes(HEIC_HEAD + bytes(100))
    with pytest.raises(ValueError, match="cannot be read"):
        open_photograph(tmp_path / "a.heic")


def test_transparency_stays_straight(tmp_path):
    image = Image.new("RGBA", (4, 4), (200, 100, 50, 10))
    image.save(tmp_path / "a.png")
    assert open_photograph(tmp_path / "a.png").getpixel((0, 0)) == (200, 100, 50, 10)


@pytest.mark.parametrize(("orientation", "expected"), [(1, (160, 120)), (3, (160, 120)), (6, (120, 160)), (8, (120, 160))])
def test_exif_rotation_is_applied(tmp_path, orientation, expected):
    exif = Image.Exif()
    exif[0x0112] = orientation
    mask_of(1).convert("RGB").save(tmp_path / "a.jpg", exif=exif)
    assert open_photograph(tmp_path / "a.jpg").size == expected


def test_a_telephone_s_second_image_of_a_file_is_no_animation(tmp_path):
    scene(1).save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[scene(2)])
    np.testing.assert_array_equal(open_photograph(tmp_path / "a.jpg"), saved_again(scene(1), 75))


def test_a_folder_named_as_an_image_is_no_file(tmp_path):
    (tmp_path / "a.jpg").mkdir()
    with pytest.raises(ValueError, match="missing, or no file"):
        open_photograph(tmp_path / "a.jpg")


def test_only_larger_images_are_made_smaller():
    assert shrunk(Image.new("RGB", (400, 100)), 200).size == (200, 50)
    assert shrunk(Image.new("RGB", (40, 10)), 200).size == (40, 10)
    assert shrunk(Image.new("RGB", (4000, 1)), 200).size == (200, 1)


def test_what_is_not_read_is_no_photograph():
    assert not set(reading.READ) & set(reading.UNREAD)
    assert Path("a.NEF").suffix.lower() in reading.UNREAD
