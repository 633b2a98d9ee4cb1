"""Which font a text in a picture is written in: of those that matplotlib brings along, as if they alone were installed."""

from graf.pictures import fonts
from graf.pictures.captions import Captions, captioned
from graf.pictures.fonts import OWN, font_file

import pytest
import torch

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


def test_captions_in_such_a_font_are_letters_and_no_boxes():
    pictures = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    sheet, boxes = (captioned(pictures, 2, Captions("", rows=[text])) for text in (LETTER, "漢"))
    assert sheet.shape != boxes.shape or not torch.equal(sheet, boxes)
