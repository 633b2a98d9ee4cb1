"""The interface of all data sets: images with a class, and with a camera where the data is posed."""

import abc
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from graf.camera import Labels, sample_poses
from graf.config import DataConfig
from graf.config.strict import listed
from graf.data.folders import find_folders, object_of
from graf.data.labels import label_source, read_labels, with_classes_seen
from graf.errors import DataError

import torch
from torch import Tensor
from torch.utils.data import Dataset

T = TypeVar("T")

TOY_CAR_ELEVATIONS = 4  # bins, with data.v: auto


@dataclasses.dataclass(frozen=True)
class KnownLabels:
    """Whether each image has a camera, and into how many classes and elevation bins the images fall."""

    posed: bool
    n_classes: int = 1
    n_elevations: int = 1


@dataclasses.dataclass(eq=False, repr=False)
class Views(Dataset, abc.ABC):
    """N images with their labels; a subclass implements `read`, and `opacity` where it knows the silhouettes."""

    files: list[str]  # a name per image, for messages
    class_names: list[str]
    class_index: Tensor  # (N,) int64
    labels: Labels | None  # of all images; None where the data is unposed
    fingerprint: str  # sha256 that identifies the set
    n_elevations: int = 1  # elevation bins
    alpha: Literal["ignore", "rgba"] = "ignore"  # whether images come with their opacity: data.alpha, resolved
    label_source: str = "none"  # where the cameras of images in folders come from: data.labels, resolved
    thumbnails: Tensor | None = None  # (N, 3, 8, 8) uint8, of images in folders
    confidence: list[float | None] | None = None  # in [0, 1], of the cameras of images in folders that were found
    camera_settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # values of `data` that cameras of files have

    @abc.abstractmethod
    def read(self, index: int) -> Tensor:
        """Image (3, H, W) uint8, or (4, H, W) with opacity last where alpha is `rgba`. Raises DataError."""

    def opacity(self, index: int, data: DataConfig, supersampling: int | None = None) -> Tensor | None:
        """Opacity (data.imsize, data.imsize) in [0, 1] of an image, or None where it is not known. Raises DataError.

        supersampling: rays along each side of a pixel where the image has to be rendered again.
        """
        return None

    @property
    def objects(self) -> list[str]:
        """The name of the object in each image."""
        return [object_of(file) for file in self.files]

    @property
    def posed(self) -> bool:
        return self.labels is not None

    @property
    def known_labels(self) -> KnownLabels:
        return KnownLabels(self.posed, len(self.class_names), self.n_elevations)

    def number_classes_as(self, known: Sequence[str]) -> dict[str, str]:
        """Number the classes as `known` does, by their names: a folder that was renamed or left out moves no other class. A
        class of a new name takes the place of one that is missing; returns these, as {missing: new}.

        Raises DataError where more classes are new than are missing.
        """
        first_of = {name: number for number, name in reversed(list(enumerate(known)))}
        number_of = {name: first_of[name] for name in self.class_names if name in first_of}
        new = [name for name in self.class_names if name not in number_of]
        missing = [number for number, name in enumerate(known) if name not in number_of]
        if len(new) > len(missing):
            raise DataError(
                f"the model knows {len(known)} classes ({listed(known)}), and not {listed(new)}; leave what is no such class "
                "out of data.datadir, or name its folder as the model does"
            )
        for name in new:  # whose folder may have been one of several of its name, which have longer ones
            fitting = [number for number in missing if f"{self._folder_of(name)}/".endswith(f"/{known[number]}/")]
            if len(fitting) == 1:
                number_of[name] = fitting[0]
                missing.remove(fitting[0])
        renamed = dict(zip(missing, (name for name in new if name not in number_of), strict=False))
        number_of |= {name: number for number, name in renamed.items()}
        numbers = torch.tensor([number_of[name] for name in self.class_names])
        self.class_names, self.class_index = [renamed.get(i, name) for i, name in enumerate(known)], numbers[self.class_index]
        if self.labels is not None:
            self.labels = dataclasses.replace(self.labels, class_index=self.class_index)
        return {known[number]: name for number, name in renamed.items()}

    def _folder_of(self, class_name: str) -> str:
        first = int((self.class_index == self.class_names.index(class_name)).nonzero()[0])
        return Path(self.files[first]).resolve().parent.as_posix()

    def labels_at(self, rows: Tensor) -> Labels:
        """The labels of these images (B,); in unposed data without cameras, and in elevation bin 0."""
        if self.labels is not None:
            return self.labels[rows]
        classes = self.class_index[rows]
        return Labels(None, classes, torch.zeros_like(classes))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """image (3, H, W) in [-1, 1], class_index and elevation_index (), pose_c2w (3, 4) where the data is posed, and where
        alpha is `rgba` alpha (1, H, W), the opacity from -1, clear, to 1."""
        image = as_floats(self.read(index))
        item = {"image": image[:3]} | ({"alpha": image[3:]} if len(image) > 3 else {})
        if self.labels is None:
            return item | {"class_index": self.class_index[index], "elevation_index": torch.tensor(0)}
        return item | {f.name: getattr(self.labels, f.name)[index] for f in dataclasses.fields(Labels)}


def as_floats(images: Tensor) -> Tensor:
    """uint8 images as float32 in [-1, 1]; others as they are."""
    return images if images.is_floating_point() else images.to(torch.float32) / 127.5 - 1


def edge_pixels(image: Tensor) -> Tensor:
    """The outermost pixels of an image (C, H, W): (C, 2 H + 2 W), those of the corners twice."""
    return torch.cat([image[:, 0], image[:, -1], image[:, :, 0], image[:, :, -1]], dim=1)


def spread(items: Sequence[T], n: int) -> list[T]:
    """At most n of the items, evenly spread."""
    n = min(n, len(items))
    return [items[index * len(items) // n] for index in range(n)]


def expected_labels(data: DataConfig) -> KnownLabels:
    """The labels that a config's data set will have, from the names of folders and files alone; no image is read.

    Where there are none yet, file names with cameras are expected.
    """
    if data.type == "toy_cars":
        return KnownLabels(data.labels != "none", n_elevations=toy_car_elevations(data))
    folders = find_folders(data).folders
    if not folders:
        return KnownLabels(True, n_elevations=max(1, len(data.rings)))
    labelled = read_labels(folders, source := label_source(data, folders), data)
    if data.on_bad_file == "skip":
        left_out = {fault.where for fault in labelled.faults if fault.of_image}
        kept = [item for item in labelled.items if str(item.file) not in left_out]
        labelled = with_classes_seen(labelled._replace(items=kept))
    return KnownLabels(source != "none", max(1, len(labelled.class_names)), labelled.n_elevations)


def toy_car_elevations(data: DataConfig) -> int:
    """Bins of elevation of toy cars: as many as data.v has, where they are seen from a range of them."""
    return (len(data.rings) or TOY_CAR_ELEVATIONS) if data.labels != "none" and data.v_range[0] < data.v_range[1] else 1


def sample_labels(dataset: Views, n: int, data: DataConfig, rng: torch.Generator) -> Labels:
    """Labels of n fakes, on the CPU: the data's own, sampled with replacement; for unposed data, cameras from the config's
    camera_prior and classes as frequent as the data's."""
    labels = dataset.labels_at(torch.randint(len(dataset), (n,), generator=rng))
    return labels if dataset.posed else dataclasses.replace(labels, pose_c2w=sample_poses(n, data, rng))
