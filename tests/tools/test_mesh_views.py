"""Meshes drawn: what covers a pixel is what camera_rays sees, in honest colours."""

import math
from pathlib import Path

from graf.camera import poses_at
from graf.config import DataConfig, load_config
from graf.data.raycast import LIGHT, Solids, slanted_box
from graf.data.toy_cars import render_cars
from graf.errors import GrafError
from meshes.reading import read_mesh
from meshes.views import AMBIENT, DIFFUSE, MeshRenderer

import numpy as np
import pytest
import torch
import trimesh
from PIL import Image

ABOVE = poses_at(torch.tensor(0.0), torch.tensor(0.0), 3.6)


@pytest.fixture(scope="module")
def data() -> DataConfig:
    return load_config(None, ["data.imsize=32"]).data


@pytest.fixture(scope="module")
def renderer(data) -> MeshRenderer:
    try:
        return MeshRenderer(data)
    except GrafError as error:
        pytest.skip(str(error))


def write_square(folder: Path, material: str) -> Path:
    """A square on the ground with texture coordinates, z up, and its material."""
    (folder / "square.mtl").write_text(f"newmtl m\n{material}\n")
    corners = "v -1 -1 0\nv 1 -1 0\nv 1 1 0\nv -1 1 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"
    (folder / "square.obj").write_text(f"mtllib square.mtl\n{corners}usemtl m\nf 1/1 2/2 3/3\nf 1/1 3/3 4/4\n")
    return folder / "square.obj"


def linear(srgb: float) -> float:
    return ((srgb + 0.055) / 1.055) ** 2.4


def srgb(light: float) -> float:
    return 1.055 * light ** (1 / 2.4) - 0.055


@pytest.mark.parametrize(("azimuth_deg", "v"), [(0, 0.5), (35, 0.3), (200, 0.1), (290, 0.9)])
def test_a_box_covers_the_samples_whose_rays_hit_it(renderer, data, tmp_path, azimuth_deg, v):
    size = np.array([1.0, 2.0, 0.5])
    trimesh.creation.box(size).export(tmp_path / "box.ply")
    x, y, z = size / np.linalg.norm(size)  # half sizes, once the diagonal is 2
    face = (-x, x, y)
    hidden_disc = torch.tensor([[0.0, 0.0, 0.0, 0.01, 0.01]])
    box = Solids(
        torch.tensor([slanted_box((*face, -z), (*face, z))]).float(),
        hidden_disc,
        torch.ones(2, 3),
        torch.tensor([x, y, z]).float(),
    )
    pose = poses_at(torch.tensor(float(azimuth_deg)), torch.tensor(v), 3.6)
    renderer.show(read_mesh(tmp_path / "box.ply", up="z"))
    alpha = renderer.render(pose)[..., 3].float() / 255
    expected = render_cars([box], pose[None], data, supersampling=4).opacity[0]
    assert (alpha - expected).abs().max() < 2.1 / 16  # a sample or two on an edge
    assert (alpha - expected).abs().sum() * 16 < 0.01 * expected.sum() * 16 + 4


def test_a_ball_has_the_area_that_its_rays_give_it(renderer, data, tmp_path):
    trimesh.creation.icosphere(4).export(tmp_path / "ball.ply")
    renderer.show(read_mesh(tmp_path / "ball.ply", up="z"))
    alpha = renderer.render(poses_at(torch.tensor(10.0), torch.tensor(0.5), 3.6))[..., 3].float() / 255
    radius = 1 / math.sqrt(3)  # of the ball in a cube of diagonal 2
    outline = radius / math.sqrt(3.6**2 - radius**2) * data.imsize / 2 / math.tan(math.radians(data.fov) / 2)
    assert alpha.sum().item() == pytest.approx(math.pi * outline**2, rel=0.01)
    pixels = torch.arange(data.imsize, dtype=torch.float32)
    for weights in (alpha.sum(0), alpha.sum(1)):  # the optical axis passes through pixel W / 2
        assert (weights @ pixels / weights.sum()).item() == pytest.approx(data.imsize / 2, abs=0.02)


def test_a_front_towards_z_of_a_y_up_file_stands_on_the_x_axis(renderer, tmp_path):
    box = trimesh.creation.box((1, 1, 1))
    box.visual.face_colors = np.where(box.face_normals[:, [2]] > 0.5, [255, 0, 0, 255], [0, 0, 255, 255])
    box.export(tmp_path / "box.ply")
    renderer.show(read_mesh(tmp_path / "box.ply", up="y"))
    front, back = (renderer.render(poses_at(torch.tensor(a), torch.tensor(0.5), 3.6))[16, 16] for a in (0.0, 180.0))
    assert front[0] > 150 and front[2] == 0
    assert back[0] == 0 and back[2] > 100


def test_a_surface_is_lit_in_linear_light_and_its_opacity_is_alpha(renderer, tmp_path):
    renderer.show(read_mesh(write_square(tmp_path, "Kd 0.5 0.5 0.5\nd 0.5"), up="z"))
    light = linear(0.5) * (AMBIENT + DIFFUSE * (0.5 + 0.5 * LIGHT[2]))
    red, green, blue, alpha = renderer.render(ABOVE)[16, 16].tolist()
    assert red == green == blue == pytest.approx(255 * srgb(light), abs=1.5)
    assert alpha == 128  # 8 of 16 samples


def test_textures_stand_upright_and_ignore_a_black_material(renderer, tmp_path):
    texture = np.array([[[0, 255, 0], [0, 0, 255]], [[255, 0, 0], [255, 255, 255]]], dtype=np.uint8)  # lower left is red
    Image.fromarray(texture).resize((64, 64), Image.Resampling.NEAREST).save(tmp_path / "four.png")
    renderer.show(read_mesh(write_square(tmp_path, "Kd 0 0 0\nmap_Kd four.png"), up="z"))
    picture = renderer.render(ABOVE)[..., :3] > 128  # x to the right, y upwards
    assert picture[20, 12].tolist() == [True, False, False]
    assert picture[12, 12].tolist() == [False, True, False]
    assert picture[12, 20].tolist() == [False, False, True]
    assert picture[20, 20].tolist() == [True, True, True]


def test_a_grey_texture_is_the_same_grey_as_a_material(renderer, tmp_path):
    Image.new("L", (8, 8), 128).save(tmp_path / "grey.png")
    seen = []
    for material in ("map_Kd grey.png", "Kd 0.50196 0.50196 0.50196"):
        renderer.show(read_mesh(write_square(tmp_path, material), up="z"))
        seen.append(renderer.render(ABOVE)[16, 16].float())
    torch.testing.assert_close(seen[0], seen[1], atol=1, rtol=0)


def test_renderers_do_not_disturb_each_other(renderer, tmp_path):
    trimesh.creation.box().export(tmp_path / "box.ply")
    renderer.show(read_mesh(tmp_path / "box.ply", up="z"))
    alone = renderer.render(ABOVE)
    other = MeshRenderer(load_config(None, ["data.imsize=16"]).data)
    other.show(read_mesh(write_square(tmp_path, "Kd 1 0 0"), up="z"))
    assert torch.equal(renderer.render(ABOVE), alone)
    assert other.render(ABOVE)[8, 8, 1] == 0


def test_edges_stay_sharp_and_curves_smooth(tmp_path):
    for mesh, name in ((trimesh.creation.box(), "box.ply"), (trimesh.creation.icosphere(3), "ball.ply")):
        mesh.export(tmp_path / name)
    (box,), (ball,) = (read_mesh(tmp_path / name, up="z") for name in ("box.ply", "ball.ply"))
    assert np.allclose(np.sort(np.abs(box.normals), axis=1), [0, 0, 1])
    radial = ball.positions / np.linalg.norm(ball.positions, axis=1, keepdims=True)
    assert (ball.normals * radial).sum(1).min() > 0.999


def test_gltf_colours_are_linear_and_others_srgb(tmp_path):
    box = trimesh.creation.box()
    box.visual.vertex_colors = [128, 128, 128, 255]
    box.export(tmp_path / "box.ply")
    box.visual = trimesh.visual.TextureVisuals(
        material=trimesh.visual.material.PBRMaterial(baseColorFactor=[128, 128, 128, 64])
    )
    box.export(tmp_path / "box.glb")
    (ply,), (glb,) = (read_mesh(tmp_path / name, up="z") for name in ("box.ply", "box.glb"))
    assert ply.colours[0] == pytest.approx([linear(128 / 255)] * 3 + [1])
    assert glb.colours[0] == pytest.approx([128 / 255] * 3 + [1], abs=0.003)  # glTF: opaque unless alphaMode says otherwise


def test_a_mesh_that_cannot_be_drawn_says_why(tmp_path):
    (tmp_path / "broken.glb").write_bytes(b"glTF")
    (tmp_path / "points.ply").write_bytes(trimesh.PointCloud([[0, 0, 0], [1, 1, 1]]).export(file_type="ply"))
    (tmp_path / "dot.obj").write_text("v 0 0 0\nv 0 0 0\nv 0 0 0\nf 1 2 3\n")
    for file, reason in (
        (tmp_path / "broken.glb", "cannot be read"),
        (tmp_path / "points.ply", "has no triangles"),
        (tmp_path / "dot.obj", "has no triangles"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_mesh(file, up="y")


def test_without_moderngl_one_line_says_so(data, monkeypatch):
    monkeypatch.setattr("meshes.views.moderngl", None)
    with pytest.raises(GrafError, match="moderngl, which is not installed; pip install moderngl"):
        MeshRenderer(data)


def test_without_opengl_the_message_names_the_packages(data, monkeypatch):
    def no_library(**_):
        raise Exception("libEGL.so.1 not loaded")

    pytest.importorskip("moderngl")
    monkeypatch.setattr("moderngl.create_context", no_library)
    with pytest.raises(GrafError, match="libEGL.so.1 not loaded.*apt install libgl1 libegl1"):
        MeshRenderer(data)
