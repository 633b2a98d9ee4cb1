"""The runs of bench/bad_pictures.py: that their settings are configs, and what their photographs and pictures look like."""

from typing import NamedTuple

import bad_pictures
from graf.config import load_config
from graf.models.generator import Generator

import imageio.v3 as imageio
import pytest
import torch
from torch.nn.functional import interpolate


@pytest.mark.parametrize("name", bad_pictures.FAULTS)
def test_the_settings_of_each_fault_are_a_config(name, tmp_path):
    config = load_config(None, bad_pictures.settings_of(name, tmp_path))
    assert config.expname == name and config.training.outdir == str(tmp_path)
    assert (config.data.type == "images") == (bad_pictures.FAULTS[name].photographs is not None)


@pytest.mark.parametrize("coloured", [False, True])
def test_photographs_have_a_plain_background_each(coloured, tmp_path):
    data = load_config(None, ["data.imsize=16", "data.n_images=3", f"data.datadir={tmp_path / 'cars'}"]).data
    bad_pictures.write_photographs(tmp_path / "photographs", data, coloured)
    corners = {tuple(imageio.imread(file)[0, 0]) for file in (tmp_path / "photographs").glob("*.png")}
    assert len(corners) == 3 if coloured else corners == {(255, 255, 255)}


@pytest.fixture
def picture(smoke, tmp_path):
    """Writes a fault's picture of a tiny model, whose real images are white: its rows (n, side, 8 (side + 2), 3), without the
    white lines between them."""
    config = smoke()
    side = config.data.imsize

    def write(fault: str):
        real = torch.ones(bad_pictures.SIDES, 3, side, side)
        bad_pictures.write_picture(tmp_path / "bad.png", Generator(config).eval(), real, bad_pictures.FAULTS[fault])
        pixels = imageio.imread(tmp_path / "bad.png")
        return pixels[2:].reshape(-1, side + 2, pixels.shape[1], 3)[:, :side]

    return write


def test_a_picture_has_real_images_above_two_objects_from_eight_sides(picture):
    rows = picture("blur")
    assert len(rows) == 3 and rows.shape[2] == 2 + 8 * (rows.shape[1] + 2)
    assert (rows[0] == 255).all() and not (rows[1] == 255).all()


def test_opacity_stands_below_from_white_to_black(picture, monkeypatch):
    def clear_then_opaque(generator, objects, poses):
        opacity = torch.cat([torch.zeros(8, 1, 4, 4), torch.ones(8, 1, 4, 4)])
        return Views(torch.zeros(16, 3, 16, 16), opacity)

    class Views(NamedTuple):
        images: torch.Tensor
        opacity: torch.Tensor

        def at(self, side):
            return Views(*(interpolate(values, (side, side)) for values in self))

    monkeypatch.setattr(bad_pictures, "render_views", clear_then_opaque)
    clear, opaque = picture("floaters")[3:]
    assert (clear == 255).all() and (opaque[:, 2:-2] == 0).any() and set(opaque.flatten().tolist()) == {0, 255}
