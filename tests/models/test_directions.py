"""Principal directions: those of a network of which they are known, and objects that an edit moves."""

import math

from graf.camera import sample_poses
from graf.errors import GrafError
from graf.models.directions import PARTS, edited, has_mapping, principal, principal_directions
from graf.models.generator import Generator, weights_hash

import pytest
import torch
from torch import nn

CLASSES = torch.zeros(6, dtype=torch.long)


def linear_mapping(*columns: list[float]) -> nn.Linear:
    """A mapping network whose output is the sum of the columns, each times one latent."""
    layer = nn.Linear(len(columns), len(columns[0]))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(columns).T)
        layer.bias.fill_(7.0)
    return layer


def made(config, n_classes=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Generator(config, n_classes).eval()


def rendered(generator, shape=(), appearance=(), **options):
    """Two objects from two cameras, of the generator or, with directions, of an edited one."""
    if "directions" in options:
        generator = edited(generator, options.pop("directions"), shape, appearance)
    rng = torch.Generator().manual_seed(1)
    poses = sample_poses(2, generator.config.data, rng)
    return generator.render(generator.sample_latents(2, rng), poses, **options)


@pytest.fixture(params=["film", "triplane", "concat", "refine", "fine"])
def generator(request, film, smoke, concat, refine):
    kinds = {"film": film, "triplane": smoke, "concat": concat, "refine": refine}
    config = concat("nerf.importance_samples_per_ray=4") if request.param == "fine" else kinds[request.param]()
    return made(config)


def test_the_axes_of_six_points_are_the_longer_one_and_the_shorter_one():
    """Variances (8 + 8) / 6 along (3, 4) / 5 and 1 / 3 across it, of points around (10, 0)."""
    along, across = torch.tensor([0.6, 0.8]), torch.tensor([-0.8, 0.6])
    amounts = math.sqrt(8) * torch.tensor([1.0, -1, 0, 0, 0, 0]), torch.tensor([0.0, 0, 1, -1, 0, 0])
    points = amounts[0][:, None] * along + amounts[1][:, None] * across + torch.tensor([10.0, 0.0])
    found = principal(points, points, CLASSES, 5)
    torch.testing.assert_close(found.deviations, torch.tensor([8 / 3, 1 / 3]).sqrt())
    torch.testing.assert_close(found.shares, torch.tensor([8 / 9, 1 / 9]))
    torch.testing.assert_close(found.offsets[0], math.sqrt(8 / 3) * along)
    torch.testing.assert_close(found.offsets[1], math.sqrt(1 / 3) * -across)  # of which the sum is positive


class WithoutFloat64(torch.Tensor):
    """A tensor as on a device of Apple's."""

    def double(self):
        raise TypeError("MPS has no float64")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_a_device_without_float64_has_the_same_directions():
    points = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    there, classes = points.as_subclass(WithoutFloat64), CLASSES.as_subclass(WithoutFloat64)
    assert torch.equal(principal(there, there, classes, 3).offsets, principal(points, points, CLASSES, 3).offsets)


def test_more_numbers_than_points_give_the_same_axes():
    """The smaller of two matrices is taken apart; columns of zeros change nothing but which one that is."""
    points = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    wide = torch.cat([points, torch.zeros(6, 9)], dim=1)
    narrow_axes, wide_axes = principal(points, points, CLASSES, 3), principal(wide, wide, CLASSES, 9)
    torch.testing.assert_close(wide_axes.offsets[:, :3], narrow_axes.offsets)
    torch.testing.assert_close(wide_axes.shares, narrow_axes.shares)


def test_what_tells_classes_apart_is_no_direction():
    points = torch.tensor([[1.0, 0], [-1, 0], [0, 0], [1, 50], [-1, 50], [0, 50]])
    found = principal(points, points, torch.tensor([0, 0, 0, 1, 1, 1]), 5)
    torch.testing.assert_close(found.offsets, torch.tensor([[math.sqrt(2 / 3), 0.0]]))


def test_a_regression_carries_a_direction_of_the_responses_over_to_the_latents():
    latents = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    found = principal(latents * torch.tensor([1.0, 10.0]), latents, torch.zeros(4, dtype=torch.long), 1)
    torch.testing.assert_close(found.offsets, torch.tensor([[0.0, math.sqrt(0.5)]]))


def test_the_dominating_direction_of_a_mapping_network_is_found(film):
    """One of four latents has ten times the effect of the others: 100 / 103 of the variance."""
    generator = made(film())
    width = generator.field.shape_mapping[-1].out_features
    columns = torch.linalg.qr(torch.randn(width, 4, generator=torch.Generator().manual_seed(0))).Q * torch.tensor(
        [10.0, 1, 1, 1]
    )
    generator.field.shape_mapping = linear_mapping(*columns.T.tolist())
    found = principal_directions(generator, 1)["shape"]
    cosine = torch.cosine_similarity(found.offsets[0], columns[:, 0], dim=0)
    assert abs(cosine) > 0.999
    assert found.deviations[0] == pytest.approx(10, rel=0.05)
    assert found.shares[0] == pytest.approx(100 / 103, rel=0.01)


def test_without_a_mapping_network_the_latent_that_is_seen_most_comes_first(concat):
    """The others' columns are a tenth as large, in both layers that the shape code enters, and in that of appearance."""
    generator = made(concat())
    field, after = generator.field, -generator.config.z_dist.dim_appearance
    with torch.no_grad():
        for layer, place in ((field.pts_linears[0], -4), (field.pts_linears[5], -4 - 16)):
            start = layer.in_features + place
            layer.weight[:, start : start + 4] *= torch.tensor([0.1, 0.1, 3.0, 0.1])
        field.views_linears[0].weight[:, after:] *= torch.tensor([0.1, 3.0, 0.1, 0.1])
        field.alpha_linear.bias += 1  # something is there
    assert not has_mapping(generator)
    found = principal_directions(generator, 1)
    for part, seen in (("shape", 2), ("appearance", 1)):
        offset = found[part].offsets[0]
        assert offset.abs().argmax() == seen and offset[seen].abs() > 0.8 * offset.norm(), part


def test_an_appearance_is_what_the_mean_shape_looks_like_where_something_is(concat, monkeypatch):
    """The shape colours most, and the first of the appearance's latents only where nothing is."""
    monkeypatch.setattr("graf.models.directions.SAMPLES", 400)
    generator = made(concat())

    def forward(points, view_directions, styles):
        shape, appearance = (code[:, None, None] for code in styles.tensor_split([generator.field.shape_width], dim=-1))
        filled = points[..., 0] > 0
        colour = torch.where(filled, 9 * shape[..., 0] + appearance[..., 1], 9 * appearance[..., 0])
        return torch.where(filled, 99.0, -1.0), colour[..., None].expand_as(points)

    generator.field.forward = forward
    offset = principal_directions(generator, 1)["appearance"].offsets[0]
    assert offset[1].item() == pytest.approx(1, rel=0.1) and offset.norm() < 1.1


def test_directions_are_those_of_objects_of_all_classes(film):
    """Objects of each class vary along a direction of their own."""

    class OfClasses(nn.Linear):
        def forward(self, code):
            second = code[:, :1] > 50
            return torch.cat([torch.where(second, 0.0, code[:, 1:2]), torch.where(second, code[:, 1:2], 0.0)], dim=1)

    generator = made(film("discriminator.condition=class"), n_classes=2)
    generator.field.shape_mapping = OfClasses(1, 1)
    with torch.no_grad():
        generator.class_embedding.weight.copy_(torch.tensor([[0.0], [100.0]]) * (torch.arange(8) == 0))
    found = principal_directions(generator, 2)["shape"]
    torch.testing.assert_close(found.deviations, torch.tensor([0.5, 0.5]).sqrt(), atol=0.05, rtol=0)


def test_the_same_seed_finds_the_same_directions(generator):
    one, same, other = (principal_directions(generator, 3, seed) for seed in (0, 0, 1))
    for part in PARTS:
        assert torch.equal(one[part].offsets, same[part].offsets)
        assert not torch.equal(one[part].offsets, other[part].offsets)
        assert len(one[part].offsets) == 3
        assert one[part].shares.tolist() == sorted(one[part].shares.tolist(), reverse=True)
        assert 0 < one[part].shares.sum() <= 1.0001


def test_an_edit_by_zero_changes_no_bit(generator):
    directions = principal_directions(generator, 2)
    before = rendered(generator)
    for amounts in ((), (0.0, 0.0)):
        after = rendered(generator, amounts, amounts, directions=directions)
        assert torch.equal(before.images, after.images) and torch.equal(before.depth, after.depth)


def test_an_edit_adds_its_standard_deviations_to_the_styles_and_leaves_the_generator_alone(generator):
    directions, latents = principal_directions(generator, 2), generator.sample_latents(3, torch.Generator().manual_seed(0))
    before = generator.field.mapped(latents)
    moved = edited(generator, directions, shape=(0.0, -2.0), appearance=(1.5,)).field.mapped(latents)
    for part, amounts, one, other in zip(PARTS, (torch.tensor([0, -2.0]), torch.tensor([1.5])), before, moved, strict=True):
        of_coarse = (amounts @ directions[part].offsets[: len(amounts)])[: one.shape[1]]
        torch.testing.assert_close(other - one, of_coarse.expand_as(one), atol=1e-5, rtol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(before, generator.field.mapped(latents), strict=True))


def test_edits_of_an_edited_generator_add_up(generator):
    directions = principal_directions(generator, 1)
    twice = edited(edited(generator, directions, shape=(1.0,)), directions, shape=(1.0,))
    once = edited(generator, directions, shape=(2.0,))
    torch.testing.assert_close(rendered(twice).images, rendered(once).images, atol=1e-4, rtol=0)


def test_an_edit_is_among_the_weights_by_which_results_name_the_generator(generator):
    directions = principal_directions(generator, 1)
    hashes = {weights_hash(edited(generator, directions, shape=amounts)) for amounts in ((3.0,), (-3.0,))}
    assert len({*hashes, weights_hash(generator)}) == 3
    offsets = [tensor for name, tensor in edited(generator, directions).state_dict().items() if name.endswith("offset")]
    moved = [
        tensor for name, tensor in edited(generator, directions).to("meta").state_dict().items() if name.endswith("offset")
    ]
    assert len(offsets) == 2 * len(generator.fields) and {tensor.device.type for tensor in moved} == {"meta"}


def test_appearance_moves_no_surface_and_shape_does(generator):
    directions = principal_directions(generator, 1)
    before = rendered(generator)
    recoloured, reshaped = (rendered(generator, *amounts, directions=directions) for amounts in (((), (3.0,)), ((3.0,), ())))
    assert torch.equal(before.depth, recoloured.depth) and torch.equal(before.opacity, recoloured.opacity)
    assert not torch.equal(before.images, recoloured.images)
    assert not torch.equal(before.opacity, reshaped.opacity)


def test_a_refined_image_stays_consistent_with_the_edited_field(refine):
    generator = made(refine())
    moved = rendered(generator, (2.0,), (2.0,), directions=principal_directions(generator, 1))
    assert not torch.equal(moved.low_images, rendered(generator).low_images)
    torch.testing.assert_close(generator.projection.downsample(moved.images), moved.low_images, atol=1e-5, rtol=0)


def test_both_fields_of_a_pair_are_moved(film):
    generator = made(film("nerf.importance_samples_per_ray=4"))
    directions = principal_directions(generator, 1)
    moved, latents = edited(generator, directions, shape=(1.0,)), generator.sample_latents(1)
    coarse, fine = (
        after.mapped(latents)[0] - before.mapped(latents)[0]
        for before, after in zip(generator.fields, moved.fields, strict=True)
    )
    torch.testing.assert_close(torch.cat([coarse, fine], dim=1), directions["shape"].offsets, atol=1e-5, rtol=1e-4)
    assert moved.field is not generator.field and moved.field_fine is not generator.field_fine


def test_classes_keep_their_difference_under_an_edit(smoke):
    generator = made(smoke(), n_classes=3)
    moved = edited(generator, principal_directions(generator, 1), shape=(1.0,))
    latents, classes = torch.zeros(3, 8), torch.arange(3)
    codes = latents + generator.class_embedding(classes)
    before, after = (one.field.mapped(codes)[0] for one in (generator, moved))
    torch.testing.assert_close(after - before, (after - before)[:1].expand_as(after), atol=1e-5, rtol=1e-4)
    assert not torch.equal(before[0], before[1])
    assert torch.equal(rendered(moved, class_index=torch.tensor([2, 1])).images.isfinite(), torch.ones(2, 3, 16, 16).bool())


@pytest.mark.parametrize("kind", ["film", "concat"])
def test_a_model_without_an_appearance_code(film, concat, kind):
    """A film's colours then have a mapping network of their own, of the shape code; a concat's follow from the shape code."""
    config = {"film": film, "concat": concat}[kind]("z_dist.dim_appearance=0")
    generator = made(config)
    directions = principal_directions(generator, 2)
    assert len(directions["shape"].offsets) == 2
    assert len(directions["appearance"].offsets) == (2 if kind == "film" else 0)
    assert rendered(generator, (1.0,), directions=directions).images.isfinite().all()


def test_more_amounts_than_directions_and_other_models_directions_are_refused(film, concat):
    generator, other = made(film()), made(concat())
    directions = principal_directions(generator, 1)
    with pytest.raises(GrafError, match="2 amounts of appearance, but only 1 directions are known"):
        edited(generator, directions, appearance=(1.0, 2.0))
    with pytest.raises(GrafError, match="directions of shape: 64 numbers each, and this model's have 4"):
        edited(other, directions, shape=(1.0,))
    with pytest.raises(GrafError, match="amounts of shape: expected a list of finite numbers, found \\[nan\\]"):
        edited(generator, directions, shape=(math.nan,))
    with pytest.raises(GrafError, match="-1 of them are asked for"):
        principal_directions(generator, -1)


def test_a_field_of_another_kind_is_refused(film):
    generator = made(film())
    generator.field = nn.Identity()
    with pytest.raises(GrafError, match="Identity has no `mapped`"):
        principal_directions(generator, 1)
