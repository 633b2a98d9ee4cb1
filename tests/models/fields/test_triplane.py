"""The field in three planes: look-ups at known places, and what depends on which code."""

from graf.models.fields.radiance_field import mapping_network
from graf.models.fields.triplane import TriplaneField
from graf.models.generator import Generator

import pytest
import torch
from torch.nn import functional as F

BOX = "data.box=[-1,-0.5,-0.25,0.5,0.5,0.75]"


@pytest.fixture
def field(smoke):
    torch.manual_seed(0)
    config = smoke(BOX)
    return TriplaneField(config, 2, 16)


def inputs(n=2):
    return torch.rand(n, 3, 4, 3) - 0.5, F.normalize(torch.randn(n, 3, 3), dim=-1), torch.randn(n, 8)


def test_a_look_up_at_a_grid_point_gives_the_grids_values(field):
    """8 pixels along each axis: pixel k of the box's x, from -1 to 0.5, lies at -1 + 1.5 k / 7; a row of a plane is its second
    axis."""
    planes = torch.randn(2, 3, 4, 8, 8)
    i, j, k = 2, 7, 0
    point = torch.tensor([-1 + 1.5 * i / 7, -0.5 + j / 7, -0.25 + k / 7])
    found = field.look_up(planes, point.expand(2, 1, 3))[:, 0].unflatten(-1, (3, 4))
    for plane, (row, column) in enumerate([(j, i), (k, i), (k, j)]):
        torch.testing.assert_close(found[:, plane], planes[:, plane, :, row, column], atol=1e-5, rtol=0)


def test_a_look_up_between_grid_points_is_bilinear_and_goes_on_beyond_the_box(field):
    planes = torch.randn(1, 3, 4, 8, 8)
    between = torch.tensor([[[-1 + 1.5 * 2.25 / 7, -0.5 + 3.5 / 7, 9.0]]])
    found = field.look_up(planes, between)[0, 0].unflatten(-1, (3, 4))
    xy, xz = planes[0, :2]
    expected = (0.75 * xy[:, 3:5, 2] + 0.25 * xy[:, 3:5, 3]).mean(1)
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], 0.75 * xz[:, 7, 2] + 0.25 * xz[:, 7, 3], atol=1e-5, rtol=0)


def test_without_a_box_the_planes_span_near_and_far(smoke):
    config = smoke("data.near=2", "data.far=5")
    field = TriplaneField(config, 2, 16)
    assert field.centre.tolist() == [0, 0, 0] and field.half_size.tolist() == [1.5, 1.5, 1.5]


def test_density_sees_the_shape_alone(field):
    points, directions, latents = inputs()
    density, colour = field(points, directions, field.styles(latents))
    assert (density.shape, colour.shape) == ((2, 3, 4), (2, 3, 4, 3))
    for change in (torch.tensor([0.0] * 4 + [1.0] * 4), torch.tensor([1.0] * 4 + [0.0] * 4)):
        styles = field.styles(latents + change)
        other_density, other_colour = field(points, directions, styles)
        assert torch.equal(other_density, density) == (change[0] == 0)
        assert (other_colour != colour).any()
    assert torch.equal(field(points, -directions, field.styles(latents))[1], colour)


def test_the_synthesis_is_convolutions_normalised_scaled_and_shifted(field):
    """One image at a time, with the statistics of each of the 8 groups by hand; here a group is two channels."""
    latents = torch.randn(2, 8)
    planes, of_colour = field.styles(latents)
    assert (planes.shape, of_colour.shape) == ((2, 3, 4, 8, 8), (2, 2, 16))
    for b in range(2):
        styles = field.shape_mapping(latents[b, :4]).view(2, 2, 16, 1, 1)
        h = field.start[0]
        for i, conv in enumerate(field.convs):
            h = conv(h[None] if i == 0 else F.interpolate(h[None], scale_factor=2, mode="bilinear"))[0]
            groups = h.unflatten(0, (8, 2))
            mean, variance = groups.mean((1, 2, 3), keepdim=True), groups.var((1, 2, 3), keepdim=True, unbiased=False)
            h = ((groups - mean) / (variance + 1e-5).sqrt()).flatten(0, 1)
            h = F.leaky_relu((1 + styles[i, 0]) * h + styles[i, 1], 0.2)
        torch.testing.assert_close(planes[b], field.to_planes(h).view(3, 4, 8, 8), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("activation, bias", [("softplus", -1.0), ("relu", None)])
def test_density_starts_thin(smoke, activation, bias):
    config = smoke(f"nerf.density_activation={activation}")
    field = TriplaneField(config, 2, 16)
    assert (field.density.bias.item() == bias) == (activation == "softplus")


def test_styles_of_a_triplane_start_out_four_times_as_large():
    stds = []
    for gain in (0.25, 1.0):
        torch.manual_seed(0)
        stds.append(mapping_network(16, 32, 64, 3, gain)(torch.randn(500, 16)).std().item())
    assert stds[1] == pytest.approx(4 * stds[0], rel=1e-3)


def test_it_answers_in_float32_in_mixed_precision(field):
    points, directions, latents = inputs()
    expected = field(points, directions, field.styles(latents))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = field(points, directions, field.styles(latents))
    for actual, wanted in zip(result, expected, strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, wanted, atol=0.1, rtol=0.1)


def test_planes_are_drawn_once_per_image_whatever_the_pieces(smoke, labels):
    generator, drawn = Generator(smoke()), []
    generator.field.to_planes.register_forward_hook(lambda *_: drawn.append(1))
    latents = torch.randn(4, 8)
    generator(latents, labels, rays_at_once=37).images.mean().backward()
    assert len(drawn) == 1
    assert all(p.grad is not None for p in generator.parameters())
