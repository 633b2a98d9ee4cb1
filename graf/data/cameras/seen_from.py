"""From where the images' cameras see the objects, beside umin..umax and vmin..vmax of `data`: from there all that looks at a
trained model sees it, while training itself takes the images' own cameras."""

import logging

from graf.camera import azimuth_and_v, elevation_of_v, elevations_of_v, v_of_elevation
from graf.config import DataConfig
from graf.config.strict import keys_in_words
from graf.data.labels.own_cameras import has_default
from graf.data.labels.placement import rounded
from graf.data.views import Views

from torch import Tensor

OF_AZIMUTHS, OF_HEIGHTS = ("umin", "umax"), ("vmin", "vmax")
FEWEST_OF_A_RING, FEWEST_WITH_STRAYS = 8, 20  # cameras, which tell where they all stand, and that one stands elsewhere
STRAYS = 0.05  # share of the cameras that may stand elsewhere
SAME_HEIGHT_DEG = 2.0  # between the cameras' heights and the ends of data.vmin..vmax
NEAR_DEG = 5.0  # from the cameras to the middle of the default's range, which else gives way to them
LEAST_WIDTH_DEG = 1.0  # of data.vmin..vmax
FAR_DEG, BESIDE_DEG = 10.0, 30.0  # from the cameras to the middle of a range, and to the ends of data.umin..umax
WIDEST_GAP_DEG = 100  # between neighbouring azimuths that still go all around

log = logging.getLogger("graf")


def other_azimuths(dataset: Views, data: DataConfig) -> tuple[float, float] | None:
    """From which to which azimuth in degrees the cameras stand, but for a few; None where they stand all around, or where
    data.umin..umax lies there, or where they are too few."""
    if not dataset.posed or len(dataset) < FEWEST_OF_A_RING:
        return None
    azimuth_deg, _ = azimuth_and_v(dataset.labels.pose_c2w)
    gap, _, first = largest_gap(azimuth_deg)
    if gap <= WIDEST_GAP_DEG or gap < 2 * _gaps(azimuth_deg)[1].sort().values[-2].item():  # a few places, all around
        return None
    low, high = (first + end for end in _ends((azimuth_deg - first) % 360))
    left, right = (360 * u for u in data.u_range)
    beside = (((left + right) / 2 - low + FAR_DEG) % 360) > high - low + 2 * FAR_DEG
    if right - left <= high - low + 2 * BESIDE_DEG and not beside:
        return None
    return (low - 360, high - 360) if high > 360 else (low, high)


def other_heights(dataset: Views, data: DataConfig, apart_deg: float = FAR_DEG) -> tuple[float, float] | None:
    """From how many to how many degrees above the horizon the cameras stand, but for a few; None where these are the heights of
    data.vmin..vmax, whose middle is up to `apart_deg` higher or lower, or where they are too few."""
    if not dataset.posed or len(dataset) < FEWEST_OF_A_RING or data.camera_prior != "circle":
        return None
    _, v = azimuth_and_v(dataset.labels.pose_c2w)
    low, high = _ends(elevations_of_v(v))
    top, middle, bottom = map(elevation_of_v, (data.vmin, (data.vmin + data.vmax) / 2, data.vmax))
    reaches = bottom - SAME_HEIGHT_DEG <= low and high <= top + SAME_HEIGHT_DEG
    return None if reaches and low - apart_deg <= middle <= high + apart_deg else (low, high)


def u_of_azimuths(low: float, high: float) -> dict[str, float]:
    """data.umin and data.umax of cameras at azimuths from low to high in degrees, by name."""
    return {"umin": rounded(low / 360, 3), "umax": rounded(high / 360, 3)}


def v_of_heights(low: float, high: float) -> dict[str, float]:
    """data.vmin and data.vmax of cameras that stand from low to high degrees above the horizon, by name; of a ring, with a
    width that elevation bins can divide."""
    middle = (low + high) / 2
    low, high = max(-90.0, min(low, middle - LEAST_WIDTH_DEG / 2)), min(90.0, max(high, middle + LEAST_WIDTH_DEG / 2))
    return {"vmin": rounded(v_of_elevation(high), 3), "vmax": rounded(v_of_elevation(low), 3)}


def settings_of_places(dataset: Views, data: DataConfig) -> dict[str, float]:
    """data.umin and umax, and data.vmin and vmax, for the cameras of images, logged: pairs that are as by default where the
    cameras stand elsewhere. Empty for cameras that were found, which may be wrong: the next ones are sought all around."""
    settings = {}
    if 2 * sum(confidence is not None for confidence in dataset.confidence or ()) > len(dataset):
        return settings
    if data.camera_prior == "circle" and has_default(data, OF_AZIMUTHS) and (azimuths := other_azimuths(dataset, data)):
        settings |= (found := u_of_azimuths(*azimuths))
        log.info("%s, because the cameras stand at azimuth %s degrees", keys_in_words(found), in_degrees(*azimuths))
    if has_default(data, OF_HEIGHTS) and (heights := other_heights(dataset, data, NEAR_DEG)):
        settings |= (found := v_of_heights(*heights))
        log.info("%s, because the cameras stand %s degrees above the horizon", keys_in_words(found), in_degrees(*heights))
    return settings


def in_degrees(low: float, high: float) -> str:
    """A range of angles in words, or one number."""
    return f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"


def largest_gap(azimuth_deg: Tensor) -> tuple[float, float, float]:
    """The widest angle between neighbours on the circle, of azimuths (N,), and the azimuths before and after it; degrees."""
    before, gaps = _gaps(azimuth_deg)
    widest = int(gaps.argmax())
    gap = gaps[widest].item() or 360.0  # all are one
    return gap, before[widest].item(), before.roll(-1)[widest].item()


def _gaps(azimuth_deg: Tensor) -> tuple[Tensor, Tensor]:
    """Azimuths (N,) in ascending order, and the angle from each to the next one on the circle; degrees."""
    ordered = azimuth_deg.sort().values
    return ordered, (ordered.roll(-1) - ordered) % 360


def _ends(values: Tensor) -> tuple[float, float]:
    """The least and the largest of values (N,), but for the strays at each end."""
    ordered = values.sort().values
    stray = max(int(STRAYS / 2 * len(ordered)), int(len(ordered) >= FEWEST_WITH_STRAYS))
    return ordered[stray].item(), ordered[-1 - stray].item()
