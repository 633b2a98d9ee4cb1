"""bench/measure_tuning.py: an object per folder, found in its first photograph and compared with the others."""

import sys
from pathlib import Path

import graf
import measure_tuning as measure
from graf import inversion
from graf.camera import poses_at
from graf.checkpoints.export import write_export
from graf.inversion.loss import InversionSettings
from graf.models import perception
from graf.models.generator import Generator

import pytest
import torch
from torchvision.utils import save_image


@pytest.fixture
def model(refine, tmp_path) -> Path:
    torch.manual_seed(0)
    return write_export(tmp_path / "model.safetensors", Generator(refine("data.v=[0.3]")).eval(), 5)


@pytest.fixture
def folder(model, tmp_path) -> Path:
    """The model's own mean object in two folders, from azimuths 0, 90 and 180."""
    generator = graf.load_generator(model)
    poses = poses_at(torch.tensor([0.0, 90.0, 180.0]), torch.full((3,), 0.3), 3.6)
    images = generator.render(torch.zeros(3, 8), poses).images
    for name in ("a", "b"):
        (tmp_path / "held" / name).mkdir(parents=True)
        for azimuth, image in zip((0, 90, 180), images, strict=True):
            save_image(image / 2 + 0.5, tmp_path / "held" / name / f"0_{azimuth:04d}.png")
    return tmp_path / "held"


def test_rows_are_of_the_photograph_and_of_the_sides_that_were_not_seen(model, folder, monkeypatch, caplog):
    monkeypatch.setattr(perception, "SIZE", 32)
    monkeypatch.setattr(inversion, "InversionSettings", lambda: InversionSettings(search_steps=0, fit_steps=0))
    monkeypatch.setattr(sys, "argv", ["measure_tuning.py", str(model), str(folder), "--tune", "1", "2", "--device", "cpu"])
    with caplog.at_level("INFO", "graf"):
        assert measure.main() == 0
    head, *rows = (message.split() for message in caplog.messages)
    assert head == ["dB", *("found", "unseen", "seconds"), *("tuned", "unseen", "seconds") * 2]
    assert [row[0] for row in rows] == ["a", "b", "mean"]
    for row in rows:  # the mean object is the photographs' own, up to 8 bits
        assert all(float(value) > 40 for value in row[1:3])


@pytest.mark.parametrize(
    ("left", "message"), [((), "no folders here"), (("0_0000.png",), "a: 2 photographs or more are needed")]
)
def test_what_is_missing_is_said(model, tmp_path, folder, monkeypatch, capsys, left, message):
    held = folder if left else tmp_path / "empty"
    for file in folder.glob("*/*"):
        if file.name not in left:
            file.unlink()
    monkeypatch.setattr(sys, "argv", ["measure_tuning.py", str(model), str(held)])
    with pytest.raises(measure.GrafError, match=message):
        measure.main()
