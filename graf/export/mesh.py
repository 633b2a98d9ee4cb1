"""The field of one object as a coloured triangle mesh: a level set of its density, in world units with z up.

The colours are the field's own: CCSR refines images, not meshes.

Legend: N points or vertices, R rays, S samples per ray, G grid cells along a side.
"""

import logging
import math
import re
from pathlib import Path
from typing import Any

from graf.camera import Labels, sample_poses
from graf.errors import GrafError
from graf.models.generator import Generator
from graf.models.occupancy import density_at
from graf.rays import camera_rays, clip_to_box, depth_bounds, full_grid, is_inside, visible_radius
from graf.rendering import interval_lengths, stratified_depths
from graf.runtime.files import whole_file
from graf.runtime.limits import GB, memory_available

import numpy as np
import torch
import trimesh
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from skimage.measure import marching_cubes
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from trimesh.exchange.gltf import export_glb

POINTS_AT_ONCE = 2**16  # through the field: 256 MB at most for GRAF's own, 256 channels wide
SILHOUETTES, SILHOUETTE_SIDE = 8, 32  # cameras, and rays a side of each, by which the level is chosen
FEW_CELLS, FEW_FACES = 8, 200  # of a surface that is hardly an object's: nowhere as many cells wide, or of fewer faces
SPECK = 1e-3  # of the largest piece's volume: smaller pieces are left out
SUFFIXES = (".ply", ".obj", ".glb")
COLOURS = "_COLOR_0"  # of vertices, to trimesh an attribute that it does not know
Z_TO_Y_UP = trimesh.transformations.rotation_matrix(-math.pi / 2, [1, 0, 0])  # of a glTF file

log = logging.getLogger("graf")


class NoSurface(GrafError):
    """The field of this object has no surface; other objects may have one."""


@torch.inference_mode()
def extract_mesh(
    generator: Generator,
    latents: Tensor,
    class_index: Tensor | None,
    resolution: int = 128,
    level: float | None = None,
    bar: tqdm | None = None,
) -> trimesh.Trimesh:
    """The surface where the density of latents (1, Z), of class_index (1,), is `level`: watertight, one colour per vertex.

    resolution: cells along each side of the cube around the ball that every camera sees (`visible_radius`); beyond the cube
    all is empty, so that a surface that would leave it is closed there. level in 1 / scene unit, by default that of
    `silhouette_level`. Pieces of less than a thousandth of the largest one's volume are left out as specks, and closed hollows
    with them, into which no camera looks. `bar` advances by `resolution`. Raises NoSurface where there is none, and
    GrafError for more cells than memory holds.
    """
    radius = visible_radius(generator.config.data)
    styles = styles_of(generator, latents, class_index)
    if level is None:
        level = silhouette_level(generator, styles)
    grid = _density_grid(generator, styles, radius, resolution, bar)
    if not 0 < level < grid.max():
        raise NoSurface(
            f"mesh: no surface at density {level:g}, this object has 0 to {grid.max():.3g} in {resolution} cells per side; "
            "set --mesh_level between these, or raise --mesh_resolution"
        )
    cell = 2 * radius / resolution
    vertices, faces, _, _ = marching_cubes(grid, level, spacing=(cell,) * 3, gradient_direction="ascent")
    mesh = trimesh.Trimesh(vertices - (radius + cell / 2), _without_specks(vertices, faces), process=False)
    mesh.remove_unreferenced_vertices()
    points, normals = (torch.tensor(values, dtype=torch.float32) for values in (mesh.vertices, mesh.vertex_normals))
    mesh.visual.vertex_colors = surface_colours(generator, styles, points, normals)
    log.info("mesh: %d faces at density %.3g of at most %.3g", len(mesh.faces), level, grid.max())
    cells = np.ceil(mesh.extents / cell - 1e-6).astype(int)
    if cells.max() < FEW_CELLS or len(mesh.faces) < FEW_FACES:
        log.warning(
            "mesh: %d faces only, of a surface that is %d x %d x %d of the grid's %d cells wide: look whether it is an object; "
            "raise --mesh_resolution, set another --mesh_level, or train longer",
            *(len(mesh.faces), *cells, resolution),
        )
    return mesh


def require_room(resolution: int) -> None:
    """Raises GrafError where a grid of so many cells along each side does not fit into the memory that is free."""
    needed, free = 4 * (resolution + 2) ** 3, memory_available()  # float32
    if needed > free:
        taken = f"its grid takes {needed / GB:.3g} GB of memory, of which {free / GB:.3g} GB are free"
        raise GrafError(f"--mesh_resolution {resolution}: {taken}; give fewer cells")


def styles_of(generator: Generator, latents: Tensor, class_index: Tensor | None) -> tuple[Any, ...]:
    """The fields' styles for latents (1, Z) of class_index (1,), by default the first class, as in `Generator.render`."""
    device = generator.background.device
    classes = torch.zeros(1, dtype=torch.long) if class_index is None else class_index
    return generator.styles(generator.condition(latents.to(device), Labels(None, classes.to(device), classes)))


def write_mesh(mesh: trimesh.Trimesh, stem: Path, textured: trimesh.Trimesh | None = None) -> list[Path]:
    """Write `stem`.ply, .obj and .glb, the last of the textured mesh where there is one; each is self-contained and written
    atomically.

    PLY and OBJ are z up, as the world, with sRGB vertex colours. GLB is y up, with linear colours that viewers must not light
    again, as glTF 2.0 and KHR_materials_unlit specify; a texture is sRGB there too.
    """
    contents = (
        mesh.export(file_type="ply"),
        mesh.export(file_type="obj").encode(),
        export_glb(trimesh.Scene(_for_gltf(textured or mesh)), include_normals=False, tree_postprocessor=_unlit),
    )
    files = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    for file, content in zip(files, contents, strict=True):
        with whole_file(file) as temporary:
            temporary.write_bytes(content)
    return files


def object_files(folder: Path) -> list[Path]:
    """The files of objects that --mesh or --splats wrote there, and their picture."""
    made = (file for file in folder.glob("object_*") if re.fullmatch(r"object_\d{2,}", file.stem) and file.suffix in SUFFIXES)
    return [*made, *folder.glob("rendered_back.png")]


def density(generator: Generator, points: Tensor, styles: tuple[Any, ...]) -> Tensor:
    """Density (N,), in 1 / scene unit, at points (N, 3) of the field that is seen, 0 outside data.box; styles of one object."""
    field = generator.field if generator.field_fine is None else generator.field_fine
    nerf = generator.config.nerf
    found = torch.cat([density_at(field, some, styles[-1], nerf) for some in points.split(POINTS_AT_ONCE)])
    return found if generator.box is None else found * is_inside(points, generator.box)


@torch.inference_mode()
def silhouette_level(generator: Generator, styles: tuple[Any, ...]) -> float:
    """The density whose level set has the silhouette that cameras see: the rays that are at least half opaque.

    A ray meets the level set where its highest density exceeds the level. Of all levels it is that at which these rays and the
    half opaque ones agree best (intersection over union, from cameras of the config's range), halfway to the next lower
    density. Outlines are what training sees of a shape, and are defined for haze and for walls alike. Raises NoSurface where
    no ray is half opaque.
    """
    data, device = generator.config.data, generator.background.device
    pose_c2w = sample_poses(SILHOUETTES, data, torch.Generator().manual_seed(0)).to(device)
    rays_o, rays_d = camera_rays(pose_c2w, full_grid(SILHOUETTE_SIDE, device), SILHOUETTE_SIDE, data)
    near, far = (bound[:, None].expand(-1, rays_o.shape[1], -1) for bound in depth_bounds(pose_c2w, data))
    depths = stratified_depths(near, far, generator.config.nerf.rendered_samples_per_ray, None)  # (B, R, S)
    points = rays_o[..., None, :] + rays_d[..., None, :] * depths[..., None]
    inside = points.abs().amax(-1) <= visible_radius(data)
    along = density(generator, points.flatten(0, 2), styles).view_as(depths) * inside
    opaque = (along * interval_lengths(depths, rays_d, endless=False)).sum(-1).flatten() >= math.log(2)
    peaks, order = along.amax(-1).flatten().sort(descending=True)
    if not opaque.any():
        raise NoSurface(
            "mesh: this object is nowhere half opaque; train longer, take another --seed, or set --mesh_level below "
            f"{peaks[0]:.3g}, its highest density"
        )
    both = opaque[order].cumsum(0)
    either = opaque.sum() + torch.arange(1, len(peaks) + 1, device=peaks.device) - both
    best = int((both / either).argmax())
    return float(peaks[best] + F.pad(peaks, (0, 1))[best + 1]) / 2


def _density_grid(
    generator: Generator, styles: tuple[Any, ...], radius: float, resolution: int, bar: tqdm | None
) -> np.ndarray:
    """Density (G + 2, G + 2, G + 2) along x, y and z at the cells' centres, from -radius to radius, padded with zeros."""
    require_room(resolution)
    grid = np.zeros((resolution + 2,) * 3, dtype=np.float32)
    axis = radius * ((2 * torch.arange(resolution, device=generator.background.device) + 1) / resolution - 1)
    for i in range(resolution):
        slab = density(generator, torch.cartesian_prod(axis[i : i + 1], axis, axis), styles)
        grid[i + 1, 1:-1, 1:-1] = slab.view(resolution, resolution).cpu().numpy()
        if bar is not None:
            bar.update()
    return grid


def _without_specks(vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """The faces of pieces that are large enough, by signed volume, which is negative for a hollow."""
    edges = np.concatenate([faces[:, :2], faces[:, 1:]])
    graph = coo_matrix((np.ones(len(edges), dtype=bool), edges.T), shape=(len(vertices),) * 2)
    piece = connected_components(graph, directed=False)[1][faces[:, 0]]
    a, b, c = vertices[faces].transpose(1, 0, 2)
    volumes = np.bincount(piece, np.einsum("ni,ni->n", np.cross(a, b), c))  # six times the volume: tetrahedra from the origin
    return faces[(volumes >= SPECK * volumes.max())[piece]]


def surface_colours(generator: Generator, styles: tuple[Any, ...], points: Tensor, normals: Tensor) -> np.ndarray:
    """Colours (N, 3) uint8 at points (N, 3) of the surface with unit normals (N, 3).

    They are those of short rays against the normals, from one rendering step in front of the surface to one behind it.

    A longer ray would show the inside of a soft surface, a shorter one a single point of it.
    """
    data, nerf, device = generator.config.data, generator.config.nerf, generator.background.device
    step = (data.far - data.near) / (nerf.rendered_samples_per_ray - 1)
    starts = points + step * normals
    colours, at_once = [], max(1, POINTS_AT_ONCE // nerf.rendered_samples_per_ray)
    for rays in torch.stack([starts, -normals]).split(at_once, dim=1):
        rays_o, rays_d = rays[:, None].to(device)
        near = torch.zeros(1, rays.shape[1], 1, device=device)
        bounds = near, near + 2 * step
        if generator.box is not None:  # beyond it the field is never seen, and has learned nothing
            inside = clip_to_box(rays_o, rays_d, *bounds, generator.box)
            hits = inside[0] < inside[1]
            bounds = tuple(torch.where(hits, cut, whole) for cut, whole in zip(inside, bounds, strict=True))
        seen = generator.render_rays(rays_o, rays_d, bounds, styles)
        background = (1 - seen.opacity) * generator.background
        colour = ((seen.images + 1) / 2 - background) / seen.opacity.clamp_min(1e-6)
        colours.append((255 * colour[0].clamp(0, 1)).round().to("cpu", torch.uint8))
    return torch.cat(colours).numpy()


def _for_gltf(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    """A copy with y up and with linear colours of vertices. These are an attribute, for trimesh would round colours to 8 bits,
    which are too few for dark ones in linear light: greys of 7 to 17 of 255 would be one."""
    mesh = mesh.copy()
    mesh.apply_transform(Z_TO_Y_UP)
    if isinstance(mesh.visual, trimesh.visual.TextureVisuals):
        return mesh
    srgb = mesh.visual.vertex_colors[:, :3] / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)  # IEC 61966-2-1
    mesh.visual = trimesh.visual.ColorVisuals()
    mesh.vertex_attributes[COLOURS] = linear.astype(np.float32)
    return mesh


def _unlit(tree: dict) -> None:
    """Mark a glTF tree's material as unlit, because the field's colours already contain the light; name COLOURS as it does."""
    tree["extensionsUsed"] = ["KHR_materials_unlit"]
    tree.setdefault("materials", [{"pbrMetallicRoughness": {"metallicFactor": 0}}])
    tree["materials"][0]["extensions"] = {"KHR_materials_unlit": {}}
    for part in tree["meshes"]:
        primitive = part["primitives"][0]
        primitive["material"] = 0
        if COLOURS in primitive["attributes"]:
            primitive["attributes"]["COLOR_0"] = primitive["attributes"].pop(COLOURS)
