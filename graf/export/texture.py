"""The colours of a mesh as a texture: charts of its surface in one picture, laid out by xatlas, with the field's colours.

Legend: N vertices, F faces, M texels that a face covers, T side of the texture. (u, v) are in [0, 1]; in a Trimesh v points up.
"""

import importlib.util
from pathlib import Path

from graf.camera import project
from graf.config import DataConfig
from graf.errors import GrafError
from graf.export.mesh import Z_TO_Y_UP, styles_of, surface_colours
from graf.export.rasters import average_blocks, fineness, pixels_in_triangles, supersampled
from graf.models.generator import Generator
from graf.pictures.sampling import Objects

import numpy as np
import torch
import trimesh
from PIL import Image
from scipy.ndimage import distance_transform_edt
from torch import Tensor
from torch.nn import functional as F
from trimesh.visual import TextureVisuals
from trimesh.visual.material import PBRMaterial

FACES_AT_ONCE = 2048  # to xatlas, whose time grows faster than their number
TEXELS_PER_CELL = 4  # of a texture's side, per cell along a side of the mesh's grid: several for each vertex
MARGIN = 2  # texels between charts, so that none shows the colours of another


def require_xatlas() -> None:
    if importlib.util.find_spec("xatlas") is None:
        raise GrafError(
            "--textured: lays out textures with the package xatlas, which is not installed; pip install xatlas, which "
            "needs a C++ compiler with Python 3.14 or later, or on Linux or Windows on ARM (Debian: g++ and python3-dev)"
        )


@torch.inference_mode()
def textured(generator: Generator, one: Objects, mesh: trimesh.Trimesh, side: int) -> trimesh.Trimesh:
    """The mesh of latents (1, Z) and class (1,) with a texture (sRGB, about `side` texels per side) in place of vertex colours.

    Vertices at the borders of charts are doubled. Raises GrafError where xatlas is not installed.
    """
    require_xatlas()
    origin, faces, uv, side = _unwrapped(mesh, side)
    corners = torch.tensor((uv * side - 0.5)[faces])  # (F, 3, 2) in texels
    owner, texel, weights = pixels_in_triangles(corners, side)
    vertices = torch.tensor(origin[faces])[owner]  # (M, 3)
    places, normals = (
        (weights[..., None] * torch.tensor(values, dtype=torch.float32)[vertices]).sum(1)
        for values in (mesh.vertices, mesh.vertex_normals)
    )
    colours = surface_colours(generator, styles_of(generator, *one), places, F.normalize(normals, dim=-1))
    texture, covered = np.zeros((side, side, 3), np.uint8), np.zeros((side, side), bool)
    x, y = texel.T.numpy()
    texture[y, x], covered[y, x] = colours, True
    nearest = distance_transform_edt(~covered, return_distances=False, return_indices=True)  # viewers blend texels at borders
    material = PBRMaterial(baseColorTexture=Image.fromarray(texture[tuple(nearest)]), metallicFactor=0.0, roughnessFactor=1.0)
    visual = TextureVisuals(uv=np.stack([uv[:, 0], 1 - uv[:, 1]], axis=-1), material=material)
    return trimesh.Trimesh(
        mesh.vertices[origin], faces, vertex_normals=mesh.vertex_normals[origin], visual=visual, process=False
    )


def _unwrapped(mesh: trimesh.Trimesh, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The mesh unwrapped: the index of the mesh's vertex (N,) for each vertex of a chart, faces (F, 3) of these vertices,
    (u, v) (N, 2) with v downwards, and T.

    The mesh goes to xatlas in slices across its x axis.
    """
    import xatlas  # where it is needed

    atlas, parts = xatlas.Atlas(), []
    order = np.argsort(mesh.triangles_center[:, 0], kind="stable")
    for faces in np.array_split(mesh.faces[order], -(-len(order) // FACES_AT_ONCE)):
        used, local = np.unique(faces, return_inverse=True)
        parts.append(used)
        atlas.add_mesh(np.float32(mesh.vertices[used]), np.uint32(local.reshape(-1, 3)), np.float32(mesh.vertex_normals[used]))
    packing = xatlas.PackOptions()
    packing.resolution, packing.padding, packing.bilinear = side, MARGIN, True
    atlas.generate(xatlas.ChartOptions(), packing)
    origins, faces, uvs, count = [], [], [], 0
    for i, used in enumerate(parts):
        origin, face, uv = atlas[i]
        origins.append(used[origin])
        faces.append(face.astype(np.int64) + count)
        uvs.append(uv * np.float32([atlas.width, atlas.height]))
        count += len(origin)
    side = max(atlas.width, atlas.height)
    return np.concatenate(origins), np.concatenate(faces), np.concatenate(uvs) / np.float32(side), side


def read_textured(path: Path) -> trimesh.Trimesh:
    """The mesh of a GLB of `write_mesh` with its texture, z up again."""
    (mesh,) = trimesh.load(path, process=False).geometry.values()
    mesh.apply_transform(np.linalg.inv(Z_TO_Y_UP))
    return mesh


def render_textured(mesh: trimesh.Trimesh, pose_c2w: Tensor, width: int, data: DataConfig) -> tuple[Tensor, Tensor]:
    """Image (3, W, W) in [-1, 1] on the background and opacity (W, W) of a textured mesh, unlit, as glTF viewers show it."""
    pixel, depth = project(torch.tensor(mesh.vertices, dtype=torch.float32), pose_c2w, width, data)
    factor = fineness(width)
    pixel, width = supersampled(pixel, factor), width * factor
    faces = torch.tensor(mesh.faces)
    faces = faces[(depth[faces] > 0).all(dim=1)]
    owner, at, weights = pixels_in_triangles(pixel[faces], width)
    if not data.orthographic:  # 1 / depth is linear across a picture, not depth
        weights = weights / depth[faces[owner]]
    weights = weights / weights.sum(dim=1, keepdim=True)
    distance = (weights * depth[faces[owner]]).sum(dim=1)
    place = at[:, 1] * width + at[:, 0]
    nearest = torch.full((width * width,), torch.inf).scatter_reduce(0, place, distance, "amin")
    seen = distance == nearest[place]
    uv = torch.tensor(mesh.visual.uv, dtype=torch.float32)
    uv = (weights[seen, :, None] * uv[faces[owner[seen]]]).sum(dim=1)
    texture = torch.tensor(np.asarray(mesh.visual.material.baseColorTexture.convert("RGB")) / 255, dtype=torch.float32)
    grid = torch.stack([2 * uv[:, 0] - 1, 1 - 2 * uv[:, 1]], dim=-1)[None, None]
    colours = F.grid_sample(texture.movedim(-1, 0)[None], grid, padding_mode="border", align_corners=False)[0, :, 0]
    maps = torch.cat([torch.tensor(data.background)[:, None].expand(3, width * width) * 2 - 1, torch.zeros(1, width * width)])
    maps[:, place[seen]] = torch.cat([2 * colours - 1, torch.ones(1, colours.shape[1])])
    return average_blocks(maps.view(4, width, width), factor)
