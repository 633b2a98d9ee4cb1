"""Objects from all sides: whether these differ, and whether walls surround them.

Legend: N objects, V azimuths, h x w rays.
"""

from graf.camera import middle_poses
from graf.data.views import edge_pixels
from graf.models.generator import Generator
from graf.pictures.sampling import render_views, sample_objects

import torch
from torch import Tensor

OBJECTS, VIEWS, SIDE = 4, 24, 16  # azimuths 15 degrees apart, of so many rays a side
TRACE = 0.002  # of opacity, and of colours in [-1, 1]: less is nothing


def seen_all_around(generator: Generator, seed: int) -> dict[str, float]:
    """`all_around` of the first objects of a seed, without backgrounds."""
    return all_around(*views_all_around(generator, seed))


def views_all_around(generator: Generator, seed: int) -> tuple[Tensor, Tensor]:
    """The field's images (N, V, 3, h, w) in [-1, 1] and opacity (N, V, 1, h, w), without backgrounds, from azimuths evenly
    spaced around the circle."""
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
