"""data.azimuths, data.roll_deg and data.camera_axes mend cameras; with their defaults nothing changes."""

import logging
import math

from graf.camera import poses_at, project
from graf.data import build_dataset
from graf.data.cameras.corrections import corrected_cameras, from_opencv, rolled, with_azimuths_reversed
from graf.data.folders import Item
from graf.errors import ConfigError, DataError

import pytest
import torch
from test_data_images import config, matrix, put, put_transforms

AZIMUTHS_DEG = torch.tensor([0.0, 30.0, 135.0, 260.0])
V = torch.tensor([0.5, 0.4, 0.2, 0.6])


@pytest.fixture
def posed(tmp_path):
    """A set of four images with a transforms.json; `changed` alters each matrix."""

    def make(changed=lambda pose: pose, **keys):
        frames = []
        for i, (azimuth_deg, v) in enumerate(zip(AZIMUTHS_DEG, V, strict=True)):
            put(tmp_path / f"{i}.png")
            pose = changed(torch.tensor(matrix(float(azimuth_deg), float(v))))
            frames.append({"file_path": f"{i}.png", "transform_matrix": pose.tolist()})
        put_transforms(tmp_path, frames)
        return build_dataset(config(tmp_path, **keys))

    return make


def test_reversed_azimuths_are_those_of_cameras_at_the_mirrored_places():
    mirrored = with_azimuths_reversed(poses_at(AZIMUTHS_DEG, V, 3.6))
    torch.testing.assert_close(mirrored, poses_at(-AZIMUTHS_DEG, V, 3.6))


def test_a_camera_turned_counterclockwise_sees_the_object_turned_clockwise(smoke):
    """What was above the object's centre is to the right of it, by as many pixels."""
    data, above = smoke().data, torch.tensor([[0.0, 0.0, 0.5]])
    pose = poses_at(torch.tensor([20.0]), torch.tensor([0.5]), 3.6)
    (x, y), (turned_x, turned_y) = (project(above, camera, 64, data)[0][0, 0] - 32 for camera in (pose, rolled(pose, 90)))
    assert y < -5 and abs(x) < 1e-3
    assert turned_x.item() == pytest.approx(-y.item(), abs=1e-3) and abs(turned_y) < 1e-3


def test_axes_of_opencv_are_exchanged_and_the_position_stays():
    pose = poses_at(AZIMUTHS_DEG, V, 3.6)
    opencv = pose.clone()
    opencv[..., 1:3] *= -1
    torch.testing.assert_close(from_opencv(opencv), pose, rtol=0, atol=0)


def test_the_defaults_leave_items_alone(smoke, tmp_path):
    items = [Item(tmp_path / "a.png", 0, pose_c2w=poses_at(AZIMUTHS_DEG[0], V[0], 3.6)), Item(tmp_path / "b.png", 0)]
    assert corrected_cameras(items, smoke().data) is items


def test_an_image_without_a_camera_stays_without(smoke, tmp_path):
    items = [Item(tmp_path / "b.png", 0)]
    assert corrected_cameras(items, smoke("data.type=images", "data.roll_deg=90").data) == items


def test_keys_mend_the_cameras_of_a_set_and_its_fingerprint_tells(posed):
    plain = posed()
    right = plain.labels.pose_c2w
    torch.testing.assert_close(right, poses_at(AZIMUTHS_DEG, V, 3.6))
    mended = posed(**{"data.azimuths": "clockwise", "data.roll_deg": 90})
    torch.testing.assert_close(mended.labels.pose_c2w, rolled(with_azimuths_reversed(right), 90))
    assert mended.fingerprint != plain.fingerprint


def test_names_are_mended_too(tmp_path):
    put(tmp_path / "0_0030.png")
    mended = build_dataset(config(tmp_path, **{"data.azimuths": "clockwise", "data.v": "[0.4]"}))
    torch.testing.assert_close(mended.labels.pose_c2w, poses_at(torch.tensor([-30.0]), torch.tensor([0.4]), 3.6))


def to_opencv(pose):
    return pose * torch.tensor([1, -1, -1, 1])


def test_axes_of_opencv_are_faults_that_name_the_key_and_the_key_mends_them(posed):
    with pytest.raises(DataError, match=r"looks away.*for poses of OpenCV or COLMAP set data\.camera_axes: opencv"):
        posed(to_opencv)
    mended = posed(to_opencv, **{"data.camera_axes": "opencv"})
    torch.testing.assert_close(mended.labels.pose_c2w, posed().labels.pose_c2w)


def test_the_key_on_a_file_with_the_projects_axes_is_a_fault_that_names_it(posed):
    with pytest.raises(DataError, match=r"looks away.*data\.camera_axes: opencv.*set opengl"):
        posed(**{"data.camera_axes": "opencv"})


@pytest.mark.parametrize("name, keys, said", [
    ("a.png", {"data.azimuths": "clockwise"}, "data.azimuths: without effect, because the images have no cameras"),
    ("0_3.png", {"data.camera_axes": "opencv"}, "data.camera_axes: without effect, because the images have no transforms.json"),
])  # fmt: skip
def test_a_key_without_effect_is_told(tmp_path, caplog, name, keys, said):
    put(tmp_path / name)
    with caplog.at_level(logging.WARNING, logger="graf"):
        build_dataset(config(tmp_path, **{"data.v": "[0.4]", **keys}))
    assert said in caplog.messages


def test_toy_cars_need_no_mending(smoke):
    with pytest.raises(ConfigError, match="toy_cars have theirs"):
        smoke(f"data.roll_deg={math.degrees(1):.0f}")
