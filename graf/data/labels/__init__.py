"""The class, the object and the camera of each image, from file names or from a file of cameras beside the images."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from graf.config import DataConfig
from graf.config.strict import listed
from graf.data.cameras.corrections import with_opengl_axes
from graf.data.folders import DATASET_JSON, TRANSFORMS, Fault, Folder, Item, name_of_cameras
from graf.data.labels.colmap import read_colmap
from graf.data.labels.eg3d import read_eg3d
from graf.data.labels.names import items_by_name, names_have_cameras, unmatched_pattern, with_named_classes
from graf.data.labels.own_cameras import camera_settings, left_to_cameras, with_lens
from graf.data.labels.placement import aligned, depth_faults, warn_of_radius
from graf.data.labels.transforms import read_transforms
from graf.errors import DataError

READERS = {"transforms": read_transforms, "eg3d": read_eg3d, "colmap": read_colmap}
FILES = {"transforms": TRANSFORMS, "eg3d": DATASET_JSON, "colmap": "COLMAP model"}

log = logging.getLogger("graf")


class Labelled(NamedTuple):
    """The images of folders with their labels, the classes' names, the number of elevation bins, all faults, and the values of
    `data` that their cameras have in place of the default's."""

    items: list[Item]
    class_names: list[str]
    n_elevations: int
    faults: list[Fault]
    camera_settings: dict[str, Any] = {}


def label_source(data: DataConfig, folders: Sequence[Folder]) -> str:
    """`transforms`, `eg3d`, `colmap`, `filename` or `none`: data.labels, with `auto` resolved to the first of them that the
    folders offer."""
    if data.labels != "auto":
        return data.labels
    if offered := [kind for kind in READERS if any(folder.cameras == kind for folder in folders)]:
        return offered[0]
    return "filename" if names_have_cameras(folders, data) else "none"


def is_aligned(source: str, data: DataConfig) -> bool:
    """Whether cameras from a file are moved to data.radius and the origin: data.align_cameras."""
    return data.align_cameras == "always" or (data.align_cameras == "auto" and source in ("eg3d", "colmap"))


def read_labels(folders: list[Folder], source: str, data: DataConfig, take_cameras: bool = False) -> Labelled:
    """All images of the folders with the labels of a source from `label_source`. take_cameras: as of `items_by_files`."""
    n_elevations, settings = 1, {}
    if source == "filename":
        items, n_elevations, faults = items_by_name(folders, data)
    elif source == "none":
        items = [Item(file, index) for index, folder in enumerate(folders) for file in folder.images]
        faults = unmatched_pattern(folders, data)
    else:
        items, faults, settings = items_by_files(folders, source, data, take_cameras)
    items, class_names = with_named_classes(items, folders, data)
    return Labelled(items, class_names, n_elevations, faults, settings)


def with_classes_seen(labelled: Labelled) -> Labelled:
    """The images with the classes that have some: a network would learn nothing of a class whose images were all left out, and
    yet draw its objects."""
    number_of = {index: number for number, index in enumerate(sorted({item.class_index for item in labelled.items}))}
    if len(number_of) == len(labelled.class_names):
        return labelled
    unseen = [name for index, name in enumerate(labelled.class_names) if index not in number_of]
    log.warning("no class: %s, whose images were all left out", listed(unseen))
    items = [dataclasses.replace(item, class_index=number_of[item.class_index]) for item in labelled.items]
    return labelled._replace(items=items, class_names=[labelled.class_names[index] for index in number_of])


def items_by_files(
    folders: Sequence[Folder], source: str, data: DataConfig, take_cameras: bool = False
) -> tuple[list[Item], list[Fault], dict[str, Any]]:
    """The images named in the folders' files of cameras, every fault of these, and values of `data`.

    take_cameras: the values are those of the cameras for keys that the config leaves to them; the others are checked.
    """
    groups, faults, faulty, scaled = {}, [], set(), is_aligned(source, data)
    take_cameras = take_cameras and not data.orthographic and left_to_cameras(data)
    for class_index, folder in enumerate(folders):
        if folder.cameras != source:
            cure = "add one, or set data.labels: filename or none"
            faults.append(Fault(str(folder.path), f"no {FILES[source]} has the cameras of these images; {cure}"))
            continue
        where = str(name_of_cameras(folder.path, source))
        found, wrong = READERS[source](folder.path, class_index)
        if source == "transforms":
            found = with_opengl_axes(found, data)
        groups[where] = found
        faults += wrong
        if any(not fault.of_image for fault in wrong):
            faulty.add(where)
    unharmed = _without_faulty(groups, faults, data)
    lens = with_lens([item for found in unharmed.values() for item in found], data, scaled) if take_cameras else None
    for where, found in groups.items() if scaled else ():
        try:
            groups[where] = aligned(found, where, lens or data)
        except DataError as error:
            faults.append(Fault(where, str(error)))
            groups[where] = [dataclasses.replace(item, pose_c2w=None) for item in found]  # in a world that is not ours
    settings = camera_settings(_without_faulty(groups, faults, data), data, lens, scaled) if lens else {}
    data = dataclasses.replace(data, **settings)
    out_of_reach = depth_faults(groups, data, scaled)
    if all(fault.of_image for fault in out_of_reach) and not scaled:
        warn_of_radius({where: found for where, found in groups.items() if where not in faulty}, data)
    return [item for found in groups.values() for item in found], faults + out_of_reach, settings


def _without_faulty(groups: dict[str, list[Item]], faults: Sequence[Fault], data: DataConfig) -> dict[str, list[Item]]:
    """The images that are used, by file, as far as that is known."""
    left_out = {fault.where for fault in faults if fault.of_image} if data.on_bad_file == "skip" else set()
    return {where: [item for item in items if str(item.file) not in left_out] for where, items in groups.items()}
