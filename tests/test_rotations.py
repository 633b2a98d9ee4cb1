"""Rotations of six numbers, their vectors, and the motion between two cameras, against angles worked out by hand."""

import math

from graf.camera import poses_at
from graf.rotations import (
    angle_between_deg,
    circular_distance,
    nearest_vector,
    pose_errors,
    relative_motion,
    rotation_of_six,
    rotation_vector,
    six_of_freedom,
)

import pytest
import torch


def about_z(degrees):
    a = math.radians(degrees)
    return torch.tensor([[math.cos(a), -math.sin(a), 0.0], [math.sin(a), math.cos(a), 0.0], [0.0, 0.0, 1.0]])


def turned(vector):
    """R of a rotation vector, by the matrix exponential."""
    x, y, z = vector.double()
    zero = torch.zeros((), dtype=torch.float64)
    return torch.linalg.matrix_exp(torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).view(3, 3)).to(vector.dtype)


def test_six_numbers_become_a_rotation_whose_first_column_is_their_direction():
    rotation = rotation_of_six(torch.tensor([2.0, 0.0, 0.0, 5.0, 3.0, 0.0]))
    torch.testing.assert_close(rotation, torch.eye(3))


def test_any_six_numbers_give_a_rotation():
    rotation = rotation_of_six(torch.randn(100, 6, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(rotation.mT @ rotation, torch.eye(3).expand(100, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(100))


def test_a_rotation_is_that_of_its_own_six_numbers():
    rotation = about_z(200)
    torch.testing.assert_close(rotation_of_six(rotation[:, :2].mT.reshape(6)), rotation)


@pytest.mark.parametrize("degrees", [0.0, 1e-3, 0.05, 30.0, 90.0, 179.9, 179.99, 180.0])
@pytest.mark.parametrize("axis", [(0, 0, 1), (1, 0, 0), (0.6, 0.0, -0.8), (-0.48, 0.6, 0.64)])
def test_a_rotation_vector_is_axis_times_angle_from_nothing_to_half_a_turn(degrees, axis):
    vector = math.radians(degrees) * torch.tensor(axis, dtype=torch.float64)
    found = rotation_vector(turned(vector))
    torch.testing.assert_close(turned(found), turned(vector), atol=1e-7, rtol=0)  # v and -v are one half turn
    assert float(found.norm()) == pytest.approx(math.radians(degrees), abs=1e-6)


def test_more_than_half_a_turn_is_less_the_other_way_round():
    torch.testing.assert_close(rotation_vector(about_z(350)), torch.tensor([0.0, 0.0, math.radians(-10)]))


def test_a_vector_is_compared_in_its_form_nearer_to_the_reference():
    up, down = torch.tensor([0.0, 0.0, math.radians(179)]), torch.tensor([0.0, 0.0, math.radians(-179)])
    torch.testing.assert_close(nearest_vector(down, up), torch.tensor([0.0, 0.0, math.radians(181)]))
    torch.testing.assert_close(nearest_vector(up, up), up)
    torch.testing.assert_close(nearest_vector(torch.zeros(3), up), torch.zeros(3))


def test_angles_wrap():
    assert float(angle_between_deg(about_z(359), about_z(2))) == pytest.approx(3, abs=1e-3)
    poses = poses_at(torch.tensor([359.0, 10.0]), torch.tensor([0.5, 0.5]), 3.6)
    true = poses_at(torch.tensor([2.0, 350.0]), torch.tensor([0.5, 0.25]), 3.6)
    errors = pose_errors(poses, true)
    torch.testing.assert_close(errors.azimuth_deg, torch.tensor([3.0, 20.0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(errors.elevation_deg, torch.tensor([0.0, 30.0]), atol=1e-3, rtol=0)  # asin(1 - 2 / 4)
    assert errors.rotation_deg[0].item() == pytest.approx(3, abs=1e-3)  # on the horizon, by which the azimuth differs


def test_relative_motion_takes_the_first_camera_to_the_second():
    first, second = poses_at(torch.tensor([10.0, 100.0]), torch.tensor([0.3, 0.45]), 3.6)
    motion = relative_motion(first, second)
    torch.testing.assert_close(first[:, :3] @ motion[:, :3], second[:, :3])
    torch.testing.assert_close(first[:, :3] @ motion[:, 3] + first[:, 3], second[:, 3])
    torch.testing.assert_close(relative_motion(first, first), torch.eye(3, 4), atol=1e-6, rtol=0)


def test_six_degrees_of_freedom_are_the_position_and_the_rotation_vector():
    pose = torch.cat([about_z(90), torch.tensor([[1.0], [2.0], [3.0]])], dim=1)
    torch.testing.assert_close(six_of_freedom(pose), torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, math.pi / 2]))


def test_azimuths_are_compared_around_the_circle():
    a, b = torch.tensor([350.0, 10.0, 0.0, 90.0]), torch.tensor([10.0, 350.0, 180.0, 91.5])
    assert circular_distance(a, b).tolist() == [20, 20, 180, 1.5]
