"""Which labels a data set has (cameras, classes, elevations), from names of folders and files alone."""

from dataclasses import dataclass

from graf.config import DataConfig
from graf.data.folders import find_folders, label_source


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
