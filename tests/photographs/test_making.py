"""Frames of one area: by names that any file may have, and with the size that they would have had without their variation."""

import json
import logging

from graf.photographs.cropping import around, extent
from graf.photographs.making import NOTE, Options, at_one_area, longest_ratio_in, make_photograph, remove_stale
from graf.photographs.sources import Source

import pytest
from PIL import Image, ImageDraw, PngImagePlugin

NAMES = ("a.png", "na\udcffme.png", "c.png", "d.png")


@pytest.fixture
def made(tmp_path):
    """Four photographs of objects of 40 x 40 pixels, made one by one."""
    picture, file = Image.new("RGBA", (100, 100)), tmp_path / "photograph.png"
    ImageDraw.Draw(picture).rectangle((30, 30, 69, 69), (200, 30, 30, 255))
    picture.save(file)
    sources = [Source(file, name) for name in NAMES]
    return [make_photograph(source, tmp_path / f"{k}.png", Options(smallest=16), "none") for k, source in enumerate(sources)]


def test_frames_vary_with_the_names_of_photographs_and_their_noted_sides_do_not(made):
    framed = at_one_area(made, Options())
    widths = [Image.open(each.file).width for each in framed]
    assert len(set(widths)) > 1 and [each.side for each in framed] == [48] * 4  # 40 with its margin
    assert at_one_area(framed, Options()) == framed
    assert [Image.open(each.file).width for each in framed] == widths


def test_transparency_of_the_users_keeps_its_colours(tmp_path):
    picture = Image.new("RGBA", (100, 100))
    ImageDraw.Draw(picture).rectangle((20, 20, 79, 79), (0, 0, 255, 140))
    ImageDraw.Draw(picture).rectangle((30, 30, 69, 69), (255, 0, 0, 255))
    picture.save(tmp_path / "photograph.png")
    source, options = Source(tmp_path / "photograph.png", "a.png"), Options(margin=0.0, smallest=16)
    made = make_photograph(source, tmp_path / "a.png", options, "none")
    assert made.how == "kept" and Image.open(made.file).tobytes() == picture.crop((20, 20, 80, 80)).tobytes()


def test_the_size_of_a_sets_objects_is_that_of_the_pictures_that_the_tool_made(made, tmp_path):
    images = made[0].file.parent
    assert longest_ratio_in(images) == pytest.approx(1, abs=0.05)  # squares
    corrected = Image.new("RGBA", (90, 90))
    ImageDraw.Draw(corrected).rectangle((0, 40, 89, 44), (200, 30, 30, 255))
    corrected.save(images / "0.png")
    (images / "1.png").write_bytes((images / "1.png").read_bytes()[:-40])
    assert longest_ratio_in(images) == pytest.approx(1, abs=0.05)
    assert longest_ratio_in(tmp_path / "nowhere") == 0
    widths = [Image.open(each.file).width for each in at_one_area(made[2:], Options(longest_ratio=2.0))]
    assert widths == [96, 96]  # twice 40 with its margin, and without the variation


def test_what_is_too_thin_to_be_seen_keeps_its_frame(made):
    Image.new("RGBA", (60, 60), (200, 30, 30, 90)).save(made[0].file)
    framed = at_one_area(made, Options())
    assert framed[0] == made[0] and Image.open(made[0].file).size == (60, 60)
    assert extent(Image.open(framed[1].file)).area == 1600
    assert at_one_area(made[:1], Options()) == made[:1]


def test_the_object_is_whole_in_its_frame(made):
    for each in at_one_area(made, Options()):
        found = extent(Image.open(each.file))
        assert found.area == 1600 and not found.cut_off
        assert around(found, 0.1)[2] - around(found, 0.1)[0] == 48


def test_noted_sides_do_not_drift_when_frames_are_made_again(made):
    for margin in (0.3, 0.1) * 4:  # as if photographs of longer objects came and went
        made = at_one_area(made, Options(margin=margin))
    assert [each.side for each in made] == pytest.approx([48] * 4, abs=1)


def test_stale_pictures_of_older_notes_go_and_others_pictures_stay(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="graf")
    note = PngImagePlugin.PngInfo()
    note.add_text(NOTE, json.dumps({"of": [], "how": "plain", "side": 9, "cut_off": False}))  # without its place
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png", pnginfo=note)
    Image.new("RGB", (9, 9)).save(tmp_path / "b.png")
    remove_stale(tmp_path, set())
    assert [file.name for file in tmp_path.iterdir()] == ["b.png"]
    assert f"1 pictures removed from {tmp_path}, whose photographs are gone or left out now, such as a.png" in caplog.text
