"""Data sets: posed or unposed images, checked before training, and endless batches of them."""

import dataclasses
from pathlib import Path

from graf.config import Config
from graf.data.images import load_images
from graf.data.loader import Batches, build_loader, images_on_device
from graf.data.resolve import resolve, with_alpha, with_cameras_of, with_trained_cameras
from graf.data.toy_cars import load_toy_cars
from graf.data.validation import check_fit, raise_or_skip
from graf.data.views import Views, as_floats, sample_labels

__all__ = [
    *("Batches", "Views", "as_floats", "build_dataset", "build_loader", "colours_only", "images_on_device", "resolve"),
    *("sample_labels", "with_cameras_of", "with_trained_cameras"),
]


def build_dataset(
    config: Config, cache: Path | None = None, trained: Config | None = None, take_cameras: bool = False
) -> Views:
    """The config's data set, found or generated, and checked; decoded images are kept where a folder `cache` is named.

    trained: the config of the checkpoint that goes on, with whose data.alpha the images are read where it is `auto` now.
    take_cameras: images' cameras that are not the default's are no fault, and the data set's `camera_settings`, which
    `with_cameras_of` writes into a config. Raises DataError with every fault at once.
    """
    config = with_alpha(config, trained)
    if config.data.type == "images":
        return load_images(config, cache, take_cameras)
    raise_or_skip(check_fit(config, config.data.n_images, posed=config.data.labels != "none"), config.data)
    return load_toy_cars(config.data)


def colours_only(config: Config) -> Config:
    """The config for reading images where nothing compares their opacity: they need no transparency then."""
    if config.data.type == "toy_cars":  # which have it in any case
        return config
    return dataclasses.replace(config, data=dataclasses.replace(config.data, alpha="ignore"))
