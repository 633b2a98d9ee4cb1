"""Cameras: poses on the sphere, look_at, focal lengths and trajectories.

The world is z-up. A pose_c2w (..., 3, 4) takes camera coordinates to the world; the camera looks along its own -z, y is up.
A camera's position on the sphere is given by u = azimuth / 360 degrees and v = (1 - cos(polar angle)) / 2.
"""

import dataclasses
import math
from typing import Literal

from graf.config import DataConfig
from graf.errors import GrafError
from graf.tensors import Rows, each_tensor

import torch
from torch import Tensor

ROUNDING = 1e-5  # of `azimuth_and_v`, straight above and below


@dataclasses.dataclass(frozen=True)
class Labels(Rows):
    """The known properties of B views: the camera, the class and the elevation bin.

    pose_c2w (B, 3, 4), None for images without known cameras; class_index (B,) and elevation_index (B,) int64, zeros
    where the data has none.
    """

    pose_c2w: Tensor | None
    class_index: Tensor
    elevation_index: Tensor

    @classmethod
    def of_poses(cls, pose_c2w: Tensor) -> "Labels":
        """Labels of cameras alone: class and elevation bin are 0."""
        zeros = torch.zeros(len(pose_c2w), dtype=torch.long, device=pose_c2w.device)
        return cls(pose_c2w, zeros, zeros)

    def followed_by(self, others: "Labels") -> "Labels":
        """Labels of these views and of others; without cameras if those of some are not known."""
        poses = self.pose_c2w, others.pose_c2w
        return Labels(
            None if any(pose is None for pose in poses) else torch.cat(poses),
            torch.cat([self.class_index, others.class_index]),
            torch.cat([self.elevation_index, others.elevation_index]),
        )

    def with_cameras(self, sampled: "Labels") -> "Labels":
        """These labels, with the sampled ones' cameras where none are known."""
        return self if self.pose_c2w is not None else dataclasses.replace(self, pose_c2w=sampled.pose_c2w)

    def to(self, device: torch.device | str) -> "Labels":
        without_waiting = torch.device(device).type == "cuda"  # others may copy what has been freed by then
        return each_tensor(self, lambda values: values.to(device, non_blocking=without_waiting))

    def mirrored(self, flips: Tensor, plane_deg: float | Literal["none"]) -> "Labels":
        """These labels, with known cameras mirrored where flips (B,) is true, unless data.mirror is none."""
        if plane_deg == "none" or self.pose_c2w is None:
            return self
        poses = torch.where(flips[:, None, None], mirrored_poses(self.pose_c2w, plane_deg), self.pose_c2w)
        return dataclasses.replace(self, pose_c2w=poses)

    def __len__(self) -> int:
        return len(self.class_index)


def position_on_sphere(u: Tensor, v: Tensor) -> Tensor:
    """Unit vectors (..., 3) of u = azimuth / 360 degrees and v = (1 - cos polar) / 2 (GRAF, appendix)."""
    azimuth = 2 * math.pi * u
    cos_polar = 1 - 2 * v
    square = 1 - cos_polar**2
    root = square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()
    sin_polar = torch.where(square > 0, root, 0)  # whose gradient at a pole is 0, not infinite
    return torch.stack([sin_polar * azimuth.cos(), sin_polar * azimuth.sin(), cos_polar], dim=-1)


def look_at_origin(position: Tensor) -> Tensor:
    """pose_c2w (..., 3, 4) of cameras at position (..., 3) that look at the origin with the world's z up.

    Straight above or below, where up is undefined, the camera's x axis is the world's x.
    """
    backward = torch.nn.functional.normalize(position, dim=-1)
    world_x, _, up = torch.eye(3, dtype=position.dtype, device=position.device)
    right = torch.linalg.cross(up.expand_as(position), backward, dim=-1)
    right = torch.where(right.norm(dim=-1, keepdim=True) < 1e-6, world_x, right)
    right = torch.nn.functional.normalize(right, dim=-1)
    above = torch.linalg.cross(backward, right, dim=-1)
    return torch.stack([right, above, backward, position], dim=-1)


def poses_at(azimuth_deg: float | Tensor, v: float | Tensor, radius: float | Tensor) -> Tensor:
    """pose_c2w (..., 3, 4) of cameras that look at the origin from azimuth_deg and v at a distance in scene units; a number
    holds for all.

    Raises GrafError for v outside [0, 1]; on a GPU, where the answer would have to be waited for, it is not checked.
    """
    device = next((x.device for x in (azimuth_deg, v) if isinstance(x, Tensor)), None)
    azimuth_deg, v = torch.broadcast_tensors(*(_floating(x, device) for x in (azimuth_deg, v)))
    if v.device.type == "cpu" and bool(((v < -ROUNDING) | (v > 1 + ROUNDING)).any()):
        raise GrafError(
            f"v: from {v.min().item():g} to {v.max().item():g}, where 0 is straight above and 1 straight below; at an "
            "elevation above the horizon it is (1 - sin(elevation)) / 2"
        )
    direction = position_on_sphere(azimuth_deg / 360, v)
    return look_at_origin(direction * (radius.to(direction)[..., None] if isinstance(radius, Tensor) else radius))


def _floating(x: float | Tensor, device: torch.device | None) -> Tensor:
    return x if isinstance(x, Tensor) and x.is_floating_point() else torch.as_tensor(x, dtype=torch.float32, device=device)


def sample_poses(n: int, data: DataConfig, rng: torch.Generator) -> Tensor:
    """pose_c2w (n, 3, 4) sampled from the config's camera_prior, at distances uniform over its radius, on the CPU.

    `circle` is uniform over umin..umax and vmin..vmax (GRAF). `front` is Gaussian in azimuth and elevation (pi-GAN, Chan et al.
    2021), about azimuth 0 and the horizon.
    """
    if data.camera_prior == "front":
        azimuth_deg = data.azimuth_std_deg * torch.randn(n, generator=rng)
        v = v_of_elevations((data.elevation_std_deg * torch.randn(n, generator=rng)).clamp(-90, 90))
    else:
        azimuth_deg = 360 * _uniform(n, data.umin, data.umax, rng)
        v = _uniform(n, data.vmin, data.vmax, rng)
    return poses_at(azimuth_deg, v, _uniform(n, *data.radius, rng))


def _uniform(n: int, low: float, high: float, rng: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=rng)


def mirrored_poses(pose_c2w: Tensor, plane_deg: float) -> Tensor:
    """pose_c2w (..., 3, 4) mirrored in the vertical plane through the origin at azimuth plane_deg: azimuth a becomes
    2 plane_deg - a, elevations stay, and a roll turns the other way.

    A mirrored camera is left-handed; with its x axis negated it is a rotation again, looks the same way, and sees a mirrored
    object as a mirrored image (EG3D, Chan et al. 2022): pose' = M R diag(-1, 1, 1) | M t.
    """
    mirrored = pose_c2w.clone()
    mirrored[..., 1, :].neg_()  # in the x-z plane
    mirrored[..., 0].neg_()
    if plane_deg == 0:
        return mirrored
    cos, sin = math.cos(math.radians(2 * plane_deg)), math.sin(math.radians(2 * plane_deg))
    x, y, z = mirrored.unbind(-2)
    return torch.stack([cos * x - sin * y, sin * x + cos * y, z], dim=-2)


def azimuth_and_v(pose_c2w: Tensor) -> tuple[Tensor, Tensor]:
    """azimuth_deg in [0, 360) and v in [0, 1], each (...), of where the cameras stand: the inverse of `poses_at`."""
    position = torch.nn.functional.normalize(pose_c2w[..., 3], dim=-1)
    azimuth_deg = torch.rad2deg(torch.atan2(position[..., 1], position[..., 0])) % 360
    azimuth_deg = azimuth_deg.masked_fill(azimuth_deg == 360, 0)  # what -1e-9 % 360 rounds to
    return azimuth_deg, (1 - position[..., 2]) / 2


def focal_length(fov_deg: float, width: int) -> float:
    """Focal length in pixels of a horizontal field of view in degrees."""
    return width / 2 / math.tan(math.radians(fov_deg) / 2)


def pixel_size(depth: Tensor, width: int, data: DataConfig) -> Tensor:
    """Distance in scene units between the rays of neighbouring pixels, at planar depths (...), in frames of `width` pixels."""
    if data.orthographic:
        return torch.full_like(depth, (data.far - data.near) / width)
    return depth / focal_length(data.fov, width)


def project(points: Tensor, pose_c2w: Tensor, width: int, data: DataConfig) -> tuple[Tensor, Tensor]:
    """Project points (..., P, 3) of the world into cameras (..., 3, 4): the inverse of `graf.rays.camera_rays`.

    Returns positions (..., P, 2) as (x, y) in pixels of the frame of `width`, and planar depths (..., P) in scene units,
    positive before the camera.
    """
    rotation, origin = pose_c2w[..., None, :, :3], pose_c2w[..., None, :, 3]
    in_camera = ((points - origin)[..., None] * rotation).sum(-2)  # rotation^T (p - o)
    depth = -in_camera[..., 2]
    x, y = (in_camera[..., :2] / pixel_size(depth, width, data)[..., None]).unbind(-1)
    return torch.stack([x, -y], dim=-1) + width / 2, depth


def view_azimuths(n: int, data: DataConfig) -> Tensor:
    """n azimuths in degrees, evenly spaced over the config's u_range: a full circle, or an arc with both ends included."""
    left, right = data.u_range
    if right - left >= 1:
        return 360 * left + torch.arange(n) * (360 / n)
    return 360 * torch.linspace(left, right, n)


def middle_poses(azimuth_deg: Tensor, data: DataConfig) -> Tensor:
    """pose_c2w (..., 3, 4) from azimuth_deg (...), at the middle of the config's heights and distances."""
    return poses_at(azimuth_deg, torch.full_like(azimuth_deg, sum(data.v_range) / 2), sum(data.radius) / 2)


def rotation_poses(n: int, data: DataConfig) -> Tensor:
    """pose_c2w (n, 3, 4) once around the object, or back and forth where the config's u_range is an arc; at mid height."""
    left, right = data.u_range
    return middle_poses(360 * _swing(n, left, right) if right - left < 1 else view_azimuths(n, data), data)


def side_azimuth(data: DataConfig) -> float:
    """Degrees, a little to the side of the middle of the config's u_range, and within it."""
    left, right = data.u_range
    return 180.0 * (left + right) + 30 * min(1, right - left)


def side_pose(data: DataConfig) -> Tensor:
    """pose_c2w (3, 4) at `side_azimuth` and mid height: where image grids look from, and the viewer at first."""
    return middle_poses(torch.tensor(side_azimuth(data)), data)


def elevation_poses(n: int, data: DataConfig) -> Tensor:
    """pose_c2w (n, 3, 4) through the config's v_range and back, at `side_azimuth`."""
    azimuth_deg = torch.full((n,), side_azimuth(data))
    return poses_at(azimuth_deg, _swing(n, *data.v_range), sum(data.radius) / 2)


def sweep_poses(azimuths_deg: list[float], elevations_deg: list[float], data: DataConfig) -> Tensor:
    """pose_c2w (E * A, 3, 4) of every elevation (degrees above the horizon) with every azimuth, elevation by elevation."""
    elevation, azimuth = torch.meshgrid(torch.tensor(elevations_deg), torch.tensor(azimuths_deg), indexing="ij")
    return poses_at(azimuth.flatten(), v_of_elevations(elevation.flatten()), sum(data.radius) / 2)


def elevation_of_v(v: float) -> float:
    """Degrees above the horizon of a polar position v."""
    return math.degrees(math.asin(1 - 2 * v))


def v_of_elevation(elevation_deg: float) -> float:
    """The polar position v of degrees above the horizon."""
    return v_of_elevations(torch.tensor(elevation_deg, dtype=torch.float64)).item()


def v_of_elevations(elevation_deg: Tensor) -> Tensor:
    """`v_of_elevation` of a tensor (...), with a gradient."""
    return (1 - torch.sin(torch.deg2rad(elevation_deg))) / 2


def elevations_of_v(v: Tensor) -> Tensor:
    """`elevation_of_v` of a tensor (...), whose values may be beyond [0, 1] by rounding."""
    return torch.rad2deg(torch.asin((1 - 2 * v).clamp(-1, 1)))


def _swing(n: int, low: float, high: float) -> Tensor:
    """n values from low to high and back, slowing at the ends."""
    return low + (high - low) * (1 - torch.cos(torch.arange(n) * (2 * math.pi / n))) / 2
