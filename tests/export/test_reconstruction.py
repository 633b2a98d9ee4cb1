"""Reconstruction folders: what COLMAP and transforms.json say of a camera, read by these tests' own eyes and by the suite."""

import json
import math

from graf.camera import azimuth_and_v, poses_at, sample_poses
from graf.config import override
from graf.data import build_dataset
from graf.errors import GrafError
from graf.export.reconstruction import colmap_model, made_from, reconstruction_poses, write_reconstruction
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8
from graf.rays import camera_rays

import numpy as np
import pytest
import torch
from PIL import Image

NO_CLASS = torch.zeros(1, dtype=torch.long)


def read_colmap(folder):
    """A text model with one camera: its numbers, and (rotation, translation) by image name."""
    (camera,) = data_lines(folder / "cameras.txt")
    assert camera.split()[:2] == ["1", "PINHOLE"]
    lines = data_lines(folder / "images.txt")
    assert lines[1::2] == [""] * (len(lines) // 2)  # no points, but a line for them
    images = {}
    for number, line in enumerate(lines[::2], start=1):
        image_id, *pose, camera_id, name = line.split()
        assert (image_id, camera_id) == (str(number), "1")
        w, x, y, z, *translation = map(float, pose)
        rotation = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        images[name] = np.array(rotation), np.array(translation)
    return [float(value) for value in camera.split()[2:]], images


def data_lines(file):
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]


@pytest.fixture
def written(tmp_path, refine):
    """A folder of five views, 24 pixels wide, and its poses."""
    config = refine("data.radius=[3.2, 4]", "data.near=2.4", "data.far=5")
    torch.manual_seed(3)
    generator = Generator(config).eval()
    pose_c2w = sample_poses(5, config.data, torch.Generator().manual_seed(0))
    latents = torch.randn(1, 8, generator=torch.Generator().manual_seed(1))
    files = write_reconstruction(generator, (latents, NO_CLASS), pose_c2w, tmp_path / "object", 24)
    return generator, latents, pose_c2w, tmp_path / "object", files


def test_folder_holds_the_views_of_the_poses(written):
    generator, latents, pose_c2w, out, files = written
    assert sorted([*files, out / "made_from.json"]) == sorted(out.iterdir())
    assert sorted(file.name for file in (out / "sparse").iterdir()) == ["cameras.txt", "images.txt", "points3D.txt"]
    assert data_lines(out / "sparse" / "points3D.txt") == []
    pictures = sorted((out / "images").iterdir())
    assert [file.name for file in pictures] == [f"000{i}.png" for i in range(5)]
    expected = as_uint8(generator.render(latents.expand(5, -1), pose_c2w, 24).images)
    for file, picture in zip(pictures, expected, strict=True):
        with Image.open(file) as image:
            assert image.mode == "RGB"
            difference = np.asarray(image, dtype=int) - picture.movedim(0, -1).numpy()
        assert abs(difference).max() <= 1  # level: a batch of one sums in another order than one of five


def test_colmap_reads_the_poses_back(written):
    *_, pose_c2w, out, _ = written
    _, images = read_colmap(out / "sparse")
    for i, pose in enumerate(pose_c2w.double().numpy()):
        rotation, translation = images[f"000{i}.png"]
        right, down, ahead = rotation  # the camera's axes in the world
        assert np.allclose(np.stack([right, -down, -ahead], axis=-1), pose[:, :3], atol=1e-6)
        assert np.allclose(-rotation.T @ translation, pose[:, 3], atol=1e-6)


def test_a_camera_on_the_x_axis_by_hand(smoke):
    """At (3, 0, 0) right is +y, down -z and ahead -x, and the world's origin is 3 ahead. With these axes R's rows, the trace is
    0, so that w = 1/2, and (x, y, z) = (R21 - R12, R02 - R20, R10 - R01) / 4w = (0 + 1, 0 + 1, 0 - 1) / 2."""
    pose = poses_at(torch.tensor([0.0]), torch.tensor([0.5]), 3.0).double().numpy()
    line = colmap_model(["a.png"], pose, 16, 90.0)["images.txt"].splitlines()[1].split()
    quaternion, translation = np.array(line[1:5], dtype=float), np.array(line[5:8], dtype=float)
    assert np.allclose(quaternion * np.sign(quaternion[0]), [0.5, 0.5, 0.5, -0.5], atol=1e-6)
    assert np.allclose(translation, [0, 0, 3], atol=1e-6)


def test_pictures_that_are_there_are_kept_unless_of_another_object(written):
    generator, latents, pose_c2w, out, _ = written
    pictures = sorted((out / "images").iterdir())
    made = [picture.read_bytes() for picture in pictures]
    pictures[1].write_bytes(b"kept")
    pictures[2].unlink()
    write_reconstruction(generator, (latents, NO_CLASS), pose_c2w, out, 24)
    assert [picture.read_bytes() for picture in pictures] == [made[0], b"kept", *made[2:]]
    write_reconstruction(generator, (-latents, NO_CLASS), pose_c2w, out, 24)
    assert all(picture.read_bytes() not in (b"kept", old) for picture, old in zip(pictures, made, strict=True))


def test_pictures_of_other_weights_or_settings_are_not_kept(written):
    generator, latents, pose_c2w, *_ = written
    other, finer = Generator(generator.config), Generator(override(generator.config, ["nerf.render_samples_per_ray=64"]))
    finer.load_state_dict(generator.state_dict())
    assert len({made_from(g, (latents, NO_CLASS), pose_c2w, 24) for g in (generator, other, finer)}) == 3


def test_a_folder_of_the_users_is_left_alone(written):
    generator, latents, pose_c2w, out, _ = written
    (out / "made_from.json").unlink()
    (out / "images" / "0000.png").write_bytes(b"mine")
    with pytest.raises(GrafError, match="object: pictures would be written here, .* another folder with --out"):
        write_reconstruction(generator, (-latents, NO_CLASS), pose_c2w, out, 24)
    assert (out / "images" / "0000.png").read_bytes() == b"mine"


def test_pictures_of_another_object_go_and_nothing_else_does(written):
    generator, latents, pose_c2w, out, _ = written
    (out / "images" / "notes.txt").write_text("mine")
    (out / "made_from.json").write_bytes(b"\xff")
    write_reconstruction(generator, (latents, NO_CLASS), pose_c2w[:2], out, 24)
    assert sorted(file.name for file in (out / "images").iterdir()) == ["0000.png", "0001.png", "notes.txt"]


def test_a_point_is_at_the_pixel_of_its_ray_in_colmap_and_in_transforms(written):
    """Along the rays of known pixels to known points, and back through the files: pixel i is at i + 1/2 there."""
    generator, _, pose_c2w, out, _ = written
    pixels = torch.tensor([[[[0.0, 0.0], [23.0, 0.0], [7.0, 19.0], [12.0, 12.0], [3.5, 8.25]]]])  # (1, 1, 5, 2)
    rays_o, rays_d = camera_rays(pose_c2w.double(), pixels.double(), 24, generator.config.data)
    points = (rays_o + rays_d * torch.tensor([2.6, 3.0, 3.5, 4.0, 4.5], dtype=torch.float64)[:, None]).numpy()  # (5, 5, 3)
    expected = pixels[0, 0].numpy() + 0.5
    (width, height, *camera), images = read_colmap(out / "sparse")
    content = json.loads((out / "transforms.json").read_text())
    assert (width, height) == (content["w"], content["h"]) == (24, 24)
    assert camera == [content[name] for name in ("fl_x", "fl_y", "cx", "cy")]
    fx, fy, cx, cy = camera
    for i, frame in enumerate(content["frames"]):
        rotation, translation = images[f"000{i}.png"]
        x, y, z = rotation @ points[i].T + translation[:, None]
        assert np.allclose(np.stack([fx * x / z + cx, fy * y / z + cy], axis=-1), expected, atol=1e-4)
        camera_to_world = np.array(frame["transform_matrix"])
        x, y, z, _ = np.linalg.solve(camera_to_world, np.concatenate([points[i].T, np.ones((1, 5))]))
        assert np.allclose(np.stack([fx * x / -z + cx, fy * -y / -z + cy], axis=-1), expected, atol=1e-4)


def test_the_suite_reads_the_folder_as_data(written):
    generator, _, pose_c2w, out, _ = written
    config = override(generator.config, ["data.type=images", f"data.datadir={out}", "data.imsize=24"])
    data = build_dataset(config)
    assert torch.equal(data.labels.pose_c2w, pose_c2w)
    assert [item.rsplit("/", 1)[-1] for item in data.files] == [f"000{i}.png" for i in range(5)]
    with Image.open(out / "images" / "0003.png") as image:
        assert np.array_equal(data.read(3).movedim(0, -1).numpy(), np.asarray(image))
    content = json.loads((out / "transforms.json").read_text())
    assert content["camera_angle_x"] == pytest.approx(math.radians(generator.config.data.fov))
    assert content["fl_x"] == pytest.approx(12 / math.tan(content["camera_angle_x"] / 2))


def test_instant_ngps_box_is_what_every_camera_sees(written):
    content = json.loads((written[3] / "transforms.json").read_text())
    side = 3.2 * math.sin(math.radians(16))  # the frame of the nearest camera, 32 degrees wide; near leaves 1.6, far 1
    assert np.allclose(content["aabb"], [[-side] * 3, [side] * 3])


def test_poses_go_around_on_three_rings_within_the_range(smoke):
    data = smoke("data.vmin=0", "data.vmax=0.3", "data.radius=3.6").data
    azimuth, v = azimuth_and_v(reconstruction_poses(data))
    torch.testing.assert_close(v, torch.tensor([0.05, 0.15, 0.25]).repeat_interleave(24))
    torch.testing.assert_close(azimuth, (torch.arange(24) * 15.0).repeat(3), atol=1e-2, rtol=0)


def test_orthographic_cameras_are_refused_before_anything_is_written(tmp_path, smoke):
    generator = Generator(smoke("data.orthographic=true"))
    with pytest.raises(GrafError, match="data.orthographic is true.*--mesh"):
        write_reconstruction(generator, (torch.zeros(1, 8), NO_CLASS), reconstruction_poses(generator.config.data), tmp_path)
    assert not list(tmp_path.iterdir())
