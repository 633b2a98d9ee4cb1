"""The sides from which objects are seen, in words, and the range of azimuths in degrees."""

from graf.camera import azimuth_and_v, elevation_of_v
from graf.config import DataConfig
from graf.data.cameras.seen_from import WIDEST_GAP_DEG, largest_gap
from graf.data.views import Views

from torch import Tensor

SOURCES = {"transforms": "transforms.json", "eg3d": "dataset.json", "colmap": "COLMAP's model", "filename": "file names"}


def azimuth_span_deg(dataset: Views, data: DataConfig) -> float:
    """Degrees of azimuth over which objects are seen: those of the images' cameras, or those that training samples."""
    if dataset.posed:
        return 360 - largest_gap(azimuth_and_v(dataset.labels.pose_c2w)[0])[0]
    return 360 * (data.u_range[1] - data.u_range[0])


def cameras_in_words(dataset: Views, data: DataConfig) -> str:
    """The cameras' source, and the azimuths and elevations that they have or are sampled from."""
    if not dataset.posed and data.camera_prior == "front":
        widths = f"{data.azimuth_std_deg:g} degrees of azimuth and {data.elevation_std_deg:g} of elevation"
        return f"none, so they are sampled about the front, by {widths} (data.azimuth_std_deg, data.elevation_std_deg)"
    if not dataset.posed:
        azimuths = f"azimuth {360 * data.umin:.0f} to {360 * data.umax:.0f} degrees (data.umin, data.umax)"
        return f"none, so they are sampled: {azimuths}, {_elevations(data.vmin, data.vmax)} (data.vmin, data.vmax)"
    azimuth_deg, v = azimuth_and_v(dataset.labels.pose_c2w)
    source = SOURCES.get(dataset.label_source, "the rendering")
    return f"from {source}: {_azimuths(azimuth_deg)}, {_elevations(v.min().item(), v.max().item())}"


def _azimuths(azimuth_deg: Tensor) -> str:
    gap, before, after = largest_gap(azimuth_deg)
    if gap <= WIDEST_GAP_DEG:
        return f"azimuths all around (largest gap {gap:.1f} degrees)"
    return f"azimuth {after:.0f} to {before:.0f} degrees" + (" across 0" if after > before else "")


def _elevations(v_low: float, v_high: float) -> str:
    return f"{elevation_of_v(v_high):.0f} to {elevation_of_v(v_low):.0f} degrees above the horizon"
