"""YAML to `Config` and back: a file over the files that it inherits from, `section.key=value` overrides over both.

A file says only what differs from `Config()`, the default run. Reading is strict: a ConfigError
names the file, and every key that is unknown, of a wrong type or out of range.
"""

import copy
import dataclasses
import difflib
import functools
import itertools
import json
import logging
import math
import os
import re
import typing
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graf.config.checks import check_config
from graf.config.older import OLDER_NAMES, translate, translate_names
from graf.config.schema import Config, RunConfig
from graf.config.strict import NAME_IN_UTF_8, build, expanded, leaves, one_line, shown
from graf.errors import ConfigError
from graf.foreign.configs import is_graf_format

import yaml

log = logging.getLogger("graf")

LARGEST_FILE = 2**20  # characters of a config
WHOLE_NUMBER, NUMBER = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
C = typing.TypeVar("C", bound=RunConfig)
CONFIG_DIR = Path(__file__).resolve().parent.parent.parent / "configs"
DEFAULT = CONFIG_DIR / "default.yaml"


def load_config(path: str | Path | None = None, overrides: typing.Sequence[str] = (), schema: type[C] = Config) -> C:
    """The config of a YAML file, merged over the defaults, with `section.key=value` overrides on top.

    path: a file, or one of ours in configs/ by name (see find_config). schema: Config, or PoseConfig for train_pose.py. A file
    in GRAF's own format is translated (see graf/foreign/configs.py). Raises ConfigError for a missing file, and for unknown
    keys, wrong types and values out of range all at once, or for values that do not fit each other.
    """
    config = schema()
    if path is not None:
        raw = config_to_dict(config)
        for layer, where in _layers(find_config(path), schema):
            raw = merge(raw, layer, where)
        config = config_from_dict(raw, where, schema)
    return override(config, overrides)


def config_of_ours(path: str | Path | None) -> Config:
    """The config in configs/ that a YAML file is, or else inherits from; of a file that load_config has read, whose messages
    are not logged again."""
    file = None if path is None else find_config(path)
    while file is not None and file.resolve().parent != CONFIG_DIR:
        raw = read_yaml(file)
        if is_graf_format(raw):
            return graf_config()
        if flat(raw).keys() >= dict(leaves(Config)).keys():  # a run's own, which says what it was begun with
            return load_config(file)
        file = _parent(raw["inherit_from"], file) if "inherit_from" in raw else None
    return load_config(file)


def graf_config() -> Config:
    """The official GRAF's recipe: what its configs and weights are read as where they say nothing else."""
    return load_config(CONFIG_DIR / "graf.yaml")


def find_config(name: str | Path, beside: Path = Path()) -> Path:
    """The file that a config's name means: as it is, or else one of ours by `configs/smoke.yaml`, `smoke.yaml` or `smoke`.

    beside: the folder that a relative name starts from.
    """
    named = beside / expanded(str(name))
    folders = [named.parent] if Path(name).parent not in (Path(), Path("configs")) else [named.parent, CONFIG_DIR]
    files = (folder / file for folder in folders for file in (named.name, named.name + ".yaml"))
    return next(filter(os.path.isfile, files), named)


class FlagOverride(str):
    """An override from a flag other than --set. typed: that flag, as faults name it."""

    typed: str

    def __new__(cls, text: str, typed: str) -> "FlagOverride":
        made = super().__new__(cls, text)
        made.typed = typed
        return made

    def __getnewargs__(self) -> tuple[str, str]:
        return str(self), self.typed


def override(config: C, overrides: typing.Sequence[str]) -> C:
    """The config with `section.key=value` overrides on top. Raises ConfigError."""
    raw = config_to_dict(config)
    for text in overrides:
        raw = merge(raw, parse_override(text, type(config)), _typed([text]))
    return config_from_dict(raw, _typed(overrides), type(config)) if overrides else config


def _typed(overrides: typing.Sequence[str]) -> str:
    """The overrides as they were typed on the command line."""
    groups = itertools.groupby(overrides, lambda text: text.typed if isinstance(text, FlagOverride) else "--set")
    return " ".join(" ".join([flag, *texts]) if flag == "--set" else flag for flag, texts in groups)


def _layers(path: Path, schema: type[RunConfig], seen: tuple[Path, ...] = (), heir: str = "") -> list[tuple[dict, str]]:
    """The keys of the files that `inherit_from` names (beside it, or in configs/), then the file's own, each with its name.

    heir: the file that inherits from this one and the key, as a fault names them.
    """
    raw = read_yaml(path, heir)
    if not raw and path.stat().st_size == 0:
        log.warning("%s: is empty, so every key keeps its default", one_line(str(path)))
    raw, is_graf = translate(raw, str(path)) if schema is Config else (translate_names(raw, str(path)), False)
    if path.resolve() in seen:
        raise ConfigError(f"{path}: inherit_from leads back to the file itself")
    if is_graf:
        return [*_layers(CONFIG_DIR / "graf.yaml", schema), (raw, str(path))]
    if "inherit_from" not in raw:
        return [(raw, str(path))]
    name = raw.pop("inherit_from")
    if not isinstance(name, str):
        raise ConfigError(f"{path}: inherit_from must be the name of a config file, found {shown(name)}")
    parent = _parent(name, path)
    if parent is None:
        return [(raw, str(path))]
    inherited = _layers(parent, schema, (*seen, path.resolve()), f"{one_line(str(path))}: inherit_from: ")
    return [*inherited, (raw, str(path))]


def _parent(name: str, heir: Path) -> Path | None:
    """The file that a config inherits from by name; None for the defaults themselves, which default.yaml in configs/ only
    explains. A user's own default.yaml means these by its own name."""
    found = find_config(name, heir.parent)
    is_default = found.name == DEFAULT.name and os.path.realpath(found) in map(os.path.realpath, (DEFAULT, heir))
    return None if is_default else found


def read_yaml(path: Path, named_in: str = "") -> dict:
    """The mapping in a YAML file. Raises ConfigError; named_in: what the message on a missing file begins with."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ConfigError(f"{one_line(str(path))}: longer than any config")
        raw = copy.deepcopy(_parsed(text))
    except FileNotFoundError:
        known = sorted(file.name for file in CONFIG_DIR.glob("*.yaml"))
        here = [] if named_in else sorted(str(file) for depth in ("*.yaml", "*/*.yaml") for file in Path().glob(depth))
        near = difflib.get_close_matches(str(path), [*here, *known], n=1)
        meant = f"; did you mean {one_line(near[0])}?" if near else ""
        raise ConfigError(
            f"{named_in}{one_line(str(path))}: no such config file; {CONFIG_DIR} has {', '.join(known)}{meant}"
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            f"{one_line(str(path))}: is a folder; --config needs a YAML file, --data_dir takes a folder"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{one_line(str(path))}: is not text; --config needs a YAML file in UTF-8 ({error})") from None
    except OSError as error:
        raise ConfigError(f"{one_line(str(path))}: cannot be read ({error.strerror or error})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = one_line(str(getattr(error, "problem", None) or error))
        raise ConfigError(f"{one_line(str(path))}{line}: not valid YAML ({problem})") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected sections such as `data:`, found a {type(raw).__name__}")
    return raw


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Any:
    """What a YAML text says. Configs of a process often inherit from the same file, and parsing takes longer than the rest."""
    return yaml.load(text, _PlainLoader)


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, a few lines of which can expand beyond any memory, and without duplicate keys. Numbers are those of
    YAML 1.1 that 1.2 reads alike: 12:30 would be 750, and 010 would be 8."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (WHOLE_NUMBER, NUMBER)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases such as *name are not taken; write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():  # anything else is told by the reader itself
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_PlainLoader.add_implicit_resolver(WHOLE_NUMBER, re.compile(r"[-+]?(0|[1-9][0-9_]*)$|0x[0-9a-fA-F]+$"), list("-+0123456789"))
_PlainLoader.add_implicit_resolver(
    NUMBER, re.compile(r"([-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)([eE][-+][0-9]+)?$|[-+]?\.inf$|\.nan$"), list("-+0123456789.")
)


def merge(base: dict, layer: dict, where: str) -> dict:
    """`layer` over `base`, section by section. Raises ConfigError where a section meets a plain value."""
    merged = dict(base)
    for name, value in layer.items():
        if isinstance(merged.get(name), dict):
            if value is None:
                continue
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: '{name}' is a section with keys of its own, found {shown(value)}")
            merged[name] = merge(merged[name], value, where)
        else:
            merged[name] = value
    return merged


def parse_override(text: str, schema: type[RunConfig] = Config) -> dict:
    """`training.batch_size=4` as {"training": {"batch_size": 4}}; the value is read as YAML, unless the key wants text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text}: expected section.key=value, for example training.batch_size=4")
    wanted = dict(leaves(schema)).get(OLDER_NAMES.get(name.strip(), name.strip()))
    takes_text = wanted and (wanted.type is str or (wanted.type == tuple[str, ...] and value.strip()))
    if any(unicodedata.category(c) == "Cs" for c in value):  # of a command line that is not UTF-8
        raise ConfigError(f"--set {text}: expected {NAME_IN_UTF_8}, found {shown(value)}")
    try:  # 2024 may be a name, and so may "run #2" and "*/cars"
        parsed = value.strip() if takes_text and _is_bare(value) else yaml.load(value, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"--set {text}: the value is not valid YAML") from None
    return translate_names(nested(name.strip(), parsed), f"--set {text}")


def _is_bare(value: str) -> bool:
    """Whether a value is neither quoted nor a list, nor has a YAML tag."""
    return not value.strip().startswith(("'", '"', "[", "!"))


def quoted(text: str) -> str:
    """A text as one line of YAML, for an override."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf).strip()


def is_set(key: str, overrides: typing.Iterable[str]) -> bool:
    """Whether one of the `section.key=value` overrides gives the key, or the whole of its section."""
    names = (text.partition("=")[0].strip() for text in overrides)
    return any(key == OLDER_NAMES.get(name, name) or key.startswith(f"{name}.") for name in names)


def nested(name: str, value: Any) -> dict:
    """`training.batch_size` and a value as {"training": {"batch_size": value}}."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def flat(raw: dict, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one: {"training": {"batch_size": 4}} as {"training.batch_size": 4}."""
    flattened: dict[str, Any] = {}
    for name, value in raw.items():
        flattened |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + str(name): value}
    return flattened


def config_from_dict(raw: dict, where: str, schema: type[C] = Config) -> C:
    """The checked config of nested dictionaries such as `config_to_dict` gives. Raises ConfigError."""
    config = build(schema, raw, where)
    check_config(config, where)
    return config


def completed_config(raw: dict, where: str, schema: type[C] = Config) -> C:
    """`config_from_dict` of what an older version may have written: keys that it lacks have their defaults."""
    return config_from_dict(merge(config_to_dict(schema()), raw, where), where, schema)


def config_to_dict(config: RunConfig) -> dict:
    """The config as nested dictionaries of plain values, ready for YAML, JSON and `config_from_dict`."""
    return json.loads(json.dumps(dataclasses.asdict(config)))  # tuples as lists


def config_text(config: RunConfig) -> str:
    """The YAML text of a config: every key."""
    return yaml.safe_dump(config_to_dict(config), sort_keys=False)


def config_rows(schema: type[RunConfig] = Config) -> list[tuple[str, str, str]]:
    """(key, default, meaning) of every config key, in the order of the dataclasses: a table of docs/configuration.md."""
    return [(name, as_yaml(f.default, f.metadata["words"]), f.metadata["meaning"]) for name, f in leaves(schema)]


def as_yaml(value: Any, words: Mapping[str, Any] | None = None) -> str:
    """A key's value on one line of YAML, by its name where `words` has one, two equal numbers of a range as one."""
    value = next((word for word, meant in (words or {}).items() if meant == value), value)
    if isinstance(value, tuple):
        value = value[0] if len(value) == 2 and value[0] == value[1] else list(value)
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("\n...\n").strip()
