"""What docs/evaluation.md promises of a mesh's files, read by trimesh, and by Blender's importers where bpy is installed."""

import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path

from graf.export.mesh import extract_mesh, write_mesh
from graf.export.texture import textured
from graf.models.generator import Generator

import numpy as np
import pytest
import torch
import trimesh
from test_mesh import BLUE, LATENTS, NO_CLASS, RED, ball

CENTRE, RADIUS = (0.2, 0.1, -0.1), 0.4  # scene units; lower than the middle, and on no axis
BOUNDS = np.array([[c - RADIUS for c in CENTRE], [c + RADIUS for c in CENTRE]])
CELL = 0.06  # and a little: what marching cubes may be off by

IMPORTS = """
import json, sys
import bpy
ply, obj, glb = sys.argv[1:4]
TASKS = {
    "ply": lambda: bpy.ops.wm.ply_import(filepath=ply),
    "obj": lambda: bpy.ops.wm.obj_import(filepath=obj),
    "obj, up is z": lambda: bpy.ops.wm.obj_import(filepath=obj, forward_axis="Y", up_axis="Z"),
    "glb": lambda: bpy.ops.import_scene.gltf(filepath=glb),
}
found = {}
for name, read in TASKS.items():
    bpy.ops.wm.read_factory_settings(use_empty=True)
    read()
    (shown,) = (thing for thing in bpy.data.objects if thing.type == "MESH")
    places = [shown.matrix_world @ vertex.co for vertex in shown.data.vertices]
    found[name] = {
        "bounds": [[pick(place[axis] for place in places) for axis in range(3)] for pick in (min, max)],
        "colours": [layer.name for layer in shown.data.color_attributes],
        "materials": len(shown.data.materials),
    }
print("FOUND" + json.dumps(found))
"""


@pytest.fixture
def generator(smoke):
    """A ball, red above the height of its centre and blue below it."""

    def colour(points):
        return torch.where(points[..., 2:] > CENTRE[2], torch.tensor(RED), torch.tensor(BLUE))

    generator = Generator(smoke("nerf.density_activation=relu", "nerf.samples_per_ray=48"))
    generator.field = ball(400.0, RADIUS, centre=CENTRE, colour=colour)
    return generator


@pytest.fixture
def files(generator, tmp_path):
    return write_mesh(extract_mesh(generator, LATENTS, NO_CLASS, 40), tmp_path / "object_00")


@pytest.fixture
def painted(generator, tmp_path):
    """The GLB with a texture."""
    pytest.importorskip("xatlas")
    mesh = extract_mesh(generator, LATENTS, NO_CLASS, 16)
    texture = textured(generator, (LATENTS, torch.zeros(1, dtype=torch.long)), mesh, 64)
    return write_mesh(mesh, tmp_path / "object_00", texture)[2]


def tree_of(glb: Path) -> dict:
    """The JSON of a GLB: twelve bytes of header, then the length of the first chunk, its type and itself."""
    content = glb.read_bytes()
    magic, length, size, kind = content[:4], *struct.unpack("<II4s", content[8:20])
    assert magic == b"glTF" and kind == b"JSON" and length == len(content)
    return json.loads(content[20 : 20 + size])


def test_ply_and_obj_are_upright_with_z_up_and_in_scene_units(files):
    for file in files[:2]:
        assert trimesh.load(file, process=False).bounds == pytest.approx(BOUNDS, abs=CELL)


def test_ply_and_obj_have_a_colour_per_vertex_and_no_material(files):
    for file in files[:2]:
        read = trimesh.load(file, process=False)
        above = read.vertices[:, 2] > CENTRE[2] + CELL
        below = read.vertices[:, 2] < CENTRE[2] - CELL
        assert read.visual.kind == "vertex"
        assert (read.visual.vertex_colors[above] == [255, 0, 0, 255]).all()
        assert (read.visual.vertex_colors[below] == [0, 0, 255, 255]).all()
    ply, obj = files[0].read_bytes(), files[1].read_text()
    header = ply[: ply.index(b"end_header")].decode()
    assert [f"property uchar {name}" in header for name in ("red", "green", "blue")] == [True] * 3
    assert "texture" not in header.lower()
    assert "mtllib" not in obj and "usemtl" not in obj
    vertices = [line.split() for line in obj.splitlines() if line.startswith("v ")]
    assert {len(line) for line in vertices} == {7}  # v x y z r g b


def test_glb_has_y_up_the_same_units_and_vertex_colours_of_an_unlit_material(files):
    tree, scene = tree_of(files[2]), trimesh.load(files[2], process=False)
    (read,) = scene.geometry.values()
    assert not any({"matrix", "rotation", "scale"} & node.keys() for node in tree["nodes"] if "mesh" in node)
    low, high = BOUNDS
    assert read.bounds == pytest.approx(np.array([[low[0], low[2], -high[1]], [high[0], high[2], -low[1]]]), abs=CELL)
    assert {"POSITION", "COLOR_0"} <= tree["meshes"][0]["primitives"][0]["attributes"].keys()
    assert tree["materials"][0]["extensions"] == {"KHR_materials_unlit": {}}
    assert "images" not in tree
    above = read.vertices[:, 1] > CENTRE[2] + CELL
    assert (read.visual.vertex_attributes["color"][above] == [1, 0, 0]).all()


def test_dark_colours_of_a_glb_stay_apart_in_linear_light(tmp_path):
    grey = np.arange(40, dtype=np.uint8)
    mesh = trimesh.Trimesh(
        np.random.default_rng(0).normal(size=(40, 3)),
        np.arange(39).reshape(13, 3),
        vertex_colors=grey[:, None].repeat(3, 1),
        process=False,
    )
    (read,) = trimesh.load(write_mesh(mesh, tmp_path / "object_00")[2], process=False).geometry.values()
    linear = read.visual.vertex_attributes["color"]
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    assert (255 * srgb).round().tolist() == grey[:, None].repeat(3, 1).tolist()


def test_a_textured_glb_has_its_picture_inside_and_no_vertex_colours(painted):
    tree = tree_of(painted)
    attributes = tree["meshes"][0]["primitives"][0]["attributes"]
    assert "TEXCOORD_0" in attributes and "COLOR_0" not in attributes
    assert "bufferView" in tree["images"][0] and "uri" not in tree["images"][0]
    assert tree["materials"][0]["pbrMetallicRoughness"]["baseColorTexture"]["index"] == 0
    assert tree["materials"][0]["extensions"] == {"KHR_materials_unlit": {}}


@pytest.mark.skipif(importlib.util.find_spec("bpy") is None, reason="Blender as a Python module, bpy, is not installed")
def test_blender_shows_what_the_page_says(files):
    """In a process of its own: bpy changes much of the one that imports it."""
    program = [sys.executable, "-c", IMPORTS, *map(str, files)]
    said = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True).stdout
    found = json.loads(next(line for line in said.splitlines() if line.startswith("FOUND"))[5:])
    assert {name: one["colours"] for name, one in found.items()} == {
        "ply": ["Col"],
        "obj": ["Color"],
        "obj, up is z": ["Color"],
        "glb": ["Color"],
    }
    assert {name: one["materials"] for name, one in found.items()} == {"ply": 0, "obj": 0, "obj, up is z": 0, "glb": 1}
    for name in ("ply", "obj, up is z", "glb"):
        assert np.array(found[name]["bounds"]) == pytest.approx(BOUNDS, abs=CELL), name
    low, high = BOUNDS
    lying = np.array([[low[0], -high[2], low[1]], [high[0], -low[2], high[1]]])
    assert np.array(found["obj"]["bounds"]) == pytest.approx(lying, abs=CELL)  # the importer takes its y for up
