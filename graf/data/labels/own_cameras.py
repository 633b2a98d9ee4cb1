"""data.fov, radius, near and far by the cameras of files, for a config that leaves them as they are for the toy cars."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graf.config import DataConfig
from graf.config.strict import keys_in_words
from graf.data.decoding import upright_size
from graf.data.folders import Item
from graf.data.labels.framing import FOV_TOLERANCE_DEG, NARROWEST_FOV, are_cropped, fov_of_square
from graf.data.labels.placement import (
    depth_of_origin,
    distances_of,
    half_width,
    has_usual_size,
    is_out_of_reach,
    listed_places,
    radius_of,
    reach,
    rounded,
    stands_elsewhere,
)
from graf.runtime.limits import available_cores
from graf.runtime.threads import map_in_threads

OF_CAMERAS = ("fov", "radius", "near", "far")
FARTHEST = 2.0  # times as far away as the nearest camera: of others one may be a mistake

log = logging.getLogger("graf")


def has_default(data: DataConfig, keys: Sequence[str]) -> bool:
    """Whether the config leaves all of these keys of `data` as they are by default."""
    return all(getattr(data, key) == getattr(DataConfig, key) for key in keys)


def left_to_cameras(data: DataConfig) -> list[str]:
    """Those of OF_CAMERAS that the config leaves as they are by default."""
    return [key for key in OF_CAMERAS if has_default(data, [key])]


def with_lens(items: Sequence[Item], data: DataConfig, scaled: bool) -> DataConfig | None:
    """The config with the photographs' data.fov where it leaves that to them, and where their cameras are `scaled` with the
    data.radius at which a frame shows as much of the object as by default. None where one photograph alone is far narrower than
    the others."""
    free, default = left_to_cameras(data), DataConfig()
    fov = _fov(items, data) if "fov" in free else data.fov
    if fov is None:
        return None
    if not scaled or "radius" not in free or fov == default.fov:
        return replace(data, fov=fov)
    distance = default.radius[0] * half_width(default.fov) / half_width(fov)
    return replace(data, fov=fov, radius=(rounded(distance, 3),) * 2)


def camera_settings(groups: Mapping[str, list[Item]], data: DataConfig, lens: DataConfig, scaled: bool) -> dict[str, Any]:
    """Other values for what the config leaves to the cameras, logged: their field of view and distance, and depths that hold an
    object as deep as the frame is wide at its place. Empty where the default's fit; the field of view alone where cameras look
    away, or have an odd distance, as in another unit, or odd distances.

    groups: images by the file that has their cameras. lens: the config from `with_lens`. scaled: the cameras were scaled to its
    data.radius.
    """
    posed = [item for found in groups.values() for item in found if item.pose_c2w is not None]
    if not posed:
        return {}
    fitting, free = _fitting(posed, data, lens, scaled), left_to_cameras(data)
    settings = {key: value for key, value in fitting.items() if key in free and value != getattr(data, key)}
    if settings:
        log.info(
            "%s, by the cameras of %s; of these keys, one that has another value than the default's is left to you",
            *(keys_in_words(settings), listed_places(list(groups))),
        )
    return settings


def _fitting(posed: Sequence[Item], data: DataConfig, lens: DataConfig, scaled: bool) -> dict[str, Any]:
    """Values of OF_CAMERAS that fit the cameras, in that order; arguments and what is empty as for `camera_settings`."""
    depths, distances, default = depth_of_origin(posed), distances_of(posed), DataConfig()
    is_ahead = depths > 0
    if not is_ahead.any():
        return {"fov": lens.fov}
    depths, distances = depths[is_ahead], distances[is_ahead]
    at_radius = lens.radius == default.radius if scaled else not stands_elsewhere(distances, default)
    if lens.fov == default.fov and at_radius and not is_out_of_reach(posed, default).any():
        return {}
    nearest, mean, farthest = (value.item() for value in (distances.min(), distances.mean(), distances.max()))
    own_radius = "radius" not in left_to_cameras(data)
    named = own_radius and (scaled or not stands_elsewhere(distances, lens))  # in the unit that the user has
    if farthest > FARTHEST * nearest or not (named or has_usual_size(mean, lens.fov)):
        return {"fov": lens.fov}
    radius = lens.radius if scaled or own_radius else radius_of(nearest, farthest)
    off_axis = (distances - depths).max().item()  # of an object that is not in the middle of its frames
    return {"fov": lens.fov, "radius": radius} | reach(
        nearest, farthest, rounded(mean * half_width(lens.fov), 3), radius, off_axis
    )


def _fov(items: Sequence[Item], data: DataConfig) -> float | None:
    """The field of view that all photographs have, or else that of the narrowest, to which the others are cropped; data.fov
    where it is that, or where no file tells one. None where the narrowest is far from most."""
    known = [item for item in items if item.focal is not None]
    sizes = map_in_threads(upright_size, [item.file for item in known], available_cores())
    try:
        found = [fov_of_square(item, size, data) for item, size in zip(known, sizes, strict=True) if size is not None]
    except ValueError:  # data.center_crop does not fit, which is a fault of its own
        return data.fov
    if not found:
        return data.fov
    narrowest, widest, cropped = min(found), max(found), are_cropped(items, data)
    lowest = NARROWEST_FOV * narrowest if cropped else widest - FOV_TOLERANCE_DEG
    if lowest <= data.fov <= narrowest + FOV_TOLERANCE_DEG:
        return data.fov
    if not cropped or widest - narrowest <= FOV_TOLERANCE_DEG:
        return round((narrowest + widest) / 2, 2)
    return round(narrowest, 2) if narrowest >= NARROWEST_FOV * statistics.median(found) else None
