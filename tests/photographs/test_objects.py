"""Objects are counted by what tells them apart, and it is said by what."""

from pathlib import Path

from graf.config.name_pattern import NAMED_BY_RANK, name_pattern
from graf.photographs.objects import colours, count_objects
from graf.photographs.sources import Source

import numpy as np
import pytest
from scenes import scene

RED, BLUE = np.eye(2)


def sources(*places: str, video: str | None = None) -> list[Source]:
    return [Source(Path(place), place, video=video) for place in places]


def counted(found: list[Source], posed_by: str | None = None, **colours_of: np.ndarray):
    histograms = {source.place: colours_of.get(Path(source.place).stem, RED) for source in found}
    return count_objects(found, histograms, posed_by and name_pattern(posed_by))


def test_a_video_is_one_object():
    found = sources("a_0001.png", "a_0002.png", video="a.mp4") + sources("b_0001.png", video="b.mp4")
    assert counted(found) == (2, "2 by videos")


def test_folders_with_cameras_are_objects():
    assert counted(sources("x/0_0000.png", "x/0_0090.png", "y/0_0000.png"), NAMED_BY_RANK) == (2, "2 by folders")


def test_names_with_cameras_may_tell_the_object():
    found = sources("x/red_30_000.png", "x/red_30_090.png", "x/blue_30_000.png", "y/red_30_000.png")
    assert counted(found, "<object>_<elevation_deg>_<azimuth_deg>") == (3, "3 by folders and <object>")


def test_a_file_of_cameras_may_tell_the_object():
    found = sources("x/a.png", "x/b.png", "x/c.png", "y/d.png")
    object_of = {Path("x/a.png"): "0", Path("x/b.png"): "van", Path("x/c.png"): "0"}
    counted = count_objects(found, {}, name_pattern(NAMED_BY_RANK), object_of)
    assert counted == (3, "2 by their cameras' file, 1 by folders")
    assert count_objects(found, {}, name_pattern(NAMED_BY_RANK), {Path("x/a.png"): "0"}).number == 3


@pytest.mark.parametrize("names", [("bus_01", "bus_02", "van_01"), ("car3-066-153", "car3-066-180", "car5-000-000")])
def test_names_of_objects_are_objects(names):
    assert counted(sources(*(f"{name}.jpg" for name in names))) == (2, "2 by file names")


def test_a_telephone_s_names_say_nothing_and_runs_of_colours_are_counted():
    names = ("IMG_0001", "IMG_0002", "IMG_0003", "PXL_20240101_120000")
    found = counted(sources(*(f"{name}.jpg" for name in names)), IMG_0002=BLUE, IMG_0003=BLUE)
    assert found == (3, "3 by likeness of photographs that follow each other")


def test_a_view_like_an_earlier_one_of_the_run_is_of_the_same_object():
    names = ("IMG_1", "IMG_2", "IMG_3")
    both = (RED + BLUE) / 2
    assert counted(sources(*(f"{name}.jpg" for name in names)), IMG_2=0.7 * RED + 0.3 * BLUE, IMG_3=both).number == 1
    assert counted(sources(*(f"{name}.jpg" for name in names)), IMG_2=BLUE, IMG_3=RED).number == 3


def test_ways_are_added():
    assert counted(sources("a_0001.png", video="a.mp4") + sources("IMG_1.jpg")).number == 2


def test_colours_are_of_the_object_alone():
    one, other = scene(1).convert("RGBA"), scene(1, wall=(20, 90, 20)).convert("RGBA")
    assert np.minimum(colours(one), colours(other)).sum() < 0.6
    for image in (one, other):
        image.putalpha(scene(1, wall="black", colours=["white", "white"]).convert("L"))
    np.testing.assert_array_equal(colours(one), colours(other))
    assert colours(one).sum() == pytest.approx(1)
