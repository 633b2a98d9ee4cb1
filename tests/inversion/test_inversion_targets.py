"""Photographs for an inversion: labels and files are told from faults, pixels prepared as in training."""

import dataclasses
import json
import logging
import math

from graf.camera import poses_at
from graf.data.decoding import read_image
from graf.errors import GrafError
from graf.inversion.targets import known_poses, read_target, target_files, warn_of_backgrounds

import numpy as np
import pytest
import torch
from PIL import Image

RADIUS = 3.6


def put(path, size=(16, 16), colour=(200, 100, 50)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if len(colour) == 3 else "RGBA", size, colour).save(path)
    return path


def test_a_name_tells_azimuth_and_the_rank_of_the_elevation_in_its_folder(tmp_path, refine, caplog):
    data = refine("data.v=[0.45, 0.3]").data
    for name in ("0.2_0000.png", "0.5_0090.png", "0.5_0180.png", "left.png"):
        put(tmp_path / name)
    with caplog.at_level(logging.WARNING, logger="graf"):
        poses = known_poses([tmp_path / "0.5_0180.png", tmp_path / "0.2_0000.png"], data)
    torch.testing.assert_close(poses, poses_at(torch.tensor([180.0, 0.0]), torch.tensor([0.3, 0.45]), RADIUS))
    assert not caplog.records
    (tmp_path / "0.2_0000.png").unlink()
    with caplog.at_level(logging.WARNING, logger="graf"):
        assert known_poses([tmp_path / "0.5_0090.png"], data) is None  # which of the two is not known
    assert "names with 1 elevations, where data.v has 2" in caplog.text and "searched for" in caplog.text
    assert '--set "data.v=[0.45]"' in caplog.text


def test_a_name_with_degrees_tells_the_elevation_alone(tmp_path, refine):
    data = refine("data.v=[0.45, 0.3]", "data.name_pattern=<object>_<elevation_deg>_<azimuth_deg>").data
    put(tmp_path / "car_30_090.png")
    poses = known_poses([tmp_path / "car_30_090.png"], data)
    torch.testing.assert_close(poses, poses_at(torch.tensor([90.0]), torch.tensor([0.25]), RADIUS))  # v = (1 - sin 30) / 2


@pytest.mark.parametrize("name", ["0.5_0090.png", "car.png"])
def test_cameras_are_mended_as_in_training(tmp_path, refine, name):
    data, file = dataclasses.replace(refine("data.v=[0.4]").data, azimuths="clockwise", roll_deg=90.0), put(tmp_path / name)
    if name == "car.png":
        matrix = [*poses_at(torch.tensor(90.0), torch.tensor(0.4), RADIUS).tolist(), [0, 0, 0, 1]]
        (tmp_path / "transforms.json").write_text(json.dumps({"frames": [{"file_path": name, "transform_matrix": matrix}]}))
    right, up, backward, position = poses_at(torch.tensor(-90.0), torch.tensor(0.4), RADIUS).T
    expected = torch.stack([up, -right, backward, position], dim=-1)[None]  # a quarter turn about the optical axis
    torch.testing.assert_close(known_poses([file], data), expected)


def test_a_photograph_that_is_not_there_is_for_reading_to_tell(tmp_path, refine):
    assert known_poses([tmp_path / "nowhere" / "0.5_0090.png"], refine().data) is None


@pytest.mark.parametrize(("content", "center_crop"), [(b"no image", 0), (None, 17)])
def test_the_camera_of_a_photograph_that_cannot_be_used_is_for_reading_to_tell(tmp_path, refine, content, center_crop):
    data, file = refine(f"data.center_crop={center_crop}").data, put(tmp_path / "car.png")
    if content:
        file.write_bytes(content)
    pose = [*poses_at(torch.tensor([10.0]), torch.tensor([0.4]), RADIUS)[0].tolist(), [0, 0, 0, 1]]
    frames = [{"file_path": "car.png", "transform_matrix": pose}]
    (tmp_path / "transforms.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    known_poses([file], data)
    with pytest.raises(GrafError, match=r"car\.png: .*; give another image"):
        read_target(file, data)


@pytest.mark.parametrize(("turn", "times", "told"), [(-1, 1, "looks away from the origin"), (1, 4, "not between data.near")])
def test_a_camera_that_training_would_refuse_is_not_used(tmp_path, refine, caplog, turn, times, told):
    data, file = refine().data, put(tmp_path / "car.png")
    pose = poses_at(torch.tensor([10.0]), torch.tensor([0.4]), RADIUS)[0]
    pose = torch.cat([pose[:, :1], turn * pose[:, 1:3], times * pose[:, 3:]], dim=1)
    right, other = poses_at(torch.tensor([70.0]), torch.tensor([0.4]), RADIUS)[0], put(tmp_path / "bus.png")
    frames = [
        {"file_path": name, "transform_matrix": [*each.tolist(), [0, 0, 0, 1]]}
        for name, each in (("car.png", pose), ("bus.png", right))
    ]
    (tmp_path / "transforms.json").write_text(json.dumps({"camera_angle_x": math.radians(data.fov), "frames": frames}))
    torch.testing.assert_close(known_poses([other], data)[0], right)
    assert not caplog.records
    assert known_poses([file], data) is None
    assert f"{file}: its camera is not used, " in caplog.text and told in caplog.text


def test_a_transforms_json_above_the_photographs_tells_their_cameras(tmp_path, refine, caplog):
    data = refine().data
    files = [put(tmp_path / "images" / "car" / f"{i:03d}.png") for i in range(3)]
    poses = poses_at(torch.tensor([10.0, 70.0, 130.0]), torch.full((3,), 0.4), RADIUS)
    frames = [
        {"file_path": f"images/car/{file.name}", "transform_matrix": [*pose.tolist(), [0, 0, 0, 1]]}
        for file, pose in zip(files, poses, strict=True)
    ]
    content = {"camera_angle_x": math.radians(data.fov), "frames": frames[:2]}
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    torch.testing.assert_close(known_poses([files[1], files[0]], data), poses[[1, 0]])
    assert not caplog.records
    assert known_poses(files, data) is None  # the third has none
    assert f"{files[2]}: its camera is not used, {tmp_path}/transforms.json has no frame of it" in caplog.text
    assert known_poses(files[:2], dataclasses.replace(data, labels="filename")) is None
    (tmp_path / "transforms.json").write_text(json.dumps(content | {"camera_angle_x": math.radians(data.fov + 10)}))
    assert known_poses(files[:2], data) is None  # framed otherwise than the model's images
    assert f"transforms.json has a field of view of {data.fov + 10:.2f} degrees, data.fov is {data.fov:g}" in caplog.text
    (tmp_path / "transforms.json").write_text(json.dumps(content | {"w": 16, "h": 16, "cx": 8, "cy": 10}))
    assert known_poses(files[:2], data) is None  # the model's images have the axis at their centre
    assert "transforms.json has its optical axis 0.0 % of its width right of its centre and 12.5 % below" in caplog.text
    frames[1]["transform_matrix"][0][0] = 9.0
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    assert known_poses(files[:2], data) is None
    assert f"{files[1]}: in transforms.json: the columns of transform_matrix are not orthonormal" in caplog.text
    (tmp_path / "transforms.json").write_text("{")
    assert known_poses(files[:2], data) is None
    assert f"{tmp_path}/transforms.json: not readable as JSON" in caplog.text
    assert len(caplog.records) == 5


def test_the_file_of_cameras_is_found_above_the_working_directory(tmp_path, refine, monkeypatch):
    data, file = refine().data, put(tmp_path / "images" / "0005.png")
    pose = poses_at(torch.tensor([10.0]), torch.tensor([0.4]), RADIUS)
    frame = {"file_path": "images/0005.png", "transform_matrix": [*pose[0].tolist(), [0, 0, 0, 1]]}
    (tmp_path / "transforms.json").write_text(json.dumps({"camera_angle_x": math.radians(data.fov), "frames": [frame]}))
    monkeypatch.chdir(file.parent)
    torch.testing.assert_close(known_poses(["0005.png"], data), pose)
    torch.testing.assert_close(known_poses(target_files(["."], data), data), pose)


@pytest.mark.parametrize(("cx", "used"), [(8.5, True), (9.0, False), (7.0, False)])
def test_the_half_pixel_of_our_own_exports_is_no_other_axis(tmp_path, refine, cx, used):
    data, file = refine().data, put(tmp_path / "0005.png")
    pose = poses_at(torch.tensor([10.0]), torch.tensor([0.4]), RADIUS)[0].tolist()
    lens = {"w": 16, "h": 16, "cx": cx, "cy": 8.5, "fl_x": 8 / math.tan(math.radians(data.fov / 2))}
    frames = [{"file_path": "0005.png", "transform_matrix": [*pose, [0, 0, 0, 1]]}]
    (tmp_path / "transforms.json").write_text(json.dumps(lens | {"frames": frames}))
    assert (known_poses([file], data) is not None) == used


def test_names_without_cameras_leave_them_to_the_search(tmp_path, refine):
    named, plain = put(tmp_path / "0.5_0090.png"), put(tmp_path / "left.png")
    assert known_poses([named, plain], refine().data) is None
    assert known_poses([named], refine("data.labels=none", "discriminator.condition=none").data) is None
    assert known_poses([named], refine("data.v=[0.45]").data) is not None


@pytest.mark.parametrize("labels", ["auto", "filename"])
def test_a_telephones_date_and_time_are_no_camera(tmp_path, refine, caplog, labels):
    caplog.set_level("INFO", "graf")
    assert known_poses([put(tmp_path / "20240101_120000.png")], refine(f"data.labels={labels}", "data.v=[0.45]").data) is None
    assert "20240101_120000.png: named by date and time, so the cameras are searched for" in caplog.text


def test_names_that_the_config_cannot_place_are_told(tmp_path, refine):
    data = refine("data.v=[0.45]").data
    over = put(tmp_path / "0.2_0400.png")
    with pytest.raises(GrafError, match=r"0\.2_0400\.png: the azimuth 0400 is outside .* for the angle 40"):
        known_poses([over], data)
    high = put(tmp_path / "0.5_0000.png")
    with pytest.raises(GrafError, match=r"0\.5_0000\.png: the elevation 0\.5 is number 2"):
        known_poses([high], data)
    put(tmp_path / "0.1_0000.png")
    put(tmp_path / "0.3_0000.png")
    with pytest.raises(GrafError, match=r"0\.5_0000\.png: the elevation 0\.5 is number 4"):
        known_poses([high], data)  # it, and not the one before it


def test_a_photograph_is_prepared_as_the_training_images_are(tmp_path, refine):
    data = refine("data.background=[0.2, 0.4, 0.6]").data
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 4), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    expected = read_image(tmp_path / "noise.png", data).float() / 127.5 - 1
    for alpha in ("ignore", "rgba"):
        torch.testing.assert_close(read_target(tmp_path / "noise.png", dataclasses.replace(data, alpha=alpha)), expected)
    clear = read_target(put(tmp_path / "clear.png", colour=(9, 9, 9, 0)), data)
    torch.testing.assert_close(clear[:, 0, 0], torch.tensor([0.2, 0.4, 0.6]) * 2 - 1)


def test_a_photograph_is_cut_out_by_its_mask_and_no_mask_is_inverted(tmp_path, refine, caplog):
    data = refine("data.imsize=16", "data.background=white").data
    photograph = put(tmp_path / "car.png", (32, 32))
    mask = Image.new("L", (32, 32), 0)
    mask.paste(255, (8, 8, 24, 24))
    mask.save(tmp_path / "car_mask.png")
    assert target_files([tmp_path], data) == [photograph]
    with caplog.at_level(logging.INFO, logger="graf"):
        assert target_files(sorted(tmp_path.glob("*.png")), data) == [photograph]
    assert "left out, as masks of other images: car_mask.png" in caplog.text
    assert target_files([tmp_path / "car_mask.png"], data) == [tmp_path / "car_mask.png"]  # named alone, it is meant
    target = read_target(photograph, data)
    assert (target[:, 0] == 1).all()  # the background's white
    torch.testing.assert_close(target[:, 8, 8], torch.tensor([200.0, 100.0, 50.0]) / 127.5 - 1)
    assert (read_target(photograph, dataclasses.replace(data, masks="none"))[:, 0, 0] < 1).all()


def test_files_that_cannot_be_used_are_named(tmp_path, refine):
    data = refine().data
    (tmp_path / "text.png").write_text("not a picture")
    cut = put(tmp_path / "cut.png", size=(64, 64))
    cut.write_bytes(cut.read_bytes()[:60])
    small = put(tmp_path / "small.png", size=(40, 15))
    for name, message in (
        ("missing.png", "is missing, or not a file that can be read"),
        ("text.png", "not an image, or damaged"),
        ("cut.png", "cannot be read"),
        (small.name, "15 pixels per side, the model's images have 16; give a larger image"),
    ):
        with pytest.raises(GrafError, match=message) as caught:
            read_target(tmp_path / name, data)
        assert name in str(caught.value)
        assert "data.on_bad_file" not in str(caught.value)
    with pytest.raises(GrafError, match="smaller than data.center_crop 50; give another image"):
        read_target(small, dataclasses.replace(data, center_crop=50))


@pytest.mark.parametrize(("alpha", "colour", "told"), [("rgba", -0.5, True), ("rgba", 1.0, False), ("ignore", -0.5, False)])
def test_a_picture_with_a_background_is_told_where_the_model_knows_none(refine, caplog, alpha, colour, told):
    image = torch.full((3, 16, 16), colour)
    image[:, 4:12, 4:12] = 0.0
    with caplog.at_level("WARNING", "graf"):
        warn_of_backgrounds(["a.jpg"], image[None], refine(f"data.alpha={alpha}").data)
    assert ("a.jpg: 100 % of its edge is not data.background" in caplog.text) == told


def test_the_camera_of_a_photograph_that_is_not_square_is_that_of_its_centre(tmp_path, refine):
    data = refine("data.fov=32").data
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    matrix = torch.eye(4)
    matrix[:3] = poses_at(torch.tensor(20.0), torch.tensor(0.4), 3.6)
    focal = 24 / math.tan(math.radians(16))
    frames = [{"file_path": "a.png", "transform_matrix": matrix.tolist(), "fl_x": focal, "w": 64, "h": 48}]
    (tmp_path / "transforms.json").write_text(json.dumps({"frames": frames}))
    torch.testing.assert_close(known_poses([tmp_path / "a.png"], data), matrix[None, :3])


def test_names_whose_elevations_nobody_told_are_searched_for(tmp_path, refine, caplog):
    Image.new("RGB", (16, 16)).save(tmp_path / "0_0090.png")
    data = refine().data
    assert data.v == "auto"
    with caplog.at_level("WARNING", "graf"):
        assert known_poses([tmp_path / "0_0090.png"], data) is None
    assert "the cameras are searched for; data.v is not given" in caplog.text
