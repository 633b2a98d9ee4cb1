"""Objects from all sides: planted walls, boards and two-faced bodies are told, toy cars are not."""

import logging
import math

from graf.camera import middle_poses
from graf.config import DataConfig, load_config
from graf.data.car_shapes import make_car
from graf.data.toy_cars import render_cars
from graf.metrics.sides import VIEWS, SideWatch, all_around, one_sided_warning, views_all_around
from graf.models.generator import Generator

import pytest
import torch
from torch import nn


class Planted(nn.Module):
    """A field that is opaque in the box from -size to size, with the raw colour (..., 3) that paint gives points (..., 3)."""

    def __init__(self, size, paint):
        super().__init__()
        self.size, self.paint = torch.tensor(size), paint

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, styles):
        return torch.where((points.abs() < self.size).all(-1), 1e4, 0.0), self.paint(points)


def one_face(points):
    """Two dark eyes on the side of positive x, where it is bright; the other side is dark."""
    x, y, z = points.unbind(-1)
    bright = (x > 0) & ~(((y.abs() - 0.3).square() + (z - 0.2).square()) < 0.03)
    return torch.where(bright, 4.0, -4.0)[..., None].expand_as(points)


def two_faces(points):
    x, y, z = points.unbind(-1)
    return one_face(torch.stack([x.abs(), y, z], dim=-1))


def planted(size, paint):
    overrides = (
        "ccsr.mode=none",
        "ray_sampler.rays_per_patch=256",
        "nerf.render_samples_per_ray=64",
        "nerf.density_activation=relu",
    )
    generator = Generator(load_config("smoke", overrides))
    generator.field = Planted(size, paint)
    return generator


@pytest.mark.parametrize(
    ("size", "paint", "evidence"),
    [
        ((9.0, 9.0, 9.0), two_faces, "walls fill it"),
        ((0.03, 0.7, 0.7), two_faces, "they are boards"),
        ((0.5, 0.6, 0.6), two_faces, "opposite sides look alike"),
        ((0.5, 0.6, 0.6), one_face, None),
        ((0.0, 0.0, 0.0), one_face, None),
    ],
    ids=["wall", "board", "two faces", "one face", "nothing"],
)
def test_what_is_planted_is_told(size, paint, evidence):
    numbers = all_around(*views_all_around(planted(size, paint), seed=0))
    assert all(map(math.isfinite, numbers.values()))
    message = one_sided_warning(numbers)
    if evidence is None:
        assert message is None
    else:
        assert evidence in message and "data.camera_prior=front" in message
        assert ("data.background_model=plane" in message) == ("walls" in message)


def test_opposite_sides_are_alike_as_they_are_or_mirrored():
    def likeness(*views):
        return all_around(torch.stack(views)[None], torch.ones(1, 4, 1, 8, 8))["likeness"]

    a, b, c, d = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert max(likeness(a, b, a, b), likeness(a, b, a.flip(-1), b.flip(-1))) < 0.01
    assert likeness(a, b, c, d) > 0.5


def test_toy_cars_are_no_false_alarm():
    data = DataConfig(imsize=16)
    poses = middle_poses(torch.arange(VIEWS) * (360 / VIEWS), data)
    for i in range(6):
        seen = render_cars([make_car(0, i)] * VIEWS, poses, data, supersampling=1)
        numbers = all_around(seen.images[None], seen.opacity[None, :, None])
        assert one_sided_warning(numbers) is None
        assert numbers["edge_opacity"] < 0.05 and numbers["thinness"] > 0.3 and numbers["likeness"] > 0.2


def test_numbers_by_hand():
    """Four views of one object, of 2 x 2 rays: opacity 1, 1/2, 1, 1/2, all at the edge; opposite views differ by 0.2, a quarter
    turn by 0.8 on average."""
    colours = torch.tensor([0.0, 0.9, 0.2, 0.7])
    opacity = torch.tensor([1.0, 0.5, 1.0, 0.5])
    numbers = all_around(*(x.view(1, 4, 1, 1, 1).expand(1, 4, c, 2, 2) for x, c in ((colours, 3), (opacity, 1))))
    quarter = (0.9 + 0.7 + 0.5 + 0.7) / 4
    expected = {"edge_opacity": 0.75, "thinness": 0.502 / 1.002, "likeness": 0.202 / (quarter + 0.002)}
    assert numbers == pytest.approx(expected)


class Unposed:
    posed = False


class Posed:
    posed = True
    labels = None


def test_a_run_is_told_once_in_its_first_steps(caplog):
    wall = planted((9.0, 9.0, 9.0), two_faces)

    def told(watch, *steps):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="graf"):
            for step in filter(watch.due, steps):
                watch.check(wall, step, 0)
        return [message.split(":")[0] for message in caplog.messages]

    before = torch.get_rng_state()
    assert told(SideWatch(Unposed, DataConfig()), 50, 125, 250) == ["step 125"]
    assert torch.equal(torch.get_rng_state(), before)
    assert told(SideWatch(Unposed, DataConfig()), 500) == ["step 500"]
    assert told(SideWatch(Unposed, DataConfig()), 126, 501, 625) == []
    assert told(SideWatch(Unposed, DataConfig(umin=-0.1, umax=0.1)), 125) == []
    assert told(SideWatch(Posed, DataConfig()), 125) == []
