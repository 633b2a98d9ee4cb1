"""Every kind of image file is read to its exact colour."""

import dataclasses
import os
import struct
import zlib

from graf.config import load_config
from graf.data.decoding import (
    EXTENSIONS,
    FORMATS,
    MOST_PIXELS,
    NO_IMAGE,
    Frame,
    open_rgb,
    read_alpha,
    read_image,
    stored_orientation,
    upright_size,
)
from graf.photographs.reading import open_photograph

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

DATA = dataclasses.replace(load_config().data, imsize=8, background=(0.0, 1.0, 0.0))  # green shows through


def read(tmp_path, image: Image.Image, name: str = "a.png", data=DATA, **save_options):
    image.save(tmp_path / name, **save_options)
    return read_image(tmp_path / name, data)


def palette_with_transparency() -> Image.Image:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([9, 9, 9, 200, 100, 50])
    image.putpixel((0, 0), 0)
    return image


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGB", (8, 8), (10, 20, 30)), (10, 20, 30)),
        (Image.new("L", (8, 8), 77), (77, 77, 77)),
        (Image.new("1", (8, 8), 1), (255, 255, 255)),
        (Image.new("RGBA", (8, 8), (200, 0, 100, 255)), (200, 0, 100)),
        (Image.new("RGBA", (8, 8), (200, 0, 100, 0)), (0, 255, 0)),
        (Image.new("RGBA", (8, 8), (200, 0, 100, 51)), (40, 204, 20)),  # a fifth of the colour over green
        (Image.new("LA", (8, 8), (100, 51)), (20, 224, 20)),
        (Image.fromarray(np.full((8, 8), 257 * 77, np.uint16)), (77, 77, 77)),
        (Image.fromarray(np.full((8, 8), 65535, np.uint16)), (255, 255, 255)),
    ],
    ids=["RGB", "L", "1", "RGBA opaque", "RGBA clear", "RGBA fifth", "LA", "16 bits", "16 bits white"],
)
def test_modes(tmp_path, image, expected):
    pixels = read(tmp_path, image)
    assert pixels.shape == (3, 8, 8) and pixels.dtype == torch.uint8
    assert pixels.flatten(1).T.unique(dim=0).tolist() == [list(expected)]


def test_transparent_palette_entry_and_colour(tmp_path):
    pixels = read(tmp_path, palette_with_transparency(), transparency=0)
    assert pixels[:, 0, 0].tolist() == [0, 255, 0] and pixels[:, 4, 4].tolist() == [200, 100, 50]
    pixels = read(tmp_path, Image.new("RGB", (8, 8), (1, 2, 3)), transparency=(1, 2, 3))
    assert pixels[:, 4, 4].tolist() == [0, 255, 0]


def test_cmyk_jpeg_and_webp(tmp_path):
    cyan = read(tmp_path, Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "a.jpg", quality=100)
    assert (cyan[:, 4, 4].int() - torch.tensor([0, 255, 255])).abs().max() <= 2
    webp = read(tmp_path, Image.new("RGBA", (8, 8), (200, 0, 100, 0)), "a.WEBP", lossless=True)
    assert webp[:, 4, 4].tolist() == [0, 255, 0]


def test_exif_rotation_is_undone(tmp_path):
    image = Image.new("RGB", (8, 8), (255, 255, 255))
    image.paste((255, 0, 0), (0, 0, 8, 4))  # red above
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held so that the file's top is the picture's right
    pixels = read(tmp_path, image, exif=exif)
    assert pixels[:, 4, 7].tolist() == [255, 0, 0] and pixels[:, 4, 0].tolist() == [255, 255, 255]


def test_a_rotated_file_of_16_bits_is_upright(tmp_path):
    values = np.zeros((8, 8), np.uint16)
    values[:4] = 257 * 200  # bright above
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = read(tmp_path, Image.fromarray(values), exif=exif)
    assert pixels[:, 4, 7].tolist() == [200] * 3 and pixels[:, 4, 0].tolist() == [0] * 3


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
@pytest.mark.parametrize(("orientation", "size"), [(4, (12, 8)), (5, (8, 12)), (6, (8, 12)), (8, (8, 12))])
def test_a_turned_file_is_measured_as_it_is_decoded(tmp_path, name, orientation, size):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (12, 8)).save(tmp_path / name, exif=exif)
    assert open_rgb(tmp_path / name, DATA.background).size == upright_size(tmp_path / name) == size
    assert stored_orientation(tmp_path / name) == orientation


def test_a_turned_tiff_and_a_png_of_an_older_writer_are_measured_as_they_are_decoded(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x02BC] = b"<x:xmpmeta/>"  # which makes Pillow look for an orientation
    Image.new("RGB", (12, 8)).save(tmp_path / "a.tif", exif=exif)
    del exif[0x02BC]
    profile, text = exif.tobytes(), PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(profile):8}\n{profile.hex()}\n")
    Image.new("RGB", (12, 8)).save(tmp_path / "a.png", pnginfo=text)
    assert stored_orientation(tmp_path / "a.tif") == 1
    for name in ("a.tif", "a.png"):
        assert open_rgb(tmp_path / name, DATA.background).size == upright_size(tmp_path / name) == (8, 12)


def test_a_file_whose_exif_data_are_damaged_has_no_size(tmp_path):
    Image.new("RGB", (12, 8)).save(tmp_path / "a.png", exif=b"no TIFF header")
    assert upright_size(tmp_path / "a.png") is None and stored_orientation(tmp_path / "a.png") == 1
    with pytest.raises(ValueError, match="cannot be read"):
        open_rgb(tmp_path / "a.png", DATA.background)


def test_bmp_and_tiff_of_8_and_16_bits(tmp_path):
    colour = Image.new("RGB", (8, 8), (10, 20, 30))
    for name in ("a.bmp", "a.tif", "a.TIFF"):
        assert read(tmp_path, colour, name)[:, 4, 4].tolist() == [10, 20, 30]
    assert read(tmp_path, Image.fromarray(np.full((8, 8), 257 * 77, np.uint16)), "b.tif")[:, 4, 4].tolist() == [77] * 3
    assert read(tmp_path, Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "c.tif")[:, 4, 4].tolist() == [0, 255, 255]


def test_floating_point_pixels_are_refused_with_the_cure(tmp_path):
    with pytest.raises(ValueError, match="floating-point numbers.*save it with 8 or 16 bits"):
        read(tmp_path, Image.fromarray(np.full((8, 8), 0.5, np.float32)), "a.tif")


def test_the_centre_square_is_kept(tmp_path):
    image = Image.new("RGB", (24, 8), (255, 0, 0))
    image.paste((0, 0, 255), (8, 0, 16, 8))
    assert read(tmp_path, image).flatten(1).T.unique(dim=0).tolist() == [[0, 0, 255]]
    assert read(tmp_path, image.rotate(90, expand=True)).flatten(1).T.unique(dim=0).tolist() == [[0, 0, 255]]


def test_a_frame_is_placed_in_units_of_the_width_and_has_the_background_outside(tmp_path):
    image = Image.new("RGB", (32, 16), (255, 255, 255))
    image.paste((0, 0, 255), (20, 10, 28, 18))  # 8 right and 6 below the centre; its last two rows are cut off
    image.save(tmp_path / "a.png")
    data = dataclasses.replace(DATA, background=(1.0, 0.5, 0.0))
    pixels = read_image(tmp_path / "a.png", data, Frame(side=8 / 32, centre=(8 / 32, 6 / 32)))
    assert pixels[:, :6].flatten(1).T.unique(dim=0).tolist() == [[0, 0, 255]]
    assert pixels[:, 6:].flatten(1).T.unique(dim=0).tolist() == [[255, 128, 0]]


def test_center_crop_keeps_that_many_pixels(tmp_path):
    image = Image.new("RGB", (20, 20), (255, 0, 0))
    image.paste((0, 0, 255), (6, 6, 14, 14))
    cropped = read(tmp_path, image, data=dataclasses.replace(DATA, center_crop=8))
    assert cropped.flatten(1).T.unique(dim=0).tolist() == [[0, 0, 255]]
    with pytest.raises(ValueError, match="20 x 20, smaller than data.center_crop 24; set it to 20 or 0"):
        read(tmp_path, image, data=dataclasses.replace(DATA, center_crop=24))


def test_downsampling_averages_instead_of_picking(tmp_path):
    board = np.indices((64, 64)).sum(0) % 2 * 255
    pixels = read(tmp_path, Image.fromarray(board.astype(np.uint8)))
    assert (pixels.float() - 127.5).abs().max() < 6


def test_transparency_is_composited_before_resizing(tmp_path):
    rgba = np.zeros((64, 64, 4), np.uint8)
    rgba[..., 2] = 255  # clear blue everywhere, which must not bleed
    rgba[:32] = (255, 0, 0, 255)
    assert read(tmp_path, Image.fromarray(rgba))[2].max() == 0


def test_a_damaged_file_says_what_to_do(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    content = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "half.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "empty.png").touch()
    for name in ("half.png", "text.png", "empty.png"):
        with pytest.raises(ValueError, match="cannot be read.*on_bad_file: skip"):
            read_image(tmp_path / name, DATA)


def test_the_formats_that_a_fault_names_are_those_of_the_extensions_that_are_read(tmp_path):
    suffixes = Image.registered_extensions()
    assert {suffixes[extension] for extension in EXTENSIONS} == set(FORMATS)
    assert NO_IMAGE.endswith(f"of another format than {', '.join(FORMATS)}")
    red = np.full((8, 8, 3), (255, 0, 0), np.uint8)
    Image.fromarray(red).save(tmp_path / "a.gif")
    (tmp_path / "a.gif").rename(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", DATA)[:, 0, 0].tolist() == [255, 0, 0]  # whatever its name


def test_a_few_bytes_that_say_they_are_huge_take_no_memory(tmp_path):
    body = struct.pack(">IIBBBBB", MOST_PIXELS // 8192 + 1, 8192, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", body), (b"IDAT", zlib.compress(bytes(100)))]
    parts = [struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with pytest.raises(ValueError, match=r"8193 x 8192 pixels, more than 67,108,864\); save it with fewer than 67 megapixels"):
        read_image(tmp_path / "a.png", DATA)


def test_a_jpeg_of_too_many_pixels_is_decoded_at_half_its_size(tmp_path, monkeypatch):
    Image.new("RGB", (40, 20), (200, 30, 30)).save(tmp_path / "a.jpg", quality=95)
    monkeypatch.setattr("graf.data.decoding.MOST_PIXELS", 200)
    assert open_rgb(tmp_path / "a.jpg", (1, 1, 1)).size == (20, 10)
    monkeypatch.setattr("graf.data.decoding.MOST_PIXELS", 199)
    with pytest.raises(ValueError, match="20 x 10 pixels, more than 199.*; save it with fewer than"):
        read_image(tmp_path / "a.jpg", DATA)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)  # of Pillow itself
    with pytest.raises(ValueError, match="exceeds limit .*; save it with fewer than 0 megapixels$"):
        open_photograph(tmp_path / "a.jpg")


@pytest.mark.parametrize("read", [read_image, read_alpha])
def test_no_jpeg_is_halved_whose_pixels_center_crop_counts(tmp_path, monkeypatch, read):
    Image.new("RGB", (40, 20), (200, 30, 30)).save(tmp_path / "a.jpg", quality=95)
    monkeypatch.setattr("graf.data.decoding.MOST_PIXELS", 200)
    read(tmp_path / "a.jpg", DATA)
    with pytest.raises(ValueError, match="40 x 20 pixels, more than 200.*; save it with fewer than"):
        read(tmp_path / "a.jpg", dataclasses.replace(DATA, center_crop=8))


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "folder.png", "loop.png", "device.png", "gone.png"):
        with pytest.raises(ValueError, match="not a file that can be read"):
            read_image(tmp_path / name, DATA)


def test_want_of_memory_is_not_the_files_fault(tmp_path, monkeypatch):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")

    def fails(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(MemoryError):
        read_image(tmp_path / "a.png", DATA)


def test_a_format_whose_decoder_runs_programs_is_no_image(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", "EPS")
    with pytest.raises(ValueError, match="not an image"):
        read_image(tmp_path / "a.png", DATA)
