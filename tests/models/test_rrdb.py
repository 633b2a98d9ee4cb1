"""The ESRGAN generator as a backbone: sizes, ranges, and additions that leave pretrained weights their effect."""

from graf.errors import ConfigError
from graf.models.rrdb import RRDB, ResidualDenseBlock, RRDBBackbone, RRDBNet, fold_pixels

import pytest
import torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def small_net(scale_factor=4, **sizes):
    return RRDBNet(scale_factor, **({"num_blocks": 2, "nf": 8, "gc": 4} | sizes))


def test_the_published_size():
    with torch.device("meta"):
        network = RRDBNet()
    assert sum(p.numel() for p in network.parameters()) == 16_697_987  # of RealESRGAN_x4plus
    assert len(network.state_dict()) == 2 * 351


@pytest.mark.parametrize("scale", [1, 2, 4])
@pytest.mark.parametrize(("h", "w"), [(8, 4), (5, 7)])
def test_every_scale_and_size(scale, h, w):
    assert small_net(scale)(torch.rand(2, 3, h, w)).shape == (2, 3, scale * h, scale * w)


def test_a_scale_that_it_does_not_know_is_named():
    with pytest.raises(ConfigError, match=r"ccsr\.scale_factor.* not by 3"):
        small_net(3)


def test_every_residual_branch_counts_a_fifth():
    x, block, three = torch.randn(2, 8, 3, 3), ResidualDenseBlock(8, 4), RRDB(8, 4)
    torch.nn.init.zeros_(block.conv5.weight)
    torch.nn.init.ones_(block.conv5.bias)
    torch.testing.assert_close(block(x), x + 0.2)
    three.rdb1 = three.rdb2 = three.rdb3 = block
    torch.testing.assert_close(three(x), x + 0.2 * (x + 3 * 0.2))


def test_folding_keeps_every_pixel_and_repeats_the_border():
    x = torch.arange(6.0).view(1, 1, 2, 3)
    folded = fold_pixels(x, 2)
    assert folded.shape == (1, 4, 1, 2)
    assert folded[0, :, 0, 0].tolist() == [0, 1, 3, 4]
    assert folded[0, :, 0, 1].tolist() == [2, 2, 5, 5]


@pytest.mark.parametrize("scale", [1, 2, 4])
def test_the_backbone_starts_as_the_network_between_its_ranges(scale):
    network = small_net(scale)
    low = torch.rand(2, 3, 8, 8) * 2 - 1
    proposal = RRDBBackbone(network, code_channels=4, latent_dim=6)(low, torch.randn(2, 4, 8, 8), torch.randn(2, 6))
    torch.testing.assert_close((proposal + 1) / 2, network((low + 1) / 2))


def test_codes_and_latents_learn_beside_a_frozen_network():
    backbone = RRDBBackbone(small_net(2).requires_grad_(False), code_channels=4, latent_dim=6)
    low = torch.rand(2, 3, 8, 8) * 2 - 1
    codes, latents = torch.randn(2, 4, 8, 8, requires_grad=True), torch.randn(2, 6, requires_grad=True)
    before = {name: tensor.clone() for name, tensor in backbone.network.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # zero additions pass no gradient on before their first step
        optimizer.zero_grad()
        codes.grad = latents.grad = None
        backbone(low, codes, latents).square().sum().backward()
        optimizer.step()
    assert codes.grad.abs().sum() > 0
    assert latents.grad.abs().sum() > 0
    assert backbone.code_conv.weight.abs().sum() > 0
    assert backbone.latent_shift.weight.abs().sum() > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.network.state_dict().items())


def test_it_runs_under_autocast():
    network = small_net(2)
    images = torch.rand(1, 3, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = network(images)
    torch.testing.assert_close(found.float(), network(images), rtol=0.02, atol=0.02)
