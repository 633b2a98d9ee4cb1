"""data.box and data.alpha: auto become values once: a checkpoint has them, and what continues or loads it takes them over."""

import logging
from pathlib import Path

import graf
from graf.checkpoints.checkpoint import read_checkpoint, save_checkpoint
from graf.checkpoints.export import write_export
from graf.checkpoints.generator_loading import as_trained
from graf.commands import train
from graf.config import config_to_dict
from graf.data import build_dataset, resolve
from graf.errors import ConfigError
from graf.training.state import TrainState, load_checkpoint

import pytest
import torch
import yaml

CPU, BOX = torch.device("cpu"), (-0.9, -0.5, -0.4, 0.9, 0.5, 0.4)


@pytest.fixture
def saved(smoke, tmp_path):
    """The checkpoint of a run in a box."""
    path = tmp_path / "model.pt"
    save_checkpoint(path, TrainState(smoke(f"data.box={list(BOX)}", "data.alpha=rgba"), CPU).checkpoint())
    return path


@pytest.fixture
def older(smoke, tmp_path):
    """A checkpoint of before there was a box, and before opacity was judged."""
    path, written = tmp_path / "older.pt", tmp_path / "today.pt"
    save_checkpoint(written, TrainState(smoke("data.alpha=ignore", "data.box=none"), CPU).checkpoint())
    content = read_checkpoint(written)
    del content["config"]["data"]["box"], content["config"]["data"]["alpha"]
    torch.save(content, path)
    return path


def test_a_run_finds_its_box_and_keeps_it_when_it_continues(smoke, saved, older, tmp_path):
    config = smoke("data.box=auto", "data.alpha=auto", "data.n_images=8", f"data.datadir=[{tmp_path}]")
    new = resolve(config, build_dataset(config)).data
    assert new.alpha == "rgba" and len(new.box) == 6 and new.box != BOX
    for file, known in ((saved, ("rgba", BOX)), (older, ("ignore", "none"))):
        trained = train.config_of(file, "toy_cars", named=False)
        data = resolve(config, dataset := build_dataset(config, trained=trained), trained).data
        assert (data.alpha, data.box) == (dataset.alpha, data.box) == known
        assert len(dataset.read(0)) == data.channels
    said = smoke("data.box=none", "data.alpha=ignore")
    assert resolve(said, trained=train.config_of(saved, "toy_cars", named=False)) is said


@pytest.mark.parametrize("name, box, alpha", [("model.pt", BOX, "rgba"), ("older.pt", "none", "ignore")])
def test_auto_is_what_the_checkpoint_was_trained_with(smoke, saved, older, tmp_path, name, box, alpha):
    path, asked = tmp_path / name, smoke("data.box=auto", "data.alpha=auto")
    write_export(tmp_path / "cars.safetensors", graf.load_generator(path), step=1)
    loaded = [graf.load_generator(file, config) for file in (path, tmp_path / "cars.safetensors") for config in (None, asked)]
    configs = [as_trained(asked, read_checkpoint(path), path), *(generator.config for generator in loaded)]
    assert [(config.data.box, config.data.alpha) for config in configs] == [(box, alpha)] * 5


def test_the_size_that_a_mixed_discriminator_sees_is_what_it_was_trained_with(smoke):
    mixed = ("data.box=none", "data.alpha=ignore", "discriminator.architecture=mixed", "discriminator.feature_size")
    trained, asked = (smoke(*mixed[:3], f"{mixed[3]}={size}") for size in (64, "auto"))
    content = TrainState(trained, CPU).checkpoint().content()
    assert as_trained(asked, content, Path("model.pt")).discriminator.feature_size == 64


def test_a_named_file_takes_the_cameras_of_our_run_where_it_has_the_defaults(smoke, tmp_path):
    decided = ("data.box=none", "data.alpha=ignore")
    (tmp_path / "named.yaml").write_text(yaml.safe_dump(config_to_dict(smoke(*decided))))
    content = TrainState(smoke(*decided, "data.far=9.5"), CPU).checkpoint().content()
    path = tmp_path / "model.pt"
    torch.save(content, path)
    assert graf.load_generator(path, tmp_path / "named.yaml").config.data.far == 9.5
    content["config"] = {"lr": 1}  # which the named one stands in for
    torch.save(content, path)
    assert graf.load_generator(path, tmp_path / "named.yaml").config.data.far == smoke().data.far
    with pytest.raises(ConfigError, match="unknown key 'lr'"):
        graf.load_generator(path)


def test_a_config_that_decides_all_needs_none_inside(smoke, saved):
    content, asked = read_checkpoint(saved), smoke("data.box=none", "data.alpha=ignore")
    content["config"]["training"]["batch_size"] = "many"  # which no later version would read
    assert as_trained(asked, content, saved) is asked


def test_auto_is_without_effect_where_nobody_decided_it(smoke, tmp_path):
    path, asked = tmp_path / "model.pt", smoke("data.box=auto", "data.alpha=auto")
    save_checkpoint(path, TrainState(asked, CPU).checkpoint())
    data = as_trained(asked, read_checkpoint(path), path).data
    assert (data.box, data.alpha, data.channels) == ("none", "ignore", 3)


def test_a_run_that_continues_says_nothing_of_its_box(smoke, saved, older, caplog):
    with caplog.at_level(logging.INFO, "graf"):
        load_checkpoint(saved, TrainState(smoke(f"data.box={list(BOX)}", "data.alpha=rgba"), CPU))
        load_checkpoint(older, TrainState(smoke("data.alpha=ignore", "data.box=none"), CPU))
    assert "box" not in caplog.text
    with caplog.at_level(logging.INFO, "graf"):
        load_checkpoint(saved, TrainState(smoke("data.alpha=rgba", "data.box=none"), CPU))
    assert f"data.box changed since the checkpoint: {list(BOX)} -> none" in caplog.text
