"""Sheets: what is held still stays as it is, bit for bit; ends are the objects themselves; arcs keep their length."""

import dataclasses
import math

from graf.camera import Labels, azimuth_and_v, sample_poses, side_pose
from graf.errors import GrafError
from graf.models.directions import edited, principal_directions
from graf.models.generator import Generator
from graf.pictures import sheets
from graf.pictures.outputs import as_uint8
from graf.pictures.sampling import sample_objects

import imageio.v2 as imageio
import pytest
import torch
from test_measure import Photographs, checkers

GAUSS = ("z_dist.type=gauss",)
UNIFORM = ("z_dist.type=uniform",)
N_SHAPE = 4  # of the smoke config's 8 latents


def cells(path, columns):
    """The pictures (N, H, W, 3) of a grid with two pixels of padding."""
    sheet = torch.from_numpy(imageio.imread(path))
    side = (sheet.shape[1] - 2) // columns - 2
    rows = (sheet.shape[0] - 2) // (side + 2)
    corners = [(2 + r * (side + 2), 2 + c * (side + 2)) for r in range(rows) for c in range(columns)]
    return torch.stack([sheet[y : y + side, x : x + side] for y, x in corners])


def rendered(generator, latents, classes, pose):
    """The same objects, rendered one by one: (N, H, W, 3) uint8."""
    images = [generator.render(z[None], pose[None], class_index=c[None]).images for z, c in zip(latents, classes, strict=True)]
    return as_uint8(torch.cat(images)).movedim(1, -1)


def assert_same_pictures(one, other):
    """Equal but for the rounding of another batch size."""
    assert one.shape == other.shape
    assert (one.int() - other.int()).abs().max() <= 1


def vivid(config, n_classes=1):
    """A generator whose weights are large enough that its objects differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        generator = Generator(config, n_classes)
    with torch.no_grad():
        for parameter in generator.field.parameters():
            parameter.mul_(2.5)
    return generator


@pytest.fixture
def generator(smoke):
    return vivid(smoke())


@pytest.fixture
def conditional(smoke):
    return vivid(smoke(), n_classes=3)


def corners_of(config, n):
    rng = torch.Generator().manual_seed(3)
    draw = torch.randn if config.type == "gauss" else lambda *size, generator: 2 * torch.rand(*size, generator=generator) - 1
    return draw(n, config.dim, generator=rng)


@pytest.mark.parametrize("distribution", [GAUSS, UNIFORM])
def test_the_code_held_still_is_the_first_corners_bit_for_bit(smoke, distribution):
    config = smoke(*distribution).z_dist
    corners = corners_of(config, 4)
    for place in (sheets.latent_grid, sheets.latent_walk):
        shape = place(corners, 5, "shape", config)
        appearance = place(corners, 5, "appearance", config)
        both = place(corners, 5, "both", config)
        assert torch.equal(shape[:, N_SHAPE:], corners[0, N_SHAPE:].expand_as(shape[:, N_SHAPE:]))
        assert torch.equal(appearance[:, :N_SHAPE], corners[0, :N_SHAPE].expand_as(appearance[:, :N_SHAPE]))
        assert torch.equal(both, torch.cat([shape[:, :N_SHAPE], appearance[:, N_SHAPE:]], dim=1))
        assert len(torch.unique(shape, dim=0)) == len(torch.unique(appearance, dim=0)) == len(torch.unique(both, dim=0)) > 3


@pytest.mark.parametrize("distribution", [GAUSS, UNIFORM])
def test_corners_are_the_objects_themselves_bit_for_bit(smoke, distribution):
    config = smoke(*distribution).z_dist
    corners = corners_of(config, 4)
    square = sheets.latent_grid(corners, 5, "both", config).unflatten(0, (5, 5))
    assert torch.equal(square[[0, 0, -1, -1], [0, -1, 0, -1]], corners)
    assert torch.equal(sheets.latent_walk(corners, 12, "both", config)[::3], corners[[0, 1, 3, 2]])


def test_a_walk_closes_and_its_strides_are_even(smoke):
    config = smoke(*UNIFORM).z_dist
    corners = torch.tensor([[0.0, 0.0], [0.0, 0.6], [0.6, 0.0], [0.6, 0.6]]).repeat(1, 4)  # sides of 1.2
    walk = sheets.latent_walk(corners, 8, "both", config)
    stride = (walk - walk.roll(1, 0)).norm(dim=1)  # the first is from the last frame to the first
    torch.testing.assert_close(stride, torch.full((8,), 0.6))


def test_gaussian_codes_turn_and_uniform_ones_go_straight(smoke):
    gauss = smoke(*GAUSS).z_dist
    first, second = torch.zeros(8), torch.zeros(8)
    first[0], second[1] = 2.0, 2.0  # shape: a quarter turn of length 2
    first[4], second[5] = 3.0, 3.0
    third = torch.tensor([[1 / 3]])
    expected = torch.zeros(1, 8)
    expected[0, [0, 1, 4, 5]] = torch.tensor([2 * math.cos(math.pi / 6), 1.0, 3 * math.cos(math.pi / 6), 1.5])
    torch.testing.assert_close(sheets.blend(first, second, third, gauss), expected)
    straight = sheets.blend(first, second, third, smoke(*UNIFORM).z_dist)
    torch.testing.assert_close(straight, (2 * first + second)[None] / 3)


def test_an_arc_keeps_the_length_that_a_line_would_lose(smoke):
    config = dataclasses.replace(smoke().z_dist, dim=512, dim_appearance=256)
    corners = torch.randn(4, 512, generator=torch.Generator().manual_seed(0))
    corners = (corners.unflatten(1, (2, 256)) / corners.unflatten(1, (2, 256)).norm(dim=-1, keepdim=True)).flatten(1)
    halves = sheets.latent_grid(corners, 9, "both", config).unflatten(1, (2, 256))
    torch.testing.assert_close(halves.norm(dim=-1), torch.ones(81, 2))
    assert corners.mean(0).unflatten(0, (2, 256)).norm(dim=-1).max() < 0.8


@pytest.mark.parametrize("factor", [1.0, -1.0, 0.0])
def test_parallel_opposite_and_zero_codes_have_a_finite_way(smoke, factor):
    config = smoke(*GAUSS).z_dist
    first = corners_of(config, 1)[0]
    row = sheets.blend(first, factor * first, torch.tensor([[0.0], [0.5], [1.0]]), config)
    assert torch.equal(row[[0, -1]], torch.stack([first, factor * first]))
    if factor:
        torch.testing.assert_close(row[1], (1 + factor) / 2 * first)
    assert row.isfinite().all()


def test_an_interpolation_sheet_begins_and_ends_with_its_objects(conditional, tmp_path):
    latents, classes = sample_objects(conditional, 4, seed=0)
    pose = side_pose(conditional.config.data)
    files = sheets.interpolation_sheet(conditional, (latents, classes), tmp_path, columns=3)
    assert [file.name for file in files] == [f"interpolation_{mode}.png" for mode in ("shape", "appearance", "both")]
    first_class = classes[:1].expand(4)
    objects = rendered(conditional, latents, first_class, pose)
    assert (objects[0].int() - objects[1:].int()).abs().amax(dim=(1, 2, 3)).min() > 20  # or what follows says nothing
    assert_same_pictures(cells(files[2], 3)[[0, 2, 6, 8]], objects)
    mixed = torch.cat([latents[:, :N_SHAPE], latents[:1, N_SHAPE:].expand(4, -1)], dim=1)
    assert_same_pictures(cells(files[0], 3)[[0, 2, 6, 8]], rendered(conditional, mixed, first_class, pose))


def test_an_interpolation_video_has_its_frames(generator, tmp_path):
    objects = sample_objects(generator, 4, seed=0)
    files = sheets.interpolation_video(generator, objects, tmp_path, n_frames=6)
    assert [file.name for file in files] == [f"interpolation_{mode}.mp4" for mode in ("shape", "appearance", "both")]
    frames = imageio.mimread(files[2])
    assert [frame.shape for frame in frames] == [(256, 256, 3)] * 6


def test_without_an_appearance_code_there_is_one_way(smoke, tmp_path):
    generator = vivid(smoke("z_dist.dim_appearance=0"))
    files = sheets.interpolation_sheet(generator, sample_objects(generator, 4, seed=0), tmp_path, columns=2)
    assert [file.name for file in files] == ["interpolation_both.png"]


def test_truncation_goes_from_the_mean_object_to_each_object(conditional, tmp_path):
    latents, classes = sample_objects(conditional, 3, seed=0)
    pose = side_pose(conditional.config.data)
    (file,) = sheets.truncation_sheet(conditional, (latents, classes), tmp_path, columns=3)
    shown = cells(file, 3).unflatten(0, (3, 3))
    assert_same_pictures(shown[:, 0], rendered(conditional, torch.zeros_like(latents), classes, pose))
    assert_same_pictures(shown[:, 1], rendered(conditional, latents / 2, classes, pose))
    assert_same_pictures(shown[:, 2], rendered(conditional, latents, classes, pose))


def test_rows_of_classes_have_the_same_latents(conditional, tmp_path):
    latents, _ = sample_objects(conditional, 2, seed=0)
    pose = side_pose(conditional.config.data)
    (file,) = sheets.class_rows(conditional, latents, tmp_path)
    shown = cells(file, 2).unflatten(0, (3, 2))
    for class_index in range(3):
        assert_same_pictures(shown[class_index], rendered(conditional, latents, torch.full((2,), class_index), pose))
    assert not torch.equal(shown[0], shown[1])


@pytest.mark.parametrize(("names", "rows"), [((), ("class 0", "class 1", "class 2")), (("bus", "car", "van"),) * 2])
def test_rows_of_classes_have_their_names(conditional, tmp_path, monkeypatch, names, rows):
    captions = []
    monkeypatch.setattr(sheets, "write_grid", lambda path, pictures, columns, given: captions.append(given) or path)
    conditional.class_names = names
    sheets.class_rows(conditional, sample_objects(conditional, 2, seed=0)[0], tmp_path, footer="run")
    assert tuple(captions[0].rows) == rows


def test_more_pictures_than_may_be_held_are_refused(smoke, tmp_path):
    generator = Generator(smoke("memory.max_test_outputs=11")).eval()
    objects = sample_objects(generator, 2, seed=0)
    with pytest.raises(GrafError, match=r"12 images, more than memory\.max_test_outputs 11; take fewer objects"):
        sheets.truncation_sheet(generator, objects, tmp_path, columns=6)
    assert sheets.truncation_sheet(generator, objects, tmp_path, columns=5)
    with pytest.raises(
        GrafError, match="--sheets: interpolations of 72 images, more than memory.max_test_outputs 11; raise it"
    ):
        sheets.check_objects(generator, 1)
    with pytest.raises(GrafError, match="14 images, more than memory.max_test_outputs 11; take fewer objects"):
        sheets.check_objects(generator, 2, of_directions=True)
    sheets.check_objects(generator, 1, of_directions=True)


class Posed(Photographs):
    """Photographs with cameras and classes, as graf.data.Views has them."""

    def __init__(self, images, labels=None):
        super().__init__(images)
        self.labels, self.posed = labels, labels is not None
        self.class_index = labels.class_index if labels else torch.zeros(len(images), dtype=torch.long)


def test_fakes_stand_below_the_real_images_whose_cameras_they_have(conditional, tmp_path, monkeypatch):
    monkeypatch.setattr(sheets, "PAIRS_A_ROW", 3)
    images = checkers(7, seed=1, side=16)
    poses = sample_poses(7, conditional.config.data, torch.Generator().manual_seed(2))
    classes = torch.arange(7) % 3
    calls = []
    render = conditional.render

    def note(latents, pose_c2w, resolution=None, class_index=None):
        calls.append((pose_c2w, class_index, resolution, latents))
        return render(latents, pose_c2w, resolution, class_index)

    monkeypatch.setattr(conditional, "render", note)
    dataset = Posed(images, Labels(poses, classes, classes))
    (file,) = sheets.real_against_fake_grid(conditional, dataset, tmp_path, n=5, seed=4, truncation=0.5)
    rng = torch.Generator().manual_seed(4)
    index = torch.randperm(7, generator=rng)[:5]
    shown = cells(file, 3).unflatten(0, (4, 3))
    reals = as_uint8(images[index]).movedim(1, -1)
    assert torch.equal(shown[[0, 2]].flatten(0, 1)[:5], reals)
    assert (shown[2:, 2] == 255).all()  # five do not fill two rows of three
    shown_poses, shown_classes, sides, latents = zip(*calls, strict=True)
    assert torch.equal(torch.cat(shown_poses), poses[index])
    assert torch.equal(torch.cat(shown_classes), classes[index])
    assert set(sides) == {16}
    assert torch.equal(torch.cat(latents), 0.5 * conditional.sample_latents(5, rng))


def test_unposed_data_is_seen_from_the_configs_cameras(generator, tmp_path, monkeypatch):
    notes, captions = [], sheets.Captions

    def noted(*given, note, **more):
        notes.append(note)
        return captions(*given, note=note, **more)

    monkeypatch.setattr(sheets, "Captions", noted)
    (file,) = sheets.real_against_fake_grid(generator, Posed(checkers(3, seed=1, side=16)), tmp_path, n=16)
    assert cells(file, 3).shape == (6, 16, 16, 3) and notes == ["from sampled cameras"]


@pytest.mark.parametrize("override", ["data.umin=0.4 data.umax=0.6", "data.radius=3.0,4.2", "data.vmin=0.3"])
def test_the_sheets_camera_lies_in_the_configs_range(smoke, override):
    data = smoke(*override.split()).data
    pose = side_pose(data)
    azimuth_deg, v = azimuth_and_v(pose)
    assert data.umin * 360 < azimuth_deg < data.umax * 360
    assert v.item() == pytest.approx((data.vmin + data.vmax) / 2, abs=1e-6)
    assert pose[:, 3].norm().item() == pytest.approx(sum(data.radius) / 2)


@pytest.mark.parametrize("which", ["generator", "conditional"])
def test_a_direction_has_a_sheet_whose_middle_column_is_unchanged(request, which, tmp_path):
    generator = request.getfixturevalue(which)
    objects, directions = sample_objects(generator, 2, 0), principal_directions(generator, 2)
    files = sheets.direction_sheets(generator, objects, directions, tmp_path)
    names = [f"direction_{part}_{i}.png" for part in ("shape", "appearance") for i in (1, 2)]
    assert [file.name for file in files] == names and set(tmp_path.iterdir()) == set(files)
    pose = side_pose(generator.config.data)
    for file, amounts in zip(files, [((-3.0,), ()), ((0.0, -3.0), ()), ((), (-3.0,)), ((), (0.0, -3.0))], strict=True):
        shown = cells(file, 7).unflatten(0, (2, 7))
        assert_same_pictures(shown[:, 3], rendered(generator, *objects, pose))
        assert_same_pictures(shown[:, 0], rendered(edited(generator, directions, *amounts), *objects, pose))


def test_the_sheet_of_a_direction_says_what_it_shows(generator, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(sheets, "write_grid", lambda path, pictures, columns, captions: given.append(captions) or path)
    directions = principal_directions(generator, 1)
    sheets.direction_sheets(generator, sample_objects(generator, 2, 0), directions, tmp_path, footer="smoke, step 2")
    assert given[0].columns == ["-3 sd", "-2 sd", "-1 sd", "unchanged", "+1 sd", "+2 sd", "+3 sd"]
    assert (given[0].rows, given[0].footer) == (["object 0", "object 1"], "smoke, step 2")
    share = directions["appearance"].shares[0]
    assert given[1].note == f"appearance 1: {share:.0%} of the variance; sd: standard deviations"


def test_a_sheet_of_too_many_pictures_is_refused_before_any_is_rendered(smoke, tmp_path, monkeypatch):
    generator = vivid(smoke("memory.max_test_outputs=13"))
    monkeypatch.setattr(generator, "render", lambda *_: 1 / 0)
    with pytest.raises(GrafError, match="of 14 images, more than memory.max_test_outputs 13"):
        sheets.direction_sheets(generator, sample_objects(generator, 2, 0), principal_directions(generator, 1), tmp_path)
