"""Warnings about a collapse of the field, from the numbers that training logs with its sample images."""

import math

MANY = 0.5  # share of the images that makes a warning
FLAT = 0.02  # depth spread, as a share of the depth range, under which pictures are planes; a toy car has 0.1
FOG_STEPS = 100  # of training: until then a field is fog, whose depth is flat too


def collapse_warning(stats: dict[str, float | None]) -> str | None:
    """A warning about a collapse, with its evidence and a cure, from the numbers of `consistency.sanity`; None without one.

    Where the numbers include their `step`, the first FOG_STEPS give no warning. None in a log stands for a non-finite value.
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
