"""The usual mistakes of cameras, told by silhouettes: a mistake is named where they agree clearly better once it is mended.

What silhouettes cannot tell is not named. Views from one height agree almost as well with their azimuths reversed, where the
object looks alike from behind; and far cameras see the same with half the focal length and an object of twice the size.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from graf.camera import azimuth_and_v, elevations_of_v, poses_at, v_of_elevations
from graf.config import DataConfig
from graf.data.cameras.agreement import ObjectViews, agreement
from graf.data.cameras.corrections import rolled, with_azimuths_reversed

import torch
from torch import Tensor

T = TypeVar("T", float, Tensor)

CLEARLY = 0.05  # better agreement of mended directions, with half the pixels
CLEARLY_SHORTER = 0.01  # better agreement of another focal length, which changes less
CLEARLY_LONGER = 0.015  # images that are each centred on their object agree with a farther camera, too
ALIKE = 0.02  # agreement that is not told apart
POOR = 0.6  # agreement that asks for a reason
ALIKE_FOCAL = 0.005
ONE_OBJECT = 0.78  # less agreement is of several objects, which with a wrong focal length may have more in common
ROLLS_DEG = range(-165, 181, 15)
ROLL_STEPS_DEG = (7, 4, 2, 1)  # around the best of them
SMALL_ROLL_DEG = 15
USUAL_FOCAL_FACTORS, FOCAL_FACTORS = (0.5, 2.0), (0.35, 0.71, 1.41, 2.8)
FOCAL_STEPS = (1.19, 1.09, 1.04)
NEAR_POLE = 1e-4  # of v: 1 degree
WIDEST_FOV_DEG = 150


class Mistake(NamedTuple):
    """A mistake in cameras, in words that continue "if ..."; what to do; and the agreement once it is mended."""

    wrong: str
    cure: str
    agreement: float


class Verdict(NamedTuple):
    """How well silhouettes agree with cameras.

    agreement: of the cameras as they are. mistakes: those that explain a worse agreement, the best first, then any that fit
    as well. hidden: those that would not show, for the silhouettes agree as well with and without them.
    """

    agreement: float
    mistakes: list[Mistake]
    hidden: list[Mistake]

    @property
    def is_poor(self) -> bool:
        return bool(self.mistakes) or self.agreement < POOR


class Direction(NamedTuple):
    """A mistake of the cameras' directions, and what mends poses (..., 3, 4)."""

    wrong: str
    cure: str
    mend: Callable[[Tensor], Tensor]


class Best(NamedTuple):
    value: float
    agreement: float


def judge_cameras(objects: list[ObjectViews], data: DataConfig, source: str) -> Verdict:
    """The verdict on a few objects' cameras. source: where these come from, as ImageFolders.label_source."""
    small, given = [views.halved() for views in objects], agreement(objects, data)
    coarse = agreement(small, data)
    directions = {
        direction: mended_agreement(small, direction.mend, data) for direction in mistaken_directions(small, data, source)
    }
    best = max(directions.values())
    if best > coarse + CLEARLY:
        named = [direction for direction, found in directions.items() if found > best - ALIKE]
        mistakes = [Mistake(wrong, cure, mended_agreement(objects, mend, data)) for wrong, cure, mend in named]
        return Verdict(given, sorted(mistakes, key=lambda mistake: -mistake.agreement), [])
    hidden = [Mistake(*direction[:2], found) for direction, found in directions.items() if found > coarse - ALIKE]
    return Verdict(given, mistaken_focal_length(objects, data, source), hidden)


def describe_verdict(verdict: Verdict) -> str:
    """The verdict in words, with what to do."""
    text = f"the silhouettes agree with the cameras: {verdict.agreement:.2f} of 1"
    if verdict.mistakes:
        explained = (f"{mistake.agreement:.2f} if {mistake.wrong} ({mistake.cure})" for mistake in verdict.mistakes)
        return f"{text}, but {', or '.join(explained)}"
    if verdict.is_poor:
        return (
            f"{text}, which is little, and none of the usual mistakes of cameras explains it; does each folder, or each name "
            "before the view's number, stand for one object, and is each image's camera its own?"
        )
    alike = " or ".join(mistake.wrong for mistake in verdict.hidden)
    return f"{text}; silhouettes would not show it if {alike}" if alike else text


def mistaken_directions(objects: list[ObjectViews], data: DataConfig, source: str) -> Iterator[Direction]:
    """The mistakes that the directions of cameras can have; of rolls the best and its opposite, where these are not small."""
    other_way = {"clockwise": "counterclockwise", "counterclockwise": "clockwise"}[data.azimuths]
    cure = f"set data.azimuths: {other_way}"
    if data.roll_deg % 180:  # mirrored, it turns the other way
        cure += f" and data.roll_deg: {-data.roll_deg:g}"
    yield Direction(f"the azimuths run {other_way}", cure, with_azimuths_reversed)
    yield Direction("polar angles were taken for elevations, or the reverse", polar_cure(data, source), polar_exchanged)
    yield Direction("azimuth and elevation are exchanged", exchange_cure(data, source), azimuth_exchanged)
    best_deg = best_roll(objects, data)
    for roll_deg in (best_deg, _half_circle(best_deg + 180)):  # an object's top and bottom may look alike
        if abs(roll_deg) >= SMALL_ROLL_DEG:
            turned = f"{abs(roll_deg):g} degrees {'clockwise' if roll_deg > 0 else 'counterclockwise'}"
            cure = f"set data.roll_deg: {_half_circle(data.roll_deg + roll_deg):g}"
            yield Direction(f"the images are turned by {turned}", cure, functools.partial(rolled, roll_deg=roll_deg))


def mended_agreement(objects: list[ObjectViews], mend: Callable[[Tensor], Tensor], data: DataConfig) -> float:
    return agreement([views.mended(mend) for views in objects], data)


def best_roll(objects: list[ObjectViews], data: DataConfig) -> float:
    """The roll of the cameras in degrees with which the silhouettes agree best, a right angle where it is near one."""

    def agreement_of(roll_deg: float) -> float:
        return mended_agreement(objects, lambda pose_c2w: rolled(pose_c2w, roll_deg), data)

    best = best_of(ROLLS_DEG, agreement_of)
    for step in ROLL_STEPS_DEG:
        best = max(best, best_of((best.value - step, best.value + step), agreement_of), key=lambda found: found.agreement)
    right_angle = 90 * round(best.value / 90)
    return right_angle if abs(best.value - right_angle) <= ROLL_STEPS_DEG[0] else best.value


def _half_circle(degrees: T) -> T:
    """Angles in degrees, from -180 to 180."""
    return (degrees + 180) % 360 - 180


def mistaken_focal_length(objects: list[ObjectViews], data: DataConfig, source: str) -> list[Mistake]:
    """A focal length with which the silhouettes agree clearly better; none without one."""
    if data.orthographic:
        return []

    def with_factor(factor: float) -> DataConfig:
        return dataclasses.replace(data, fov=fov_of_focal_length(data.fov, factor))

    def agreement_of(factor: float) -> float:
        return agreement(objects, with_factor(factor)) if with_factor(factor).fov < WIDEST_FOV_DEG else 0.0

    usual = best_of(USUAL_FOCAL_FACTORS, agreement_of)
    best = max(usual, best_of(FOCAL_FACTORS, agreement_of), key=lambda found: found.agreement)
    clearly = CLEARLY_LONGER if best.value > 1 else CLEARLY_SHORTER
    if best.agreement < max(agreement(objects, data) + clearly, ONE_OBJECT):
        return []
    for step in FOCAL_STEPS:
        best = max(best, best_of((best.value / step, best.value * step), agreement_of), key=lambda found: found.agreement)
    if usual.agreement > best.agreement - ALIKE_FOCAL:
        best = usual
    cure = f"set data.fov: {with_factor(best.value).fov:.3g}"
    if source == "transforms":
        cure += ", and camera_angle_x (or fl_x and w) of transforms.json, where it has one, to the same"
    return [Mistake(f"the focal length is about {best.value:.2g} times as long", cure, best.agreement)]


def best_of(values: Iterable[float], agreement_of: Callable[[float], float]) -> Best:
    return max((Best(value, agreement_of(value)) for value in values), key=lambda found: found.agreement)


def fov_of_focal_length(fov_deg: float, factor: float) -> float:
    """The field of view in degrees of a camera whose focal length is `factor` times that of one with fov_deg."""
    return 2 * math.degrees(math.atan(math.tan(math.radians(fov_deg) / 2) / factor))


def polar_exchanged(pose_c2w: Tensor) -> Tensor:
    """Cameras (..., 3, 4) that look at the origin from as far above the horizon as they stood from the zenith.

    NaN for cameras that stand or stood straight above or below, whose azimuth is not told.
    """
    azimuth_deg, v = azimuth_and_v(pose_c2w)
    at_pole = torch.maximum((v - 0.5).abs(), (v_exchanged(v) - 0.5).abs()) > 0.5 - NEAR_POLE
    return poses_at(azimuth_deg.masked_fill(at_pole, torch.nan), v_exchanged(v), pose_c2w[..., 3].norm(dim=-1))


def v_exchanged(v: Tensor) -> Tensor:
    """v of 90 degrees minus the polar angle: its cosine is the sine, (1 - (1 - 2 v)^2)^1/2."""
    return (1 - (1 - (1 - 2 * v) ** 2).clamp_min(0).sqrt()) / 2


def azimuth_exchanged(pose_c2w: Tensor) -> Tensor:
    """Cameras (..., 3, 4) that look at the origin from an azimuth that was taken for the elevation, and the reverse.

    An azimuth taken for an elevation may go beyond the zenith, to the opposite azimuth. Of the two readings of a position, the
    one is taken whose azimuth can be an elevation.
    """
    azimuth_deg, v = azimuth_and_v(pose_c2w)
    azimuth_deg = _half_circle(azimuth_deg)
    elevation_deg = elevations_of_v(v)
    beyond = azimuth_deg.abs() > 90
    true_azimuth_deg = torch.where(beyond, 180 - elevation_deg, elevation_deg)
    true_elevation_deg = torch.where(beyond, azimuth_deg - 180 * azimuth_deg.sign(), azimuth_deg)
    return poses_at(true_azimuth_deg, v_of_elevations(true_elevation_deg), pose_c2w[..., 3].norm(dim=-1))


def polar_cure(data: DataConfig, source: str) -> str:
    """The setting that mends cameras whose elevations were taken for polar angles, or the reverse."""
    if source != "filename":
        return "export the cameras again, with elevations counted from the horizon and polar angles from the zenith"
    exchanged = _with_parts_exchanged(data.name_pattern, "<polar_deg>", "<elevation_deg>")
    if exchanged != data.name_pattern:
        return f"set data.name_pattern: {exchanged}"
    return f"set data.v: {[round(v, 4) for v in v_exchanged(torch.tensor(data.rings)).tolist()]}"


def exchange_cure(data: DataConfig, source: str) -> str:
    """The setting that mends cameras whose azimuth and elevation are in each other's place."""
    if source != "filename":
        return "export the cameras again, with azimuth and elevation in each other's place"
    pattern = data.name_pattern.replace("<elevation>", "<elevation_deg>")
    elevation = "<polar_deg>" if "<polar_deg>" in pattern else "<elevation_deg>"
    return f"set data.name_pattern: {_with_parts_exchanged(pattern, '<azimuth_deg>', elevation)}"


def _with_parts_exchanged(pattern: str, one: str, other: str) -> str:
    return re.sub(f"{one}|{other}", lambda found: other if found[0] == one else one, pattern)
