"""Data sets of photographs in folders: unposed, or with cameras from file names or a transforms.json."""

import hashlib
import json
from pathlib import Path

from graf.camera import Labels
from graf.config import DataConfig
from graf.data.decoding import read_image
from graf.data.folders import Item
from graf.data.knowledge import elevation_bins
from graf.data.validation import Survey
from graf.data.views import Views
from graf.errors import DataError

import torch
from torch import Tensor

PREPROCESSING_KEYS = ("imsize", "background", "center_crop")


class ImageFolders(Views):
    """The images of a survey, read from their files when asked for."""

    def __init__(self, survey: Survey, data: DataConfig):
        self.data = data
        class_index = torch.tensor([item.class_index for item in survey.items], dtype=torch.long)
        labels = None
        if survey.label_source != "none":
            elevation_index = torch.tensor([item.elevation_index for item in survey.items], dtype=torch.long)
            labels = Labels(torch.stack([item.pose_c2w for item in survey.items]), class_index, elevation_index)
        super().__init__(
            files=[str(item.file) for item in survey.items],
            class_names=[folder.path.resolve().name for folder in survey.folders],
            labels=labels,
            fingerprint=images_fingerprint(survey.items, data),
            class_index=class_index,
            n_elevations=elevation_bins(data, survey.label_source),
        )

    def read(self, index: int) -> Tensor:
        try:
            return read_image(self.files[index], self.data)
        except ValueError as error:
            raise DataError(f"{self.files[index]}: {error}") from error


def images_fingerprint(items: list[Item], data: DataConfig) -> str:
    """sha256 of the files' names, sizes and times of change, their labels, and how they are preprocessed."""
    digest = hashlib.sha256(json.dumps([getattr(data, key) for key in PREPROCESSING_KEYS]).encode())
    for item in items:
        stat = Path(item.file).stat()
        pose = None if item.pose_c2w is None else item.pose_c2w.tolist()
        row = ["/".join(item.file.parts[-2:]), stat.st_size, stat.st_mtime_ns, item.class_index, item.elevation_index, pose]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()
