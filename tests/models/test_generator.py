"""The generator: pictures of fields whose picture is known, and the same picture by every way to it."""

import dataclasses
import math
import threading

from graf.camera import Labels, poses_at
from graf.config import override
from graf.errors import GrafError
from graf.models.generator import EMPTY_DISPARITY, Generator, Rendering, evaluate_all, evaluate_dense, indices_of
from graf.rays import box_depths, camera_rays, depth_bounds, full_grid

import numpy as np
import pytest
import torch
from torch import nn

MAPS = ("images", "depth", "disparity", "opacity")


class Slab(nn.Module):
    """Raw density `inside` between the world's heights low and high, `outside` elsewhere; one raw colour."""

    def __init__(self, inside, outside=0.0, low=-math.inf, high=math.inf, colour=(0.0, 0.0, 0.0)):
        super().__init__()
        self.inside, self.outside, self.low, self.high, self.colour = inside, outside, low, high, colour

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, styles):
        self.points, self.view_directions = points, view_directions
        within = (points[..., 2] > self.low) & (points[..., 2] < self.high)
        return torch.where(within, self.inside, self.outside), torch.tensor(self.colour).expand_as(points)


def assert_same_pictures(actual, expected, **tolerance):
    for field in dataclasses.fields(Rendering):
        torch.testing.assert_close(getattr(actual, field.name), getattr(expected, field.name), **tolerance)


@pytest.fixture
def build():
    def build(config, n_classes=1):
        torch.manual_seed(3)
        return Generator(config, n_classes)

    return build


@pytest.fixture
def latents():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(4))


def with_field(config, field):
    generator = Generator(config)
    generator.field = field
    return generator


def noise_of(generator, seed=0, step=0, n=4):
    return generator.sample_noise(n, step, torch.Generator().manual_seed(seed), generator.config.ray_sampler.rays_per_patch)


@pytest.mark.parametrize("activation", ["relu", "softplus"])
@pytest.mark.parametrize("background", [(1.0, 1.0, 1.0), (0.0, 0.5, 1.0)])
def test_nothing_shows_the_background(smoke, labels, latents, activation, background):
    """Both activations: relu(-100) = 0 and softplus(-100) = 4e-44."""
    config = smoke(f"nerf.density_activation={activation}", f"data.background={list(background)}")
    rendering = with_field(config, Slab(-100.0))(latents, labels)
    expected = torch.tensor(background).view(1, 3, 1, 1).expand(4, 3, 16, 16) * 2 - 1
    torch.testing.assert_close(rendering.images, expected)
    assert rendering.opacity.max() < 1e-30
    assert (rendering.disparity == EMPTY_DISPARITY).all()
    assert (rendering.depth == config.data.far).all()


@pytest.mark.parametrize("raw", [-3.0, -10.0])
def test_thin_softplus_haze_lets_the_background_through(smoke, labels, latents, raw):
    """Along near..far the haze absorbs 1 - exp(-softplus(raw) * length), length = far - near on the axis: 9% and 0.01%. However
    thin it is, its mean depth is that of what absorbs evenly."""
    config = smoke("nerf.density_activation=softplus", "nerf.samples_per_ray=32")
    rendering, (near, far) = with_field(config, Slab(raw))(latents, labels), (config.data.near, config.data.far)
    absorbed = 1 - math.exp(-math.log1p(math.exp(raw)) * (far - near) * 1.1)  # 1.1: oblique rays
    assert rendering.opacity.max() < 1.1 * absorbed
    torch.testing.assert_close(rendering.depth, torch.full((4, 1, 16, 16), (near + far) / 2), atol=0.03 * (far - near), rtol=0)


def test_a_wall_is_at_its_depth(smoke, labels, latents):
    """Opaque everywhere: the first sample takes it all, at near."""
    config = smoke("nerf.density_activation=relu")
    rendering = with_field(config, Slab(1e6, colour=(0.0, 100.0, -100.0)))(latents, labels)
    expected = torch.tensor([0.0, 1.0, -1.0]).view(1, 3, 1, 1).expand(4, 3, 16, 16)  # sigmoid: 0.5, 1, 0
    torch.testing.assert_close(rendering.images, expected)
    torch.testing.assert_close(rendering.opacity, torch.ones(4, 1, 16, 16))
    torch.testing.assert_close(rendering.depth, torch.full((4, 1, 16, 16), config.data.near))
    torch.testing.assert_close(rendering.disparity, torch.full((4, 1, 16, 16), 1 / config.data.near))


def test_haze_absorbs_by_beers_law(smoke, labels, latents):
    """Haze that ends short of the last sample: samples 0.1 apart in depth, each 0.1 |d| long."""
    config = smoke("nerf.density_activation=relu", "nerf.samples_per_ray=21")
    sigma = 0.7

    class Front(Slab):
        def forward(self, points, view_directions, styles):
            density, colour = super().forward(points, view_directions, styles)
            return density * (torch.arange(21) < 10), colour

    with torch.no_grad():  # training leaves out samples without density
        opacity = with_field(config, Front(sigma))(latents, labels).opacity.flatten(1)
    _, rays_d = camera_rays(labels.pose_c2w, full_grid(16), 16, config.data)
    length = 10 * 0.1 * rays_d.norm(dim=-1)
    torch.testing.assert_close(opacity, 1 - torch.exp(-sigma * length), atol=1e-5, rtol=0)


@torch.no_grad()
def test_fields_are_given_the_rays_directions_at_unit_length(smoke, labels, latents):
    config, field = smoke(), Slab(1.0)
    with_field(config, field)(latents, labels)
    _, rays_d = camera_rays(labels.pose_c2w, full_grid(16), 16, config.data)
    torch.testing.assert_close(field.view_directions, rays_d / rays_d.square().sum(-1, keepdim=True).sqrt())


def test_maps_are_enlarged_without_depths_between_an_object_and_what_is_behind_it():
    depth = torch.tensor([[1.0, 9.0], [9.0, 1.0]])[None, None]
    enlarged = Rendering(torch.zeros(1, 3, 4, 4), depth, 1 / depth, 0 * depth).at(4)
    repeated = torch.tensor([[1.0, 1, 9, 9], [1, 1, 9, 9], [9, 9, 1, 1], [9, 9, 1, 1]])[None, None]
    assert torch.equal(enlarged.depth, repeated) and torch.equal(enlarged.disparity, 1 / repeated)


def test_up_in_the_world_is_up_in_the_picture(smoke, latents):
    """A level camera, dense only above 0.3: the top row's rays are at 2.6 * tan(16 degrees) = 0.75 and more throughout."""
    config = smoke("nerf.density_activation=relu")
    level = Labels.of_poses(poses_at(torch.tensor([30.0]), torch.tensor([0.5]), 3.6))
    opacity = with_field(config, Slab(1e3, low=0.3))(latents[:1], level).opacity[0, 0]
    assert (opacity[0] == 1).all()
    assert (opacity[8:] == 0).all()


@pytest.mark.parametrize("kind", ["smoke", "film", "concat"])
@pytest.mark.parametrize("importance", [0, 5])
def test_chunks_make_no_difference(kind, importance, request, build, labels, latents):
    config = request.getfixturevalue(kind)(
        "nerf.chunk=37", f"nerf.importance_samples_per_ray={importance}"
    )  # 256 = 6 * 37 + 34 rays
    generator = build(config)
    with torch.no_grad():
        whole = generator(latents, labels)
    assert whole.opacity.std() > 0 or kind == "film"
    assert_same_pictures(generator.render(latents, labels.pose_c2w), whole, atol=1e-4, rtol=1e-4)


def test_each_image_is_rendered_from_its_own_latents_and_camera(concat, build, labels, latents):
    generator = build(concat())
    together = generator.render(latents, labels.pose_c2w)
    for i in range(4):
        alone = generator.render(latents[i : i + 1], labels.pose_c2w[i : i + 1])
        torch.testing.assert_close(together.images[i], alone.images[0], atol=1e-5, rtol=0)
    assert not torch.allclose(together.images[0], generator.render(latents[1:2], labels.pose_c2w[:1]).images[0])


@pytest.mark.parametrize("n_images", [2, 4], ids=["one image a thread", "two images a thread"])
def test_threads_render_the_images_that_one_thread_does(film, build, labels, latents, two_threads, monkeypatch, n_images):
    generator, threads = build(film("nerf.chunk=256")), set()  # an image has as many rays
    render_rays = generator.render_rays
    monkeypatch.setattr(generator, "render_rays", lambda *args: threads.add(threading.get_ident()) or render_rays(*args))
    found = generator.render(latents[:n_images], labels.pose_c2w[:n_images])
    assert len(threads - {threading.get_ident()}) == len(threads) <= 2
    alone = [generator.render(latents[i : i + 1], labels.pose_c2w[i : i + 1]) for i in range(n_images)]
    assert threading.get_ident() in threads  # one image is computed with all cores
    assert_same_pictures(found, Rendering.cat(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["concat", "film", "refine"])
def test_an_object_is_the_same_from_every_camera(kind, request, build, labels, latents, monkeypatch):
    """The field's styles are made of latents and class alone: cameras exchanged among the latents change no bit of them."""
    generator = build(request.getfixturevalue(kind)(), n_classes=2)
    styles_of, made = generator.field.styles, []
    monkeypatch.setattr(generator.field, "styles", lambda latents: made.append(styles_of(latents)) or made[-1])
    other_cameras = dataclasses.replace(labels, pose_c2w=labels.pose_c2w.flip(0))
    pictures = [generator(latents, some).images for some in (labels, other_cameras)]
    of_one, of_other = (styles if isinstance(styles, tuple) else (styles,) for styles in made)
    assert all(torch.equal(*pair) for pair in zip(of_one, of_other, strict=True)) and not torch.equal(*pictures)


def test_a_patch_is_a_part_of_the_frame(concat, build, labels, latents):
    generator = build(concat())
    grid = full_grid(16)[:, 3:7, 5:10]
    with torch.no_grad():
        frame, patch = generator(latents, labels), generator(latents, labels, grid)
    part = Rendering(*(getattr(frame, name)[..., 3:7, 5:10] for name in MAPS))
    assert patch.images.shape == (4, 3, 4, 5)
    assert_same_pictures(patch, part, atol=1e-4, rtol=1e-4)


def test_resolution_keeps_the_field_of_view(concat, build, labels, latents):
    """Pixel i of W stands at (i - W / 2) / focal, focal proportional to W: every second pixel of 32 is one of 16."""
    generator = build(concat())
    coarse = generator.render(latents, labels.pose_c2w)
    fine = generator.render(latents, labels.pose_c2w, resolution=32)
    torch.testing.assert_close(fine.images[..., ::2, ::2], coarse.images, atol=1e-4, rtol=0)


def test_pictures_for_people_have_no_randomness(concat, build, labels, latents):
    config = concat("nerf.raw_noise_std=1", "nerf.perturb=true", "nerf.importance_samples_per_ray=4")
    generator = build(config).train()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = generator.render(latents, labels.pose_c2w)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_same_pictures(generator.eval().render(latents, labels.pose_c2w), first, atol=0, rtol=0)


def test_noise_changes_pictures_as_its_generator_says(concat, build, labels, latents):
    generator = build(concat("nerf.raw_noise_std=1"))

    def picture(seed):
        with torch.no_grad():
            return generator(latents, labels, noise=noise_of(generator, seed)).images

    assert torch.equal(picture(1), picture(1))
    assert not torch.allclose(picture(1), picture(2))


def test_without_perturb_and_noise_training_pictures_are_the_clean_ones(concat, build, labels, latents):
    generator = build(concat("nerf.raw_noise_std=1", "nerf.perturb=false"))
    with torch.no_grad():
        clean = generator(latents, labels).images
        noisy = generator(latents, labels, noise=noise_of(generator)).images
        late = generator(latents, labels, noise=noise_of(generator, step=5000)).images
    assert not torch.allclose(noisy, clean)
    assert torch.equal(late, clean)


@pytest.mark.parametrize(("step", "std"), [(0, 2.0), (1250, 1.5), (2500, 1.0), (4999, 0.0004), (5000, 0.0), (9000, 0.0)])
def test_density_noise_falls_to_zero_over_5000_steps(smoke, build, step, std):
    density_noise = noise_of(build(smoke("nerf.raw_noise_std=2")), step=step).density_noise
    assert (density_noise is None) == (std == 0)
    if std > 0:
        assert density_noise.std().item() == pytest.approx(std, rel=0.05)


def test_density_noise_that_does_not_decrease_stays(smoke, build):
    config = smoke("nerf.raw_noise_std=2", "nerf.decrease_noise=false", "nerf.importance_samples_per_ray=3")
    noise = noise_of(build(config), step=10**6)
    assert noise.density_noise.shape == (4, 256, 8)
    assert noise.fine_density_noise.shape == (4, 256, 8 + 3)
    assert noise.fine_jitter.shape == (4, 256, 3)
    even = noise_of(build(override(config, ["nerf.perturb=false"])), step=10**6)
    assert even.jitter is None and even.fine_jitter is None
    assert even.density_noise.std().item() == pytest.approx(2, rel=0.05) == even.fine_density_noise.std().item()


def assert_chunks_change_nothing(build, config, labels, latents, rays_at_once, rounding=0.0):
    def gradients(chunk):
        generator = build(config)
        rendering = generator(latents, labels, noise=noise_of(generator), rays_at_once=chunk)
        (rendering.images.square().mean() + rendering.coarse_images.mean()).backward()
        return rendering.images.detach(), [p.grad for p in generator.parameters()]

    (whole, expected), (chunked, found) = gradients(0), gradients(rays_at_once)
    torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=1e-6)
    for actual, wanted in zip(found, expected, strict=True):
        assert (actual - wanted).norm() <= 1e-5 * wanted.norm() + rounding


@pytest.mark.parametrize("rays_at_once", [37, 400, 10_000])
def test_rays_in_chunks_give_the_same_picture_and_gradient(concat, build, labels, latents, rays_at_once):
    config = concat("nerf.raw_noise_std=1", "nerf.importance_samples_per_ray=4")
    assert_chunks_change_nothing(build, config, labels, latents, rays_at_once)


def test_computing_activations_anew_changes_no_bit(concat, build, labels, latents, monkeypatch):
    def gradients():
        generator = build(concat("nerf.raw_noise_std=1", "nerf.importance_samples_per_ray=4"))
        rendering = generator(latents, labels, noise=noise_of(generator), rays_at_once=200)
        (rendering.images.square().mean() + rendering.coarse_images.mean()).backward()
        return [p.grad for p in generator.parameters()]

    anew = gradients()
    monkeypatch.setattr("graf.models.generator.recomputed", lambda function, *args: function(*args))
    for actual, expected in zip(anew, gradients(), strict=True):
        assert torch.equal(actual, expected)


def test_the_fine_network_sees_all_samples_in_order_between_the_bounds(smoke, labels, latents):
    config = smoke("nerf.importance_samples_per_ray=5", "data.radius=[3, 4]", "nerf.density_activation=relu")
    generator = Generator(config)
    generator.field, generator.field_fine = Slab(5.0, low=-0.2, high=0.2), Slab(1.0)
    with torch.no_grad():  # training leaves out samples without density
        generator(latents, labels, noise=noise_of(generator))
    rays_o, rays_d = camera_rays(labels.pose_c2w, full_grid(16), 16, config.data)
    seen = generator.field_fine.points
    depths = ((seen - rays_o[:, :, None]) * rays_d[:, :, None]).sum(-1) / rays_d[:, :, None].square().sum(-1)
    near, far = (bound[:, None] for bound in depth_bounds(labels.pose_c2w, config.data))
    assert depths.shape == (4, 256, 8 + 5)
    assert (depths.diff(dim=-1) > -1e-5).all()
    assert (depths > near - 1e-5).all()
    assert (depths < far + 1e-5).all()
    assert not torch.allclose(depths[0, 0], torch.linspace(float(near[0]), float(far[0]), 13))


def test_the_picture_is_the_fine_networks(smoke, labels, latents):
    generator = Generator(smoke("nerf.importance_samples_per_ray=3", "nerf.density_activation=relu"))
    generator.field, generator.field_fine = Slab(1e6, colour=(9.0, 9.0, 9.0)), Slab(1e6, colour=(0.0, 0.0, 0.0))
    assert generator(latents, labels).images.abs().max() < 1e-6


def test_the_coarse_picture_is_the_coarse_networks_and_there_only_with_a_fine_one(smoke, labels, latents):
    generator = Generator(smoke("nerf.importance_samples_per_ray=3", "nerf.density_activation=relu"))
    generator.field, generator.field_fine = Slab(1e6, colour=(99.0, -99.0, 0.0)), Slab(1e6)
    coarse = generator(latents, labels).coarse_images
    torch.testing.assert_close(coarse, torch.tensor([1.0, -1.0, 0.0]).view(1, 3, 1, 1).expand(4, 3, 16, 16))
    assert Generator(smoke())(latents, labels).coarse_images is None


def test_pictures_for_people_may_take_more_samples(smoke, labels, latents):
    generator = with_field(smoke("nerf.samples_per_ray=8", "nerf.render_samples_per_ray=13"), Slab(1.0))
    generator.render(latents, labels.pose_c2w)
    assert generator.field.points.shape[-2] == 13
    generator(latents, labels, noise=noise_of(generator))
    assert generator.field.points.shape[-2] == 8
    same = with_field(smoke("nerf.samples_per_ray=8", "nerf.render_samples_per_ray=0"), Slab(1.0))
    same.render(latents, labels.pose_c2w)
    assert same.field.points.shape[-2] == 8


def test_classes_change_pictures_where_they_are_known(smoke, build, labels, latents):
    known = build(smoke("discriminator.condition=class"), n_classes=3)
    first, second = (known.render(latents, labels.pose_c2w, class_index=torch.full((4,), i)).images for i in (0, 2))
    assert not torch.allclose(first, second)
    latent_shift = known.class_embedding.weight[2].detach()
    no_class = build(smoke("discriminator.condition=none"), n_classes=3)
    assert no_class.class_embedding is None
    assert torch.equal(known.condition(latents, labels)[1], (latents + known.class_embedding.weight[1])[1])
    assert latent_shift.abs().sum() > 0


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"latents": torch.zeros(3, 8)}, r"latents \(3, 8\) and pose_c2w \(4, 3, 4\)"),
        (
            {"pose_c2w": torch.eye(4).expand(4, 4, 4)},
            r"pose_c2w \(4, 4, 4\): expected one row of 8 latents per camera \(3, 4\)",
        ),
        ({"resolution": -2}, "resolution -2: must be a whole number above 0"),
        ({"resolution": 0}, "resolution 0: must be a whole number above 0"),
        ({"resolution": "32"}, "resolution '32': must be a whole number above 0"),
        (
            {"class_index": torch.tensor([0, 1, 2, 0])},
            r"class_index \[0, 1, 2, 0\]: expected a whole number from 0 to 1, for each",
        ),
        ({"class_index": torch.tensor([0, -1, 0, 0])}, r"class_index \[0, -1, 0, 0\]"),
        ({"class_index": torch.tensor([0.0, 1, 0, 0])}, r"class_index \[0.0, 1.0, 0.0, 0.0\]"),
        ({"class_index": [0, 1]}, r"class_index \[0, 1\]: .* from 0 to 1, for each of the 4 cameras or for all"),
    ],
)
def test_what_does_not_fit_the_model_is_told(smoke, build, labels, latents, wrong, problem):
    generator = build(smoke(), n_classes=2)
    with pytest.raises(GrafError, match=problem):
        generator.render(**{"latents": latents, "pose_c2w": labels.pose_c2w} | wrong)


@pytest.mark.parametrize("of_all", [1, [1], torch.ones(1, dtype=torch.uint8), torch.ones(4, dtype=torch.bool)])
def test_one_class_is_that_of_all_cameras(smoke, build, labels, latents, of_all):
    generator = build(smoke("discriminator.condition=class"), n_classes=3)
    expected = generator.render(latents, labels.pose_c2w, class_index=torch.ones(4, dtype=torch.long))
    assert_same_pictures(generator.render(latents, labels.pose_c2w, class_index=of_all), expected)


@pytest.mark.parametrize("of_type", [torch.Tensor.double, torch.Tensor.numpy], ids=["float64", "NumPy"])
def test_numbers_of_another_type_are_those_in_float32(smoke, build, labels, latents, of_type):
    generator, given = build(smoke()), (latents, labels.pose_c2w)
    assert_same_pictures(generator.render(*map(of_type, given), np.int64(16)), generator.render(*given))


@pytest.mark.parametrize(("kind", "std", "low", "high"), [("gauss", 1.0, -8, 8), ("uniform", 3**-0.5, -1, 1)])
def test_latents_have_the_configs_distribution(smoke, build, kind, std, low, high):
    generator = build(smoke(f"z_dist.type={kind}"))
    drawn = generator.sample_latents(4000, torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 8)
    assert drawn.mean().item() == pytest.approx(0, abs=0.03)
    assert drawn.std().item() == pytest.approx(std, abs=0.02)
    assert low <= drawn.min()
    assert drawn.max() <= high
    assert drawn.min() < -0.99
    assert torch.equal(drawn, generator.sample_latents(4000, torch.Generator().manual_seed(0)))


def test_the_background_is_config_and_no_weight(smoke, build):
    assert "background" not in build(smoke()).state_dict()


def test_renderings_join_along_any_dimension(smoke, build, labels, latents):
    rendering = build(smoke()).render(latents[:2], labels.pose_c2w[:2])
    parts = [Rendering(*(getattr(rendering, name)[i : i + 1] for name in MAPS)) for i in range(2)]
    assert_same_pictures(Rendering.cat(parts), rendering, atol=0, rtol=0)
    assert Rendering.cat(parts, dim=3).depth.shape == (1, 1, 16, 32)


EVERYTHING = "data.box=[-9,-9,-9,9,9,9]"
SLICE = "data.box=[-0.6,-0.5,-0.2,0.6,0.5,0.2]"


@pytest.mark.parametrize(
    "overrides", [(), ("nerf.importance_samples_per_ray=4",), ("data.orthographic=true",), ("data.radius=3,4",)]
)
def test_a_box_that_holds_everything_changes_nothing(film, build, labels, latents, overrides):
    free, boxed = (build(film(box, *overrides)) for box in ("data.box=none", EVERYTHING))
    with torch.no_grad():
        pictures = [generator(latents, labels, noise=noise_of(generator)) for generator in (free, boxed)]
    assert_same_pictures(*pictures, atol=0, rtol=0)


@pytest.mark.parametrize(
    "overrides", [(), ("data.orthographic=true",), ("data.radius=3,4",), ("nerf.density_activation=relu",)]
)
@pytest.mark.parametrize("importance", [0, 5])
def test_samples_lie_in_the_box_and_rays_that_miss_it_see_the_background(smoke, labels, latents, overrides, importance):
    """An opaque field everywhere: exactly the rays that meet the box are opaque, and their first sample is where they enter."""
    config = smoke(SLICE, f"nerf.importance_samples_per_ray={importance}", "data.background=[0,0.5,1]", *overrides)
    generator = with_field(config, Slab(1e4))
    if importance:
        generator.field_fine = Slab(1e4)
    rendering = generator(latents, labels, noise=noise_of(generator))
    rays_o, rays_d = camera_rays(labels.pose_c2w, full_grid(16), 16, config.data)
    enter, leave = box_depths(generator.box, rays_o, rays_d)
    hit = (enter < leave).view(4, 1, 16, 16)
    assert 0.05 < hit.float().mean() < 0.9
    assert torch.equal(rendering.opacity > 0.5, hit)
    assert (rendering.opacity[~hit] == 0).all() and (rendering.disparity[~hit] == EMPTY_DISPARITY).all()
    far = depth_bounds(labels.pose_c2w, config.data)[1].view(4, 1, 1, 1).expand(hit.shape)
    assert torch.equal(rendering.depth[~hit], far[~hit])
    background = torch.tensor([-1.0, 0.0, 1.0]).view(1, 3, 1, 1).expand(rendering.images.shape)
    assert torch.equal(rendering.images[~hit.expand_as(background)], background[~hit.expand_as(background)])
    depth, (first, last) = rendering.depth[hit], (x.view(hit.shape)[hit] for x in (enter, leave))
    assert (depth >= first - 1e-5).all() and (depth <= first + (last - first) / 7 + 1e-5).all()
    for field in (generator.field, generator.field_fine)[: 1 + (importance > 0)]:
        points = field.points.flatten(0, 2)
        inside = (points.abs() <= torch.tensor([0.6, 0.5, 0.2]) + 1e-5).all(-1)
        at_a_camera = points.norm(dim=-1) > 2.4  # what fills up the rows of images with fewer hits
        assert (inside | at_a_camera).all()


def test_rays_that_miss_the_box_cost_nothing(smoke, labels, latents):
    config = smoke(SLICE)
    generator = with_field(config, Slab(1.0))
    generator(latents, labels)
    rays = camera_rays(labels.pose_c2w, full_grid(16), 16, config.data)
    enter, leave = box_depths(generator.box, *rays)
    hits = int((enter < leave).sum(1).max())
    assert hits <= generator.field.points.shape[1] < min(256, hits + 64)


def test_a_box_beside_the_picture_leaves_the_background(smoke, build, labels, latents):
    rendering = build(smoke("data.box=[5,5,5,6,6,6]"))(latents, labels)
    assert (rendering.images == 1).all() and (rendering.opacity == 0).all()
    rendering.images.mean().backward()


@pytest.mark.parametrize("rays_at_once", [37, 400])
@pytest.mark.parametrize("kind", ["smoke", "film"])
def test_rays_in_a_box_in_chunks_give_the_same_picture_and_gradient(kind, request, build, labels, latents, rays_at_once):
    config = request.getfixturevalue(kind)(SLICE, "nerf.raw_noise_std=1", "nerf.importance_samples_per_ray=4")
    assert_chunks_change_nothing(build, config, labels, latents, rays_at_once, rounding=1e-9)  # a normalised bias has none


def test_one_image_of_a_batch_in_a_box_is_what_it_is_alone(smoke, build, labels, latents):
    """However many rays of the others hit."""
    generator = build(smoke(SLICE))
    together = generator.render(latents, labels.pose_c2w)
    for i in range(4):
        alone = generator.render(latents[i : i + 1], labels.pose_c2w[i : i + 1])
        torch.testing.assert_close(together.images[i], alone.images[0], atol=1e-5, rtol=0)


def test_indices_of_come_in_few_sizes():
    """The count is the most hits of an image, up to the next multiple of 64, or all; misses fill the others up."""
    hit = torch.zeros(2, 200, dtype=torch.bool)
    hit[0, 5:8], hit[1, 100:170] = True, True
    index = indices_of(hit)
    assert index.shape == (2, 128)
    assert index[0, :3].tolist() == [5, 6, 7] and index[1, :70].tolist() == [*range(100, 170)]
    assert not hit.gather(1, index)[0, 3:].any() and not hit.gather(1, index)[1, 70:].any()
    assert indices_of(torch.ones(1, 200, dtype=torch.bool)).shape == (1, 200)
    assert indices_of(torch.zeros(1, 200, dtype=torch.bool)).shape == (1, 64)


@pytest.mark.parametrize("kind", ["smoke", "film", "concat"])
def test_samples_without_density_are_left_out_of_gradients_and_nothing_changes(
    kind, request, build, labels, latents, monkeypatch
):
    settings = "nerf.density_activation=relu", "nerf.raw_noise_std=1", "nerf.importance_samples_per_ray=4"
    generator = build(request.getfixturevalue(kind)(*settings))
    learned = []  # samples per image that have gradients
    noting = generator.field.register_forward_pre_hook(
        lambda _, args: learned.append(args[0].shape[1:3].numel()) if torch.is_grad_enabled() else None
    )

    def rendered_and_gradients():
        rendering = generator(latents, labels, noise=noise_of(generator))
        loss = rendering.images.square().mean() + rendering.coarse_images.mean()
        return rendering, torch.autograd.grad(loss, list(generator.parameters()), allow_unused=True)

    dense, dense_gradients = rendered_and_gradients()
    monkeypatch.setattr("graf.models.generator.evaluate_dense", evaluate_all)
    plain, gradients = rendered_and_gradients()
    assert_same_pictures(dense, plain, atol=1e-6, rtol=1e-6)
    for found, expected in zip(dense_gradients, gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)
    assert learned[0] < 0.8 * learned[1]
    noting.remove()


@pytest.mark.parametrize("bias", [-100.0, 100.0], ids=("no sample", "all samples"))
@pytest.mark.parametrize("settings", [(), ("nerf.use_viewdirs=true", "data.box=[-1, -1, -1, 1, 1, 1]")], ids=("rays", "box"))
def test_each_weight_has_its_gradient_however_many_samples_have_density(
    film, build, labels, latents, monkeypatch, bias, settings
):
    """Processes exchange gradients of the same weights, so that none may be missing in one of them; and in each piece of rays
    that is computed again other samples may have density."""
    settings += "nerf.density_activation=relu", "nerf.importance_samples_per_ray=4"
    generator = build(film(*settings))
    with torch.no_grad():
        generator.field.density.bias.fill_(bias)

    def gradients():
        rendering = generator(latents, labels, noise=noise_of(generator), rays_at_once=100)
        loss = rendering.images.square().mean() + rendering.coarse_images.square().mean()
        return torch.autograd.grad(loss, list(generator.parameters()))

    found = gradients()
    monkeypatch.setattr("graf.models.generator.evaluate_dense", evaluate_all)
    for x, expected in zip(found, gradients(), strict=True):
        torch.testing.assert_close(x, expected, atol=1e-7, rtol=1e-5)


def test_converted_weights_are_not_kept_without_gradients(concat, build, labels):
    """Older versions of PyTorch take weights that autocast has converted under no_grad for those of the pass that learns."""
    field = build(concat()).field
    points, directions = torch.zeros(4, 2, 3, 3), torch.ones(4, 2, 3)
    seen = []
    hook = field.register_forward_pre_hook(
        lambda *_: seen.append((torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), torch.is_autocast_enabled("cpu")))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        evaluate_dense(field, points, directions, torch.zeros(4, 8), None)
        assert torch.is_autocast_cache_enabled()
    hook.remove()
    assert seen == [(False, False, True), (True, True, True)]
