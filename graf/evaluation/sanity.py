"""Has the field collapsed? A few numbers of a sheet of renderings that tell an object from nothing, a wall and a plane."""

import math

from graf.models.generator import Rendering

from torch import Tensor

EMPTY, OPAQUE = 0.1, 0.9  # opacity up to which a pixel shows nothing, and from which it shows a surface
NEARLY_ALL = 0.99  # share of the pixels that makes an image empty or full
MANY = 0.5  # share of the images that makes a warning
FLAT = 0.02  # depth spread, as a share of the depth range, under which pictures are planes; a toy car has 0.1
FOG_STEPS = 100  # of training, in which a field is fog, which is flat too


def sanity(rendering: Rendering, near: float, far: float) -> dict[str, float]:
    """Silhouette and depth of a batch of renderings, as scalars for a log.

    mean_opacity; depth_spread, the opacity-weighted standard deviation of depth within an image, in scene units, averaged over
    the images that are not empty, 0 without any; depth_range = far - near; empty_share and full_share of the images.
    """
    opacity, depth = rendering.opacity.flatten(1), rendering.depth.flatten(1)  # (B, P)
    empty = _share_of_pixels(opacity <= EMPTY) >= NEARLY_ALL  # (B,)
    full = _share_of_pixels(opacity >= OPAQUE) >= NEARLY_ALL
    spread = depth_spread(depth, opacity).where(~empty, 0).sum() / (~empty).sum().clamp_min(1)
    return {
        "mean_opacity": opacity.mean().item(),
        "depth_spread": spread.item(),
        "depth_range": far - near,
        "empty_share": empty.float().mean().item(),
        "full_share": full.float().mean().item(),
    }


def depth_spread(depth: Tensor, opacity: Tensor) -> Tensor:
    """Standard deviation (B,) of the depths (B, P) of each image, weighted by the opacity (B, P); nan where that is 0."""
    weights = opacity / opacity.sum(1, keepdim=True)
    mean = (weights * depth).sum(1, keepdim=True)
    return (weights * (depth - mean) ** 2).sum(1).sqrt()


def collapse_warning(stats: dict[str, float | None]) -> str | None:
    """What has collapsed, with its evidence and what may help, from the numbers of `sanity`; None where nothing has.

    Where the numbers name their `step` too, the first FOG_STEPS go without. In a log None stands for what is not finite.
    """
    if any(stats[name] is None or not math.isfinite(stats[name]) for name in ("mean_opacity", "depth_spread")):
        return "depth or opacity of the sample images is not finite: go back to an earlier checkpoint; lower training.lr_g"
    if stats.get("step", FOG_STEPS) < FOG_STEPS:
        return None
    opacity = f"mean opacity {stats['mean_opacity']:.3f}"
    if stats["empty_share"] >= MANY:
        return (
            f"{stats['empty_share']:.0%} of the sample images are empty ({opacity}): the field has collapsed to nothing. Look "
            "whether data.near and data.far enclose the object; lower training.lr_d or raise training.reg_param"
        )
    if stats["depth_spread"] < FLAT * stats["depth_range"]:
        return (
            f"depth varies {stats['depth_spread']:.3f} scene units within a sample image, less than {FLAT:.0%} of far - near "
            f"= {stats['depth_range']:g} ({opacity}): the objects are planes. Look whether the photographs' cameras are right; "
            "lower training.lr_d or raise training.reg_param"
        )
    if stats["full_share"] >= MANY:
        return (
            f"{stats['full_share']:.0%} of the sample images are opaque everywhere ({opacity}): unless the photographs are "
            "filled by their object, its background is a wall. Look whether data.background is that of the photographs"
        )
    return None


def _share_of_pixels(mask: Tensor) -> Tensor:
    return mask.float().mean(1)
