"""Variety, coverage and matching distance of shapes: by hand on few points, and on generators of which the answer is known."""

import dataclasses
import json
from types import SimpleNamespace

from graf.camera import azimuth_and_v, middle_poses, poses_at
from graf.data import build_dataset
from graf.data.car_shapes import make_car
from graf.data.toy_cars import render_cars
from graf.metrics import shapes
from graf.metrics.shapes import (
    Subject,
    Surfaces,
    chamfer_distances,
    clouds_of,
    coverage_and_mmd,
    dissimilarity,
    real_silhouettes,
    share_of_variety,
    silhouette_variety,
    surface_coverage,
    surfaces,
)
from graf.models import generator as renderer
from graf.models.generator import Generator, Rendering
from graf.rng import seeded_rng

import numpy as np
import pytest
import torch
from PIL import Image

N = 5
EMPTY = 1000  # of a number from here on there is no car


def test_variety_is_the_mean_of_one_minus_iou_over_pairs():
    """Two, two and one pixels in a row: IoU is 1/3, 0 and 1/2; a fourth one, empty, shares nothing with any."""
    masks = torch.tensor([[[1, 1, 0, 0]], [[0, 1, 1, 0]], [[0, 0, 1, 0]]], dtype=torch.bool)
    assert dissimilarity(masks) == pytest.approx((2 / 3 + 1 + 1 / 2) / 3)
    with_empty = torch.cat([masks, torch.zeros_like(masks[:1])])
    assert dissimilarity(with_empty) == pytest.approx((2 / 3 + 1 + 1 / 2 + 3) / 6)
    assert dissimilarity(masks[:1].expand(3, -1, -1)) == dissimilarity(torch.zeros_like(masks)) == 0


def test_chamfers_distance_is_the_mean_square_both_ways():
    """From 0 and 3 on the x axis to 1 and 1: (1 + 4) / 2 there, 1 back."""
    axis = [np.array([[x, 0.0, 0.0] for x in some]) for some in ((0, 3), (1, 1))]
    distances = chamfer_distances(axis, axis)
    np.testing.assert_allclose(distances, [[0, 2.5 + 1], [1 + 2.5, 0]])


def test_coverage_and_mmd_as_achlioptas_defines_them():
    """Both generated objects are nearest to the first of three references, whose nearest ones are at 1, 5 and 2."""
    coverage, mmd = coverage_and_mmd(np.array([[1.0, 6.0, 2.0], [4.0, 5.0, 9.0]]))
    assert (coverage, mmd) == (pytest.approx(1 / 3), pytest.approx(8 / 3))


def test_points_lie_where_rays_end_and_only_where_they_are_opaque():
    rays = torch.tensor([1.0, 2.0, 3.0]).expand(2, 4, 3), torch.tensor([0.0, 0.0, -1.0]).expand(2, 4, 3)
    opaque = torch.tensor([[False, True, False, True], [False] * 4])
    seen = surfaces(opaque, torch.tensor([[0.0, 1.0, 2.0, 5.0]] * 2), rays)
    (cloud,) = clouds_of(seen, n_views=2)  # of one object seen twice
    assert cloud.shape == (shapes.POINTS, 3)
    assert np.unique(cloud, axis=0).tolist() == [[1, 2, -2], [1, 2, 2]]
    assert (cloud[:, 2] == 2).sum() == shapes.POINTS // 2
    assert clouds_of(Surfaces(*(values[1:] for values in seen)), n_views=1) == []


@pytest.mark.parametrize("refined", [False, True])
def test_rays_are_those_of_the_field(smoke, refine, monkeypatch, refined):
    config, drawn = (refine if refined else smoke)(), []

    def noted(*args):
        drawn.append(real(*args))
        return drawn[-1]

    real = renderer.camera_rays
    monkeypatch.setattr(renderer, "camera_rays", noted)
    poses = middle_poses(torch.tensor([20.0]), config.data)
    generator = Generator(config)
    seen = shapes.generated_surfaces(generator, (torch.randn(1, 8), torch.zeros(1, dtype=torch.long)), poses, 6, "views")
    assert seen.opaque.shape == (1, 6, 6)
    for ours, theirs in zip(shapes.field_rays(poses, 6, config), drawn[0], strict=True):
        torch.testing.assert_close(ours, theirs)


class Cars(Generator):
    """A generator whose objects are toy cars of the data's seed: the given numbers in turn, EMPTY and above for empty objects.
    Numbers from 0 on are of the data set."""

    numbers: tuple[int, ...] = ()

    def sample_latents(self, n, rng=None):
        return torch.tensor([self.numbers[i % len(self.numbers)] for i in range(n)], dtype=torch.float32)[:, None]

    def render(self, latents, pose_c2w, resolution=None, class_index=None):
        data = dataclasses.replace(self.config.data, imsize=resolution)
        views = render_cars([make_car(data.seed, int(i)) for i in latents], pose_c2w, data, supersampling=1)
        opacity = (views.opacity * (latents < EMPTY)[..., None])[:, None]
        return Rendering(views.images, views.depth[:, None], views.depth[:, None], opacity)


@pytest.fixture
def subject(smoke, tmp_path, monkeypatch):
    """N generated cars of the given numbers, on few points."""
    monkeypatch.setattr(shapes, "POINTS", 256)
    monkeypatch.setattr(shapes, "SURFACE_RAYS", 16)

    def of(*numbers):
        generator = Cars(smoke(f"data.datadir={tmp_path}"))
        generator.numbers = numbers
        return Subject(generator, SimpleNamespace(fingerprint="cars"), seed=0, truncation=1.0, cache=tmp_path / "cache", n=N)

    return of


def test_exact_cars_are_as_varied_as_the_data_and_one_body_is_not_at_all(subject):
    every = silhouette_variety(subject(0, 1, 2, 3, 4))
    assert every["variety"] == every["variety_data"] > 0.05
    assert every["share_of_data"] == 1 and every["n_objects"] == N
    one = silhouette_variety(subject(3))
    assert one["variety"] == one["share_of_data"] == 0 and one["variety_data"] == every["variety_data"]
    with_empty = silhouette_variety(subject(0, 1, 2, 3, EMPTY))
    assert with_empty["empty_share"] == pytest.approx(0.2) and with_empty["variety"] > every["variety"]


def test_surfaces_are_seen_from_all_around_from_above_and_from_below(smoke):
    azimuth_deg, v = azimuth_and_v(shapes.surface_poses(smoke("data.vmin=0.2", "data.vmax=0.4").data))
    torch.testing.assert_close(v, torch.tensor([0.2, 0.4]).repeat(3))
    assert azimuth_deg.round().tolist() == [0, 60, 120, 180, 240, 300]


def test_the_references_own_cars_cover_it_and_one_car_does_not(subject):
    every, further, one = (surface_coverage(subject(*numbers)) for numbers in (range(-N, 0), range(-2 * N, -N), (-3,)))
    assert every["coverage"] == 1 and every["mmd"] == pytest.approx(0, abs=1e-12)
    assert (further["coverage"], further["mmd"]) == (further["coverage_best"], further["mmd_best"])
    assert further["coverage_best"] < 1 and further["mmd_best"] > 0
    assert one["coverage"] == pytest.approx(1 / N) and one["mmd"] > 0
    assert json.loads(json.dumps(one)) == one


def test_a_generator_that_repeats_its_training_set_covers_no_more_than_new_cars_do(subject):
    """The reference and the cars of `best` are in no data set, however large it is."""
    repeated = surface_coverage(subject(*range(N)))
    assert repeated["coverage"] < 1 and repeated["mmd"] > 0.1 * repeated["mmd_best"]
    assert repeated["reference_is"] == "toy cars that are in no data set"


def test_fragments_raise_variety_and_are_told_by_mmd(subject, monkeypatch):
    """The reference's own cars, of each another half of the picture left out, in blocks of 4 x 4 rays."""
    whole, render = subject(*range(-N, 0)), Cars.render

    def broken(generator, latents, pose_c2w, resolution=None, class_index=None):
        view = render(generator, latents, pose_c2w, resolution, class_index)
        blocks = [torch.rand(1, 1, resolution // 4, resolution // 4, generator=seeded_rng(int(i))) < 0.5 for i in latents]
        kept = torch.nn.functional.interpolate(torch.cat(blocks).float(), resolution)
        return dataclasses.replace(view, opacity=view.opacity * kept)

    before = silhouette_variety(whole), surface_coverage(whole)
    monkeypatch.setattr(Cars, "render", broken)
    after = silhouette_variety(whole), surface_coverage(whole)
    assert after[0]["share_of_data"] > 2 * before[0]["share_of_data"]
    assert before[1]["mmd"] == pytest.approx(0, abs=1e-12) and after[1]["mmd"] > 0.1 * after[1]["mmd_best"]


def test_empty_objects_cover_nothing(subject):
    some, none = surface_coverage(subject(-1, -2, EMPTY, EMPTY, EMPTY)), surface_coverage(subject(EMPTY))
    assert (some["coverage"], some["empty_share"]) == (pytest.approx(2 / N), pytest.approx(3 / N))
    assert (none["coverage"], none["mmd"], none["empty_share"]) == (0, None, 1)


def test_the_best_is_computed_once(subject, monkeypatch):
    first = surface_coverage(subject(0))
    real, asked = shapes.exact_clouds, []
    monkeypatch.setattr(shapes, "exact_clouds", lambda indices, *rest: asked.append(indices) or real(indices, *rest))
    assert surface_coverage(subject(0)) == first and asked == [range(-N, 0)]


def test_the_cameras_variety_is_taken_out_in_squares():
    """5^2 - 3^2 = 4^2: an object that adds nothing to the cameras' 3 has no share, and one of sqrt(13)^2 = 9 + 4 a half."""
    assert share_of_variety(5, 5, 3) == 1 and share_of_variety(3, 5, 3) == share_of_variety(2.9, 5, 3) == 0
    assert share_of_variety(13**0.5, 5, 3) == pytest.approx(0.5) and share_of_variety(1, 4, 0) == 0.25
    assert share_of_variety(5, 3, 3) is share_of_variety(5, None, 3) is None


def test_exact_cars_from_near_cameras_have_the_variety_that_one_camera_sees(smoke):
    """12 cars: less than half of it if the cameras' variety were subtracted, a quarter more if it were left in."""
    config, n = smoke(), 12
    offsets = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) - 0.5
    poses = poses_at(210 + 16 * offsets[0], 0.34 + 0.12 * offsets[1], 3.6)
    cars = [make_car(0, i) for i in range(n)]
    from_one = dissimilarity(shapes.exact_surfaces(cars, poses[:1].expand(n, -1, -1), 32, config).opaque)
    from_all = dissimilarity(shapes.exact_surfaces(cars, poses, 32, config).opaque)
    alone = sum(dissimilarity(shapes.exact_surfaces([car] * n, poses, 32, config).opaque) for car in cars[:3]) / 3
    assert (from_all**2 - alone**2) ** 0.5 == pytest.approx(from_one, rel=0.1)


@pytest.fixture
def turntable(smoke, tmp_path):
    """Images of squares from 8 azimuths, 45 degrees apart, of the side in pixels that each azimuth is given."""

    def of(sides, mode="RGBA", *overrides):
        for number, side in enumerate(sides):
            image = Image.new(mode, (16, 16))
            image.paste((255,) * len(mode), (0, 0, side, side))
            image.save(tmp_path / f"0.5_{45 * number:04d}.png")
        config = smoke("data.type=images", f"data.datadir={tmp_path}", "data.v=[0.34]", *overrides)
        return config, build_dataset(config)

    return of


def test_images_are_those_nearest_to_the_camera(turntable, monkeypatch, caplog):
    """At 80 degrees, that from 90 and then that from 45: squares of 12 and 6 pixels, or 6 and 3 at half the resolution."""
    config, dataset = turntable([2, 6, 12, 2, 2, 2, 2, 2])
    pose_c2w = poses_at(torch.tensor(80.0), torch.tensor(0.34), 3.6)
    monkeypatch.setattr(shapes, "NEAREST_IMAGES", 2)
    found = real_silhouettes(dataset, pose_c2w, 8, config.data)
    assert found.masks.sum(dim=(1, 2)).tolist() == [36, 9]
    assert dissimilarity(found.masks) == pytest.approx(1 - 9 / 36)
    torch.testing.assert_close(found.pose_c2w, dataset.labels.pose_c2w[[2, 1]])
    assert 30 < found.terms["apart_deg"] <= 35  # on a circle that is smaller than a great one
    assert "images up to 33 degrees from the camera are compared" in caplog.text


def test_objects_are_seen_from_the_real_images_cameras(turntable, monkeypatch, tmp_path):
    config, dataset = turntable([2, 4, 6, 8, 10, 12, 14, 16])
    monkeypatch.setattr(shapes, "NEAREST_IMAGES", 3)
    generator = Generator(config)
    given = []

    def render(latents, poses, resolution, classes):
        given.append(poses)
        blank = torch.ones(len(poses), 1, resolution, resolution)
        return Rendering(blank.expand(-1, 3, -1, -1), blank, blank, blank)

    monkeypatch.setattr(generator, "render", render)
    result = silhouette_variety(Subject(generator, dataset, 0, 1.0, tmp_path, n=N))
    assert result["variety"] == result["variety_of_cameras"] == result["share_of_data"] == 0
    assert result["variety_data"] > 0 and result["n_objects"] == 3
    rows = {tuple(pose.flatten().tolist()) for pose in dataset.labels.pose_c2w}
    assert len({tuple(pose.flatten().tolist()) for pose in torch.cat(given)} & rows) == 3


@pytest.mark.parametrize(
    ("mode", "overrides", "reason"),
    [("RGB", (), "images without transparency"), ("RGBA", ("data.labels=none",), "the images have no cameras")],
)
def test_data_without_silhouettes_is_not_compared_with(turntable, tmp_path, caplog, mode, overrides, reason):
    config, dataset = turntable([8] * 8, mode, *overrides)
    result = silhouette_variety(Subject(Generator(config), dataset, 0, 1.0, tmp_path, n=N))
    assert result["n_objects"] == N and result["variety"] >= 0
    assert result["variety_data"] is result["share_of_data"] is None
    assert reason in result["unavailable"] and reason in caplog.text
    assert surface_coverage(Subject(Generator(config), dataset, 0, 1.0, tmp_path))["coverage"] is None
