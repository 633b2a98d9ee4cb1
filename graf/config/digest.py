"""A digest of the settings that images depend on."""

import hashlib
import json
from typing import Any

from graf.config.older import FIRST_VALUES, FIRST_WORDS, OLDER_NAMES, OLDER_VALUES, OLDER_WORDS
from graf.config.reading import config_to_dict, flat
from graf.config.schema import Config

RENDERING = ("data.", "nerf.", "ccsr.", "z_dist.type")  # sections, and a key, that images depend on
BY_STEP = "ccsr.unrefined_steps"  # of which ccsr.mode tells what became of it
OF_MACHINES = (  # keys of these sections that say how a machine is used
    *("data.cache_gb", "data.cache_device", "data.prefetch_factor", "nerf.checkpoint_rays", "nerf.chunk"),
)


def rendering_sha256(config: Config) -> str:
    """A digest of the settings that the images of given weights depend on: those that differ from each key's first default.

    Keys and values enter it by their first names. So it stays as it is where one is renamed, a key is added at a default that
    changes nothing, or given another default.
    """
    return _digest_without(config, (BY_STEP, *OF_MACHINES))


def older_rendering_sha256(config: Config) -> str:
    """`rendering_sha256` as it was when OF_MACHINES entered it too."""
    return _digest_without(config, (BY_STEP,))


def _digest_without(config: Config, left_out: tuple[str, ...]) -> str:
    values, defaults = (
        _first_written({k: x for k, x in flat(config_to_dict(some)).items() if k.startswith(RENDERING) and k not in left_out})
        for some in (config, Config())
    )
    first = defaults | _first_written(flat(OLDER_VALUES)) | FIRST_VALUES
    named = {key: value for key, value in values.items() if value != first[key]}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def _first_written(values: dict[str, Any]) -> dict[str, Any]:
    """Flat keys and values as the version that had them first wrote them."""
    names = {new: old for old, new in reversed(OLDER_NAMES.items())}
    words = {(key, new): old for (key, old), new in OLDER_WORDS.items()} | FIRST_WORDS
    return {names.get(key, key): words.get((key, str(value)), value) for key, value in values.items()}
