"""Textured triangles whose pictures are known by hand, and the texture of a ball with two colours."""

import importlib.util

from graf.camera import poses_at
from graf.errors import GrafError
from graf.export.mesh import extract_mesh, write_mesh
from graf.export.rasters import pixels_in_triangles
from graf.export.texture import read_textured, render_textured, textured
from graf.models.generator import Generator

import numpy as np
import pytest
import torch
import trimesh
from PIL import Image
from test_mesh import BLUE, LATENTS, NO_CLASS, RED, ball

FRONT = poses_at(torch.tensor(0.0), torch.tensor(0.5), 3.6)  # at (3.6, 0, 0): y to the right, z upwards


def painted(vertices, faces, uv, picture):
    material = trimesh.visual.material.PBRMaterial(baseColorTexture=Image.fromarray(np.array(picture, np.uint8)))
    visual = trimesh.visual.TextureVisuals(uv=np.array(uv, float), material=material)
    return trimesh.Trimesh(vertices, faces, visual=visual, process=False)


def test_pixels_in_a_triangle_and_its_corners_shares():
    """The right triangle with legs of 2: six pixels with the borders. (1, 0) is halfway from (0, 0) to (2, 0)."""
    owner, pixel, weights = pixels_in_triangles(torch.tensor([[[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]]), width=8)
    shares = dict(zip(map(tuple, pixel.tolist()), weights.tolist(), strict=True))
    assert shares.keys() == {(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)} and not owner.any()
    assert shares[1, 0] == pytest.approx([0.5, 0.5, 0]) and shares[0, 2] == pytest.approx([0, 0, 1])
    assert len(pixels_in_triangles(torch.tensor([[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]]), width=8)[0]) == 0  # a line


def test_a_texture_is_seen_in_perspective(smoke):
    """A floor strip from x = 2.6 (near) to x = -1.4 (far), red beyond its middle at x = 0.6: there the depth is 3, and the row
    32 + focal * 0.5 / 3 of 64, far above the middle of the rows of its ends."""
    data, width = smoke("data.background=[1,1,1]", "data.fov=90").data, 64
    corners = [[2.6, -1, -0.5], [2.6, 1, -0.5], [-1.4, 1, -0.5], [-1.4, -1, -0.5]]
    texture = [[[255, 0, 0]]] * 8 + [[[0, 0, 255]]] * 8  # top: v from 0.5 to 1
    floor = painted(corners, [[0, 1, 2], [0, 2, 3]], [[0, 0], [1, 0], [1, 1], [0, 1]], texture)
    image, opacity = render_textured(floor, FRONT, width, data)
    red = (image[0, :, 32] > 0) & (image[2, :, 32] < 0)
    blue = (image[2, :, 32] > 0) & (image[0, :, 32] < 0)
    row = 32 + 32 * 0.5 / 3
    assert float(red.nonzero().max()) + 0.5 == pytest.approx(row, abs=1) == float(blue.nonzero().min()) - 0.5
    assert opacity[:, 32].sum() == pytest.approx(32 * 0.5 / 1 - 32 * 0.5 / 5, abs=1)


def test_the_nearest_triangle_is_seen_whatever_the_order(smoke):
    near, far = ([[x, -9, -9], [x, 9, -9], [x, 0, 9]] for x in (0.5, -0.5))
    for order in ([0, 1, 2], [3, 4, 5]), ([3, 4, 5], [0, 1, 2]):
        pair = painted(near + far, order, [[0.25, 0.5]] * 3 + [[0.75, 0.5]] * 3, [[[255, 0, 0], [0, 255, 0]]])
        image, opacity = render_textured(pair, FRONT, 8, smoke().data)
        assert image[:, 4, 4].tolist() == pytest.approx([1, -1, -1]) and opacity[4, 4] == 1


def test_a_triangle_behind_the_camera_is_not_seen(smoke):
    behind = painted([[5, -9, -9], [5, 9, -9], [5, 0, 9]], [[0, 1, 2]], [[0.5, 0.5]] * 3, [[[255, 0, 0]]])
    assert render_textured(behind, FRONT, 8, smoke().data)[1].max() == 0


@pytest.fixture
def found(smoke):
    """A ball, blue where y is above 0 and red elsewhere: its generator's config, its mesh, and the mesh with a texture."""
    pytest.importorskip("xatlas")
    generator = Generator(smoke("nerf.density_activation=relu", "nerf.samples_per_ray=48", "data.background=[1,1,1]"))
    blue, red = torch.tensor(BLUE), torch.tensor(RED)
    generator.field = ball(400.0, colour=lambda points: torch.where(points[..., 1:2] > 0, blue, red))
    mesh = extract_mesh(generator, LATENTS, NO_CLASS, 16)
    return generator.config.data, mesh, textured(generator, (LATENTS, torch.zeros(1, dtype=torch.long)), mesh, 64)


def test_a_texture_is_laid_out_without_overlap_on_the_same_surface(found):
    _, mesh, painted = found
    assert painted.volume == pytest.approx(mesh.volume, rel=1e-5) and len(painted.faces) == len(mesh.faces)
    assert painted.visual.uv.min() >= 0 and painted.visual.uv.max() <= 1
    side = painted.visual.material.baseColorTexture.size[0]
    corners = torch.tensor(painted.visual.uv * side * 8, dtype=torch.float32)[torch.tensor(painted.faces)]
    weights, pixel = (pixels_in_triangles(corners, side * 8)[i] for i in (2, 1))
    inside = pixel[(weights > 0.01).all(dim=1)]
    assert len(inside) == len(inside.unique(dim=0))
    texels = np.asarray(painted.visual.material.baseColorTexture)
    assert texels.max(axis=-1).min() > 100  # red, blue or both, between the charts too, where viewers blend


def test_the_glb_shows_each_side_in_its_colour(found, tmp_path):
    data, mesh, painted = found
    file = write_mesh(mesh, tmp_path / "ball", painted)[2]
    assert b'"KHR_materials_unlit":{}' in file.read_bytes().replace(b" ", b"")
    read = read_textured(file)
    assert np.allclose(read.vertices, painted.vertices, atol=1e-6)
    image, opacity = render_textured(read, FRONT, 32, data)
    covered = opacity == 1
    left, right = image[:, :, :15][:, covered[:, :15]], image[:, :, 18:][:, covered[:, 18:]]
    assert left.mean(dim=1).tolist() == pytest.approx([1, -1, -1], abs=0.1)
    assert right.mean(dim=1).tolist() == pytest.approx([-1, -1, 1], abs=0.1)
    assert (image[:, opacity == 0] == 1).all()


def test_without_xatlas_one_line_says_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(GrafError, match="--textured: .*xatlas, which is not installed; pip install xatlas"):
        textured(None, None, None, 64)
