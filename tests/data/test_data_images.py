"""Folders of images: classes, cameras from names and from transforms.json, the shared real sets."""

import dataclasses
import json
import logging
import math
import os
import re
import sys
from pathlib import Path

from graf.camera import azimuth_and_v, focal_length, poses_at
from graf.config import CONFIG_DIR, load_config
from graf.data import build_dataset, build_loader, decoding, resolve
from graf.data.folders import require_outside
from graf.data.views import spread
from graf.errors import DataError, GrafError

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
RINGS = {"data.v": "[0.5, 0.4, 0.3, 0.2]"}


def config(*datadirs, **overrides):
    values = {
        "data.type": "images",
        "data.imsize": 8,
        "training.batch_size": 1,
        "ray_sampler.min_scale": 0.5,
        **RINGS,
        **overrides,
    }
    folders = json.dumps([str(folder) for folder in datadirs])
    return load_config(
        None, ["discriminator.condition=none", f"data.datadir={folders}", *(f"{key}={value}" for key, value in values.items())]
    )


def put(file: Path, colour=(10, 20, 30), size=(8, 8)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)
    return file


def put_transforms(folder: Path, frames: list[dict], **content) -> None:
    content = {"camera_angle_x": math.radians(32), "frames": frames, **content}
    (folder / "transforms.json").write_text(json.dumps(content))


def matrix(azimuth_deg: float, v: float = 0.4, radius: float = 3.6) -> list[list[float]]:
    return [*poses_at(torch.tensor(azimuth_deg), torch.tensor(v), radius).tolist(), [0, 0, 0, 1]]


def test_a_folder_that_the_preparation_made_is_not_taken_with_its_sheet(tmp_path):
    put(tmp_path / "images" / "a.png")
    assert len(build_dataset(config(tmp_path))) == 1
    put(tmp_path / "before_after.png")
    with pytest.raises(DataError, match="by prepare_photos.py; its images are in .*images: name that folder, or take --config"):
        build_dataset(config(tmp_path))
    assert len(build_dataset(config(tmp_path / "images"))) == 1


def test_images_without_labels(tmp_path):
    put(tmp_path / "a.png", (255, 0, 0))
    put(tmp_path / "b.JPEG")
    put(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("not an image")
    dataset = build_dataset(config(tmp_path))
    assert [Path(file).name for file in dataset.files] == ["a.png", "b.JPEG"]
    assert not dataset.posed and dataset.labels is None and dataset.n_elevations == 1
    item = dataset[0]
    assert item["image"][:, 0, 0].tolist() == [1, -1, -1] and item["image"].dtype == torch.float32
    assert item["class_index"].dtype == item["elevation_index"].dtype == torch.int64
    assert "pose_c2w" not in item


def test_a_messy_folder_is_read_as_far_as_it_can_be(tmp_path, caplog):
    folder, grey = tmp_path / "fotos für mich", np.full((12, 9), 257 * 77, np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 8
    for name, image, options in (
        ("IMG 1.JPG", Image.new("RGB", (30, 20), (77, 77, 77)), {"exif": exif}),
        ("größe $x_y$ 日本.png", Image.new("L", (9, 40), 77), {}),
        ("16 bits.png", Image.fromarray(grey), {}),
        ("16 bits.tiff", Image.fromarray(grey), {}),
        ("nested/deeper/cmyk.jpeg", Image.new("CMYK", (8, 8), (0, 0, 0, 178)), {}),
        ("nested/palette.bmp", Image.new("L", (64, 8), 77).convert("P"), {}),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / name, **options)
    (folder / "text.png").write_text("no image")
    (folder / "empty.jpg").touch()
    (folder / "half.JPG").write_bytes((folder / "IMG 1.JPG").read_bytes()[:300])
    (folder / "video.mov").touch()
    (folder / "album.png").mkdir()
    settings = config(f"{folder}/", **{"data.on_bad_file": "skip"})
    dataset = build_dataset(settings)
    assert "left out 3 faulty images" in caplog.text
    assert dataset.class_names == ["fotos für mich", "nested", "deeper"] and len(dataset) == 6
    assert all((dataset.read(index).int() - 77).abs().max() <= 1 for index in range(6))
    with pytest.raises(DataError) as caught:
        build_dataset(config(f"{folder}/"))
    told = str(caught.value).splitlines()
    assert told[0] == "3 faults in the data:"
    faulty = {str(folder / name) for name in ("empty.jpg", "half.JPG", "text.png")}
    assert {line.partition(": ")[0] for line in told[1:]} == faulty


@pytest.mark.skipif(sys.platform != "linux", reason="names are any bytes on Linux alone")
def test_a_name_that_is_no_text_is_read_and_told(tmp_path):
    put(tmp_path / os.fsdecode(b"\xff.png"), (1, 2, 3))
    assert build_dataset(config(tmp_path)).read(0)[:, 0, 0].tolist() == [1, 2, 3]
    (tmp_path / os.fsdecode(b"\xff.png")).write_text("no image")
    with pytest.raises(DataError, match=r"\\udcff.png: cannot be read"):
        build_dataset(config(tmp_path))


def test_opacity_goes_with_the_image_where_it_is_judged(tmp_path):
    """Red of 60 % at the left, nothing elsewhere, on green."""
    image = Image.new("RGBA", (8, 8))
    image.paste((255, 0, 0, 153), (0, 0, 3, 8))
    image.save(tmp_path / "a.png")
    flags = {"data.alpha": "rgba", "data.background": "[0, 1, 0]"}
    dataset = build_dataset(config(tmp_path, **flags))
    assert dataset.read(0).shape == (4, 8, 8) and dataset.read(0)[:, 4, 2].tolist() == [153, 102, 0, 153]
    plain = dataset[0]
    assert plain["image"].shape == (3, 8, 8) and plain["alpha"].shape == (1, 8, 8)
    torch.testing.assert_close(plain["alpha"][0, 4], torch.tensor([0.2] * 3 + [-1.0] * 5))
    images, _ = next(build_loader(dataset, config(tmp_path, **flags, **{"training.nworkers": 0}), "cpu"))
    assert torch.equal(images[0], torch.cat([plain["image"], plain["alpha"]]))


def test_more_pixels_of_opacity_than_an_image_has_come_from_its_file(tmp_path):
    pixels = torch.arange(256, dtype=torch.uint8).view(16, 16)
    Image.merge("LA", [Image.new("L", (16, 16)), Image.fromarray(pixels.numpy())]).save(tmp_path / "a.png")
    dataset = build_dataset(config(tmp_path, **{"data.alpha": "rgba"}))
    assert dataset.read(0).shape == (4, 8, 8)
    assert torch.equal(dataset.opacity(0, dataclasses.replace(dataset.data, imsize=16)), pixels / 255)


def put_cut_out(file, opacity=0, mode="RGBA"):
    """A red image, whose left half has this opacity (8 bits)."""
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 255))
    image.paste((255, 0, 0, opacity), (0, 0, 4, 8))
    file.parent.mkdir(exist_ok=True)
    image.convert(mode).save(file)


@pytest.mark.parametrize("flags", [{}, {"data.hflip": "true", "data.labels": "none"}])
def test_opacity_is_judged_where_all_photographs_of_all_folders_have_it(tmp_path, caplog, flags):
    for name, mode in (("a/0_0000.png", "RGBA"), ("a/0_0010.webp", "RGBA"), ("b/0_0000.png", "LA"), ("b/0_0010.png", "PA")):
        put_cut_out(tmp_path / name, 128, "RGBA" if mode == "PA" else mode)
    Image.open(tmp_path / "b/0_0010.png").quantize().save(tmp_path / "b/0_0010.png")  # a palette with transparency
    settings = config(tmp_path / "a", tmp_path / "b", **{"data.alpha": "auto"} | flags)
    with caplog.at_level(logging.INFO, "graf"):
        dataset = build_dataset(settings)
    assert [line for line in caplog.messages if "alpha" in line] == ["data.alpha: rgba, because all 4 images have transparency"]
    assert dataset.alpha == "rgba" and dataset.posed == (not flags)
    assert [dataset.read(i)[3, 4, 0].item() for i in range(4)] == [128] * 4
    found = resolve(settings, dataset)
    images, _ = next(build_loader(dataset, found, "cpu"))
    assert images.shape[1] == found.data.channels == 4


@pytest.mark.parametrize(
    "opaque, reason",
    [
        (
            ("e.png",),
            "1 of 3 images have no transparency, such as {}/e.png; the discriminator sees opacity only where all have it",
        ),
        (("a.png", "b.png", "e.jpg"), "none of the 3 images has transparency"),
    ],
)
def test_opacity_is_not_judged_where_a_photograph_has_none(tmp_path, caplog, opaque, reason):
    """One whose channel of opacity is full everywhere, as of a screenshot, has none either."""
    for name in {"a.png", "b.png", *opaque}:
        put_cut_out(tmp_path / name, 255 if name in opaque else 0, "RGB" if name.endswith(("e.png", "jpg")) else "RGBA")
    settings = config(tmp_path, **{"data.alpha": "auto"})
    with caplog.at_level(logging.INFO, "graf"):
        dataset = build_dataset(settings)
    told = [line for line in caplog.messages if "alpha" in line]
    assert told == [f"data.alpha: ignore, because {reason.format(tmp_path)}"]
    assert dataset.alpha == "ignore" and len(dataset.read(0)) == 3 and resolve(settings, dataset).data.channels == 3


def test_faulty_files_do_not_count_for_opacity_nor_is_one_decoded_again(tmp_path, monkeypatch):
    for name in ("a.png", "b.png"):
        put_cut_out(tmp_path / name)
    (tmp_path / "c.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    read, opened = [], decoding.ImageOps.exif_transpose
    monkeypatch.setattr(decoding.ImageOps, "exif_transpose", lambda image: read.append(1) or opened(image))
    dataset = build_dataset(config(tmp_path, **{"data.alpha": "auto", "data.on_bad_file": "skip"}))
    assert dataset.alpha == "rgba" and len(dataset) == 2 and len(read) <= 3


def test_names_give_class_elevation_rank_and_exact_pose(tmp_path):
    for name in ("chair/0.5_0090.png", "chair/10_0000.jpg", "table/2_0359.5.png"):
        put(tmp_path / name)
    dataset = build_dataset(config(tmp_path, **{"data.v": "[0.5, 0.4, 0.3, 0.2]", "data.radius": "3.5,3.9"}))
    assert dataset.class_names == ["chair", "table"] and dataset.n_elevations == 4
    assert dataset.labels.class_index.tolist() == [0, 0, 1]
    assert dataset.labels.elevation_index.tolist() == [0, 2, 1]  # 0.5 < 2 < 10, as numbers
    expected = poses_at(torch.tensor([90.0, 0.0, 359.5]), torch.tensor([0.5, 0.3, 0.4]), 3.7)
    torch.testing.assert_close(dataset.labels.pose_c2w, expected)
    torch.testing.assert_close(dataset[0]["pose_c2w"][:, 3], torch.tensor([0.0, 3.7, 0.0]), atol=1e-5, rtol=0)


def test_class_folders_can_be_named_globbed_or_found_below(tmp_path):
    for name in ("a/x.png", "b/x.png", "c/x.png"):
        put(tmp_path / name)
    assert build_dataset(config(tmp_path)).class_names == ["a", "b", "c"]
    (tmp_path / "c.csv").touch()
    assert build_dataset(config(tmp_path / "[bc]*")).class_names == ["b", "c"]
    assert build_dataset(config(tmp_path / "c", tmp_path / "a")).class_names == ["c", "a"]
    assert len(build_dataset(config(tmp_path, tmp_path / "a"))) == 3  # each folder once


def test_what_is_written_may_lie_among_toy_cars_and_not_among_photographs(tmp_path):
    data = config(tmp_path).data
    with pytest.raises(GrafError, match=f"lies within the photographs' folder {tmp_path}"):
        require_outside(tmp_path / "out", data)
    require_outside(tmp_path / "out", dataclasses.replace(data, type="toy_cars"))


def test_transforms_give_exact_poses(tmp_path):
    put(tmp_path / "images/0.5_0090.png")
    put(tmp_path / "images/b.png")
    put(tmp_path / "images/not_named.png")
    frames = [
        {"file_path": "./images/0.5_0090", "transform_matrix": matrix(20.0)},
        {"file_path": "images/b.png", "transform_matrix": matrix(300.0, 0.3)[:3]},
    ]
    put_transforms(tmp_path, frames)
    dataset = build_dataset(config(tmp_path))
    assert len(dataset) == 2 and dataset.posed
    expected = torch.tensor([matrix(20.0)[:3], matrix(300.0, 0.3)[:3]])
    torch.testing.assert_close(dataset.labels.pose_c2w, expected)


def test_the_field_of_view_of_the_square_crop_counts(tmp_path):
    """An image twice as wide as high: the crop keeps the focal length, so tan(fov / 2) halves."""
    put(tmp_path / "wide.png", size=(32, 16))
    wide_fov = 2 * math.atan(2 * math.tan(math.radians(32) / 2))
    frames = [{"file_path": "wide.png", "transform_matrix": matrix(0.0)}]
    put_transforms(tmp_path, frames, camera_angle_x=wide_fov)
    assert build_dataset(config(tmp_path)).posed
    fl_x = 16 / math.tan(wide_fov / 2)
    (tmp_path / "transforms.json").write_text(json.dumps({"fl_x": fl_x, "w": 32, "h": 16, "frames": frames}))
    assert build_dataset(config(tmp_path)).posed


def test_labels_can_be_chosen(tmp_path):
    put(tmp_path / "0.5_0090.png")
    put_transforms(tmp_path, [{"file_path": "0.5_0090.png", "transform_matrix": matrix(20.0)}])
    azimuths = {}
    for labels in ("auto", "transforms", "filename"):
        position = build_dataset(config(tmp_path, **{"data.labels": labels})).labels.pose_c2w[0, :, 3]
        azimuths[labels] = round(math.degrees(math.atan2(position[1], position[0])))
    assert azimuths == {"auto": 20, "transforms": 20, "filename": 90}
    assert not build_dataset(config(tmp_path, **{"data.labels": "none"})).posed


def test_the_fingerprint_follows_files_and_preprocessing(tmp_path):
    file = put(tmp_path / "a.png")
    first = build_dataset(config(tmp_path)).fingerprint
    assert build_dataset(config(tmp_path)).fingerprint == first
    for key, value in {"imsize": 16, "background": "[0,0,0]", "center_crop": 4}.items():
        assert build_dataset(config(tmp_path, **{f"data.{key}": value})).fingerprint != first
    os.utime(file, (1, 1))
    touched = build_dataset(config(tmp_path)).fingerprint
    put(tmp_path / "b.png")
    assert len({first, touched, build_dataset(config(tmp_path)).fingerprint}) == 3


def test_the_fingerprint_follows_the_cameras(tmp_path):
    put(tmp_path / "a.png")
    found = set()
    for azimuth_deg in (20.0, 21.0):
        put_transforms(tmp_path, [{"file_path": "a.png", "transform_matrix": matrix(azimuth_deg)}])
        found.add(build_dataset(config(tmp_path)).fingerprint)
    assert len(found) == 2


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
def test_the_turntables_are_three_classes_of_four_elevations():
    dataset = build_dataset(config(SHARED / "turntables"))
    assert len(dataset) == 3 * 72 * 4 and len(dataset.class_names) == 3 and dataset.n_elevations == 4
    assert torch.bincount(dataset.labels.elevation_index).tolist() == [216] * 4
    torch.testing.assert_close(dataset.labels.pose_c2w[:, :, 3].norm(dim=1), torch.full((864,), 3.6))


def hull_coverage(dataset, indices: list[int], poses: torch.Tensor) -> float:
    """Share of the silhouettes (32 x 32) of some images that their visual hull covers when seen from poses (N, 3, 4)."""
    line = torch.linspace(-0.75, 0.75, 28)
    points = torch.cartesian_prod(line, line, line)
    inside = torch.ones(len(points), dtype=torch.bool)
    views = []
    for index, pose in zip(indices, poses, strict=True):
        silhouette = dataset[index]["image"].amin(0) < 0.9
        in_camera = (points - pose[:, 3]) @ pose[:, :3]
        pixel = in_camera[:, :2] / -in_camera[:, 2:] * focal_length(32, 32) * torch.tensor([1.0, -1.0]) + 16
        column, row = pixel.round().long().clamp(0, 31).unbind(1)
        wider = torch.nn.functional.max_pool2d(silhouette.float()[None], 3, 1, 1)[0] > 0  # a pixel of tolerance
        inside &= wider[row, column]
        views.append((silhouette, row, column))
    covered = total = 0
    for silhouette, row, column in views:
        seen = torch.zeros_like(silhouette)
        seen[row[inside], column[inside]] = True
        covered, total = covered + (seen & silhouette).sum().item(), total + silhouette.sum().item()
    return covered / total


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
def test_silhouettes_of_a_turntable_agree_on_one_shape():
    """The visual hull covers the silhouettes it is cut from with the labels' cameras only: not with azimuths run backwards,
    and not with the elevations in reverse."""
    dataset = build_dataset(config(SHARED / "turntables/chair_003", **{"data.imsize": 32}))
    indices = list(range(0, len(dataset), 12))
    poses = dataset.labels.pose_c2w[indices]
    azimuth_deg, v = azimuth_and_v(poses)
    right = hull_coverage(dataset, indices, poses)
    backwards = hull_coverage(dataset, indices, poses_at(-azimuth_deg, v, 3.6))
    upside_down = hull_coverage(dataset, indices, poses_at(azimuth_deg, 0.7 - v, 3.6))
    assert right > 0.95 > max(backwards, upside_down)


@pytest.mark.parametrize("preset", ["carla_64", "carla_128", "carla_256", "cats_64", "celeba_64", "celeba_128", "cub_64"])
def test_a_preset_without_its_images_says_where_they_are_to_be_had(tmp_path, monkeypatch, preset):
    monkeypatch.chdir(tmp_path)
    config = load_config(preset)
    with pytest.raises(DataError) as caught:
        build_dataset(config)
    message = str(caught.value)
    assert message.startswith(f"{config.data.datadir[0]}: no such folder; its images come from ")
    text = (CONFIG_DIR / f"{preset.split('_')[0]}_64.yaml").read_text(encoding="utf-8")
    comments = " ".join(re.findall("^# (.*)", text, re.MULTILINE))
    assert message.partition("; its")[2].strip() in comments  # the file says the same


def test_folders_of_thumbnails_are_no_classes(tmp_path):
    for name in ("cups/a.png", "cups/@eaDir/a.jpg/thumb.png", "__MACOSX/cups/a.png"):
        put(tmp_path / name)
    assert build_dataset(config(tmp_path)).class_names == ["cups"]


def test_a_few_transparent_pixels_are_no_cut(tmp_path, caplog):
    for name, radius in (("a", 2), ("b", 2), ("c", 8)):
        image = Image.new("RGB", (20, 20), (10, 20, 30))
        corners = Image.new("L", image.size)
        ImageDraw.Draw(corners).rounded_rectangle((0, 0, 19, 19), radius, fill=255)
        image.putalpha(corners)
        image.save(tmp_path / f"{name}.png")
    assert build_dataset(config(tmp_path)).alpha == "ignore"
    assert (
        f"2 of 3 images have less than 5 % transparent pixels, as the rounded corners of screenshots, such as {tmp_path}/a.png"
        in (caplog.text)
    )
    assert build_dataset(config(tmp_path, **{"data.alpha": "rgba"})).alpha == "rgba"
    (tmp_path / "a.png").unlink()
    assert build_dataset(config(tmp_path)).alpha == "rgba"  # half of them are cut out


def test_images_are_evenly_spread():
    assert spread([0, 1, 2, 3, 4, 5], 3) == [0, 2, 4]
    assert spread([0, 1], 5) == [0, 1]
