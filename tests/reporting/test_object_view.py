"""What a state of the viewer's sliders looks like, without a browser."""

import dataclasses
import json
import math

from graf.camera import azimuth_and_v, poses_at
from graf.checkpoints.latents_file import load_latents
from graf.config import LatentConfig
from graf.data import Views
from graf.errors import GrafError
from graf.export.mesh import write_mesh
from graf.models.directions import edited, principal_directions
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8
from graf.rays import depth_bounds
from graf.reporting.viewer import object_view
from graf.reporting.viewer.object_view import (
    Model,
    ObjectView,
    ViewState,
    camera_distances,
    free_path,
    freed,
    mixed,
    moving_side,
    padded,
    reserved_path,
    resting_side,
    sides,
    training_views,
    turned,
    vertical_fov,
)

import numpy as np
import pytest
import torch
import trimesh

NAN = float("nan")


@pytest.fixture
def view(refine, tmp_path) -> ObjectView:
    """A view of an untrained network, 16 x 16 pixels of 8 x 8 rays, after step 7."""
    torch.manual_seed(0)
    return ObjectView(Model(tmp_path / "model.pt", Generator(refine()).eval(), 7, tmp_path / "viewer"))


def from_height(v: float, distance: float = 3.6) -> torch.Tensor:
    return poses_at(torch.tensor(30.0), torch.tensor(v), distance)


def test_shape_and_appearance_have_shares_of_their_own():
    config = LatentConfig(type="uniform", dim=4, dim_appearance=2)
    first, second = torch.tensor([[0.0, 0.0, 0.0, 0.0]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert mixed(first, second, 0.5, 0.25, config).tolist() == [[0.5, 1.0, 0.75, 1.0]]
    assert mixed(first, second, 1, 0, config).tolist() == [[1.0, 2.0, 0.0, 0.0]]
    lean = LatentConfig(type="uniform", dim=4, dim_appearance=1)
    assert mixed(first, second, 1, 0, lean).tolist() == [[1.0, 2.0, 3.0, 0.0]]


def test_truncation_scales_the_latents(view):
    whole, half = (view.latents(ViewState(seed=3, truncation=psi)) for psi in (1, 0.5))
    torch.testing.assert_close(half, whole / 2)


def test_directions_move_the_object_that_is_shown(view, monkeypatch):
    unmoved, zero, moved = (view.picture(ViewState(shape_sd=sd), 16) for sd in ((), (0.0,) * 5, (0.0, 3.0)))
    assert np.array_equal(unmoved, zero)
    wanted = edited(view.model.generator, principal_directions(view.model.generator, 5), shape=(0.0, 3.0))
    other = dataclasses.replace(view.model, generator=wanted)
    assert np.array_equal(moved, ObjectView(other).picture(ViewState(), 16))
    assert not np.array_equal(moved, unmoved)


def test_directions_move_the_mesh(view, monkeypatch):
    given = []
    monkeypatch.setattr(object_view, "extract_mesh", lambda generator, *_: given.append(generator))
    view.mesh(ViewState())
    view.mesh(ViewState(appearance_sd=(1.0,)))
    assert given[0] is view.model.generator
    latents = view.latents(ViewState())
    before, after = (generator.field.mapped(latents) for generator in given)
    assert torch.equal(before[0], after[0])
    torch.testing.assert_close(after[1] - before[1], view.model.directions["appearance"].offsets[:1])


def test_the_directions_of_a_model_are_found_once(view, monkeypatch):
    found = []
    monkeypatch.setattr(object_view, "principal_directions", lambda *given: found.append(given) or principal_directions(*given))
    for amount in (1.0, 2.0):
        view.picture(ViewState(shape_sd=(amount,)), 16)
    assert len(found) == 1


def test_what_no_slider_sends_is_brought_into_range():
    pose = torch.full((3, 4), NAN)
    sent = ViewState(
        seed=10**9,
        to_seed=-1,
        shape=NAN,
        appearance=7,
        truncation="a",
        class_index=5,
        shape_sd=(NAN, 99, "a", -99, 1, 7),
        kind="x",
        beside="y",
        pose_c2w=pose,
        aspect=0,
    )
    wanted = ViewState(seed=999, to_seed=0, shape=0, appearance=1, truncation=1, class_index=1, aspect=0.25)
    wanted = dataclasses.replace(wanted, shape_sd=(0, 3, 0, -3, 1))
    assert sent.checked(n_classes=2) == wanted
    assert ViewState(aspect=NAN).checked().aspect == 1
    assert ViewState(pose_c2w=torch.zeros(2, 2)).checked().pose_c2w is None


def test_a_camera_stays_where_training_had_some_unless_it_may_leave(view):
    low, high = view.data.vmin, view.data.vmax
    inside = from_height((low + high) / 2)
    assert torch.equal(view.pose(ViewState(pose_c2w=inside)), inside)
    above = from_height(low / 2)
    azimuth_deg, v = azimuth_and_v(view.pose(ViewState(pose_c2w=above)))
    assert (float(azimuth_deg), float(v)) == (pytest.approx(30, abs=1e-3), pytest.approx(low, abs=1e-5))
    assert torch.equal(view.pose(ViewState(pose_c2w=above, within=False)), above)
    assert "beyond what was trained" in view.caption(ViewState(pose_c2w=above, within=False))
    assert "beyond" not in view.caption(ViewState(pose_c2w=above))


@pytest.mark.parametrize(
    ("u", "azimuth_deg", "told"),
    [
        ((0.25, 0.5), 100, "azimuth 100° (trained 90° to 180°), elevation 20° (trained 4° to 35°)"),
        ((0.25, 0.5), 200, "azimuth 200° (trained 90° to 180°), elevation 20° (trained 4° to 35°), beyond what was trained"),
        ((-0.125, 0.125), 330, "azimuth 330° (trained -45° to 45°), elevation 20° (trained 4° to 35°)"),
        (
            (-0.125, 0.125),
            180,
            "azimuth 180° (trained -45° to 45°), elevation 20° (trained 4° to 35°), beyond what was trained",
        ),
        ((0.0, 1.0), 200, "azimuth 200° (trained all around), elevation 20° (trained 4° to 35°)"),
    ],
)
def test_the_caption_tells_trained_azimuths_too(view, u, azimuth_deg, told):
    view.data = dataclasses.replace(view.data, umin=u[0], umax=u[1], vmin=0.213, vmax=0.465)  # sin(elevation) = 1 - 2 v
    pose = poses_at(torch.tensor(float(azimuth_deg)), torch.tensor(0.329), 3.6)
    assert view.caption(ViewState(pose_c2w=pose)) == told


@pytest.mark.parametrize("distance", [1e-9, 0.01, 1e6])
def test_a_camera_stays_where_the_object_can_be_seen(view, distance):
    pose = view.pose(ViewState(pose_c2w=from_height(0.4, distance)))
    nearest, farthest = camera_distances(view.data)
    assert nearest - 1e-4 <= float(pose[:, 3].norm()) <= farthest + 1e-4


def test_near_and_far_move_with_a_camera_that_comes_closer(view):
    data = dataclasses.replace(view.data, near=2.6, far=4.6, radius=(3.6, 3.6))
    near, far = depth_bounds(from_height(0.4, 2.0)[None], freed(data))
    assert (float(near), float(far)) == (pytest.approx(1.0, abs=1e-4), pytest.approx(3.0, abs=1e-4))
    assert camera_distances(data) == (pytest.approx(1.05), pytest.approx(10.8))


def test_a_picture_is_the_generators_own(view):
    pose = from_height((view.data.vmin + view.data.vmax) / 2, view.data.radius[1])
    ours = torch.from_numpy(view.picture(ViewState(pose_c2w=pose), 16).copy())
    exact = as_uint8(view.model.generator.render(view.latents(ViewState()), pose[None], 16).images)[0].movedim(0, -1)
    assert (ours.int() - exact.int()).abs().max() <= 2


def test_two_pictures_are_beside_each_other(view):
    assert view.picture(ViewState(aspect=2), 16).shape == (16, 32, 3)
    assert view.picture(ViewState(aspect=2, beside="depth"), 16).shape == (16, 32, 3)
    tall = view.picture(ViewState(aspect=0.5, kind="before CCSR", beside="opacity"), 16)
    assert tall.shape == (64, 32, 3)
    assert np.array_equal(tall[24:40, :16], view.picture(ViewState(kind="before CCSR"), 16))
    assert np.array_equal(tall[24:40, 16:], view.picture(ViewState(kind="opacity"), 16))


def test_another_object_is_drawn_for_another_seed(view):
    first, second = (view.picture(ViewState(seed=seed), 16) for seed in (0, 1))
    assert not np.array_equal(first, second)
    assert np.array_equal(view.picture(ViewState(), 16), first)


def test_a_square_stands_in_the_middle_of_its_pane():
    square, red = np.full((4, 4, 3), 9, np.uint8), np.array([255, 0, 0], np.uint8)
    wide = padded(square, 2, red)
    assert wide.shape == (4, 8, 3)
    assert wide[0, :, 1].tolist() == [0, 0, 9, 9, 9, 9, 0, 0]
    assert padded(square, 0.5, red).shape == (8, 4, 3)


def test_a_tall_window_sees_the_squares_width(view):
    data = dataclasses.replace(view.data, fov=60.0, orthographic=False)
    assert math.degrees(vertical_fov(data, 1.5)) == pytest.approx(60)
    assert math.tan(vertical_fov(data, 0.5) / 2) == pytest.approx(2 * math.tan(math.radians(30)))


def test_the_side_while_moving_is_the_largest_that_is_fast_enough(smoke):
    assert sides(smoke("data.imsize=64")) == (16, 32, 64, 128, 256, 512)
    assert resting_side((16, 64, 256, 512)) == 256
    assert resting_side((16, 32)) == 32
    of_64 = 1 / 12 / 64**2  # seconds per pixel at which 64 pixels a side take a twelfth of a second
    assert moving_side((16, 32, 64, 128), 128, of_64) == 64
    assert moving_side((16, 32, 64, 128), 32, of_64) == 32
    assert moving_side((16, 32, 64, 128), 128, 1.0) == 16


def test_a_turn_goes_around_the_z_axis():
    azimuth_deg, v = azimuth_and_v(turned(from_height(0.3), 40))
    assert (float(azimuth_deg), float(v)) == (pytest.approx(70, abs=1e-3), pytest.approx(0.3, abs=1e-5))


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mesh_0001.obj").touch()
    assert free_path(tmp_path, "mesh", (".ply", ".obj")) == tmp_path / "mesh_0002"


def test_two_that_save_at_the_same_time_get_two_numbers(view, monkeypatch):
    others = []

    def write_late(mesh, path):  # after another browser's save
        monkeypatch.setattr(object_view, "write_mesh", write_mesh)
        others.extend(view.save_mesh(ViewState()))
        return write_mesh(mesh, path)

    monkeypatch.setattr(object_view, "extract_mesh", lambda *_: trimesh.creation.box())
    monkeypatch.setattr(object_view, "write_mesh", write_late)
    files = view.save_mesh(ViewState())
    assert [[file.name for file in of_one] for of_one in (files, others)] == [
        [f"mesh_000{number}{suffix}" for suffix in (".ply", ".obj", ".glb")] for number in (1, 2)
    ]
    assert all(file.stat().st_size for file in view.model.out.iterdir())


def test_a_number_is_free_again_after_an_error(tmp_path):
    with pytest.raises(OSError), reserved_path(tmp_path, "mesh", (".ply", ".obj")) as path:
        path.with_suffix(".obj").touch()
        raise OSError
    assert not list(tmp_path.iterdir())


def test_what_is_saved(view, monkeypatch):
    monkeypatch.setattr(object_view, "VIDEO_FRAMES", 3)
    state = ViewState(seed=5, beside="depth")
    (picture,) = view.save_picture(state, 16)
    *shares, (video,) = view.save_video(state, 16)
    assert shares == [1 / 3, 2 / 3, 1]
    first, second = view.save_latents(state)[0], view.save_latents(state)[0]
    assert [path.name for path in (picture, video, first, second)] == [
        *("picture_0001.png", "video_0001.mp4", "latents_0001.json", "latents_0002.json")
    ]
    content = json.loads(first.read_text())
    assert (content["model"]["step"], content["seed"]) == (7, 5)
    torch.testing.assert_close(load_latents(first)[0], view.latents(state))


def test_an_object_that_was_found_takes_the_place_of_the_first_seed(view):
    latents = torch.full((view.model.generator.config.z_dist.dim,), 0.5)
    found = ObjectView(dataclasses.replace(view.model, found={"car/latents.json": (latents, torch.tensor(0))}))
    state = ViewState(seed=3, found="car/latents.json", truncation=0.5).checked()
    assert torch.equal(found.latents(state)[0], latents / 2)
    at_the_end = dataclasses.replace(state, shape=1.0, appearance=1.0)
    torch.testing.assert_close(found.latents(at_the_end), found.latents(ViewState(seed=1, truncation=0.5)))
    assert torch.equal(found.latents(ViewState(seed=3, found="by seed")), view.latents(ViewState(seed=3)))
    assert state.object_of != dataclasses.replace(state, found=None).object_of


def test_training_cameras_come_with_their_photographs(smoke, labels, photographs, monkeypatch):
    class Four(Views):
        def read(self, index):
            return as_uint8(photographs[index])

    names = ["a", "b", "c", "d"]
    posed = Four(names, ["all"], labels.class_index, labels, "")
    monkeypatch.setattr(object_view, "build_dataset", lambda config: posed)
    found = training_views(smoke(), 2)
    assert torch.equal(torch.stack([pose for pose, _ in found]), labels.pose_c2w[[0, 3]])
    assert np.array_equal(found[1][1], as_uint8(photographs[3]).movedim(0, -1))
    monkeypatch.setattr(object_view, "build_dataset", lambda config: dataclasses.replace(posed, labels=None))
    with pytest.raises(GrafError, match="no known cameras"):
        training_views(smoke())
