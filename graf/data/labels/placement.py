"""Places cameras around the object: moves them to the suite's world where theirs is any other, and checks them.

The suite's world has z up and the object at the origin; its unit is what data.radius counts.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graf.config import DataConfig
from graf.config.strict import as_written, keys_in_words
from graf.data.folders import TRANSFORMS, Fault, Item
from graf.errors import DataError
from graf.rays import depth_bounds

import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

RADIUS_TOLERANCE = 0.05  # of data.radius
SAME_PLACE = 1e-6  # distance between cameras that is rounding, in units of their distance from their world's origin
FLATTEST = 0.02  # share of the cameras' horizontal axes that has to lie across their main direction: 8 degrees to either side
HALF_WIDTHS = (0.25, 4.0)  # of a frame at its object, scene units: a field learns little of objects of other sizes
LEAST_MARGIN = 0.01  # of the distance, before and behind the origin
OTHER_UNIT = 10.0  # times as far from the origin as the cameras of most files

log = logging.getLogger("graf")


def aligned(items: Sequence[Item], where: str, data: DataConfig) -> list[Item]:
    """The items with their cameras turned, moved and scaled so that they look at the origin from data.radius on average, and
    stand upright; logged. Raises DataError where all look in one direction or stand in one place: neither tells a distance."""
    posed = [item for item in items if item.pose_c2w is not None]
    if not posed:
        return list(items)
    pose_c2w = torch.stack([item.pose_c2w for item in posed]).to(torch.float64)
    centre = looked_at(pose_c2w)
    cure = "which does not tell where the object is; photograph it from several sides, or set data.align_cameras: never"
    if centre is None:
        raise DataError(f"all cameras look in one direction, {cure}")
    distance = (pose_c2w[:, :, 3] - centre).norm(dim=-1).mean()
    if distance <= SAME_PLACE * pose_c2w[:, :, 3].norm(dim=-1).max():
        raise DataError(f"all cameras stand in one place, {cure}")
    turn = torch.from_numpy(Rotation.align_vectors([[0.0, 0.0, 1.0]], [upward(pose_c2w).numpy()])[0].as_matrix())
    scale = sum(data.radius) / 2 / distance
    turned = torch.cat([turn @ pose_c2w[:, :, :3], scale * (turn @ (pose_c2w[:, :, 3:] - centre[:, None]))], dim=-1)
    place = ", ".join(f"{value:.3g}" for value in centre.tolist())
    log.info("%s: %d cameras, scaled by %.4g, around what they look at (%s)", where, len(posed), scale, place)
    moved = iter(turned.to(torch.float32))
    return [item if item.pose_c2w is None else replace(item, pose_c2w=next(moved)) for item in items]


def looked_at(pose_c2w: Tensor) -> Tensor | None:
    """The point (3,) nearest to the optical axes of cameras (N, 3, 4), by least squares; None where they are parallel."""
    across = across_axes(pose_c2w)
    normal, offsets = across.sum(0), (across @ pose_c2w[:, :, 3:]).sum(0)[:, 0]
    if torch.linalg.cond(normal) > 1e6:
        return None
    return torch.linalg.solve(normal, offsets)


def across_axes(pose_c2w: Tensor) -> Tensor:
    """Projections (N, 3, 3) to the plane across the optical axis of each camera (N, 3, 4)."""
    axes = pose_c2w[:, :, 2]
    return torch.eye(3, dtype=axes.dtype) - axes[:, :, None] * axes[:, None]


def missed_by(pose_c2w: Tensor, point: Tensor) -> Tensor:
    """By how much the optical axes of cameras (N, 3, 4) miss a point (3,): root of the mean square."""
    misses = across_axes(pose_c2w) @ (pose_c2w[:, :, 3:] - point[:, None])
    return misses.square().sum(dim=(1, 2)).mean().sqrt()


def upward(pose_c2w: Tensor) -> Tensor:
    """The unit vector (3,) upward in the world of cameras (N, 3, 4): across their horizontal axes, by least squares, where
    these span a plane; else the mean of the cameras' own."""
    right, mean = pose_c2w[:, :, 0], torch.nn.functional.normalize(pose_c2w[:, :, 1].mean(0), dim=0)
    shares, directions = torch.linalg.eigh(right.T @ right / len(right))  # in ascending order, their sum is 1
    if shares[1] < FLATTEST:
        return mean
    return directions[:, 0] * (1.0 if directions[:, 0] @ mean >= 0 else -1.0)


def depth_faults(groups: Mapping[str, list[Item]], data: DataConfig, scaled: bool = False) -> list[Fault]:
    """Faults of cameras that look away from the origin, where the object is, or whose near and far do not enclose it: in one
    fault of all files, as these have one data.radius, near and far, but for files whose unit is another.

    groups: images by the file that has their cameras. scaled: these were scaled to data.radius, which therefore mends nothing.
    """
    groups = {where: [item for item in items if item.pose_c2w is not None] for where, items in groups.items()}
    groups = {where: items for where, items in groups.items() if items}
    faults = [fault for where, items in groups.items() for fault in _looking_away(items, where, data)]
    away = {where: distances_of(items).median() for where, items in groups.items()}
    usual = torch.stack(list(away.values())).median() if away else None
    outside = [where for where, items in groups.items() if is_out_of_reach(items, data).any()]
    others = [where for where in outside if not usual / OTHER_UNIT <= away[where] <= usual * OTHER_UNIT]
    faults += [Fault(where, _other_unit(away[where].item(), usual.item())) for where in others]
    if alike := [where for where in outside if where not in others]:
        of_all = [item for where, items in groups.items() if where not in others for item in items]
        faults.append(Fault(listed_places(alike), _out_of_reach(of_all, data, scaled)))
    return faults


def _other_unit(away: float, usual: float) -> str:
    return (
        f"the cameras are {away:.3g} from the origin, and those of the other folders {usual:.3g}, as if in another unit; scale "
        "the positions of these"
    )


def _looking_away(items: list[Item], where: str, data: DataConfig) -> list[Fault]:
    axes = {
        "opengl": "a camera looks along its own -z (for poses of OpenCV or COLMAP set data.camera_axes: opencv)",
        "opencv": "with data.camera_axes: opencv it looks along its own z (for poses of NeRF-Blender set opengl)",
    }
    name, rows = Path(where).name, (depth_of_origin(items) <= 0).nonzero()[:, 0].tolist()
    away = f"its camera in {name} looks away from the origin, where the object is expected"
    if name.startswith(Path(TRANSFORMS).stem):
        elsewhere = "if it is elsewhere in the file's world, set data.align_cameras: always"
        elsewhere = "export the camera again" if data.align_cameras == "always" else elsewhere
        away += f"; {axes[data.camera_axes] if 2 * len(rows) > len(items) else elsewhere}"
    return [Fault(str(items[i].file), away, of_image=True) for i in rows]


def depth_of_origin(items: Sequence[Item]) -> Tensor:
    """Planar depth (N,) of the origin in each camera, negative behind it."""
    pose_c2w = torch.stack([item.pose_c2w for item in items])
    return (pose_c2w[:, :, 2] * pose_c2w[:, :, 3]).sum(dim=1)


def distances_of(items: Sequence[Item]) -> Tensor:
    """Distance (N,) of each camera from the origin."""
    return torch.stack([item.pose_c2w[:, 3].norm() for item in items])


def is_out_of_reach(items: Sequence[Item], data: DataConfig) -> Tensor:
    """(N,) bool: the origin is in front of the camera, but not between near and far."""
    depth, (near, far) = depth_of_origin(items), depth_bounds(torch.stack([item.pose_c2w for item in items]), data)
    return (depth > 0) & ((depth < near[:, 0]) | (depth > far[:, 0]))


def _out_of_reach(items: list[Item], data: DataConfig, scaled: bool) -> str:
    depth, outside, distances = depth_of_origin(items), is_out_of_reach(items, data), distances_of(items)
    ahead, off_axis = distances[depth > 0], (distances - depth)[depth > 0].max().item()
    low, high = ahead.min().item(), ahead.max().item()
    example = items[int(outside.nonzero()[0])].file
    margin = (data.far - data.near) / 2 if data.near < data.far else half_width(data.fov) * ahead.median().item()
    margin = max(margin, LEAST_MARGIN * high)
    radius = data.radius if scaled else radius_of(low, high)
    cure = keys_in_words(({} if scaled else {"radius": radius}) | reach(low, high, margin, radius, off_axis))
    if not scaled and not has_usual_size(ahead.median().item(), data.fov):
        can_align = looked_at(torch.stack([item.pose_c2w for item in items]).to(torch.float64)) is not None
        cure = "data.align_cameras: always, which scales them to data.radius" if can_align else cure
    return (
        f"the cameras are {low:.3g} to {high:.3g} from the origin, and for {int(outside.sum())} of {len(items)}, such as that "
        f"of {example.parent.name}/{example.name}, it is not between data.near {data.near:g} and data.far {data.far:g}; set "
        f"{cure}"
    )


def half_width(fov_deg: float) -> float:
    """Of a frame, in units of the distance."""
    return math.tan(math.radians(fov_deg) / 2)


def has_usual_size(distance: float, fov_deg: float) -> bool:
    """Whether an object that fills the frame at this distance is about as large as the network's waves are made for."""
    return HALF_WIDTHS[0] <= distance * half_width(fov_deg) <= HALF_WIDTHS[1]


def warn_of_radius(groups: Mapping[str, list[Item]], data: DataConfig) -> None:
    """Warn where data.radius, used for videos and samples, is not the distance of the images' cameras.

    groups: images by the file that has their cameras.
    """
    posed = [item for items in groups.values() for item in items if item.pose_c2w is not None]
    if not posed:
        return
    distances, (low, high) = distances_of(posed), data.radius
    if stands_elsewhere(distances, data):
        nearest, farthest = distances.min().item(), distances.max().item()
        log.warning(
            "%s: the cameras are %.4g to %.4g from the origin, but data.radius, used for samples and videos, is %s; set "
            "data.radius: %s",
            *(
                listed_places(list(groups)),
                nearest,
                farthest,
                f"{low:g}" if low == high else f"{low:g} to {high:g}",
                as_written(radius_of(nearest, farthest)),
            ),
        )


def stands_elsewhere(distances: Tensor, data: DataConfig) -> bool:
    """Whether one of the cameras at such distances (N,) from the origin is clearly nearer or farther than data.radius."""
    low, high = data.radius
    return bool(distances.min() < low * (1 - RADIUS_TOLERANCE) or distances.max() > high * (1 + RADIUS_TOLERANCE))


def listed_places(places: Sequence[str]) -> str:
    """The first of some files, and how many more there are."""
    return places[0] + (f" and {len(places) - 1} more" if len(places) > 1 else "")


def reach(low: float, high: float, margin: float, radius: tuple[float, float], off_axis: float = 0.0) -> dict[str, Any]:
    """data.near and data.far that hold the origin between them with a margin on both sides, for cameras that have it at
    distances from low to high, and up to `off_axis` less deep.

    radius: data.radius. Where it is a range, near and far are those of its farthest camera, and move with the others, so that
    near has to be in front of the nearest one too.
    """
    ahead = margin + off_axis
    if radius[0] == radius[1]:
        return {"near": rounded(max(low - ahead, low / 10), 4), "far": rounded(high + margin, 4)}
    return {"near": rounded(radius[1] - min(ahead, 0.9 * min(low, radius[0])), 4), "far": rounded(radius[1] + margin, 4)}


def radius_of(nearest: float, farthest: float) -> tuple[float, float]:
    """The data.radius of cameras at such distances from the origin: their mean where that is near enough, else the range."""
    if farthest <= (1 + RADIUS_TOLERANCE) * (nearest + farthest) / 2:
        return (rounded((nearest + farthest) / 2, 4),) * 2
    return rounded(nearest, 6), rounded(farthest, 6)


def rounded(value: float, digits: int) -> float:
    """The value with so many digits, as it can be typed into a config."""
    return float(f"{value:.{digits}g}")
