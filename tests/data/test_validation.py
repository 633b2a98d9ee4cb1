"""Every fault of a data set is told at once, with its file and the cure."""

import errno
import json
import logging
import math
import os
import re
from pathlib import Path

from graf.data import build_dataset
from graf.data.folders import Fault
from graf.data.labels.transforms import rigid_pose
from graf.data.validation import describe
from graf.errors import DataError

import pytest
import torch
from command_line import call, run
from PIL import Image
from test_data_images import config, matrix, put, put_transforms


def faults_of(settings) -> str:
    with pytest.raises(DataError) as caught:
        build_dataset(settings)
    return str(caught.value)


def line_about(message: str, name: str) -> str:
    (line,) = [line for line in message.splitlines() if name in line]
    return line


def truncate(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - 24])


def test_where_no_thread_can_be_started_one_checks_all_images(no_new_threads, tmp_path, monkeypatch, caplog):
    for angle in range(3):
        put(tmp_path / f"0_{angle:04d}.png")
    monkeypatch.setattr("graf.data.validation.available_cores", lambda: 2)
    assert len(build_dataset(config(tmp_path))) == 3
    assert "the system cannot start more threads" in caplog.text


def test_all_faults_of_named_images_come_in_one_pass(tmp_path):
    for name in ("0_0000.png", "0_0010.png", "left_90.png", "0_0360.png", "0_-10.png", "1_0000.png", "2_0000.png"):
        put(tmp_path / "chairs" / name, size=(64, 64))
    truncate(tmp_path / "chairs/0_0010.png")
    missing = tmp_path / "tables"
    (tmp_path / "empty").mkdir()
    settings = config(
        tmp_path / "chairs",
        missing,
        tmp_path / "empty",
        **{"data.v": "[0.5, 0.4]", "training.batch_size": 50, "data.hflip": "true"},
    )
    message = faults_of(settings)
    expected = {
        "left_90.png": "no label in the name; expected <elevation>_<azimuth_deg>, as in 0_0090.png",
        "0_0360.png": "outside [0, 360) degrees; name the file for the angle 0",
        "0_-10.png": "outside [0, 360) degrees; name the file for the angle 350",
        "2_0000.png": "number 3 of those in the names (0, 1, 2), but data.v has only 2",
        "0_0010.png": "cannot be read",
        str(missing): "no such folder; set data.datadir",
        "empty": "no images",
        "a batch of 50": "set training.batch_size: 7",
        "data.hflip": "mirrored camera",
    }
    for name, problem in expected.items():
        assert problem in line_about(message, name)
    assert message.startswith(f"{len(expected)} faults")


def test_all_faults_of_frames_come_in_one_pass(tmp_path):
    good, mirrored, scaled, row = (matrix(20.0) for _ in range(4))
    for r in range(3):
        mirrored[r][0] = -mirrored[r][0]
        scaled[r][:3] = [2 * x for x in scaled[r][:3]]
    row[3] = [0, 0, 1, 1]
    opencv = [[x, -y, -z, t] for x, y, z, t in matrix(20.0)[:3]]
    wrong = {
        "mirrored": (mirrored, "mirrors (determinant -1)"),
        "scaled": (scaled, "not orthonormal"),
        "row": (row, "last row"),
        "short": ([[1, 0], [0, 1]], "must be 4 x 4 or 3 x 4 numbers, found shape (2, 2)"),
        "words": ([["a"] * 4] * 4, "must be 4 x 4 or 3 x 4 numbers"),
        "nothing": (None, "must be 4 x 4 or 3 x 4 numbers"),
        "infinite": ([[math.nan] * 4] * 3, "not finite"),
        "opencv": (opencv, "looks away from the origin"),
        "damaged": (good, "cannot be read"),
    }
    for name in wrong:
        put(tmp_path / f"{name}.png", size=(64, 64))
    truncate(tmp_path / "damaged.png")
    frames = [{"file_path": name, "transform_matrix": values} for name, (values, _) in wrong.items()]
    lost = {"gone.png": "missing", "../outside.png": "leaves the folder", "/etc/passwd": "leaves the folder"}
    frames += [{"file_path": name, "transform_matrix": good} for name in lost]
    put_transforms(tmp_path, frames)
    message = faults_of(config(tmp_path))
    for name, problem in {**{f"{name}.png": problem for name, (_, problem) in wrong.items()}, **lost}.items():
        assert problem in line_about(message, name)
    assert message.startswith(f"{len(wrong) + len(lost)} faults")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"frames": []}', '{"frames": 3}', "\xff"])
def test_a_transforms_file_that_is_none(tmp_path, content):
    put(tmp_path / "a.png")
    (tmp_path / "transforms.json").write_bytes(content.encode("latin-1"))
    message = faults_of(config(tmp_path))
    assert f"{tmp_path / 'transforms.json'}: " in message and "Traceback" not in message


def test_a_frame_that_is_no_mapping_and_intrinsics_that_are_no_numbers(tmp_path):
    put(tmp_path / "a.png")
    frame = {"file_path": "a.png", "transform_matrix": matrix(0.0)}
    put_transforms(tmp_path, [frame, 3])
    assert "frame 1: expected file_path" in faults_of(config(tmp_path))
    put_transforms(tmp_path, [frame], camera_angle_x="wide")
    assert "camera_angle_x must lie between 0 and pi radians, found 'wide'" in faults_of(config(tmp_path))


def test_paths_of_frames_that_lead_into_the_folder(tmp_path, monkeypatch):
    names = ("images\\0.png", str(tmp_path / "dd/images/1.png"), "../dd/images/2", "./images/3.png")
    for number in range(len(names)):
        put(tmp_path / f"dd/images/{number}.png")
    put_transforms(tmp_path / "dd", [{"file_path": name, "transform_matrix": matrix(0.0)} for name in names])
    file = tmp_path / "dd/transforms.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as Windows' Notepad saves it
    monkeypatch.chdir(tmp_path)
    views = build_dataset(config("dd"))
    assert views.files == [f"dd/images/{number}.png" for number in range(4)]
    put(tmp_path / "outside.png")
    put_transforms(tmp_path / "dd", [{"file_path": "..\\outside.png", "transform_matrix": matrix(0.0)}])
    assert "file_path leaves the folder" in faults_of(config("dd"))


def test_images_that_no_frame_names_are_counted(tmp_path, caplog):
    for name in ("a.png", "images_2/a.png", "b.png", "below/c.png", ".trash/d.png", "a_mask.png"):
        put(tmp_path / name)
    frame = {"file_path": "a", "transform_matrix": matrix(0.0), "mask_path": "a_mask.png"}
    put_transforms(tmp_path, [frame])
    assert len(build_dataset(config(tmp_path))) == 1
    told = "2 images beside or below a transforms.json are not named in it, and are not used, such as"
    assert f"{told} {tmp_path / 'b.png'}" in caplog.messages
    caplog.clear()
    put_transforms(tmp_path, [frame, *({"file_path": name, "transform_matrix": matrix(0.0)} for name in ("b", "below/c"))])
    build_dataset(config(tmp_path, **{"data.on_bad_file": "skip"}))
    assert "are not named in it" not in caplog.text


def test_an_image_that_two_frames_name(tmp_path):
    put(tmp_path / "a.png")
    frames = [{"file_path": name, "transform_matrix": matrix(azimuth)} for name, azimuth in (("a", 0.0), ("./a.png", 90.0))]
    put_transforms(tmp_path, frames)
    assert "frame 1 ('./a.png'): names the image of frame 0 again" in faults_of(config(tmp_path))
    dataset = build_dataset(config(tmp_path, **{"data.on_bad_file": "skip"}))
    torch.testing.assert_close(dataset.labels.pose_c2w, torch.tensor([matrix(0.0)[:3]]))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"fl_x": 10, "fl_y": 12}, "fl_x 10 and fl_y 12 differ"),
        ({"w": 100, "h": 50, "cx": 101, "cy": 25}, "cx 101 and cy 25 are outside the image"),
        ({"camera_angle_x": 10**400}, "camera_angle_x must lie between"),
        ({"w": 8, "h": 8, "fl_y": 20}, "fl_x 13.9497 and fl_y 20 differ, by the angles, but pixels must be square"),
        ({"w": 8, "h": 8, "camera_angle_y": 0.8}, "fl_x 13.9497 and fl_y 9.46089 differ, by the angles"),
        (
            {"camera_model": "OPENCV_FISHEYE"},
            "camera_model OPENCV_FISHEYE bends straight lines; run `colmap image_undistorter`",
        ),
        ({"is_fisheye": True}, "is_fisheye: true bends straight lines"),
        ({"k1": 0.1, "k2": -0.3}, "k2 -0.3 bends straight lines"),
    ],
)
def test_cameras_that_are_no_pinholes(tmp_path, content, problem):
    put(tmp_path / "a.png")
    put_transforms(tmp_path, [{"file_path": "a.png", "transform_matrix": matrix(0.0)}], **content)
    assert problem in faults_of(config(tmp_path))


def test_what_is_not_heeded_of_a_camera_is_said(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="graf")
    put(tmp_path / "a.png")
    frames = [{"file_path": "a.png", "transform_matrix": matrix(0.0)}]
    put_transforms(tmp_path, frames, w=100, h=100, cx=50.4, cy=50, k1=0.0, k2=1e-5, fl_x=10, fl_y=10.05)
    build_dataset(config(tmp_path))
    assert not caplog.text
    put_transforms(tmp_path, frames, w=100, h=100, cx=53, cy=50, k1=0.1)
    build_dataset(config(tmp_path))
    assert "transforms.json: ignoring k1" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        {"camera_model": "OPENCV", "is_fisheye": False, "k1": 0.1},
        {"w": 8, "h": 8, "camera_angle_y": math.radians(32)},
        {"w": 16, "h": 8, "camera_angle_y": 2 * math.atan(math.tan(math.radians(16)) / 2)},
    ],
)
def test_cameras_that_are_pinholes(tmp_path, content):
    size = (16, 8) if content.get("w") == 16 else (8, 8)
    put(tmp_path / "a.png", size=size)
    put_transforms(tmp_path, [{"file_path": "a.png", "transform_matrix": matrix(0.0)}], **content)
    assert build_dataset(config(tmp_path, **{"data.fov": 32 if size == (8, 8) else 16.33})).posed


def test_an_optical_axis_without_the_images_size_is_told(tmp_path, caplog):
    """The images may have been made smaller since."""
    put(tmp_path / "a.png")
    frames = [{"file_path": "a.png", "transform_matrix": matrix(0.0)}]
    put_transforms(tmp_path, frames, cx=12, cy=5, h=8)
    assert build_dataset(config(tmp_path)).frames[0].side is None
    assert "transforms.json: ignoring cx, which count in pixels of w and h; add the size that" in caplog.text


@pytest.mark.parametrize("own", [{"fl_x": 8 / (2 * math.tan(0.3)), "w": 8}, {"camera_angle_x": 0.6}])
def test_a_frames_own_focal_length_comes_before_the_files(tmp_path, own):
    put(tmp_path / "a.png")
    frames = [{"file_path": "a.png", "transform_matrix": matrix(0.0)} | own]
    put_transforms(tmp_path, frames, w=8, h=8, fl_x=14, fl_y=14, camera_angle_y=math.radians(32))
    assert build_dataset(config(tmp_path, **{"data.fov": math.degrees(0.6)})).posed


def test_cameras_that_stand_elsewhere_than_data_radius_are_told(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="graf")
    put(tmp_path / "a.png")
    put(tmp_path / "b.png")
    frames = [{"file_path": f"{name}.png", "transform_matrix": matrix(0.0, radius=r)} for name, r in (("a", 3.5), ("b", 3.7))]
    put_transforms(tmp_path, frames)
    build_dataset(config(tmp_path))
    assert not caplog.text
    build_dataset(config(tmp_path, **{"data.radius": 3}))
    assert "are 3.5 to 3.7 from the origin" in caplog.text and "set data.radius: 3.6" in caplog.text
    frames[1]["transform_matrix"] = matrix(0.0, radius=4.1)
    put_transforms(tmp_path, frames)
    build_dataset(config(tmp_path))
    assert caplog.messages[-1].endswith('is 3.6; set data.radius: "3.5,4.1"')
    n_messages = len(caplog.messages)
    build_dataset(config(tmp_path, **{"data.radius": "3.5,4.1"}))
    assert len(caplog.messages) == n_messages


def test_names_of_files_stay_on_one_line(tmp_path):
    put(tmp_path / "a\nb\x1b.png")
    assert "a\\nb\\x1b.png: no label" in faults_of(config(tmp_path, **{"data.labels": "filename"}))
    put_transforms(tmp_path, [{"file_path": "x\n" * 5000, "transform_matrix": [[1e39] * 4] * 3}])
    message = faults_of(config(tmp_path))
    assert len(message.splitlines()) == 3 and len(message) < 1000
    assert "not finite" in message and "is missing" in message


def test_a_transforms_file_without_an_end(tmp_path):
    put(tmp_path / "a.png")
    (tmp_path / "transforms.json").symlink_to("/dev/zero")
    assert "outside the data" in faults_of(config(tmp_path))
    (tmp_path / "transforms.json").unlink()
    os.mkfifo(tmp_path / "transforms.json")
    assert "not readable as JSON (no file)" in faults_of(config(tmp_path))


def test_links_cannot_leave_the_data(tmp_path):
    put(tmp_path / "private" / "c.png")
    put(tmp_path / "set" / "a.png")
    put(tmp_path / "set" / "within" / "b.png")
    (tmp_path / "set" / "more").symlink_to(tmp_path / "private")
    (tmp_path / "set" / "all").symlink_to("/")
    (tmp_path / "set" / "one.png").symlink_to(tmp_path / "private" / "c.png")
    (tmp_path / "set" / "link").symlink_to("within")
    (tmp_path / "set" / "same.png").symlink_to("a.png")
    message = faults_of(config(tmp_path / "set"))
    for name, link in (("more", f"to {tmp_path}/private"), ("all", "to /"), ("one.png", f"into {tmp_path}/private")):
        about = line_about(message, f"{tmp_path}/set/{name}:")
        assert f"is a link {link}, outside the data" in about
        assert "name in data.datadir the folder" in about
    assert "put a copy of the file in its place" in about
    assert message.startswith("3 faults")
    (tmp_path / "set" / "all").unlink()
    files = build_dataset(config(tmp_path / "set", tmp_path / "private")).files  # now it is of the data
    assert [Path(file).name for file in files] == ["a.png", "one.png", "same.png", "b.png", "c.png"]


def test_links_to_images_elsewhere_are_faulty_images(tmp_path):
    for name in "abcdef":
        put(tmp_path / "pool" / f"{name}.png")
    put(tmp_path / "set" / "own.png")
    for name in "abcdef":
        (tmp_path / "set" / f"{name}.png").symlink_to(tmp_path / "pool" / f"{name}.png")
    assert "... and 3 more with the same fault" in faults_of(config(tmp_path / "set"))
    files = build_dataset(config(tmp_path / "set", **{"data.on_bad_file": "skip", "training.batch_size": 1})).files
    assert [Path(file).name for file in files] == ["own.png"]


def test_images_that_a_transforms_json_stands_in_for_may_be_links(tmp_path):
    put(tmp_path / "pool" / "a.png")
    put(tmp_path / "set" / "images" / "b.png")
    (tmp_path / "set" / "a.png").symlink_to(tmp_path / "pool" / "a.png")
    put_transforms(tmp_path / "set", [{"file_path": "images/b.png", "transform_matrix": matrix(0.0)}])
    files = build_dataset(config(tmp_path / "set", **{"training.batch_size": 1})).files
    assert [Path(file).name for file in files] == ["b.png"]


def test_frames_cannot_leave_the_folder_by_a_link_or_by_windows_separators(tmp_path):
    put(tmp_path / "private" / "x.png")
    put(tmp_path / "set" / "a.png")
    (tmp_path / "set" / "link").symlink_to(tmp_path / "private")
    paths = ("a.png", "link/x.png", "..\\private\\x.png")
    put_transforms(tmp_path / "set", [{"file_path": path, "transform_matrix": matrix(0.0)} for path in paths])
    message = faults_of(config(tmp_path / "set"))
    assert "leaves the folder" in line_about(message, "frame 1 ")
    assert "leaves the folder" in line_about(message, "frame 2 ")
    assert "frame 0 " not in message


def test_images_without_transforms_where_others_have_them(tmp_path):
    put(tmp_path / "a/a.png")
    put(tmp_path / "b/b.png")
    put_transforms(tmp_path / "a", [{"file_path": "a.png", "transform_matrix": matrix(0.0)}])
    assert "no transforms.json" in line_about(faults_of(config(tmp_path)), str(tmp_path / "b"))


def test_a_wrong_field_of_view_names_the_right_one(tmp_path):
    put(tmp_path / "a.png", size=(16, 16))
    put_transforms(tmp_path, [{"file_path": "a.png", "transform_matrix": matrix(0.0)}], camera_angle_x=math.radians(39.6))
    assert "set data.fov: 39.60" in faults_of(config(tmp_path))
    assert build_dataset(config(tmp_path, **{"data.fov": 39.6})).posed
    assert build_dataset(config(tmp_path, **{"data.fov": 40})).posed  # within half a degree
    assert build_dataset(config(tmp_path, **{"data.orthographic": True})).posed  # which has none


UNIT = "as if in another unit; scale the positions of these"


@pytest.mark.parametrize("radii", [(1.3, 1.9, 2.4), (3.1, 5.0, 9.0), (0.4, 0.9, 1.1)])
def test_cameras_of_several_folders_have_one_reach_that_works(tmp_path, radii):
    for i, radius in enumerate(radii):
        put(tmp_path / str(i) / "a.png")
        put_transforms(tmp_path / str(i), [{"file_path": "a.png", "transform_matrix": matrix(30.0 * i, radius=radius)}])
    message = faults_of(config(tmp_path))
    n_more = sum(not 2.6 <= radius <= 4.6 for radius in radii) - 1  # of those that the default's near and far leave out
    assert f"transforms.json and {n_more} more: the cameras are {radii[0]} to" in message
    found = re.findall(r'(data\.\w+): "?([\d.,]*\d)', message.partition("; set ")[2])
    assert [key for key, _ in found] == ["data.radius", "data.near", "data.far"]
    assert build_dataset(config(tmp_path, **dict(found))).posed


def test_a_folder_alone_out_of_reach_is_named(tmp_path):
    """As where the cameras of one are in millimetres."""
    for i, radius in enumerate((3.6, 3.6, 3600.0)):
        put(tmp_path / str(i) / "a.png")
        put_transforms(tmp_path / str(i), [{"file_path": "a.png", "transform_matrix": matrix(30.0 * i, radius=radius)}])
    message = faults_of(config(tmp_path))
    where = tmp_path / "2" / "transforms.json"
    assert message == f"{where}: the cameras are 3.6e+03 from the origin, and those of the other folders 3.6, {UNIT}"
    assert build_dataset(config(tmp_path, **{"data.radius": "3.6,3600", "data.near": 3599, "data.far": 3601})).posed


def test_a_missing_frame_hides_no_wrong_radius(tmp_path, caplog):
    for i in range(3):
        put(tmp_path / str(i) / "a.png")
        frames = [{"file_path": f"{name}.png", "transform_matrix": matrix(30.0 * i, radius=3.0)} for name in "ab"[: 1 + i // 2]]
        put_transforms(tmp_path / str(i), frames)
    build_dataset(config(tmp_path, **{"data.on_bad_file": "skip"}))
    assert f"{tmp_path / '0' / 'transforms.json'} and 2 more: the cameras are 3 to 3 from the origin" in caplog.text


def test_cameras_out_of_reach_name_near_and_far_that_work(tmp_path):
    put(tmp_path / "a.png")
    put_transforms(tmp_path, [{"file_path": "a.png", "transform_matrix": matrix(0.0, radius=8.0)}])
    message = faults_of(config(tmp_path))
    assert "set data.radius: 8, data.near: 7 and data.far: 9" in message
    assert build_dataset(config(tmp_path, **{"data.radius": 8, "data.near": 7, "data.far": 9})).posed


@pytest.mark.parametrize(("radius", "cure"), [("8", "near: 7 and data.far: 9"), ("[3.6,5]", "near: 4 and data.far: 6")])
def test_drawn_cameras_out_of_reach_too(tmp_path, radius, cure):
    put(tmp_path / "a.png")
    message = faults_of(config(tmp_path, **{"data.radius": radius}))
    assert f"set data.{cure}" in line_about(message, "data.radius")


def test_photographs_without_transparency_cannot_be_judged_by_opacity(tmp_path, caplog):
    for name in ("a", "b", "c", "d"):
        put(tmp_path / f"{name}.png")
    for name in ("e", "f"):
        Image.new("RGBA", (8, 8)).save(tmp_path / f"{name}.png")
    message = faults_of(config(tmp_path, **{"data.alpha": "rgba"}))
    assert "has no transparency" in line_about(message, "a.png") and "set data.alpha: ignore" in line_about(message, "a.png")
    assert message.startswith("4 faults") and "e.png" not in message
    dataset = build_dataset(config(tmp_path, **{"data.alpha": "rgba", "data.on_bad_file": "skip"}))
    assert [Path(file).name for file in dataset.files] == ["e.png", "f.png"]
    assert len(build_dataset(config(tmp_path))) == 6


def test_skipping_leaves_the_faulty_images_out_and_says_so(tmp_path, caplog):
    for name in ("0_0000.png", "0_0010.png", "0_0020.png", "nameless.png"):
        put(tmp_path / name, size=(64, 64))
    truncate(tmp_path / "0_0010.png")
    with caplog.at_level(logging.WARNING, logger="graf"):
        dataset = build_dataset(config(tmp_path, **{"data.on_bad_file": "skip"}))
    assert [Path(file).name for file in dataset.files] == ["0_0000.png", "0_0020.png"]
    assert torch.equal(dataset.labels.elevation_index, torch.zeros(2, dtype=torch.long))
    assert "left out 2 faulty images" in caplog.text
    assert "0_0010.png" in caplog.text and "nameless.png" in caplog.text
    few = faults_of(config(tmp_path, **{"data.on_bad_file": "skip", "training.batch_size": 3}))
    assert "2 images are fewer than a batch of 3; add images or set training.batch_size: 2" in few


def test_what_is_skipped_is_not_to_be_skipped_again(tmp_path, caplog):
    for name in ("0_0000.png", "0_0010.png"):
        put(tmp_path / name, size=(64, 64))
    truncate(tmp_path / "0_0010.png")
    with caplog.at_level(logging.WARNING, logger="graf"):
        dataset = build_dataset(config(tmp_path, **{"data.on_bad_file": "skip"}))
    assert "replace or remove it" in caplog.text and "or set data.on_bad_file" not in caplog.text
    truncate(tmp_path / "0_0000.png")
    with pytest.raises(DataError, match="replace or remove it$"):
        dataset.read(0)


@pytest.mark.parametrize(("v", "warned"), [("[0.5, 0.4]", False), ("[0.5, 0.4, 0.3]", True)])
def test_elevations_are_told_and_warned_of_where_they_are_fewer(tmp_path, caplog, v, warned):
    for name in ("0.5_0000.png", "0.3_0090.png"):
        put(tmp_path / name, size=(64, 64))
    with caplog.at_level(logging.INFO, logger="graf"):
        build_dataset(config(tmp_path, **{"data.v": v}))
    assert "cameras from file names, elevations: 0.3 -> v 0.5, 0.5 -> v 0.4; if the" in caplog.text
    assert ('--set "data.v=[0.5,0.4]"' in caplog.text) == warned


def test_one_fault_where_there_are_no_images(tmp_path):
    put(tmp_path / "heic" / "a.png").rename(tmp_path / "heic" / "a.HEIC")
    for folder, problem in (("nowhere", "no such folder"), ("heic", "no images")):
        message = faults_of(config(tmp_path / folder, **{"discriminator.condition": "class_and_pose"}))
        assert problem in message and len(message.splitlines()) == 1


def test_one_fault_where_the_folder_cannot_be_read(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refused)
    message = faults_of(config(tmp_path))
    assert "the folder cannot be read (Permission denied)" in message and len(message.splitlines()) == 1


def test_images_of_formats_that_are_not_read_are_counted_by_suffix_and_told_once(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="graf")
    for name in ("a.jpg", "b.bmp", "c.TIF", "sub/d.tiff"):
        put(tmp_path / name)
    for name in ("1.HEIC", "2.HEIC", "3.dng", "sub/4.HEIC", ".5.HEIC", "notes.txt"):
        (tmp_path / name).touch()
    dataset = build_dataset(config(tmp_path))
    assert [Path(file).name for file in dataset.files] == ["a.jpg", "b.bmp", "c.TIF", "d.tiff"]
    (message,) = caplog.messages
    assert "passed over 3 .HEIC, 1 .dng," in message and "`mogrify -format jpg *.HEIC *.dng`" in message


def test_a_folder_of_nothing_but_unread_formats_says_so(tmp_path):
    for name in ("a.heic", "b.heic"):
        (tmp_path / name).touch()
    message = faults_of(config(tmp_path))
    assert "no images (.png, " in message and "passed over 2 .heic" in message and "convert them to jpg" in message


def test_enlarged_images_are_counted_and_named(tmp_path, caplog):
    for name, size in (("a.png", (64, 64)), ("b.png", (60, 21)), ("c.png", (63, 90)), ("d.png", (64, 70))):
        put(tmp_path / name, size=size)
    build_dataset(config(tmp_path, **{"data.imsize": 64}))
    (message,) = (line for line in caplog.messages if "enlarged" in line)
    assert message.startswith("2 of 4 images are smaller than data.imsize 64 and are enlarged, up to 3.0 times")
    assert f"{tmp_path / 'b.png'} (21 pixels a side), {tmp_path / 'c.png'} (63 pixels a side); " in message
    caplog.clear()
    build_dataset(config(tmp_path, **{"data.imsize": 64, "data.center_crop": 16}))
    assert "4 of 4 images" in caplog.text and "up to 4.0 times" in caplog.text and "(16 pixels a side), ...;" in caplog.text
    caplog.clear()
    build_dataset(config(tmp_path, **{"data.imsize": 16}))
    assert "enlarged" not in caplog.text


@pytest.mark.parametrize(("names", "posed"), [(["20240714_150107", "20240714_150233"], False), (["1_150", "1_361"], None)])
def test_names_by_the_clock_tell_no_cameras(tmp_path, names, posed):
    for name in names:
        put(tmp_path / f"{name}.png", size=(64, 64))
    settings = config(tmp_path, **{"data.v": "[0.5]"})
    if posed is None:  # some are angles, so that all have to be
        assert "or set data.labels: none" in line_about(faults_of(settings), "1_361.png")
    else:
        assert build_dataset(settings).posed == posed


def test_skipping_forgives_no_empty_set_and_no_missing_folder(tmp_path):
    put(tmp_path / "a/0_0010.png", size=(64, 64))
    truncate(tmp_path / "a/0_0010.png")
    assert "all 1 images are faulty" in faults_of(config(tmp_path / "a", **{"data.on_bad_file": "skip"}))
    assert "no such folder" in faults_of(config(tmp_path / "b", **{"data.on_bad_file": "skip"}))


def test_hundreds_of_faults_stay_readable():
    same = describe([Fault(f"{i}.png", "broken") for i in range(500)])
    assert same.splitlines() == [
        "500 faults in the data:",
        *(f"{i}.png: broken" for i in range(3)),
        "... and 497 more with the same fault, to 499.png",
    ]
    different = describe([Fault(f"{i}.png", f"broken in way {i}") for i in range(500)])
    assert len(different.splitlines()) == 22 and different.splitlines()[-1] == "... and 480 more"


def test_a_rigid_pose_keeps_its_numbers():
    for rows in (matrix(77.0), matrix(77.0)[:3]):
        assert torch.equal(rigid_pose(rows), torch.tensor(matrix(77.0)[:3]))


def test_the_tool_exits_with_2_and_the_list_or_draws_the_sheet(tmp_path):
    put(tmp_path / "set/0_0000.png")
    put(tmp_path / "set/0_0090.png")

    def validate(*overrides):
        folder = [
            "data.type=images",
            f"data.datadir={json.dumps(str(tmp_path / 'set'))}",
            "training.batch_size=2",
            "data.v=[0.5]",
        ]
        return ["tools/validate_data.py", "--set", *folder, *overrides, "--out", str(tmp_path / "out")]

    within = call(*validate(), "--out", str(tmp_path / "set" / "out"), cwd=tmp_path, status=2)
    assert f"lies within the photographs' folder {tmp_path / 'set'}; name a folder outside of it" in within
    run(*validate(), cwd=tmp_path)
    assert (tmp_path / "out/contact_sheet.png").stat().st_size > 10_000
    assert "data.hflip" in call(*validate("data.hflip=true"), cwd=tmp_path, status=2)
