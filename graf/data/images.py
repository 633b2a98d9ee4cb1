"""Data sets of images in folders: unposed, or with cameras from file names or files of cameras."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from graf.camera import Labels
from graf.config import Config, DataConfig
from graf.config.name_pattern import name_pattern
from graf.config.strict import listed, one_line
from graf.data.cameras.corrections import corrected_cameras, warn_of_unused
from graf.data.cameras.seen_from import settings_of_places
from graf.data.decoding import CENTRE_SQUARE, Frame, read_alpha, read_image
from graf.data.folders import (
    TRANSFORMS,
    Fault,
    Folder,
    Item,
    doubted_masks,
    find_folders,
    how_to_convert,
    images_below,
    images_in,
    object_of,
)
from graf.data.image_cache import ImageCache, image_cache
from graf.data.labels import FILES, READERS, Labelled, is_aligned, label_source, read_labels, with_classes_seen
from graf.data.labels.framing import frames_of
from graf.data.labels.names import report_names
from graf.data.masks import find_masks
from graf.data.validation import (
    alpha_of_images,
    check_fit,
    check_images,
    fov_fault,
    raise_or_skip,
    warn_of_enlarged,
    warn_of_negatives,
    warn_of_turned,
)
from graf.data.views import Views
from graf.errors import DataError

import torch
from torch import Tensor
from torch.nn import functional as F

PREPROCESSING_KEYS = ("imsize", "background", "center_crop")
MOST_JOINED = 8  # folders that may be meant as classes; more are objects
PARTS_OF_A_SET = {"train", "val", "test"}  # folders of NeRF-Blender's images

log = logging.getLogger("graf")


class ImageFolders(Views):
    """The images of folders, read from a cache or from their files."""

    def __init__(
        self,
        labelled: Labelled,
        frames: list[Frame],
        source: str,
        data: DataConfig,
        cache: ImageCache | None = None,
        thumbnails: Tensor | None = None,
    ):
        items = labelled.items
        self.data, self.frames, self.cache = data, frames, cache
        self._objects = [item.object or object_of(str(item.file)) for item in items]
        class_index = torch.tensor([item.class_index for item in items], dtype=torch.long)
        labels = None
        if source != "none":
            elevation_index = torch.tensor([item.elevation_index for item in items], dtype=torch.long)
            labels = Labels(torch.stack([item.pose_c2w for item in items]), class_index, elevation_index)
        super().__init__(
            files=[str(item.file) for item in items],
            class_names=labelled.class_names,
            labels=labels,
            fingerprint=images_fingerprint(items, frames, data),
            class_index=class_index,
            n_elevations=labelled.n_elevations,
            alpha="rgba" if data.alpha == "rgba" else "ignore",
            label_source=source,
            thumbnails=thumbnails,
            confidence=[item.confidence for item in items],
        )

    @property
    def objects(self) -> list[str]:
        return self._objects

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
            return read(self.files[index], data, self.frames[index])
        except ValueError as error:
            raise DataError(f"{self.files[index]}: {error}") from error


def load_images(config: Config, cache_folder: Path | None = None, take_cameras: bool = False) -> ImageFolders:
    """The images of a config, labelled and checked; kept decoded where a folder is named, as data.cache_gb says.

    take_cameras: values of `data` that are the default's give way to those of the images' cameras, which are the data set's
    `camera_settings`. With data.on_bad_file: skip, faulty images are left out and logged. Raises DataError with all faults.
    """
    folders, faults, unread, mask_of = find_folders(config.data)
    source = label_source(config.data, folders)
    labelled = read_labels(folders, source, config.data, take_cameras)
    data = dataclasses.replace(config.data, **labelled.camera_settings)
    config = dataclasses.replace(config, data=data)
    if source in READERS:  # files of cameras name images that are not those of the folders
        masks = find_masks([item.file for item in labelled.items if not item.mask], data.masks)
        mask_of, faults = masks.of, faults + doubted_masks(masks)
    items = with_masks(corrected_cameras(labelled.items, data), mask_of, data)
    warn_of_unused(data, source)
    faults += labelled.faults + mask_faults(items, data)
    frames = frames_of(items, data)
    cache = image_cache(len(items), images_fingerprint(items, frames, data), config, cache_folder) if cache_folder else None
    try:
        checked = check_images(items, frames, data, cache)
        cache = cache and cache.finish()
    except BaseException:  # Ctrl-C among them
        if cache:
            cache.discard()
        raise
    faults += [image.fault for image in checked if image.fault] + fov_fault(checked, frames, data)
    bad_files = {fault.where for fault in faults if fault.of_image}
    good_rows = [row for row, item in enumerate(items) if str(item.file) not in bad_files]
    n_images = len(good_rows) if data.on_bad_file == "skip" else len(items)
    uses_radius = source in ("filename", "none") or is_aligned(source, data)
    faults += check_fit(config, n_images, posed=source != "none", uses_radius=uses_radius)
    if data.on_bad_file == "skip" and items and not good_rows:
        faults.append(Fault("data", f"all {len(items)} images are faulty; set data.on_bad_file: error to read why"))
    if unread and items:  # without items it is among the faults
        log.warning("%s", how_to_convert(unread))
    if source in ("transforms", "colmap"):
        warn_of_unnamed(folders, labelled.items, source, data)
    if source == "transforms":
        tell_of_joined(folders, labelled.items, data)
    if source in READERS:
        warn_of_turned([str(image.item.file) for image in checked if image.may_be_turned], len(checked))
    warn_of_negatives(checked)
    warn_of_enlarged([image for image in checked if not image.fault], data.imsize)
    raise_or_skip(faults, data)
    if source == "filename":
        report_names(folders, data)
    if data.alpha == "auto":
        data = dataclasses.replace(data, alpha=alpha_of_images([checked[row] for row in good_rows]))
    good = with_classes_seen(labelled._replace(items=[items[row] for row in good_rows]))
    thumbnails = torch.stack([checked[row].thumbnail for row in good_rows])
    views = ImageFolders(good, [frames[row] for row in good_rows], source, data, cache and cache.select(good_rows), thumbnails)
    views.camera_settings = labelled.camera_settings | (settings_of_places(views, data) if take_cameras else {})
    return views


def with_masks(items: list[Item], mask_of: dict[Path, Path], data: DataConfig) -> list[Item]:
    """The items with their masks: that which a file of cameras names, else that of mask_of; none with data.masks: none."""
    if data.masks == "none":
        return [dataclasses.replace(item, mask=None) for item in items]
    if mask_of:
        example = next(iter(mask_of.items()))
        log.info("masks: %d of %d images, such as %s of %s", len(mask_of), len(items), example[1], example[0].name)
    return [item if item.mask else dataclasses.replace(item, mask=mask_of.get(item.file)) for item in items]


def warn_of_unnamed(folders: list[Folder], items: list[Item], source: str, data: DataConfig) -> None:
    """Warn of images that a file of cameras does not name: beside those of COLMAP's model, or in and below the folder of a
    transforms.json, but not those of the same names as in it: images_2, images_4 and images_8 of nerfstudio are copies."""
    if source == "colmap":
        inside = [file for place in {item.file.parent for item in items} for file in images_in(place)]
    else:
        inside = [file for folder in folders if folder.cameras == "transforms" for file in images_below(folder.path)]
    known = {item.file for item in items} | {item.mask for item in items} | find_masks(inside, data.masks).files
    names = {item.file.name for item in items if source == "transforms"}
    unnamed = sorted(file for file in set(inside) - known if file.name not in names)
    if unnamed:
        log.warning(
            "%d images beside or below a %s are not named in it, and are not used, such as %s",
            *(len(unnamed), FILES[source], one_line(str(unnamed[0]))),
        )


def tell_of_joined(folders: list[Folder], items: list[Item], data: DataConfig) -> None:
    """Log which few folders are one class, because a transforms.json above them names their images."""
    if "class" in name_pattern(data.name_pattern).parts:
        return
    files_of: list[list[Path]] = [[] for _ in folders]
    for item in items:
        files_of[item.class_index].append(item.file)
    for folder, files in zip(folders, files_of, strict=True):
        inside = [file.parent.relative_to(folder.path).parts for file in files if file.is_relative_to(folder.path)]
        places = [tuple(part for part in parts if part not in PARTS_OF_A_SET) for parts in inside]
        depth = len(os.path.commonprefix(places))
        below = sorted({place[depth] for place in places if len(place) > depth})
        if 1 < len(below) <= MOST_JOINED:
            log.info(
                "%s: its %s makes one class of the folders %s; if they are classes, and not objects of one, put one into each",
                *(folder.path, TRANSFORMS, listed(below)),
            )


def mask_faults(items: list[Item], data: DataConfig) -> list[Fault]:
    """A fault for each image without a mask where others have one, or where data.masks names some."""
    missing = [item for item in items if item.mask is None]
    if data.masks == "none" or not missing or (data.masks == "auto" and len(missing) == len(items)):
        return []
    place = "beside the others'" if data.masks == "auto" else f"at data.masks: {data.masks}"
    problem = f"has no mask {place}; add it, or set data.masks: none to use the photographs as they are"
    return [Fault(str(item.file), problem, of_image=True) for item in missing]


def images_fingerprint(items: list[Item], frames: list[Frame], data: DataConfig) -> str:
    """sha256 of the files' names, sizes and modification times, their labels, and the preprocessing."""
    digest = hashlib.sha256(json.dumps([getattr(data, key) for key in PREPROCESSING_KEYS]).encode())
    for item, frame in zip(items, frames, strict=True):
        pose = None if item.pose_c2w is None else item.pose_c2w.tolist()
        row = ["/".join(item.file.parts[-2:]), *_changed(item.file), item.class_index, item.elevation_index, pose]
        if frame != CENTRE_SQUARE:
            row += [frame.side, frame.centre, frame.mask and [frame.mask.name, *_changed(frame.mask)]]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def _changed(file: Path) -> tuple[int | None, int | None]:
    """Size and modification time; none of a missing file, which is a fault of its own."""
    try:
        stat = file.stat()
    except OSError:
        return None, None
    return stat.st_size, stat.st_mtime_ns
