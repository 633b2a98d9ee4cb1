"""data.box: auto: the box around the visual hull of silhouettes, found by arithmetic on balls, cars and photographs."""

import dataclasses
import logging
import math

from graf.camera import Labels, poses_at, project, sample_poses
from graf.data import build_dataset, resolve
from graf.data import hull as module
from graf.data.car_shapes import make_car
from graf.data.hull import covers, hull_box, outline, pixels_of, scale_to_meet, visual_hull
from graf.data.toy_cars import render_cars
from graf.data.views import Views
from graf.rays import box_depths, camera_rays, full_grid
from graf.rng import seeded_rng

import pytest
import torch


class Photographs(Views):
    """Views with the silhouettes that `mask_of(index)` gives."""

    def __init__(self, labels, n, mask_of=None):
        self.mask_of = mask_of
        super().__init__([f"photograph {i}" for i in range(n)], ["a"], torch.zeros(n, dtype=torch.long), labels, "x")

    def read(self, index):
        raise NotImplementedError

    def opacity(self, index, *_, **__):
        return self.mask_of and self.mask_of(index)


def around(n, v=0.4):
    return poses_at(torch.arange(n) * (360 / n), torch.full((n,), v), 3.6)


def test_a_mask_covers_the_points_that_are_seen_in_it(smoke):
    """A camera at (3.6, 0, 0): its right is the world's y. The focal length is 24 / tan(16 degrees) = 83.7 pixels."""
    masks = torch.zeros(1, 48, 48, dtype=torch.bool)
    masks[0, 24, 30:34] = True
    pose = poses_at(torch.zeros(1), torch.full((1,), 0.5), 3.6)
    at_column = 3.6 / (24 / math.tan(math.radians(16)))  # y of a pixel, at the depth of the origin
    points = torch.tensor([[0.0, 8 * at_column, 0.0], [0.0, 0.0, 0.0], [0.0, 8 * at_column, 0.2], [9.0, 0.0, 0.0]])
    assert covers(masks, pose, points, smoke().data).tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("orthographic", [True, False])
@pytest.mark.parametrize("n", [0, 500])
def test_points_lie_in_the_pixels_to_which_they_are_projected(smoke, orthographic, n):
    """Those between two pixels aside, some beyond the frame, and some behind the camera."""
    data, side = smoke(f"data.orthographic={orthographic}").data, 48
    points, poses = 4 * torch.randn(n, 3, generator=seeded_rng(0)), sample_poses(5, data, seeded_rng(1))
    pixel, depth = pixels_of(points, poses, side, data)
    positions, depths = project(points, poses, side, data)
    torch.testing.assert_close(depth, depths, atol=1e-4, rtol=0)
    column, row = positions.round().clamp(0, side - 1).long().unbind(-1)
    clear = ((positions - positions.floor() - 0.5).abs() > 1e-3).all(-1) & (depths > 1e-3)
    assert torch.equal(pixel[clear], (row * side + column)[clear]) and clear.sum() >= clear.numel() / 4


@pytest.mark.parametrize("orthographic, size", [(True, 1.0), (False, 1.0)])
def test_the_hull_of_a_disc_in_all_pictures_is_a_ball(smoke, monkeypatch, orthographic, size):
    """Seen from everywhere as a disc: a ball, within half a pixel and a cell; it is a third of the frame wide."""
    monkeypatch.setattr(module, "NEAREST", 1)
    data = smoke(f"data.orthographic={orthographic}").data
    x, y = torch.meshgrid(torch.arange(48) - 24, torch.arange(48) - 24, indexing="xy")
    mask = x**2 + y**2 <= 8**2
    height = torch.linspace(-0.9, 0.9, 20)
    poses = torch.cat([poses_at(torch.arange(12) * 30.0, torch.full((12,), (1 - float(h)) / 2), 3.6) for h in height])
    axis = torch.linspace(-0.95, 0.95, 39)
    found = visual_hull(torch.cartesian_prod(axis, axis, axis), mask.expand(len(poses), -1, -1), poses, data)
    pixel = (data.far - data.near) / 48 if orthographic else 3.6 / (24 / math.tan(math.radians(16)))
    assert found.norm(dim=-1).max() == pytest.approx(8 * pixel, abs=pixel)
    assert found.amax(0).tolist() == pytest.approx([8 * pixel] * 3, abs=0.05 + pixel / 2)


def test_one_of_the_nearest_photographs_suffices(smoke, monkeypatch):
    """Two discs of different size by turns: the hull is the large one's where one of two neighbours covers."""
    data, poses = smoke().data, around(8, 0.5)
    x, y = torch.meshgrid(torch.arange(48) - 24, torch.arange(48) - 24, indexing="xy")
    small, large = x**2 + y**2 <= 5**2, x**2 + y**2 <= 10**2
    masks = torch.stack([small, large] * 4)
    points = torch.tensor([[0.0, 0.0, 0.043 * pixels] for pixels in range(12)])
    for nearest, radius in ((1, 5), (3, 10)):
        monkeypatch.setattr(module, "NEAREST", nearest)
        assert len(visual_hull(points, masks, poses, data)) == radius + 1


def test_the_box_of_toy_cars_is_that_of_their_own_sizes(smoke, monkeypatch, caplog):
    monkeypatch.setattr(module, "hull_box", None)  # nothing is rendered
    config = smoke("data.n_images=64", "data.box=auto", "data.seed=3")
    with caplog.at_level(logging.INFO, "graf"):
        box = resolve(config, build_dataset(config)).data.box
    largest = torch.stack([make_car(3, i).half_size for i in range(64)]).amax(0)
    low, high = torch.tensor(box).view(2, 3)
    torch.testing.assert_close(high, largest * 1.01, atol=6e-5, rtol=0)
    assert low.tolist() == (-high).tolist()
    assert f"data.box: {list(box)}, around all 64 toy cars" in caplog.text


def test_no_car_leaves_the_visual_hull_of_toy_cars(smoke):
    config = smoke("data.n_images=64", "data.vmin=0.21", "data.vmax=0.47")
    largest = torch.stack([make_car(config.data.seed, i).half_size for i in range(64)]).amax(0)
    low, high = torch.tensor(hull_box(build_dataset(config), config.data)).view(2, 3)
    assert (high > largest).all() and (low < -largest).all()


def scaled(car, scale):
    faces = torch.cat([car.faces[..., :3], car.faces[..., 3:] * scale], dim=-1)
    return dataclasses.replace(car, faces=faces, discs=car.discs * scale, half_size=car.half_size * scale)


def test_the_box_holds_the_few_objects_that_are_larger(smoke, caplog):
    """Every 25th of 512 cars (4 %) is 1.3 times as large: from many directions none of the 32 nearest photographs shows one,
    and the hull has none of them inside. The box has all cars inside, and every ray that sees a car meets it."""
    n, data = 512, smoke("data.vmin=0.21", "data.vmax=0.47", "data.imsize=48").data
    cars = [scaled(make_car(0, i), 0.975 if i % 25 == 0 else 0.75) for i in range(n)]
    poses = sample_poses(n, data, seeded_rng(0))
    masks = render_cars(cars, poses, data, supersampling=1).opacity
    with caplog.at_level(logging.INFO, "graf"):
        box = torch.tensor(hull_box(Photographs(Labels.of_poses(poses), n, lambda i: masks[i]), data)).view(2, 3)
    largest = torch.stack([car.half_size for car in cars]).amax(0)
    assert (box[1] > largest).all() and (box[0] < -largest).all()
    rays_o, rays_d = camera_rays(poses, full_grid(48), 48, data)
    enter, leave = box_depths(box, rays_o, rays_d)
    assert (enter < leave)[masks.flatten(1) > 0.5].all()
    assert (box[1] - box[0] < 1.3 * 2 * largest).all()  # and no larger than that takes
    told = next(line for line in caplog.text.splitlines() if "leave the visual hull" in line)
    assert "of 512 silhouettes" in told and "photograph " in told and "holds them all" in told


def one_wide_disc() -> list[torch.Tensor]:
    """Sixteen silhouettes (48, 48), of which number 7 is twice as wide."""
    x, y = torch.meshgrid(torch.arange(48) - 23.5, torch.arange(48) - 23.5, indexing="xy")
    return [(x**2 + y**2 <= (16 if i == 7 else 8) ** 2).float() for i in range(16)]


def test_all_photographs_are_looked_at_and_not_only_those_of_the_hull(smoke, monkeypatch, caplog):
    """Two of 16 make the hull. The disc of one that is not among them is twice as wide, and the box holds it too."""
    monkeypatch.setattr(module, "HULL_IMAGES", 2)
    discs = one_wide_disc()
    data, poses = smoke("data.imsize=48").data, around(16)
    with caplog.at_level(logging.INFO, "graf"):
        box = torch.tensor(hull_box(Photographs(Labels.of_poses(poses), 16, lambda i: discs[i]), data)).view(2, 3)
    enter, leave = box_depths(box, *camera_rays(poses, full_grid(48), 48, data))
    assert (enter < leave)[torch.stack(discs).flatten(1) > 0].all()
    assert "1 of 16 silhouettes (6.2 %) leave the visual hull, photograph 7 the furthest" in caplog.text
    assert "reach the frame's edge" not in caplog.text


def test_some_of_the_silhouettes_make_the_hull_with_their_own_cameras(smoke, monkeypatch):
    """Of 16 silhouettes of a ball around (0.4, 0, 0), every fifth makes the hull."""
    monkeypatch.setattr(module, "HULL_IMAGES", 4)
    monkeypatch.setattr(module, "NEAREST", 1)  # all four cover each of its points
    data, poses, centre = smoke("data.imsize=48").data, around(16), torch.tensor([[0.4, 0.0, 0.0]])
    (x, y), pixels = project(centre, poses, 48, data)[0][:, 0].T, full_grid(48)[0]
    discs = ((pixels[..., 0] - x[:, None, None]) ** 2 + (pixels[..., 1] - y[:, None, None]) ** 2 < 7**2).float()
    box = torch.tensor(hull_box(Photographs(Labels.of_poses(poses), 16, lambda i: discs[i]), data)).view(2, 3)
    torch.testing.assert_close(box.mean(0), centre[0], atol=0.1, rtol=0)


def test_a_pixel_is_the_objects_where_most_of_it_is(smoke):
    photographs = Photographs(Labels.of_poses(around(1)), 1, lambda _: torch.tensor([[0.2, 0.4], [0.6, 1.0]]))
    (mask,) = module.silhouettes(photographs, torch.zeros(1, dtype=torch.long), smoke().data, "silhouettes")
    assert mask.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize(("held", "outside"), [(15 / 16, False), (0.95, True), (1.0, True)])
def test_a_camera_that_is_wrong_does_not_enlarge_the_box_of_a_share(smoke, monkeypatch, held, outside, caplog):
    monkeypatch.setattr(module, "HULL_IMAGES", 2)
    discs = one_wide_disc()
    photographs = Photographs(Labels.of_poses(around(16)), 16, lambda i: discs[i])
    with caplog.at_level(logging.INFO, "graf"):
        box = torch.tensor(hull_box(photographs, smoke("data.imsize=48").data, held)).view(2, 3)
    even = torch.tensor(
        hull_box(Photographs(Labels.of_poses(around(16)), 16, lambda i: discs[0]), smoke("data.imsize=48").data)
    )
    assert ((box - even.view(2, 3)).abs().max() > 0.1) == outside
    assert "1 of 16 silhouettes" in caplog.text


def test_the_log_tells_silhouettes_that_the_frame_cuts_off(smoke, caplog):
    band = torch.zeros(48, 48)
    band[20:28] = 1
    with caplog.at_level(logging.INFO, "graf"):
        hull_box(Photographs(Labels.of_poses(around(16)), 16, lambda _: band), smoke("data.imsize=48").data)
    assert "16 of 16 silhouettes reach the frame's edge; what lies beyond it may not be in the box" in caplog.text


def test_a_silhouette_ends_at_the_corners_of_its_pixels():
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1, 2:] = True  # one row, two columns, up to the frame's edge
    found = {tuple(corner) for corner in outline(mask).tolist()}
    assert found == {(x, y) for x in (1.5, 2.5, 3.5) for y in (0.5, 1.5)}
    inner = outline(torch.ones(4, 4, dtype=torch.bool))
    assert len(inner) == 16 and ((inner == -0.5) | (inner == 3.5)).any(1).all()
    assert len(outline(torch.zeros(4, 4, dtype=torch.bool))) == 0


def test_the_scale_at_which_a_box_meets_a_ray():
    """By hand, of the box from -1 to (1, 2, 3) shifted; and drawn rays miss the box that is a little smaller, and hit one a
    little larger."""
    box = torch.tensor([[-1.0, -2.0, -3.0], [1.0, 2.0, 3.0]]) + torch.tensor([5.0, 0.0, 0.0])
    rays_o = torch.tensor([[5.0, -9.0, 6.0], [7.0, -9.0, 0.0], [5.5, 0.0, -9.0], [2.0, -6.0, 0.0]])
    rays_d = torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    # above at twice the height; beside at twice the width; through, half way to its side; diagonal, past the corner
    assert scale_to_meet(box, rays_o, rays_d).tolist() == pytest.approx([2, 2, 0.5, 1])
    draws = torch.Generator().manual_seed(1)
    rays_o, rays_d = torch.randn(2, 500, 3, generator=draws) * torch.tensor([4.0, 1.0]).view(2, 1, 1)
    scales, centre = scale_to_meet(box, rays_o, rays_d), box.mean(0)
    for scale, origin, direction in zip(scales, rays_o, rays_d, strict=True):
        for factor, meets in ((0.999, False), (1.001, True)):
            enter, leave = box_depths(centre + (box - centre) * scale * factor, origin[None], direction[None])
            assert bool(enter < leave) == meets


def test_photographs_with_transparency_and_cameras_have_the_box_of_their_hull(smoke, caplog):
    disc = torch.ones(16, 16)
    config, dataset = smoke("data.box=auto"), Photographs(Labels.of_poses(around(16)), 16, lambda _: disc)
    with caplog.at_level(logging.INFO, "graf"):
        box = resolve(config, dataset).data.box
    assert box == hull_box(dataset, config.data) == resolve(config, dataset).data.box  # the same again
    assert f"data.box: {list(box)}, around the silhouettes of all 16 images" in caplog.text


@pytest.mark.parametrize(
    "overrides, reason", [(("data.labels=none",), "no known cameras"), (("data.far=3.5",), "hold the origin")]
)
def test_without_cameras_around_the_origin_there_is_no_box(smoke, caplog, overrides, reason):
    config = smoke("data.box=auto", *overrides)
    pose = None if "labels" in overrides[0] else Labels.of_poses(around(4))
    with caplog.at_level(logging.INFO, "graf"):
        found = resolve(config, Photographs(pose, 4))
    assert found.data.box == "none"
    assert "data.box: none, for" in caplog.text and reason in caplog.text


def test_a_photograph_without_transparency_tells_no_box(smoke, caplog):
    dataset = Photographs(Labels.of_poses(around(4)), 4)
    with caplog.at_level(logging.INFO, "graf"):
        assert resolve(smoke("data.box=auto"), dataset).data.box == "none"
    assert "data.box: none, for photograph 0 has no transparency" in caplog.text


def test_what_the_config_says_is_not_looked_for(smoke):
    for box in ("none", "[-1,-1,-1,1,1,1]"):
        config = smoke(f"data.box={box}", "data.alpha=ignore")
        assert resolve(config, None) is config


def test_a_smaller_silhouette_gives_a_smaller_box(smoke, monkeypatch):
    """The last one fills the frame: the box is the whole cube, 2 * 0.99 wide, with half a cell and 5 % on either side."""
    monkeypatch.setattr(module, "NEAREST", 1)
    sizes = []
    for radius in (4, 8, 30):
        x, y = torch.meshgrid(torch.arange(48) - 24, torch.arange(48) - 24, indexing="xy")
        disc = (x**2 + y**2 <= radius**2).float()
        dataset = Photographs(Labels.of_poses(around(16)), 16, lambda _, disc=disc: disc)
        box = torch.tensor(hull_box(dataset, dataclasses.replace(smoke().data, imsize=64))).view(2, 3)
        sizes.append((box[1] - box[0])[:2].mean().item())
    cube = 2 * 3.6 * math.sin(math.radians(16))
    assert sizes[0] < sizes[1] < sizes[2] == pytest.approx(cube * (1 + 1 / 48) * 1.05, abs=1e-3)
