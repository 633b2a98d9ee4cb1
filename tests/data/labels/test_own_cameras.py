"""A config that leaves fov, radius, near and far as they are for the toy cars takes those of the images' own cameras."""

import dataclasses
import json
import logging
import math
import re
from pathlib import Path

from graf.camera import poses_at
from graf.config import load_config
from graf.data import build_dataset, with_cameras_of, with_trained_cameras
from graf.data.advice.summary import log_summary, log_warnings, tell_of_unread_cameras
from graf.data.folders import Item
from graf.data.labels.framing import are_cropped
from graf.errors import DataError
from graf.export.reconstruction import colmap_model
from graf.rays import depth_bounds

import pytest
import torch
from PIL import ExifTags, Image
from test_disk import finds_by_any_capitals

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
N = 12


def config(folder, *keys):
    values = [f"data.datadir={folder}", "data.imsize=16", "training.batch_size=1", "ray_sampler.rays_per_patch=256"]
    return load_config(None, ["data.type=images", *values, "data.masks=none", *keys])


def posed(folder, fov=50.0, radius=2.0, elevation_deg=20.0, size=(16, 16), azimuths=range(0, 360, 30), **content):
    """Photographs around an object with their cameras in a transforms.json; radius: one of all, or of each."""
    folder.mkdir(parents=True, exist_ok=True)
    radii = radius if isinstance(radius, list) else [radius] * len(azimuths)
    v = (1 - math.sin(math.radians(elevation_deg))) / 2
    frames = []
    for i, (azimuth_deg, distance) in enumerate(zip(azimuths, radii, strict=False)):
        name = f"{i:02d}.png"
        Image.new("RGB", size, (i, 20, 30)).save(folder / name)
        matrix = [*poses_at(torch.tensor(float(azimuth_deg)), torch.tensor(v), distance).tolist(), [0, 0, 0, 1]]
        frames.append({"file_path": name, "transform_matrix": matrix})
    angle = {} if "fl_x" in content else {"camera_angle_x": math.radians(fov)}
    (folder / "transforms.json").write_text(json.dumps({**angle, **content, "frames": frames}))
    return folder


class Told(logging.Handler):
    """The messages that are logged inside it."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("graf").addHandler(self)
        return self

    def __exit__(self, *error):
        logging.getLogger("graf").removeHandler(self)


def settings_of(folder, *keys):
    """What the cameras told, and the config with it, which the images are read with again, without a word of theirs."""
    dataset = build_dataset(config(folder, *keys), take_cameras=True)
    fitted = with_cameras_of(config(folder, *keys), dataset)
    with Told() as told:
        again = build_dataset(fitted, take_cameras=True)
        log_warnings(again, fitted)
    assert not [message for message in told.messages if "data.radius" in message or "cameras stand" in message]
    assert again.camera_settings == {} and again.fingerprint == dataset.fingerprint == build_dataset(fitted).fingerprint
    torch.testing.assert_close(again.labels.pose_c2w, dataset.labels.pose_c2w)
    return dataset.camera_settings


def test_cameras_of_a_transforms_json_are_taken_whole(tmp_path, caplog):
    folder = posed(tmp_path)
    with pytest.raises(DataError, match="set data.fov: 50.00"):
        build_dataset(config(folder))
    caplog.set_level("INFO", "graf")
    deep = 2.0 * math.tan(math.radians(25))  # half of what the frame shows at the object
    expected = {
        "fov": 50,
        "radius": (2, 2),
        "near": pytest.approx(2 - deep, abs=0.01),
        "far": pytest.approx(2 + deep, abs=0.01),
    }
    assert settings_of(folder) == expected
    assert f"data.fov: 50, data.radius: 2, data.near: 1.067 and data.far: 2.933, by the cameras of {folder}" in caplog.text


@pytest.mark.parametrize("key", ["data.fov=50", "data.radius=2", "data.near=1.1", "data.far=2.9"])
def test_a_key_that_is_named_stays_and_the_others_are_the_cameras(tmp_path, key):
    found = settings_of(posed(tmp_path), key)
    named = key.partition("=")[0].removeprefix("data.")
    assert found.keys() == {"fov", "radius", "near", "far"} - {named}
    assert found.items() <= {"fov": 50, "radius": (2, 2), "near": 1.067, "far": 2.933}.items()


@pytest.mark.parametrize("keys", [["data.fov=40"], ["data.near=2.2"], ["data.orthographic=true"]])
def test_a_key_that_is_named_and_wrong_is_a_fault(tmp_path, keys):
    with pytest.raises(DataError):
        build_dataset(config(posed(tmp_path), *keys), take_cameras=True)


@pytest.mark.parametrize("radius", ["2", "1.4,2.5", "1.5,2.4"])
@pytest.mark.parametrize("align", ["auto", "always"])
def test_depths_hold_the_object_before_each_camera_whatever_the_radius_is(tmp_path, radius, align):
    folder = posed(tmp_path, 50.0, [1.5, 1.9, 2.4] * 4, azimuths=range(0, 360, 30))
    settings = config(folder, f"data.radius={radius}", f"data.align_cameras={align}")
    dataset = build_dataset(settings, take_cameras=True)
    near, far = depth_bounds(dataset.labels.pose_c2w, with_cameras_of(settings, dataset).data)
    distance = dataset.labels.pose_c2w[:, :, 3].norm(dim=1)
    half = distance.mean().item() * math.tan(math.radians(25))
    assert (near[:, 0] > 0).all() and (near[:, 0] <= torch.maximum(distance - half, 0.1 * distance) + 0.2).all()
    assert (far[:, 0] >= distance + half - 0.2).all()


@pytest.mark.parametrize("radii", [[1000.0] * N, [2.0] * (N - 1) + [40.0], [2.0] * (N // 2) + [200.0] * (N // 2)])
def test_a_radius_that_is_named_hides_no_other_unit(tmp_path, radii):
    with pytest.raises(DataError, match="from the origin"):
        build_dataset(config(posed(tmp_path, 50.0, radii), "data.radius=2"), take_cameras=True)


@pytest.mark.parametrize("labels", ["transforms", "colmap", "eg3d"])
def test_a_file_of_cameras_that_is_missing_is_told_of(tmp_path, labels):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="has the cameras of these images; add one, or set data.labels"):
        build_dataset(config(tmp_path, f"data.labels={labels}"))
    with pytest.raises(DataError, match="no such folder"):
        build_dataset(config(tmp_path / "gone", f"data.labels={labels}"))


@pytest.mark.parametrize("name", ["PHOTOS/{}.PNG", "Photos/{}", "{here}/Photos/{}"])
def test_photographs_may_be_named_by_other_capitals_where_the_disk_finds_them_so(tmp_path, monkeypatch, caplog, name):
    posed(tmp_path, azimuths=range(0, 360, 90))
    file = tmp_path / "transforms.json"
    content = json.loads(file.read_text())
    (tmp_path / "photos").mkdir()
    for i, frame in enumerate(content["frames"]):
        (tmp_path / frame["file_path"]).rename(tmp_path / "photos" / frame["file_path"])
        frame["file_path"] = name.replace("{here}", str(tmp_path)).format(f"{i:02d}")
    file.write_text(json.dumps(content))
    finds_by_any_capitals(monkeypatch)
    views = build_dataset(config(tmp_path), take_cameras=True)
    assert views.posed and views.files == [str(tmp_path / f"photos/{i:02d}.png") for i in range(4)]
    assert "left out" not in caplog.text


def test_the_cure_of_cameras_out_of_reach_is_one_where_they_look_past_the_origin(tmp_path):
    folder = posed(tmp_path, 32.0, [6.8, 8.0, 10.7] * 4)
    content = json.loads((folder / "transforms.json").read_text())
    for frame in content["frames"]:
        frame["transform_matrix"][2][3] -= 2.0
    (folder / "transforms.json").write_text(json.dumps(content))
    keys = ["data.near=1.95", "data.far=2.45", "data.fov=32.2"]
    with pytest.raises(DataError) as fault:
        build_dataset(config(folder, *keys))
    cure = re.findall(r'data\.(\w+): "?([\d.,]*\d)', str(fault.value).partition("; set ")[2])
    assert build_dataset(config(folder, *keys, *(f"data.{key}={value}" for key, value in cure))).posed


def test_a_radius_that_is_named_may_be_large(tmp_path):
    found = settings_of(posed(tmp_path, 60.0, 8.0), "data.radius=8")
    assert found["fov"] == 60 and found["far"] - 8 == pytest.approx(8 * math.tan(math.radians(30)), rel=0.01)


def test_depths_that_are_left_to_the_cameras_fit_those_that_are_named(tmp_path):
    """Each by itself has the origin between near and far, which cut an object."""
    assert settings_of(posed(tmp_path, radius=2.7), "data.fov=50", "data.radius=2.7") == {"near": 1.44, "far": 3.96}
    assert settings_of(tmp_path, "data.align_cameras=always", "data.fov=50")["radius"] == (2.21, 2.21)


@pytest.mark.parametrize("radius", [3.6, 3.5])
def test_cameras_like_those_of_the_default_change_nothing(tmp_path, radius):
    assert settings_of(posed(tmp_path, 32.3, radius)) == {}


@pytest.mark.parametrize("radii", [[1.5, 1.9, 2.4], [3.1, 5.0, 6.0], [3.6, 3.6, 7.0]])
def test_cameras_at_several_distances_have_a_range_that_can_be_trained_with(tmp_path, radii):
    assert settings_of(posed(tmp_path, 32.0, radii))["radius"] == (min(radii), max(radii))


def test_what_a_file_does_not_tell_stays(tmp_path):
    """Cameras without a focal length have that of the default."""
    folder = posed(tmp_path, radius=2.0)
    content = json.loads((folder / "transforms.json").read_text())
    del content["camera_angle_x"]
    (folder / "transforms.json").write_text(json.dumps(content))
    found = settings_of(folder)
    assert "fov" not in found and found["radius"] == (2, 2)
    assert found["far"] - 2 == pytest.approx(2 * math.tan(math.radians(16)), abs=0.01)


@pytest.mark.parametrize("turned", ["", ".jpg", ".webp", ".png"])
def test_the_field_of_view_is_that_of_the_centre_square(tmp_path, turned):
    """Of photographs 24 x 16, whose camera_angle_x is of the width, and which may be stored turned."""
    folder = posed(tmp_path, 60.0, 2.5, size=(24, 16))
    if turned:
        content = (folder / "transforms.json").read_text().replace(".png", turned)
        (folder / "transforms.json").write_text(content)
        for file in sorted(folder.glob("*.png")):
            exif = Image.Exif()
            exif[ExifTags.Base.Orientation] = 6
            with Image.open(file) as image:
                stored = image.transpose(Image.Transpose.ROTATE_90)
            file.unlink()
            stored.save(file.with_suffix(turned), exif=exif)
    assert settings_of(folder)["fov"] == pytest.approx(
        2 * math.degrees(math.atan(16 / 24 * math.tan(math.radians(30)))), abs=0.01
    )


def test_a_centre_crop_shows_less(tmp_path):
    folder = posed(tmp_path, 60.0, 2.5, size=(32, 32))
    narrower = 2 * math.degrees(math.atan(20 / 32 * math.tan(math.radians(30))))
    assert settings_of(folder, "data.center_crop=20")["fov"] == pytest.approx(narrower, abs=0.01)
    with pytest.raises(DataError, match="smaller than data.center_crop 33"):
        build_dataset(config(folder, "data.center_crop=33"), take_cameras=True)


def with_one_focal_length(folder, focal, place=3, **frame):
    """The folder's photographs, of which one has another focal length in pixels."""
    content = json.loads((folder / "transforms.json").read_text())
    content["frames"][place] |= {"fl_x": focal} | frame
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder


def test_photographs_of_several_focal_lengths_are_cropped_to_the_narrowest(tmp_path):
    folder = with_one_focal_length(posed(tmp_path, radius=2.5, fl_x=12.0, w=16, h=16), 14.0)
    assert settings_of(folder)["fov"] == pytest.approx(2 * math.degrees(math.atan(8 / 14)), abs=0.01)


def test_one_photograph_that_shows_far_less_than_the_others_decides_nothing(tmp_path):
    folder = with_one_focal_length(posed(tmp_path, radius=2.5, fl_x=12.0, w=16, h=16), 40.0)
    with pytest.raises(DataError, match="fields of view of 22.62 .*03.png.* to 67.38 degrees"):
        build_dataset(config(folder), take_cameras=True)


@pytest.mark.parametrize("spread", [0.03, 0.08])
def test_nearly_equal_focal_lengths_are_one(tmp_path, spread):
    folder = posed(tmp_path, 90.0, 1.5, size=(24, 24), fl_x=12.0, w=24, h=24)
    assert settings_of(with_one_focal_length(folder, 12.0 + spread))["fov"] == pytest.approx(90, abs=0.3)


def test_a_field_of_view_that_one_photograph_does_not_have_is_not_kept(tmp_path):
    """The default's 32 degrees are within half a degree of 32.3, and not of 32.6."""
    focals = [8 / math.tan(math.radians(fov_deg / 2)) for fov_deg in (32.3, 32.6)]
    folder = with_one_focal_length(posed(tmp_path, radius=3.6, fl_x=focals[0], w=16, h=16), focals[1])
    assert settings_of(folder)["fov"] == pytest.approx(32.45)


@pytest.mark.parametrize(("right", "cropped"), [(0.0, False), (0.06, False), (0.08, True), (-0.06, True)])
def test_an_optical_axis_is_compared_with_that_of_our_pixels(tmp_path, right, cropped):
    """At 16 pixels a side it is 1/32 of the width right of the centre, and may be 0.01 + 1/32 beside that."""
    items = [Item(tmp_path / "a.png", 0, focal=1.7, axis=(right, 0.0))]
    assert are_cropped(items, config(tmp_path).data) == cropped


def test_what_is_left_out_decides_nothing(tmp_path):
    folder = with_one_focal_length(posed(tmp_path, radius=2.0, fl_x=16.0, w=16, h=16), 14.0, transform_matrix=[[1]])
    found = build_dataset(config(folder, "data.on_bad_file=skip"), take_cameras=True)
    assert len(found) == N - 1 and found.camera_settings["fov"] == pytest.approx(2 * math.degrees(math.atan(0.5)), abs=0.01)


def test_one_camera_that_stands_far_away_decides_nothing(tmp_path):
    folder = posed(tmp_path, radius=[2.0] * (N - 1) + [9.0])
    with pytest.raises(DataError, match="are 2 to 9 from the origin"):
        build_dataset(config(folder), take_cameras=True)


def test_an_object_above_the_middle_of_the_frame_is_within_the_depths(tmp_path):
    """The cameras look at a point below it, so that it is less deep than it is far away."""
    folder = posed(tmp_path, 60.0, 2.0)
    content = json.loads((folder / "transforms.json").read_text())
    for frame in content["frames"]:
        frame["transform_matrix"][2][3] -= 0.8
    (folder / "transforms.json").write_text(json.dumps(content))
    dataset = build_dataset(config(folder), take_cameras=True)
    found, pose = dataset.camera_settings, dataset.labels.pose_c2w
    distance, depth = pose[:, :, 3].norm(dim=1), (pose[:, :, 2] * pose[:, :, 3]).sum(1)
    assert found["radius"][0] == pytest.approx(distance.mean().item(), rel=1e-3)
    half = distance.mean().item() * math.tan(math.radians(30))
    assert found["near"] <= depth.min().item() - half + 0.01 and found["far"] >= depth.max().item() + half - 0.01
    assert settings_of(folder) == found


def test_the_radius_of_scaled_cameras_shows_as_much_as_the_default_does(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "sparse").mkdir()
    names = [f"{i:02d}.png" for i in range(N)]
    for i, name in enumerate(names):
        Image.new("RGB", (16, 16), (i, 20, 30)).save(tmp_path / "images" / name)
    poses = poses_at(30.0 * torch.arange(N), torch.tensor([0.4, 0.3] * (N // 2)), 70.0)
    for name, text in colmap_model(names, poses.double().numpy(), 16, 60.0).items():
        (tmp_path / "sparse" / name).write_text(text)
    found = settings_of(tmp_path)
    shown = 3.6 * math.tan(math.radians(16))
    assert found["fov"] == pytest.approx(60, abs=0.01)
    assert [distance * math.tan(math.radians(30)) for distance in found["radius"]] == pytest.approx([shown] * 2, rel=0.01)
    assert (found["near"], found["far"]) == pytest.approx((found["radius"][0] - shown, found["radius"][0] + shown), abs=0.02)


def test_cameras_in_another_unit_are_told_how_they_are_scaled(tmp_path):
    folder = posed(tmp_path, 40.0, 3600.0)
    with pytest.raises(DataError, match="set data.align_cameras: always, which scales them to data.radius"):
        build_dataset(config(folder), take_cameras=True)
    found = settings_of(folder, "data.align_cameras=always")
    assert found["radius"][0] * math.tan(math.radians(20)) == pytest.approx(3.6 * math.tan(math.radians(16)), rel=0.01)


def test_cameras_that_look_away_are_faults_as_before(tmp_path):
    with pytest.raises(DataError, match="looks away from the origin.*camera_axes: opencv"):
        build_dataset(config(posed(tmp_path), "data.camera_axes=opencv"), take_cameras=True)
    (tmp_path / "00.png").unlink()
    with pytest.raises(DataError) as missing:
        build_dataset(config(tmp_path), take_cameras=True)
    assert "the file of this frame is missing" in str(missing.value) and "data.fov" not in str(missing.value)


def test_the_heights_are_those_of_the_cameras(tmp_path, caplog):
    caplog.set_level("INFO", "graf")
    v = (1 - math.sin(math.radians(50))) / 2
    found = settings_of(posed(tmp_path / "high", 32.0, 3.6, elevation_deg=50))
    assert found == {"vmin": pytest.approx(v, abs=5e-3), "vmax": pytest.approx(v, abs=5e-3)}
    assert "because the cameras stand 50 degrees above the horizon" in caplog.text
    assert settings_of(posed(tmp_path / "usual", 32.0, 3.6)) == {}
    assert build_dataset(config(tmp_path / "high", "data.vmin=0.2"), take_cameras=True).camera_settings == {}
    assert build_dataset(config(tmp_path / "high", "data.labels=none"), take_cameras=True).camera_settings == {}


@pytest.mark.parametrize(
    "azimuths, expected",
    [
        (range(220, 320, 5), [225, 310]),  # but for one at each end
        ([*range(0, 50, 10), *range(310, 360, 10)], [-50, 40]),
        ([90] * 8, [90, 90]),
        (range(0, 270, 30), [0, 240]),
        ([*range(0, 360, 120)] * 3, []),  # a few places, all around
        ([0, 180] * 4, []),
        (range(0, 360, 45), []),
        ([10, 20, 30], []),  # too few to tell
    ],
)
def test_the_azimuths_are_those_of_the_cameras(tmp_path, azimuths, expected):
    found = settings_of(posed(tmp_path, 32.0, 3.6, azimuths=azimuths))
    assert [360 * found[key] for key in ("umin", "umax") if key in found] == pytest.approx(expected, abs=0.4)


def test_faces_that_look_elsewhere_than_the_prior_are_told_of(tmp_path, caplog):
    """Fronts of a file are at azimuth 270 where their world had y up."""
    for place, azimuths in (("elsewhere", range(240, 300, 5)), ("in_front", [*range(330, 360, 5), *range(0, 35, 5)])):
        settings = config(posed(tmp_path / place, 32.0, 3.6, azimuths=azimuths), "data.camera_prior=front")
        dataset = build_dataset(settings, take_cameras=True)
        assert dataset.camera_settings == {}
        caplog.clear()
        log_warnings(dataset, settings)
        cure = "set data.camera_prior=circle data.umin=0.667 data.umax=0.819"
        assert ("look from -34 to 34: " + cure in caplog.text) == (place == "elsewhere")
        assert ("stand at azimuth 240 to 295" in caplog.text) == (place == "elsewhere")


def in_world(folder, turn=None, shift=(0.0, 0.0, 0.0)):
    """The folder's cameras in a world with other axes, or another origin."""
    content = json.loads((folder / "transforms.json").read_text())
    move = torch.eye(4)
    move[:3, :3], move[:3, 3] = torch.eye(3) if turn is None else torch.tensor(turn), torch.tensor(shift)
    for frame in content["frames"]:
        frame["transform_matrix"] = (move @ torch.tensor(frame["transform_matrix"])).tolist()
    (folder / "transforms.json").write_text(json.dumps(content))
    return folder


Y_UP = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]]


@pytest.mark.parametrize(
    "turn, shift, told",
    [
        (None, (0.0, 0.0, 0.3), ""),
        (Y_UP, (0.0, 0.0, 0.0), "degrees off the horizon, as if another axis than z were upward"),
        (None, (0.0, 0.9, 0.0), "look at a point 0.9 from the origin of transforms.json"),
    ],
)
def test_cameras_of_another_world_are_told_of(tmp_path, caplog, turn, shift, told):
    folder = in_world(posed(tmp_path, 32.0, 3.6), turn, shift)
    log_warnings(build_dataset(config(folder, "data.near=1.5"), take_cameras=True), config(folder))
    assert told in caplog.text and (told != "") == ("data.align_cameras: always" in caplog.text)
    caplog.clear()
    log_warnings(build_dataset(config(folder, "data.align_cameras=always")), config(folder, "data.align_cameras=always"))
    assert "align_cameras" not in caplog.text


@pytest.mark.parametrize("elevation_deg", [20, 40, 60])
def test_photographs_that_were_rolled_are_told_of_as_such(tmp_path, caplog, elevation_deg):
    folder = posed(tmp_path, 32.0, 3.6, elevation_deg)
    log_warnings(build_dataset(settings := config(folder, "data.roll_deg=90")), settings)
    tilt = 90 - elevation_deg
    assert f"{tilt} degrees off the horizon, as if the cameras were rolled: set data.roll_deg" in caplog.text
    assert "another axis" not in caplog.text


def test_an_arc_of_a_world_on_its_side_is_told_of_as_such(tmp_path, caplog):
    folder = in_world(posed(tmp_path, 32.0, 3.6, 10, azimuths=range(-40, 45, 8)), Y_UP)
    log_warnings(build_dataset(settings := config(folder)), settings)
    assert "as if another axis than z were upward" in caplog.text


@pytest.mark.parametrize("spread_deg, miss", [(0.5, 0.01), (2, 0.03), (4, 0.06), (8, 0.06)])
def test_cameras_that_all_look_the_same_way_tell_no_point(tmp_path, caplog, spread_deg, miss):
    """Their axes nearly meet anywhere."""
    rng = torch.Generator().manual_seed(0)
    azimuths = (spread_deg * torch.randn(24, generator=rng)).tolist()
    folder = posed(tmp_path, 32.0, 3.6, azimuths=azimuths)
    content = json.loads((folder / "transforms.json").read_text())
    for frame in content["frames"]:
        for row, shift in zip(frame["transform_matrix"], (3.6 * miss * torch.randn(3, generator=rng)).tolist(), strict=False):
            row[3] += shift
    (folder / "transforms.json").write_text(json.dumps(content))
    log_warnings(build_dataset(settings := config(folder)), settings)
    assert "look at a point" not in caplog.text


def test_where_some_cameras_look_away_the_origin_is_elsewhere(tmp_path):
    folder = in_world(posed(tmp_path, 32.0, 3.6), shift=(5.0, 0.0, 0.0))
    with pytest.raises(DataError, match="looks away .*elsewhere in the file's world, set data.align_cameras: always"):
        build_dataset(config(folder))


def test_cameras_that_are_not_read_are_told_of(tmp_path, caplog):
    caplog.set_level("INFO", "graf")
    settings = config(posed(tmp_path / "a").parent, "data.labels=none")
    log_summary(build_dataset(settings), settings)
    assert f"cameras: {tmp_path / 'a' / 'transforms.json'} has them, and data.labels: none leaves it unread" in caplog.text


def test_training_tells_of_cameras_that_are_not_read(tmp_path, caplog):
    caplog.set_level("INFO", "graf")
    data = config(posed(tmp_path / "a").parent, "data.labels=none").data
    tell_of_unread_cameras(data)
    tell_of_unread_cameras(dataclasses.replace(data, labels="auto"))
    file = tmp_path / "a" / "transforms.json"
    assert caplog.messages == [f"{file} is not read, because data.labels is none; auto reads it"]


def test_cameras_that_look_away_are_one_fault_each(tmp_path):
    """Their field of view is taken all the same."""
    folder = posed(tmp_path)
    file = folder / "transforms.json"
    content = json.loads(file.read_text())
    for frame in content["frames"]:
        for row in frame["transform_matrix"][:3]:
            row[1], row[2] = -row[1], -row[2]  # as OpenCV's cameras look
    file.write_text(json.dumps(content))
    with pytest.raises(DataError) as error:
        build_dataset(config(folder), take_cameras=True)
    assert "data.camera_axes: opencv" in str(error.value) and "data.fov" not in str(error.value)
    assert build_dataset(config(folder, "data.camera_axes=opencv"), take_cameras=True).camera_settings["fov"] == 50


def test_names_tell_heights_alone(tmp_path):
    for azimuth in range(0, 360, 30):
        Image.new("RGB", (16, 16), (azimuth // 2, 0, 0)).save(tmp_path / f"0_{azimuth:04d}.png")
    assert settings_of(tmp_path, "data.v=[0.1]") == {"vmin": 0.0974, "vmax": 0.103}


def test_cameras_that_were_found_narrow_no_range(tmp_path):
    """They may be wrong, and the next ones are sought where the range has them."""
    folder = posed(tmp_path, 32.0, 3.6, 50, azimuths=range(0, 180, 10))
    assert set(settings_of(folder)) == {"umin", "umax", "vmin", "vmax"}
    content = json.loads((folder / "transforms.json").read_text())
    content["frames"] = [frame | {"confidence": 0.9} for frame in content["frames"]]
    (folder / "transforms.json").write_text(json.dumps(content))
    assert build_dataset(config(folder), take_cameras=True).camera_settings == {}


def test_a_ring_of_cameras_has_a_height_that_elevation_bins_divide(tmp_path):
    bins = "ccsr.mode=refine", "ccsr.elevation_bins=2"
    found = settings_of(posed(tmp_path, 32.0, 3.6, elevation_deg=50), *bins)
    heights = [math.degrees(math.asin(1 - 2 * found[key])) for key in ("vmin", "vmax")]
    assert heights == pytest.approx([50.5, 49.5], abs=0.1)


def test_a_ring_at_the_zenith_stays_within_the_range_of_v(tmp_path):
    found = settings_of(posed(tmp_path, 32.0, 3.6, elevation_deg=89.9))
    assert 0 == found["vmin"] < found["vmax"] < 1e-3


def test_a_run_that_goes_on_keeps_its_cameras(tmp_path, caplog):
    caplog.set_level("INFO", "graf")
    before = config(tmp_path, "data.fov=50", "data.radius=2", "data.near=1.1", "data.far=2.9", "data.vmax=0.4")
    now = with_trained_cameras(config(tmp_path), before)
    assert now == before
    assert (
        "data.fov: 50, data.radius: 2, data.near: 1.1, data.far: 2.9 and data.vmax: 0.4, as the checkpoint has them"
        in caplog.text
    )
    near = with_trained_cameras(config(tmp_path, "data.near=1", "data.vmin=0.1"), before).data
    assert (near.fov, near.radius, near.near, near.far, near.vmin, near.vmax) == (50, (2, 2), 1, 2.9, 0.1, 0.47)
    caplog.clear()
    own = config(tmp_path, "data.fov=50", "data.radius=2", "data.near=1", "data.far=2.8")
    assert with_trained_cameras(own, before).data.far == 2.8
    assert "data.vmax: 0.4, as the checkpoint has it" in caplog.text
    own = config(tmp_path, "data.fov=50", "data.radius=2", "data.near=1", "data.far=2.8", "data.vmin=0.1")
    cars = load_config(None, [])
    assert with_trained_cameras(own, before) == own and with_trained_cameras(cars, before) == cars
    front = config(tmp_path, "data.camera_prior=front")  # which reads none of the ranges
    assert with_trained_cameras(front, before).data == dataclasses.replace(before.data, camera_prior="front", vmax=0.47)
    parallel = config(tmp_path, "data.orthographic=true")
    assert with_trained_cameras(parallel, before).data == dataclasses.replace(parallel.data, vmax=0.4)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("real_cars", {"fov": 50, "radius": (2.75, 2.75), "near": 1.47, "far": 4.03, "vmin": 0.425, "vmax": 0.453}),
        ("toys/car_posed", {"fov": 20, "radius": (5.89, 5.89), "near": 4.85, "far": 6.93, "vmin": 0.0381, "vmax": 0.5}),
        ("cars", {}),
    ],
)
def test_real_sets_need_no_key(name, expected):
    if not (SHARED / name).is_dir():
        pytest.skip("the shared real sets are not here")
    found = build_dataset(config(SHARED / name), take_cameras=True).camera_settings
    assert found == {key: pytest.approx(value, rel=0.002) for key, value in expected.items()}
