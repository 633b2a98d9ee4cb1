"""Facts about a data set once it has been checked; no image is read again."""

from typing import NamedTuple

from graf.config import DataConfig
from graf.data.advice.background import Background, background_of
from graf.data.advice.cameras import azimuth_span_deg
from graf.data.advice.repeats import Repeats, find_repeats
from graf.data.views import Views


class Evidence(NamedTuple):
    """repeats and background are None for toy cars, which have no thumbnails; background also where transparency hides it."""

    n_images: int
    n_objects: int | None  # None where names do not tell
    span_deg: float  # of azimuth
    repeats: Repeats | None
    background: Background | None

    @property
    def n_different(self) -> int:
        return self.n_images - (len(self.repeats) if self.repeats else 0)


def evidence_of(dataset: Views, data: DataConfig) -> Evidence:
    """The evidence of a checked data set."""
    thumbnails = dataset.thumbnails
    return Evidence(
        n_images=len(dataset),
        n_objects=_count_objects(dataset),
        span_deg=azimuth_span_deg(dataset, data),
        repeats=None if thumbnails is None else find_repeats(thumbnails),
        background=None if thumbnails is None or dataset.alpha == "rgba" else background_of(thumbnails),
    )


def _count_objects(dataset: Views) -> int | None:
    """The number of objects, by `dataset.objects`; None for images without cameras, whose names tell views and objects alike,
    unless each has another."""
    n_objects = len(set(dataset.objects))
    return n_objects if dataset.posed or n_objects == len(dataset) else None
