"""Which font a text in a picture is written in: of those that matplotlib brings along, as if they alone were installed."""

from types import SimpleNamespace

from graf.pictures import fonts
from graf.pictures.captions import Captions, captioned
from graf.pictures.fonts import OWN, font_file

import pytest
import torch
from matplotlib.ft2font import FT2Font

BOLD, REGULAR, BOXES = (OWN.parent / f"{name}.ttf" for name in ("STIXGeneralBolIta", "STIXGeneral", "LastResortHE-Regular"))
LETTER = "ℊ"  # which STIX has and DejaVu has not


@pytest.fixture(autouse=True)
def installed(monkeypatch, tmp_path):
    (tmp_path / "damaged.ttf").write_bytes(b"no font")
    files = [str(file) for file in (tmp_path / "damaged.ttf", tmp_path / "removed.ttf", BOLD, REGULAR, BOXES)]
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: files)
    font_file.cache_clear()
    yield files
    font_file.cache_clear()


@pytest.mark.parametrize("text", ["a run", "Äpfel, Жук\nαβγ", "漢字"])  # the last of which no font here has
def test_matplotlibs_own_font_has_most_letters(text):
    assert font_file(text) == OWN


def test_other_letters_are_taken_from_an_installed_font_the_regular_one_where_it_has_as_many(installed):
    assert font_file(f"{LETTER} 1") == REGULAR
    installed.remove(str(REGULAR))
    assert font_file(f"{LETTER}  1\n") == BOLD
    assert font_file(f"سيارة {LETTER}") == OWN  # which has more of these


def test_a_font_of_pictures_in_one_size_is_passed_over(monkeypatch):
    def refuse(points, dots):
        raise RuntimeError("invalid pixel size")

    def opened(file):
        font = FT2Font(file)
        set_size = refuse if file == str(REGULAR) else font.set_size
        return SimpleNamespace(get_char_index=font.get_char_index, style_name=font.style_name, set_size=set_size)

    monkeypatch.setattr(fonts, "FT2Font", opened)
    assert font_file(LETTER) == BOLD


def test_captions_in_such_a_font_are_letters_and_no_boxes():
    pictures = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    sheet, boxes = (captioned(pictures, 2, Captions("", rows=[text])) for text in (LETTER, "漢"))
    assert sheet.shape != boxes.shape or not torch.equal(sheet, boxes)
