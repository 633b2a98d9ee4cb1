"""Data sets: posed or unposed images, checked before training, and endless batches of them."""

import logging

from graf.config import Config
from graf.config.checks import advice
from graf.data.images import load_images
from graf.data.knowledge import fit_to_data
from graf.data.loader import Batches, build_loader
from graf.data.toy_cars import load_toy_cars
from graf.data.validation import check_fit, raise_or_skip
from graf.data.views import Views, sample_labels

__all__ = ["Batches", "Views", "build_dataset", "build_loader", "fit_to_data", "sample_labels"]

log = logging.getLogger("graf")


def build_dataset(config: Config) -> Views:
    """The config's data set, found or generated, and checked. Raises DataError with every fault at once."""
    for message in advice(config):
        log.warning("%s", message)
    if config.data.type == "images":
        return load_images(config)
    raise_or_skip(check_fit(config, config.data.n_images, posed=config.data.labels != "none"), config.data)
    return load_toy_cars(config.data)
