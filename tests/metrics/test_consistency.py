"""Depth-warp error: projection against the rays, footprints by hand, scenes whose answer is known, and a generator's."""

import dataclasses
import json
import math

from graf.camera import azimuth_and_v, poses_at, project, sample_poses
from graf.data.car_shapes import make_car
from graf.data.toy_cars import render_cars
from graf.metrics import consistency
from graf.metrics.consistency import View, WarpError, camera_pairs, multi_view_consistency, stages, warp_error
from graf.models.generator import Generator
from graf.rays import camera_rays, full_grid, low_resolution_grid

import pytest
import torch
from torch import nn

STEP = 1 / 127.5  # of 256, in [-1, 1]
FACING = poses_at(torch.tensor([0.0]), torch.tensor([0.5]), 3.6)  # at (3.6, 0, 0); its x is the world's y, its y is z


@pytest.fixture
def data(smoke):
    """The smoke config's data section, with fields replaced: data(imsize=32)."""
    return lambda **fields: dataclasses.replace(smoke().data, **fields)


def flat_view(side, colour=0.0, depth=3.6, opacity=1.0, maps=None):
    """One view in one colour, depth and opacity; depth and opacity of side `maps` where it differs."""
    maps = torch.ones(1, 1, maps or side, maps or side)
    return View(torch.full((1, 3, side, side), colour), depth * maps, opacity * maps, FACING)


def numbers(result: WarpError) -> list[float]:
    """Means over the pairs: error, excess, comparable share, contradicted share."""
    return [values.nanmean().item() for values in result]


# where a point is seen


@pytest.mark.parametrize("orthographic", [False, True])
def test_projection_is_the_inverse_of_the_rays(data, orthographic):
    scene = data(orthographic=orthographic)
    poses = sample_poses(3, scene, torch.Generator().manual_seed(0)).double()
    grid = low_resolution_grid(full_grid(12), 2)
    rays_o, rays_d = camera_rays(poses, grid, 12, scene)
    depth = torch.linspace(2, 5, 36, dtype=torch.float64).expand(3, -1)
    position, projected = project(rays_o + depth[..., None] * rays_d, poses, 12, scene)
    torch.testing.assert_close(position, grid.double().flatten(1, 2).expand(3, -1, -1), atol=1e-5, rtol=0)
    torch.testing.assert_close(projected, depth, atol=1e-5, rtol=0)


def test_a_point_is_seen_where_the_hand_says(data):
    """1.0 ahead, 0.3 to the right (y) and 0.2 up (z), where a picture is 2 * tan(45 degrees) = 2 across: 50 pixels a unit."""
    point = torch.tensor([[[2.6, 0.3, 0.2]]])
    position, depth = project(point, FACING, 100, data(fov=90.0))
    torch.testing.assert_close(position, torch.tensor([[[65.0, 40.0]]]))
    torch.testing.assert_close(depth, torch.tensor([[1.0]]))
    position, _ = project(point, FACING, 100, data(orthographic=True, near=2.0, far=4.0))  # 2 across as well
    torch.testing.assert_close(position, torch.tensor([[[65.0, 40.0]]]))


def test_a_footprint_by_hand():
    """2 x 2 entries over 4 pixels stand at 0.5 and 2.5."""
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 5.0]]]])
    position = torch.tensor([[[1.0, 0.5], [2.0, 2.0], [2.5, 2.5], [0.4, 1.0], [math.nan, 1.0], [math.inf, 1.0]]])
    values, weights, inside = consistency.footprints(maps, position, 4)
    assert values[0, 0, 0].tolist() == [1, 2, 3, 5]
    assert weights[0, 0, :3].tolist() == [
        [0.75, 0.25, 0, 0],
        [0.0625, 0.1875, 0.1875, 0.5625],
        [0, 0, 0, 1],
    ]
    assert inside[0].tolist() == [True, True, True, False, False, False]


def test_pixels_of_any_resolution_are_their_own_footprints():
    """Also at scale 3, where positions are rounded: the low-resolution rays fall on the low-resolution entries."""
    low = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    position = low_resolution_grid(full_grid(15), 3).flatten(1, 2).expand(2, -1, -1)
    values, weights, inside = consistency.footprints(low, position, 15)
    torch.testing.assert_close((weights * values).sum(-1).view_as(low), low)
    assert inside.all()


# what is compared


@pytest.mark.parametrize(
    ("depth_b", "opacity_b", "error", "comparable", "contradicted"),
    [
        (3.60, 1.0, 10, 1, 0),
        (3.63, 1.0, 10, 1, 0),  # within 2% of far - near = 2
        (3.65, 1.0, 10, 1, 1),  # B sees through A's surface
        (3.55, 1.0, math.nan, 0, 0),  # A's surface is behind B's
        (3.60, 0.05, 10, 1, 1),  # B sees nothing there
        (3.60, 0.5, math.nan, 0, 0),  # B sees something, who knows where
        (2.60, 0.05, 10, 1, 1),  # the depth of nothing is not looked at
    ],
)
def test_surfaces_agree_hide_or_contradict_each_other(data, depth_b, opacity_b, error, comparable, contradicted):
    """Twice the same camera, so that every pixel meets its own, 10 steps brighter."""
    a, b = flat_view(8), flat_view(8, 10 * STEP, depth_b, opacity_b)
    expected = torch.tensor([[error], [error], [comparable], [contradicted]], dtype=torch.float32)
    torch.testing.assert_close(torch.stack(warp_error(a, b, 8, data())), expected, equal_nan=True)


def test_colours_are_compared_as_people_see_them(data):
    assert numbers(warp_error(flat_view(8, 1.5), flat_view(8, 1.0), 8, data())) == [0, 0, 1, 0]
    assert numbers(warp_error(flat_view(8, -1.0), flat_view(8, 3.0), 8, data()))[0] == pytest.approx(255)


def test_the_error_is_the_mean_of_the_channels_over_the_comparable_pixels(data):
    """Half of B's pixels differ by 12 steps in one channel of three; of the rest, half hide A's: (8 * 4 + 4 * 0) / 12."""
    a, b = flat_view(4), flat_view(4)
    b.images[:, 0, :2] = 12 * STEP
    b.depth[:, :, 3] = 3.0
    assert numbers(warp_error(a, b, 4, data())) == pytest.approx([8 / 3, 8 / 3, 0.75, 0])


def test_of_an_empty_view_nothing_is_said(data):
    error, excess, *shares = numbers(warp_error(flat_view(8, opacity=0.0), flat_view(8), 8, data()))
    assert math.isnan(error) and math.isnan(excess)
    assert shares == [0, 0]


def test_what_is_behind_the_camera_is_not_compared(data):
    """B sees nothing, and stands 3.6 beyond what A sees."""
    beyond = FACING.clone()
    beyond[..., 0, 3] = -3.6
    b = dataclasses.replace(flat_view(8, opacity=0.0), pose_c2w=beyond)
    assert numbers(warp_error(flat_view(8), b, 8, data()))[2:] == [0, 0]


def test_silhouettes_and_jumps_are_left_out(data):
    """8 x 8 depths under 16 x 16 pixels; pixel i stands at i / 2 - 1/4 among them. The outermost ring has no footprint.

    Opaque up to entry 3: pixels 0 to 6 are (pixel 7: opacity 3/4), 1 to 6 have a whole footprint, 7 * 16 and 6 * 14 of them.
    A jump of depth between entries 3 and 4 takes pixels 7 and 8 alone: 12 * 14 of 256 are left.
    """
    edge, jump = flat_view(16, maps=8), flat_view(16, maps=8)
    edge.opacity[..., 4:] = 0
    edge.depth[..., 4:] = 99
    jump.depth[..., 4:] += 1
    for view, share in ((edge, 6 * 14 / (7 * 16)), (jump, 12 * 14 / 256)):
        assert numbers(warp_error(view, view, 16, data())) == pytest.approx([0, 0, share, 0])


def test_the_excess_is_what_lies_outside_the_four_colours(data):
    """A's pixels are halfway between B's, whose columns are of 0 and of 20 steps."""
    columns = torch.tensor([0.0, 20.0, 0.0, 20.0]) * STEP
    b = dataclasses.replace(flat_view(4), images=columns.expand(1, 3, 4, 4))
    shifted = FACING.clone()
    shifted[..., 1, 3] += 1  # half of b's pixels: 4 pixels are 8 across
    scene = data(orthographic=True, near=0.0, far=8.0)
    for steps, error, excess in ((4, 6, 0), (10, 0, 0), (25, 15, 5)):
        a = dataclasses.replace(flat_view(4, steps * STEP), pose_c2w=shifted)
        assert numbers(warp_error(a, b, 4, scene))[:2] == pytest.approx([error, excess], abs=1e-4)


# scenes


def wall_views(scene, side, maps):
    """The wall x = 0 in colours linear in y and z, seen from -20 and from 20 degrees by level orthographic cameras."""
    poses = poses_at(torch.tensor([-20.0, 20.0]), torch.tensor([0.5, 0.5]), 3.6)

    def points(n):
        grid = low_resolution_grid(full_grid(scene.imsize), scene.imsize // n)
        rays_o, rays_d = camera_rays(poses, grid, scene.imsize, scene)
        depth = -rays_o[..., 0] / rays_d[..., 0]
        return depth, rays_o + depth[..., None] * rays_d

    _, y, z = points(side)[1].unbind(-1)
    images = torch.stack([y / 2, z / 2, (y - z) / 4], dim=1).unflatten(-1, (side, side))
    depth = points(maps)[0].view(2, 1, maps, maps)
    return [View(images[i : i + 1], depth[i : i + 1], torch.ones_like(depth[:1]), poses[i : i + 1]) for i in range(2)]


@pytest.mark.parametrize(("side", "maps"), [(16, 16), (8, 8), (16, 8), (15, 5)])
def test_a_wall_is_exact_at_any_resolution(data, side, maps):
    """Depth and colour are linear in the pixels, so that interpolation is exact; from +-a a point is as far to the left, or
    right, of both centres. Depth that is a quarter of an entry off its centre shows."""
    scene = data(imsize=side if side % 2 else 16, orthographic=True)
    a, b = wall_views(scene, side, maps)
    ring = side // maps // 2  # pixels before the first entry's centre
    for pair in ((a, b), (b, a)):
        error, excess, comparable, contradicted = numbers(warp_error(*pair, scene.imsize, scene))
        assert error < 1e-3 and excess < 1e-3
        assert comparable == pytest.approx((1 - 2 * ring / side) ** 2) and contradicted == 0
    quarter = (scene.far - scene.near) / maps / 4
    off_centre = dataclasses.replace(a, depth=a.depth + quarter * math.tan(math.radians(20)))
    assert numbers(warp_error(off_centre, b, scene.imsize, scene))[0] > 0.1


class Ball(nn.Module):
    """A field: opaque within 0.7 of the origin, in colours that change smoothly with the place."""

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, styles):
        density = 1e4 * (points.norm(dim=-1) < 0.7)
        return density, torch.sin(3 * points + torch.arange(3.0))


def ball_views(scene, poses):
    """The ball by its equation |o + t d|^2 = 0.7^2."""
    width = scene.imsize
    rays_o, rays_d = camera_rays(poses, full_grid(width), width, scene)
    a, b, c = (rays_d**2).sum(-1), (rays_o * rays_d).sum(-1), (rays_o**2).sum(-1) - 0.49
    root = b**2 - a * c
    hit = root > 0
    depth = ((-b - root.clamp_min(0).sqrt()) / a).where(hit, 0)
    colour = torch.sin(3 * (rays_o + depth[..., None] * rays_d) + torch.arange(3.0)).sigmoid() * 2 - 1
    images = colour.where(hit[..., None], 1).mT.unflatten(-1, (width, width))
    return View(images, *(x.view(-1, 1, width, width) for x in (depth, hit.float())), poses)


@pytest.mark.parametrize("orthographic", [False, True])
@pytest.mark.parametrize("side", [32, 64])
def test_a_ball_is_one_object_and_with_a_wrong_depth_it_is_not(data, side, orthographic):
    scene = data(imsize=side, orthographic=orthographic)
    a, b = (ball_views(scene, poses) for poses in camera_pairs(3, 15.0, scene))
    error, excess, comparable, contradicted = numbers(warp_error(a, b, side, scene))
    assert error < 0.6 and excess < 0.1
    assert comparable > 0.75 and contradicted < 0.002
    deeper = [dataclasses.replace(view, depth=1.05 * view.depth) for view in (a, b)]
    assert numbers(warp_error(*deeper, side, scene))[0] > 5 * error


def car_views(scene, n=4):
    cars, pairs = [make_car(0, index) for index in range(n)], camera_pairs(n, 15.0, scene)
    views = [render_cars(cars, poses, scene) for poses in pairs]
    return [View(v.images, v.depth[:, None], v.opacity[:, None], poses) for v, poses in zip(views, pairs, strict=True)]


def test_toy_cars_are_objects_and_billboards_and_wrong_depths_are_not(data):
    """Resampling of hard edges between paints makes an error that falls with the pixels, but nothing in excess of it."""
    errors = {}
    for side in (32, 128):
        scene = data(imsize=side)
        a, b = car_views(scene)
        error, excess, comparable, contradicted = numbers(warp_error(a, b, side, scene))
        assert excess < 0.5
        assert comparable > 0.7 and contradicted < 0.002
        errors[side] = error
        one_picture = dataclasses.replace(a, pose_c2w=b.pose_c2w)
        assert numbers(warp_error(a, one_picture, side, scene))[0] > 3 * error
        assert numbers(warp_error(a, one_picture, side, scene))[3] > 0.1
        deeper = [dataclasses.replace(view, depth=1.05 * view.depth) for view in (a, b)]
        assert numbers(warp_error(*deeper, side, scene))[1] > 2 * excess
        assert numbers(warp_error(deeper[0], b, side, scene))[2] < 0.02
        nearer = dataclasses.replace(a, depth=0.95 * a.depth)
        assert numbers(warp_error(nearer, b, side, scene))[3] > 0.5
    assert errors[128] < 2 < errors[32]


# cameras and generators


def test_pairs_go_around_and_stay_in_a_part_of_the_circle(data):
    first, second = (azimuth_and_v(poses) for poses in camera_pairs(4, 15.0, data()))
    torch.testing.assert_close(first[0], torch.tensor([0.0, 90, 180, 270]), atol=1e-3, rtol=0)
    torch.testing.assert_close(second[0], first[0] + 15, atol=1e-3, rtol=0)
    torch.testing.assert_close(first[1], torch.full((4,), 0.34))
    part, wide = data(umin=0.25, umax=0.5), data(umin=0.25, umax=0.26)
    first, second = (azimuth_and_v(poses)[0] for poses in camera_pairs(3, 30.0, part))
    torch.testing.assert_close(first, torch.tensor([90.0, 120, 150]), atol=1e-3, rtol=0)
    torch.testing.assert_close(second, torch.tensor([120.0, 150, 180]), atol=1e-3, rtol=0)
    torch.testing.assert_close(azimuth_and_v(camera_pairs(2, 30.0, wide))[0][0], torch.full((2,), 90.0), atol=1e-3, rtol=0)


def test_stages_take_the_maps_from_where_they_were_rendered(refine, labels):
    generator = Generator(refine())
    latents = generator.sample_latents(4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = stages(generator(latents, labels), labels.pose_c2w)
    enlarged = stages(generator.render(latents, labels.pose_c2w), labels.pose_c2w)
    for stage, side in (("nerf", 8), ("refined", 16)):
        assert own[stage].images.shape == (4, 3, side, side)
        for field in dataclasses.fields(View):
            values = getattr(own[stage], field.name), getattr(enlarged[stage], field.name)
            torch.testing.assert_close(*values, atol=1e-5, rtol=0)
    assert enlarged["refined"].depth.shape == (4, 1, 8, 8)


def keys(*names):
    measured = {f"{field}_{stage}" for field in WarpError._fields for stage in names}
    return {"pairs", "angle_deg", "seed", "resolution", "truncation"} | measured


@pytest.mark.parametrize("mode", ["none", "consistency", "refine"])
def test_fog_of_the_first_weights_is_no_object(refine, smoke, mode, capsys):
    config = refine() if mode == "refine" else smoke(f"ccsr.mode={mode}", "ray_sampler.rays_per_patch=256")
    result = multi_view_consistency(Generator(config), n_objects=3, seed=0, batch_size=2)
    assert "2/2" in capsys.readouterr().err  # batches, on the progress bar
    assert set(result) == (keys("nerf", "refined") if mode == "refine" else keys("nerf"))
    assert json.loads(json.dumps(result)) == result
    assert result["depth_warp_error_nerf"] is None and result["comparable_share_nerf"] == 0
    assert (result["pairs"], result["angle_deg"], result["seed"], result["resolution"]) == (3, 15.0, 0, 16)


def test_pairs_show_the_objects_of_the_seed_truncated(smoke, monkeypatch):
    generator = Generator(smoke()).eval()
    shown, render = [], generator.render
    monkeypatch.setattr(generator, "render", lambda latents, *rest: shown.append(latents) or render(latents, *rest))
    multi_view_consistency(generator, n_objects=2, seed=3, truncation=0.5)
    latents = 0.5 * generator.sample_latents(16, torch.Generator().manual_seed(3))[:2]
    assert len(shown) == 2 and all(torch.equal(some, latents) for some in shown)


def ball_generator(config):
    torch.manual_seed(0)
    generator = Generator(config)
    generator.field = Ball()
    return generator


SOLID = ("nerf.density_activation=relu", "nerf.render_samples_per_ray=128")


def test_a_generators_ball_is_one_object_whatever_the_batch(refine):
    generator = ball_generator(refine(*SOLID))
    result = multi_view_consistency(generator, n_objects=5, seed=1, resolution=32)
    assert result["resolution"] == 32
    assert result["depth_warp_error_nerf"] < 3 and result["depth_warp_excess_nerf"] < 0.3
    assert result["comparable_share_nerf"] > 0.5 and result["contradicted_share_nerf"] < 0.01
    assert result["comparable_share_refined"] > 0.5
    for batch_size in (1, 5):
        again = multi_view_consistency(generator, n_objects=5, seed=1, resolution=32, batch_size=batch_size)
        assert again == pytest.approx(result, abs=1e-3)


def test_detail_that_sticks_to_the_picture_shows_in_the_refined_image_alone(refine, monkeypatch):
    generator = ball_generator(refine(*SOLID))
    clean = multi_view_consistency(generator, 3, seed=1, resolution=32)
    pattern = 0.4 * torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    backbone = generator.refinement.backbone.forward
    monkeypatch.setattr(generator.refinement.backbone, "forward", lambda *inputs: backbone(*inputs) + pattern)
    stuck = multi_view_consistency(generator, 3, seed=1, resolution=32)
    assert stuck["depth_warp_error_nerf"] == clean["depth_warp_error_nerf"]
    assert stuck["depth_warp_error_refined"] > clean["depth_warp_error_refined"] + 10
    assert stuck["depth_warp_excess_refined"] > clean["depth_warp_excess_refined"] + 3
