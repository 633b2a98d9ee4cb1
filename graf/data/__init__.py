"""Data sets: posed or unposed images, checked before training, and endless batches of them."""

import dataclasses
from pathlib import Path

from graf.config import Config
from graf.data.hull import with_hull_box
from graf.data.images import load_images
from graf.data.knowledge import fit_to_data
from graf.data.loader import Batches, build_loader
from graf.data.toy_cars import load_toy_cars
from graf.data.validation import check_fit, raise_or_skip
from graf.data.views import Views, sample_labels

__all__ = ["Batches", "Views", "build_dataset", "build_loader", "colours_only", "fit_to_data", "sample_labels", "settled"]


def build_dataset(config: Config, cache: Path | None = None) -> Views:
    """The config's data set, found or generated, and checked; photographs are kept decoded where a folder `cache` is named.
    Raises DataError with every fault at once."""
    if config.data.type == "images":
        return load_images(config, cache)
    raise_or_skip(check_fit(config, config.data.n_images, posed=config.data.labels != "none"), config.data)
    return load_toy_cars(config.data)


def settled(config: Config, dataset: Views) -> Config:
    """The config with the data.alpha and data.box that its data set decides in place of auto."""
    if config.data.alpha == "auto":
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, alpha=dataset.alpha))
    return with_hull_box(config, dataset)


def colours_only(config: Config) -> Config:
    """The config for reading photographs where nothing judges their opacity: they need no transparency then."""
    if config.data.type == "toy_cars":  # which have it in any case
        return config
    return dataclasses.replace(config, data=dataclasses.replace(config.data, alpha="ignore"))
