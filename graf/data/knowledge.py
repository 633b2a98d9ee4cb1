"""Which labels a data set has (cameras, classes, elevations), and the discriminator's condition reduced to those."""

import dataclasses
import logging
from dataclasses import dataclass

from graf.config import Config, DataConfig
from graf.data.folders import find_folders, label_source
from graf.errors import ConfigError

log = logging.getLogger("graf")


@dataclass(frozen=True)
class Knowledge:
    """Whether each image has a camera, and into how many classes and elevation bins the images fall."""

    posed: bool
    n_classes: int = 1
    n_elevations: int = 1


def elevation_bins(data: DataConfig, label_source: str) -> int:
    """As many as data.v has entries, where file names tell elevations or toy cars are seen from a range of them; else 1."""
    if data.type == "toy_cars":
        return len(data.v) if label_source != "none" and data.vmin < data.vmax else 1
    return len(data.v) if label_source == "filename" else 1


def expected_knowledge(data: DataConfig) -> Knowledge:
    """The labels that a config's data set will have, from the names of folders and files alone; no image is read.

    Where there are none yet, file names with cameras are expected.
    """
    if data.type == "toy_cars":
        return Knowledge(data.labels != "none", n_elevations=elevation_bins(data, data.labels))
    folders = find_folders(data).folders
    source = label_source(data, folders) if folders else "filename"
    return Knowledge(source != "none", max(1, len(folders)), elevation_bins(data, source))


def fit_to_data(config: Config, known: Knowledge) -> Config:
    """The config with a discriminator.condition that the data has labels for: without cameras only the class, or none with a
    single class. A change is logged.

    Raises ConfigError where discriminator.label_loss has nothing to tell apart.
    """
    discriminator = config.discriminator
    if discriminator.label_loss != "none" and known.n_classes == known.n_elevations == 1:
        raise ConfigError(
            f"discriminator.label_loss: {discriminator.label_loss} has nothing to tell apart in data of one class and one "
            "elevation; set it to none, or give each class a folder of its own"
        )
    if known.posed or discriminator.condition == "none":
        return config
    condition = "class" if known.n_classes > 1 else "none"
    if condition == discriminator.condition:
        return config
    log.info(
        "discriminator.condition: %s instead of %s, for these images have %s and no cameras, which names such as 0_0090.png "
        "(<elevation>_<azimuth>) or a transforms.json would tell",
        *(condition, discriminator.condition, "one class" if known.n_classes == 1 else f"{known.n_classes} classes"),
    )
    return dataclasses.replace(config, discriminator=dataclasses.replace(discriminator, condition=condition))
