"""A mesh inside a page: its vertices as text, which mesh.js draws with WebGL. Nothing is fetched.

trimesh's own viewer is not used: it adds 0.7 MB of three.js to each page, and shows one mesh in a frame of its own.
"""

import base64
from pathlib import Path
from typing import NamedTuple

import numpy as np
import trimesh

SCRIPT = (Path(__file__).with_name("templates") / "mesh.js").read_text(encoding="utf-8")
LARGEST = 32767  # of a coordinate, as a 16-bit integer


class MeshData(NamedTuple):
    """A mesh as mesh.js reads it, in base64.

    vertices: 12 bytes each, of coordinates as 16-bit integers from -1 to 1 around the middle of the mesh, two bytes of nothing,
    and the colour (RGBA). faces: 12 bytes each. name: of its file.
    """

    name: str
    n_faces: int
    vertices: str
    faces: str


def read_mesh(path: Path, name: str) -> MeshData | None:
    """The mesh of a file, by that name; None where it cannot be read or has no faces."""
    try:
        mesh = trimesh.load(path, force="mesh", process=False)
    except (OSError, ValueError, KeyError, IndexError, TypeError):  # a file cut short, or of another kind
        return None
    if not (isinstance(mesh, trimesh.Trimesh) and len(mesh.faces) and np.isfinite(mesh.vertices).all()):
        return None
    vertices = np.zeros(len(mesh.vertices), dtype=[("place", "<i2", 3), ("nothing", "<i2"), ("colour", "u1", 4)])
    places = mesh.vertices - mesh.bounds.mean(0)
    vertices["place"] = np.round(LARGEST * places / max(np.linalg.norm(places, axis=1).max(), 1e-12))
    is_textured = isinstance(mesh.visual, trimesh.visual.TextureVisuals)
    vertices["colour"] = (mesh.visual.to_color() if is_textured else mesh.visual).vertex_colors
    data = (base64.b64encode(part).decode() for part in (vertices.tobytes(), mesh.faces.astype("<u4").tobytes()))
    return MeshData(name, len(mesh.faces), *data)
