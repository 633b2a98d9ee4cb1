"""Silhouettes tell the usual mistakes of cameras: each is made on purpose on two objects; on right cameras none is named."""

import dataclasses
import math
import re

from graf.camera import azimuth_and_v, look_at_origin, poses_at
from graf.config import Config
from graf.data import build_dataset
from graf.data.cameras.agreement import ObjectViews, objects_with_silhouettes
from graf.data.cameras.corrections import rolled, with_azimuths_reversed
from graf.data.cameras.mistakes import (
    Mistake,
    Verdict,
    azimuth_exchanged,
    describe_verdict,
    exchange_cure,
    fov_of_focal_length,
    judge_cameras,
    polar_cure,
    polar_exchanged,
)
from graf.data.car_shapes import make_car
from graf.data.raycast import Solids, slanted_box
from graf.data.toy_cars import render_cars

import pytest
import torch
from test_data_images import SHARED, config

AZIMUTHS_DEG = torch.arange(24) * 15.0
POLAR_DEG = torch.tensor([50.0, 62.0, 74.0]).repeat(8)


def exact_poses(azimuth_deg=AZIMUTHS_DEG, polar_deg=POLAR_DEG):
    return poses_at(azimuth_deg, (1 - torch.deg2rad(polar_deg).cos()) / 2, 3.6)


def blocks() -> Solids:
    """A tower, a slab, a bar and a wheel, no two sides of which look alike."""
    boxes = [
        slanted_box((-0.6, -0.2, 0.2, -0.5), (-0.6, -0.3, 0.15, 0.5), y=0.2),
        slanted_box((-0.6, 0.6, 0.4, -0.5), (-0.6, 0.6, 0.4, -0.3), y=-0.1),
        slanted_box((0.2, 0.5, 0.1, -0.3), (0.2, 0.5, 0.1, 0.1), y=-0.35),
    ]
    return Solids(
        torch.tensor(boxes), torch.tensor([[0.35, -0.35, 0.2, 0.2, 0.05]]), torch.ones(4, 3), torch.tensor([0.65, 0.6, 0.6])
    )


@pytest.fixture(scope="module")
def masks():
    """Silhouettes of each set from the right cameras, by name."""
    data = dataclasses.replace(Config().data, imsize=64)
    solids = {"blocks": blocks(), "car": make_car(0, 0)}
    return {name: render_cars([solid] * 24, exact_poses(), data, 1).opacity > 0.5 for name, solid in solids.items()}


def exchanged(pose_c2w):
    """Cameras computed with azimuth and elevation in each other's place."""
    azimuth, elevation = torch.deg2rad(AZIMUTHS_DEG), torch.deg2rad(90 - POLAR_DEG)
    return look_at_origin(
        3.6 * torch.stack([azimuth.cos() * elevation.cos(), azimuth.cos() * elevation.sin(), azimuth.sin()], dim=-1)
    )


MISTAKES = {  # cameras and field of view, and what has to be said of them
    "reversed": (with_azimuths_reversed, 32, "the azimuths run clockwise", "set data.azimuths: clockwise"),
    "elevation": (
        lambda _: exact_poses(polar_deg=90 - POLAR_DEG),
        32,
        "polar angles were taken for elevations",
        "export the c",
    ),
    "exchanged": (exchanged, 32, "azimuth and elevation are exchanged", "export the cameras again"),
    "half": (lambda pose: pose, fov_of_focal_length(32, 0.5), "the focal length is about ", "set data.fov: "),
    "double": (lambda pose: pose, fov_of_focal_length(32, 2), "the focal length is about 0.", "set data.fov: "),
    "rolled": (lambda pose: rolled(pose, 90), 32, "the images are turned by 90 degrees counter", "set data.roll_deg: -90"),
    "upside down": (lambda pose: rolled(pose, 180), 32, "the images are turned by 180 degrees", "set data.roll_deg: -180"),
    "tilted": (lambda pose: rolled(pose, -40), 32, "the images are turned by ", "set data.roll_deg: "),
}


@pytest.mark.parametrize("name", ["blocks", "car"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named_with_its_cure(smoke, masks, name, mistake):
    change, fov, wrong, cure = MISTAKES[mistake]
    data = dataclasses.replace(smoke().data, fov=fov)
    verdict = judge_cameras([ObjectViews(masks[name], change(exact_poses()))], data, "transforms")
    (found,) = verdict.mistakes
    assert found.wrong.startswith(wrong) and found.cure.startswith(cure)
    if fov != 32:
        assert float(re.search(r"data.fov: ([\d.]+)", found.cure)[1]) == pytest.approx(32, rel=0.1)
    assert found.agreement > 0.85 and found.agreement > verdict.agreement + 0.01


@pytest.mark.parametrize("n", [8, 24])
@pytest.mark.parametrize("name", ["blocks", "car"])
def test_right_cameras_are_not_accused(smoke, masks, name, n):
    verdict = judge_cameras([ObjectViews(masks[name][:n], exact_poses()[:n])], smoke().data, "transforms")
    assert verdict.mistakes == [] and verdict.agreement > 0.85 and not verdict.is_poor


def test_a_ball_tells_no_direction(smoke):
    """Discs in all images: any directions agree, and nothing is accused."""
    x, y = torch.meshgrid(torch.arange(64) - 32, torch.arange(64) - 32, indexing="xy")
    disc = (x**2 + y**2 <= 20**2).expand(24, -1, -1)
    verdict = judge_cameras([ObjectViews(disc, exact_poses())], smoke().data, "transforms")
    assert verdict.mistakes == []
    assert [mistake.wrong for mistake in verdict.hidden][0] == "the azimuths run clockwise"
    assert "silhouettes would not show it if the azimuths run clockwise or " in describe_verdict(verdict)


def test_cures_undo_keys_that_are_set(smoke, masks):
    data = smoke("data.type=images", "data.azimuths=clockwise", "data.roll_deg=30").data
    views = ObjectViews(masks["car"], with_azimuths_reversed(exact_poses()))
    (found,) = judge_cameras([views], data, "filename").mistakes
    assert found.cure == "set data.azimuths: counterclockwise and data.roll_deg: -30"
    (found,) = judge_cameras([views._replace(pose_c2w=rolled(exact_poses(), 90))], data, "filename").mistakes
    assert found.cure == "set data.roll_deg: -60"


def test_names_are_mended_by_v(smoke, masks):
    """A ring at v 0.0669 is 30 degrees from the zenith; at 30 degrees above the horizon v is 0.25."""
    views = ObjectViews(masks["car"], exact_poses(polar_deg=90 - POLAR_DEG))
    (found,) = judge_cameras([views], smoke("data.v=[0.06699]").data, "filename").mistakes
    assert found.cure == "set data.v: [0.25]"


@pytest.mark.parametrize("pattern, polar, exchanged", [
    ("<polar_deg>_<azimuth_deg>", "<elevation_deg>_<azimuth_deg>", "<azimuth_deg>_<polar_deg>"),
    ("<object>-<azimuth_deg>-<elevation_deg>", "<object>-<azimuth_deg>-<polar_deg>", "<object>-<elevation_deg>-<azimuth_deg>"),
])  # fmt: skip
def test_names_are_mended_by_their_pattern(smoke, pattern, polar, exchanged):
    data = smoke(f"data.name_pattern={pattern}").data
    assert polar_cure(data, "filename") == f"set data.name_pattern: {polar}"
    assert exchange_cure(data, "filename") == f"set data.name_pattern: {exchanged}"


def test_exchanges_are_undone():
    torch.testing.assert_close(polar_exchanged(exact_poses(polar_deg=90 - POLAR_DEG)), exact_poses(), rtol=0, atol=1e-4)
    torch.testing.assert_close(azimuth_exchanged(exchanged(None)), exact_poses(), rtol=0, atol=5e-3)


def test_straight_above_no_azimuth_is_told():
    poses = exact_poses(azimuth_deg=torch.tensor([30.0, 30.0, 30.0]), polar_deg=torch.tensor([0.0, 90.0, 30.0]))
    told = polar_exchanged(poses).isfinite().all(dim=(1, 2))
    assert told.tolist() == [False, False, True]


def test_half_the_focal_length_has_twice_the_tangent():
    assert math.tan(math.radians(fov_of_focal_length(32, 0.5)) / 2) == pytest.approx(2 * math.tan(math.radians(16)))


def test_poor_agreement_without_a_reason_is_a_question():
    assert "is each image's camera its own?" in describe_verdict(Verdict(0.4, [], []))
    told = describe_verdict(Verdict(0.51, [Mistake("x", "set y", 0.87), Mistake("z", "set w", 0.86)], []))
    assert told == "the silhouettes agree with the cameras: 0.51 of 1, but 0.87 if x (set y), or 0.86 if z (set w)"


def test_azimuths_of_exchanged_cameras_are_elevations():
    azimuth_deg, _ = azimuth_and_v(exchanged(None))
    assert azimuth_deg.max() > 90  # so that both readings of a position are met


REAL_SETS = {
    "toys/car_posed": {"data.fov": 20, "data.radius": 5.89, "data.near": 4.85, "data.far": 6.95},
    "real_cars": {"data.fov": 50, "data.radius": 2.75, "data.near": 1.6, "data.far": 3.9},
    "cars": {},
    "turntables": {},
}


@pytest.mark.parametrize("folder", REAL_SETS)
def test_real_sets_are_right_as_they_are_and_wrong_when_reversed(folder):
    if not (SHARED / folder).is_dir():
        pytest.skip(f"{SHARED / folder} is not here")
    run = config(SHARED / folder, **{"data.imsize": 64, **REAL_SETS[folder]})
    data, dataset = run.data, build_dataset(run)
    objects = objects_with_silhouettes(dataset, data)
    right = judge_cameras(objects, data, dataset.label_source)
    assert right.mistakes == right.hidden == [] and right.agreement > 0.8
    reversed_ = judge_cameras([views.mended(with_azimuths_reversed) for views in objects], data, dataset.label_source)
    assert [mistake.cure for mistake in reversed_.mistakes] == ["set data.azimuths: clockwise"]
    assert reversed_.agreement < 0.7
