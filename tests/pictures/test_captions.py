"""Captions along the edges of sheets, around the pictures as they were rendered."""

from graf.camera import sweep_poses
from graf.config import DataConfig
from graf.pictures.captions import GAP, Captions, captioned, enlarged, numbered
from graf.pictures.outputs import write_grid, write_video
from graf.pictures.sweep import sheet_captions

import imageio.v2 as imageio
import pytest
import torch

PICTURES = torch.randint(0, 256, (6, 3, 50, 50), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@pytest.mark.parametrize("n", [1, 5, 6])
def test_pictures_stay_what_they_are(n):
    """Enlarged by a whole factor, in rows of three, somewhere on the sheet."""
    pictures = PICTURES[:n]
    sheet = captioned(pictures, 3, Captions("run, step 3"))
    side, pitch = 150, 150 + GAP // 2
    for i, picture in enumerate(pictures):
        y, x = GAP // 2 + i // 3 * pitch, GAP + GAP // 2 + i % 3 * pitch
        assert torch.equal(sheet[:, y : y + side : 3, x : x + side : 3], picture)
        assert torch.equal(sheet[:, y + 2 : y + side : 3, x + 2 : x + side : 3], picture)


def test_each_caption_has_its_place():
    bare = captioned(PICTURES, 3, Captions(""))
    footed = captioned(PICTURES, 3, Captions("run, step 3"))
    both = captioned(PICTURES, 3, Captions("run, step 3", ("a", "b", "c"), ("first\nrow", "second"), "note", depths=(2.6, 4.6)))
    assert footed.shape[1] > bare.shape[1] and footed.shape[2] == bare.shape[2]
    assert both.shape[1] > footed.shape[1] and both.shape[2] > footed.shape[2]
    bar = both[:, :, -60:].float()
    assert bar.amin() < 60  # the darkest colour of depths


def test_letters_beyond_ascii_are_drawn():
    """And not as the box that stands for all that a font does not have."""
    sheets = [captioned(PICTURES, 3, Captions(f"st{letter}hle")) for letter in "üößéñЖ"]
    assert not any(torch.equal(a, b) for i, a in enumerate(sheets) for b in sheets[:i] if a.shape == b.shape)


def test_large_pictures_and_those_without_a_footer_keep_their_pixels(tmp_path):
    assert enlarged(PICTURES, 0.4) is PICTURES
    write_grid(tmp_path / "bare.png", PICTURES, 3, Captions(None, numbered(3)))
    assert imageio.imread(tmp_path / "bare.png").shape == (2 * 52 + 2, 3 * 52 + 2, 3)


def test_a_sweep_tells_azimuth_elevation_and_object():
    data = DataConfig()
    azimuths = [0.0, 90.0, 315.0]
    captions = sheet_captions(sweep_poses(azimuths, [10.0, 30.0], data), 2, azimuths, "depth", data, "run")
    assert captions.columns == ["azimuth 0°", "azimuth 90°", "azimuth 315°"]
    assert captions.rows == [f"object {i}\nelevation {angle}°" for i in (0, 1) for angle in (10, 30)]
    assert captions.depths == (data.near, data.far) and captions.footer == "run"
    assert sheet_captions(sweep_poses([0.0], [10.0], data), 1, [0.0], "rgb", data, None).depths is None
    above = sheet_captions(sweep_poses([0.0, 90.0, -45.0], [90.0, 0.0], data), 1, [0.0, 90.0, -45.0], "rgb", data, "run")
    assert above.columns == captions.columns and above.rows == ["object 0\nelevation 90°", "object 0\nelevation 0°"]


@pytest.mark.parametrize(("name", "size"), [("a.mp4", (1024, 256)), ("a.gif", (256, 64))])
def test_videos_are_large_enough_for_a_player(name, size, tmp_path):
    write_video(tmp_path / name, torch.zeros(2, 3, 64, 256, dtype=torch.uint8))
    assert imageio.get_reader(tmp_path / name).get_data(0).shape[1::-1] == size
