"""Data sets of images in folders: unposed, or with cameras from file names or a transforms.json."""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

from graf.camera import Labels
from graf.config import Config, DataConfig
from graf.data.decoding import read_alpha, read_image
from graf.data.folders import Fault, Folder, Item, find_folders, how_to_convert, items_by_name, label_source
from graf.data.image_cache import ImageCache, image_cache
from graf.data.transforms import items_by_transforms
from graf.data.validation import alpha_of_images, check_fit, check_images, raise_or_skip, report_elevations, warn_of_enlarged
from graf.data.views import Views, elevation_bins
from graf.errors import DataError

import torch
from torch import Tensor
from torch.nn import functional as F

PREPROCESSING_KEYS = ("imsize", "background", "center_crop")

log = logging.getLogger("graf")


class ImageFolders(Views):
    """The images of folders, read from a cache or from their files."""

    def __init__(
        self,
        items: list[Item],
        folders: list[Folder],
        source: str,
        data: DataConfig,
        cache: ImageCache | None = None,
        thumbnails: Tensor | None = None,
    ):
        self.data, self.cache = data, cache
        class_index = torch.tensor([item.class_index for item in items], dtype=torch.long)
        labels = None
        if source != "none":
            elevation_index = torch.tensor([item.elevation_index for item in items], dtype=torch.long)
            labels = Labels(torch.stack([item.pose_c2w for item in items]), class_index, elevation_index)
        super().__init__(
            files=[str(item.file) for item in items],
            class_names=[folder.path.resolve().name for folder in folders],
            labels=labels,
            fingerprint=images_fingerprint(items, data),
            class_index=class_index,
            n_elevations=elevation_bins(data, source),
            alpha="rgba" if data.alpha == "rgba" else "ignore",
            label_source=source,
            thumbnails=thumbnails,
        )

    def read(self, index: int) -> Tensor:
        if self.cache:
            with contextlib.suppress(OSError, ValueError):  # the cache's file was removed: the images are still there
                return self.cache.read(index)[: self.data.channels]
        return self._from_file(read_image, index, self.data)

    def opacity(self, index: int, data: DataConfig, supersampling: int | None = None) -> Tensor | None:
        if self.alpha == "rgba" and data.imsize <= self.data.imsize:
            return F.adaptive_avg_pool2d(self.read(index)[3:] / 255, data.imsize)[0]
        alpha = self._from_file(read_alpha, index, data)
        return None if alpha is None else alpha / 255

    def _from_file(self, read: Callable[..., Tensor | None], index: int, data: DataConfig) -> Tensor | None:
        try:
            return read(self.files[index], data)
        except ValueError as error:
            raise DataError(f"{self.files[index]}: {error}") from error


def load_images(config: Config, cache_folder: Path | None = None) -> ImageFolders:
    """The images of a config, labelled and checked; kept decoded where a folder is named, as data.cache_gb says.

    With data.on_bad_file: skip, faulty images are left out and logged. Raises DataError with all faults at once.
    """
    data = config.data
    folders, faults, unread = find_folders(data)
    source = label_source(data, folders)
    if source == "none":
        items = [Item(file, index) for index, folder in enumerate(folders) for file in folder.images]
    else:
        items, label_faults = (items_by_name if source == "filename" else items_by_transforms)(folders, data)
        faults += label_faults
    cache = image_cache(len(items), images_fingerprint(items, data), config, cache_folder) if cache_folder else None
    try:
        checked = check_images(items, data, cache)
        cache = cache and cache.finish()
    except BaseException:  # Ctrl-C among them
        if cache:
            cache.discard()
        raise
    faults += [image.fault for image in checked if image.fault]
    bad_files = {fault.where for fault in faults if fault.of_image}
    good_rows = [row for row, item in enumerate(items) if str(item.file) not in bad_files]
    n_images = len(good_rows) if data.on_bad_file == "skip" else len(items)
    faults += check_fit(config, n_images, posed=source != "none", uses_radius=source != "transforms")
    if data.on_bad_file == "skip" and items and not good_rows:
        faults.append(Fault("data", f"all {len(items)} images are faulty; set data.on_bad_file: error to read why"))
    if unread and items:  # without items it is among the faults
        log.warning("%s", how_to_convert(unread))
    warn_of_enlarged([image for image in checked if not image.fault], data.imsize)
    raise_or_skip(faults, data)
    if source == "filename":
        report_elevations(folders, data.v)
    if data.alpha == "auto":
        data = dataclasses.replace(data, alpha=alpha_of_images([checked[row] for row in good_rows]))
    good_items, thumbnails = [items[row] for row in good_rows], torch.stack([checked[row].thumbnail for row in good_rows])
    return ImageFolders(good_items, folders, source, data, cache and cache.select(good_rows), thumbnails)


def images_fingerprint(items: list[Item], data: DataConfig) -> str:
    """sha256 of the files' names, sizes and modification times, their labels, and the preprocessing."""
    digest = hashlib.sha256(json.dumps([getattr(data, key) for key in PREPROCESSING_KEYS]).encode())
    for item in items:
        try:
            stat = item.file.stat()
            changed = stat.st_size, stat.st_mtime_ns
        except OSError:  # a missing file, which is a fault of its own
            changed = None, None
        pose = None if item.pose_c2w is None else item.pose_c2w.tolist()
        row = ["/".join(item.file.parts[-2:]), *changed, item.class_index, item.elevation_index, pose]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()
