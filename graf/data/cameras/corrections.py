"""Cameras mended by data.camera_axes, data.azimuths and data.roll_deg, for images whose labels follow another convention."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable

from graf.camera import mirrored_poses
from graf.config import DataConfig
from graf.data.folders import Item

import torch
from torch import Tensor

KEYS = ("camera_axes", "azimuths", "roll_deg")

with_azimuths_reversed = functools.partial(mirrored_poses, plane_deg=0)  # azimuth a becomes -a

log = logging.getLogger("graf")


def with_opengl_axes(items: list[Item], data: DataConfig) -> list[Item]:
    """The items of a transforms.json, whose axes are as data.camera_axes says, with the project's own."""
    return _change_poses(items, from_opencv) if data.camera_axes == "opencv" else items


def corrected_cameras(items: list[Item], data: DataConfig) -> list[Item]:
    """The items with the azimuths reversed, then the cameras rolled, as the config says; the same items with its defaults."""
    if data.azimuths == "clockwise":
        items = _change_poses(items, with_azimuths_reversed)
    if data.roll_deg:
        items = _change_poses(items, lambda pose_c2w: rolled(pose_c2w, data.roll_deg))
    return items


def warn_of_unused(data: DataConfig, source: str) -> None:
    """Warn of keys that would mend cameras which images with labels from this source do not have."""
    used = {"transforms": KEYS, "none": ()}.get(source, ("azimuths", "roll_deg"))
    unused = [f"data.{key}" for key in KEYS if key not in used and getattr(data, key) != getattr(DataConfig, key)]
    if unused:
        lacking = "cameras" if source == "none" else "transforms.json"
        log.warning("%s: without effect, because the images have no %s", ", ".join(unused), lacking)


def from_opencv(pose_c2w: Tensor) -> Tensor:
    """pose_c2w (..., 3, 4) or (..., 4, 4) of cameras with y down that look along +z, with y up and along -z."""
    return pose_c2w * pose_c2w.new_tensor([1, -1, -1, 1])


def rolled(pose_c2w: Tensor, roll_deg: float) -> Tensor:
    """pose_c2w (..., 3, 4) turned about their optical axes, counterclockwise as their photographers see it; an image of such a
    camera shows the world turned clockwise."""
    cos, sin = math.cos(math.radians(roll_deg)), math.sin(math.radians(roll_deg))
    right, up, backward, position = pose_c2w.unbind(-1)
    return torch.stack([cos * right + sin * up, cos * up - sin * right, backward, position], dim=-1)


def _change_poses(items: list[Item], change: Callable[[Tensor], Tensor]) -> list[Item]:
    return [item if item.pose_c2w is None else dataclasses.replace(item, pose_c2w=change(item.pose_c2w)) for item in items]
