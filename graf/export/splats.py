"""One object as 3D Gaussian splats (Kerbl et al. 2023): flat discs on its mesh, in the file that splat viewers open.

Each vertex of the mesh becomes a Gaussian whose short axis is the normal; nothing is optimised. Like the mesh it has the
field's colours: CCSR refines images.

Legend: N splats, M pairs of a splat and a pixel, W side of a picture.
"""

import dataclasses
from pathlib import Path

from graf.camera import pixel_size, project
from graf.config import DataConfig
from graf.export.rasters import average_blocks, fineness, pixels_of_boxes, supersampled
from graf.runtime.files import whole_file

import numpy as np
import torch
import trimesh
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.nn import functional as F

SPREAD = 0.4  # standard deviation along the surface, of the longest edge at a vertex: with less, what is behind shines through
FLATNESS = 0.2  # of that, across the surface
OPACITY = 0.99
SH_C0 = 0.28209479177387814  # the spherical harmonic of degree 0
FIELDS = ("x", "y", "z", "nx", "ny", "nz", *(f"f_dc_{i}" for i in range(3)), "opacity")
FIELDS += (*(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4)))
Y_DOWN = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]])  # from z up: the file's axes are those of COLMAP
LOW_PASS = 0.3  # square pixels added to each variance, so that no splat falls between pixels; as 3DGS has it
LARGEST_ALPHA, SMALLEST_ALPHA = 0.99, 1 / 255  # of a splat at a pixel, as 3DGS has them


@dataclasses.dataclass(frozen=True)
class Splats:
    """means (N, 3) and scales (N, 3), which are standard deviations along the columns of axes (N, 3, 3), in scene units with z
    up; colours (N, 3) in [0, 1]; opacity (N,) in (0, 1)."""

    means: Tensor
    scales: Tensor
    axes: Tensor
    colours: Tensor
    opacity: Tensor


def splats_of_surface(mesh: trimesh.Trimesh) -> Splats:
    """A disc per vertex of a coloured mesh, as wide as its neighbours are far, across the vertex's normal."""
    means = torch.tensor(mesh.vertices, dtype=torch.float32)
    normals = F.normalize(torch.tensor(mesh.vertex_normals, dtype=torch.float32), dim=-1)
    normals[normals.norm(dim=-1) < 0.5] = torch.tensor([0.0, 0.0, 1.0])  # of faces without an area
    aside = F.one_hot(normals.abs().argmin(dim=-1), 3).to(normals)  # the world axis that is furthest from the normal
    first = F.normalize(torch.linalg.cross(normals, aside, dim=-1), dim=-1)
    axes = torch.stack([first, torch.linalg.cross(normals, first, dim=-1), normals], dim=-1)
    edges = torch.tensor(mesh.edges_unique)
    lengths = (means[edges[:, 0]] - means[edges[:, 1]]).norm(dim=-1).repeat(2)
    longest = torch.zeros(len(means)).scatter_reduce(0, edges.T.flatten(), lengths, "amax").clamp_min(1e-6)
    scales = SPREAD * longest[:, None] * torch.tensor([1.0, 1.0, FLATNESS])
    colours = torch.tensor(mesh.visual.vertex_colors[:, :3] / 255, dtype=torch.float32)
    return Splats(means, scales, axes, colours, torch.full((len(means),), OPACITY))


def write_splats(path: Path, splats: Splats) -> Path:
    """A binary PLY as the 3DGS authors' program writes it for spherical harmonics of degree 0: logit opacity, log scales, and a
    quaternion with its real part first. y is down and a front along +x stays there, which common viewers turn upright."""
    axes = Y_DOWN @ splats.axes
    x, y, z, w = Rotation.from_matrix(axes.double().numpy()).as_quat().T
    columns = (
        *(splats.means @ Y_DOWN.T, axes[..., 2], (splats.colours - 0.5) / SH_C0),
        *(splats.opacity.logit()[:, None], splats.scales.log(), torch.tensor(np.stack([w, x, y, z], axis=-1))),
    )
    header = ("ply", "format binary_little_endian 1.0", f"element vertex {len(splats.means)}")
    header += (*(f"property float {name}" for name in FIELDS), "end_header")
    with whole_file(path) as temporary:
        content = torch.cat([column.double() for column in columns], dim=-1).numpy().astype("<f4")
        temporary.write_bytes(("\n".join(header) + "\n").encode() + content.tobytes())
    return path


def render_splats(splats: Splats, pose_c2w: Tensor, width: int, data: DataConfig) -> tuple[Tensor, Tensor]:
    """Image (3, W, W) in [-1, 1] on the background and opacity (W, W), composited from front to back (3DGS, section 4).

    Drawn as large as in a viewer's window (`fineness`) and averaged: LOW_PASS is of the large picture.
    """
    centre, depth = project(splats.means, pose_c2w, width, data)
    factor = fineness(width)
    jacobian = factor * _jacobian(centre, depth, width, data)
    centre, width = supersampled(centre, factor), width * factor
    half = jacobian @ pose_c2w[:, :3].T @ splats.axes * splats.scales[:, None]  # (N, 2, 3)
    covariance = half @ half.mT + LOW_PASS * torch.eye(2)
    reach = 3 * covariance.diagonal(dim1=1, dim2=2).sqrt()
    reach = torch.where(depth[:, None] > 0, reach, -1.0)  # what is behind the camera has no box
    owner, pixel = pixels_of_boxes(centre - reach, centre + reach, width)
    off = pixel - centre[owner]
    power = (off[:, None] @ covariance.inverse()[owner] @ off[..., None])[:, 0, 0]
    alpha = (splats.opacity[owner] * torch.exp(-power / 2)).clamp_max(LARGEST_ALPHA).double()
    alpha = torch.where(alpha < SMALLEST_ALPHA, 0.0, alpha)

    # by pixel, and within it from front to back: the light that is left is a running product, taken over all pixels at once
    place = pixel[:, 1] * width + pixel[:, 0]
    order = depth[owner].argsort()
    order = order[place[order].argsort(stable=True)]
    owner, place, alpha = owner[order], place[order], alpha[order]
    passed = torch.log1p(-alpha)
    before = passed.cumsum(0) - passed
    start = torch.searchsorted(place, place)  # of its pixel
    weights = (alpha * torch.exp(before - before[start])).float()
    opacity = torch.zeros(width * width).index_add(0, place, weights)
    colour = torch.zeros(width * width, 3).index_add(0, place, weights[:, None] * splats.colours[owner])
    image = colour + (1 - opacity[:, None]) * torch.tensor(data.background)
    return average_blocks(torch.cat([2 * image.T - 1, opacity[None]]).view(4, width, width), factor)


def _jacobian(pixel: Tensor, depth: Tensor, width: int, data: DataConfig) -> Tensor:
    """Derivative (N, 2, 3) of pixel positions (N, 2) by the points in the camera's axes: x right, y up, z behind the camera."""
    scale = 1 / pixel_size(depth, width, data)
    x, y = (torch.zeros_like(pixel) if data.orthographic else (pixel - width / 2) / depth[:, None]).unbind(-1)
    zero = torch.zeros_like(depth)
    return torch.stack([scale, zero, x, zero, -scale, y], dim=-1).unflatten(-1, (2, 3))
