"""A digest of the settings that images depend on."""

import hashlib
import json

from graf.config.foreign import FIRST_VALUES, OLDER_NAMES, OLDER_VALUES
from graf.config.reading import config_to_dict, flat
from graf.config.schema import Config

DRAWING = ("data.", "nerf.", "ccsr.")  # sections whose keys images depend on


def rendering_sha256(config: Config) -> str:
    """A digest of the settings that the images of given weights depend on: those that differ from each key's first default.

    Keys enter it by their first names. So it stays as it is where a key is renamed, added at a default that changes nothing,
    or given another default.
    """
    first_names = {new: old for old, new in reversed(OLDER_NAMES.items())}
    values, defaults = (
        {first_names.get(key, key): value for key, value in flat(config_to_dict(some)).items() if key.startswith(DRAWING)}
        for some in (config, Config())
    )
    older = {first_names.get(key, key): value for key, value in flat(OLDER_VALUES).items()}
    first = defaults | older | FIRST_VALUES
    named = {key: value for key, value in values.items() if value != first[key]}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
