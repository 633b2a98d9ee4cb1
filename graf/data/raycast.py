"""Ray casting of convex solids: boxes with slanted sides, and discs (cylinders) whose axis is y.

A ray is inside a convex solid over one interval [t_in, t_out]: the latest entry and the earliest exit over its faces. Only rays
that meet the bounding box are traced.

Legend: R rays, the last dimension of large tensors, so that reductions run along memory; K boxes of 6 faces; D discs.
"""

from dataclasses import dataclass

from graf.rays import box_depths, nonzero

import torch
from torch import Tensor

LIGHT = (0.40, -0.50, 0.77)  # unit vector towards a light at the right, in front of and above the object
AMBIENT, DIFFUSE = 0.66, 0.42
RAY_CHUNK = 16384  # keeps the (6, K, R) temporaries at a few megabytes


@dataclass(frozen=True)
class Solids:
    """One object. faces (K, 6, 4): outward unit normal n and offset d, inside where n . x <= d; discs (D, 5): x, y, z of the
    centre, radius, half width along y; colours (K + D, 3) in [0, 1]; half_size (3,) of the bounding box around the origin."""

    faces: Tensor
    discs: Tensor
    colours: Tensor
    half_size: Tensor


def slanted_box(bottom: tuple[float, ...], top: tuple[float, ...], y: float = 0.0) -> list[list[float]]:
    """Six faces [nx, ny, nz, d] between two rectangles (x_rear, x_front, half_width, z), both centred on y."""
    (rear0, front0, half0, z0), (rear1, front1, half1, z1) = bottom, top
    height = z1 - z0
    faces = [[0.0, 0.0, -1.0, -z0], [0.0, 0.0, 1.0, z1]]
    for normal, point in (
        ((height, 0.0, front0 - front1), (front0, 0.0, z0)),
        ((-height, 0.0, rear1 - rear0), (rear0, 0.0, z0)),
        ((0.0, height, half0 - half1), (0.0, y + half0, z0)),
        ((0.0, -height, half0 - half1), (0.0, y - half0, z0)),
    ):
        length = sum(n * n for n in normal) ** 0.5
        unit = [n / length for n in normal]
        faces.append([*unit, sum(n * p for n, p in zip(unit, point, strict=True))])
    return faces


def cast(solids: Solids, rays_o: Tensor, rays_d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First hits of rays (R, 3): shaded colour (R, 3) in [0, 1], distance (R,) in units of rays_d, hit (R,) bool.

    Colour and distance are 0 where nothing is hit.
    """
    colour, distance = torch.zeros_like(rays_o), torch.zeros_like(rays_o[:, 0])
    hit = torch.zeros_like(distance, dtype=torch.bool)
    t_in, t_out = box_depths(torch.stack([-solids.half_size, solids.half_size]), rays_o, rays_d)
    for chunk in torch.nonzero(t_in < t_out)[:, 0].split(RAY_CHUNK):
        colour[chunk], distance[chunk], hit[chunk] = _trace(solids, rays_o[chunk], rays_d[chunk])
    return colour, distance, hit


def _trace(solids: Solids, rays_o: Tensor, rays_d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    box_in, box_out, face = _boxes(solids.faces, rays_o, rays_d)  # (K, R)
    disc_in, disc_out = _discs(solids.discs, rays_o, rays_d)  # (D, R)
    t_in = torch.cat([box_in, disc_in])
    inside = (t_in < torch.cat([box_out, disc_out])) & (t_in > 0)
    distance, solid = torch.where(inside, t_in, torch.inf).min(dim=0)  # (R,)
    hit = distance < torch.inf
    distance = torch.where(hit, distance, 0.0)

    n_boxes = len(solids.faces)
    box = solid.clamp(max=n_boxes - 1)
    box_normal = solids.faces[box, face.gather(0, box[None])[0], :3]  # (R, 3)
    point = rays_o + distance[:, None] * rays_d
    disc_normal = _disc_normal(solids.discs[(solid - n_boxes).clamp_min(0)], point)
    normal = torch.where((solid < n_boxes)[:, None], box_normal, disc_normal)
    light = torch.tensor(LIGHT, dtype=normal.dtype, device=normal.device)
    shade = AMBIENT + DIFFUSE * (normal @ light).clamp_min(0)  # Lambert
    colour = (solids.colours[solid] * shade[:, None]).clamp(0, 1)
    return colour * hit[:, None], distance, hit


def _boxes(faces: Tensor, rays_o: Tensor, rays_d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """t_in and t_out (K, R) and the face of entry (K, R)."""
    faces = faces.transpose(0, 1)  # (6, K, 4)
    speed = nonzero(faces[..., :3] @ rays_d.T)  # (6, K, R)
    t = (faces[..., 3:] - faces[..., :3] @ rays_o.T) / speed
    entering = speed < 0
    t_in, face = torch.where(entering, t, -torch.inf).max(dim=0)
    return t_in, torch.where(entering, torch.inf, t).amin(dim=0), face


def _discs(discs: Tensor, rays_o: Tensor, rays_d: Tensor) -> tuple[Tensor, Tensor]:
    """t_in and t_out (D, R)."""
    x, y, z, radius, half_width = discs[:, :, None].unbind(1)  # (D, 1)
    dx, dy, dz = rays_d.T  # (R,)
    ox, oy, oz = (o - centre for o, centre in zip(rays_o.T, (x, y, z), strict=True))  # (D, R)
    a = nonzero(dx * dx + dz * dz)
    b = ox * dx + oz * dz
    discriminant = b * b - a * (ox * ox + oz * oz - radius**2)
    root = discriminant.clamp_min(0).sqrt()
    inverse = 1 / nonzero(dy)
    cap_a, cap_b = (-half_width - oy) * inverse, (half_width - oy) * inverse
    t_in = torch.maximum((-b - root) / a, torch.minimum(cap_a, cap_b))
    t_out = torch.minimum((-b + root) / a, torch.maximum(cap_a, cap_b))
    return torch.where(discriminant > 0, t_in, torch.inf), t_out


def _disc_normal(disc: Tensor, point: Tensor) -> Tensor:
    """Outward unit normals (R, 3) at points (R, 3) on discs (R, 5), of the flat side or the rim, whichever is nearer."""
    offset = point - disc[:, :3]
    rim = offset * torch.tensor([1.0, 0.0, 1.0], dtype=point.dtype, device=point.device)
    off_rim = (rim.norm(dim=1) - disc[:, 3]).abs()
    off_side = (offset[:, 1].abs() - disc[:, 4]).abs()
    side = torch.zeros_like(offset)
    side[:, 1] = offset[:, 1].sign()
    return torch.where((off_side < off_rim)[:, None], side, torch.nn.functional.normalize(rim, dim=1))
