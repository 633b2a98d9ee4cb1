"""View codes that turn with the camera without a jump, and a light backbone that cannot make a checkerboard."""

from graf.models.ccsr import LightBackbone, ViewCodes, prime_factors
from graf.rays import full_grid

import pytest
import torch
import torch.nn.functional as F

SCALES = (2, 3, 4, 8)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def view_codes(num_views=8, elevation_bins=3, channels=4, map_size=5):
    return ViewCodes(num_views, elevation_bins, channels, v_range=(0.1, 0.5), map_size=map_size)


def test_a_bins_centre_has_the_bins_map():
    codes = view_codes()
    azimuth_deg = torch.tensor([0.0, 90.0, 315.0, -45.0, 720.0])
    v = torch.tensor([0.1, 0.3, 0.5, 0.5, 0.1])
    expected = codes.maps[[0, 1, 2, 2, 0], [0, 2, 7, 7, 0]]
    torch.testing.assert_close(codes.interpolate(azimuth_deg, v), expected)


def test_between_four_bins_each_has_its_share():
    codes = view_codes()
    v = torch.tensor([0.1 + 0.2 * 0.75])  # three quarters of the way from row 0 to row 1
    found = codes.interpolate(torch.tensor([315 + 45 * 0.25]), v)[0]
    maps = codes.maps
    expected = 0.25 * (0.75 * maps[0, 7] + 0.25 * maps[0, 0]) + 0.75 * (0.75 * maps[1, 7] + 0.25 * maps[1, 0])
    torch.testing.assert_close(found, expected)


def test_elevations_outside_the_bins_take_the_nearest():
    codes = view_codes()
    azimuth_deg = torch.full((2,), 45.0)
    torch.testing.assert_close(codes.interpolate(azimuth_deg, torch.tensor([0.0, 1.0])), codes.maps[[0, 2], 1])


def test_one_elevation_bin_ignores_the_elevation():
    codes = view_codes(elevation_bins=1)
    first, second = codes.interpolate(torch.tensor([77.0, 77.0]), torch.tensor([0.0, 0.9]))
    assert torch.equal(first, second)


def test_a_turn_in_one_degree_steps_never_jumps():
    """Between bins a and b, 45 degrees apart, every degree moves the code by |b - a| / 45, across 360 degrees too."""
    codes = view_codes()
    azimuth_deg = torch.arange(361.0)
    maps = codes.interpolate(azimuth_deg, torch.full((361,), 0.23)).flatten(1)
    steps = (maps[1:] - maps[:-1]).norm(dim=1)
    centres = maps[:-1:45]
    expected = (centres.roll(-1, 0) - centres).norm(dim=1).repeat_interleave(45) / 45
    torch.testing.assert_close(steps, expected, rtol=1e-3, atol=0)


def test_the_circle_closes():
    codes = view_codes()
    before, after = codes.interpolate(torch.tensor([359.999, 0.0]), torch.tensor([0.2, 0.2]))
    torch.testing.assert_close(before, after, rtol=0, atol=1e-4)


def test_a_rise_never_jumps():
    codes = view_codes()
    maps = codes.interpolate(torch.full((101,), 10.0), torch.linspace(0.1, 0.5, 101)).flatten(1)
    steps = (maps[1:] - maps[:-1]).norm(dim=1)
    rows = codes.interpolate(torch.full((3,), 10.0), torch.tensor([0.1, 0.3, 0.5])).flatten(1)
    expected = (rows[1:] - rows[:-1]).norm(dim=1).repeat_interleave(50) / 50
    torch.testing.assert_close(steps, expected, rtol=1e-3, atol=0)


def test_gradients_reach_the_bins_beside_the_views_and_no_others():
    codes = view_codes()
    azimuth_deg, v = torch.tensor([50.0, 350.0]), torch.tensor([0.2, 0.4])
    codes(azimuth_deg, v, full_grid(6), 6).sum().backward()
    reached = codes.maps.grad.abs().sum(dim=(2, 3, 4)) > 0  # (elevations, azimuths)
    expected = torch.zeros(3, 8, dtype=torch.bool)
    expected[[0, 0, 1, 1], [1, 2, 1, 2]] = True  # 50 degrees between 45 and 90, v 0.2 between 0.1 and 0.3
    expected[[1, 1, 2, 2], [7, 0, 7, 0]] = True  # 350 degrees between 315 and 0, v 0.4 between 0.3 and 0.5
    assert torch.equal(reached, expected)


def test_the_full_frame_at_a_maps_own_size_is_the_map():
    codes = view_codes(map_size=6)
    azimuth_deg, v = torch.tensor([10.0, 200.0]), torch.tensor([0.2, 0.4])
    torch.testing.assert_close(codes(azimuth_deg, v, full_grid(6), 6), codes.interpolate(azimuth_deg, v))


def test_the_full_frame_at_any_size_is_a_bilinear_resize():
    codes = view_codes(map_size=6)
    azimuth_deg, v = torch.tensor([10.0, 200.0]), torch.tensor([0.2, 0.4])
    expected = F.interpolate(codes.interpolate(azimuth_deg, v), size=(32, 32), mode="bilinear")
    torch.testing.assert_close(codes(azimuth_deg, v, full_grid(32), 32), expected)


def test_a_patch_has_the_codes_of_its_place():
    codes = view_codes()
    azimuth_deg, v = torch.tensor([10.0, 200.0]), torch.tensor([0.2, 0.4])
    grids = torch.cat([full_grid(32)[:, 4:12, 8:16], full_grid(32)[:, 20:28:1, 0:8]])
    whole = codes(azimuth_deg, v, full_grid(32), 32)
    expected = torch.stack([whole[0, :, 4:12, 8:16], whole[1, :, 20:28, 0:8]])
    torch.testing.assert_close(codes(azimuth_deg, v, grids, 32), expected)


def test_codes_keep_their_precision_under_autocast():
    codes = view_codes()
    inputs = torch.tensor([10.0]), torch.tensor([0.2]), full_grid(64), 64
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(codes(*inputs), codes(*inputs).float())


def light(scale=2):
    return LightBackbone(scale, code_channels=4, latent_dim=6, width=24, depth=3, width_upsampled=8)


def inputs(b=2, h=7, w=10):
    return torch.rand(b, 3, h, w) * 2 - 1, torch.randn(b, 4, h, w), torch.randn(b, 6)


@pytest.mark.parametrize("scale", SCALES)
def test_light_starts_near_the_interpolation(scale):
    low, codes, latents = inputs()
    proposal = light(scale)(low, codes, latents)
    assert proposal.shape == (2, 3, 7 * scale, 10 * scale)
    detail = proposal - F.interpolate(low, scale_factor=scale, mode="bicubic")
    assert 0.001 < detail.std() < 0.3


@pytest.mark.parametrize("scale", SCALES)
def test_a_flat_input_gives_no_checkerboard_at_any_weights(scale):
    """Away from the borders, where padding is seen, all pixels of a flat input's proposal are alike."""
    backbone = light(scale)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ones = torch.ones(1, 1, 21, 21)
    low, codes, latents = 0.4 * ones.expand(-1, 3, -1, -1), ones.expand(-1, 4, -1, -1), torch.randn(1, 6)
    proposal = backbone(low, codes, latents)
    middle = proposal[..., 8 * scale : -8 * scale, 8 * scale : -8 * scale]
    assert (proposal - 0.4).abs().max() > 1e-2  # the weights do something
    torch.testing.assert_close(middle, middle[..., :1, :1].expand_as(middle), rtol=1e-4, atol=1e-5)


def test_everything_that_enters_light_matters_and_learns():
    backbone = light()
    low, codes, latents = (x.requires_grad_() for x in inputs())
    backbone(low, codes, latents).square().mean().backward()
    for tensor in (low, codes, latents, *backbone.parameters()):
        assert tensor.grad.abs().sum() > 0


def test_light_runs_under_autocast():
    backbone = light()
    low, codes, latents = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found = backbone(low, codes, latents)
    torch.testing.assert_close(found.float(), backbone(low, codes, latents), rtol=0, atol=0.03)


def test_prime_factors_multiply_to_the_number():
    assert [prime_factors(n) for n in (1, 2, 3, 6, 8)] == [[], [2], [3], [2, 3], [2, 2, 2]]
