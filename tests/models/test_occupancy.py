"""Fast views of one object: nothing that can be seen is left out, and images are those of the exact renderer."""

import logging
from pathlib import Path

import graf
from graf.camera import rotation_poses
from graf.config import CONFIG_DIR, load_config
from graf.models.generator import Generator
from graf.models.occupancy import LEFT_OUT, ObjectRenderer, SeenField, grid_size, pays

import pytest
import torch
from torch import nn

BOX = "data.box=[-0.8,-0.6,-0.5,0.8,0.6,0.5]"
EMPTY, OPAQUE = -30.0, 60.0


class Ball(nn.Module):
    """Raw density falls from OPAQUE within `radius` of `centre` to EMPTY 0.1 further out; colours change with the place."""

    def __init__(self, radius, centre=(0.0, 0.0, 0.0)):
        super().__init__()
        self.radius, self.centre, self.evaluated = radius, torch.tensor(centre), 0

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, styles):
        self.evaluated += points[..., 0].numel()
        outside = ((points - self.centre).norm(dim=-1) - self.radius) / 0.1
        return OPAQUE + (EMPTY - OPAQUE) * outside.clamp(0, 1), (7 * points).sin() * 3


class Stool(nn.Module):
    """A seat 0.2 thick and 1.2 wide on four legs of radius 0.05: raw density OPAQUE inside and EMPTY outside."""

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, styles):
        x, y, z = points.unbind(-1)
        seat = (z - 0.3).abs().maximum(x.abs() / 6).maximum(y.abs() / 6) < 0.1
        legs = ((x.abs() - 0.4).hypot(y.abs() - 0.4) < 0.05) & (z.abs() < 0.3)
        return torch.where(seat | legs, OPAQUE, EMPTY), points.sin() * 3


BALLS = {
    "in the middle": Ball(0.4),
    "across the box's corner": Ball(0.35, (0.8, 0.6, 0.5)),
    "empty": Ball(-1.0),
    "full": Ball(9.0),
}


def object_of(config, field=None):
    """A generator, of this field, and latents and class of an object."""
    torch.manual_seed(3)
    generator = Generator(config).eval()
    if field is not None:
        generator.field = field
    return generator, generator.sample_latents(1, torch.Generator().manual_seed(5)), torch.zeros(1, dtype=torch.long)


def both(generator, latents, class_index, poses, resolution):
    exact, fast = (ObjectRenderer(generator, latents, class_index, fast).render(poses, resolution) for fast in (False, True))
    return exact, fast


def steps_of_255(a, b):
    """The largest difference of images that are written with 8 bits, of all pixels: a video shows its worst one too."""
    return 127.5 * (a.images.clamp(-1, 1) - b.images.clamp(-1, 1)).abs().max().item()


@pytest.mark.parametrize("activation", ["relu", "softplus"])
@pytest.mark.parametrize("box", [BOX, "data.box=none"])
@pytest.mark.parametrize("where", BALLS)
def test_images_are_within_2_of_255_steps(smoke, where, box, activation):
    config = smoke(box, f"nerf.density_activation={activation}", "nerf.render_samples_per_ray=32")
    generator, *one = object_of(config, BALLS[where])
    exact, fast = both(generator, *one, rotation_poses(3, config.data), 32)
    assert steps_of_255(exact, fast) < 2
    assert (exact.opacity - fast.opacity).abs().max() <= 2 / 255
    if where == "empty":
        assert (fast.images == 1).all() and (fast.opacity < 1e-9).all()
    elif where != "full":
        assert exact.opacity.max() > 0.99 > 0.01 > exact.opacity.min()


@pytest.mark.parametrize("multires", [4, 6, 10])
@pytest.mark.parametrize("box", [BOX, "data.box=none"])
@pytest.mark.parametrize("kind", ["film", "concat", "smoke"])
@pytest.mark.parametrize("importance", [0, 8])
def test_every_field_of_drawn_weights(kind, box, importance, multires, request):
    """CCSR follows, and view directions, which each sample takes from its ray (concat)."""
    config = request.getfixturevalue(kind)(
        *(box, f"nerf.importance_samples_per_ray={importance}", "ccsr.mode=refine", "ray_sampler.rays_per_patch=64"),
        f"nerf.multires={multires}",
    )
    generator, *one = object_of(config)
    exact, fast = both(generator, *one, rotation_poses(3, config.data), 32)
    assert steps_of_255(exact, fast) < 2
    assert exact.images.std() > 0


@pytest.mark.parametrize("multires", [6, 10])
@pytest.mark.parametrize("box", ["data.box=[-0.8,-0.8,-0.6,0.8,0.8,0.6]", "data.box=none"])
@pytest.mark.parametrize(("config", "samples"), [("default.yaml", 32), ("carla_128.yaml", 64)])
def test_thin_legs_are_not_lost(config, samples, box, multires):
    """Without a box, 32 points along a side of what cameras see miss the legs, and in GRAF's configs the whole stool."""
    config = load_config(
        CONFIG_DIR / config,
        (box, f"nerf.multires={multires}", f"nerf.render_samples_per_ray={samples}", "data.imsize=64", "ccsr.mode=none"),
    )
    generator, *one = object_of(config, Stool())
    exact, fast = both(generator, *one, rotation_poses(2, config.data), 64)
    assert steps_of_255(exact, fast) < 2
    assert (exact.opacity > 0.99).sum() > 250


def test_an_object_thinner_than_a_cell_is_rendered_exactly(smoke, caplog):
    """A sheet of 0.004 that lies between two layers of the grid: the first view shows it, and no bound of the grid does."""
    config = smoke(BOX, "nerf.render_samples_per_ray=32")
    _, _, n = grid_size(torch.tensor(config.data.box).view(2, 3), config.nerf)
    between = -0.5 + (n // 2 + 0.5) / (n - 1)  # z, of layers from -0.5 to 0.5

    class Sheet(Stool):
        def forward(self, points, view_directions, styles):
            inside = (points[..., 2] - between).abs() < 0.002
            return torch.where(inside, 1e4, EMPTY), points.sin() * 3

    generator, *one = object_of(config, Sheet())
    renderer = ObjectRenderer(generator, *one, fast=True)
    assert renderer._fast.field.highest.max() < 1e-6
    with caplog.at_level(logging.INFO, "graf"):
        fast = renderer.render(rotation_poses(2, config.data), 32)
        later = renderer.render(rotation_poses(2, config.data)[1:], 32)
    exact = ObjectRenderer(generator, *one, fast=False).render(rotation_poses(2, config.data), 32)
    assert torch.equal(fast.images, exact.images) and torch.equal(later.images[0], exact.images[1])
    assert exact.opacity.max() > 0.9
    assert [record.message.endswith("rendering exactly") for record in caplog.records] == [True]


def test_official_weights():
    """GRAF's own network, without a box and with ten octaves."""
    folder = Path(__file__).parents[2].parent / "shared" / "fixtures" / "graf_official"
    if not folder.exists():
        pytest.skip("the reference outputs of GRAF are not here")
    generator = graf.load_generator(folder / "model.pt", config=folder / "config.yaml")
    latents, poses = generator.sample_latents(1, torch.Generator().manual_seed(0)), rotation_poses(2, generator.config.data)
    exact, fast = both(generator, latents, torch.zeros(1, dtype=torch.long), poses, 24)
    assert steps_of_255(exact, fast) < 2
    assert exact.images.std() > 0


def test_no_sample_is_left_out_that_has_opacity(smoke):
    """The weights of all samples that are left out sum up to LEFT_OUT on no ray."""
    config = smoke(BOX, "nerf.density_activation=softplus", "nerf.render_samples_per_ray=32")
    generator, latents, class_index = object_of(config, Ball(0.4, (0.1, 0.0, 0.05)))
    taken = []
    shade, field = generator._shade, ObjectRenderer(generator, latents, class_index, fast=True)._fast.field

    def record(field_of_all, rays_o, rays_d, depths, styles, density_noise):
        colour, weights = shade(field_of_all, rays_o, rays_d, depths, styles, density_noise)
        seen = field.is_seen(rays_o[..., None, :] + rays_d[..., None, :] * depths[..., None])
        taken.append((weights * ~seen).sum(-1).max().item())
        taken.append(seen.float().mean().item())
        return colour, weights

    generator._shade = record
    generator.render(latents, rotation_poses(1, config.data), 32)
    left_out, share = taken
    assert left_out <= LEFT_OUT
    assert 0 < share < 0.5


def test_the_bounds_hold_at_any_point(smoke):
    config = smoke(BOX, "nerf.density_activation=softplus")
    generator, latents, class_index = object_of(config, Ball(0.4, (0.1, 0.0, 0.05)))
    field = ObjectRenderer(generator, latents, class_index, fast=True)._fast.field
    low, high = generator.box
    points = low + (high - low) * torch.rand(20000, 3, generator=torch.Generator().manual_seed(0))
    density = nn.functional.softplus(generator.field(points[None, None], None, latents)[0][0, 0])
    cells = field.cells(points)
    assert (density <= field.highest[cells] * (1 + 1e-6)).all()
    assert (density >= field.lowest[cells] * (1 - 1e-6)).all()
    assert (density > 1).any() and (field.highest[cells] < 1e-6).any()


@pytest.mark.parametrize(("where", "share"), [("in the middle", 0.3), ("empty", 0.0), ("full", 0.3)])
def test_empty_space_and_hidden_samples_cost_nothing(smoke, where, share):
    """An opaque object that fills the box is seen at the first samples of its rays; an empty one costs its grid alone."""
    config = smoke(BOX, "nerf.render_samples_per_ray=64", "nerf.density_activation=relu")
    generator, *one = object_of(config, BALLS[where])
    poses, evaluated = rotation_poses(2, config.data), []
    for fast in (False, True):
        renderer = ObjectRenderer(generator, *one, fast)
        renderer.render(poses[:1], 32)  # the first view is rendered both ways
        generator.field.evaluated = 0
        renderer.render(poses, 32)
        evaluated.append(generator.field.evaluated)
    assert evaluated[1] <= share * evaluated[0]


def test_styles_are_those_of_the_object_once(film, monkeypatch):
    generator, *one = object_of(film(BOX))
    calls, real = [], generator.field.styles
    monkeypatch.setattr(generator.field, "styles", lambda latents: calls.append(len(latents)) or real(latents))
    renderer = ObjectRenderer(generator, *one, fast=True)
    renderer.render(rotation_poses(5, generator.config.data))
    renderer.render(rotation_poses(5, generator.config.data))
    assert calls == [1, 1]  # for the grid, and for the first view's exact rendering
    assert not isinstance(generator.field, SeenField)


@pytest.mark.parametrize("chunk", [100, 300, 5000])
def test_frames_are_the_same_in_any_chunks(smoke, chunk):
    frames = []
    for size in (chunk, 16384):
        generator, *one = object_of(smoke(BOX, f"nerf.chunk={size}"), Ball(0.4))
        frames.append(ObjectRenderer(generator, *one, fast=True).render(rotation_poses(3, generator.config.data), 32))
    torch.testing.assert_close(frames[0].images, frames[1].images, atol=1e-5, rtol=0)


def test_it_is_of_its_object_alone(smoke):
    """Two objects of one generator, with classes: each is what the generator renders of it."""
    torch.manual_seed(3)
    generator = Generator(smoke(BOX, "discriminator.condition=class_and_pose"), n_classes=2).eval()
    nn.init.normal_(generator.class_embedding.weight, std=3.0)
    latents, poses = generator.sample_latents(1), rotation_poses(2, generator.config.data)
    images = []
    for class_index in torch.tensor([[0], [1]]):
        exact, fast = both(generator, latents, class_index, poses, 16)
        assert steps_of_255(exact, fast) < 2
        images.append(exact)
    assert steps_of_255(*images) > 5


def test_the_exact_renderer_is_the_generators_own_in_float32(film):
    generator, *one = object_of(film(BOX))
    poses = rotation_poses(2, generator.config.data)
    renderer = ObjectRenderer(generator, *one, fast=False)
    expected = generator.render(one[0].expand(2, -1), poses, class_index=one[1].expand(2))
    assert torch.equal(renderer.render(poses).images, expected.images)


def test_a_grid_is_as_fine_as_samples_and_waves_are():
    """A box 1.6 x 1.2 x 1.0, by hand: 32 steps of a ray, or halves of waves, pi / 32 = 0.0982 and pi / 512 = 0.00614."""
    box = torch.tensor([[-0.8, -0.6, -0.5], [0.8, 0.6, 0.5]])

    def size(*overrides):
        return grid_size(box, load_config(None, overrides).nerf)

    assert size("nerf.render_samples_per_ray=32") == (33, 33, 33)
    assert size("nerf.render_samples_per_ray=32", "nerf.importance_samples_per_ray=16") == (49, 49, 49)
    assert size("nerf.render_samples_per_ray=2") == (18, 14, 12)
    assert size("nerf.render_samples_per_ray=32", "nerf.multires=10") == (262, 197, 164)


def test_a_grid_pays_for_many_or_large_views_in_a_box(smoke):
    """4 samples per point of the grid: 4 * 33^3 = 143,748; four views of 34 x 34 rays of 32 samples have more."""
    generator = Generator(smoke(BOX, "nerf.render_samples_per_ray=32"))
    assert [pays(generator, n, side) for n, side in ((4, 34), (4, 33), (5, 30), (3, 64))] == [True, False, True, False]
    assert 4 * 34**2 * 32 >= 4 * 33**3 > 4 * 33**2 * 32
    refined = Generator(smoke(BOX, "nerf.render_samples_per_ray=32", "ccsr.mode=refine"))  # to twice as many pixels as rays
    assert [pays(refined, 4, side) for side in (68, 66)] == [True, False]
    for without_grid in ("data.box=none", "nerf.multires=10"):
        generator, *one = object_of(smoke(BOX, without_grid))
        assert not pays(generator, 100, 64)
        assert ObjectRenderer(generator, *one, fast=True)._fast is None


def test_the_shipped_car_is_within_2_of_255_steps():
    """Trained edges are sharper than drawn ones."""
    file = Path(__file__).parents[2] / "weights" / "toy_cars.safetensors"
    if not file.exists():
        pytest.skip(f"{file.name} is not there; make weights")
    generator = graf.load_generator(file)
    latents = generator.sample_latents(1, torch.Generator().manual_seed(5))
    exact, fast = both(generator, latents, torch.zeros(1, dtype=torch.long), rotation_poses(4, generator.config.data), 64)
    assert 0 < steps_of_255(exact, fast) < 2
