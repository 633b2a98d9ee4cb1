"""The cameras that were found, beside the true ones."""

import json
import sys
from types import SimpleNamespace

import measure_cameras
from graf.camera import azimuth_and_v, poses_at
from graf.checkpoints.generator_loading import load_generator
from graf.checkpoints.run_folder import save_newest
from graf.config import config_to_dict, load_config, override
from graf.data import as_floats, build_dataset
from graf.errors import GrafError
from graf.finding.azimuths import AzimuthErrors, azimuth_errors
from graf.finding.rounds import FoundCameras, Round, keep_cameras
from graf.rotations import circular_distance
from graf.training.state import TrainState
from measure_cameras import Alignment, best_alignment

import pytest
import torch

RNG = torch.Generator().manual_seed(0)
TRUE = 360 * torch.rand(200, generator=RNG)


@pytest.mark.parametrize("known", [Alignment(0, False), Alignment(77, False), Alignment(300, True), Alignment(359.5, True)])
def test_a_known_turn_and_mirror_are_found_again(known):
    # applied(found) = true, so found is true by the inverse: a mirror is its own
    found = (known.turn_deg - TRUE) % 360 if known.mirrored else (TRUE - known.turn_deg) % 360
    best = best_alignment(found, TRUE, may_mirror=True)
    assert best.mirrored == known.mirrored
    assert circular_distance(torch.tensor(best.turn_deg), torch.tensor(known.turn_deg)) < 1e-3
    assert circular_distance(best.applied(found), TRUE).max() < 1e-3


def test_the_least_error_is_at_a_difference():
    """No turn of a fine grid is better than the one that is found among the differences."""
    found = TRUE + 40 * torch.randn(200, generator=RNG)
    best = best_alignment(found, TRUE, may_mirror=False)
    turns = torch.arange(0, 360, 0.25)
    errors = [circular_distance(found + turn, TRUE).mean() for turn in turns]
    assert circular_distance(best.applied(found), TRUE).mean() <= min(errors) + 1e-4


def test_a_third_of_confusions_does_not_turn_the_rest():
    found = TRUE + 50
    found[:60] += 180
    best = best_alignment(found, TRUE, may_mirror=True)
    assert best == Alignment(pytest.approx(310, abs=1e-3), False)
    assert azimuth_errors(best.applied(found), TRUE) == pytest.approx(AzimuthErrors(0, 0.7, 0.3), abs=1e-3)


def test_a_mirror_can_be_forbidden():
    assert not best_alignment(-TRUE, TRUE, may_mirror=False).mirrored


def test_a_row_is_of_azimuths_as_they_are_aligned_best():
    true = torch.tensor([0.0, 90.0, 180.0, 270.0, 300.0])
    told = measure_cameras.row(true + 40, true, may_mirror=False)
    assert told["median_deg"] == pytest.approx(0, abs=1e-3) and told["confused"] == 0
    assert (told["turn_deg"], told["mirrored"]) == (pytest.approx(320), False)
    mirrored = measure_cameras.row(-true + 40, true, may_mirror=True)
    assert mirrored["median_deg"] == pytest.approx(0, abs=1e-3) and mirrored["mirrored"]
    found = torch.tensor([0.0, 90.0, 180.0, 270.0, 120.0])  # the last one from its other end
    told = measure_cameras.row(found, true, False, confidence=torch.tensor([0.9, 0.8, 0.7, 0.6, 0.1]))
    assert told["confused"] == pytest.approx(0.2) and told["within_15_deg"] == pytest.approx(0.8)
    assert [group["right"] for group in told["calibration"]] == [0, 1, 1, 1, 1]


def test_runs_of_one_name_have_a_row_each(monkeypatch, capsys, caplog, tmp_path):
    found = FoundCameras(torch.zeros(3), torch.zeros(3), torch.ones(3), torch.ones(3))
    labels = SimpleNamespace(pose_c2w=poses_at(torch.zeros(3), torch.full((3,), 0.3), 3.6))
    photographs = SimpleNamespace(posed=True, confidence=None, labels=labels, files=["a.png", "b.png", "c.png"])
    monkeypatch.setattr(measure_cameras, "build_dataset", lambda config: photographs)
    monkeypatch.setattr(measure_cameras, "in_one_class", lambda photographs, config: photographs)
    monkeypatch.setattr(measure_cameras, "find_cameras", lambda estimator, photographs: found)
    for name in ("load_estimator", "load_generator"):
        monkeypatch.setattr(measure_cameras, name, str)
    monkeypatch.setattr(measure_cameras, "kid", lambda run_dir, *_: {"a": 0.1, "b": 0.2}.get(run_dir[0], 0.3))
    settings = {"rounds": 1, "config": config_to_dict(load_config(None))}
    del settings["config"]["training"]["cuda_graphs"]  # as in a folder of a version that did not have it
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "round_1" / "estimator").mkdir(parents=True)
    for number, azimuths in ((1, [0.0, 20.0, 20.0]), (2, [0.0, 0.0, 180.0])):
        corrected = found._replace(azimuth_deg=torch.tensor(azimuths))
        keep_cameras(Round(tmp_path, 1, correction=number).cameras, photographs, corrected)
    monkeypatch.setattr(sys, "argv", ["measure_cameras.py", str(tmp_path), "--runs", "a/generator", "b/generator"])
    measure_cameras.main()
    said = capsys.readouterr().out.splitlines()
    assert "| round 1 | 0.0 | 1.00 | 0.00 |  |" in said
    assert "| round 1, correction 1 | 0.0 | 0.67 | 0.00 |  |" in said
    assert "| round 1, correction 2 | 0.0 | 0.67 | 0.33 | 300 |" in said  # with which the last generator learned
    assert "| a/generator |  |  |  | 100 |" in said and "| b/generator |  |  |  | 200 |" in said
    photographs.files[2] = "elsewhere/c.png"
    measure_cameras.main()
    assert "| round 1, correction" not in capsys.readouterr().out
    assert "cameras.json: has no camera of elsewhere/c.png; its 3 photographs are others; they have no row" in caplog.text
    photographs.confidence = [None, 0.9, None]
    with pytest.raises(GrafError, match="these cameras have a confidence, so they were found too"):
        measure_cameras.main()


def test_the_table_has_a_row_for_each_and_leaves_blank_what_was_not_measured(capsys):
    measure_cameras.print_table(
        {
            "round 1": {"median_deg": 3.64, "within_15_deg": 0.83, "confused": 0.16, "turn_deg": 20.04, "mirrored": True},
            "posed": {"kid": 0.08},
        }
    )
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| round 1 | 3.6 | 0.83 | 0.16 |  |",
        "| posed |  |  |  | 80 |",
        "round 1: azimuths turned by 20.0 degrees, and mirrored",
    ]


@pytest.mark.parametrize("kind", ["toy_cars", "images"])
def test_kid_is_against_toy_cars_that_are_new_else_against_the_photographs(kind, monkeypatch):
    seen = []

    def measured(generator, reference, settings, cache):
        seen.append(reference)
        return {"extractor": "x", "values": {"kid_x": 0.1}}

    monkeypatch.setattr(measure_cameras, "measure_generator", measured)
    config, photographs = load_config(None, [f"data.type={kind}", "data.imsize=16", "metrics.n_real=5"]), SimpleNamespace()
    assert measure_cameras.kid(SimpleNamespace(), config, photographs) == 0.1
    assert (seen[0] is photographs) == (kind == "images")


FRONT = ("data.labels=none", "data.camera_prior=front", "data.hflip=true")


def run_folder(tmp_path, smoke, *settings):
    """A run's folder with untrained weights, of four toy cars."""
    config = smoke(*settings, "data.n_images=4", f"data.datadir=[{tmp_path}]", f"training.outdir={tmp_path}", "expname=run")
    save_newest(TrainState(config, torch.device("cpu"), 1, 1).checkpoint())
    return config.run_dir


def test_cameras_of_a_runs_encoder_have_a_row(monkeypatch, capsys, tmp_path, smoke):
    run_dir = run_folder(tmp_path, smoke, *FRONT, "encoder.weight=5", "encoder.finds_cameras=true")
    argv = ["measure_cameras.py", str(run_dir), "--may_mirror", "--set", "data.labels=auto", "data.hflip=false"]
    monkeypatch.setattr(sys, "argv", argv)
    measure_cameras.main()
    said = capsys.readouterr().out
    generator = load_generator(run_dir)
    cars = build_dataset(override(generator.config.without_encoder(), ["data.labels=auto", "data.hflip=false"]))
    images = torch.stack([as_floats(cars.read(index)) for index in range(4)])[:, : generator.config.data.channels]
    with torch.no_grad():
        _, poses = generator.encoder.sample(*generator.encoder(images, None), torch.zeros(1, generator.latent_dim))
    expected = measure_cameras.row(azimuth_and_v(poses)[0], azimuth_and_v(cars.labels.pose_c2w)[0], may_mirror=True)
    assert f"| encoder | {expected['median_deg']:.1f} | {expected['within_15_deg']:.2f} |" in said


@pytest.mark.parametrize("settings", [None, FRONT, ("encoder.weight=5",)])
def test_a_folder_of_neither_is_refused(monkeypatch, tmp_path, smoke, settings):
    run_dir = tmp_path if settings is None else run_folder(tmp_path, smoke, *settings)
    monkeypatch.setattr(sys, "argv", ["measure_cameras.py", str(run_dir)])
    with pytest.raises(GrafError, match="no folder of tools/find_cameras.py, nor of a run whose encoder finds cameras"):
        measure_cameras.main()
