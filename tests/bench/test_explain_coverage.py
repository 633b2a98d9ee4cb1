"""bench/explain_coverage.py: toy cars in a field's place, whose distances and densities are known."""

import explain_coverage
from explain_coverage import CarField, Denser, HalfLight, before_softplus, car_numbers, clouds_with, distance_to
from graf.data.car_shapes import make_car
from graf.errors import GrafError
from graf.metrics import shapes
from graf.metrics.shapes import exact_clouds, surface_poses
from graf.models.generator import Generator

import numpy as np
import pytest
import torch
from torch.nn import functional as F


def test_distance_is_zero_on_a_cars_surface_and_has_its_sign(smoke):
    """Points on the surface that cameras see; along the y axis through the middle of the car, inside and far outside."""
    config = smoke()
    (cloud,) = exact_clouds(range(-1, 0), surface_poses(config.data), config)
    car, half_width = make_car(config.data.seed, -1), float(make_car(config.data.seed, -1).half_size[1])
    assert distance_to(car, torch.from_numpy(cloud).float()).abs().max() < 1e-4
    inside, outside = distance_to(car, torch.tensor([[[0.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]]))[:, 0].tolist()
    assert inside < 0 and outside == pytest.approx(2 - half_width, abs=0.05)


def test_raw_densities_and_multiples_of_them():
    density = torch.tensor([1e-6, 0.5, 30.0, 1000.0])
    torch.testing.assert_close(F.softplus(before_softplus(density)), density)
    points = torch.zeros(1, 1, 1, 3)  # deep inside
    field, styles = CarField(10.0, 0.001), [make_car(0, -1)]
    for factor, wanted in ((1, 10.0), (4, 40.0)):
        raw, _ = Denser(field, factor)(points, None, styles)
        assert F.softplus(raw).item() == pytest.approx(wanted)


@pytest.mark.parametrize("reading", [Generator, HalfLight])
def test_a_sharp_car_is_read_where_it_is_and_a_grown_one_outside(smoke, monkeypatch, reading):
    monkeypatch.setattr(shapes, "SURFACE_RAYS", 16)
    generator = reading(smoke("nerf.render_samples_per_ray=128"))
    poses, car = surface_poses(generator.config.data), make_car(0, -1)

    def off_surface(grown):
        (cloud,) = clouds_with(generator, CarField(1000.0, 0.002, grown), car_numbers(range(-1, 0), generator), poses)
        return np.median(distance_to(car, torch.from_numpy(cloud).float()))

    assert abs(off_surface(0.0)) < 0.02
    assert off_surface(0.05) == pytest.approx(0.05, abs=0.02)


def test_cars_of_another_seed_are_refused(smoke, monkeypatch):
    monkeypatch.setattr(explain_coverage.graf, "load_generator", lambda _: Generator(smoke("data.seed=3")))
    monkeypatch.setattr("sys.argv", ["explain_coverage.py", "model.pt"])
    with pytest.raises(GrafError, match="model.pt: its objects are not toy cars of data.seed 0; name a checkpoint of these"):
        explain_coverage.main()
