"""Meshes of fields whose surface is known: balls, shells and a full box, and what their files say of them."""

import logging
import math

from graf.camera import Labels, poses_at
from graf.errors import GrafError
from graf.export import mesh as meshes
from graf.export.mesh import density, extract_mesh, silhouette_level, styles_of, surface_colours, write_mesh
from graf.models.generator import Generator
from graf.rays import camera_rays, depth_bounds, full_grid, visible_radius
from graf.rendering import interval_lengths, stratified_depths

import numpy as np
import pytest
import torch
import trimesh
from torch import nn

RED, BLUE = (100.0, -100.0, -100.0), (-100.0, -100.0, 100.0)  # raw colours, whose sigmoid is 0 and 1


class Radial(nn.Module):
    """Raw density profile(distance) of the distance to a centre; raw colour(points)."""

    def __init__(self, profile, colour=lambda points: torch.zeros_like(points), centre=(0.0, 0.0, 0.0)):
        super().__init__()
        self.profile, self.colour, self.centre = profile, colour, torch.tensor(centre)

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, styles):
        return self.profile((points - self.centre).norm(dim=-1)), self.colour(points)


def ball(inside, radius=0.5, outside=0.0, **rest):
    return Radial(lambda distance: torch.where(distance < radius, inside, outside), **rest)


class Both(nn.Module):
    """Two fields that do not meet."""

    def __init__(self, *fields):
        super().__init__()
        self.fields = nn.ModuleList(fields)

    def styles(self, latents):
        return latents

    def forward(self, *arguments):
        first, second = (field(*arguments) for field in self.fields)
        return first[0] + second[0], first[1]


LATENTS, NO_CLASS = torch.zeros(1, 8), None


@pytest.fixture
def show(smoke):
    """A generator of the field; densities are the raw ones above 0, unless told otherwise."""

    def show(field, *overrides):
        generator = Generator(smoke("nerf.density_activation=relu", "nerf.samples_per_ray=48", *overrides))
        generator.field = field
        return generator

    return show


def assert_ball(mesh, radius, tolerance=0.01, centre=(0.0, 0.0, 0.0)):
    assert mesh.is_watertight and mesh.is_winding_consistent
    distance = np.linalg.norm(mesh.vertices - np.array(centre), axis=-1)
    assert distance == pytest.approx(radius, rel=tolerance)
    assert mesh.volume == pytest.approx(4 / 3 * math.pi * radius**3, rel=3 * tolerance)  # above 0: faces look outwards


def test_a_slope_is_cut_at_the_level(show):
    """Density 50 (0.6 - r) is 5 at r = 0.5."""
    mesh = extract_mesh(show(Radial(lambda distance: 50 * (0.6 - distance))), LATENTS, NO_CLASS, 40, level=5.0)
    assert_ball(mesh, 0.5)
    assert mesh.body_count == 1


def test_a_surface_of_a_few_cells_is_told(show, caplog):
    """A ball 0.1 wide, of which cells of about 0.05 make no more than 3; one of 1.0 is 20 of them wide."""
    small = show(ball(40.0, radius=0.05))
    mesh = extract_mesh(small, LATENTS, NO_CLASS, 40, level=5.0)
    assert len(mesh.faces) < 100
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told.startswith(f"mesh: {len(mesh.faces)} faces only, of a surface that is 3 x 3 x 3 of the grid's 40 cells wide")
    assert "train longer" in told and "--mesh_resolution" in told and "--mesh_level" in told
    caplog.clear()
    extract_mesh(show(ball(40.0)), LATENTS, NO_CLASS, 40, level=5.0)
    assert "WARNING" not in caplog.text


@pytest.mark.parametrize("activation, outside, haze", [("relu", -7.0, 0.0), ("softplus", -3.0, math.log1p(math.exp(-3)))])
def test_a_wall_is_cut_halfway_to_what_is_outside(show, activation, outside, haze):
    """Every level between haze and wall has the ball's outline: 2 units of haze absorb 9%, 0.02 units of wall a half."""
    generator = show(ball(40.0, outside=outside), f"nerf.density_activation={activation}")
    with torch.inference_mode():
        assert silhouette_level(generator, (LATENTS,)) == pytest.approx((40 + haze) / 2)
    assert_ball(extract_mesh(generator, LATENTS, NO_CLASS, 60), 0.5, tolerance=0.034)  # half a cell is 3.3% of the radius


def test_a_soft_ball_is_as_large_as_it_looks(show):
    """A ray that passes the centre of density 100 (0.6 - r) at 0.6 - h has optical depth 100 * 4/3 h sqrt(2 * 0.6 h), to first
    order in h: log 2 at h = 0.028, where the density is 2.8."""
    h = (math.log(2) / (100 * 4 / 3 * math.sqrt(1.2))) ** (2 / 3)
    centre = (0.13, -0.07, 0.04)  # or all cameras would see the same outline through the same few rays
    generator = show(Radial(lambda distance: 100 * (0.6 - distance), centre=centre), "nerf.samples_per_ray=100")
    with torch.inference_mode():
        assert silhouette_level(generator, (LATENTS,)) == pytest.approx(100 * h, rel=0.1)
    assert_ball(extract_mesh(generator, LATENTS, NO_CLASS, 48), 0.6 - h, centre=centre)


class Outside(nn.Module):
    """Raw density beyond the cube of side 2."""

    def __init__(self, density):
        super().__init__()
        self.density = density

    def forward(self, points, view_directions, styles):
        return torch.where(points.abs().amax(-1) > 1, self.density, 0.0), torch.zeros_like(points)


def test_what_lies_outside_the_grid_does_not_choose_the_level(show):
    soft = Radial(lambda distance: 2 * torch.exp(-((distance / 0.4) ** 2)))
    alone = silhouette_level(show(soft), ((),))
    for share in (0.9, 1.1, 2, 100):
        assert silhouette_level(show(Both(soft, Outside(share * alone))), ((),)) == alone


def test_a_haze_has_a_surface_too(show):
    """Nowhere denser than 2, so that a level of walls would find nothing; where it is thin it is outside."""
    generator = show(Radial(lambda distance: 2 * torch.exp(-((distance / 0.4) ** 2))))
    mesh = extract_mesh(generator, LATENTS, NO_CLASS, 48)
    # along a line at distance b from the centre the optical depth is 2 exp(-b^2 / 0.16) 0.4 sqrt(pi), log 2 at b = 0.338
    assert_ball(mesh, 0.4 * math.sqrt(math.log(2 * 0.4 * math.sqrt(math.pi) / math.log(2))), tolerance=0.05)


def test_vertices_show_the_colour_of_their_side_without_the_background(show):
    def colour(points):
        return torch.where(points[..., :1] > 0, torch.tensor(RED), torch.tensor(BLUE))

    mesh = extract_mesh(show(Radial(lambda distance: 50 * (0.6 - distance), colour)), LATENTS, NO_CLASS, 24, level=5.0)
    colours = mesh.visual.vertex_colors[np.abs(mesh.vertices[:, 0]) > 0.05]
    right = mesh.vertices[np.abs(mesh.vertices[:, 0]) > 0.05][:, 0] > 0
    assert (colours[right] == [255, 0, 0, 255]).all()
    assert (colours[~right] == [0, 0, 255, 255]).all()


def test_colours_are_not_those_beyond_the_box(show):
    def colour(points):
        beyond = (points.abs() > 0.4).any(-1, keepdim=True)
        return torch.where(beyond, torch.tensor(RED), torch.tensor(BLUE))

    in_box = show(Radial(lambda distance: 50 * (0.6 - distance), colour), "data.box=[-0.4,-0.4,-0.4,0.4,0.4,0.4]")
    mesh = extract_mesh(in_box, LATENTS, NO_CLASS, 24, level=5.0)
    assert (mesh.visual.vertex_colors == [0, 0, 255, 255]).all()


def test_the_field_is_not_given_the_latents_of_a_background(smoke):
    generator = Generator(smoke("data.background_model=plane", "z_dist.dim=8", "z_dist.dim_background=5"))
    latents = generator.sample_latents(1, torch.Generator().manual_seed(0))
    assert latents.shape == (1, 13)
    for found, expected in zip(styles_of(generator, latents, NO_CLASS), generator.styles(latents[:, :8]), strict=True):
        torch.testing.assert_close(found, expected)


def test_an_object_without_a_class_is_of_the_first_as_in_pictures(smoke):
    generator = Generator(smoke(), 3)
    latents = generator.sample_latents(1, torch.Generator().manual_seed(0))
    unnamed, first, second = (styles_of(generator, latents, each)[0] for each in (None, torch.tensor([0]), torch.tensor([1])))
    torch.testing.assert_close(unnamed, first)
    assert any(not torch.equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.parametrize(("overrides", "step"), [((), 2 / 47), (("nerf.render_samples_per_ray=24",), 2 / 23)])
def test_colours_are_seen_from_one_rendering_step_outside_to_one_inside(show, overrides, step):
    """Blue before the surface, where density falls from 5 to 0 over 0.1; red behind it, where the last sample is opaque."""

    def colour(points):
        return torch.where(points.norm(dim=-1, keepdim=True) < 0.5, torch.tensor(RED), torch.tensor(BLUE))

    generator = show(Radial(lambda distance: 50 * (0.6 - distance), colour), *overrides)
    normals = torch.eye(3)
    found = surface_colours(generator, styles_of(generator, LATENTS, NO_CLASS), 0.5 * normals, normals)
    assert found[:, 2] == pytest.approx(255 * (1 - math.exp(-(5 * step - 25 * step**2))), abs=4)


def test_colours_are_those_of_the_skin(show):
    """Opaque within 1 / 1000: the red core does not show."""

    def colour(points):
        return torch.where(points.norm(dim=-1, keepdim=True) < 0.45, torch.tensor(RED), torch.tensor(BLUE))

    mesh = extract_mesh(show(ball(1000.0, colour=colour)), LATENTS, NO_CLASS, 24)
    assert (mesh.visual.vertex_colors == [0, 0, 255, 255]).all()


@pytest.mark.parametrize("radius, pieces", [(0.04, 1), (0.2, 2)])
def test_specks_are_left_out(show, monkeypatch, radius, pieces):
    """(0.04 / 0.5)^3 is half a thousandth, (0.2 / 0.5)^3 = 64 thousandths of the volume."""
    generator = show(Both(ball(50.0, centre=(-0.3, 0.0, 0.0)), ball(50.0, radius=radius, centre=(0.65, 0.0, 0.0))))
    assert extract_mesh(generator, LATENTS, NO_CLASS, 50, level=25.0).body_count == pieces
    monkeypatch.setattr(meshes, "SPECK", 1e-6)
    assert extract_mesh(generator, LATENTS, NO_CLASS, 50, level=25.0).body_count == 2


def test_a_closed_hollow_is_filled(show):
    shell = Radial(lambda distance: torch.where((distance > 0.3) & (distance < 0.5), 50.0, 0.0))
    mesh = extract_mesh(show(shell), LATENTS, NO_CLASS, 48)
    assert mesh.body_count == 1
    assert_ball(mesh, 0.5, tolerance=0.05)


def test_what_leaves_the_box_is_closed_at_its_sides(show):
    """Everywhere alike: the surface is the box, whose side is twice the radius of the visible ball."""
    generator = show(Radial(torch.ones_like))
    mesh = extract_mesh(generator, LATENTS, NO_CLASS, 20, level=0.5)
    radius = visible_radius(generator.config.data)
    assert mesh.is_watertight
    assert mesh.bounds == pytest.approx(np.array([[-radius] * 3, [radius] * 3]))
    assert mesh.volume == pytest.approx((2 * radius) ** 3, rel=0.02)  # less the edges, which are chamfered


def test_the_field_is_never_asked_for_more_points_than_memory_has_room_for(show, monkeypatch):
    """A slab has 12 * 12 points, the silhouettes 8 * 32 * 32 rays with 48 each, a vertex's colour 48."""
    monkeypatch.setattr(meshes, "POINTS_AT_ONCE", 100)
    generator, asked = show(Radial(lambda distance: 50 * (0.6 - distance))), []
    generator.field.register_forward_hook(lambda field, given, result: asked.append(given[0][..., 0].numel()))
    extract_mesh(generator, LATENTS, NO_CLASS, 12)
    assert sum(asked) > 12**3 + 8 * 32 * 32 * 48 and max(asked) == 100


def test_an_empty_object_is_told_with_what_to_do(show):
    with pytest.raises(GrafError, match="nowhere half opaque.*--mesh_level below 0.01"):
        extract_mesh(show(ball(0.01)), LATENTS, NO_CLASS, 8)
    for level in (50.0, 0.0):
        with pytest.raises(GrafError, match="no surface.*0 to 50 .*--mesh_level"):
            extract_mesh(show(ball(50.0)), LATENTS, NO_CLASS, 8, level=level)


@pytest.mark.parametrize(
    "overrides, radius",
    [
        ("near=2.6 far=4.6 radius=3.6 fov=32", 3.6 * 0.27563735581699916),  # sin(16 degrees): the frame's sides
        ("near=3 far=4.6 radius=3.6 fov=90", 0.6),  # near
        ("near=7.5 far=12.5 radius=9.5,10.5 fov=30", 2.0),  # far, which is 11.5 from the nearest camera
        ("near=2.6 far=4.6 radius=3.6 orthographic=true", 1.0),
    ],
)
def test_the_visible_ball_touches_the_nearest_bound(smoke, overrides, radius):
    data = smoke(*(f"data.{override}" for override in overrides.split())).data
    assert visible_radius(data) == pytest.approx(radius)


def test_bounds_without_the_origin_are_refused(smoke):
    with pytest.raises(GrafError, match="data.near 2.6 and data.far 3.5 do not hold the origin"):
        visible_radius(smoke("data.far=3.5").data)


@pytest.mark.parametrize("network", ["smoke", "film", "concat"])
def test_density_is_what_rendering_composites(request, network):
    """The opacity of a rendered ray is 1 - exp(-sum of density times length)."""
    config = request.getfixturevalue(network)("nerf.density_activation=softplus")
    torch.manual_seed(3)
    generator, labels = Generator(config), Labels.of_poses(poses_at(torch.tensor([30.0]), torch.tensor([0.3]), 3.6))
    rays_o, rays_d = camera_rays(labels.pose_c2w, full_grid(4), 4, config.data)
    near, far = (bound[:, None].expand(1, 16, 1) for bound in depth_bounds(labels.pose_c2w, config.data))
    depths = stratified_depths(near, far, config.nerf.samples_per_ray, None)
    points = rays_o[:, :, None] + rays_d[:, :, None] * depths[..., None]
    with torch.inference_mode():
        styles = generator.styles(torch.randn(1, 8))
        rendered = generator.render_rays(rays_o, rays_d, (near, far), styles).opacity[..., 0]
        along = density(generator, points.flatten(0, 2), styles).view_as(depths)
    optical_depth = (along * interval_lengths(depths, rays_d, endless=False)).sum(-1)
    torch.testing.assert_close(-torch.expm1(-optical_depth), rendered)
    assert rendered.std() > 1e-3  # it is no constant that the two agree about


def test_nothing_is_dense_outside_the_box(show):
    """A ball of radius 0.5 in a box of which two sides cut it off at 0.3 and at -0.4."""
    generator = show(ball(50.0), "data.box=[-0.4,-0.9,-0.9,0.3,0.9,0.9]")
    mesh = extract_mesh(generator, LATENTS, NO_CLASS, 60)
    assert mesh.bounds[:, 0] == pytest.approx([-0.4, 0.3], abs=0.02) and mesh.bounds[1, 1] == pytest.approx(0.5, abs=0.02)


def test_density_is_that_of_the_fine_field(smoke):
    generator, points, latents = Generator(smoke("nerf.importance_samples_per_ray=4")), torch.randn(5, 3), torch.randn(1, 8)
    with torch.inference_mode():
        fine = density(generator, points, generator.styles(latents))
        generator.field, generator.field_fine = generator.field_fine, None
        assert torch.equal(fine, density(generator, points, generator.styles(latents)))


def test_a_class_has_its_own_mesh_and_a_bar_counts_slabs(refine, counter):
    torch.manual_seed(3)
    generator = Generator(refine(), n_classes=2).eval()
    latents = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    first, second = (extract_mesh(generator, latents, torch.tensor([i]), 10, level=0.1, bar=counter) for i in (0, 1))
    assert first.is_watertight and second.is_watertight
    assert not np.array_equal(first.visual.vertex_colors, second.visual.vertex_colors)
    assert counter.n == 20


@pytest.fixture
def counter():
    class Counter:
        n = 0

        def update(self, n=1):
            self.n += n

    return Counter()


@pytest.fixture
def tetrahedron():
    """Corners at the origin and along x, y and z; the last is the top, and of middle grey, 0.2159 in linear light."""
    vertices = [[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]]
    mesh = trimesh.Trimesh(vertices, [[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]], process=False)
    mesh.visual.vertex_colors = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [128, 128, 128]]
    return mesh


def test_files_are_three_and_complete_in_themselves(tmp_path, tetrahedron):
    files = write_mesh(tetrahedron, tmp_path / "meshes" / "object_0.5")
    assert [file.name for file in files] == ["object_0.5.ply", "object_0.5.obj", "object_0.5.glb"]
    assert sorted(files) == sorted((tmp_path / "meshes").iterdir())  # no material file, nothing left over
    for file in files[:2]:
        read = trimesh.load(file, process=False)
        assert np.allclose(read.vertices, tetrahedron.vertices)
        assert (read.visual.vertex_colors == tetrahedron.visual.vertex_colors).all()
        assert read.volume == pytest.approx(1.0)  # 1 * 2 * 3 / 6


def test_glb_is_y_up_linear_and_unlit(tmp_path, tetrahedron):
    file = write_mesh(tetrahedron, tmp_path / "object")[2]
    (read,) = trimesh.load(file, process=False).geometry.values()
    assert np.allclose(read.vertices[3], [0, 3, 0], atol=1e-6)  # the top
    assert np.allclose(read.vertices[2], [0, 0, -2], atol=1e-6)  # what lay behind, seen from the front, with x to the right
    assert read.volume == pytest.approx(1.0)
    assert (255 * read.visual.vertex_attributes["color"]).round().tolist() == [
        [255, 0, 0],
        [0, 255, 0],
        [0, 0, 255],
        [55, 55, 55],
    ]
    assert b'"KHR_materials_unlit":{}' in file.read_bytes().replace(b" ", b"")
    assert np.allclose(tetrahedron.vertices[3], [0, 0, 3])  # and the mesh itself is left as it was
