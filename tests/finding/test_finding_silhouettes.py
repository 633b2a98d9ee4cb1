"""Cameras guessed from silhouettes."""

import dataclasses

from graf.camera import azimuth_and_v
from graf.config import load_config
from graf.data import build_dataset
from graf.data.resolve import with_alpha
from graf.data.toy_cars import unseen_toy_cars
from graf.finding.rounds import Round, from_silhouettes, unposed
from graf.finding.silhouettes import azimuths_by_width, elongation, elongations_of

import pytest
import torch


def test_elongation_is_that_of_a_rectangle():
    opacity = torch.zeros(20, 30)
    opacity[5:9, 3:15] = 1  # 12 across, 4 down: standard deviations sqrt((n^2 - 1) / 12)
    assert elongation(opacity) == pytest.approx(((144 - 1) / (16 - 1)) ** 0.5)
    assert elongation(opacity / 2) == pytest.approx(elongation(opacity))


def test_the_narrowest_is_seen_from_an_end_and_the_widest_from_a_side():
    widths = torch.tensor([1.0, 3.0, 2.0]).repeat(100)
    azimuths = azimuths_by_width(torch.cat([widths, torch.tensor([0.5, 9.0])]), torch.Generator().manual_seed(0))
    assert set(azimuths[-2:].round().tolist()) <= {0.0, 180.0, 90.0, 270.0}
    assert min(azimuths[-2] % 180, 180 - azimuths[-2] % 180) < 1e-6 and azimuths[-1] % 180 == 90
    assert {float(azimuth // 90) for azimuth in azimuths[:300]} == {0, 1, 2, 3}
    assert bool((azimuths >= 0).all() and (azimuths < 360).all())


def test_the_silhouettes_of_toy_cars_tell_their_azimuths_up_to_two_mirrors():
    data = load_config(None, ["data.imsize=32"]).data
    cars = unseen_toy_cars(data, 64, seed=3)
    guessed = azimuths_by_width(elongations_of(cars, data), torch.Generator().manual_seed(0))
    true, _ = azimuth_and_v(cars.labels.pose_c2w)
    from_end = [torch.minimum(azimuth % 180, 180 - azimuth % 180) for azimuth in (guessed, true)]
    assert float((from_end[0] - from_end[1]).abs().median()) < 15  # 22.5 to 45 for guesses


def test_a_start_from_silhouettes_trains_on_photographs_with_their_cameras(tmp_path):
    settings = ["data.n_images=8", "data.imsize=16", f"data.datadir=[{tmp_path / 'cars'}]", "training.batch_size=4"]
    config, start = load_config("smoke", settings), Round(tmp_path, 0, 1)
    without = unposed(config, start)
    photographs = build_dataset(without)
    without = with_alpha(without, None, photographs.alpha)
    posed = build_dataset(from_silhouettes(without, photographs, start))
    assert posed.posed and len(posed) == 8
    cut = build_dataset(dataclasses.replace(without, data=dataclasses.replace(without.data, alpha="ignore")))
    cut.opacity = lambda index, data: None
    assert from_silhouettes(without, cut, start) is None


@pytest.mark.parametrize("range_of_azimuths", ["data.umax=0.25", "data.camera_prior=front"])
def test_no_start_from_silhouettes_leaves_the_range_of_azimuths(tmp_path, range_of_azimuths):
    settings = ["data.n_images=8", "data.imsize=16", f"data.datadir=[{tmp_path / 'cars'}]", "training.batch_size=4"]
    start = Round(tmp_path, 0, 1)
    photographs = build_dataset(unposed(load_config("smoke", settings), start))
    config = with_alpha(unposed(load_config("smoke", [*settings, range_of_azimuths]), start), None, photographs.alpha)
    assert from_silhouettes(config, photographs, start) is None
