"""bench/one_property.py: pictures that show one property, worked out by hand."""

from check_metrics import halves
from explain_distance import draw
from graf.data import build_dataset
from graf.data.raycast import AMBIENT, DIFFUSE, LIGHT
from graf.metrics.shapes import Surfaces
from graf.models.generator import Generator
from one_property import Looks, generated_looks, photographed_looks, properties, recoloured, relief

import pytest
import torch


def test_relief_is_lit_by_its_slant_and_black_at_its_rim():
    """A square of 3 x 3 points on the ground plane, seen from above: right is +x and down is -y."""
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(5.0), indexing="ij")
    points = torch.stack([x, -y, torch.zeros_like(x)], dim=-1)[None]
    opaque = torch.zeros(1, 5, 5, dtype=torch.bool)
    opaque[:, 1:4, 1:4] = True
    grey = (relief(Surfaces(opaque, points))[0] + 1) / 2
    assert grey[:, 2, 2].tolist() == pytest.approx([AMBIENT + DIFFUSE * LIGHT[2]] * 3)
    assert (grey[:, 1, 1:4] == 0).all() and (grey[:, 0] == 1).all()


def test_colours_are_exchanged_and_the_background_stays():
    """Objects in [-1, 0] are mapped onto those in [0, 1] by v + 1."""
    values = torch.linspace(-1, 0, 64).view(1, 1, 8, 8).expand(1, 3, 8, 8)
    solid = torch.ones(1, 1, 8, 8)
    dark, bright = Looks(values, solid, None), Looks(values + 1, solid, None)
    torch.testing.assert_close(recoloured(dark, bright), bright.images)
    torch.testing.assert_close(recoloured(dark, dark), dark.images)
    half = solid.clone()
    half[..., :4] = 0
    assert torch.equal(recoloured(Looks(values, half, None), bright)[..., :4], values[..., :4])


def test_toy_cars_show_all_properties_of_either_kind_and_photographs_what_is_known(smoke, tmp_path):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "ccsr.mode=refine", "metrics.batch_size=3")
    dataset, generator = build_dataset(config), Generator(config).eval()
    _, others = halves(dataset, 4)
    photographed = photographed_looks(others, generator)
    generated = generated_looks(*draw(generator, dataset, 4, seed=0), config)
    for looks in (photographed, generated):
        pictures = properties(looks)
        assert len(pictures) == 4 and all(images.shape == (4, 3, 8, 8) for images in pictures.values())
    assert photographed.surface.opaque.float().mean() == pytest.approx(photographed.opacity.mean().item(), abs=0.05)
    assert len(properties(Looks(photographed.images, None, None))) == 1
