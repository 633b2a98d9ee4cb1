"""Backgrounds behind the field: composited by opacity, the same from all cameras, and away where only the object is wanted."""

from graf.checkpoints.export import write_export
from graf.checkpoints.generator_loading import load_generator
from graf.config import override
from graf.config.digest import rendering_sha256
from graf.data.resolve import with_alpha
from graf.errors import CheckpointError, ConfigError
from graf.inversion.loss import Hypotheses, InversionSettings, inversion_loss
from graf.models.generator import Generator
from graf.models.occupancy import ObjectRenderer
from graf.pictures.sheets import latent_walk
from graf.rays import full_grid

import pytest
import torch

PLANE = ("data.background_model=plane", "data.alpha=ignore", "z_dist.dim_background=6")
SLICE = "data.box=[-0.6,-0.5,-0.2,0.6,0.5,0.2]"


def build(config):
    torch.manual_seed(3)
    return Generator(config).eval()


@pytest.fixture
def latents():
    return torch.randn(4, 8 + 6, generator=torch.Generator().manual_seed(4))


def plane_of(generator, latents, grid):
    return generator.background_model(latents[:, 8:], grid, 16)


@pytest.mark.parametrize("overrides", [(), (SLICE,), ("nerf.importance_samples_per_ray=4",)])
@torch.no_grad()
def test_what_opacity_leaves_is_background(smoke, labels, latents, overrides):
    """C = C_field + (1 - opacity) * background, by two routes: before black, the images in [0, 1] are C_field alone."""
    generator = build(smoke(*PLANE, "data.background=black", *overrides))
    seen, field = generator(latents, labels), generator.without_background()(latents, labels)
    plane = plane_of(generator, latents, full_grid(16))
    assert plane.shape == (4, 3, 16, 16) and plane.abs().max() <= 1 and plane.std() > 0.05
    expected = (field.images + 1) / 2 + (1 - field.opacity) * (plane + 1) / 2
    torch.testing.assert_close((seen.images + 1) / 2, expected, atol=1e-6, rtol=0)
    for name in ("opacity", "depth", "disparity"):
        assert torch.equal(getattr(seen, name), getattr(field, name))
    if overrides == (SLICE,):
        missed = (seen.opacity == 0).expand_as(plane)
        torch.testing.assert_close(seen.images[missed], plane[missed], atol=1e-6, rtol=0)
    if seen.coarse_images is not None:
        expected = (field.coarse_images + 1) / 2 + (1 - field.coarse_opacity) * (plane + 1) / 2
        torch.testing.assert_close((seen.coarse_images + 1) / 2, expected, atol=1e-6, rtol=0)


def test_it_is_the_objects_own_and_the_same_from_all_cameras(smoke, labels, latents):
    generator = build(smoke(*PLANE, "data.box=[5,5,5,6,6,6]"))  # beside the picture
    seen = generator.render(latents[:1].expand(4, -1), labels.pose_c2w).images
    assert torch.equal(seen, seen[:1].expand_as(seen))
    others = generator.render(latents, labels.pose_c2w).images
    assert (others[1:] - others[:1]).abs().mean(dim=(1, 2, 3)).min() > 0.05
    moved = latents.clone()
    moved[:, :8] += 1  # shape and appearance
    assert torch.equal(generator.render(moved, labels.pose_c2w).images, others)


def test_the_frame_sees_half_of_the_plane_where_two_numbers_say(smoke, latents):
    """An infinite number moves the frame by half of its side: the right half of what it saw is then the left half."""
    generator, codes, grid = build(smoke(*PLANE)), latents[:1, 8:].repeat(2, 1), full_grid(16)
    codes[:, :2] = torch.tensor([[0.0, 0.0], [100.0, 0.0]])
    middle, right = generator.background_model(codes, grid, 16)
    torch.testing.assert_close(middle[..., 8:], right[..., :8], atol=1e-6, rtol=0)
    assert (middle - right).abs().mean() > 0.05


@pytest.mark.parametrize("kind", ["gauss", "uniform"])
@torch.no_grad()
def test_windows_lie_everywhere_on_the_plane(smoke, kind):
    """Their middles are uniform over half of the plane, of codes of either kind: colours that rise with x show where."""
    generator = build(smoke(*PLANE, f"z_dist.type={kind}"))
    ramp = torch.linspace(-0.9, 0.9, 16).expand(4096, 3, 16, 16)
    generator.background_model.to_colours.forward = lambda _: ramp
    latents = generator.sample_latents(4096, rng=torch.Generator().manual_seed(0))
    middle = torch.full((1, 1, 1, 2), 7.5)  # of 16 pixels
    places = plane_of(generator, latents, middle)[:, 0, 0, 0].atanh() / 0.9  # -0.5 to 0.5
    torch.testing.assert_close(
        places.quantile(torch.tensor([0.25, 0.5, 0.75])), torch.tensor([-0.25, 0, 0.25]), atol=0.04, rtol=0
    )


@pytest.mark.parametrize(("imsize", "side"), [(16, 16), (24, 32), (64, 64)])
def test_the_plane_has_at_least_as_many_pixels_a_side_as_a_rendering(smoke, imsize, side):
    plane, seen = build(smoke(*PLANE, f"data.imsize={imsize}")).background_model, []
    plane.to_colours.register_forward_hook(lambda layer, given, made: seen.append(made.shape))
    plane(torch.zeros(1, 6), full_grid(imsize), imsize)
    assert seen == [(1, 3, side, side)]


def test_objects_do_not_know_their_backgrounds_code(refine, labels, latents):
    generator, other = build(refine(*PLANE)), latents.clone()
    other[:, 8:] = 0
    field = generator.without_background()
    assert torch.equal(field.render(latents, labels.pose_c2w).images, field.render(other, labels.pose_c2w).images)


def test_what_is_refined_has_the_background(refine, labels, latents):
    generator = build(refine(*PLANE, "data.box=[5,5,5,6,6,6]"))
    seen = generator.render(latents, labels.pose_c2w)
    centres = 2 * full_grid(8) + 0.5
    torch.testing.assert_close(seen.low_images, plane_of(generator, latents, centres), atol=1e-6, rtol=0)
    torch.testing.assert_close(generator.projection.downsample(seen.images), seen.low_images, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_patch_has_its_part_of_the_background(smoke, labels, latents):
    generator = build(smoke(*PLANE))
    part = generator(latents, labels, full_grid(16)[:, 3:7, 5:10]).images
    torch.testing.assert_close(part, generator(latents, labels).images[..., 3:7, 5:10], atol=1e-4, rtol=1e-4)


def test_rays_in_parts_have_the_same_gradients(smoke, labels, latents):
    def gradients(rays_at_once):
        generator = build(smoke(*PLANE))
        generator(latents, labels, rays_at_once=rays_at_once).images.square().mean().backward()
        return [p.grad for p in generator.parameters()]

    for found, expected in zip(gradients(37), gradients(0), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_the_fast_renderer_shows_it(smoke, labels, latents):
    generator, a_class = build(smoke(*PLANE, SLICE)), torch.zeros(1, dtype=torch.long)
    fast, exact = (ObjectRenderer(generator, latents[:1], a_class, fast).render(labels.pose_c2w) for fast in (True, False))
    assert (fast.images - exact.images).abs().max() <= 4 / 255


def test_inversion_finds_the_backgrounds_code_too(smoke, labels, latents):
    generator = build(smoke(*PLANE)).requires_grad_(False)
    target = generator.render(latents[:1], labels.pose_c2w[:1]).images.clone()
    loss = inversion_loss(generator, target, labels.pose_c2w[:1], InversionSettings(latent_weight=0), 16, None)
    start = latents[:1].clone()
    start[:, 8:] = 0
    start = Hypotheses(start, torch.zeros(1, dtype=torch.long), torch.zeros(1, 1), torch.full((1, 1), 0.3))
    found, after = loss.fit(start, 20, None)
    assert after.item() < loss.evaluate(start).item() / 4
    assert (found.latents[:, 8:] - start.latents[:, 8:]).abs().min() > 0.01


def test_a_walk_between_appearances_takes_the_background_along(smoke):
    config, corners = smoke(*PLANE).z_dist, torch.randn(4, 14, generator=torch.Generator().manual_seed(0))
    for mode, moves in (("shape", False), ("appearance", True), ("both", True)):
        walk = latent_walk(corners, 4, mode, config)
        assert torch.equal(walk[0], corners[0]) and torch.equal(walk[1, 8:], corners[int(moves), 8:])


def test_an_export_is_loaded_with_its_background_or_without(smoke, labels, latents, tmp_path):
    generator, file = build(smoke(*PLANE)), tmp_path / "cats.safetensors"
    write_export(file, generator, 1, "")
    found = load_generator(file)
    assert torch.equal(found.render(latents, labels.pose_c2w).images, generator.render(latents, labels.pose_c2w).images)
    without = load_generator(file, override(generator.config, ["data.background_model=none"]))
    expected = generator.without_background().render(latents, labels.pose_c2w).images
    assert torch.equal(without.render(latents, labels.pose_c2w).images, expected)
    assert rendering_sha256(without.config) != rendering_sha256(found.config)  # results are kept apart


def test_weights_without_backgrounds_are_told_by_the_key(smoke, tmp_path):
    file = tmp_path / "cats.safetensors"
    write_export(file, build(smoke("data.alpha=ignore")), 1, "")
    with pytest.raises(CheckpointError, match="data.background_model"):
        load_generator(file, smoke(*PLANE))
    other = build(smoke(*PLANE))
    write_export(file, other, 1, "")
    with pytest.raises(CheckpointError, match="z_dist.dim_background"):
        load_generator(file, override(other.config, ["z_dist.dim_background=7"]))


def test_alpha_that_nobody_set_is_ignored(smoke):
    config = smoke(*PLANE, "data.alpha=auto")
    assert with_alpha(config, None).data.alpha == "ignore"
    judged = override(smoke(), ["data.alpha=rgba"])
    assert with_alpha(config, judged).data.alpha == "ignore"
    assert with_alpha(judged, None).data.alpha == "rgba"


def test_alpha_is_not_judged_before_a_background(smoke):
    with pytest.raises(ConfigError, match="data.background_model: plane fills what opacity leaves, which data.alpha: rgba"):
        smoke(*PLANE, "data.alpha=rgba")
