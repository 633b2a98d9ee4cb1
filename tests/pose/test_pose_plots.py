"""Plots of a validation: seven pictures, R2 by hand, and a CSV that holds the same numbers."""

import csv
import math

from graf.camera import poses_at
from graf.pose.plots import comparable, r2, write_pose_plots
from graf.pose.validation import Validation
from graf.rotations import relative_motion, six_of_freedom

import imageio.v2 as imageio
import pytest
import torch


@pytest.fixture
def validation():
    azimuth, v = torch.tensor([0.0, 100.0, 200.0, 290.0]), torch.tensor([0.3, 0.4, 0.35, 0.45])
    true, predicted = poses_at(azimuth, v, 3.6), poses_at(azimuth + 2, v, 3.6)
    motions = (six_of_freedom(relative_motion(poses, poses.roll(-1, 0))) for poses in (predicted, true))
    return Validation(20, 1.25, *motions, predicted, true)


def test_r2_is_one_less_the_share_of_variance_left():
    true = torch.tensor([0.0, 2.0, 4.0])
    assert r2(true, true) == 1
    assert r2(torch.full((3,), 2.0), true) == 0  # the mean explains nothing
    assert r2(torch.tensor([0.0, 2.0, 2.0]), true) == pytest.approx(1 - 4 / 8)
    assert math.isnan(r2(true, torch.ones(3)))


def test_seven_plots_and_a_csv(validation, tmp_path):
    files = write_pose_plots(tmp_path / "plots", validation)
    assert len([file for file in files if file.suffix == ".png"]) == 7
    assert imageio.imread(tmp_path / "plots" / "rotation_angle.png").shape == (500, 500, 4)
    with (tmp_path / "plots" / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert rows[0]["step"] == "20"
    assert float(rows[1]["target_rz"]) == pytest.approx(float(validation.target[1, 5]), rel=1e-4)
    assert float(rows[1]["error_azimuth_deg"]) == pytest.approx(2, abs=1e-3)


def test_a_turn_of_179_and_one_of_181_degrees_lie_near_each_other():
    motions = torch.zeros(2, 1, 6)
    motions[0, 0, 5], motions[1, 0, 5] = math.radians(-179), math.radians(179)
    poses = torch.eye(3, 4)[None]
    predicted, target = comparable(Validation(0, 0, *motions, poses, poses))
    torch.testing.assert_close(predicted[0, 5], torch.tensor(181.0))
    torch.testing.assert_close(target[0, 5], torch.tensor(179.0))
