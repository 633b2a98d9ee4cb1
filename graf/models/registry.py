"""The radiance fields and discriminators by the names that a config gives them; CONTRIBUTING.md says how to add one.

graf/config/schema.py lists the same names, so that a config with another one is refused.
"""

from collections.abc import Callable

from graf.config import Config
from graf.models.discriminators.convolutional import ConditionedDiscriminator, Discriminator
from graf.models.discriminators.mixed import MixedDiscriminator
from graf.models.discriminators.projected import ProjectedDiscriminator
from graf.models.fields.radiance_field import ConcatField, FilmField
from graf.models.fields.triplane import TriplaneField

from torch import nn

# nerf.conditioning: (config, depth, width) -> a module with styles(latents) and forward(points, view_directions, styles)
FIELDS: dict[str, Callable[[Config, int, int], nn.Module]] = {
    "concat": ConcatField,
    "film": FilmField,
    "triplane": TriplaneField,
}
# discriminator.architecture: (config, n_classes, n_elevations) -> a module with forward(images, labels) -> Scores
DISCRIMINATORS: dict[str, Callable[[Config, int, int], ConditionedDiscriminator]] = {
    "graf": Discriminator,
    "projected": ProjectedDiscriminator,
    "mixed": MixedDiscriminator,
}


def build_field(config: Config, depth: int, width: int) -> nn.Module:
    """The radiance field that nerf.conditioning names."""
    return FIELDS[config.nerf.conditioning](config, depth, width)


def build_discriminator(config: Config, n_classes: int = 1, n_elevations: int = 1) -> ConditionedDiscriminator:
    """The discriminator that discriminator.architecture names. data.alpha has to be decided before."""
    return DISCRIMINATORS[config.discriminator.architecture](config, n_classes, n_elevations)
