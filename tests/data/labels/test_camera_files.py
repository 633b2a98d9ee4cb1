"""COLMAP, EG3D's dataset.json and lenses off the centre: the cameras are those that the pictures were taken from."""

import json
import logging
import math
import struct
from pathlib import Path
from typing import get_args

from graf.camera import focal_length, poses_at
from graf.config import DataConfig, load_config
from graf.data import build_dataset
from graf.data.advice.cameras import SOURCES
from graf.data.decoding import Frame, read_image
from graf.data.folders import CameraFile
from graf.data.labels import FILES, READERS
from graf.data.labels.placement import looked_at, upward
from graf.errors import DataError
from graf.export.reconstruction import colmap_model
from graf.inversion.targets import known_poses

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from scipy.spatial.transform import Rotation

NAMES = [f"{i:02d}.png" for i in range(12)]
POSES = poses_at(30.0 * torch.arange(12), torch.tensor([0.4, 0.3] * 6), 3.6)
ELSEWHERE = torch.from_numpy(Rotation.from_euler("xyz", [100, 20, 30], degrees=True).as_matrix())
OPENCV = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))


def config(folder, *keys):
    values = [f"data.datadir={folder}", "data.imsize=16", "training.batch_size=1", "ray_sampler.rays_per_patch=256"]
    return load_config(None, ["data.type=images", *values, "data.masks=none", *keys])


def put(folder, names=NAMES, size=(16, 16)):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        Image.new("RGB", size, (i, 20, 30)).save(folder / name)


def moved(poses):
    """The cameras in a world of another size, place and direction."""
    poses = poses.double()
    position = 7 * (ELSEWHERE @ poses[:, :, 3:]) + torch.tensor([[3.0], [-20.0], [5.0]])
    return torch.cat([ELSEWHERE @ poses[:, :, :3], position], dim=-1)


def assert_same_up_to_a_turn_about_z(found, expected):
    turn = found[0, :, :3] @ expected[0, :, :3].T
    torch.testing.assert_close(turn[2], torch.tensor([0.0, 0.0, 1.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(found, turn @ expected, atol=1e-4, rtol=0)


def write_text(folder, poses, fov=32.0):
    folder.mkdir(parents=True)
    for name, text in colmap_model(NAMES, poses.double().numpy(), 16, fov).items():
        (folder / name).write_text(text)


def as_binary(folder):
    """The text model in COLMAP's binary format, with two points in each image."""
    cameras = [line.split() for line in (folder / "cameras.txt").read_text().splitlines() if line[0] != "#"]
    images = [line.split() for line in (folder / "images.txt").read_text().splitlines() if line and line[0] != "#"]
    content = struct.pack("<Q", len(cameras))
    for number, _, w, h, *parameters in cameras:
        content += struct.pack("<iiQQ4d", int(number), 1, int(w), int(h), *map(float, parameters))
    (folder / "cameras.bin").write_bytes(content)
    content = struct.pack("<Q", len(images))
    for number, *numbers, camera, name in images:
        content += struct.pack("<i7di", int(number), *map(float, numbers), int(camera)) + name.encode() + b"\0"
        content += struct.pack("<Qddqddq", 2, 1.0, 2.0, -1, 3.0, 4.0, 7)
    (folder / "images.bin").write_bytes(content)
    for name in ("cameras.txt", "images.txt"):
        (folder / name).unlink()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("place", ["sparse/0", "sparse", ""])
def test_the_cameras_of_a_colmap_model_are_turned_upright_and_scaled(tmp_path, binary, place):
    put(tmp_path / "images")
    model = tmp_path / place if place else tmp_path / "model"
    write_text(model, moved(POSES))
    if binary:
        as_binary(model)
    if not place:
        for file in model.iterdir():
            file.rename(tmp_path / file.name)
    views = build_dataset(config(tmp_path))
    assert views.label_source == "colmap" and len(views) == 12
    assert_same_up_to_a_turn_about_z(views.labels.pose_c2w, POSES)


def test_cameras_that_are_upright_already_stay_as_they_are(tmp_path):
    put(tmp_path / "images")
    write_text(tmp_path / "sparse", POSES)
    torch.testing.assert_close(build_dataset(config(tmp_path)).labels.pose_c2w, POSES, atol=1e-4, rtol=0)


def test_cameras_that_are_scaled_need_no_other_radius(tmp_path, caplog):
    put(tmp_path / "images")
    poses = moved(poses_at(30.0 * torch.arange(12), torch.tensor([0.4, 0.3] * 6), 3.6))
    centre = torch.tensor([[3.0], [-20.0], [5.0]], dtype=torch.float64)
    poses[::2, :, 3:] = centre + 0.5 * (poses[::2, :, 3:] - centre)
    write_text(tmp_path / "sparse", poses)
    with pytest.raises(DataError, match="the cameras are 2.4 to 4.8 from the origin.*; set data.near: 1.4 and data.far: 5.8"):
        build_dataset(config(tmp_path))
    views = build_dataset(config(tmp_path, "data.near=1.4", "data.far=5.8"))
    assert views.labels.pose_c2w[:, :, 3].norm(dim=1).mean().item() == pytest.approx(3.6, rel=1e-4)
    assert "data.radius" not in caplog.text


def test_cameras_that_are_scaled_need_depths_around_data_radius(tmp_path):
    put(tmp_path / "images")
    write_text(tmp_path / "sparse", POSES)
    problem = "data.radius: cameras 4 from the object do not have it between data.near 3 and data.far 3.9"
    with pytest.raises(DataError, match=problem):
        build_dataset(config(tmp_path, "data.radius=[3.2,4]", "data.near=3", "data.far=3.9"))


def test_never_aligned_cameras_are_those_of_the_file(tmp_path):
    put(tmp_path / "images")
    write_text(tmp_path / "sparse", POSES)
    poses = build_dataset(config(tmp_path, "data.align_cameras=never", "data.radius=3.6")).labels.pose_c2w
    torch.testing.assert_close(poses, POSES, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("camera", "problem"),
    [
        (
            "1 FOV 16 16 20 20 8 8 0.5",
            "cameras.txt: a camera's model is FOV, which bends straight lines; run `colmap image_undistorter`",
        ),
        ("1 SIMPLE_RADIAL 16 16 28 8 8 0.4", "cameras.txt: a SIMPLE_RADIAL camera has k1 0.4, which bends straight lines"),
        ("1 PINHOLE 16 16 28 20 8 8", "fl_x 28 and fl_y 20 differ"),
        ("1 PINHOLE 16 16 28", "has 4 parameters (fl_x, fl_y, cx, cy), found 1; export the model again"),
        ("9 PINHOLE 16 16 28 28 8 8", "its camera 1 is not in cameras.txt"),
        ("nonsense", "cameras.txt cannot be read as COLMAP's"),
    ],
)
def test_what_cannot_be_read_of_a_model_is_said(tmp_path, camera, problem):
    put(tmp_path / "images")
    write_text(tmp_path / "sparse", POSES)
    (tmp_path / "sparse/cameras.txt").write_text(camera + "\n")
    with pytest.raises(DataError) as error:
        build_dataset(config(tmp_path))
    assert problem in str(error.value)


def test_a_damaged_binary_model_and_missing_photographs_are_said(tmp_path):
    put(tmp_path / "images", NAMES[1:])
    write_text(tmp_path / "sparse", POSES)
    with pytest.raises(DataError, match=r"images\.txt: 00\.png: the file of this frame is missing"):
        build_dataset(config(tmp_path))
    as_binary(tmp_path / "sparse")
    content = (tmp_path / "sparse/cameras.bin").read_bytes()
    (tmp_path / "sparse/cameras.bin").write_bytes(content[:12] + struct.pack("<i", 7) + content[16:])
    with pytest.raises(DataError, match=r"cameras\.bin: a camera's model is number 7, which bends straight lines; run `colmap"):
        build_dataset(config(tmp_path))
    (tmp_path / "sparse/cameras.bin").write_bytes(content)
    content = (tmp_path / "sparse/images.bin").read_bytes()
    (tmp_path / "sparse/images.bin").write_bytes(content[:100])
    with pytest.raises(DataError, match=r"images\.bin cannot be read as COLMAP's"):
        build_dataset(config(tmp_path))


def test_cameras_side_by_side_tell_no_place(tmp_path):
    put(tmp_path / "images")
    poses = POSES[:1].repeat(12, 1, 1)
    poses[:, 0, 3] += torch.arange(12)
    write_text(tmp_path / "sparse", poses)
    with pytest.raises(DataError, match="all cameras look in one direction, which does not tell where the object is"):
        build_dataset(config(tmp_path))


def test_cameras_in_one_place_tell_no_distance(tmp_path):
    put(tmp_path / "images")
    poses = torch.cat([POSES[:, :, :3], torch.full((12, 3, 1), 5.0)], dim=-1)
    write_text(tmp_path / "sparse", poses)
    with pytest.raises(DataError, match="all cameras stand in one place, which does not tell where the object is"):
        build_dataset(config(tmp_path))


def test_a_pose_of_colmap_that_is_not_finite_is_a_fault_and_an_image_may_be_named_twice(tmp_path):
    put(tmp_path / "images")
    write_text(tmp_path / "sparse", POSES)
    file = tmp_path / "sparse/images.txt"
    rows = [line.split() for line in file.read_text().splitlines() if line and line[0] != "#"]
    file.write_text("".join(" ".join(row) + "\n\n" for row in [*rows, rows[0]]))
    assert len(build_dataset(config(tmp_path))) == 13
    rows[1][5] = "nan"
    file.write_text("".join(" ".join(row) + "\n\n" for row in rows))
    with pytest.raises(DataError, match=r"images\.txt: 01\.png: its pose is not finite"):
        build_dataset(config(tmp_path))


def eg3d_label(pose, focal=1.5, cx=0.5, cy=0.5):
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3], matrix[:3, 3] = pose[:, :3] @ OPENCV, pose[:, 3]
    return [*matrix.flatten().tolist(), focal, 0, cx, 0, focal, cy, 0, 0, 1]


def test_the_cameras_of_eg3d(tmp_path):
    put(tmp_path / "00000")
    y_up = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
    poses = y_up @ POSES.double() * torch.tensor([1, 1, 1, 2.7 / 3.6])
    focal = focal_length(32, 1)
    labels = [[f"00000/{name}", eg3d_label(pose, focal)] for name, pose in zip(NAMES, poses, strict=True)]
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": labels}))
    views = build_dataset(config(tmp_path))
    assert views.label_source == "eg3d"
    torch.testing.assert_close(views.labels.pose_c2w, POSES, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (None, "has no labels"),
        ([["00.png", [1, 2, 3]]], "expected 25 numbers of a camera, found shape (3,)"),
        (["00.png"], "expected a name and 25 numbers"),
        ([["gone.png", eg3d_label(POSES[0].double())]], "the file of this frame is missing"),
        ([["00.png", [*[1] * 16, 1, 0, 0, 0, 1, 0, 0, 0, 1]]], "the last row of transform_matrix"),
    ],
)
def test_what_cannot_be_read_of_a_dataset_json_is_said(tmp_path, labels, problem):
    put(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": labels}))
    with pytest.raises(DataError) as error:
        build_dataset(config(tmp_path, "data.labels=eg3d"))
    assert problem in str(error.value)


def test_a_dataset_json_of_classes_has_no_cameras(tmp_path):
    put(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": [["00.png", 3]]}))
    views = build_dataset(config(tmp_path))
    assert not views.posed and len(views) == 12


def disc(focal, centre, side=64):
    """A picture of a disc, whose radius is a tenth of the depth, straight ahead of a camera with this optical axis, pixels."""
    row, column = np.mgrid[:side, :side] + 0.5
    covered = np.hypot(column - centre[0], row - centre[1]) < 0.1 * focal
    return Image.fromarray(np.where(covered, 0, 255).astype(np.uint8))


def test_several_focal_lengths_and_axes_become_one_camera(tmp_path, caplog):
    lenses = [(100, (32, 32)), (120, (26, 35)), (140, (36, 30.5))]
    frames = []
    for i, (focal, centre) in enumerate(lenses):
        disc(focal, centre).save(tmp_path / f"{i}.png")
        matrix = torch.eye(4)
        matrix[:3] = POSES[i]
        lens = {"fl_x": focal, "fl_y": focal, "cx": centre[0], "cy": centre[1], "w": 64, "h": 64}
        frames.append({"file_path": f"{i}.png", "transform_matrix": matrix.tolist(), **lens})
    (tmp_path / "transforms.json").write_text(json.dumps({"frames": frames}))
    fov = math.degrees(2 * math.atan(32 / 140)) - 0.5
    keys = f"data.fov={fov}", "data.imsize=32", "ray_sampler.rays_per_patch=1024"
    with caplog.at_level(logging.INFO, "graf"):
        views = build_dataset(config(tmp_path, *keys))
    assert "each is cropped around its axis to data.fov" in caplog.text
    dark = [(views.read(i)[0] < 128).nonzero().double() for i in range(3)]
    for pixels in dark:  # pixel i stands at i - W / 2 of the axis
        torch.testing.assert_close(pixels.mean(0), torch.full((2,), 16.0, dtype=torch.float64), atol=0.3, rtol=0)
        assert math.sqrt(len(pixels) / math.pi) == pytest.approx(0.1 * focal_length(fov, 32), rel=0.05)
    for wrong in ("60", "10"):
        with pytest.raises(DataError, match=r"data\.fov: the square photographs have fields of view of 25\.75"):
            build_dataset(config(tmp_path, f"data.fov={wrong}"))
    (tmp_path / "0.png").write_text("no image")
    rest = build_dataset(config(tmp_path, *keys, "data.on_bad_file=skip"))
    assert torch.equal(rest.read(0), views.read(1)) and torch.equal(rest.read(1), views.read(2))


def test_what_lies_outside_a_photograph_is_background(tmp_path):
    lens = {"fl_x": 100, "fl_y": 100, "cx": 16, "cy": 32, "w": 64, "h": 64}
    Image.new("RGB", (64, 64), (0, 0, 0)).save(tmp_path / "a.png")
    matrix = torch.eye(4)
    matrix[:3] = POSES[0]
    frames = [{"file_path": "a.png", "transform_matrix": matrix.tolist(), **lens}]
    (tmp_path / "transforms.json").write_text(json.dumps({"frames": frames}))
    views = build_dataset(config(tmp_path, "data.fov=35.5", "data.imsize=32", "ray_sampler.rays_per_patch=1024"))
    image = views.read(0)[0]
    assert (image[:, :5] == 255).all() and (image[3:-3, 12:] == 0).all()  # the picture begins at 8.5


def test_a_roll_and_a_mask_of_a_frame_are_kept(tmp_path):
    put(tmp_path, ["a.png"])
    Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(tmp_path / "m.png")
    pose = torch.cat([POSES[0], torch.tensor([[0.0, 0, 0, 1]])])
    pose[:3, :3] @= torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    frame = {"file_path": "a.png", "transform_matrix": pose.tolist(), "mask_path": "m.png", "object": "bus"}
    (tmp_path / "transforms.json").write_text(json.dumps({"frames": [frame]}))
    views = build_dataset(config(tmp_path, "data.masks=auto"))
    torch.testing.assert_close(views.labels.pose_c2w[0], pose[:3])
    assert torch.equal(views.read(0)[3], torch.eye(16, dtype=torch.uint8) * 255)
    assert views.objects == [f"{tmp_path.name}/bus"]
    assert build_dataset(config(tmp_path, "data.masks=none")).alpha == "ignore"


def test_the_point_and_the_direction_that_cameras_share():
    poses = moved(POSES)
    torch.testing.assert_close(looked_at(poses), torch.tensor([3.0, -20.0, 5.0], dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(upward(poses), ELSEWHERE[:, 2], atol=1e-6, rtol=0)
    arc = moved(poses_at(torch.tensor([0.0, 10.0, 20.0, 30.0]), torch.full((4,), 0.3), 3.6))
    torch.testing.assert_close(upward(arc), ELSEWHERE[:, 2], atol=1e-6, rtol=0)


def put_splits(folder):
    """A NeRF-Blender set of three images in two folders, and no transforms.json; the last is named in two splits."""
    for split, rows in (("train", (0, 1)), ("val", (2,)), ("test", (2,))):
        put(folder / ("val" if split == "test" else split), [NAMES[i] for i in rows])
        poses = [torch.cat([POSES[i], torch.tensor([[0.0, 0, 0, 1]])]).tolist() for i in rows]
        paths = [f"./{'val' if split == 'test' else split}/{Path(NAMES[i]).stem}" for i in rows]
        frames = [{"file_path": path, "transform_matrix": pose} for path, pose in zip(paths, poses, strict=True)]
        content = {"camera_angle_x": math.radians(32), "frames": frames}
        (folder / f"transforms_{split}.json").write_text(json.dumps(content))


def test_the_splits_of_nerf_blender_are_one_class_with_cameras(tmp_path):
    put_splits(tmp_path)
    views = build_dataset(config(tmp_path))
    assert views.label_source == "transforms" and views.class_names == [tmp_path.name]
    torch.testing.assert_close(views.labels.pose_c2w, POSES[:3])
    (tmp_path / "transforms_train.json").write_text("{}")
    with pytest.raises(DataError, match=r"transforms_train\.json: has no frames"):
        build_dataset(config(tmp_path))
    (tmp_path / "transforms.json").write_bytes((tmp_path / "transforms_val.json").read_bytes())
    assert len(build_dataset(config(tmp_path))) == 1


@pytest.mark.parametrize(("folders", "keys", "told"), [
    (("ford", "opel", "vw"), (), True),
    (("ford", "opel", "vw"), ("data.name_pattern=<class>_<index>", "data.v=[0.4]"), False),
    (("images/ford", "images/opel", "images/vw"), (), True),
    (("ford/rgb", "opel/rgb", "train/vw"), (), True),
    (("train", "val", "train"), (), False),
    (("ford", "ford", "ford"), (), False),
])  # fmt: skip
def test_folders_that_are_no_classes_because_of_a_file_above_them_are_told(tmp_path, caplog, folders, keys, told):
    caplog.set_level(logging.INFO, logger="graf")
    frames = []
    for i, folder in enumerate(folders):
        put(tmp_path / folder, [NAMES[i]])
        pose = torch.cat([POSES[i], torch.tensor([[0.0, 0, 0, 1]])]).tolist()
        frames.append({"file_path": f"{folder}/{NAMES[i]}", "transform_matrix": pose})
    (tmp_path / "transforms.json").write_text(json.dumps({"camera_angle_x": math.radians(32), "frames": frames}))
    build_dataset(config(tmp_path, *keys))
    text = "its transforms.json makes one class of the folders ford, opel, vw; if they are classes, and not objects of one, put"
    assert (text in caplog.text) == told


def test_faults_of_splits_name_all_of_them(tmp_path, caplog):
    put_splits(tmp_path)
    settings = config(tmp_path, "data.near=4", "data.far=5", "data.radius=4.5")
    with pytest.raises(DataError, match=r"/transforms_\*\.json: "):
        build_dataset(settings)
    file = tmp_path / "train" / NAMES[0]
    assert known_poses([file], settings.data) is None
    assert f"{file}: its camera is not used, {tmp_path / 'transforms_*.json'}: " in caplog.text


def test_a_frames_own_focal_length_comes_before_the_files_angle(tmp_path):
    put(tmp_path, ["a.png"])
    frame = {"file_path": "a.png", "transform_matrix": torch.cat([POSES[0], torch.tensor([[0.0, 0, 0, 1]])]).tolist()}
    lens = {"fl_x": focal_length(32, 16), "w": 16, "h": 16}
    (tmp_path / "transforms.json").write_text(json.dumps({"camera_angle_x": 1.0, "frames": [frame | lens]}))
    assert len(build_dataset(config(tmp_path))) == 1


def test_a_field_of_view_far_beyond_the_photographs_is_refused_before_it_is_padded(tmp_path):
    put(tmp_path, NAMES[:1])
    with pytest.raises(ValueError, match=r"shows far less than data\.fov 32; set data\.fov to the photographs' field of view"):
        read_image(tmp_path / NAMES[0], config(tmp_path).data, Frame(side=7.5))


def test_a_lens_that_bends_a_little_is_told(tmp_path, caplog):
    put(tmp_path / "images")
    write_text(tmp_path / "sparse", POSES)
    focal = focal_length(32, 16)
    (tmp_path / "sparse/cameras.txt").write_text(f"1 SIMPLE_RADIAL 16 16 {focal} 8 8 0.05\n")
    with caplog.at_level(logging.WARNING, "graf"):
        build_dataset(config(tmp_path))
    assert "COLMAP: ignoring k1; images are taken as undistorted, or run `colmap image_undistorter`" in caplog.text


def put_turned(file, orientation, size=(24, 16), **lens):
    """A JPEG of `size` as it is stored, and the transforms.json of its camera."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 30, 30)).save(file, exif=exif)
    pose = torch.cat([POSES[0], torch.tensor([[0.0, 0, 0, 1]])]).tolist()
    frames = {"frames": [{"file_path": file.name, "transform_matrix": pose}]}
    (file.parent / "transforms.json").write_text(json.dumps(frames | lens))


@pytest.mark.parametrize(
    ("orientation", "width", "height", "told"),
    [
        (1, 24, 16, ""),
        (6, 16, 24, ""),
        (6, 24, 16, "fault"),
        (1, 16, 24, "fault"),
        (3, 240, 160, "warning"),
        (2, 24, 16, "warning"),
    ],
)
def test_cameras_of_pixels_as_they_are_stored_are_told(tmp_path, caplog, orientation, width, height, told):
    fl_x = focal_length(32, min(width, height))
    put_turned(tmp_path / "a.jpg", orientation, fl_x=fl_x, w=width, h=height)
    if told == "fault":
        upright = "16 x 24" if orientation == 6 else "24 x 16"
        with pytest.raises(
            DataError, match=f"is {upright} pixels upright, but its camera is of {width} x {height}; find the cam"
        ):
            build_dataset(config(tmp_path))
        poses = known_poses([tmp_path / "a.jpg"], config(tmp_path).data)
        assert poses is None and f"its camera is not used, for it is {upright} pixels upright" in caplog.text
        return
    assert build_dataset(config(tmp_path)).posed
    said = "1 of 1 photographs are stored turned, by their EXIF orientation, such as"
    assert (said in caplog.text) == (told == "warning")


def test_a_camera_without_a_size_may_be_of_pixels_as_they_are_stored(tmp_path, caplog):
    put_turned(tmp_path / "a.jpg", 6)
    build_dataset(config(tmp_path))
    assert "1 of 1 photographs are stored turned" in caplog.text


def test_photographs_of_one_lens_and_two_shapes_are_cropped_to_one_field_of_view(tmp_path):
    frames = []
    for name, height in (("a.png", 75), ("b.png", 56)):
        disc(100, (50, height / 2), 100).crop((0, 0, 100, height)).save(tmp_path / name)
        pose = torch.cat([POSES[0], torch.tensor([[0.0, 0, 0, 1]])]).tolist()
        frames.append({"file_path": name, "transform_matrix": pose, "fl_x": 100, "w": 100, "h": height})
    (tmp_path / "transforms.json").write_text(json.dumps({"frames": frames}))
    narrowest = math.degrees(2 * math.atan(28 / 100))
    views = build_dataset(config(tmp_path, f"data.fov={narrowest}"))
    covered = [1 - views.read(i)[0].double().mean().item() / 255 for i in range(2)]
    assert covered[0] == pytest.approx(covered[1], rel=0.02) and covered[0] > 0.05


def test_the_undistorted_photographs_beside_their_model_are_taken(tmp_path):
    put(tmp_path / "images", size=(8, 8))
    put(tmp_path / "dense" / "images")
    write_text(tmp_path / "dense" / "sparse", POSES)
    write_text(tmp_path / "sparse" / "0", POSES)  # of the photographs as they were
    views = build_dataset(config(tmp_path))
    assert {str(tmp_path / "dense" / "images")} == {str(Path(file).parent) for file in views.files}


def test_an_undistorted_model_without_its_photographs_comes_after_the_others(tmp_path):
    put(tmp_path / "images")
    write_text(tmp_path / "dense" / "sparse", POSES.flip(0))
    assert build_dataset(config(tmp_path)).label_source == "colmap"
    write_text(tmp_path / "sparse" / "0", POSES)
    torch.testing.assert_close(build_dataset(config(tmp_path)).labels.pose_c2w, POSES, atol=1e-4, rtol=0)


def test_photographs_that_colmap_left_out_are_told(tmp_path, caplog):
    put(tmp_path / "images", [*NAMES, "left_out.png"])
    put(tmp_path / "images_2")  # smaller copies
    write_text(tmp_path / "sparse", POSES)
    assert len(build_dataset(config(tmp_path))) == len(NAMES)
    assert f"1 images beside or below a COLMAP model are not named in it, and are not used, such as {tmp_path}" in caplog.text


def test_each_file_of_cameras_has_a_reader_and_a_name_everywhere():
    kinds = set(get_args(CameraFile))
    assert kinds == READERS.keys() == FILES.keys() == SOURCES.keys() - {"filename"}
    assert kinds | {"auto", "filename", "none"} == set(get_args(DataConfig.__dataclass_fields__["labels"].type))
