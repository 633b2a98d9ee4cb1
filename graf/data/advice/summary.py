"""The summary of what a run will learn from, as tools/validate_data.py prints it; train.py says only what is wrong with it."""

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

from graf.config import Config, DataConfig
from graf.data.advice.cameras import cameras_in_words
from graf.data.advice.evidence import Evidence, evidence_of
from graf.data.advice.names import hint_of_names
from graf.data.advice.warnings import sampled_all_around, warnings_about
from graf.data.folders import find_folders, name_of_cameras
from graf.data.views import Views

log = logging.getLogger("graf")


def log_summary(dataset: Views, config: Config) -> None:
    """Log what will be learned from, a line each, and what is missing; then all that `log_warnings` logs."""
    data = config.data
    evidence = evidence_of(dataset, data)
    lines = {
        "images": _images(data, evidence),
        "objects": _objects(dataset, evidence),
        "cameras": cameras_in_words(dataset, data),
        "background": _background(evidence),
        "opacity": _opacity(dataset, data),
        "missing": "\n".join(_missing(dataset, data)) or "nothing",
    }
    indented = (f"  {name:<12}{text}".replace("\n", f"\n{'':14}") for name, text in lines.items())
    log.info("%s", "\n".join(["what will be learned from:", *indented]))
    log_warnings(dataset, config, evidence)


def log_warnings(dataset: Views, config: Config, evidence: Evidence | None = None) -> None:
    """Warn of what will keep the data set from being learned, and log from where cameras are sampled if it has none.

    evidence: that of the data set, if it is known already.
    """
    evidence = evidence or evidence_of(dataset, config.data)
    for warning in warnings_about(dataset, config, evidence):
        log.warning("%s", warning)
    if around := sampled_all_around(dataset, evidence):
        log.info("%s", around)


def tell_of_unread_cameras(data: DataConfig) -> None:
    """Log a file of cameras that data.labels: none leaves unread."""
    if unread := _unread_cameras(data):
        log.info("%s is not read, because data.labels is none; auto reads it", unread)


def _images(data: DataConfig, evidence: Evidence) -> str:
    repeated = f", {evidence.n_different:,} of them different" if evidence.n_different < evidence.n_images else ""
    return f"{evidence.n_images:,}{repeated}, at {data.imsize} x {data.imsize} pixels"


def _objects(dataset: Views, evidence: Evidence) -> str:
    if evidence.n_objects is None:
        return "not told by the names of images without cameras, which may number views"
    if evidence.n_objects == evidence.n_images:
        return f"{evidence.n_objects:,}, another in each image"
    classes = f", of {len(dataset.class_names):,} classes (folders)" if len(dataset.class_names) > 1 else ""
    return f"{evidence.n_objects:,}, by folders and file names{classes}"


def _background(evidence: Evidence) -> str:
    background = evidence.background
    if background is None:
        return "transparent"
    if background.kind == "busy":
        return f"busy in {background.n_busy:,} of {evidence.n_images:,} images"
    return "plain, of many colours" if background.kind == "varied" else f"plain, about {list(background.colour)}"


def _opacity(dataset: Views, data: DataConfig) -> str:
    if dataset.alpha == "rgba":
        return "judged because all images have transparency"
    return "not judged " + ("(data.alpha: ignore)" if data.alpha == "ignore" else "because not all images have transparency")


def _unread_cameras(data: DataConfig) -> Path | None:
    is_unread = data.type == "images" and data.labels == "none"
    folders = find_folders(dataclasses.replace(data, labels="auto")).folders if is_unread else ()
    return next((name_of_cameras(folder.path, folder.cameras) for folder in folders if folder.cameras), None)


def _missing(dataset: Views, data: DataConfig) -> Iterator[str]:
    if unread := _unread_cameras(data):
        yield f"cameras: {unread} has them, and data.labels: none leaves it unread"
    elif not dataset.posed:
        yield (
            "cameras: training can do without; where they are known, give them by file names (data.name_pattern), a "
            "transforms.json, COLMAP's model or EG3D's dataset.json; tools/find_cameras.py finds those of views from all around"
        )
        if hint := hint_of_names(dataset, data):
            yield hint
    if dataset.alpha != "rgba":
        yield "silhouettes: save the objects cut out, as PNG with transparency, and opacity is judged too"
