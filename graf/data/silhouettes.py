"""Silhouettes of a data set's views: how much of each pixel the object covers, where the data knows it."""

from graf.camera import sample_poses
from graf.config import DataConfig
from graf.data.car_shapes import make_car
from graf.data.decoding import read_alpha
from graf.data.images import ImageFolders
from graf.data.toy_cars import SUPERSAMPLING, ToyCars, render_cars
from graf.data.views import Views, generator_of
from graf.errors import DataError

from torch import Tensor
from torch.nn import functional as F


def alpha_of(dataset: Views, index: int, data: DataConfig, supersampling: int = SUPERSAMPLING) -> Tensor | None:
    """Opacity (H, W) in [0, 1] of a view: of a photograph its transparency; of a toy car that is kept without it, by rendering
    the car again, with supersampling^2 rays per pixel.

    None for a photograph without transparency, whose silhouette nobody knows. Raises DataError where it cannot be read.
    """
    if isinstance(dataset, ToyCars):
        kept = dataset.read(index)[3:]
        if len(kept) and kept.shape[-1] == data.imsize:
            return kept[0] / 255
        known = dataset.labels is not None
        pose_c2w = dataset.labels.pose_c2w if known else sample_poses(data.n_images, data, generator_of(data.seed))
        return render_cars([make_car(data.seed, index)], pose_c2w[index : index + 1], data, supersampling).opacity[0]
    if not isinstance(dataset, ImageFolders):
        return None
    if dataset.alpha == "rgba" and data.imsize <= dataset.data.imsize:  # decoded already
        return F.adaptive_avg_pool2d(dataset.read(index)[3:] / 255, data.imsize)[0]
    try:
        alpha = read_alpha(dataset.files[index], data)
    except ValueError as error:
        raise DataError(f"{dataset.files[index]}: {error}") from error
    return None if alpha is None else alpha / 255
