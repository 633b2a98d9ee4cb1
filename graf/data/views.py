"""The interface of all data sets: images with a class, and with a camera where the data is posed."""

import abc
import dataclasses
from typing import Literal

from graf.camera import Labels, sample_poses
from graf.config import DataConfig
from graf.data.folders import object_of
from graf.data.knowledge import Knowledge
from graf.rays import mirrored_images

import torch
from torch import Tensor
from torch.utils.data import Dataset


@dataclasses.dataclass(eq=False, repr=False)
class Views(Dataset, abc.ABC):
    """N images with their labels; a subclass implements `read`."""

    files: list[str]  # a name for each image, for messages
    class_names: list[str]  # of the folders
    class_index: Tensor  # (N,) int64
    labels: Labels | None  # of all images; None where the data is unposed
    fingerprint: str  # sha256 that identifies the set
    n_elevations: int = 1  # elevation bins
    alpha: Literal["ignore", "judge"] = "ignore"  # whether images come with their opacity: data.alpha, and what `auto` is

    @abc.abstractmethod
    def read(self, index: int) -> Tensor:
        """Image (3, H, W) uint8, with data.alpha: judge (4, H, W), opacity last. Raises DataError where it cannot be read."""

    @property
    def objects(self) -> list[str]:
        """A name for the object that each image shows."""
        return [object_of(file) for file in self.files]

    @property
    def posed(self) -> bool:
        return self.labels is not None

    @property
    def knowledge(self) -> Knowledge:
        return Knowledge(self.posed, len(self.class_names), self.n_elevations)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: int | tuple[int, bool]) -> dict[str, Tensor]:
        """image (3, H, W) in [-1, 1], class_index and elevation_index (), and pose_c2w (3, 4) where the data is posed; with
        data.alpha: judge also alpha (1, H, W), opacity from -1, clear, to 1.

        The key is an index, or an index and whether the image is mirrored (unposed data only).
        """
        index, flip = key if isinstance(key, tuple) else (key, False)
        assert not (flip and self.posed), "a mirrored photograph needs a mirrored camera"
        image = self.read(index)
        image = (mirrored_images(image) if flip else image).to(torch.float32) / 127.5 - 1
        item = {"image": image[:3]} | ({"alpha": image[3:]} if len(image) > 3 else {})
        if self.labels is None:
            return item | {"class_index": self.class_index[index], "elevation_index": torch.tensor(0)}
        return item | {f.name: getattr(self.labels, f.name)[index] for f in dataclasses.fields(Labels)}


def whole_images(batch: dict[str, Tensor]) -> Tensor:
    """The images (B, C, H, W) of a batch of items, C = data.channels: colours, and opacity where they have it."""
    return torch.cat([batch[name] for name in ("image", "alpha") if name in batch], dim=1)


def sample_labels(dataset: Views, n: int, data: DataConfig, generator: torch.Generator) -> Labels:
    """Labels of n fakes, on the CPU: the data's own, drawn with replacement; where it is unposed, cameras from the config's
    range with classes as frequent as the data's."""
    index = torch.randint(len(dataset), (n,), generator=generator)
    if dataset.labels is not None:
        return dataset.labels[index]
    classes = dataset.class_index[index]
    return Labels(sample_poses(n, data, generator), classes, torch.zeros_like(classes))
