"""Cameras: where they stand and what they look at."""

import dataclasses
import math

from graf.camera import (
    Labels,
    azimuth_and_v,
    elevation_of_v,
    elevation_poses,
    elevations_of_v,
    focal_length,
    look_at_origin,
    mirrored_poses,
    poses_at,
    position_on_sphere,
    rotation_poses,
    sample_poses,
    sweep_poses,
    view_azimuths,
)
from graf.data.cameras.corrections import rolled
from graf.errors import GrafError
from graf.tensors import tensors_of

import numpy as np
import pytest
import torch


def assert_rotations(rotation):
    eye = torch.eye(3).expand_as(rotation)
    torch.testing.assert_close(rotation.mT @ rotation, eye, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(len(rotation)), atol=1e-5, rtol=0)


def test_position_in_hand_computed_places():
    u = torch.tensor([0.0, 0.25, 0.5, 0.0, 0.3])
    v = torch.tensor([0.5, 0.5, 0.25, 0.0, 1.0])
    # v = 0.25: cos polar = 0.5, sin polar = sqrt(3) / 2
    expected = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-math.sqrt(0.75), 0, 0.5], [0, 0, 1], [0, 0, -1]])
    torch.testing.assert_close(position_on_sphere(u, v), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("v", [0.0, 1.0, 1e-4, 0.5])
def test_the_gradient_of_a_position_is_finite_at_the_poles_too(v):
    v, u = torch.tensor([v], dtype=torch.float64, requires_grad=True), torch.tensor([0.1], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(position_on_sphere(u, v).sum(), v)
    turn = 2 * math.pi * 0.1
    slope = 0 if v in (0, 1) else (1 - 2 * v) / (v - v**2).sqrt()  # of the sine, 2 sqrt(v - v^2)
    torch.testing.assert_close(gradient, slope * (math.cos(turn) + math.sin(turn)) - 2 + 0 * v)


def test_camera_at_azimuth_zero_looks_along_minus_x_with_z_up():
    pose = poses_at(torch.tensor([0.0]), torch.tensor([0.5]), 3.0)[0]
    right, up, backward, position = pose.unbind(-1)
    torch.testing.assert_close(position, torch.tensor([3.0, 0, 0]))
    torch.testing.assert_close(-backward, torch.tensor([-1.0, 0, 0]))
    torch.testing.assert_close(up, torch.tensor([0.0, 0, 1]))
    torch.testing.assert_close(right, torch.tensor([0.0, 1, 0]))


def test_every_camera_sees_the_origin_ahead_at_its_radius_and_the_zenith_above():
    position = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * 4
    pose = look_at_origin(position)
    origin_in_camera = (pose[..., :3].mT @ -pose[..., 3:])[..., 0]
    ahead = torch.stack([torch.zeros(200), torch.zeros(200), -position.norm(dim=-1)], dim=-1)
    torch.testing.assert_close(origin_in_camera, ahead, atol=1e-5, rtol=0)
    assert_rotations(pose[..., :3])
    assert (pose[:, 2, 1] > 0).all()  # the camera's y axis points upwards
    torch.testing.assert_close(pose[:, 2, 0], torch.zeros(200))  # and its x axis is level


@pytest.mark.parametrize("v", [0.0, 1.0, 1e-9, 1 - 1e-7])
def test_poles_have_proper_cameras(v):
    pose = poses_at(torch.tensor([0.0, 77.0]), torch.full((2,), v), 2.0)
    assert torch.isfinite(pose).all()
    assert_rotations(pose[..., :3])
    torch.testing.assert_close(pose[:, 2, 3].abs(), torch.full((2,), 2.0), atol=1e-5, rtol=0)


def test_straight_above_the_camera_keeps_the_worlds_x():
    pose = poses_at(torch.tensor([123.0]), torch.tensor([0.0]), 1.0)[0]
    torch.testing.assert_close(pose[:, :3], torch.eye(3))


@pytest.mark.parametrize("v", [1.5, -0.01, 20.0])
def test_a_polar_position_that_there_is_not_is_an_error(v):
    with pytest.raises(GrafError, match=f"v: from {min(v, 0.5):g} to {max(v, 0.5):g}, where 0 is straight above"):
        poses_at(torch.zeros(2), torch.tensor([0.5, v]), 3.6)
    poses_at(torch.zeros(2), torch.tensor([-1e-7, 1 + 1e-7]), 3.6)  # as rounding leaves them


def test_one_number_is_the_same_for_all_cameras():
    azimuths = torch.tensor([0.0, 90.0, 180.0])
    expected = poses_at(azimuths, torch.full((3,), 0.35), 3.6)
    for angles, v in ((azimuths, 0.35), (azimuths.long(), torch.tensor(0.35)), (azimuths, np.float64(0.35))):
        assert torch.equal(poses_at(angles, v, 3.6), expected)
    assert torch.equal(poses_at(90, 0.35, 3.6), expected[1]) and poses_at(azimuths.double(), 0.5, 1).dtype == torch.float64
    elsewhere = azimuths.to("meta")
    assert poses_at(elsewhere, 0.35, 3.6).shape == poses_at(90, elsewhere, 3.6).shape == (3, 3, 4)


def test_azimuth_and_v_is_the_inverse_of_poses_at():
    azimuth = torch.linspace(0.5, 359.5, 30).repeat(7)
    v = torch.linspace(0.01, 0.99, 7).repeat_interleave(30)
    radius = torch.linspace(0.5, 20, 210)
    back_azimuth, back_v = azimuth_and_v(poses_at(azimuth, v, radius))
    torch.testing.assert_close(back_azimuth, azimuth, atol=1e-3, rtol=0)
    torch.testing.assert_close(back_v, v, atol=1e-5, rtol=0)


def test_azimuth_is_counted_modulo_360():
    azimuth, _ = azimuth_and_v(poses_at(torch.tensor([-90.0, 450.0]), torch.tensor([0.5, 0.5]), 1.0))
    torch.testing.assert_close(azimuth, torch.tensor([270.0, 90.0]), atol=1e-3, rtol=0)


def test_azimuth_stays_below_360_a_hair_before_the_x_axis():
    pose = look_at_origin(torch.tensor([1.0, -1e-9, 0.0]))
    azimuth, _ = azimuth_and_v(pose)
    assert 0 <= azimuth < 360  # as the docstring has it


def test_focal_length_of_a_right_angle_is_half_the_width():
    assert focal_length(90, 64) == pytest.approx(32)
    assert focal_length(60, 100) == pytest.approx(50 * math.sqrt(3))


def test_drawn_cameras_fill_the_configs_ranges_and_no_more(smoke):
    data = smoke("data.umin=0.25", "data.umax=0.5", "data.vmin=0.1", "data.vmax=0.3", "data.radius=[2, 3]", "data.near=2").data
    pose = sample_poses(2000, data, torch.Generator().manual_seed(0))
    azimuth, v = azimuth_and_v(pose)
    radius = pose[..., 3].norm(dim=-1)
    for value, low, high in ((azimuth, 90, 180), (v, 0.1, 0.3), (radius, 2, 3)):
        slack, span = 1e-3, high - low
        assert low - slack <= value.min() < low + 0.01 * span
        assert high - 0.01 * span < value.max() <= high + slack
        assert value.mean() == pytest.approx((low + high) / 2, abs=0.03 * span)  # 0.29 / sqrt(2000) = 0.0065 is one sigma


def angles_deg(pose_c2w):
    """Azimuths in -180..180 and elevations, degrees."""
    azimuth_deg, v = azimuth_and_v(pose_c2w)
    return (azimuth_deg + 180) % 360 - 180, torch.rad2deg(torch.asin(1 - 2 * v))


def test_cameras_before_the_front_are_gaussian_in_azimuth_and_elevation(smoke):
    n, radius = 4000, ("data.radius=[3, 4]", "data.near=2")
    data = smoke("data.camera_prior=front", "data.azimuth_std_deg=20", "data.elevation_std_deg=10", *radius).data
    pose_c2w = sample_poses(n, data, torch.Generator().manual_seed(0))
    for angle_deg, std in zip(angles_deg(pose_c2w), (20, 10), strict=True):
        angle_deg = angle_deg / std
        assert angle_deg.mean().abs() < 3 / math.sqrt(n)
        assert angle_deg.std() == pytest.approx(1, abs=3 / math.sqrt(2 * n))
        assert (angle_deg**4).mean() == pytest.approx(3, abs=3 * math.sqrt(96 / n))  # of a Gaussian: 3, variance 105 - 9
        assert (angle_deg.abs() < 2).float().mean() == pytest.approx(0.9545, abs=0.01)
    azimuth_deg, elevation_deg = angles_deg(pose_c2w)
    assert torch.corrcoef(torch.stack([azimuth_deg, elevation_deg]))[0, 1].abs() < 3 / math.sqrt(n)
    distances = pose_c2w[..., 3].norm(dim=-1)
    assert distances.min() >= 3 - 1e-4 and distances.max() <= 4 + 1e-4 and distances.mean() == pytest.approx(3.5, abs=0.02)


def test_a_gaussian_of_no_width_is_one_camera_and_a_wide_one_stays_on_the_sphere(smoke):
    point = smoke("data.camera_prior=front", "data.azimuth_std_deg=0", "data.elevation_std_deg=0").data
    expected = poses_at(torch.zeros(5), torch.full((5,), 0.5), 3.6)
    torch.testing.assert_close(sample_poses(5, point, torch.Generator().manual_seed(0)), expected)
    wide = smoke("data.camera_prior=front", "data.azimuth_std_deg=60", "data.elevation_std_deg=40").data
    poses = sample_poses(2000, wide, torch.Generator().manual_seed(0))
    assert poses.isfinite().all()
    _, elevation_deg = angles_deg(poses)
    assert (elevation_deg.abs() > 89.9).float().mean() == pytest.approx(0.0244, abs=0.01)  # at the poles, of 90 / 40 deviations


def test_paths_stay_within_two_standard_deviations_of_the_front(smoke):
    data = smoke("data.camera_prior=front", "data.azimuth_std_deg=20", "data.elevation_std_deg=10").data
    assert view_azimuths(5, data).tolist() == pytest.approx([-40, -20, 0, 20, 40], abs=1e-4)
    azimuth_deg, elevation_deg = angles_deg(rotation_poses(4, data))
    assert azimuth_deg.tolist() == pytest.approx([-40, 0, 40, 0], abs=1e-3)
    assert elevation_deg.tolist() == pytest.approx([0] * 4, abs=1e-3)
    azimuth_deg, elevation_deg = angles_deg(elevation_poses(4, data))
    assert elevation_deg.tolist() == pytest.approx([20, 0, -20, 0], abs=1e-3)
    assert azimuth_deg.tolist() == pytest.approx([30 * 80 / 360] * 4, abs=1e-3)


@pytest.mark.parametrize("plane_deg", [0.0, 30.0, -100.0])
def test_a_mirrored_camera_stands_across_the_plane_and_rolls_the_other_way(plane_deg):
    azimuth_deg, v = torch.tensor([0.0, 50.0, 200.0, 359.0]), torch.tensor([0.5, 0.3, 0.6, 0.1])
    for roll_deg in (0.0, 15.0):
        pose_c2w = rolled(poses_at(azimuth_deg, v, 2.5), roll_deg)
        expected = rolled(poses_at(2 * plane_deg - azimuth_deg, v, 2.5), -roll_deg)
        torch.testing.assert_close(mirrored_poses(pose_c2w, plane_deg), expected, atol=2e-6, rtol=0)
        torch.testing.assert_close(mirrored_poses(mirrored_poses(pose_c2w, plane_deg), plane_deg), pose_c2w)
        assert_rotations(mirrored_poses(pose_c2w, plane_deg)[..., :3])


def test_labels_are_mirrored_where_asked():
    labels = Labels(
        poses_at(torch.tensor([10.0, 20.0]), torch.tensor([0.4, 0.4]), 3.0), torch.tensor([1, 2]), torch.tensor([0, 3])
    )
    found = labels.mirrored(torch.tensor([True, False]), 90.0)
    assert azimuth_and_v(found.pose_c2w)[0].tolist() == pytest.approx([170, 20], abs=1e-3)
    assert torch.equal(found.class_index, labels.class_index) and torch.equal(found.elevation_index, labels.elevation_index)
    assert labels.mirrored(torch.tensor([True, True]), "none") is labels
    unposed = dataclasses.replace(labels, pose_c2w=None)
    assert unposed.mirrored(torch.tensor([True, True]), 90.0) is unposed


def test_drawn_cameras_follow_their_generator_alone(smoke):
    data = smoke().data
    torch.manual_seed(1)
    first = sample_poses(3, data, torch.Generator().manual_seed(5))
    torch.manual_seed(2)
    assert torch.equal(first, sample_poses(3, data, torch.Generator().manual_seed(5)))


def test_view_azimuths_do_not_meet_their_start_on_a_full_circle(smoke):
    assert view_azimuths(4, smoke().data).tolist() == [0, 90, 180, 270]
    assert view_azimuths(4, smoke("data.umin=-0.5", "data.umax=0.5").data).tolist() == [-180, -90, 0, 90]
    part = view_azimuths(3, smoke("data.umin=0.25", "data.umax=0.5").data)
    torch.testing.assert_close(part, torch.tensor([90.0, 135.0, 180.0]))


def test_rotation_goes_once_around_at_mid_height(smoke):
    data = smoke("data.vmin=0.2", "data.vmax=0.4", "data.radius=[3, 4]").data
    azimuth, v = azimuth_and_v(rotation_poses(8, data))
    torch.testing.assert_close(azimuth, torch.arange(8) * 45.0, atol=1e-3, rtol=0)
    torch.testing.assert_close(v, torch.full((8,), 0.3))
    torch.testing.assert_close(rotation_poses(8, data)[..., 3].norm(dim=-1), torch.full((8,), 3.5))


def test_rotation_over_a_part_of_the_circle_swings_back(smoke):
    azimuth, _ = azimuth_and_v(rotation_poses(4, smoke("data.umin=0.25", "data.umax=0.5").data))
    torch.testing.assert_close(azimuth, torch.tensor([90.0, 135.0, 180.0, 135.0]), atol=1e-3, rtol=0)


def test_elevation_trajectory_goes_from_vmin_to_vmax_and_back(smoke):
    _, v = azimuth_and_v(elevation_poses(4, smoke("data.vmin=0.2", "data.vmax=0.4").data))
    torch.testing.assert_close(v, torch.tensor([0.2, 0.3, 0.4, 0.3]), atol=1e-5, rtol=0)


def test_elevations_are_seen_from_the_side_within_the_configs_azimuths(smoke):
    """A twelfth of the range beside its middle: 30 degrees of a circle, 3 of 36 degrees."""
    for umax, expected in ((1.0, 210.0), (0.1, 21.0)):
        azimuth, _ = azimuth_and_v(elevation_poses(4, smoke("data.umin=0", f"data.umax={umax}").data))
        torch.testing.assert_close(azimuth, torch.full((4,), expected), atol=1e-3, rtol=0)


def test_sweep_is_every_elevation_with_every_azimuth(smoke):
    data = smoke().data
    pose = sweep_poses([0.0, 120.0], [-30.0, 0.0, 30.0], data)
    azimuth, v = azimuth_and_v(pose)
    torch.testing.assert_close(azimuth, torch.tensor([0.0, 120.0]).repeat(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(v, torch.tensor([0.75, 0.75, 0.5, 0.5, 0.25, 0.25]))  # (1 - sin) / 2
    assert [elevation_of_v(value) for value in (0.75, 0.5, 0.25)] == pytest.approx([-30, 0, 30])
    torch.testing.assert_close(elevations_of_v(torch.tensor([0.75, -1e-7, 1 + 1e-7])), torch.tensor([-30.0, 90.0, -90.0]))


def test_whole_degrees_are_as_good_as_fractions(smoke):
    data = smoke("data.radius=3.6").data
    torch.testing.assert_close(sweep_poses([0, 90], [0, 30], data), sweep_poses([0.0, 90.0], [0.0, 30.0], data))


def test_labels_are_sliced_together(labels):
    part = labels[torch.tensor([2, 0])]
    assert len(part) == 2
    assert torch.equal(part.pose_c2w, labels.pose_c2w[[2, 0]])
    assert part.class_index.tolist() == [1, 0]
    assert part.elevation_index.tolist() == [2, 0]


def test_labels_follow_others_without_cameras_where_some_have_none(labels):
    both = labels[:1].followed_by(labels[1:])
    assert all(torch.equal(value, of_all) for value, of_all in zip(tensors_of(both), tensors_of(labels), strict=True))
    unknown = dataclasses.replace(labels, pose_c2w=None)
    for both in (labels.followed_by(unknown), unknown.followed_by(labels)):
        assert both.pose_c2w is None and both.class_index.tolist() == 2 * labels.class_index.tolist()


def test_labels_of_poses_are_of_the_first_class(labels):
    bare = Labels.of_poses(labels.pose_c2w)
    assert bare.class_index.tolist() == bare.elevation_index.tolist() == [0, 0, 0, 0]
    assert bare.class_index.dtype == torch.long
