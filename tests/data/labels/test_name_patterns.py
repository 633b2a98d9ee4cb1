"""File names with labels: patterns, elevations in degrees and by rank, turntables that count, and doubtful ones."""

import logging

from graf.camera import azimuth_and_v, v_of_elevation
from graf.config import load_config
from graf.config.name_pattern import name_pattern
from graf.data import build_dataset
from graf.data.views import expected_labels
from graf.errors import ConfigError, DataError

import pytest
from PIL import Image


def dataset(folder, names, **keys):
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 20, 30)).save(folder / name)
    values = {"data.type": "images", "data.datadir": folder, "data.imsize": 8, "training.batch_size": 1, "data.alpha": "ignore"}
    values |= {f"data.{key}": value for key, value in keys.items()}
    config = load_config(None, ["ray_sampler.min_scale=0.5", *(f"{key}={value}" for key, value in values.items())])
    views = build_dataset(config)
    assert expected_labels(config.data) == views.known_labels
    return views


def cameras(views):
    """(azimuth_deg, v) of each image, rounded."""
    azimuth_deg, v = azimuth_and_v(views.labels.pose_c2w)
    return [(round(a, 3), round(p, 5)) for a, p in zip(azimuth_deg.tolist(), v.tolist(), strict=True)]


def test_classes_objects_and_degrees_from_the_zenith(tmp_path):
    names = ["1/car3-066-153.png", "1/car3-090-000.png", "2/dog12-066-090.png"]
    views = dataset(tmp_path, names, name_pattern="<class><object>-<polar_deg>-<azimuth_deg>")
    assert views.class_names == ["car", "dog"] and views.class_index.tolist() == [0, 0, 1]
    assert views.objects == ["car/3", "car/3", "dog/12"]
    at_66 = round(v_of_elevation(24), 5)
    assert cameras(views) == [(153, at_66), (0, 0.5), (90, at_66)]
    assert views.labels.elevation_index.tolist() == [0, 1, 0] and views.n_elevations == 2


def test_degrees_above_the_horizon_may_be_negative(tmp_path):
    views = dataset(tmp_path, ["a_-30_-90.png", "a_30_10.5.png"], name_pattern="<object>_<elevation_deg>_<azimuth_deg>")
    assert cameras(views) == [(270, 0.75), (10.5, 0.25)]


@pytest.mark.parametrize(("step", "azimuths"), [(10, [0, 10, 350]), (-10, [0, 350, 10])])
def test_a_turntable_counts(tmp_path, step, azimuths):
    names = ["bus_0000.png", "bus_0001.png", "bus_0035.png"]
    views = dataset(tmp_path, names, name_pattern="<object>_<index>", turntable_step_deg=step, v="[0.4]")
    assert [azimuth for azimuth, _ in cameras(views)] == azimuths
    assert {v for _, v in cameras(views)} == {0.4}


def test_an_index_without_a_step_is_no_camera(tmp_path):
    views = dataset(tmp_path, ["bus_0000.png", "car_0001.png"], name_pattern="<object>_<index>")
    assert not views.posed and views.objects == [f"{tmp_path.name}/bus", f"{tmp_path.name}/car"]


def test_elevations_by_rank_are_never_guessed(tmp_path):
    with pytest.raises(DataError, match=r"data\.v: is not given, and the file names have the elevations 22, 66") as error:
        dataset(tmp_path, ["22_0.png", "66_0.png"])
    for told in ("<elevation_deg>_<azimuth_deg>", "<polar_deg>_<azimuth_deg>", "30 degrees 0.25"):
        assert told in str(error.value)


def test_where_names_tell_no_elevation_data_v_has_to(tmp_path):
    with pytest.raises(DataError, match=r"data\.v: has 2 values, and <object>_<index> tells no elevation"):
        dataset(tmp_path, ["a_1.png"], name_pattern="<object>_<index>", turntable_step_deg=10, v="[0.5, 0.4]")


@pytest.mark.parametrize(("azimuths", "told"), [(range(1, 61), True), (range(360), False), (range(0, 360, 5), False)])
def test_numbers_of_frames_are_not_taken_for_degrees_in_silence(tmp_path, caplog, azimuths, told):
    with caplog.at_level(logging.WARNING, "graf"):
        dataset(tmp_path, [f"1_{azimuth:04d}.png" for azimuth in azimuths], v="[0.5]")
    assert ("set data.name_pattern: <elevation>_<index> and data.turntable_step_deg: 6 " in caplog.text) == told


def test_a_few_names_that_look_like_cameras_are_none(tmp_path, caplog):
    assert not dataset(tmp_path, ["2024_05.png", *(f"IMG_a{i}.png" for i in range(2))]).posed
    assert "1 of 3 names look like cameras, such as 2024_05.png; most do not, so none is read as one" in caplog.text
    assert "If these are cameras, put their images into a folder of their own" in caplog.text
    assert "data.labels" not in caplog.text  # prepare_photos.py says it, too
    with pytest.raises(DataError, match=r"IMG_a0\.png: no label in the name"):
        dataset(tmp_path, ["2024_05.png"], labels="filename", v="[0.5]")
    assert dataset(tmp_path / "half", ["0_0000.png", "a.png"], v="[0.5]", on_bad_file="skip").posed


def test_degrees_beyond_the_zenith_are_faults(tmp_path):
    with pytest.raises(DataError, match="<elevation_deg> is 110, outside -90 to 90 degrees"):
        dataset(tmp_path, ["110_0.png"], name_pattern="<elevation_deg>_<azimuth_deg>")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("<azimut>", "<azimut> is no part of a name; they are <class>, <object>"),
        ("0_90", "has no part in angle brackets"),
        ("<index>_<index>", "has <index> twice"),
        ("<polar_deg>_<elevation>", "tells the elevation twice, by <polar_deg> and <elevation>"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused(pattern, problem):
    with pytest.raises(ConfigError, match="data.name_pattern: ") as error:
        load_config(None, [f"data.name_pattern={pattern}"])
    assert problem in str(error.value)


def test_text_between_the_parts_is_literal():
    assert name_pattern("a.<index>+").read("a.12+") == {"index": "12"}
    assert name_pattern("a.<index>+").read("ab12+") is None


def test_a_pattern_that_no_name_matches_is_a_fault(tmp_path):
    with pytest.raises(DataError, match=r"data\.name_pattern: <object>_<index> matches none of 2 names, such as a-1"):
        dataset(tmp_path, ["a-1.png", "b-2.png"], name_pattern="<object>_<index>")
