"""What the discriminator is shown, losses at logits worked out by hand."""

import math

from graf.config import DiscriminatorConfig
from graf.models.discriminators.convolutional import Scores
from graf.models.perception import feature_distance, feature_network, features_of
from graf.models.projection import ConsistencyEnforcingModule
from graf.training.losses import (
    augmented,
    blurred,
    consistency_loss,
    discriminator_input,
    discriminator_loss,
    faded_sigma,
    generator_loss,
    label_loss,
)
from graf.training.state import TrainState

import pytest
import torch
from halves import discriminator_step
from torch import nn
from torch.nn import functional as F

LN3 = math.log(3)


@pytest.mark.parametrize(
    ("gan_type", "expected"),
    [
        # sigmoid(ln 3) = 3 / 4: real at ln 3 costs -ln(3/4), at 0 ln 2; fake at 0 ln 2, at -ln 3 -ln(3/4)
        ("standard", (2 * math.log(4 / 3) + 2 * math.log(2)) / 2),
        ("wgan", (0 - LN3 + -LN3 - 0) / 2),
        ("hinge", (0 + 1 + 1 + 0) / 2),
        ("relativistic", math.log(4 / 3)),  # both pairs: ln(1 + exp(-ln 3))
    ],
)
def test_discriminator_losses(gan_type, expected):
    loss = discriminator_loss(torch.tensor([LN3, 0.0]), torch.tensor([0.0, -LN3]), gan_type)
    assert loss.item() == pytest.approx(expected)


def test_hinge_counts_what_is_within_the_margin():
    loss = discriminator_loss(torch.tensor([0.5, -1.0]), torch.tensor([0.5, -3.0]), "hinge")
    assert loss.item() == pytest.approx((0.5 + 2 + 1.5 + 0) / 2)


@pytest.mark.parametrize(("gan_type", "expected"), [("standard", math.log(4 / 3)), ("wgan", -LN3), ("hinge", -LN3)])
def test_generator_losses(gan_type, expected):
    assert generator_loss(torch.tensor([LN3, LN3]), gan_type).item() == pytest.approx(expected)


def test_the_relativistic_loss_compares_each_fake_with_the_photograph_of_its_row():
    """Equal logits cost ln 2 on either side, whatever they are; 3 : 1 costs ln 4/3 where it is right, and ln 4 where wrong."""
    equal = torch.tensor([-2.0, 0.0, 5.0])
    assert discriminator_loss(equal, equal, "relativistic").item() == pytest.approx(math.log(2))
    assert generator_loss(equal, "relativistic", equal).item() == pytest.approx(math.log(2))
    real, fake = torch.tensor([LN3, 7.0]), torch.tensor([0.0, 7 + LN3])
    mixed = (math.log(4 / 3) + math.log(4)) / 2
    assert discriminator_loss(real, fake, "relativistic").item() == pytest.approx(mixed)
    assert generator_loss(fake, "relativistic", real).item() == pytest.approx(mixed)
    assert generator_loss(real, "relativistic", real - LN3).item() == pytest.approx(math.log(4 / 3))
    with_coarse = torch.cat([fake, real])  # the coarse rendering's are behind the fine one's, in the same rows
    assert discriminator_loss(real, with_coarse, "relativistic").item() == pytest.approx((mixed + math.log(2)) / 2)


@pytest.mark.parametrize("gan_type", ["standard", "wgan", "hinge", "relativistic"])
def test_each_player_wants_the_opposite(gan_type):
    fake = torch.zeros(3, requires_grad=True)
    (up,) = torch.autograd.grad(generator_loss(fake, gan_type, torch.zeros(3)), fake)
    (down,) = torch.autograd.grad(discriminator_loss(torch.zeros(3), fake, gan_type), fake)
    assert (up < 0).all()
    assert (down > 0).all()


def test_the_standard_loss_does_not_saturate():
    fake = torch.tensor([-200.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(generator_loss(fake, "standard"), fake)
    assert gradient.item() == pytest.approx(-1)


def test_label_loss_is_both_cross_entropies(labels):
    """Even logits cost ln of how many there are; a logit of ln 3 against one 0 costs ln 4/3, against two ln 5/3."""
    even = Scores(torch.zeros(4), torch.zeros(4, 2), torch.zeros(4, 3))
    assert label_loss(even, labels).item() == pytest.approx(math.log(2) + math.log(3))
    right = Scores(
        torch.zeros(4),
        LN3 * nn.functional.one_hot(labels.class_index, 2),
        LN3 * nn.functional.one_hot(labels.elevation_index, 3),
    )
    assert label_loss(right, labels).item() == pytest.approx(math.log(4 / 3) + math.log(5 / 3))


def test_the_perceptual_term_adds_its_share_and_reaches_both_sides():
    network = feature_network()
    rng = torch.Generator().manual_seed(0)
    rendered, restored = (torch.rand(2, 3, 16, 16, generator=rng).mul(2).sub(1).requires_grad_() for _ in range(2))
    pixels = consistency_loss(rendered, restored, "none")
    seen = consistency_loss(rendered, restored, "none", network, 0.5)
    distance = feature_distance(features_of(network, restored), features_of(network, rendered))
    assert torch.all((distance > 0) & (distance < 4))
    torch.testing.assert_close(seen, pixels + 0.5 * distance.mean())
    (seen - pixels).backward()
    assert rendered.grad.abs().sum() > 0
    assert restored.grad.abs().sum() > 0
    assert all(p.grad is None for p in network.parameters())


def test_equal_images_look_equal():
    network, image = feature_network(), torch.linspace(-1, 1, 3 * 256).view(1, 3, 16, 16)
    same = feature_distance(features_of(network, image), features_of(network, image.clone()))
    assert same.item() == pytest.approx(0, abs=1e-10)


def test_photographs_are_judged_beside_what_the_same_downsampling_makes_of_them(refine, photographs, labels):
    """Through another one the discriminator would tell them from fakes by the resampling alone."""
    config = refine("discriminator.dual=true", "discriminator.blur_steps=0", "ccsr.kernel=gaussian")
    state, shown = TrainState(config, torch.device("cpu"), 2, 3), []
    state.discriminator.register_forward_pre_hook(lambda network, given: shown.append(given[0].detach().clone()))
    discriminator_step(state, photographs, labels, labels)
    real, fake = shown[0].split(len(photographs))
    low = ConsistencyEnforcingModule("gaussian", 2).downsample(photographs)
    torch.testing.assert_close(real, torch.cat([photographs, F.interpolate(low, 16, mode="bilinear")], dim=1))
    downsampled = F.interpolate(ConsistencyEnforcingModule("gaussian", 2).downsample(fake[:, :3]), 16, mode="bilinear")
    torch.testing.assert_close(fake[:, 3:], downsampled, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", ["box", "bicubic"])
@pytest.mark.parametrize("blur", [2.0, 0.0])
def test_opacity_of_photographs_is_judged_as_the_rendered_one_is(refine, kernel, blur):
    """A photograph's opacity of which H makes what the field rendered looks the same, blurred or not."""
    config, projection = refine().discriminator, ConsistencyEnforcingModule(kernel, 2)
    rendered = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(5)) * 2 - 1
    photographed = projection(torch.zeros(2, 1, 16, 16), rendered)
    images = torch.zeros(2, 3, 16, 16)
    seen = [discriminator_input(images, None, alpha, config, projection, blur) for alpha in (rendered, photographed)]
    assert seen[0].shape == (2, 4, 16, 16)
    torch.testing.assert_close(seen[1], seen[0], atol=1e-5, rtol=0)
    enlarged = F.interpolate(rendered, 16, mode="bilinear")
    torch.testing.assert_close(seen[0][:, 3:], blurred(enlarged, blur), atol=1e-5, rtol=0)
    assert torch.equal(seen[0][:, 3:], enlarged) == (blur == 0)


def test_opacity_is_seen_as_it_is_where_images_are_not_refined(smoke):
    alpha = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(5)) * 2 - 1
    images, config = torch.zeros(2, 3, 16, 16), smoke().discriminator
    assert torch.equal(discriminator_input(images, None, alpha, config, None), torch.cat([images, alpha], dim=1))


def test_the_blur_fades_to_nothing():
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 32, 32, generator=rng)
    config = DiscriminatorConfig(blur_sigma=2.0, blur_steps=100)
    spread = [blurred(images, faded_sigma(config, step)).std().item() for step in (0, 25, 50, 75, 89)]
    assert spread == sorted(spread)
    assert spread[0] < 0.3 * images.std()
    assert [faded_sigma(config, step) for step in (95, 100, 10_000)] == [0, 0, 0]
    assert faded_sigma(DiscriminatorConfig(blur_sigma=2.0, blur_steps=0), 0) == 0
    assert faded_sigma(config, 40, stride=2) == pytest.approx(faded_sigma(config, 40) / 2)
    assert faded_sigma(config, 85, stride=2) == 0 < faded_sigma(config, 85)  # 0.15 and 0.3 pixels
    assert blurred(images, 0.0) is images


def test_the_blur_is_a_gaussian_of_that_width():
    impulse = torch.zeros(1, 3, 33, 33)
    impulse[..., 16, 16] = 1
    found = blurred(impulse, 1.5)[0, 0]
    x = torch.arange(33.0) - 16
    assert found.sum().item() == pytest.approx(1, abs=1e-5)
    assert (found.sum(0) * x.square()).sum().sqrt().item() == pytest.approx(1.5, abs=0.02)


def test_augmented_images_are_shifted_and_covered_as_places_say():
    images = 1 + torch.arange(64.0).view(1, 1, 8, 8).expand(2, 3, 8, 8)
    moved = augmented(images, torch.tensor([[0.999, 0.5, 0.0, 0.0], [0.5, 0.001, 0.5, 0.5]]))
    left, down = torch.zeros(8, 8), torch.zeros(8, 8)
    left[:, :7] = images[0, 0, :, 1:]  # by a pixel, an eighth; a square of 4 pixels about the corner covers 2 of either side
    left[:2, :2] = 0
    down[1:] = images[0, 0, :7]
    down[2:6, 2:6] = 0
    assert torch.equal(moved, torch.stack([left, down])[:, None].expand(2, 3, 8, 8))


def test_gradients_go_through_what_an_augmentation_leaves():
    images = torch.rand(1, 4, 16, 16, requires_grad=True)
    augmented(images, torch.tensor([[0.5, 0.5, 0.5, 0.5]])).sum().backward()
    expected = torch.ones(16, 16)
    expected[4:12, 4:12] = 0
    assert torch.equal(images.grad[0], expected.expand(4, 16, 16))
