"""Splats whose picture is known by hand, their file, and how they look beside the model's own views."""

import dataclasses
import functools
import math

from graf.camera import poses_at
from graf.export import rasters
from graf.export.mesh import extract_mesh
from graf.export.rasters import (
    CHECK_VIEWS,
    RenderedBack,
    mean_psnr,
    pixels_of_boxes,
    psnr,
    rendered_back,
    supersampled,
    write_checks,
)
from graf.export.splats import FIELDS, SH_C0, Y_DOWN, Splats, render_splats, splats_of_surface, write_splats
from graf.models.generator import Generator

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
import trimesh
from scipy.spatial.transform import Rotation
from test_mesh import LATENTS, NO_CLASS, Radial
from torch.nn import functional as F

FRONT = poses_at(torch.tensor(0.0), torch.tensor(0.5), 3.6)  # on the x axis, at (3.6, 0, 0), with y to the right
RED, GREEN = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])


def splats(means, scales, colours, opacity):
    n = len(means)
    return Splats(
        torch.tensor(means), torch.tensor(scales), torch.eye(3).expand(n, 3, 3), torch.stack(colours), torch.tensor(opacity)
    )


def test_pixels_of_boxes_are_those_within_them_and_within_the_picture():
    low, high = torch.tensor([[0.5, 1.0], [-3.0, 2.2], [5.0, 0.0]]), torch.tensor([[2.0, 1.9], [0.4, 9.0], [4.0, 3.0]])
    owner, pixel = pixels_of_boxes(low, high, width=4)
    assert list(zip(owner.tolist(), map(tuple, pixel.tolist()), strict=True)) == [(0, (1, 1)), (0, (2, 1)), (1, (0, 3))]


def test_a_vertex_without_a_normal_has_a_splat_of_three_axes(tmp_path):
    flat = trimesh.Trimesh([[0, 0, 0], [1, 0, 0], [2, 0, 0]], [[0, 1, 2]], vertex_colors=[[9, 9, 9]] * 3, process=False)
    assert not flat.vertex_normals.any()
    of_flat = splats_of_surface(flat)
    torch.testing.assert_close(of_flat.axes @ of_flat.axes.mT, torch.eye(3).expand(3, 3, 3))
    write_splats(tmp_path / "flat.ply", of_flat)


def test_the_centre_of_a_pixel_is_the_centre_of_its_block():
    """Pixel 1 of 4 is drawn as pixels 4 to 7."""
    assert supersampled(torch.tensor(1.0), 4) == pytest.approx((4 + 7) / 2)


def test_a_near_splat_covers_its_share_of_a_far_one(smoke):
    """Both are wide discs across the view: at the middle 0.6 of red over 0.5 of green over white."""
    data = smoke("data.background=[1,1,1]").data
    pair = splats([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0]], [[0.01, 9.0, 9.0]] * 2, [GREEN, RED], [0.5, 0.6])
    image, opacity = render_splats(pair, FRONT, 16, data)
    assert opacity[8, 8] == pytest.approx(1 - 0.4 * 0.5, abs=1e-3)
    assert (image[:, 8, 8] + 1) / 2 == pytest.approx([0.6 + 0.2, 0.2 + 0.2, 0.2], abs=1e-3)


def test_a_splat_lies_where_its_place_is_projected_to_and_is_as_wide_as_it_is(smoke):
    """At (0, 0.3, 0.2) before a camera at distance 3.6: y is to the right, z upwards; sigma 0.1 is 0.1 / 3.6 focal lengths."""
    data, width = smoke("data.background=[0,0,0]", "data.fov=32").data, 64
    one = splats([[0.0, 0.3, 0.2]], [[0.1, 0.1, 0.1]], [RED], [0.9])
    opacity = render_splats(one, FRONT, width, data)[1]
    focal = width / 2 / math.tan(math.radians(16))
    y, x = torch.meshgrid(*[torch.arange(64.0)] * 2, indexing="ij")
    total = opacity.sum()
    centre_x, centre_y = float((opacity * x).sum() / total), float((opacity * y).sum() / total)
    assert centre_x == pytest.approx(32 + focal * 0.3 / 3.6, abs=0.02)
    assert centre_y == pytest.approx(32 - focal * 0.2 / 3.6, abs=0.02)
    spread = float((opacity * (x - centre_x) ** 2).sum() / total) ** 0.5
    assert spread == pytest.approx(focal * 0.1 / 3.6, rel=0.05)  # cut at 3 sigma


def test_a_splat_between_pixels_is_seen(smoke):
    speck = splats([[0.0, 0.013, 0.007]], [[1e-5, 1e-5, 1e-5]], [RED], [0.9])
    assert render_splats(speck, FRONT, 16, smoke().data)[1].max() > 0


def test_what_is_behind_the_camera_is_not_seen(smoke):
    behind = splats([[5.0, 0.0, 0.0]], [[0.1, 0.1, 0.1]], [RED], [0.9])
    assert render_splats(behind, FRONT, 16, smoke().data)[1].max() == 0


@pytest.fixture
def ball():
    mesh = trimesh.creation.icosphere(subdivisions=3, radius=0.5)
    mesh.visual.vertex_colors = np.where(mesh.vertices[:, :1] > 0, [255, 0, 0, 255], [0, 255, 0, 255]).astype(np.uint8)
    return mesh


def test_discs_lie_flat_on_the_surface(ball):
    found = splats_of_surface(ball)
    assert torch.det(found.axes) == pytest.approx(torch.ones(len(found.means)), abs=1e-5)
    outwards = F.normalize(found.means, dim=-1)
    assert (found.axes[..., 2] * outwards).sum(-1).min() > 0.999
    assert (found.scales[:, 2] < found.scales[:, 0] / 2).all() and (found.scales[:, 0] == found.scales[:, 1]).all()


def test_the_file_is_of_the_field_layout_of_3dgs(ball, tmp_path):
    """Read by another reader of PLY, for the pole of the ball: z up is -y in the file."""
    splats = splats_of_surface(ball)
    path = write_splats(tmp_path / "ball.ply", splats)
    head = path.read_bytes().split(b"end_header\n")[0].decode().splitlines()
    assert head[:3] == ["ply", "format binary_little_endian 1.0", f"element vertex {len(ball.vertices)}"]
    assert [line for line in head if line.startswith("property")] == [f"property float {name}" for name in FIELDS]
    vertex = trimesh.load(path).metadata["_ply_raw"]["vertex"]["data"]
    pole = int(np.argmax(ball.vertices[:, 2]))
    values = {name: float(vertex[name][pole]) for name in FIELDS}
    assert [values[name] for name in ("x", "y", "z")] == pytest.approx([0, -0.5, 0], abs=1e-6)
    assert [values[name] for name in ("nx", "ny", "nz")] == pytest.approx([0, -1, 0], abs=1e-2)
    assert values["scale_0"] == pytest.approx(float(splats.scales[pole, 0].log()), abs=1e-5)
    assert 1 / (1 + math.exp(-values["opacity"])) == pytest.approx(0.99, abs=1e-5)
    assert sum(values[f"rot_{i}"] ** 2 for i in range(4)) == pytest.approx(1, abs=1e-5)
    assert 0.5 + 0.28209479 * values["f_dc_1"] == pytest.approx(1, abs=1e-5)  # green: its x is not above 0


def read_splats(path):
    """The splats of a file of `write_splats`."""
    _, _, body = path.read_bytes().partition(b"end_header\n")
    values = torch.tensor(np.frombuffer(body, "<f4").reshape(-1, len(FIELDS)).copy())
    means, _, colours, opacity, scales, quaternions = values.split([3, 3, 3, 1, 3, 4], dim=1)
    turned = torch.tensor(Rotation.from_quat(quaternions[:, [1, 2, 3, 0]].numpy()).as_matrix(), dtype=torch.float32)
    colours = (colours * SH_C0 + 0.5).clamp(0, 1)
    return Splats(means @ Y_DOWN, scales.exp(), Y_DOWN.T @ turned, colours, opacity[:, 0].sigmoid())


def test_what_is_written_is_read(ball, tmp_path):
    splats = splats_of_surface(ball)
    read = read_splats(write_splats(tmp_path / "a.ply", splats))
    for name, values in vars(splats).items():
        torch.testing.assert_close(getattr(read, name), values, atol=1e-5, rtol=1e-5)


def test_psnr_by_hand():
    """A tenth of the range everywhere: 20 dB."""
    assert psnr(torch.zeros(3, 2, 2), torch.full((3, 2, 2), 0.2)) == pytest.approx(20)
    assert psnr(torch.ones(1), torch.full((1,), 1.5)) == math.inf  # both are white


def test_a_ball_looks_as_the_model_renders_it(smoke, monkeypatch):
    """The model decides each pixel of the outline by one ray, splats by their share of it; a smaller ball is much worse."""
    monkeypatch.setattr(rasters, "DRAWN_SIDE", 128)  # for speed
    generator = Generator(smoke("nerf.density_activation=relu", "nerf.samples_per_ray=64", "data.imsize=32")).eval()
    generator.field = Radial(lambda distance: 400 * (0.5 - distance), lambda points: torch.full_like(points, -100.0))
    exact = splats_of_surface(extract_mesh(generator, LATENTS, NO_CLASS, 48))
    one = LATENTS, torch.zeros(1, dtype=torch.long)
    found, worse = (
        rendered_back(generator, one, functools.partial(render_splats, some))
        for some in (exact, dataclasses.replace(exact, means=0.8 * exact.means))
    )
    assert found.psnr_db > 17 and found.psnr_db > worse.psnr_db + 3
    assert found.model.shape == found.export.shape == (CHECK_VIEWS, 3, 32, 32)
    assert found.psnr_nerf_db == found.psnr_db > found.psnr_object_db


def test_an_export_is_compared_with_the_object_before_the_background_of_the_config(smoke):
    torch.manual_seed(0)
    generator = Generator(smoke("data.background_model=plane", "data.background=[1,1,1]")).eval()
    generator.field = Radial(lambda distance: torch.full_like(distance, -1e4))  # nothing
    one = generator.sample_latents(1), torch.zeros(1, dtype=torch.long)
    check = rendered_back(generator, one, lambda pose, side, data: (torch.ones(3, side, side), torch.zeros(side, side)))
    assert (check.model == 255).all() and check.psnr_db == math.inf


def test_refined_images_are_also_compared_before_their_refinement(refine):
    generator = Generator(refine()).eval()
    one = generator.sample_latents(1, torch.Generator().manual_seed(0)), torch.zeros(1, dtype=torch.long)
    check = rendered_back(generator, one, lambda pose, side, data: (torch.ones(3, side, side), torch.ones(side, side)))
    assert math.isfinite(check.psnr_nerf_db) and check.psnr_nerf_db != check.psnr_db


def test_numbers_are_means_over_objects_and_a_sheet_has_two_rows_for_each(tmp_path):
    views = torch.zeros(CHECK_VIEWS, 3, 64, 64, dtype=torch.uint8)
    checks = [RenderedBack(views, views, 20.0, 15.0, 25.0), RenderedBack(views, views, 24.0, 16.0, math.inf)]
    found = mean_psnr(checks)
    assert (
        found.items() >= {"psnr_db": 22.0, "psnr_object_db": 15.5, "psnr_nerf_db": None, "objects": 2, "resolution": 64}.items()
    )
    sheet = imageio.imread(write_checks(dict(enumerate(checks)), tmp_path / "sheet.png"))
    assert sheet.shape[:2] == (2 + 4 * 66, 2 + CHECK_VIEWS * 66)  # with a line of 2 between
