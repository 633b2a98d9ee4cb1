"""data.box: auto becomes numbers once: a checkpoint has them, and whoever continues or loads it takes them from there."""

import logging

import graf
import train
from graf.checkpoints.checkpoint import read_checkpoint, save_checkpoint
from graf.checkpoints.export import write_export
from graf.checkpoints.generator_loading import with_box_of
from graf.data import build_dataset
from graf.data.hull import with_hull_box
from graf.runtime.processes import ALONE
from graf.training.state import TrainState, restore

import pytest
import torch

CPU, BOX = torch.device("cpu"), (-0.9, -0.5, -0.4, 0.9, 0.5, 0.4)


@pytest.fixture
def saved(smoke, tmp_path):
    """The checkpoint of a run in a box."""
    path = tmp_path / "model.pt"
    save_checkpoint(path, TrainState(smoke(f"data.box={list(BOX)}"), CPU).checkpoint())
    return path


@pytest.fixture
def older(saved, tmp_path):
    """A checkpoint of before there was a box."""
    content = read_checkpoint(saved)
    del content["config"]["data"]["box"]
    torch.save(content, tmp_path / "older.pt")
    return tmp_path / "older.pt"


def test_a_run_finds_its_box_and_keeps_it_when_it_continues(smoke, saved, older, tmp_path):
    config = smoke("data.box=auto", "data.n_images=8", f"data.datadir=[{tmp_path}]")
    dataset = build_dataset(config)
    assert train.fitted(config, dataset, None, ALONE) == with_hull_box(config, dataset)
    assert train.fitted(config, dataset, saved, ALONE).data.box == BOX
    assert train.fitted(config, dataset, older, ALONE).data.box == "none"
    assert train.fitted(smoke("data.box=none"), dataset, saved, ALONE).data.box == "none"


@pytest.mark.parametrize("name, box", [("model.pt", BOX), ("older.pt", "none")])
def test_auto_is_the_box_of_the_checkpoint(smoke, older, tmp_path, name, box):
    path = tmp_path / name
    assert with_box_of(smoke("data.box=auto"), read_checkpoint(path), path).data.box == box
    assert graf.load_generator(path).config.data.box == box
    assert graf.load_generator(path, smoke("data.box=auto")).config.data.box == box
    write_export(tmp_path / "cars.safetensors", graf.load_generator(path), step=1)
    assert graf.load_generator(tmp_path / "cars.safetensors").config.data.box == box


def test_a_run_that_continues_says_nothing_of_its_box(smoke, saved, older, caplog):
    with caplog.at_level(logging.INFO, "graf"):
        restore(saved, TrainState(smoke(f"data.box={list(BOX)}"), CPU))
        restore(older, TrainState(smoke(), CPU))
    assert "box" not in caplog.text
    with caplog.at_level(logging.INFO, "graf"):
        restore(saved, TrainState(smoke(), CPU))
    assert f"data.box changed since the checkpoint: {list(BOX)} -> none" in caplog.text
