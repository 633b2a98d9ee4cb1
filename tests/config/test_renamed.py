"""Keys of older names are read as today's, and the log says so."""

import logging

from graf.checkpoints.conditions import report_config_changes
from graf.checkpoints.generator_loading import stored_config
from graf.config import Config, PoseConfig, config_rows, config_to_dict, flat, load_config, merge, older
from graf.config.older import OLDER_NAMES
from graf.config.reading import nested
from graf.errors import ConfigError
from graf.foreign.checkpoints import ForeignCheckpoint

import pytest
import yaml

KEYS = {key for key, _, _ in config_rows()}
OLD = {
    "nerf.N_samples": 9,
    "nerf.N_samples_render": 11,
    "nerf.N_importance": 5,
    "ray_sampler.N_samples": 256,
    "ccsr.width": 9,
    "ccsr.depth": 2,
    "ccsr.width_upsampled": 7,
    "ccsr.num_rrdb_blocks": 3,
    "ccsr.nf": 12,
    "ccsr.gc": 6,
    "ccsr.pretrained_path": "x4.pth",
    "ccsr.freeze_backbone": True,
    "ccsr.rate": 0.25,
    "discriminator.coarse_steps": 77,
    "training.save_every_steps": 123,
    "memory.max_metric_rows": 321,
}
BACKBONE = {"ccsr": {"backbone": "rrdb"}, "discriminator": {"blur_steps": 0}}


def as_an_older_run(config):
    """The config as a run wrote it before its keys were renamed."""
    raw = config_to_dict(config)
    values = {old: flat(raw)[new] for old, new in OLDER_NAMES.items()}
    for new in OLDER_NAMES.values():
        section = raw
        for part in new.split(".")[:-1]:
            section = section[part]
        del section[new.split(".")[-1]]
    del raw["ccsr"]["light"], raw["ccsr"]["rrdb"], raw["reporting"]
    for old, value in values.items():
        raw = merge(raw, nested(old, value), "older")
    return raw


@pytest.fixture(autouse=True)
def told(caplog, monkeypatch):
    monkeypatch.setattr(older, "_logged", set())
    caplog.set_level(logging.INFO, "graf")
    return caplog


def test_each_older_name_is_no_key_and_its_new_one_is():
    assert set(OLD) == set(OLDER_NAMES)
    assert not set(OLDER_NAMES) & KEYS
    assert set(OLDER_NAMES.values()) <= KEYS


def test_a_file_of_older_names_says_the_same_and_the_log_names_the_new_ones(tmp_path, told):
    raw = BACKBONE
    for old, value in OLD.items():
        raw = merge(raw, nested(old, value), "older")
    path = tmp_path / "older.yaml"
    path.write_text(yaml.safe_dump(raw))
    values = flat(config_to_dict(load_config(path)))
    assert {old: values[new] for old, new in OLDER_NAMES.items()} == OLD
    (message,) = told.messages
    assert message.startswith(f"{path}: ")
    assert all(f"{old} is now {new}" in message for old, new in OLDER_NAMES.items())
    assert len(message.splitlines()) == 1 + len(OLDER_NAMES)
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(raw))
    load_config(tmp_path / "again.yaml")
    assert told.messages == [message]


@pytest.mark.parametrize(("old", "value"), OLD.items())
def test_older_names_in_overrides(told, old, value):
    others = ("ccsr.backbone=rrdb", "discriminator.blur_steps=0", "ccsr.rrdb.pretrained_path=x2.pth")
    others = others if "freeze" in old else others[:2]
    values = flat(config_to_dict(load_config(None, [*others, f"{old}={value}"])))
    assert values[OLDER_NAMES[old]] == value
    assert f"--set {old}={value}: {old} is now {OLDER_NAMES[old]}" in told.messages


def test_text_of_an_older_name_stays_text():
    config = load_config(None, ["ccsr.backbone=rrdb", "ccsr.pretrained_path=2024"])
    assert config.ccsr.rrdb.pretrained_path == "2024"


def test_a_fault_of_an_older_name_is_told_by_the_new_one():
    with pytest.raises(ConfigError, match="nerf.samples_per_ray: must be at least 2, found 1"):
        load_config(None, ["nerf.N_samples=1"])


def test_a_key_under_both_names_is_an_error(tmp_path):
    (tmp_path / "both.yaml").write_text("nerf: {N_samples: 8, samples_per_ray: 9}")
    with pytest.raises(ConfigError, match="both.yaml: nerf.N_samples is now nerf.samples_per_ray, which is there too"):
        load_config(tmp_path / "both.yaml")


@pytest.mark.parametrize("text", ["ccsr: {light: 3, width: 8}", "reporting: [1]\nmemory: {max_metric_rows: 200}"])
def test_a_new_section_that_is_none_is_an_error(tmp_path, text):
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError, match="is no section with keys of its own"):
        load_config(tmp_path / "wrong.yaml")


def test_the_config_of_an_older_run_and_of_its_checkpoint_are_todays(tmp_path, smoke):
    config = smoke("nerf.samples_per_ray=9", "training.save_every=7", "ccsr.light.width=9")
    raw = as_an_older_run(config)
    assert not set(OLDER_NAMES.values()) & set(flat(raw))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    assert load_config(tmp_path / "config.yaml") == config
    assert stored_config(ForeignCheckpoint("ours", 0, {}, raw), "model.pt") == config


def test_an_older_checkpoint_had_no_critic_beside_the_convolutions_and_no_encoder():
    raw = config_to_dict(load_config("convolutional"))
    del raw["discriminator"]["architecture"], raw["encoder"]
    found = stored_config(ForeignCheckpoint("ours", 0, {}, raw), "model.pt")
    assert found.discriminator.architecture == "graf" and not found.encodes_images


def test_a_run_that_goes_on_tells_no_change_for_a_new_name(told):
    report_config_changes(as_an_older_run(Config()), Config())
    assert told.messages == []
    report_config_changes(as_an_older_run(Config()), load_config(None, ["ccsr.light.width=9"]))
    assert told.messages == ["ccsr.light.width changed since the checkpoint: 48 -> 9"]
    saved = config_to_dict(load_config("convolutional", ["discriminator.projected_weight=2"]))
    report_config_changes(saved, load_config("convolutional", ["ccsr.mode=none", "ccsr.light.width=8"]))
    assert told.messages[1:] == ["ccsr.mode changed since the checkpoint: refine -> none"]  # nothing reads the others
    report_config_changes(config_to_dict(PoseConfig()), load_config(None, ["model.d_model=8"], PoseConfig))
    assert told.messages[2].startswith("model.d_model changed since the checkpoint: ")


def test_save_every_of_the_official_graf_is_another_key(tmp_path, told):
    """There it counted something else and is left out; ours is known by either name."""
    (tmp_path / "graf.yaml").write_text("training: {chunk: 99, save_every: 900}")
    (tmp_path / "mine.yaml").write_text("inherit_from: graf.yaml\ntraining: {save_every_steps: 5}")
    assert load_config(tmp_path / "graf.yaml").training.save_every == load_config("graf").training.save_every == 1000
    assert load_config(tmp_path / "mine.yaml").training.save_every == 5
    assert "left out: training.save_every" in told.text
