"""Objects from all sides: whether these differ, and whether walls surround them. A run whose sampled cameras are not those of
its images is warned early.

Legend: N objects, V azimuths, h x w rays.
"""

import logging

from graf.camera import middle_poses
from graf.config import DataConfig
from graf.data import Views
from graf.data.advice.cameras import azimuth_span_deg
from graf.data.views import edge_pixels
from graf.models.generator import Generator
from graf.pictures.sampling import render_views, sample_objects

import torch
from torch import Tensor

log = logging.getLogger("graf")

OBJECTS, VIEWS, SIDE = 4, 24, 16  # azimuths 15 degrees apart, of so many rays per side
LOOKED_AT = 125, 250, 375, 500  # the steps of training after which objects are looked at from all sides; before, a field is fog
WALL = 0.5  # opacity at the edge of the frame; cats before rooms have 0.9 from step 125 on, toy cars nothing
THIN = 0.15  # opacity of the narrowest view, as a share of the widest one's; a toy car has 0.7
SAME_SIDES = 0.1  # difference of opposite views, as a share of that of views a quarter turn apart; toy cars have 0.3
TRACE = 0.002  # of opacity, and of colours in [-1, 1]: less is nothing


def views_all_around(generator: Generator, seed: int) -> tuple[Tensor, Tensor]:
    """The field's images (N, V, 3, h, w) in [-1, 1] and opacity (N, V, 1, h, w) of the first objects of a seed, without
    backgrounds, from azimuths evenly spaced around the circle."""
    data, scale = generator.config.data, generator.config.rendered_scale
    poses = middle_poses(torch.arange(VIEWS) * (360 / VIEWS), data)
    objects = sample_objects(generator, OBJECTS, seed)
    rendering = render_views(generator.without_background(), objects, poses, SIDE * scale)
    images = rendering.images if rendering.low_images is None else rendering.low_images
    return images.unflatten(0, (OBJECTS, VIEWS)), rendering.opacity[..., ::scale, ::scale].unflatten(0, (OBJECTS, VIEWS))


def all_around(images: Tensor, opacity: Tensor) -> dict[str, float]:
    """Numbers of images (N, V, 3, h, w) and opacity (N, V, 1, h, w) from azimuths evenly spaced around the circle; means over
    objects.

    edge_opacity is that at the edge of the frame; thinness the opacity of the narrowest view, as a share of the widest one's;
    likeness the difference of opposite views, or of one and the other's mirror image, as a share of that of views a quarter
    turn apart. The last two are 1 of what is empty, or the same all around.
    """
    n_views, by_view = images.shape[1], opacity.mean(dim=(2, 3, 4))  # (N, V)

    def difference(turned: int, mirrored: bool = False) -> Tensor:
        others = images.roll(-turned, 1)
        return (images - (others.flip(-1) if mirrored else others)).abs().mean(dim=(1, 2, 3, 4))  # (N,)

    def share(part: Tensor, whole: Tensor) -> float:
        return ((part + TRACE) / (whole + TRACE)).mean().item()

    opposite = torch.minimum(difference(n_views // 2), difference(n_views // 2, mirrored=True))
    return {
        "edge_opacity": edge_pixels(opacity.flatten(0, 2)).mean().item(),
        "thinness": share(by_view.amin(1), by_view.amax(1)),
        "likeness": share(opposite, difference(n_views // 4)),
    }


class SideWatch:
    """Looks at a run's objects from all sides in its first steps, and warns once where they are all front.

    Only where cameras are sampled over the whole circle. What it has seen is not part of a run's state.
    """

    def __init__(self, dataset: Views, data: DataConfig):
        self._dataset, self._data, self._warned = dataset, data, False

    def due(self, step: int) -> bool:
        """Whether objects are to be looked at after this step; in a run of several processes, by the first alone."""
        if self._warned or step not in LOOKED_AT or self._dataset.posed:
            return False
        return azimuth_span_deg(self._dataset, self._data) >= 360

    def check(self, generator: Generator, step: int, seed: int) -> None:
        """Look at the objects of a seed, and warn if they are all front."""
        numbers = all_around(*views_all_around(generator, seed))
        if message := one_sided_warning(numbers, generator.config.data.background_model == "plane"):
            log.warning("step %d: %s", step, message)
            self._warned = True


def one_sided_warning(numbers: dict[str, float], has_backgrounds: bool = False) -> str | None:
    """A warning, with its evidence and the keys that mend it, from the numbers of `all_around`; None without one.

    has_backgrounds: data.background_model is set already.
    """
    edge, thinness, likeness = (numbers[name] for name in ("edge_opacity", "thinness", "likeness"))
    if edge > WALL:
        found = f"their opacity at the edge of the frame is {edge:.2f}: walls fill it from all sides"
    elif thinness < THIN:
        found = f"they are boards, whose narrowest view has {thinness:.0%} of the widest one's opacity"
    elif likeness < SAME_SIDES:
        found = f"their opposite sides look alike: these differ by {likeness:.0%} of what a quarter turn changes"
    else:
        return None
    plane = ", and data.background_model=plane where backgrounds are not cut off" if edge > WALL and not has_backgrounds else ""
    return (
        f"cameras are sampled all around, as the images have none, and of the objects that this gives, {found}. If all images "
        f"show the front, as those of faces do, set data.camera_prior=front{plane}"
    )
