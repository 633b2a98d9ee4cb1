"""Meshes read from files and made ready to draw: triangles with normals and colours, z up, of one size, around the origin.

Whatever the file's units, an object's bounding box has diagonal 2 and its centre at the origin, as the toy cars have.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import trimesh
from PIL import Image
from trimesh.visual import TextureVisuals
from trimesh.visual.color import to_rgba
from trimesh.visual.material import PBRMaterial

SUFFIXES = (".glb", ".gltf", ".obj", ".off", ".ply", ".stl")  # that are looked for in folders
LINEAR_SUFFIXES = (".glb", ".gltf")  # whose vertex colours are linear light (glTF 2.0, 3.7.2.1); others are sRGB
SMOOTH_COSINE = np.cos(np.radians(30))  # a corner keeps a vertex normal that leans from its face by less
GREY = (160, 160, 160, 255)  # of a surface that has no colour

TO_Z_UP = {"z": [0, 1, 2], "y": [2, 0, 1]}  # axes that become x, y, z: a front towards +z, glTF's, turns to +x as the toy cars'


@dataclass(frozen=True)
class Part:
    """Triangles of one material, corner by corner.

    positions and normals (3F, 3), normals of unit length; texture_positions (3F, 2), (0, 0) at the texture's lower left;
    colours (3F, 4) of linear light and opacity, which multiply those of the texture, an RGBA image in sRGB, where there is one.
    """

    positions: np.ndarray
    normals: np.ndarray
    texture_positions: np.ndarray
    colours: np.ndarray
    texture: Image.Image | None


def read_mesh(file: Path, up: str) -> list[Part]:
    """The object in a file, whose axis `up`, "y" or "z", points upwards. Raises ValueError with what is wrong."""
    try:
        scene = trimesh.load_scene(file)
        meshes = [mesh for mesh in scene.dump() if isinstance(mesh, trimesh.Trimesh) and len(mesh.faces)]
        parts = [_part(mesh, linear_colours=file.suffix.lower() in LINEAR_SUFFIXES) for mesh in meshes]
        parts = [part for part in parts if len(part.positions)]
    except Exception as error:  # trimesh's readers tell a damaged file by errors of every kind
        raise ValueError(f"cannot be read ({type(error).__name__}: {error})") from error
    if not parts:
        raise ValueError("has no triangles")
    return _normalised(parts, TO_Z_UP[up])


def _part(mesh: trimesh.Trimesh, linear_colours: bool) -> Part:
    """The mesh's triangles, without those of no area."""
    corners = np.asarray(mesh.faces).reshape(-1)  # (3F,)
    positions = np.asarray(mesh.vertices, dtype=np.float64)[corners]
    first, second, third = positions[::3], positions[1::3], positions[2::3]
    across = np.repeat(np.cross(second - first, third - first), 3, axis=0)
    length = np.linalg.norm(across, axis=1, keepdims=True)  # twice the area
    face_normals = across / np.maximum(length, np.finfo(np.float64).tiny)
    vertex_normals = np.asarray(mesh.vertex_normals)[corners]
    cosine = (vertex_normals * face_normals).sum(axis=1, keepdims=True)
    normals = np.where(np.abs(cosine) > SMOOTH_COSINE, np.sign(cosine) * vertex_normals, face_normals)

    colours, texture_positions, texture = _corner_colours(mesh, linear_colours), np.zeros((len(corners), 2)), None
    if isinstance(mesh.visual, TextureVisuals):
        factor, texture = _material(mesh.visual.material)
        colours = colours * factor
        if mesh.visual.uv is not None and len(mesh.visual.uv) == len(mesh.vertices):
            texture_positions = np.asarray(mesh.visual.uv)[corners]
        else:
            texture = None
    solid = length[:, 0] > 0
    return Part(positions[solid], normals[solid], texture_positions[solid], colours[solid], texture)


def _corner_colours(mesh: trimesh.Trimesh, linear: bool) -> np.ndarray:
    """Linear light and opacity (3F, 4) of the vertices or faces, white where a material is to colour them."""
    visual, corners = mesh.visual, np.asarray(mesh.faces).reshape(-1)
    if isinstance(visual, TextureVisuals):
        colours = visual.vertex_attributes.get("color")
        if colours is None or len(colours) != len(mesh.vertices):
            return np.ones((len(corners), 4))
        colours = to_rgba(colours)[corners]
    elif visual.defined:
        colours = np.repeat(visual.face_colors, 3, axis=0) if visual.kind == "face" else visual.vertex_colors[corners]
    else:
        colours = np.full((len(corners), 4), GREY)
    return colours / 255 if linear else _linear(colours / 255)


def _material(material: Any) -> tuple[np.ndarray, Image.Image | None]:
    """Factor (4,) of linear light and opacity, and texture.

    glTF multiplies its texture by a linear base colour and says whether alpha counts. A .mtl file has an sRGB colour, which
    many writers leave black beside a texture, so that the texture stands alone; its opacity is `d`.
    """
    if isinstance(material, PBRMaterial):
        factor = np.ones(4) if material.baseColorFactor is None else material.baseColorFactor / 255
        texture = material.baseColorTexture
        if material.alphaMode in (None, "OPAQUE"):
            factor[3], texture = 1, texture and texture.convert("RGB")
        return factor, texture and texture.convert("RGBA")
    texture = getattr(material, "image", None)
    opacity = float(getattr(material, "kwargs", {}).get("d", ["1"])[-1])
    colour = np.ones(4) if texture is not None else _linear(np.asarray(material.main_color) / 255)
    return np.array([*colour[:3], opacity]), texture and texture.convert("RGBA")


def _linear(srgb: np.ndarray) -> np.ndarray:
    """Linear light of sRGB values (..., 3 or 4) in [0, 1] (IEC 61966-2-1); a fourth channel, opacity, stays."""
    light = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    light[..., 3:] = srgb[..., 3:]
    return light


def _normalised(parts: list[Part], axes: list[int]) -> list[Part]:
    """The parts with the axes in that order, in a common bounding box of diagonal 2 around the origin."""
    positions = np.concatenate([part.positions for part in parts])[:, axes]
    low, high = positions.min(axis=0), positions.max(axis=0)
    diagonal = np.linalg.norm(high - low)
    if not (np.isfinite(diagonal) and diagonal > 0):
        raise ValueError("its vertices are all in one place" if diagonal == 0 else "has vertices that are not finite")
    centre, scale = (low + high) / 2, 2 / diagonal
    return [replace(p, positions=(p.positions[:, axes] - centre) * scale, normals=p.normals[:, axes]) for p in parts]
