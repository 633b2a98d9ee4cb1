"""Rotations and rigid motions: six numbers to a rotation, a rotation to its vector, and the motion between two cameras.

A rotation R (..., 3, 3) has its axes in its columns. A rigid pose (..., 3, 4) is [R | t], as pose_c2w is.
"""

import math
from typing import NamedTuple

from graf.camera import azimuth_and_v, elevations_of_v

import torch
from torch import Tensor
from torch.nn import functional as F

NEAR_DEG = 15.0  # azimuth errors that count as right
GUESSED_RIGHT = NEAR_DEG / 180  # share of guessed azimuths that are right
SMALL_ANGLE = 1e-3  # radians: below it angle / sin(angle) is 1 to float32's precision


def rotation_of_six(six: Tensor) -> Tensor:
    """R (..., 3, 3) of six numbers (..., 6): its first two columns before they are made orthonormal (Zhou et al. 2019, eq. 15).

    Unlike angles and quaternions these have no place where close rotations are far apart.
    """
    x = F.normalize(six[..., :3], dim=-1)
    y = six[..., 3:]
    y = F.normalize(y - (x * y).sum(-1, keepdim=True) * x, dim=-1)
    return torch.stack([x, y, torch.linalg.cross(x, y, dim=-1)], dim=-1)


def rotation_vector(rotation: Tensor) -> Tensor:
    """Axis times angle in radians (..., 3), of length in [0, pi], of R (..., 3, 3): the logarithm, in float64 inside."""
    r = rotation.double()
    twice_sine = torch.stack([r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]], dim=-1)
    cosine = (r.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) - 1) / 2
    sine = twice_sine.norm(dim=-1, keepdim=True) / 2
    angle = torch.atan2(sine, cosine)
    vector = twice_sine / 2 * torch.where(angle < SMALL_ANGLE, 1.0, angle / sine.clamp_min(1e-30))
    return torch.where(math.pi - angle < SMALL_ANGLE, _near_half_turn(r, twice_sine, angle), vector).to(rotation.dtype)


def _near_half_turn(r: Tensor, twice_sine: Tensor, angle: Tensor) -> Tensor:
    """The logarithm where the sine vanishes: the axis is in (R + R^T) / 2 + I, whose longest column is taken."""
    both = (r + r.mT) / 2 + torch.eye(3, dtype=r.dtype, device=r.device)
    column = both.diagonal(dim1=-2, dim2=-1).argmax(-1)
    axis = F.normalize(both.gather(-1, column[..., None, None].expand(*column.shape, 3, 1))[..., 0], dim=-1)
    sign = torch.where((axis * twice_sine).sum(-1, keepdim=True) < 0, -1.0, 1.0)
    return sign * axis * angle


def nearest_vector(vector: Tensor, reference: Tensor) -> Tensor:
    """v or v - 2 pi v / |v|, both (..., 3) and the same rotation: whichever is nearer to the reference (..., 3).

    So 179 and -179 degrees about one axis are compared as 179 and 181.
    """
    length = vector.norm(dim=-1, keepdim=True)
    other = vector - 2 * math.pi * vector / length.clamp_min(1e-12)
    nearer = (other - reference).norm(dim=-1, keepdim=True) < (vector - reference).norm(dim=-1, keepdim=True)
    return torch.where(nearer, other, vector)


def angle_between_deg(rotation: Tensor, other: Tensor) -> Tensor:
    """Angle (...) in [0, 180] degrees of the rotation that takes one R (..., 3, 3) to the other."""
    return torch.rad2deg(rotation_vector(rotation.mT @ other).norm(dim=-1))


def relative_motion(pose: Tensor, other: Tensor) -> Tensor:
    """The other camera as the first one sees it: inverse(pose) composed with other, each (..., 3, 4)."""
    inverse = pose[..., :3].mT
    return torch.cat([inverse @ other[..., :3], inverse @ (other[..., 3:] - pose[..., 3:])], dim=-1)


def six_of_freedom(pose: Tensor) -> Tensor:
    """Translation in scene units and rotation vector in radians (..., 6) of a rigid pose (..., 3, 4)."""
    return torch.cat([pose[..., 3], rotation_vector(pose[..., :3])], dim=-1)


def circular_distance(azimuth_deg: Tensor, other_deg: Tensor) -> Tensor:
    """The angle (...) in [0, 180] degrees between azimuths: 359 and 1 are 2 apart."""
    turn = (azimuth_deg - other_deg).abs() % 360
    return torch.minimum(turn, 360 - turn)


class PoseErrors(NamedTuple):
    """Errors of N predicted cameras, each (N,) >= 0, degrees: azimuth and elevation of their places, and full rotation."""

    azimuth_deg: Tensor
    elevation_deg: Tensor
    rotation_deg: Tensor


def pose_errors(predicted: Tensor, true: Tensor) -> PoseErrors:
    """Errors of pose_c2w (N, 3, 4). Azimuths of 359 and 1 degree are 2 degrees apart."""
    (azimuth, v), (true_azimuth, true_v) = azimuth_and_v(predicted.double()), azimuth_and_v(true.double())
    return PoseErrors(
        circular_distance(azimuth, true_azimuth).float(),
        (elevations_of_v(v) - elevations_of_v(true_v)).abs().float(),
        angle_between_deg(predicted[..., :3], true[..., :3]).float(),
    )
