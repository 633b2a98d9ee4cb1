"""The patch discriminator: shapes, official names, and what it knows."""

import dataclasses

from graf.models.discriminators.convolutional import Discriminator, SpectralConv

import pytest
import torch


@pytest.fixture
def build(smoke):
    def build(*overrides, patch=16, n_classes=2, n_elevations=3):
        torch.manual_seed(0)
        config = smoke(*overrides)
        sampler = dataclasses.replace(config.ray_sampler, rays_per_patch=(patch // config.rendered_scale) ** 2)
        return Discriminator(dataclasses.replace(config, ray_sampler=sampler), n_classes, n_elevations)

    return build


@pytest.mark.parametrize("patch", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("norm", ["none", "instance"])
def test_one_logit_an_image_at_every_patch_size(build, labels, patch, norm):
    discriminator = build(f"discriminator.norm={norm}", patch=patch)
    images = torch.randn(4, 3, patch, patch)
    logits = discriminator(images, labels).logits
    assert logits.shape == (4,)
    assert logits.std() > 0
    alone = torch.cat([discriminator(images[i : i + 1], labels[i : i + 1]).logits for i in range(4)])
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-4)  # no image knows of another


@pytest.mark.parametrize(
    ("patch", "widths"),
    [
        (128, {0: (3, 4), 2: (4, 8), 5: (8, 16), 8: (16, 32), 11: (32, 64), 14: (64, 1)}),
        (64, {0: (3, 8), 2: (8, 16), 5: (16, 32), 8: (32, 64), 11: (64, 1)}),
        (32, {0: (3, 16), 3: (16, 32), 6: (32, 64), 9: (64, 1)}),
    ],
)
def test_official_names_and_shapes(build, patch, widths):
    options = ("discriminator.norm=instance", "discriminator.spectral_norm=true", "discriminator.condition=none")
    shapes = {name: tuple(value.shape) for name, value in build(*options, patch=patch).state_dict().items()}
    expected = {}
    for place, (width_in, width) in widths.items():
        expected[f"main.{place}.weight_orig"] = (width, width_in, 4, 4)
        expected[f"main.{place}.weight_u"] = (width,)
        expected[f"main.{place}.weight_v"] = (width_in * 16,)
    assert shapes == expected


def test_spectral_normalisation_bounds_every_layer(build):
    discriminator = build("discriminator.spectral_norm=true", "discriminator.condition=none")
    discriminator.update_spectral_norms(30)
    discriminator(torch.randn(1, 3, 16, 16))
    for layer in discriminator.main:
        if hasattr(layer, "weight_orig"):
            assert torch.linalg.matrix_norm(layer.divided_weight().flatten(1), 2).item() == pytest.approx(1, abs=0.02)


def test_its_norms_follow_the_weights_as_those_of_torch_do():
    torch.manual_seed(0)
    ours = SpectralConv(8, 16, 4, stride=2, padding=1)
    theirs = torch.nn.utils.spectral_norm(torch.nn.Conv2d(8, 16, 4, stride=2, padding=1))
    theirs.load_state_dict(ours.state_dict())
    assert torch.linalg.matrix_norm(ours.divided_weight().flatten(1), 2).item() == pytest.approx(1, abs=0.15)  # from the start
    for _ in range(3):
        ours.follow_weight()
        theirs(torch.zeros(1, 8, 16, 16))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        torch.testing.assert_close(ours.divided_weight(), theirs.weight)


@pytest.mark.parametrize(("side", "padding"), [(32, 1), (4, 1), (4, 0)])
def test_a_spectral_convolution_is_that_with_the_divided_weight_whatever_it_divides(side, padding):
    """Images, where they have fewer numbers than the weight. So are the gradients, and that of a penalty."""
    torch.manual_seed(0)
    conv = SpectralConv(8, 16, 4, stride=2, padding=padding).double()
    images = torch.randn(2, 8, side, side, dtype=torch.float64, requires_grad=True)
    assert (images.numel() < conv.weight_orig.numel()) == (side == 4)
    weight = conv.weight_orig / (conv.weight_u @ conv.weight_orig.flatten(1) @ conv.weight_v)
    maps, expected = conv(images), torch.nn.functional.conv2d(images, weight, conv.bias, 2, padding)
    torch.testing.assert_close(maps, expected)

    def gradients(maps):
        (gradient,) = torch.autograd.grad(maps.square().sum(), images, create_graph=True)
        return gradient, *torch.autograd.grad(gradient.square().sum() + maps.sum(), (images, conv.weight_orig, conv.bias))

    for gradient, right in zip(gradients(maps), gradients(expected), strict=True):
        torch.testing.assert_close(gradient, right)


def changes(discriminator, images, labels, **other):
    first = discriminator(images, labels).logits
    second = discriminator(images, dataclasses.replace(labels, **other)).logits
    return not torch.equal(first, second)


def test_a_condition_changes_the_logit_and_none_does_not(build, labels, photographs):
    turned = labels.pose_c2w.roll(1, dims=0)
    for condition, knows_class, knows_pose in (("none", False, False), ("class", True, False), ("class_and_pose", True, True)):
        discriminator = build(f"discriminator.condition={condition}")
        assert changes(discriminator, photographs, labels, class_index=1 - labels.class_index) == knows_class
        assert changes(discriminator, photographs, labels, pose_c2w=turned) == knows_pose
        assert not changes(discriminator, photographs, labels, elevation_index=labels.elevation_index.roll(1))
        assert not changes(discriminator, photographs, labels)


def test_without_a_condition_no_labels_are_needed(build, photographs):
    assert build("discriminator.condition=none")(photographs).logits.shape == (4,)


def test_the_projection_is_the_inner_product_over_its_root_width(build, labels, photographs):
    conditioned = build("discriminator.condition=class")
    plain = build("discriminator.condition=none")
    plain.load_state_dict({k: v for k, v in conditioned.state_dict().items() if k.startswith("main")})
    features = conditioned.main[:-1](photographs).flatten(1)
    embedding = conditioned.class_embedding.weight[labels.class_index]
    inner = (conditioned.projection(features) * embedding).sum(-1) / 128**0.5
    torch.testing.assert_close(conditioned(photographs, labels).logits, plain(photographs).logits + inner)


def test_the_camera_counts_by_direction_not_by_distance(build, labels, photographs):
    further = labels.pose_c2w.clone()
    further[..., 3] *= 2
    discriminator = build("discriminator.condition=class_and_pose")
    near_logits = discriminator(photographs, labels).logits
    far_logits = discriminator(photographs, dataclasses.replace(labels, pose_c2w=further)).logits
    torch.testing.assert_close(near_logits, far_logits)


def test_label_heads_have_one_logit_a_class_and_a_bin(build, labels, photographs):
    scores = build("discriminator.label_loss=MCE", n_classes=2, n_elevations=3)(photographs, labels)
    assert scores.class_logits.shape == (4, 2)
    assert scores.elevation_logits.shape == (4, 3)
    assert scores.projected_logits is None
    assert [maps.shape[-1] for maps in scores.maps] == [8, 4]
    without = build()(photographs, labels)
    assert without.class_logits is None
    assert without.elevation_logits is None


def test_spectral_norms_follow_the_weights_when_told_and_scoring_leaves_them_alone(build, photographs):
    discriminator = build("discriminator.spectral_norm=true", "discriminator.condition=none")
    layer = discriminator.main[0]

    def norm():
        discriminator(photographs)
        return torch.linalg.matrix_norm(layer.divided_weight().flatten(1), 2).item()

    assert norm() == pytest.approx(1, abs=0.1)
    with torch.no_grad():
        layer.weight_orig.copy_(torch.randn(layer.weight_orig.shape, generator=torch.Generator().manual_seed(5)))
    beside = norm()
    assert abs(beside - 1) > 0.2
    assert norm() == beside
    discriminator.update_spectral_norms(30)
    assert norm() == pytest.approx(1, abs=0.02)


def test_the_input_is_not_overwritten(build, labels, photographs):
    before = photographs.clone()
    build()(photographs, labels)
    assert torch.equal(photographs, before)


@pytest.mark.parametrize("patch", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("norm", ["none", "instance"])
def test_coarse_patches_enter_at_the_third_layer(build, labels, patch, norm):
    whole = build(f"discriminator.norm={norm}", patch=patch)
    both = build(f"discriminator.norm={norm}", "discriminator.low_res_steps=5", patch=patch)
    assert {name for name, _ in both.named_parameters()} - {name for name, _ in whole.named_parameters()} == {
        f"coarse_entry.0.{kind}" for kind in (("weight", "bias") if norm == "none" else ("weight",))
    }
    logits = both(torch.randn(4, 3, patch // 2, patch // 2), labels).logits
    assert logits.shape == (4,) and logits.std() > 0
    logits.sum().backward()
    assert both.coarse_entry[0].weight.grad.abs().sum() > 0 and both.main[0].weight.grad is None
    assert both.main[both.shared_from].weight.grad.abs().sum() > 0
    both.zero_grad(set_to_none=True)
    both(torch.randn(4, 3, patch, patch), labels).logits.sum().backward()
    assert both.coarse_entry[0].weight.grad is None and both.main[0].weight.grad.abs().sum() > 0
