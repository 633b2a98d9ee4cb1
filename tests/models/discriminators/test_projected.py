"""The projected discriminator: what its heads judge and know, and that the network before them stays as it is."""

import copy
import dataclasses

from graf.checkpoints.architecture import config_keys_of
from graf.data import build_dataset
from graf.models.discriminators.convolutional import SpectralConv
from graf.models.discriminators.projected import STAGES, frozen_network
from graf.models.perception import (
    EFFICIENTNET,
    EFFICIENTNET_1,
    SIZE,
    feature_network,
    outputs_of,
    with_strides_last,
    without_norms,
)
from graf.models.registry import build_discriminator

import pytest
import torch

CPU = torch.device("cpu")
NETWORKS = EFFICIENTNET, EFFICIENTNET_1


@pytest.fixture
def build(smoke):
    def build(*overrides, seed=0):
        torch.manual_seed(seed)
        return build_discriminator(smoke("discriminator.architecture=projected", *overrides), n_classes=2)

    return build


@pytest.mark.parametrize("side", [16, 32])
def test_each_head_has_sixteen_logits_of_an_image_of_any_side(build, labels, side):
    discriminator, images, two = build(), torch.rand(2, 3, side, side) * 2 - 1, labels[:2]
    logits = discriminator(images, two).logits
    assert logits.shape == (2, 4 * 16) and logits.dtype == torch.float32 and logits.std() > 0
    alone = torch.cat([discriminator(images[i : i + 1], two[i : i + 1]).logits for i in range(2)])
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)  # no image knows of another


def test_images_of_half_the_side_have_features_and_positions_of_half_the_side(build, photographs, labels):
    discriminator = build("discriminator.feature_size=64")
    assert [x.shape[-1] for x in discriminator.features(photographs)] == [16, 8, 4, 2]
    assert discriminator(photographs, labels).logits.shape == (4, 3 * 16 + 4)


@pytest.mark.parametrize(("condition", "knows"), [("none", ""), ("class", "class"), ("class_and_pose", "class, pose")])
def test_it_knows_its_condition_and_each_of_its_parameters_has_a_gradient(build, labels, photographs, condition, knows):
    discriminator = build(f"discriminator.condition={condition}")
    given = labels if knows else None
    logits = discriminator(photographs, given).logits
    other_class = dataclasses.replace(labels, class_index=1 - labels.class_index)
    turned = dataclasses.replace(labels, pose_c2w=labels.pose_c2w.roll(1, dims=0))
    assert torch.equal(discriminator(photographs, other_class).logits, logits) != ("class" in knows)
    assert torch.equal(discriminator(photographs, turned).logits, logits) != ("pose" in knows)
    logits.square().mean().backward()
    assert [name for name, p in discriminator.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_a_label_counts_by_its_direction_and_not_by_the_length_of_its_embedding(build, labels, photographs):
    discriminator = build("discriminator.condition=class")
    logits = discriminator(photographs, labels).logits
    with torch.no_grad():
        discriminator.class_embedding.weight *= 7
    torch.testing.assert_close(discriminator(photographs, labels).logits, logits, atol=1e-5, rtol=1e-4)


def test_the_weights_of_heads_are_divided_by_their_norms_from_the_start(build):
    for name, layer in build("discriminator.condition=class").named_modules():
        if isinstance(layer, SpectralConv):
            norm = torch.linalg.matrix_norm(layer.divided_weight().flatten(1), 2)
            assert norm.item() == pytest.approx(1, abs=0.1), name


def test_gradients_reach_colours_and_opacity(build, labels, cut_outs):
    discriminator, images = build("data.alpha=rgba"), cut_outs[:2].requires_grad_()
    discriminator(images, labels[:2]).logits.mean().backward()
    assert all(channel.any() for channel in images.grad.unbind(1))


def test_the_network_before_the_heads_never_learns_and_is_in_no_checkpoint(build, photographs, labels):
    discriminator = build()
    frozen = frozen_network(CPU)
    before = copy.deepcopy(frozen.state_dict())
    discriminator.requires_grad_(False)
    discriminator.requires_grad_(True).train()
    discriminator(photographs[:1], labels[:1]).logits.mean().backward()
    assert not any(p.requires_grad for p in frozen.parameters()) and not frozen.training
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())
    assert {name.split(".")[0] for name in discriminator.state_dict()} == {"heads", "class_embedding", "pose_embedding"}


@pytest.mark.parametrize("name", NETWORKS)
def test_its_normalisations_and_even_margins_are_in_its_convolutions(photographs, name):
    blocks, networks = [stage.block for stage in STAGES[name]], (frozen_network(CPU, name), feature_network(name))
    with torch.no_grad():
        found, expected = (outputs_of(network, photographs[:1], blocks, SIZE) for network in networks)
    for stage, x, y in zip(STAGES[name], found, expected, strict=True):
        assert x.shape == (1, stage.channels, stage.side, stage.side)
        torch.testing.assert_close(x, y, atol=1e-3, rtol=1e-3)
    padded = [module for module in networks[0].modules() if isinstance(module, torch.nn.ZeroPad2d)]
    assert all(left < right and top < bottom for left, right, top, bottom in (module.padding for module in padded))


def test_the_frozen_network_sees_averages_of_pixels_in_the_range_that_it_was_trained_in():
    """Levels of 0 and 255 as -127 / 128 and 1; stripes that are narrower than its pixels as their mean."""
    network, seen = feature_network(), []
    network._conv_stem.register_forward_pre_hook(lambda conv, given: seen.append(given[0]))
    stripes = torch.tensor([-1.0, 1.0]).repeat(48).expand(96, 96)
    outputs_of(network, torch.stack([-torch.ones(96, 96), torch.ones(96, 96), stripes])[:, None].expand(-1, 3, -1, -1), [0], 32)
    black, white, grey = seen[0].unbind(0)
    torch.testing.assert_close(black, torch.full((3, 32, 32), -127 / 128))
    torch.testing.assert_close(white, torch.ones(3, 32, 32))
    assert grey[..., 2:-2].abs().max() < 0.1


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("size", [SIZE, 60])
def test_its_strides_come_last_where_that_takes_less_time(photographs, name, size):
    blocks, images = [stage.block for stage in STAGES[name]], photographs[:1]
    network = without_norms(feature_network(name))
    expected = outputs_of(network, images, blocks, size)
    for x, y in zip(outputs_of(with_strides_last(network), images, blocks, size), expected, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)
    strides = {
        tuple(module.stride) for module in frozen_network(CPU, name, torch.bfloat16)._blocks.modules() if is_depthwise(module)
    }
    assert strides == {(1, 1)}


def is_depthwise(module):
    return isinstance(module, torch.nn.Conv2d) and module.groups > 1


def test_in_mixed_precision_its_weights_are_converted_once(build, photographs, monkeypatch):
    formats, discriminator = [], build()

    def network(*arguments):
        formats.append({p.dtype for p in frozen_network(*arguments).parameters()})
        return frozen_network(*arguments)

    monkeypatch.setattr("graf.models.discriminators.projected.frozen_network", network)
    with torch.autocast("cpu", torch.bfloat16):
        found = discriminator.features(photographs)
    expected = discriminator.features(photographs)
    assert formats == [{torch.bfloat16}, {torch.float32}]
    for x, y in zip(found, expected, strict=True):
        assert (x.float() - y).std() < 0.05 * y.std()


@pytest.mark.parametrize("name", NETWORKS)
def test_of_toy_cars_features_are_about_standardised_before_and_after_they_are_mixed(build, smoke, tmp_path, name):
    cars = build_dataset(smoke(f"data.datadir={tmp_path}", "data.n_images=8", "data.imsize=64"))
    images = torch.stack([cars[i]["image"] for i in range(8)])[:, :3]
    with torch.no_grad():
        outputs = outputs_of(frozen_network(CPU, name), images, [stage.block for stage in STAGES[name]], SIZE)
        mixed = build(f"discriminator.feature_network={name}").features(images)
    for stage, x, y in zip(STAGES[name], outputs, mixed, strict=True):
        assert x.std().item() == pytest.approx(stage.deviation, rel=0.1)
        assert y.std().item() == pytest.approx(1, rel=0.3)


def test_opacity_comes_beside_the_features_at_twice_their_resolution(build):
    images = torch.zeros(1, 4, 2 * STAGES[EFFICIENTNET][0].side, 2 * STAGES[EFFICIENTNET][0].side)
    images[0, 3, 0, :4] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    features = build("data.alpha=rgba").features(images)
    assert [x.shape[1] for x in features] == [stage.mixed + 4 for stage in STAGES[EFFICIENTNET]]
    torch.testing.assert_close(features[0][0, -4:, 0, 0], torch.tensor([0.1, 0.2, 0.0, 0.0]))
    torch.testing.assert_close(features[1][0, -4:, 0, 0], torch.tensor([0.15, 0.35, 0.0, 0.0]) / 2)  # means of 2 x 2
    assert [x.shape[1] for x in build().features(images[:, :3])] == [stage.mixed for stage in STAGES[EFFICIENTNET]]


def test_the_mixing_is_the_same_in_all_runs_and_is_saved(build, labels, photographs):
    one, other = build(seed=0), build(seed=1)
    assert all(torch.equal(a.mixing, b.mixing) for a, b in zip(one.heads, other.heads, strict=True))
    for head in one.heads:
        head.mixing.mul_(2)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(photographs[:1], labels[:1]).logits, one(photographs[:1], labels[:1]).logits)


def test_the_frozen_network_is_loaded_once_and_draws_nothing(build, photographs, labels):
    frozen_network.cache_clear()
    discriminator, before = build(), torch.get_rng_state()
    with torch.inference_mode():  # whose tensors could not be learned through
        discriminator(photographs[:1], labels[:1])
    assert torch.equal(torch.get_rng_state(), before)
    images = photographs[:1].requires_grad_()
    discriminator(images, labels[:1]).logits.mean().backward()
    assert images.grad.any() and frozen_network.cache_info().misses == 1


def test_shapes_are_had_without_the_frozen_network_and_without_iterating_for_norms(build, monkeypatch):
    monkeypatch.setattr(SpectralConv, "follow_weight", lambda _: pytest.fail("iterates"))
    before = frozen_network.cache_info()
    with torch.device("meta"):
        discriminator = build("data.alpha=rgba")
    assert all(p.is_meta for p in discriminator.parameters())
    assert frozen_network.cache_info() == before


def test_checkpoints_tell_it_from_the_other(build, smoke):
    for alpha in ("ignore", "rgba"):
        weights = build("discriminator.condition=class", f"data.alpha={alpha}").state_dict()
        found = config_keys_of({"discriminator": weights})
        told = {"discriminator.architecture": "projected", "discriminator.condition": "class", "data.alpha": alpha}
        told["discriminator.feature_size"] = 128
        assert {name: finding.values for name, finding in found.items()} == {name: (value,) for name, value in told.items()}
    weights = build_discriminator(smoke()).state_dict()
    assert config_keys_of({"discriminator": weights})["discriminator.architecture"].values == ("graf",)
