"""tools/probe_activations.py: it finds what is there, finds nothing in noise, and ends well whatever happens."""

import json
import math
import signal
import sys
from pathlib import Path

from activations.files import ActivationWriter, CachedActivations, Source
from graf.errors import GrafError

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
SOURCE = Source("discriminator", "model.pt", "0" * 64, 3, "data", 0)


@pytest.fixture
def tool(monkeypatch):
    """tools/probe_activations.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return __import__("probe_activations")


@pytest.fixture
def run(tool, monkeypatch, caplog, capsys):
    """The program with flags: its exit status and what it said."""

    def run(*flags: str) -> tuple[int, str]:
        caplog.clear()
        monkeypatch.setattr(sys, "argv", ["probe_activations.py", *map(str, flags)])
        with caplog.at_level("INFO", logger="graf"), pytest.raises(SystemExit) as ended:
            tool.run_script(tool.main)
        return ended.value.code, "\n".join([*caplog.messages, capsys.readouterr().err])

    return run


def write(folder: Path, activations: torch.Tensor, **labels: torch.Tensor) -> Path:
    with ActivationWriter(folder, len(activations), SOURCE, ["layer"]) as writer:
        writer.add({"layer": activations.half()}, labels)
    return folder


def azimuths(n: int) -> torch.Tensor:
    return 360 * torch.rand(n, generator=torch.Generator().manual_seed(3))


def noise(n: int, width: int = 24) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(4))


def knowing_azimuth(azimuth_deg: torch.Tensor, width: int = 24) -> torch.Tensor:
    """Activations (N, 2, width / 2) in which cos and sin lie linearly, beside an offset and some noise."""
    angle = torch.deg2rad(azimuth_deg)
    directions = torch.randn(2, width, generator=torch.Generator().manual_seed(5))
    mixed = torch.stack([angle.cos(), angle.sin()], dim=-1) @ directions + 100 + 0.05 * noise(len(angle), width)
    return mixed.unflatten(1, (2, -1))


@pytest.fixture
def azimuth_folder(tmp_path):
    azimuth_deg = azimuths(200)
    return write(tmp_path / "known", knowing_azimuth(azimuth_deg), azimuth_deg=azimuth_deg)


def result_of(folder: Path, target: str) -> dict:
    return json.loads((folder / f"probe_layer_{target}.json").read_text())


def test_azimuth_that_is_there_linearly_is_found(run, azimuth_folder):
    status, said = run(azimuth_folder, "--layer", "layer", "--target", "azimuth", "--epochs", "60")
    result = result_of(azimuth_folder, "azimuth")
    assert status == 0
    assert result["mean_angular_error_deg"] < 5
    assert result["chance"] > 60
    assert result["samples"] == {"train": 120, "validation": 40, "test": 40, "skipped_not_finite": 0}
    assert f"{result['mean_angular_error_deg']:.3g}" in said


def test_noise_tells_no_azimuth(run, tmp_path):
    folder = write(tmp_path / "noise", noise(300), azimuth_deg=azimuths(300))
    assert run(folder, "--target", "azimuth", "--epochs", "30")[0] == 0
    result = result_of(folder, "azimuth")
    assert abs(result["mean_angular_error_deg"] - result["chance"]) < 3 * result["standard_error"]
    assert result["mean_angular_error_deg"] > 70


def test_a_class_is_found_and_in_noise_it_is_not(run, tmp_path):
    x, classes = noise(300), torch.tensor([2, 5, 9]).repeat(100)
    for name, activations in (("known", x + 6 * torch.eye(24)[classes]), ("noise", x)):
        assert run(write(tmp_path / name, activations, class_index=classes), "--target", "class", "--epochs", "30")[0] == 0
    known, nothing = (result_of(tmp_path / name, "class") for name in ("known", "noise"))
    assert known["accuracy"] > 0.9
    assert known["chance"] < 0.5
    assert abs(nothing["accuracy"] - nothing["chance"]) < 3 * nothing["standard_error"]


def test_chance_is_the_best_guess_without_looking(tool):
    target = tool.AzimuthTarget(torch.tensor([80.0, 90.0, 100.0, 90.0, 110.0]))
    assert target.blind(torch.tensor([0, 1, 2]), torch.tensor([3, 4])).tolist() == [0, 20]
    target = tool.ClassTarget(torch.tensor([7, 7, 1, 7, 1]))
    assert target.blind(torch.tensor([0, 1, 2]), torch.tensor([3, 4])).tolist() == [1, 0]


def test_activations_that_are_not_finite_are_skipped_and_counted(run, tmp_path):
    azimuth_deg = azimuths(200)
    activations = knowing_azimuth(azimuth_deg)
    activations[::20, 0, 3] = math.nan
    activations[7, 1, 1] = math.inf
    folder = write(tmp_path / "a", activations, azimuth_deg=azimuth_deg)
    status, said = run(folder, "--target", "azimuth", "--epochs", "60")
    result = result_of(folder, "azimuth")
    assert status == 0
    assert result["samples"]["skipped_not_finite"] == 11
    assert "11 of 200 samples skipped" in said
    assert result["mean_angular_error_deg"] < 5


def test_a_loss_that_is_not_finite_ends_with_a_message_and_the_best_so_far(run, azimuth_folder):
    status, said = run(azimuth_folder, "--target", "azimuth", "--learning_rate", "1e30")
    result = result_of(azimuth_folder, "azimuth")
    assert status == 1
    assert "try a smaller --learning_rate" in said
    assert result["best_epoch"] == 0
    weights = load_file(azimuth_folder / "probe_layer_azimuth.safetensors")
    assert all(x.isfinite().all() for x in weights.values())


def test_an_interruption_keeps_the_best_so_far(run, tool, azimuth_folder, monkeypatch):
    train_epoch = tool.Experiment._train_epoch
    calls = []

    def interrupted(experiment, optimizer):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return train_epoch(experiment, optimizer)

    monkeypatch.setattr(tool.Experiment, "_train_epoch", interrupted)
    status, said = run(azimuth_folder, "--target", "azimuth")
    assert status == 130
    assert len(calls) == 4
    assert "interrupted after epoch 4" in said
    assert 1 <= result_of(azimuth_folder, "azimuth")["best_epoch"] <= 4


def test_the_weights_that_are_kept_are_those_of_the_least_validation_loss(tool, azimuth_folder):
    cached = CachedActivations(azimuth_folder)
    settings = tool.Settings(epochs=25, learning_rate=0.5, seed=2)  # large enough to overshoot
    experiment = tool.Experiment(cached, tool.build_target(cached, "azimuth"), settings)
    losses = []
    outputs = experiment.outputs

    def noted(index):
        losses.append(float(experiment.target.loss(outputs(index), index)))
        return outputs(index)

    experiment.outputs = noted
    best = experiment.run()
    assert len(losses) == 26
    assert best.loss == min(losses) == losses[best.epoch]
    validation = experiment.validation
    assert float(experiment.target.loss(outputs(validation), validation)) == best.loss
    parts = torch.cat([experiment.train, validation, experiment.test])
    assert parts.sort().values.tolist() == list(range(200))


def test_what_cannot_be_probed_is_told(run, tool, tmp_path):
    folder = write(tmp_path / "a", noise(12), class_index=torch.zeros(12, dtype=torch.long))
    assert "all samples are of class 0" in run(folder, "--target", "class")[1]
    status, said = run(folder, "--target", "azimuth")
    assert status == 2
    assert "no azimuth_deg, only class_index" in said
    assert "unknown layer 'layers', did you mean layer" in run(folder, "--layer", "layers", "--target", "class")[1]
    assert "--held_out 0.5" in run(folder, "--target", "class", "--held_out", "0.5")[1]
    few = write(tmp_path / "b", noise(9), azimuth_deg=azimuths(9))
    with pytest.raises(GrafError, match="9 samples with finite activations, at least 10"):
        cached = CachedActivations(few)
        tool.Experiment(cached, tool.build_target(cached, "azimuth"), tool.Settings())


def test_numbers_and_constants_can_be_probed(tool, tmp_path):
    azimuth_deg = azimuths(30)
    for name, activations in (("scalar", noise(30)[:, 0]), ("constant", torch.full((30, 4), 3.0))):
        cached = CachedActivations(write(tmp_path / name, activations, azimuth_deg=azimuth_deg))
        experiment = tool.Experiment(cached, tool.build_target(cached, "azimuth"), tool.Settings(epochs=2))
        assert math.isfinite(experiment.result(experiment.run())["mean_angular_error_deg"])


def test_a_seed_that_no_generator_takes_is_refused(run, azimuth_folder):
    status, said = run(azimuth_folder, "--target", "azimuth", "--seed", "99999999999999999999")
    assert status == 2
    assert "argument --seed: expected a whole number from 0 to 4294967296" in said
