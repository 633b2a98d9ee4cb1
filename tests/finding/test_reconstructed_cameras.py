"""Cameras compared with the opposite ones by reconstructions."""

import copy
import math

from graf.camera import azimuth_and_v, poses_at
from graf.config import load_config, override
from graf.data.views import Views
from graf.finding import reconstruction
from graf.finding.reconstruction import by_reconstruction
from graf.finding.rounds import FoundCameras
from graf.models.generator import Generator, Rendering
from graf.rotations import circular_distance

import pytest
import torch

V = 0.4
TRUE = torch.tensor([0.0, 33.0, 100.0, 181.0, 250.0, 355.0])


def colours_of(azimuth_deg: torch.Tensor, width: int = 8) -> torch.Tensor:
    """Images (N, 3, width, width) in [-0.5, 0.5] that tell their azimuths (N,)."""
    angle = torch.deg2rad(azimuth_deg)
    colours = torch.stack([angle.cos() / 2, angle.sin() / 2, 0 * angle], dim=1)
    return colours[..., None, None].expand(-1, -1, width, width)


class Shots(Views):
    """Images that are floats already, of two classes in turn, of which the first class has none."""

    def __init__(self, images: torch.Tensor):
        n = len(images)
        super().__init__([f"{i}.png" for i in range(n)], ["none", "bus", "car"], 1 + torch.arange(n) % 2, None, "")
        self.images = images

    def read(self, index: int) -> torch.Tensor:
        return self.images[index]


class NoLatents:
    """An encoder that finds nothing, and remembers from where it was told that images are seen."""

    def __call__(self, images: torch.Tensor, pose_c2w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.poses = pose_c2w
        return torch.zeros(len(images), 1), torch.zeros(len(images), 1)

    def sample(self, mean: torch.Tensor, log_variance: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, None]:
        return mean, None


class Compass:
    """A generator whose opaque images tell the azimuth that they are seen from."""

    latent_dim = 1

    def __init__(self, alpha: str = "ignore"):
        self.config = load_config(None, ["data.imsize=8", "data.radius=[2, 4]", f"data.alpha={alpha}"])
        self.background, self.encoder = torch.zeros(3), NoLatents()
        self.classes: list[int] = []
        self.heights: list[float] = []

    def unrefined(self) -> "Compass":
        return copy.copy(self)

    def render(self, latents: torch.Tensor, pose_c2w: torch.Tensor, width: int, classes: torch.Tensor) -> Rendering:
        azimuth_deg, v = azimuth_and_v(pose_c2w)
        assert torch.equal(pose_c2w, self.encoder.poses)
        torch.testing.assert_close(pose_c2w[:, :, 3].norm(dim=1), torch.full((len(latents),), 3.0))
        self.classes += classes.tolist()
        self.heights += v.tolist()
        assert self.config.nerf.rendered_samples_per_ray == self.config.nerf.samples_per_ray
        nothing = torch.zeros(len(latents), 1, width, width)
        return Rendering(colours_of(azimuth_deg, width), nothing, nothing, opacity=nothing + 1)


def found_at(azimuth_deg: torch.Tensor, either_end: float = 1.0) -> FoundCameras:
    n = len(azimuth_deg)
    return FoundCameras(azimuth_deg % 360, torch.full((n,), V), torch.full((n,), 0.2), torch.full((n,), either_end))


def test_cameras_go_to_the_better_end_and_there_to_the_best_azimuth():
    off = torch.tensor([0.0, 180.0, 4.0, -184.0, 177.0, -3.0])
    moved = by_reconstruction(Compass(), Shots(colours_of(TRUE)), found_at(TRUE + off))
    assert circular_distance(moved.azimuth_deg, TRUE).max() < 0.2
    assert ((moved.azimuth_deg >= 0) & (moved.azimuth_deg < 360)).all()
    assert torch.equal(moved.v, torch.full((6,), V))


def test_no_camera_is_turned_by_more_than_five_degrees_about_an_end():
    off = torch.tensor([25.0, -25.0, 205.0, 12.0, -12.0, 155.0])
    moved = by_reconstruction(Compass(), Shots(colours_of(TRUE)), found_at(TRUE + off))
    left = torch.tensor([20.0, 20.0, 20.0, 7.0, 7.0, 20.0])
    torch.testing.assert_close(circular_distance(moved.azimuth_deg, TRUE), left, atol=1e-3, rtol=0)


def error_of(off_deg: float, strength: float, bias: float) -> float:
    """The error of a compass' image from an azimuth that is off, for an image of the right one's `strength`, by the law of
    cosines, with a third colour of `bias`."""
    return (strength**2 + 1 - 2 * strength * math.cos(math.radians(off_deg))) / 12 + bias**2 / 3


@pytest.mark.parametrize("opacity", [None, 1.0, -1.0])
def test_the_confidence_is_of_either_end_and_of_the_better_one(opacity):
    """What tells the ends apart is the difference of both errors, in mean errors of all photographs, to which opacity adds."""
    kinds, azimuths = ((0.9, 0.1), (0.2, 0.3)), torch.tensor([20.0, 110.0])
    images = torch.stack([s * colours for (s, _), colours in zip(kinds, colours_of(azimuths), strict=True)])
    images[:, 2] = torch.tensor([bias for _, bias in kinds])[:, None, None]
    if opacity is not None:
        images = torch.cat([images, torch.full((2, 1, 8, 8), opacity)], dim=1)
    wrong = 4.0 if opacity == -1 else 0.0  # the compass is opaque: 1
    own, opposite = (torch.tensor([error_of(off, *kind) + wrong for kind in kinds]) for off in (0, 175))
    odds = 6.5 * (opposite - own) / own.mean()
    told = by_reconstruction(
        Compass("ignore" if opacity is None else "rgba"), Shots(images), found_at(azimuths, 0.9)
    ).confidence
    torch.testing.assert_close(told, 0.9 / (1 + (-odds).exp()))


def test_nothing_is_sure_where_nothing_tells_the_ends_apart():
    generator = Compass()
    generator.render = lambda latents, *_: Rendering(
        torch.zeros(len(latents), 3, 8, 8), *[torch.ones(len(latents), 1, 8, 8)] * 3
    )
    told = by_reconstruction(generator, Shots(torch.zeros(2, 3, 8, 8)), found_at(TRUE[:2], either_end=0.9))
    torch.testing.assert_close(told.confidence, torch.full((2,), 0.45))
    assert torch.equal(told.azimuth_deg, TRUE[:2])


def test_each_photograph_has_its_class_as_a_rounds_folders_number_it_and_its_height(monkeypatch):
    monkeypatch.setattr(reconstruction, "AT_ONCE", 3)
    compass, v = Compass(), torch.linspace(0.3, 0.5, 6)
    by_reconstruction(compass, Shots(colours_of(TRUE)), found_at(TRUE)._replace(v=v))
    assert compass.classes == [index for photograph in range(6) for index in 6 * [photograph % 2]]
    torch.testing.assert_close(torch.tensor(compass.heights), v.repeat_interleave(6))


def test_pixels_are_compared_where_they_are(smoke, monkeypatch):
    """A generator's own views, of which every other pixel is rendered, are reconstructed without an error."""
    config = smoke("data.imsize=64", "ray_sampler.rays_per_patch=4096", "encoder.weight=1", "data.alpha=rgba")
    generator = Generator(config, n_classes=1).eval()
    latents = torch.randn(1, generator.latent_dim, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(generator.encoder, "sample", lambda mean, *_: (latents.expand(len(mean), -1), None))
    azimuth_deg, v = TRUE[:2], torch.full((2,), V)
    views = generator.render(latents.expand(2, -1), poses_at(azimuth_deg, v, config.data.radius[0]))
    images = torch.cat([views.images, 2 * views.opacity - 1], dim=1)
    field = reconstruction._field_of(generator)
    errors = reconstruction._errors(field, images, azimuth_deg, v, torch.zeros(2, dtype=torch.long))
    assert errors.shape == (2, 2, 3)
    assert errors[:, 0, 1].max() < 1e-9 < errors[:, 0, 0].min()


def test_what_is_compared_is_the_encoders_mean_as_the_field_shows_it_without_refinement(smoke):
    """Of a generator whose refinement and variance would show, and whose config remains its own."""
    settings = ("ccsr.mode=refine", "nerf.render_samples_per_ray=32", "encoder.weight=1", "data.alpha=rgba")
    generator = Generator(smoke(*settings), n_classes=1).eval()
    torch.manual_seed(0)
    for parameter in (*generator.refinement.parameters(), *generator.encoder.parameters()):
        torch.nn.init.normal_(parameter, std=0.3)
    config, side = generator.config, generator.config.data.imsize
    images, azimuth_deg, v = torch.rand(1, 4, side, side) * 2 - 1, TRUE[:1], torch.tensor([V])
    found = by_reconstruction(generator, Shots(images), FoundCameras(azimuth_deg, v, v, torch.ones(1)))
    assert generator.config is config and generator.refinement is not None and not found.confidence.requires_grad

    errors = []
    for end_deg in (0, 180):
        with torch.no_grad():
            poses = poses_at(azimuth_deg + end_deg + torch.tensor([-5, 0, 5]), v.expand(3), sum(config.data.radius) / 2)
            means, _ = generator.encoder(images.expand(3, -1, -1, -1), poses)
            field = generator.unrefined()
            field.config = override(field.config, ["nerf.render_samples_per_ray=0"])
            made = field.render(means, poses)
        shown = torch.cat([made.images, 2 * made.opacity - 1], dim=1)
        squares = (shown - images).square().mean(dim=(2, 3))
        errors.append((squares[:, :3].mean(1) + squares[:, 3]).min())
    excess = (errors[0] - errors[1]).abs() / min(errors)
    torch.testing.assert_close(found.confidence, 1 / (1 + (-6.5 * excess).exp()).view(1))
