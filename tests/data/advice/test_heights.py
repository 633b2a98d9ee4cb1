"""Heights that samples and videos are seen from, and those of the data's cameras."""

import re

from graf.data import build_dataset
from graf.data.advice.summary import log_warnings

import pytest
from test_data_images import config, put

NAMES = {"data.name_pattern": "<elevation_deg>_<azimuth_deg>"}
AROUND = range(0, 360, 60)


def put_heights(folder, *elevations_deg):
    for elevation_deg in elevations_deg:
        for azimuth_deg in AROUND:
            put(folder / f"{elevation_deg}_{azimuth_deg:04d}.png")


def told_of(caplog, folder, **keys):
    """What is said of the cameras' heights."""
    settings = config(folder, **NAMES, **keys)
    caplog.clear()
    log_warnings(build_dataset(settings), settings)
    return [line for line in caplog.messages if "degrees above the horizon, but" in line]


@pytest.mark.parametrize(
    ("elevations_deg", "said"),
    [
        (
            (55, 65),
            r"stand 55 to 65 degrees .*, but samples.* from 19, .* from 3 to 35: set data.vmin=0.0468 data.vmax=0.0904",
        ),
        ((4, 7), "stand 4 to 7 degrees"),  # within the range, but samples are seen from its middle
        ((-30, 20), "stand -30 to 20 degrees"),
        ((10, 25), None),
        ((2, 36), None),  # nearly
    ],
)
def test_heights_that_are_not_those_of_samples_are_told_with_what_mends_it(tmp_path, caplog, elevations_deg, said):
    put_heights(tmp_path, *elevations_deg)
    told = told_of(caplog, tmp_path)
    assert bool(told) == bool(said)
    if said:
        assert re.search(said, told[0])
        assert not told_of(caplog, tmp_path, **dict(re.findall(r"(data\.vm\w+)=([\d.]+)", told[0])))


def test_a_few_stray_cameras_and_few_cameras_tell_no_heights(tmp_path, caplog):
    put_heights(tmp_path / "many", *range(5, 31))
    put(tmp_path / "many" / "80_0000.png")
    put(tmp_path / "few" / "80_0000.png")
    put_heights(tmp_path / "some", 10, 20, 30, 25)
    put(tmp_path / "some" / "85_0000.png")
    assert [told_of(caplog, tmp_path / name) for name in ("many", "some", "few")] == [[]] * 3


def test_cameras_around_the_front_have_heights_of_their_own(tmp_path, caplog):
    put_heights(tmp_path, 55, 65)
    assert told_of(caplog, tmp_path) and not told_of(caplog, tmp_path, **{"data.camera_prior": "front"})
