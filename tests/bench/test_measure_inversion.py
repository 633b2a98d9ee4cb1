"""bench/measure_inversion.py: the cars are held out, the verdict is that of the bars, a row is of the car that was found."""

import dataclasses
import json
import sys

import measure_inversion as measure
from graf.camera import azimuth_and_v, poses_at
from graf.config import load_config
from graf.errors import GrafError
from graf.inversion.results import Inversion, similarity
from graf.models.generator import Generator

import pytest
import torch


def cameras(*azimuths_deg):
    return poses_at(torch.tensor(azimuths_deg), torch.full((len(azimuths_deg),), 0.3), 3.6)


def test_the_measured_cars_are_held_out():
    data = load_config().data
    assert (measure.held_out(data, 1, 3).seed, measure.held_out(data, 1, 3).n_images) == (1, 3)
    for seed, n_cars in ((0, 10), (1, 0)):
        with pytest.raises(GrafError, match="other than the training's 0"):
            measure.held_out(data, seed, n_cars)
    with pytest.raises(GrafError, match="not one of toy cars"):
        measure.held_out(dataclasses.replace(data, type="images"), 1, 10)


@pytest.mark.parametrize("alpha", ["auto", "rgba", "ignore"])
def test_what_is_looked_for_is_a_photograph_of_three_channels(smoke, alpha):
    data = measure.held_out(smoke(f"data.alpha={alpha}").data, 1, 2)
    assert measure.make_toy_cars(data)["images"].shape == (2, 3, 16, 16)


def test_the_measure_passes_at_its_bars_and_not_below():
    def rows(psnr, errors):
        return [{"known psnr": psnr, "azimuth error": error} for error in errors]

    assert measure.verdict(rows(18.0, [15.0] * 8 + [170.0] * 2)) == 0
    assert measure.verdict(rows(17.9, [1.0] * 10)) == 1
    assert measure.verdict(rows(30.0, [15.0] * 7 + [16.0] * 3)) == 1


def test_a_measured_row_is_of_the_car_that_was_found(smoke, monkeypatch):
    """A generator that renders nothing finds an empty picture whatever happens, so every number is known beforehand."""
    generator = Generator(smoke(), 1)
    generator.field.forward = lambda points, directions, latents: (
        torch.full(points.shape[:3], -50.0),
        torch.zeros_like(points),
    )
    data = measure.held_out(generator.config.data, 1, 1)
    cars = measure.make_toy_cars(data)

    def empty(generator, photographs, poses=None):
        poses = cameras(350.0) if poses is None else poses
        white = torch.ones_like(photographs)
        scores = similarity(photographs[0], white[0])
        zero = torch.zeros(1, 8), torch.zeros(1, dtype=torch.long)
        return Inversion(*zero, poses, *azimuth_and_v(poses), white, scores[:1], scores[1:], 0.0)

    monkeypatch.setattr(measure, "invert", empty)
    pose = cameras(20.0)[0]
    row = measure.measure_car(generator, cars["images"][0] / 127.5 - 1, pose, 0, data)
    assert row["azimuth error"] == pytest.approx(30.0, abs=1e-3)
    truth = measure.render_cars([measure.make_car(1, 0)] * 3, cameras(110.0, 200.0, 290.0), data).images
    expected = [similarity(image, torch.ones_like(image))[0] for image in truth]
    assert row["known unseen"] == row["searched unseen"] == pytest.approx(sum(expected) / 3)


def test_a_file_that_cannot_be_written_is_said_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["measure_inversion.py", "model.pt", "--json", str(tmp_path)])
    monkeypatch.setattr(measure.graf, "load_generator", lambda *_, **__: pytest.fail("began"))
    with pytest.raises(OSError):
        measure.main()


def test_rows_are_written_into_a_new_folder(smoke, monkeypatch, tmp_path):
    file, row = tmp_path / "new" / "rows.json", {"known psnr": 30.0, "azimuth error": 1.0}
    monkeypatch.setattr(sys, "argv", ["measure_inversion.py", "model.pt", "--n_cars", "2", "--json", str(file)])
    monkeypatch.setattr(measure.graf, "load_generator", lambda *_, **__: Generator(smoke(f"data.datadir={tmp_path}")))
    monkeypatch.setattr(measure, "measure_car", lambda *_: row)
    assert measure.main() == 0
    assert json.loads(file.read_text()) == [row, row]
