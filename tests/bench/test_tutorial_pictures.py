"""The photographs and pictures of bench/tutorial_pictures.py."""

import tutorial_pictures
from graf.errors import GrafError

import pytest
from PIL import Image


def test_photographs_are_jpegs_of_cars_before_walls_of_their_own(tmp_path):
    tutorial_pictures.take_photographs(tmp_path / "PICTURES", 3)
    files = sorted((tmp_path / "PICTURES").iterdir())
    assert [file.name for file in files] == ["IMG_0000.jpg", "IMG_0001.jpg", "IMG_0002.jpg"]
    corners = set()
    for file in files:
        with Image.open(file) as photograph:
            corners.add(photograph.getpixel((0, 0)))
            middle, side = photograph.getpixel((128, 140)), photograph.size
        assert side == (256, 256) and max(abs(a - b) for a, b in zip(middle, photograph.getpixel((0, 0)), strict=True)) > 20
    assert len(corners) == 3
    times = [file.stat().st_mtime_ns for file in files]
    tutorial_pictures.take_photographs(tmp_path / "PICTURES", 3)
    assert [file.stat().st_mtime_ns for file in files] == times
    with pytest.raises(GrafError, match="has 3 files instead of 4 photographs"):
        tutorial_pictures.take_photographs(tmp_path / "PICTURES", 4)


def test_a_picture_is_as_wide_as_the_docs_show_it(tmp_path):
    Image.new("RGBA", (1600, 500)).save(tmp_path / "wide.png")
    Image.new("RGB", (300, 900)).save(tmp_path / "high.png")
    for name, size in (("wide", (800, 250)), ("high", (300, 900))):
        tutorial_pictures.keep(tmp_path / f"{name}.png", tmp_path / "kept.png")
        with Image.open(tmp_path / "kept.png") as kept:
            assert kept.size == size


def test_the_newest_file_is_found_or_missed_aloud(tmp_path):
    for name in ("00000100_rgb.png", "00000200_rgb.png", "00000300_depth.png"):
        (tmp_path / name).touch()
    assert tutorial_pictures.newest(tmp_path, "*_rgb.png").name == "00000200_rgb.png"
    with pytest.raises(GrafError, match="no samples/"):
        tutorial_pictures.newest(tmp_path, "samples/*_rgb.png")
