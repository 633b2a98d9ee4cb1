"""The tool that prepares photographs: what it refuses, what it continues, and cameras that it leaves as they are."""

import csv
import json
import re
import sys

from graf.config import load_config
from graf.data import build_dataset
from graf.photographs.cropping import SIZE_SPREAD
from graf.photographs.cutout import grabcut
from graf.photographs.making import Options, make_photograph
from graf.photographs.prepare import prepare
from graf.photographs.sources import Source
from graf.runtime.run_lock import run_lock
from prepare_photos import remove_unfinished, with_masks_flag

import imageio.v2 as imageio
import numpy as np
import pytest
from command_line import call
from PIL import Image, ImageDraw, ImageFilter
from PIL.PngImagePlugin import PngInfo
from scenes import busy, cut, mask_of, scene

TOOL = "tools/prepare_photos.py"


@pytest.fixture
def photographs(tmp_path):
    """A folder of three photographs before a plain wall."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(3):
        scene(seed).save(folder / f"IMG_{seed}.png")
    return folder


@pytest.fixture
def without_opencv(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    grabcut.opencv.cache_clear()
    yield
    grabcut.opencv.cache_clear()


def reasons(out) -> dict[str, str]:
    with open(out / "left_out.csv", newline="", encoding="utf-8") as file:
        return {row["file"]: row["reason"] for row in csv.DictReader(file)}


def test_a_folder_of_photographs_becomes_a_set_with_its_next_commands(photographs, tmp_path):
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "3 photographs found; 3 kept, 0 left out" in printed
    assert "3 by the colour of a plain background" in printed
    assert "python train.py --config set/config.yaml --use_amp" in printed
    assert "python tools/check_system.py --config set/config.yaml --use_amp" in printed
    assert "if the second command tells" not in printed
    assert "different objects in all: about 3" in printed
    config = load_config(tmp_path / "set" / "config.yaml")
    few = load_config("few_images")
    assert (config.training.max_steps, config.encoder.weight) == (few.training.max_steps, few.encoder.weight)
    assert (config.data.datadir, config.training.batch_size) == (("set/images",), 3)
    assert {file.name for file in (tmp_path / "set").iterdir()} == {
        *("images", "before_after.png", "left_out.csv", "config.yaml", "settings.json")
    }


def test_many_photographs_have_the_steps_that_they_take_without_cameras(photographs, tmp_path, monkeypatch):
    monkeypatch.setattr("graf.data.advice.warnings.FEW_IMAGES", 3)
    call(TOOL, "photos", "set", cwd=tmp_path)
    config = load_config(tmp_path / "set" / "config.yaml")
    assert config.training.max_steps == 20000 and config.encoder == load_config().encoder


def test_classes_stay_folders_and_a_video_is_one_object(photographs, tmp_path):
    (photographs / "cups").mkdir()
    scene(5).save(photographs / "cups" / "IMG_0.png")
    frames = [np.asarray(scene(seed, size=(160, 128))) for seed in (6, 7) for _ in range(6)]
    imageio.mimwrite(photographs / "cups" / "turn.mp4", frames, fps=12, codec="libx264", quality=9, macro_block_size=2)
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    made = {file.relative_to(tmp_path / "set" / "images").as_posix() for file in (tmp_path / "set").rglob("images/**/*.png")}
    assert made == {
        *("IMG_0.png", "IMG_1.png", "IMG_2.png"),
        *("cups/IMG_0.png", "cups/turn_0001.png", "cups/turn_0002.png"),
    }
    assert "frames of 1 videos among them" in printed
    assert "1 by videos" in printed


def test_objects_have_one_area_in_their_frames_unless_each_is_to_fill_its_own(tmp_path):
    (tmp_path / "photos").mkdir()
    for name, width, height in (("front", 60, 60), ("alike", 60, 60), ("side", 150, 60), ("far", 80, 20)):
        picture = Image.new("RGBA", (240, 200))
        ImageDraw.Draw(picture).rectangle((20, 30, 19 + width, 29 + height), (200, 30, 30, 255))
        picture.save(tmp_path / "photos" / f"{name}.png")

    def shares(out: str, *flags: str) -> dict[str, tuple[float, float]]:
        """Width and height of each object, in units of its frame."""
        call(TOOL, "photos", out, "--keep_duplicates", *flags, cwd=tmp_path)
        files = {file.stem: Image.open(file) for file in (tmp_path / out / "images").iterdir()}
        boxes = {name: image.getchannel("A").getbbox() for name, image in files.items()}
        sides = {name: image.width for name, image in files.items()}
        return {name: ((box[2] - box[0]) / sides[name], (box[3] - box[1]) / sides[name]) for name, box in boxes.items()}

    one_area = shares("set")
    longest = np.quantile([1, 1, 2.5**0.5, 2], 0.95)  # of their lengths, in square roots of their areas
    sizes = [(width * height) ** 0.5 for width, height in one_area.values()]
    assert sizes == pytest.approx([1 / 1.2 / longest] * 4, rel=2.5 * SIZE_SPREAD)
    assert one_area["front"] != pytest.approx(one_area["alike"], rel=0.01)  # sizes vary
    before = {file.name: file.read_bytes() for file in (tmp_path / "set" / "images").iterdir()}
    assert shares("set") == one_area
    assert {file.name: file.read_bytes() for file in (tmp_path / "set" / "images").iterdir()} == before
    assert [max(share) for share in shares("own", "--scale", "own").values()] == pytest.approx([1 / 1.2] * 4, rel=0.03)
    for other in ("far", "side", "alike"):
        (tmp_path / "photos" / f"{other}.png").unlink()
    assert shares("new", "--like", "set")["front"] == pytest.approx([1 / 1.2 / longest] * 2, rel=0.03)
    assert not (tmp_path / "new" / "config.yaml").exists()
    printed = call(TOOL, "photos", "new", "--keep_duplicates", "--like", "set", cwd=tmp_path)
    assert "python eval.py --config set/config.yaml --invert new/images/front.png" in printed


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"in": None}, {}, "is no folder that this tool wrote; such a one has settings.json and config.yaml"),
        ({"scale": "height"}, {}, "was made by an older version; prepare it again"),
        ({}, {"labels": "transforms"}, "its photographs were kept as their cameras saw them"),
        ({}, {"alpha": "ignore"}, "its photographs are not all cut out"),
        ({}, {"alpha": "rgba"}, "its photographs are not all cut out"),  # of which there are none
        ({}, {"alpha": "auto"}, ""),
    ],
)
def test_photographs_are_framed_like_those_of_a_set_of_cut_out_ones_alone(photographs, tmp_path, changes, config, message):
    folder = tmp_path / "like"
    (folder / "images").mkdir(parents=True)
    if not message:
        make_photograph(Source(photographs / "IMG_0.png", "a.png"), folder / "images" / "a.png", Options(), "none")
    settings = {"in": "photos", "cut": "auto", "scale": "area", "margin": "0.1"} | changes
    (folder / "settings.json").write_text(json.dumps({key: value for key, value in settings.items() if value}))
    (folder / "config.yaml").write_text(json.dumps({"data": {"type": "images", "datadir": ["like/images"], **config}}))
    printed = call(TOOL, "photos", "new", "--like", "like", cwd=tmp_path, status=2 if message else 0)
    assert f"error: --like like: {message}" in printed if message else "like like: --margin 0.1 --scale area" in printed
    assert (tmp_path / "new").exists() == (not message)
    if not message:
        printed = call(TOOL, "photos", "like/images/new", "--like", "like", cwd=tmp_path, status=2)
        assert "like/images/new: lies in like/images, of which nothing is changed" in printed


def test_what_is_not_cut_out_is_left_out_where_its_size_is_given(photographs, tmp_path):
    Image.new("RGBA", (200, 200), (200, 30, 30, 255)).save(photographs / "whole.png")
    prepared = prepare(photographs, tmp_path / "out", tmp_path, Options(cut="plain", longest_ratio=1.5))
    assert prepared.left_out["whole.png"] and len(prepared.made) == 3 and all(each.how != "none" for each in prepared.made)


def test_videos_and_photographs_of_one_name_are_told_apart(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed, suffix in enumerate(("mp4", "mov")):
        frames = [np.asarray(scene(seed, size=(160, 128)))] * 6
        imageio.mimwrite(folder / f"clip.{suffix}", frames, fps=12, codec="libx264", quality=9, macro_block_size=2)
    scene(2).save(folder / "clip_0001.png")
    assert "3 photographs found, frames of 2 videos among them; 3 kept" in call(TOOL, "photos", "set", cwd=tmp_path)
    made = {file.name: file.read_bytes() for file in (tmp_path / "set" / "images").iterdir()}
    assert set(made) == {"clip_0001.png", "clip.mov_0001.png", "clip.mp4_0001.png"}
    assert len(set(made.values())) == 3


def test_one_object_is_a_matter_for_others(tmp_path):
    frames = [np.asarray(scene(1, size=(160, 128)))] * 6
    imageio.mimwrite(tmp_path / "turn.mp4", frames, fps=12, codec="libx264", quality=9, macro_block_size=2)
    printed = call(TOOL, "turn.mp4", "set", cwd=tmp_path)
    assert "a single object is a matter for nerfstudio" in printed


def test_names_that_are_cameras_keep_their_names_and_the_centre_square(tmp_path):
    folder = tmp_path / "photos" / "mug"
    folder.mkdir(parents=True)
    for azimuth in (0, 90, 180):
        scene(1, shift=(10, 0)).save(folder / f"0_{azimuth:04d}.png")
    scene(2).save(folder / "0_0090.jpg")
    scene(2).save(folder / "holiday.jpg")
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    made = {file.name: np.asarray(Image.open(file)) for file in (tmp_path / "set" / "images" / "mug").iterdir()}
    assert set(made) == {"0_0000.png", "0_0090.png", "0_0180.png"}
    assert {pixels.shape for pixels in made.values()} == {(120, 120, 4)}
    expected = np.asarray(mask_of(1, shift=(10, 0)).crop((20, 0, 140, 120)))
    assert ((made["0_0000.png"][..., 3] > 127) != (expected > 127)).mean() < 0.02
    assert "no camera in its name" in reasons(tmp_path / "set")["mug/holiday.jpg"]
    (folder / "holiday.jpg").rename(folder / "0_0360.jpg")
    call(TOOL, "photos", "set", cwd=tmp_path)
    assert reasons(tmp_path / "set")["mug/0_0360.jpg"].startswith("the azimuth 0360 in its name is outside [0, 360)")
    assert "the same camera as mug/0_0090.jpg" in reasons(tmp_path / "set")["mug/0_0090.png"]
    assert "the centre square is kept" in printed
    assert "say in data.v of set/config.yaml how high the camera stood, then:" in printed
    config = load_config(tmp_path / "set" / "config.yaml")
    assert (config.data.labels, config.data.v) == ("filename", "auto")
    without = call(TOOL, "photos", "other", "--labels", "none", cwd=tmp_path)
    assert "2 kept, 3 left out" in without


def test_one_name_like_a_camera_among_others_leaves_none_out(photographs, tmp_path):
    scene(4).save(photographs / "2024_05.png")
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "4 kept, 0 left out" in printed and "1 of 4 names look like cameras, such as 2024_05.png" in printed
    assert load_config(tmp_path / "set" / "config.yaml").data.labels == "none"


def test_a_transforms_json_follows_its_photographs(tmp_path):
    folder = tmp_path / "photos"
    (folder / "train").mkdir(parents=True)
    frames = []
    for number in range(3):
        cut(number).save(folder / "train" / f"r_{number}.webp", lossless=True)
        pose = [[1, 0, 0, 0], [0, 0, -1, -3.6], [0, 1, 0, 0], [0, 0, 0, 1]]
        frames.append({"file_path": f"./train/r_{number}.webp", "transform_matrix": pose})
    (folder / "train" / "r_2.webp").write_bytes(b"")
    (folder / "transforms.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    call(TOOL, "photos", "set", cwd=tmp_path)
    content = json.loads((tmp_path / "set" / "images" / "transforms.json").read_text())
    assert content["camera_angle_x"] == 0.7
    assert [frame["file_path"] for frame in content["frames"]] == ["train/r_0.png", "train/r_1.png"]
    assert Image.open(tmp_path / "set" / "images" / "train" / "r_0.png").size == (160, 120)
    said = call("tools/validate_data.py", "--config", "set/config.yaml", "--set", "data.fov=30.61", cwd=tmp_path)
    assert "2 images with cameras" in said
    content = {"frames": [{"file_path": "elsewhere/r_0.webp"}]}
    (folder / "transforms.json").write_text(json.dumps(content))
    said = call(TOOL, "photos", "other", cwd=tmp_path, status=2)
    assert "no file_path names a photograph that was kept; correct them, or take --labels none" in said
    (folder / "transforms.json").write_text('{"frames": ["train/r_0"]}')
    said = call(TOOL, "photos", "third", cwd=tmp_path, status=2)
    assert "transforms.json: not a transforms.json with frames and their file_path" in said
    assert not list((tmp_path / "third").rglob("*.png"))  # told before anything is made


def test_the_splits_of_nerf_blender_become_one_transforms_json(tmp_path):
    folder, pose = tmp_path / "photos", [[1, 0, 0, 0], [0, 0, -1, -3.6], [0, 1, 0, 0], [0, 0, 0, 1]]
    for number, split in enumerate(("train", "val", "test")):
        (folder / split).mkdir(parents=True)
        cut(number).save(folder / split / "r_0.png")
        frames = [{"file_path": f"./{split}/r_0", "transform_matrix": pose}]
        (folder / f"transforms_{split}.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "3 kept, 0 left out" in printed and "passed over" not in printed
    written = json.loads((tmp_path / "set" / "images" / "transforms.json").read_text())["frames"]
    assert sorted(frame["file_path"] for frame in written) == ["test/r_0.png", "train/r_0.png", "val/r_0.png"]
    assert {frame["camera_angle_x"] for frame in written} == {0.7}


def test_photographs_that_no_frame_names_are_left_out_and_stored_turns_are_told(tmp_path):
    folder, pose = tmp_path / "photos", [[1, 0, 0, 0], [0, 0, -1, -3.6], [0, 1, 0, 0], [0, 0, 0, 1]]
    (folder / "images").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 3
    for number in range(4):
        scene(number).save(folder / "images" / f"{number}.jpg", exif=exif if number == 1 else Image.Exif(), quality=95)
    names = ("images\\0.jpg", str(folder / "images/1.jpg"))
    frames = [{"file_path": name, "transform_matrix": pose} for name in names]
    (folder / "transforms.json").write_text(json.dumps({"frames": frames}), encoding="utf-8-sig")
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "2 kept, 2 left out" in printed and "2 left out: no transforms.json names it" in printed
    assert "1 of 2 photographs are stored turned, by their EXIF orientation, such as images/1.jpg" in printed
    assert load_config(tmp_path / "set" / "config.yaml").training.batch_size == 2
    written = json.loads((tmp_path / "set" / "images" / "transforms.json").read_text())["frames"]
    assert [frame["file_path"] for frame in written] == ["images/0.png", "images/1.png"]
    assert len(list((tmp_path / "set" / "images").rglob("*.png"))) == 2


def test_a_folder_without_cameras_beside_one_with_them_is_told(tmp_path):
    frames = [{"file_path": "0.png", "transform_matrix": [[1, 0, 0, 0], [0, 0, -1, -3.6], [0, 1, 0, 0], [0, 0, 0, 1]]}]
    for folder in ("a", "b"):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        scene(0).save(tmp_path / "photos" / folder / "0.png")
    (tmp_path / "photos" / "a" / "transforms.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "1 folders have no transforms.json in them or above, such as b: their photographs are left out" in printed
    (tmp_path / "photos" / "a" / "transforms.json").rename(tmp_path / "photos" / "transforms.json")
    frames[0]["file_path"] = "a/0.png"
    (tmp_path / "photos" / "transforms.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    assert "have no transforms.json in them" not in call(TOOL, "photos", "other", cwd=tmp_path)


def test_masks_that_frames_name_cut_their_photographs_out_and_are_none(tmp_path):
    folder = tmp_path / "photos" / "my\u00a0mugs"  # with a space that no terminal shows
    (folder / "cut").mkdir(parents=True)
    pose, frames = [[1, 0, 0, 0], [0, 0, -1, -3.6], [0, 1, 0, 0], [0, 0, 0, 1]], []
    for number in range(3):
        scene(number, wall=busy(number)).save(folder / f"r_{number}.png")
        mask_of(number).save(folder / "cut" / f"m_{number}.png")
        frames.append({"file_path": f"r_{number}", "transform_matrix": pose, "mask_path": f"cut/m_{number}.png"})
    frames[2]["mask_path"] = "cut/gone.png"
    (folder / "transforms.json").write_text(json.dumps({"camera_angle_x": 0.7, "frames": frames}))
    (folder / "cut" / "m_2.png").unlink()
    printed = call(TOOL, "photos", "set", "--cut", "masks", cwd=tmp_path)
    assert "2 kept, 1 left out" in printed and "2 by your masks" in printed
    images = tmp_path / "set" / "images" / "my_mugs"
    assert [file.name for file in sorted(images.iterdir())] == ["r_0.png", "r_1.png", "transforms.json"]
    expected, found = np.asarray(mask_of(0)) > 127, np.asarray(Image.open(images / "r_0.png"))[..., 3] > 127
    assert (expected != found).mean() < 0.01
    written = json.loads((images / "transforms.json").read_text())["frames"]
    assert written == [{"file_path": f"r_{number}.png", "transform_matrix": pose} for number in (0, 1)]


def test_cameras_that_are_not_carried_over_are_told(photographs, tmp_path):
    for name in ("cameras.txt", "images.txt"):
        (photographs / "sparse").mkdir(exist_ok=True)
        (photographs / "sparse" / name).touch()
    expected = "photos: its COLMAP model is not carried over; to train with these cameras, set data.datadir: photos"
    assert expected in call(TOOL, "photos", "set", cwd=tmp_path)
    assert expected not in call(TOOL, "photos", "other", "--labels", "none", cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "set"), "nowhere: no such file or folder"),
        (("photos", "photos"), "photos: lies in photos, of which nothing is changed"),
        (("photos", "photos/out"), "lies in photos"),
        (("photos", "full"), "full: is not empty, and this tool did not make it; nothing was written"),
        (("photos", "full/a.txt"), "is not empty"),
        (("photos", "rounds"), "rounds: is not empty, and this tool did not make it; nothing was written"),
        (("photos", "set", "--every", "0"), "--every 0: expected seconds above 0"),
        (("photos", "set", "--every", "nan"), "--every nan: expected seconds above 0"),
        (("photos", "set", "--margin", "-1"), "--margin -1: expected a number from 0 to 2"),
        (("photos", "set", "--cut", "masks", "nowhere"), "--cut masks nowhere: no such folder"),
        (("photos", "set", "--cut", "plain", "--masks", "photos"), "only --cut masks and auto use masks"),
        (("photos", "set", "--smallest", "600"), "--smallest 600 is above --size 512"),
        (("photos", "set", "--cut", "masks"), "no photograph can be used: 3 such as IMG_2.png: there is no mask for it"),
        (("full", "set"), "full: no photograph can be used: there is none in it, only 1 .txt"),
        (("empty", "new"), "empty: no photograph can be used: there is none in it"),
        (("seen", "new"), "seen: no photograph can be used: there is none in it"),
        (("empty", "seen"), "empty: no photograph can be used: there is none in it"),
    ],
)
def test_what_cannot_be_done_is_said(photographs, tmp_path, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / ".DS_Store").touch()  # by a file manager
    (tmp_path / "rounds").mkdir()
    (tmp_path / "rounds" / "settings.json").write_text('{"rounds": 3}')  # of another program
    assert message in call(TOOL, *arguments, cwd=tmp_path, status=2)
    assert (tmp_path / "full" / "a.txt").read_text() == "mine"
    assert [file.read_text() for file in (tmp_path / "rounds").iterdir()] == ['{"rounds": 3}']
    assert len(list(photographs.iterdir())) == 3
    assert not (tmp_path / "new").exists()  # which would have held nothing of use


def test_masks_of_another_folder(photographs, tmp_path):
    (tmp_path / "silhouettes").mkdir()
    for seed in (0, 1):
        mask_of(seed).save(tmp_path / "silhouettes" / f"IMG_{seed}.png")
    printed = call(TOOL, "photos", "set", "--cut", "masks", "silhouettes", cwd=tmp_path)
    assert "2 by your masks" in printed
    assert reasons(tmp_path / "set") == {"IMG_2.png": "there is no mask for it"}


def test_a_word_after_masks_is_their_folder():
    assert with_masks_flag(["IN", "OUT", "--cut", "masks", "DIR"]) == ["IN", "OUT", "--cut", "masks", "--masks", "DIR"]
    for words in (["IN", "OUT", "--cut", "masks"], ["--cut", "masks", "--margin", "0"], ["--cut", "plain", "IN", "OUT"]):
        assert with_masks_flag(words) == words


def test_grabcut_without_opencv_is_refused_and_auto_names_the_extra(photographs, tmp_path, without_opencv):
    assert "opencv-python-headless: pip install" in call(TOOL, "photos", "set", "--cut", "grabcut", cwd=tmp_path, status=2)
    scene(9, wall=busy(9)).save(photographs / "busy.png")
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "1 not cut out" in printed
    assert "GrabCut cuts out what stands before a busy background, with OpenCV: pip install" in printed
    assert load_config(tmp_path / "set" / "config.yaml").data.alpha == "ignore"


def test_an_interrupted_set_is_continued(photographs, tmp_path, monkeypatch):
    """What was made stays as it is; what is missing, or was made of a photograph that has changed, is made again."""
    call(TOOL, "photos", "set", cwd=tmp_path)
    images = tmp_path / "set" / "images"
    times = {file.name: file.stat().st_mtime_ns for file in images.iterdir()}
    (images / "IMG_0.png").unlink()
    scene(8).save(photographs / "IMG_1.png")
    (tmp_path / "set" / ".frames_left").mkdir()
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "set: continuing what is there" in printed
    assert [name for name in sorted(times) if (images / name).stat().st_mtime_ns == times[name]] == ["IMG_2.png"]
    assert not (tmp_path / "set" / ".frames_left").exists()
    (photographs / "IMG_2.png").unlink()
    call(TOOL, "photos", "set", cwd=tmp_path)
    assert {file.name for file in images.iterdir()} == {"IMG_0.png", "IMG_1.png"}
    refused = call(TOOL, "photos", "set", "--cut", "none", cwd=tmp_path, status=2)
    assert "set: was made with other settings (cut)" in refused


def test_what_a_killed_run_was_writing_is_removed(tmp_path):
    pid = 999_999_999  # which no system gives
    for name in (f"images/.a.{pid}.partial.png", f"images/cups/red/.b.{pid}.partial.png", ".frames_x/0/0001.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "images/cups/c.png").touch()
    remove_unfinished(tmp_path)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["c.png"]
    assert not list(tmp_path.glob(".frames_*"))


def test_a_config_that_was_edited_stays(photographs, tmp_path):
    call(TOOL, "photos", "set", cwd=tmp_path)
    (tmp_path / "set" / "config.yaml").write_text("data: {type: images, datadir: set/images, imsize: 64}\n")
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "config.yaml: not overwritten" in printed
    assert "imsize: 64}" in (tmp_path / "set" / "config.yaml").read_text()


def test_a_picture_that_was_corrected_stays(photographs, tmp_path):
    call(TOOL, "photos", "set", cwd=tmp_path)
    file = tmp_path / "set" / "images" / "IMG_1.png"
    cut(7).save(file)  # by another program, whose PNG has no note of ours
    corrected = file.read_bytes()
    scene(8).save(photographs / "IMG_8.png")
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "IMG_1.png: was changed by another program, and stays as it is; remove it to have it made anew" in printed
    assert "4 kept" in printed and "1 as another program left them" in printed
    assert file.read_bytes() == corrected
    file.write_bytes(b"")
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "3 kept, 1 left out" in printed and file.read_bytes() == b""
    assert "IMG_1.png is no picture that can be read; remove it to have it made anew" in reasons(tmp_path / "set")["IMG_1.png"]


def test_a_picture_that_was_corrected_by_a_program_that_keeps_its_text_stays(photographs, tmp_path):
    call(TOOL, "photos", "set", cwd=tmp_path)
    file, untouched = (tmp_path / "set" / "images" / name for name in ("IMG_1.png", "IMG_2.png"))
    with Image.open(file) as image:
        info = PngInfo()
        info.add_text("graf_ccsr", image.text["graf_ccsr"])
        image.putpixel((0, 0), (1, 2, 3, 4))
        image.save(file, pnginfo=info)
    corrected, before = file.read_bytes(), untouched.read_bytes()
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "IMG_1.png: was changed by another program, and stays as it is" in printed
    next(photographs.glob("IMG_1.*")).unlink()
    call(TOOL, "photos", "set", cwd=tmp_path)
    assert file.read_bytes() == corrected and untouched.read_bytes() == before


def test_pictures_that_were_moved_or_copied_stay(photographs, tmp_path):
    call(TOOL, "photos", "set", cwd=tmp_path)
    images = tmp_path / "set" / "images"
    (images / "red").mkdir()
    (images / "IMG_0.png").rename(images / "red" / "IMG_0.png")
    copy = images / "IMG_1_copy.png"
    copy.write_bytes((images / "IMG_1.png").read_bytes())
    (photographs / "IMG_2.png").unlink()
    printed = call(TOOL, "photos", "set", cwd=tmp_path)
    assert "2 pictures in set/images are not where this tool wrote them, such as IMG_1_copy.png; they stay" in printed
    assert {file.name for file in images.glob("*.png")} == {"IMG_0.png", "IMG_1.png", copy.name}
    assert (images / "red" / "IMG_0.png").exists()


def test_a_second_run_on_one_folder_waits_for_the_first(photographs, tmp_path):
    call(TOOL, "photos", "set", cwd=tmp_path)
    frames = tmp_path / "set" / ".frames_of_the_first"
    frames.mkdir()
    with run_lock(tmp_path / "set"):
        printed = call(TOOL, "photos", "set", cwd=tmp_path, status=2)
    assert "wait for it or end it, or name another folder with the second argument" in printed and frames.exists()
    call(TOOL, "photos", "set", cwd=tmp_path)
    assert not frames.exists() and not (tmp_path / "set" / "run.lock").exists()


def test_ctrl_c_leaves_what_was_made_and_no_frames(photographs, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graf.photographs.making.without_fringe", interrupt)
        assert "interrupted" in call(TOOL, "photos", "set", cwd=tmp_path, status=130)
    assert {path.name for path in (tmp_path / "set").rglob("*")} <= {"settings.json", "images"}
    assert "3 kept" in call(TOOL, "photos", "set", cwd=tmp_path)


def test_large_photographs_give_larger_images(tmp_path):
    (tmp_path / "photos").mkdir()
    for seed in range(2):
        scene(seed, size=(640, 480)).save(tmp_path / "photos" / f"IMG_{seed}.jpg", quality=95)
    printed = call(TOOL, "photos", "set", "--size", "200", cwd=tmp_path)
    config = load_config(tmp_path / "set" / "config.yaml")
    assert (config.data.imsize, config.patch_size) == (128, 128)
    (smaller,) = re.findall("add --set (.*) to the last two", printed)
    config = load_config(tmp_path / "set" / "config.yaml", smaller.split())
    assert (config.data.imsize, config.patch_size) == (64, 64)
    assert {Image.open(file).size for file in (tmp_path / "set" / "images").iterdir()} == {(200, 200)}


def test_cameras_by_a_name_pattern_keep_their_names_and_frames(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for azimuth in (0, 90, 180):
        scene(1, shift=(10, 0)).save(folder / f"mug3-030-{azimuth:03d}.png")
    pattern = "<class><object>-<elevation_deg>-<azimuth_deg>"
    printed = call(TOOL, "photos", "set", "--name_pattern", pattern, cwd=tmp_path)
    assert "the centre square is kept" in printed
    images = tmp_path / "set" / "images"
    config = load_config(tmp_path / "set" / "config.yaml", ["training.batch_size=1", f"data.datadir={images}"])
    views = build_dataset(config)
    assert views.class_names == ["mug"] and views.objects == ["mug/3"] * 3
    assert "<azimut> is no part of a name" in call(TOOL, "photos", "b", "--name_pattern", "<azimut>", cwd=tmp_path, status=2)
    said = call(TOOL, "photos", "b", "--name_pattern", "<object>_<index>", cwd=tmp_path, status=2)
    assert "<index> tells no angle here" in said and not (tmp_path / "b").exists()


def test_cameras_whose_names_are_one_on_some_disks_are_one(tmp_path):
    (tmp_path / "photos").mkdir()
    for seed, name in enumerate(("Mug-0-90.jpg", "mug-0-90.png", "mug-0-180.png")):
        scene(seed).save(tmp_path / "photos" / name)
    call(TOOL, "photos", "set", "--name_pattern", "<object>-<elevation_deg>-<azimuth_deg>", cwd=tmp_path)
    assert reasons(tmp_path / "set") == {"mug-0-90.png": "the same camera as Mug-0-90.jpg, by its name"}


def test_duplicates_can_be_kept(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("a", "b"):
        scene(1).save(tmp_path / "photos" / f"{name}.png")
    assert "1 kept" in call(TOOL, "photos", "set", cwd=tmp_path)
    assert "2 kept" in call(TOOL, "photos", "all", "--keep_duplicates", cwd=tmp_path)


def test_of_duplicates_the_largest_is_kept_although_a_smaller_one_is_sharper(tmp_path):
    (tmp_path / "photos").mkdir()
    large = scene(0, size=(320, 240))
    large.filter(ImageFilter.GaussianBlur(0.8)).save(tmp_path / "photos/large.png")
    large.resize((160, 120)).save(tmp_path / "photos/small.png")
    prepared = prepare(tmp_path / "photos", tmp_path / "out", tmp_path, Options(cut="none"))
    assert prepared.left_out == {"small.png": "shows the same as large.png, or almost; --keep_duplicates keeps it"}


def test_named_masks_are_the_cut(tmp_path):
    for folder in ("photos", "masks"):
        (tmp_path / folder).mkdir()
    scene(1).save(tmp_path / "photos" / "a.png")
    call(TOOL, "photos", "set", "--masks", "masks", cwd=tmp_path, status=2)
    assert "mask" in reasons(tmp_path / "set")["a.png"]


def test_a_folder_in_which_nothing_was_made_may_be_used_again(tmp_path):
    for folder in ("empty", "photos"):
        (tmp_path / folder).mkdir()
    scene(1).save(tmp_path / "photos" / "a.png")
    call(TOOL, "empty", "set", cwd=tmp_path, status=2)
    assert "1 kept" in call(TOOL, "photos", "set", cwd=tmp_path)
    assert "was made with other settings" in call(TOOL, "empty", "set", cwd=tmp_path, status=2)
