"""The conditional MLPs, against plain references that concatenate everything to every sample."""

import math

from graf.models.fields.radiance_field import (
    ConcatField,
    FilmField,
    encoding_width,
    film_linear,
    mapping_network,
    positional_encoding,
    recomputed,
    split_linear,
)
from graf.models.registry import build_field
from operations import LiveBytes

import pytest
import torch
from torch import nn
from torch.nn import functional as F

B, R, S = 2, 3, 4


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def field_inputs(z):
    directions = F.normalize(torch.randn(B, R, 3), dim=-1)
    return torch.randn(B, R, S, 3), directions, torch.randn(B, z)


def encode(x, n):
    """The positional encoding of one point, number by number."""
    numbers = list(x)
    for k in range(n):
        numbers += [math.sin(2**k * c) for c in x] + [math.cos(2**k * c) for c in x]
    return numbers


def encoded(x, n):
    return torch.tensor([encode(point, n) for point in x.flatten(0, -2).tolist()]).view(*x.shape[:-1], -1)


def reference_concat(field, points, directions, latents, config):
    """GRAF's way: shape code and appearance code repeated for every sample, layers on the concatenation.

    The appearance code stands in the colour branch with and without view directions (run_nerf_mod.create_nerf).
    """
    nerf, z = config.nerf, config.z_dist
    per_sample = latents[:, None, None].expand(-1, R, S, -1)
    shape, appearance = per_sample.split([z.dim - z.dim_appearance, z.dim_appearance], dim=-1)
    inputs = torch.cat([encoded(points, nerf.multires), shape], dim=-1)
    h = inputs
    for i, layer in enumerate(field.pts_linears):
        h = F.relu(layer(h))
        if i == 4 and nerf.netdepth > 5:
            h = torch.cat([inputs, h], dim=-1)
    if not nerf.use_viewdirs and z.dim_appearance == 0:
        raw = field.output_linear(h)
        return raw[..., 3], raw[..., :3]
    views = [field.feature_linear(h)]
    if nerf.use_viewdirs:
        views.append(encoded(directions, nerf.multires_views)[:, :, None].expand(-1, -1, S, -1))
    views.append(appearance)
    h_colour = F.relu(field.views_linears[0](torch.cat(views, dim=-1)))
    return field.alpha_linear(h)[..., 0], field.rgb_linear(h_colour)


def test_encoding_of_a_quarter_turn():
    x = torch.tensor([math.pi / 2, 0.0, -math.pi / 2])
    expected = [*x.tolist(), 1, 0, -1, 0, 1, 0, 0, 0, 0, -1, 1, -1]  # x, sin x, cos x, sin 2x, cos 2x
    torch.testing.assert_close(positional_encoding(x, 2), torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_encoding_width_is_the_encodings(n):
    assert positional_encoding(torch.zeros(2, 3), n).shape == (2, encoding_width(n))


def test_no_frequencies_leave_the_point():
    x = torch.randn(5, 3)
    assert torch.equal(positional_encoding(x, 0), x)


@pytest.mark.parametrize("widths", [(5, 3), (4, 2, 6), (3, 0)])
def test_split_linear_is_the_linear_of_the_concatenation(widths):
    layer = nn.Linear(sum(widths), 7)
    inputs = [torch.randn(B, *lead, w) for lead, w in zip([(R, S), (1, 1), (R, 1)], widths, strict=False)]
    joined = torch.cat([x.expand(B, R, S, -1) for x in inputs], dim=-1)
    torch.testing.assert_close(split_linear(layer, *inputs), layer(joined), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("depth", [2, 5, 6, 8])
@pytest.mark.parametrize("viewdirs", ["true", "false"])
@pytest.mark.parametrize("appearance", [0, 3])
def test_concat_field_is_grafs_plain_network(concat, depth, viewdirs, appearance):
    config = concat(
        f"nerf.netdepth={depth}", f"nerf.use_viewdirs={viewdirs}", f"z_dist.dim_appearance={appearance}", "nerf.multires=3"
    )
    field = build_field(config, depth, config.nerf.netwidth)
    assert isinstance(field, ConcatField)
    inputs = field_inputs(config.z_dist.dim)
    density, colour = field(*inputs)
    assert (density.shape, colour.shape) == ((B, R, S), (B, R, S, 3))
    reference = reference_concat(field, *inputs, config)
    for actual, expected in zip((density, colour), reference, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    found, wanted = (gradients_of(field, *outputs) for outputs in ((density, colour), reference))
    for actual, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def gradients_of(field, density, colour):
    loss = density.square().sum() + colour.square().sum()
    return torch.autograd.grad(loss, list(field.parameters()))


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_concat_field_keeps_points_and_the_output_of_all_layers_but_the_first_and_the_colours(concat, depth):
    config = concat("nerf.multires=3", "nerf.netwidth=64")
    field = build_field(config, depth, 64)
    points, directions, latents = torch.randn(B, 50, 40, 3), torch.randn(B, 50, 3), torch.randn(B, config.z_dist.dim)
    with LiveBytes() as counter:
        outputs = field(points, directions, latents)
        a_sample = counter.live / (4 * points[..., 0].numel())
        assert len(outputs) == 2
    assert 64 * max(1, depth - 1) < a_sample < 64 * max(1, depth - 1) + 32  # and four numbers that are the outputs


def test_what_is_recomputed_has_the_same_gradients_and_keeps_its_inputs():
    x, weight = torch.randn(1000, 3), torch.randn(3, 1, requires_grad=True)

    def function(x):
        return (x.sin().exp() * 2).cos() @ weight

    expected = torch.autograd.grad(function(x).sum(), weight)[0]
    with LiveBytes() as counter:
        y = recomputed(function, x)
        assert counter.live == 4 * y.numel()
    assert torch.equal(torch.autograd.grad(y.sum(), weight)[0], expected)


@pytest.mark.parametrize("learning, calls", [(True, ["begun", "done", "begun"]), (False, ["begun", "done"])])
def test_recomputing_ends_with_what_the_backward_pass_needs(learning, calls):
    x, weight, found = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True), []

    def function(x):
        found.append("begun")
        y = x.exp() @ weight
        found.append("done")
        return y

    with torch.set_grad_enabled(learning):
        y = recomputed(function, x)
    if learning:
        y.sum().backward()
    assert found == calls


def test_official_names_and_shapes(concat):
    config = concat("nerf.multires=10", "nerf.multires_views=4", "z_dist.dim=16", "z_dist.dim_appearance=8")
    field = ConcatField(config, depth=8, width=32)
    weights = {name.removesuffix(".weight"): tuple(p.shape) for name, p in field.named_parameters() if name.endswith("weight")}
    hidden = {f"pts_linears.{i}": (32, 32) for i in range(8)}
    assert weights == hidden | {
        "pts_linears.0": (32, 63 + 8),
        "pts_linears.5": (32, 63 + 8 + 32),
        "views_linears.0": (16, 32 + 27 + 8),
        "feature_linear": (32, 32),
        "alpha_linear": (1, 32),
        "rgb_linear": (3, 16),
    }


def test_concat_density_sees_neither_view_nor_appearance(concat):
    config = concat()
    field = build_field(config, 6, 16)
    points, directions, latents = field_inputs(config.z_dist.dim)
    density, colour = field(points, directions, latents)
    for change in ((points, -directions, latents), (points, directions, latents + torch.tensor([0.0] * 4 + [1.0] * 4))):
        other_density, other_colour = field(*change)
        assert torch.equal(other_density, density)
        assert (other_colour != colour).any()
    assert (field(points, directions, latents + torch.tensor([1.0] * 4 + [0.0] * 4))[0] != density).any()


def test_film_linear_is_scale_and_shift_of_the_layer():
    layer = nn.Linear(5, 7)
    x, scale, shift = torch.randn(B, 6, 5), torch.randn(B, 7), torch.randn(B, 7)
    expected = (1 + scale)[:, None] * layer(x) + shift[:, None]
    torch.testing.assert_close(film_linear(layer, x, scale, shift), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("viewdirs", ["true", "false"])
@pytest.mark.parametrize("appearance", [0, 3])
def test_film_field_is_layers_scaled_and_shifted_one_image_at_a_time(film, viewdirs, appearance):
    config = film(f"nerf.use_viewdirs={viewdirs}", f"z_dist.dim_appearance={appearance}", "nerf.mapping_depth=2")
    field = build_field(config, 2, 16)
    assert isinstance(field, FilmField)
    points, directions, latents = field_inputs(config.z_dist.dim)
    density, colour = field(points, directions, field.styles(latents))
    assert (density.shape, colour.shape) == ((B, R, S), (B, R, S, 3))
    for b in range(B):
        shape = latents[b, : 8 - appearance]
        styles = field.shape_mapping(shape).view(2, 2, 16)  # layer, (scale, shift), width
        h = encoded(points[b], config.nerf.multires)
        for layer, (scale, shift) in zip(field.layers, styles, strict=True):
            h = F.relu((1 + scale) * layer(h) + shift)
        torch.testing.assert_close(density[b], field.density(h)[..., 0], atol=1e-5, rtol=1e-4)
        scale, shift = field.appearance_mapping(latents[b, 8 - appearance :] if appearance else shape).view(2, 16)
        if viewdirs == "true":
            h = torch.cat([h, encoded(directions[b], config.nerf.multires_views)[:, None].expand(-1, S, -1)], dim=-1)
        h = F.relu((1 + scale) * field.colour_layer(h) + shift)
        torch.testing.assert_close(colour[b], field.colour(h), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_mapping_network_has_its_depth_and_starts_small(depth):
    network = mapping_network(16, 32, 64, depth, gain=0.25)
    assert sum(isinstance(layer, nn.Linear) for layer in network) == depth
    styles = network(torch.randn(500, 16))
    assert styles.shape == (500, 64)
    assert 0 < styles.std() < 0.3  # a quarter of its input's, which no layer before it makes larger


@pytest.mark.parametrize("kind", ["film", "concat"])
def test_fields_answer_in_float32_in_mixed_precision(kind, request):
    config = request.getfixturevalue(kind)("nerf.use_viewdirs=true")
    field = build_field(config, config.nerf.netdepth, 16)
    points, directions, latents = field_inputs(config.z_dist.dim)
    expected = field(points, directions, field.styles(latents))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = field(points, directions, field.styles(latents))
    for actual, wanted in zip(result, expected, strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, wanted, atol=0.05, rtol=0.05)
        assert not torch.equal(actual, wanted)  # it was mixed precision indeed
