"""Which font a text in a picture is written in: the names of classes, files and runs may be in any script."""

import contextlib
import functools
from pathlib import Path

import matplotlib
from matplotlib.font_manager import findSystemFonts
from matplotlib.ft2font import FT2Font

OWN = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"  # matplotlib's: Latin, Greek, Cyrillic, Arabic
BOXES = "LastResort"  # macOS's font of boxes, which has one for each letter


@functools.cache
def font_file(text: str) -> Path:
    """matplotlib's own font where it has all letters of a text; else, of the fonts installed on this machine, the one that has
    the most. What it has not is written as boxes."""
    letters = set(map(ord, text)) - {ord("\n")}

    def fitness(file: Path) -> tuple[int, bool, bool]:
        with contextlib.suppress(OSError, RuntimeError):  # a damaged font, one of pictures, or in a format that is not read
            font = FT2Font(str(file))
            font.set_size(12, 72)
            return sum(map(bool, map(font.get_char_index, letters))), file == OWN, font.style_name == "Regular"
        return 0, False, False

    if fitness(OWN)[0] == len(letters):
        return OWN
    installed = sorted(map(Path, findSystemFonts()))
    return max([OWN, *(file for file in installed if BOXES not in file.name)], key=fitness)
