"""Decides the cameras that a run has, data.alpha, data.box, discriminator.condition, the encoder and how long low resolution
lasts by the data, and what the discriminator's heads see by the checkpoint that goes on, and writes them into a run's config.

Where the data's labels come from is decided as they are read, and what depends on the machine (training.amp_dtype, sizes, the
extractor) as it is used, so that a run can move.
"""

import dataclasses
import logging

from graf.config import Config, RunConfig
from graf.config.checks import check_config
from graf.config.older import FEATURE_SIZE_BEFORE
from graf.config.strict import keys_in_words
from graf.data.cameras.seen_from import OF_AZIMUTHS, OF_HEIGHTS
from graf.data.hull import data_box
from graf.data.labels.own_cameras import OF_CAMERAS, has_default
from graf.data.views import KnownLabels, Views
from graf.errors import ConfigError

log = logging.getLogger("graf")


def resolve(config: Config, dataset: Views | None = None, trained: Config | None = None) -> Config:
    """The config that a run has from then on: values in place of data.alpha: auto and data.box: auto, a condition that the data
    have labels for, and an encoder only where they have cameras or it finds them.

    dataset: the real images, read with `trained` (see build_dataset); without them only `trained` decides. trained: the config
    of the checkpoint that goes on or is loaded. What neither decides has no effect: ignore, none. Raises ConfigError where
    discriminator.label_loss has nothing to tell apart.
    """
    if dataset and config.data.alpha == "auto" and config.data.background_model == "plane":
        log.info("data.alpha: ignore, because data.background_model: plane fills what opacity leaves")
    config = with_alpha(config, trained, dataset.alpha if dataset else "ignore")
    if config.data.box == "auto":
        config = _replace(config, "data", box=_box(config, dataset, trained))
    if trained is not None and config.ccsr.unrefined_steps == "auto" != trained.ccsr.unrefined_steps:
        config = _replace(config, "ccsr", unrefined_steps=trained.ccsr.unrefined_steps)
    if dataset is not None or trained is not None:
        config = with_feature_size(config, trained)
    if dataset is None:
        return config
    config = without_encoder(with_condition(config, dataset.known_labels), dataset.posed, trained)
    return _replace(config, "discriminator", low_res_steps=config.low_res_steps)


def with_trained_cameras(config: RunConfig, trained: RunConfig) -> RunConfig:
    """The config with the cameras of a run's config, `trained`, where its own are the default's: what the images' cameras told
    at the first start holds for the whole run, and for what it trained. A change is logged. Raises ConfigError where other keys
    do not fit them."""
    data, before = config.data, trained.data
    groups = [[key] for key in OF_CAMERAS] * (data.orthographic == before.orthographic)
    groups += [OF_AZIMUTHS, OF_HEIGHTS] * (data.camera_prior == before.camera_prior == "circle")
    keys = [key for group in groups if has_default(data, group) for key in group]
    values = {key: getattr(before, key) for key in keys if getattr(before, key) != getattr(data, key)}
    if data.type != before.type or not values:
        return config
    it = "it" if len(values) == 1 else "them"
    log.info("%s, as the checkpoint has %s; name another value than the default's to change %s", keys_in_words(values), it, it)
    config = _replace(config, "data", **values)
    check_config(config, "the cameras of the checkpoint")
    return config


def with_cameras_of(config: RunConfig, dataset: Views) -> RunConfig:
    """The config with the `camera_settings` of a data set. Raises ConfigError where other keys do not fit them."""
    config = _replace(config, "data", **dataset.camera_settings)
    check_config(config, "the cameras of the images")
    return config


def without_encoder(config: Config, posed: bool, trained: Config | None = None) -> Config:
    """The config without an encoder that cannot learn: of images without cameras, or with a background of their own, which no
    latents of the encoder describe, unless a run goes on that has one. One that finds cameras stays. A change is logged."""
    if not config.encodes_images or config.encoder.finds_cameras:
        return config
    goes_on = trained is not None and trained.encodes_images
    if not posed:
        reason = "because these images have no cameras"
    elif config.data.background_model == "plane" and not goes_on:
        reason = "because reconstructions would draw the backgrounds of data.background_model: plane as walls of the field"
    else:
        return config
    log.info("encoder.first_steps and encoder.weight: 0, %s", reason)
    return config.without_encoder()


def with_alpha(config: Config, trained: Config | None, otherwise: str = "auto") -> Config:
    """The config with data.alpha: auto as `trained` has it, or `otherwise` without one; ignore before a background of its
    own."""
    if config.data.alpha != "auto":
        return config
    if config.data.background_model == "plane":  # which fills what opacity leaves
        otherwise = "ignore"
    elif trained is not None:
        otherwise = "ignore" if trained.data.alpha == "auto" else trained.data.alpha
    return _replace(config, "data", alpha=otherwise)


def with_feature_size(config: Config, trained: Config | None) -> Config:
    """The config with a number in place of discriminator.feature_size: auto for mixed critics. Runs that have auto in their
    checkpoints began when it was FEATURE_SIZE_BEFORE, and go on with that."""
    discriminator = config.discriminator
    if (discriminator.architecture, discriminator.feature_size) != ("mixed", "auto"):
        return config
    size = config.feature_size
    if trained is not None and trained.discriminator.architecture == "mixed":
        before = trained.discriminator.feature_size
        size = FEATURE_SIZE_BEFORE if before == "auto" else before
    return _replace(config, "discriminator", feature_size=size)


def with_condition(config: Config, known: KnownLabels) -> Config:
    """The config with a discriminator.condition that the data have labels for: without cameras only the class, or none with a
    single class. A change is logged.

    Raises ConfigError where discriminator.label_loss has nothing to tell apart.
    """
    discriminator = config.discriminator
    if discriminator.label_loss != "none" and known.n_classes == known.n_elevations == 1:
        raise ConfigError(
            f"discriminator.label_loss: {discriminator.label_loss} has nothing to tell apart in data of one class and one "
            "elevation; set it to none, or give each class a folder of its own"
        )
    if known.posed or discriminator.condition == "none":
        return config
    condition = "class" if known.n_classes > 1 else "none"
    if condition == discriminator.condition:
        return config
    log.info(
        "discriminator.condition: %s instead of %s, because these images have %s and no cameras, which names such as "
        "0_0090.png (<elevation>_<azimuth>) or a transforms.json would tell",
        *(condition, discriminator.condition, "one class" if known.n_classes == 1 else f"{known.n_classes} classes"),
    )
    return _replace(config, "discriminator", condition=condition)


def _box(config: Config, dataset: Views | None, trained: Config | None) -> str | tuple[float, ...]:
    """data.box of the checkpoint, else around what the data show; none where neither tells it."""
    if trained is not None:
        return "none" if trained.data.box == "auto" else trained.data.box
    return "none" if dataset is None else data_box(dataset, config.data)


def _replace(config: RunConfig, section: str, **values: object) -> RunConfig:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})
