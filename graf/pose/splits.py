"""Training, validation and test sets split by object: no object is in two of them.

An object is identified by the folder of its images, or by their names without the view number: car_03.png and car_04.png.
"""

import hashlib
import logging
from pathlib import Path
from typing import NamedTuple

from graf.camera import Labels
from graf.config import DataConfig, PoseConfig
from graf.data import build_dataset, colours_only
from graf.data.views import Views
from graf.errors import DataError

import torch
from torch import Tensor

FEWEST_OBJECTS = 3  # of which each set has one

log = logging.getLogger("graf")


class Subset(Views):
    """A data set's images of these indices, in their order; labels: theirs, if not the data set's own."""

    def __init__(self, views: Views, indices: list[int], labels: Labels | None = None):
        self.views, self.indices = views, indices
        index = torch.tensor(indices, dtype=torch.long)
        super().__init__(
            files=[views.files[i] for i in indices],
            class_names=views.class_names,
            class_index=views.class_index[index],
            labels=views.labels[index] if labels is None and views.labels is not None else labels,
            fingerprint=hashlib.sha256(f"{views.fingerprint} {indices}".encode()).hexdigest(),
            n_elevations=views.n_elevations,
            alpha=views.alpha,
        )

    def read(self, index: int) -> Tensor:
        return self.views.read(self.indices[index])

    def opacity(self, index: int, data: DataConfig, supersampling: int | None = None) -> Tensor | None:
        return self.views.opacity(self.indices[index], data, supersampling)

    @property
    def objects(self) -> list[str]:
        names = self.views.objects
        return [names[i] for i in self.indices]


class Splits(NamedTuple):
    """The three sets, and whether they were split by object, or by image where too few objects are known."""

    training: Views
    validation: Views
    test: Views
    by_object: bool


def posed_splits(config: PoseConfig) -> Splits:
    """The config's training, validation and test sets. Raises DataError where the cameras are not known."""
    training = config.training
    return split_by_object(posed_images(config), training.validation_share, training.test_share)


def posed_images(config: PoseConfig, cache: Path | None = None, take_cameras: bool = False) -> Views:
    """The config's images; the flags are those of `build_dataset`. Raises DataError where the cameras are not known."""
    dataset = build_dataset(colours_only(config), cache, take_cameras=take_cameras)
    if not dataset.posed:
        raise DataError(
            "a pose estimator learns from images whose cameras are known, by a transforms.json or by names such as "
            "0_0090.png; these have neither"
        )
    return dataset


def held_out_objects(n: int, validation_share: float, test_share: float) -> tuple[int, int]:
    """How many of n objects are for validation and for the test."""
    return max(1, round(validation_share * n)), max(1, round(test_share * n))


def split_by_object(views: Views, validation_share: float, test_share: float) -> Splits:
    """Split a data set by object; by image, with a warning, where fewer than three objects are known.

    An object's set depends on its name alone: it is the same in every run, and hardly changes when objects are added. Raises
    DataError for fewer than three images.
    """
    names, by_object = views.objects, True
    if len(set(names)) < FEWEST_OBJECTS:
        log.warning(
            "the %d images show %d objects by their folders and names, too few for three sets: split by image instead; "
            "validation and test errors are for objects that were trained on",
            *(len(names), len(set(names))),
        )
        names, by_object = views.files, False
    if len(set(names)) < FEWEST_OBJECTS:
        raise DataError(f"{len(names)} images cannot be split into training, validation and test; add images")
    ranked = sorted(set(names), key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
    n_validation, n_test = held_out_objects(len(ranked), validation_share, test_share)
    if n_test + n_validation >= len(ranked):
        raise DataError(
            f"training.validation_share and training.test_share leave none of {len(ranked)} objects to train on; lower them"
        )
    set_of = dict.fromkeys(ranked, 0) | dict.fromkeys(ranked[:n_test], 2)
    set_of |= dict.fromkeys(ranked[n_test : n_test + n_validation], 1)
    sets = [Subset(views, [i for i, name in enumerate(names) if set_of[name] == number]) for number in range(3)]
    return Splits(*sets, by_object)
