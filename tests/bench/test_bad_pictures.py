"""The runs of bench/bad_pictures.py: that their settings are configs, and what their photographs and pictures look like."""

import bad_pictures
from graf.camera import azimuth_and_v
from graf.config import load_config
from graf.models.generator import Generator

import imageio.v3 as imageio
import pytest
import torch


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


def test_a_picture_has_real_images_above_two_objects_from_eight_sides(smoke, tmp_path):
    config = smoke()
    side = config.data.imsize
    real = torch.ones(bad_pictures.SIDES, 3, side, side)
    bad_pictures.write_picture(tmp_path / "bad.png", Generator(config).eval(), real, 360.0)
    pixels = imageio.imread(tmp_path / "bad.png")
    assert pixels.shape == (2 + 3 * (side + 2), 2 + 8 * (side + 2), 3)
    assert (pixels[: side + 2] == 255).all() and not (pixels[side + 4 : -2] == 255).all()


def test_azimuths_share_the_turn_of_the_picture(smoke, tmp_path, monkeypatch):
    asked, render_views = [], bad_pictures.render_views
    monkeypatch.setattr(bad_pictures, "render_views", lambda *given: asked.append(given[2]) or render_views(*given))
    config = smoke()
    real = torch.ones(bad_pictures.SIDES, 3, config.data.imsize, config.data.imsize)
    bad_pictures.write_picture(tmp_path / "bad.png", Generator(config).eval(), real, 16.0)
    azimuth_deg, _ = azimuth_and_v(asked[0])
    assert azimuth_deg.tolist() == pytest.approx([45, 47, 49, 51, 53, 55, 57, 59], abs=1e-3)
