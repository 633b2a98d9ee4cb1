"""Two critics of one image: what each answers, and that another run's discriminator is one of them."""

import logging

from graf.checkpoints.architecture import config_keys_of, differences
from graf.checkpoints.checkpoint import save_checkpoint
from graf.data import build_dataset, resolve
from graf.data.resolve import with_feature_size
from graf.models.registry import build_discriminator
from graf.training.state import TrainState, initialise_from

import pytest
import torch

CPU = torch.device("cpu")
MIXED = "discriminator.architecture=mixed"


def same(network, other):
    one, two = network.state_dict(), other.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_each_critic_has_its_own_logits(smoke, photographs, labels):
    discriminator = build_discriminator(smoke(MIXED), n_classes=2)
    scores = discriminator(photographs, labels)
    assert torch.equal(scores.logits, discriminator.graf(photographs, labels).logits)
    assert torch.equal(scores.projected_logits, discriminator.projected(photographs, labels).logits)
    assert scores.logits.shape == (4,) and scores.projected_logits.shape == (4, 4 * 16)


def test_coarse_steps_have_no_heads(smoke, photographs, labels):
    discriminator = build_discriminator(smoke(MIXED, "discriminator.low_res_steps=1"), n_classes=2)
    assert discriminator(photographs[..., ::2, ::2], labels).projected_logits is None


def test_its_frozen_network_measures_nothing_and_sees_128_pixels(smoke):
    mixed, projected = smoke(MIXED), smoke("discriminator.architecture=projected")
    assert (mixed.discriminator.frozen_network, mixed.feature_size) == ("efficientnet-lite1", 128)
    assert (projected.discriminator.frozen_network, projected.feature_size) == ("efficientnet-lite0", 128)
    named = smoke(MIXED, "discriminator.feature_network=efficientnet-lite0", "discriminator.feature_size=64")
    assert (named.discriminator.frozen_network, named.feature_size) == ("efficientnet-lite0", 64)


@pytest.mark.parametrize("pixels", [64, 128])
@pytest.mark.parametrize(("size", "seen"), [("auto", 128), (64, 64)])
def test_patches_of_any_size_are_resized_for_its_frozen_network(smoke, photographs, labels, pixels, size, seen):
    patches = f"ray_sampler.rays_per_patch={pixels**2}", f"data.imsize={pixels}"
    config = smoke(MIXED, *patches, f"discriminator.feature_size={size}")
    features = build_discriminator(config, n_classes=2).projected.features(photographs)
    assert config.feature_size == seen and [x.shape[-1] for x in features] == [seen // 4, seen // 8, seen // 16, seen // 32]


@pytest.mark.parametrize(
    ("size", "trained", "found"),
    [("auto", None, 128), (64, None, 64), ("auto", "auto", 64), ("auto", 64, 64), ("auto", 128, 128), (128, "auto", 128)],
)
def test_a_run_goes_on_with_the_pixels_that_its_frozen_network_saw(smoke, size, trained, found):
    """In a checkpoint auto is of a time when it was 64."""
    asked = smoke(MIXED, f"discriminator.feature_size={size}")
    before = trained and smoke(MIXED, f"discriminator.feature_size={trained}")
    assert with_feature_size(asked, before).discriminator.feature_size == found


def test_the_pixels_that_its_frozen_network_sees_are_written_into_the_config(smoke):
    """So that auto in a checkpoint can only be of the time when it was 64."""
    config = smoke(MIXED)
    dataset = build_dataset(config)
    assert resolve(config, dataset).discriminator.feature_size == 128
    older = build_discriminator(resolve(config, dataset, trained=config), n_classes=2)
    assert older.projected.feature_size == 64
    assert list(differences({"discriminator": older.state_dict()}, resolve(config, trained=config))) == []


@pytest.mark.parametrize("critic", ["graf", "projected"])
def test_a_run_with_one_critic_starts_one_with_both(smoke, tmp_path, caplog, critic):
    settings = "discriminator.feature_network=efficientnet-lite1", "discriminator.feature_size=64"
    before = TrainState(smoke(f"discriminator.architecture={critic}", "training.seed=5", *settings), CPU, 2)
    save_checkpoint(tmp_path / "model.pt", before.checkpoint())
    state, fresh = (TrainState(smoke(MIXED, *settings), CPU, 2) for _ in range(2))
    with caplog.at_level(logging.WARNING, "graf"):
        initialise_from(tmp_path / "model.pt", state)
    other = {"graf": "projected", "projected": "graf"}[critic]
    assert same(getattr(state.discriminator, critic), before.discriminator)
    assert same(getattr(state.discriminator, other), getattr(fresh.discriminator, other))
    assert "one critic of a mixed one; the other starts from random weights" in caplog.text


def test_a_run_with_both_starts_another_with_all_weights(smoke, tmp_path, caplog):
    before, state = (TrainState(smoke(MIXED, f"training.seed={seed}"), CPU, 2) for seed in (5, 6))
    save_checkpoint(tmp_path / "model.pt", before.checkpoint())
    with caplog.at_level(logging.WARNING, "graf"):
        initialise_from(tmp_path / "model.pt", state)
    assert same(state.discriminator, before.discriminator) and caplog.text == ""


def test_checkpoints_tell_it_from_each_of_its_critics(smoke):
    settings = MIXED, "discriminator.condition=class", "data.alpha=rgba"
    found = config_keys_of({"discriminator": build_discriminator(smoke(*settings), n_classes=2).state_dict()})
    told = {"discriminator.architecture": ("mixed",), "discriminator.condition": ("class",), "data.alpha": ("rgba",)}
    assert {name: found[name].values for name in told} == told
    sources = {name: found[f"discriminator.{name}"].source for name in ("condition", "low_res_steps")}
    assert sources == {"condition": "graf.class_embedding.weight", "low_res_steps": "no coarse_entry"}


def test_a_new_run_from_heads_of_another_size_is_told_so(smoke, tmp_path, caplog):
    before = TrainState(smoke(MIXED, "discriminator.feature_size=64"), CPU, 2)
    save_checkpoint(tmp_path / "model.pt", before.checkpoint())
    with caplog.at_level(logging.INFO, "graf"):
        initialise_from(tmp_path / "model.pt", TrainState(smoke(MIXED), CPU, 2))
    assert "discriminator.feature_size is 128 in the config and 64 in the file" in caplog.text
