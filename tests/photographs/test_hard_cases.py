"""Thirty-odd files as they lie in a telephone's folder: each is kept or left out for its own reason, and none is changed."""

import csv
import hashlib
import re
from pathlib import Path

from graf.config import load_config
from graf.photographs.cropping import PLACE_SPREAD

import numpy as np
import pytest
from command_line import call
from PIL import Image, ImageFilter
from scenes import SIZE, busy, cut, gradient, mask_of, saved_again, scene

KEPT = None
ROTATED = 6  # EXIF: to be turned by 90 degrees clockwise


def exif_rotated(file):
    exif = Image.Exif()
    exif[0x0112] = ROTATED
    scene(26).save(file, exif=exif)


def sixteen_bits(file):
    grey = np.asarray(scene(3).convert("L"), dtype=np.uint16) * 257
    Image.fromarray(grey).save(file)


def palette_with_transparency(file):
    cut(4).quantize(32).save(file)


def animated(file):
    scene(7).save(file, save_all=True, append_images=[scene(8)], duration=100)


def cut_short(file):
    scene(9, size=(400, 300)).save(file)
    file.write_bytes(file.read_bytes()[:2000])


def huge(file):
    Image.new("L", (9000, 9000)).save(file)


def wall_and_object_white(file):
    scene(20, colours=[(247, 246, 244), (238, 237, 235)], wall=(246, 245, 243)).save(file)


def mask_beside(file, mask):
    scene(int(re.sub(r"\D", "", file.stem))).save(file)
    mask.save(file.with_name(f"{file.stem}_mask.png"))


MADE = {  # file: (what makes it, why it is left out)
    "exif.jpg": (exif_rotated, KEPT),
    "cmyk.jpg": (lambda file: scene(2).convert("CMYK").save(file), KEPT),
    "sixteen.png": (sixteen_bits, KEPT),
    "palette.png": (palette_with_transparency, KEPT),
    "grey.jpg": (lambda file: scene(5).convert("L").save(file), KEPT),
    "tiny.jpg": (lambda file: scene(6, size=(40, 30)).save(file), r"too small: 40 x 30 pixels"),
    "animated.gif": (animated, r"an animation"),
    "short.jpg": (cut_short, r"cannot be read \(image file is truncated"),
    "empty.jpg": (lambda file: file.touch(), r"cannot be read \(not an image"),
    "text.jpg": (lambda file: file.write_text("no photograph"), r"cannot be read \(not an image"),
    "huge.png": (huge, r"cannot be read \(9000 x 9000 pixels, more than"),
    "raw.dng": (lambda file: file.write_bytes(b"II*\0"), r"dng files are not read; export"),
    "nowhere.jpg": (lambda file: file.symlink_to("gone.jpg"), r"a link to nothing"),
    "black.jpg": (lambda file: Image.new("RGB", SIZE, (3, 3, 5)).save(file), r"too dark: 95% of it is below grey level 3"),
    "night.jpg": (lambda file: scene(10).point(lambda level: level // 8).save(file), r"too dark"),
    "wall.jpg": (lambda file: gradient().resize(SIZE).save(file), r"blank: .* grey levels|blurred"),
    "blurred.jpg": (lambda file: scene(11).filter(ImageFilter.GaussianBlur(5)).save(file), r"blurred: neighbouring pixels"),
    "shaken.jpg": (lambda file: scene(12, size=(320, 240)).filter(ImageFilter.BoxBlur((8, 0))).save(file), r"blurred"),
    "original.png": (lambda file: scene(13).save(file), KEPT),
    "original copy.png": (lambda file: scene(13).save(file), r"shows the same as original"),
    "original small.png": (lambda file: scene(13).resize((120, 90)).save(file), r"shows the same as original"),
    "original saved again.jpg": (lambda file: saved_again(scene(13), 40).save(file), r"shows the same as original"),
    "original cropped.png": (lambda file: scene(13).crop((6, 4, 156, 117)).save(file), r"shows the same as original"),
    "repainted.png": (lambda file: scene(13, colours=[(160, 30, 30), (20, 20, 120)]).save(file), KEPT),
    "café ☕.jpg": (lambda file: scene(14).save(file), KEPT),
    "two\nlines.png": (lambda file: scene(15).save(file), KEPT),
    "twin.jpg": (lambda file: scene(16).save(file), KEPT),
    "twin.png": (lambda file: scene(17).save(file), KEPT),
    "edge.png": (lambda file: scene(18, shift=(50, 0)).save(file), KEPT),
    "gradient.png": (lambda file: scene(19, wall=gradient()).save(file), KEPT),
    "white.png": (wall_and_object_white, r"blank: |nothing stands out"),
    "busy.png": (lambda file: scene(21, wall=busy(21)).save(file), r"its border is not of one colour"),
    "cut.png": (lambda file: cut(22).save(file), KEPT),
    "opaque.png": (lambda file: scene(23).convert("RGBA").save(file), KEPT),
    "gone.png": (lambda file: Image.new("RGBA", SIZE).save(file), r"transparent throughout"),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder, what lies in it by its hash, the output folder, and what was printed."""
    root, out = tmp_path_factory.mktemp("telephone"), tmp_path_factory.mktemp("made") / "set"
    for name, (make, _) in MADE.items():
        make(root / name)
    before = hashes(root)
    printed = call("tools/prepare_photos.py", str(root), str(out), "--cut", "plain", cwd=root.parent)
    return root, before, out, printed


def hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.exists()}


def reasons(out: Path) -> dict[str, str]:
    with open(out / "left_out.csv", newline="", encoding="utf-8") as file:
        return {row["file"]: row["reason"] for row in csv.DictReader(file)}


def test_there_are_thirty():
    assert len(MADE) >= 30


@pytest.mark.parametrize("name", MADE)
def test_it_is_kept_or_left_out_for_its_reason(name, prepared):
    found, expected = reasons(prepared[2]).get(name), MADE[name][1]
    assert found is None if expected is None else re.search(expected, found), found


def test_each_is_a_png_or_has_a_reason(prepared):
    _, _, out, printed = prepared
    pictures = list((out / "images").glob("*.png"))
    assert len(pictures) + len(reasons(out)) == len(MADE)
    assert f"{len(MADE)} photographs found; {len(pictures)} kept, {len(reasons(out))} left out" in printed


def test_nothing_is_changed(prepared):
    root, before, _, _ = prepared
    assert hashes(root) == before
    assert {file.name for file in root.iterdir()} == set(MADE)


def test_names_that_are_the_same_or_not_printable_are_told_apart(prepared):
    _, _, out, printed = prepared
    names = {file.name for file in (out / "images").iterdir()}
    assert {"twin.png", "twin_png.png", "two_lines.png", "café ☕.png"} <= names
    assert "was taken or not printable: 2, such as" in printed


def test_all_are_rgba_squares_with_the_object_in_the_middle(prepared):
    for file in (prepared[2] / "images").iterdir():
        image = Image.open(file)
        assert image.mode == "RGBA", file
        assert image.width == image.height >= 64
        if file.name == "edge.png":
            continue
        rows, columns = np.nonzero(np.asarray(image)[..., 3] > 127)
        for places in (rows, columns):
            assert abs((places.min() + places.max() + 1) / image.width - 1) < 0.06 + 6 * PLACE_SPREAD, file


def test_a_photograph_stands_upright(prepared):
    image = np.asarray(Image.open(prepared[2] / "images" / "exif.png"))[..., 3] > 127
    higher = np.ptp(np.nonzero(image)[0]) - np.ptp(np.nonzero(image)[1])
    assert higher > 10  # the ellipse is wide; turned, it is high


def test_an_object_that_the_frame_cuts_off_is_told(prepared):
    assert "objects that the frame of their photograph cuts off: 1, such as edge.png" in prepared[3]


def test_the_config_is_loaded_and_can_be_trained_on(prepared):
    root, _, out, printed = prepared
    config = load_config(out / "config.yaml")
    assert (config.data.type, config.data.alpha, config.data.labels, config.expname) == ("images", "rgba", "none", "set")
    assert config.data.imsize == 64
    printed = call("tools/validate_data.py", "--config", str(out / "config.yaml"), "--out", str(root.parent), cwd=root.parent)
    assert "no faults" in printed


def test_the_sheet_shows_photographs_beside_what_was_made(prepared):
    assert Image.open(prepared[2] / "before_after.png").width > 8 * 128


MASKS = {  # file: (mask, why the photograph is left out)
    "m30.png": (mask_of(30), KEPT),
    "m31.png": (mask_of(31).resize((80, 60)), KEPT),
    "m32.png": (mask_of(32).point(lambda level: 255 - level), KEPT),
    "m33.png": (Image.new("L", SIZE), r"its mask shows no object: all of m33_mask.png is black"),
    "m34.png": (Image.new("L", SIZE, 255), r"its mask shows no background: all of m34_mask.png is white"),
    "m35.png": (
        mask_of(35).resize((100, 120)),
        r"its mask cannot be used: in/m35_mask.png is 100 x 120, of another shape than 160 x 120",
    ),
    "m36.png": (mask_of(36).point(lambda level: level // 255), KEPT),  # 0 and 1
}


def test_masks_beside_the_photographs_are_used_and_their_faults_are_reasons(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    root.mkdir()
    for name, (mask, _) in MASKS.items():
        mask_beside(root / name, mask)
    printed = call("tools/prepare_photos.py", str(root), str(out), cwd=tmp_path)
    found = reasons(out)
    assert {name for name, (_, reason) in MASKS.items() if reason} == set(found)
    for name, reason in found.items():
        assert re.search(MASKS[name][1], reason)
    assert f"{len(MASKS)} photographs found" in printed
    assert "1 by your masks, read as negatives" in printed
