"""From where objects are seen, in degrees and in words."""

from types import SimpleNamespace

from graf.camera import Labels, poses_at
from graf.config import load_config
from graf.data.advice.cameras import azimuth_span_deg, cameras_in_words

import pytest
import torch


def seen_from(*azimuths_deg: float, v: float = 0.5) -> SimpleNamespace:
    poses = poses_at(torch.tensor(azimuths_deg), torch.full((len(azimuths_deg),), v), 3.6)
    return SimpleNamespace(posed=True, labels=Labels.of_poses(poses), label_source="filename")


UNPOSED = SimpleNamespace(posed=False)


@pytest.mark.parametrize(
    ("azimuths", "span", "words"),
    [
        ((0, 120, 240), 240, "azimuth 120 to 0 degrees across 0"),
        ((0, 90, 180, 270), 270, "azimuths all around (largest gap 90.0 degrees)"),
        ((350, 10, 30), 40, "azimuth 350 to 30 degrees across 0"),
        ((20, 10, 30), 20, "azimuth 10 to 30 degrees"),
        ((20, 20), 0, "azimuth 20 to 20 degrees"),
    ],
)
def test_the_azimuths_of_known_cameras(azimuths, span, words):
    data, dataset = load_config(None).data, seen_from(*map(float, azimuths))
    assert azimuth_span_deg(dataset, data) == pytest.approx(span, abs=0.01)
    said = cameras_in_words(dataset, data)
    assert said.startswith("from file names: ") and words in said and "0 to 0 degrees above the horizon" in said


def test_the_range_of_sampled_cameras():
    data = load_config(None, ["data.umin=-0.1", "data.umax=0.1", "data.vmin=0.25", "data.vmax=0.5"]).data
    assert azimuth_span_deg(UNPOSED, data) == pytest.approx(72)
    said = cameras_in_words(UNPOSED, data)
    assert said.startswith("none") and "azimuth -36 to 36 degrees" in said and "0 to 30 degrees above the horizon" in said


def test_cameras_sampled_before_the_front():
    data = load_config(None, ["data.camera_prior=front", "data.azimuth_std_deg=20"]).data
    assert azimuth_span_deg(UNPOSED, data) == pytest.approx(80)  # two standard deviations to either side
    said = cameras_in_words(UNPOSED, data)
    assert said.startswith("none") and "about the front, by 20 degrees of azimuth and 8.9 of elevation" in said
