"""Rays and patches, against loops written out and numbers worked out by hand."""

import math

from graf.camera import focal_length, poses_at
from graf.config import load_config
from graf.rays import (
    box_depths,
    camera_rays,
    clip_to_box,
    cut_patch,
    depth_bounds,
    full_grid,
    is_inside,
    mirrored_images,
    one_pixel_per_block,
    sample_patch_grid,
    smallest_scale,
    whole_frame,
)

import pytest
import torch

PATCHES = ("ray_sampler.min_scale=0.25", "ray_sampler.random_scale=true", "ray_sampler.random_shift=true")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def poses():
    return poses_at(torch.tensor([20.0, 250.0]), torch.tensor([0.3, 0.6]), 3.0)


def test_rays_of_the_full_frame_are_those_of_a_loop_over_pixels(smoke, poses):
    data, width = smoke().data, 5
    rays_o, rays_d = camera_rays(poses, full_grid(width), width, data)
    assert rays_o.shape == rays_d.shape == (2, 25, 3)
    focal = focal_length(data.fov, width)
    for b, pose in enumerate(poses.double()):
        for row in range(width):
            for column in range(width):
                in_camera = torch.tensor([(column - width / 2) / focal, -(row - width / 2) / focal, -1.0]).double()
                ray = row * width + column
                torch.testing.assert_close(rays_d[b, ray].double(), pose[:, :3] @ in_camera, atol=1e-6, rtol=0)
                torch.testing.assert_close(rays_o[b, ray], poses[b, :, 3])


def test_depths_along_rays_are_planar(smoke, poses):
    _, rays_d = camera_rays(poses, full_grid(6), 6, smoke().data)
    z_in_camera = (rays_d @ poses[..., :3])[..., 2]
    torch.testing.assert_close(z_in_camera, torch.full((2, 36), -1.0))


def test_rays_are_float32_in_mixed_precision(smoke, poses):
    """In bfloat16 a direction near 1 is off by up to 1 / 512, about a pixel of a 256 pixel frame."""
    data = smoke().data
    expected = camera_rays(poses, full_grid(16), 16, data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rays = camera_rays(poses, full_grid(16), 16, data)
    for actual, wanted in zip(rays, expected, strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, wanted)


def test_orthographic_rays_are_parallel_and_span_far_minus_near(smoke, poses):
    data, width = smoke("data.orthographic=true", "data.near=2", "data.far=6").data, 8
    rays_o, rays_d = camera_rays(poses, full_grid(width), width, data)
    forward = -poses[:, None, :, 2]
    torch.testing.assert_close(rays_d, forward.expand(-1, 64, -1))
    in_camera = (rays_o - poses[:, None, :, 3]) @ poses[..., :3]
    x, y, z = in_camera[0].unflatten(0, (width, width)).unbind(-1)
    # 8 pixels over 4 units, half a unit each, pixel i at i - 4
    steps = (torch.arange(8) - 4) * 0.5
    torch.testing.assert_close(x, steps.expand(8, 8), atol=1e-6, rtol=0)
    torch.testing.assert_close(y, -steps[:, None].expand(8, 8), atol=1e-6, rtol=0)
    torch.testing.assert_close(z, torch.zeros(8, 8), atol=1e-6, rtol=0)


@pytest.mark.parametrize("orthographic", ["false", "true"])
def test_rays_of_a_patch_are_the_frames_rays_sampled_there(smoke, poses, orthographic):
    config = smoke(*PATCHES, f"data.orthographic={orthographic}")
    width = 20
    grid = sample_patch_grid(2, math.isqrt(config.ray_sampler.rays_per_patch), width, config.ray_sampler, 0, rng())
    of_patch = camera_rays(poses, grid, width, config.data)
    of_frame = camera_rays(poses, full_grid(width), width, config.data)
    for patch, frame in zip(of_patch, of_frame, strict=True):
        sampled = cut_patch(frame.mT.unflatten(-1, (width, width)), grid)  # rays are linear in the pixel
        torch.testing.assert_close(patch.mT.unflatten(-1, grid.shape[1:3]), sampled, atol=1e-5, rtol=0)


def test_full_grid_is_x_then_y_row_by_row():
    assert full_grid(2).tolist() == [[[[0, 0], [1, 0]], [[0, 1], [1, 1]]]]


def test_patch_at_scale_one_of_an_equal_side_is_the_full_grid(smoke):
    sampler = smoke("ray_sampler.random_shift=true").ray_sampler  # max_scale 1 leaves no room to shift
    grid = sample_patch_grid(3, math.isqrt(sampler.rays_per_patch), 16, sampler, 0, rng())
    torch.testing.assert_close(grid, full_grid(16).expand(3, -1, -1, -1), atol=1e-5, rtol=0)


def test_whole_frames_are_made_once_and_take_as_many_random_numbers_as_patches(smoke):
    sampler, numbers = smoke("ray_sampler.random_scale=true", "ray_sampler.random_shift=true").ray_sampler, rng()
    first, second = (sample_patch_grid(n, 16, 20, sampler, step, numbers) for n, step in ((3, 0), (2, 1)))
    assert first.data_ptr() == second.data_ptr() and second.shape == (2, 16, 16, 2)
    torch.rand(5 * (1 + 2), generator=(same := rng()))
    assert torch.equal(numbers.get_state(), same.get_state())
    assert sample_patch_grid(1, 16, 20, sampler, 0, numbers, "meta").device.type == "meta"
    with torch.inference_mode():
        assert not whole_frame(5, 7, "cpu").is_inference()  # a step could not keep it for its backward pass


def test_one_pixel_of_each_block_is_a_random_one_of_its_pixels():
    grid = full_grid(6).expand(600, -1, -1, -1)
    found = one_pixel_per_block(grid, 3, rng())
    assert found.shape == (600, 2, 2, 2)
    first = found[:, 0, 0]
    torch.testing.assert_close(found - first[:, None, None], (3 * full_grid(2)).expand(600, -1, -1, -1))
    pixels, counts = first.unique(dim=0, return_counts=True)
    assert torch.equal(pixels, torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)))
    assert counts.min() > 40  # of 67 that are expected, with a standard deviation of 8
    assert torch.equal(one_pixel_per_block(grid, 1, rng()), grid)


def test_half_scale_without_shift_is_the_middle_half(smoke):
    sampler = smoke("ray_sampler.min_scale=0.5", "ray_sampler.max_scale=0.5").ray_sampler
    row = sample_patch_grid(1, math.isqrt(sampler.rays_per_patch), 31, sampler, 0, rng())[0, 0]
    torch.testing.assert_close(row[:, 0], torch.linspace(7.5, 22.5, 16))  # of 0 to 30
    torch.testing.assert_close(row[:, 1], torch.full((16,), 7.5))


def test_random_patches_stay_in_the_frame_and_fill_it(smoke):
    sampler, width = smoke(*PATCHES).ray_sampler, 64
    grid = sample_patch_grid(500, math.isqrt(sampler.rays_per_patch), width, sampler, 0, rng()).flatten(1, 2)
    low, high = grid.min(dim=1).values, grid.max(dim=1).values  # (500, 2)
    assert low.min() > -1e-4
    assert high.max() < width - 1 + 1e-4
    scale = (high - low) / (width - 1)
    torch.testing.assert_close(scale[:, 0], scale[:, 1])  # square
    assert 0.25 - 1e-5 <= scale.min() < 0.27
    assert 0.98 < scale.max() <= 1 + 1e-5
    share = (low / (width - 1 - (high - low)))[scale[:, 0] < 0.9]  # 0 at the left edge, 1 at the right one
    assert share.min() < 0.02
    assert share.max() > 0.98
    assert abs(torch.corrcoef(share.T)[0, 1]) < 0.15  # x and y are drawn apart; one sigma is 0.05


def test_patches_follow_their_generator_alone(smoke):
    sampler = smoke(*PATCHES).ray_sampler
    torch.manual_seed(1)
    first = sample_patch_grid(2, math.isqrt(sampler.rays_per_patch), 16, sampler, 0, rng(3))
    torch.manual_seed(2)
    assert torch.equal(first, sample_patch_grid(2, math.isqrt(sampler.rays_per_patch), 16, sampler, 0, rng(3)))
    assert not torch.equal(first, sample_patch_grid(2, math.isqrt(sampler.rays_per_patch), 16, sampler, 0, rng(4)))


@pytest.mark.parametrize(
    ("step", "scale"),
    [
        (0, 0.9),
        (999, 0.9),
        (14_999, 0.9),  # exp(-0.0025 * 3 * 14) = 0.9003
        (15_000, math.exp(-0.1125)),  # 0.8936
        (100_000, math.exp(-0.75)),
        (100_999, math.exp(-0.75)),
        (184_000, math.exp(-1.38)),  # 0.2516
        (185_000, 0.25),
        (10_000_000, 0.25),
    ],
)
def test_smallest_scale_shrinks_by_grafs_schedule(smoke, step, scale):
    sampler = smoke("ray_sampler.min_scale=0.25", "ray_sampler.scale_anneal=0.0025").ray_sampler
    assert smallest_scale(sampler, step) == pytest.approx(scale)


def test_without_annealing_the_smallest_scale_is_there_at_once(smoke):
    assert smallest_scale(smoke("ray_sampler.min_scale=0.25").ray_sampler, 0) == 0.25


def test_annealed_patches_start_large(smoke):
    sampler = smoke(*PATCHES, "ray_sampler.scale_anneal=0.0025").ray_sampler
    for step, smallest in ((0, 0.9), (1_000_000, 0.25)):
        x = sample_patch_grid(300, math.isqrt(sampler.rays_per_patch), 64, sampler, step, rng())[..., 0].flatten(1)
        scale = (x.max(dim=1).values - x.min(dim=1).values) / 63
        assert scale.min() == pytest.approx(smallest, abs=0.01)


def test_an_image_of_its_own_coordinates_is_cut_to_the_grid(smoke):
    grid = sample_patch_grid(
        2, math.isqrt(smoke(*PATCHES).ray_sampler.rays_per_patch), 32, smoke(*PATCHES).ray_sampler, 0, rng()
    )
    coordinates = full_grid(32).permute(0, 3, 1, 2).expand(2, -1, -1, -1)  # channels x, y
    torch.testing.assert_close(cut_patch(coordinates, grid), grid.permute(0, 3, 1, 2), atol=1e-4, rtol=0)


def test_the_full_grid_cuts_the_image_itself(photographs):
    torch.testing.assert_close(cut_patch(photographs, full_grid(16).expand(4, -1, -1, -1)), photographs, atol=1e-5, rtol=0)


def test_a_range_of_radii_moves_near_and_far_with_the_camera(smoke):
    data = smoke("data.radius=[9.5, 10.5]", "data.near=7.5", "data.far=12.5").data
    poses = poses_at(torch.zeros(3), torch.full((3,), 0.4), torch.tensor([9.5, 10.0, 10.5]))
    near, far = depth_bounds(poses, data)
    torch.testing.assert_close(near, torch.tensor([[6.5], [7.0], [7.5]]))
    torch.testing.assert_close(far, torch.tensor([[11.5], [12.0], [12.5]]))


def test_a_single_radius_leaves_the_bounds_wherever_the_camera_is(smoke):
    near, far = depth_bounds(poses_at(torch.zeros(1), torch.tensor([0.4]), 99.0), smoke("data.near=2", "data.far=4").data)
    assert (near.tolist(), far.tolist()) == ([[2.0]], [[4.0]])


BOX = torch.tensor([[-1.0, -0.5, -0.25], [1.0, 0.5, 0.25]])


@pytest.mark.parametrize(
    "ray_o, ray_d, enter, leave",
    [
        ((0.0, 0.0, 3.0), (0.0, 0.0, -1.0), 2.75, 3.25),
        ((0.0, 0.0, 3.0), (0.0, 0.0, -2.0), 1.375, 1.625),  # depths are in units of the direction
        ((-2.0, -1.5, 0.0), (1.0, 1.0, 0.0), 1.0, 2.0),  # through x = -1 and y = -0.5 at 1, out through y = 0.5 at 2
        ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), -1.0, 1.0),  # from inside
    ],
)
def test_a_ray_enters_and_leaves_a_box_where_it_meets_its_faces(ray_o, ray_d, enter, leave):
    depths = box_depths(BOX, torch.tensor([ray_o]), torch.tensor([ray_d]))
    assert [depth.item() for depth in depths] == pytest.approx([enter, leave])


def test_bounds_are_those_of_the_box_where_it_is_narrower_and_0_for_a_ray_that_misses():
    rays_o = torch.tensor([[[0.0, 0.0, 3.0], [0.0, 0.6, 3.0], [0.0, 0.0, 3.0]]])
    rays_d = torch.tensor([[[0.0, 0.0, -1.0], [0.0, 0.0, -1.0], [0.0, 0.0, -1.0]]])
    near, far = torch.tensor([[[2.0], [2.0], [2.9]]]), torch.tensor([[[4.0], [4.0], [3.1]]])
    assert torch.stack(clip_to_box(rays_o, rays_d, near, far, BOX)).flatten(1).tolist() == [
        pytest.approx([2.75, 0.0, 2.9]),
        pytest.approx([3.25, 0.0, 3.1]),
    ]
    assert is_inside(torch.tensor([[1.0, 0.5, 0.25], [1.01, 0.0, 0.0], [0.0, 0.0, -0.26]]), BOX).tolist() == [
        True,
        False,
        False,
    ]


def test_a_mirrored_row_is_exchanged_about_the_optical_axis():
    """The axis is at pixel 2 of 4, and at 2.5 of 5."""
    assert mirrored_images(torch.tensor([[10, 11, 12, 13]])).tolist() == [[13, 13, 12, 11]]
    assert mirrored_images(torch.tensor([10, 11, 12, 13, 14])).tolist() == [14, 14, 13, 12, 11]
    assert mirrored_images(torch.tensor([[7]])).tolist() == [[7]]


@pytest.mark.parametrize("preset", ["faces_64", "cat_faces_64"])
def test_the_box_of_faces_fills_the_frame_from_all_cameras_within_two_standard_deviations(preset):
    data = load_config(preset).data
    (left, right), (top, bottom) = data.u_range, data.v_range
    u, v = torch.tensor([left, left, right, right, 0.0]), torch.tensor([top, bottom, top, bottom, 0.5])
    poses, grid = poses_at(360 * u, v, data.radius[0]), full_grid(data.imsize)
    rays_o, rays_d = camera_rays(poses, grid, data.imsize, data)
    bounds = (bound[:, None].expand(-1, rays_o.shape[1], -1) for bound in depth_bounds(poses, data))
    near, far = clip_to_box(rays_o, rays_d, *bounds, torch.tensor(data.box).view(2, 3))
    assert (far - near).min() > 1.5  # of 2
