"""data.fov, radius, near and far by the cameras of files, for a config that leaves them as they are for the toy cars."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graf.config import DataConfig
from graf.data.decoding import upright_size
from graf.data.folders import Item
from graf.data.labels.framing import FOV_TOLERANCE_DEG, NARROWEST_FOV, are_cropped, fov_of_square
from graf.data.labels.placement import (
    OTHER_UNIT,
    as_keys,
    depth_of_origin,
    half_width,
    has_usual_size,
    is_out_of_reach,
    listed_places,
    reach,
    stands_elsewhere,
)

import torch

OF_CAMERAS = ("fov", "radius", "near", "far")

log = logging.getLogger("graf")


def has_default(data: DataConfig, keys: Sequence[str]) -> bool:
    """Whether the config leaves all of these keys of `data` as they are by default."""
    default = DataConfig()
    return all(getattr(data, key) == getattr(default, key) for key in keys)


def with_lens(items: Sequence[Item], data: DataConfig, scaled: bool) -> DataConfig:
    """The config with the photographs' data.fov; where their cameras are `scaled`, with the data.radius too at which a frame
    shows as much of the object as by default."""
    fov = _fov(items, data)
    if fov == data.fov:
        return data
    distance = sum(data.radius) / 2 * half_width(data.fov) / half_width(fov)
    return replace(data, fov=fov, radius=(_rounded(distance),) * 2 if scaled else data.radius)


def settings_of_cameras(groups: Mapping[str, list[Item]], data: DataConfig, scaled: bool) -> dict[str, Any]:
    """OF_CAMERAS that fit cameras, logged, for a config from `with_lens`: depths hold an object as deep as the frame is wide at
    its place. Empty where those of the default do, or where an object would have an odd size, as in another unit.

    groups: images by the file that has their cameras. scaled: these were scaled to data.radius.
    """
    items = [item for found in groups.values() for item in found if item.pose_c2w is not None]
    items = [item for item, depth in zip(items, depth_of_origin(items).tolist(), strict=True) if depth > 0] if items else []
    if not items:
        return {}
    distances = torch.stack([item.pose_c2w[:, 3].norm() for item in items])
    fits = scaled or not stands_elsewhere(distances, data)
    if has_default(data, OF_CAMERAS) and fits and not is_out_of_reach(items, data).any():
        return {}
    distance, depth = distances.mean().item(), depth_of_origin(items)
    if not has_usual_size(distance, data.fov) or distances.max() > OTHER_UNIT * distances.min():
        return {}
    found = reach(depth.min().item(), depth.max().item(), _rounded(distance * half_width(data.fov)), scaled)
    settings = {"fov": data.fov, "radius": data.radius} | found
    log.info(
        "%s, by the cameras of %s; naming one of data.fov, radius, near and far leaves all four to you",
        *(as_keys(settings), listed_places(list(groups))),
    )
    return settings


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _fov(items: Sequence[Item], data: DataConfig) -> float:
    """The field of view that all photographs have, or else that of the narrowest, to which the others are cropped; data.fov
    where it is that, or where no file tells one."""
    sizes = [(item, upright_size(item.file)) for item in items if item.focal is not None]
    try:
        found = [fov_of_square(item, size, data) for item, size in sizes if size is not None]
    except ValueError:  # data.center_crop does not fit, which is a fault of its own
        return data.fov
    if not found:
        return data.fov
    narrowest, widest = min(found), max(found)
    lowest = NARROWEST_FOV * narrowest if are_cropped(items, data) else widest - FOV_TOLERANCE_DEG
    if lowest <= data.fov <= narrowest + FOV_TOLERANCE_DEG:
        return data.fov
    return round(statistics.median(found) if widest - narrowest <= FOV_TOLERANCE_DEG else narrowest, 2)
