"""Splits coverage and MMD into the share of bodies and that of how surfaces are read.

    python bench/explain_coverage.py weights/toy_cars.safetensors

Toy cars, of which the surface is known, take the place of the field and are read as generated objects are, by the same rays
and samples: with sharp edges, with edges as soft as the default's, and grown or shrunk by half of a ray's spacing. Generated
objects are read at the mean depth of a ray, as eval.py reads them, and where half of the light is left; and with more density.

Legend: B images, R rays per image, S samples per ray.
"""

import dataclasses
import math
from pathlib import Path

import graf
from graf.data.car_shapes import make_car
from graf.data.raycast import Solids
from graf.errors import GrafError
from graf.metrics.shapes import SURFACE_RAYS, chamfer_distances, coverage_and_mmd, exact_clouds, generated_clouds, surface_poses
from graf.models.generator import Generator
from graf.pictures.sampling import Objects, sample_objects
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.device import keep_freed_memory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHARP, SOFT = (1000.0, 0.002), (60.0, 0.01)  # density inside, and over what length it falls to 0; the second as the default's
FACTORS = 2, 4, 8
CARS_SEED = 0


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint file of toy cars, or its run's folder")
    parser.add_argument("--n", type=positive, default=64, help="objects of each kind")
    parser.add_argument("--samples", type=positive, help="per ray; by default nerf.render_samples_per_ray")
    args = parser.parse_args()
    keep_freed_memory()
    generator = graf.load_generator(args.checkpoint)
    if args.samples:
        nerf = dataclasses.replace(generator.config.nerf, render_samples_per_ray=args.samples)
        generator.config = dataclasses.replace(generator.config, nerf=nerf)
    if generator.config.data.type != "toy_cars" or generator.config.data.seed != CARS_SEED:
        raise GrafError(f"{args.checkpoint}: its objects are not toy cars of data.seed {CARS_SEED}; name a checkpoint of these")
    learned, objects = generator.field, sample_objects(generator, args.n, seed=0)
    poses, numbers, others = surface_poses(generator.config.data), range(-args.n, 0), range(-2 * args.n, -args.n)
    reference = exact_clouds(numbers, poses, generator.config)

    def tell(name: str, clouds: list[np.ndarray], of_reference: list[np.ndarray] | None = None) -> None:
        coverage, mmd = coverage_and_mmd(chamfer_distances(clouds, reference))
        own = f"{1000 * np.diag(chamfer_distances(of_reference, reference)).mean():.2f}" if of_reference else ""
        log.info("| %s | %s | %.2f | %.2f |", name, own, coverage, 1000 * mmd)

    log.info("| %d objects | own car x 1000 | coverage | MMD x 1000 |\n| --- | --- | --- | --- |", args.n)
    tell("other toy cars", exact_clouds(others, poses, generator.config))
    half = generator.config.data.radius[0] * math.tan(math.radians(generator.config.data.fov / 2)) / SURFACE_RAYS
    for name, edge, grown in (
        ("as densities with sharp edges", SHARP, 0.0),
        ("with soft edges", SOFT, 0.0),
        ("sharp, grown by half of a ray's spacing", SHARP, half),
        ("sharp, shrunk by as much", SHARP, -half),
    ):
        field = CarField(*edge, grown)
        tell(
            f"other toy cars, {name}",
            *(clouds_with(generator, field, car_numbers(some, generator), poses) for some in (others, numbers)),
        )
    tell("generated", clouds_with(generator, learned, objects, poses))
    for factor in FACTORS:
        tell(f"generated, density x {factor}", clouds_with(generator, Denser(learned, factor), objects, poses))
    generator.__class__ = HalfLight
    tell("generated, at half light", clouds_with(generator, learned, objects, poses))
    soft = (clouds_with(generator, CarField(*SOFT), car_numbers(some, generator), poses) for some in (others, numbers))
    tell("other toy cars, with soft edges, at half light", *soft)


def clouds_with(generator: Generator, field: nn.Module, objects: Objects, poses: Tensor) -> list[np.ndarray]:
    """Points (POINTS, 3) on the surface of each object, with this field in the generator."""
    generator.field = field
    return generated_clouds(generator, objects, poses)


def car_numbers(numbers: range, generator: Generator) -> Objects:
    """Latents whose first value is a toy car's number, and classes."""
    latents = torch.zeros(len(numbers), generator.latent_dim)
    latents[:, 0] = torch.tensor(numbers)
    return latents, torch.zeros(len(numbers), dtype=torch.long)


class CarField(nn.Module):
    """Toy cars of CARS_SEED as raw density: `inside` within the surface, moved out by `grown`, falling as a sigmoid of
    `width`, in scene units. It has no colours."""

    def __init__(self, inside: float, width: float, grown: float = 0.0):
        super().__init__()
        self.inside, self.width, self.grown = inside, width, grown

    def styles(self, latents: Tensor) -> list[Solids]:
        return [make_car(CARS_SEED, int(number)) for number in latents[:, 0]]

    def forward(self, points: Tensor, view_directions: Tensor, styles: list[Solids]) -> tuple[Tensor, Tensor]:
        """See `ConcatField.forward`."""
        outside = torch.stack([distance_to(car, of_one) for car, of_one in zip(styles, points, strict=True)])
        density = self.inside * torch.sigmoid((self.grown - outside) / self.width)
        return before_softplus(density), torch.zeros_like(points)


class Denser(nn.Module):
    """A field with a multiple of its density."""

    def __init__(self, field: nn.Module, factor: float):
        super().__init__()
        self.field, self.factor, self.styles = field, factor, field.styles

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        density, colour = self.field(*inputs)
        return before_softplus(self.factor * F.softplus(density)), colour


class HalfLight(Generator):
    """A generator whose depth is that of the first sample behind which less than half of the light is left."""

    def _shade(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        colour, weights = super()._shade(*inputs)
        first = (weights.cumsum(-1) > 0.5).byte().argmax(-1, keepdim=True)
        return colour, torch.zeros_like(weights).scatter(-1, first, weights.sum(-1, keepdim=True))


def distance_to(car: Solids, points: Tensor) -> Tensor:
    """Distance (R, S) of points (R, S, 3) from a car's surface, below 0 inside; near edges outside it is too small."""
    nearest = torch.full(points.shape[:-1], math.inf)
    for faces in car.faces:
        nearest = torch.minimum(nearest, (points @ faces[:, :3].T - faces[:, 3]).amax(-1))
    for x, y, z, radius, half_width in car.discs.tolist():
        off_rim = torch.hypot(points[..., 0] - x, points[..., 2] - z) - radius
        nearest = torch.minimum(nearest, torch.maximum(off_rim, (points[..., 1] - y).abs() - half_width))
    return nearest


def before_softplus(density: Tensor) -> Tensor:
    """Raw density of which the softplus is the density, above 0."""
    density = density.clamp_min(1e-30)
    return density + torch.log(-torch.expm1(-density))


if __name__ == "__main__":
    run_script(main)
