"""Strict reading of dictionaries into frozen dataclasses: a fault names the key, what was found and what is wanted."""

import dataclasses
import difflib
import itertools
import math
import os
import re
import reprlib
import typing
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from graf.errors import ConfigError

LARGEST, LARGEST_WHOLE = 1e30, 2**53  # what float32 and exact reading leave room for
LONGEST_NAME = 200  # characters of a name in a message
FAULTS_SHOWN, NAMES_LISTED = 20, 8  # at most, in a message
NAME_IN_UTF_8 = "a name in UTF-8 (rename the folder or file, or make a link to it)"

Cadence = int | str  # steps, or minutes: 5min
MINUTES = re.compile(r"(\d+(?:\.\d+)?) ?min")


def key(
    default: Any,
    meaning: str,
    low: float | None = None,
    high: float | None = None,
    *,
    is_path: bool = False,
    words: Mapping[str, Any] | None = None,
    wanted: str = "",
    explained: Callable[[float], str] | None = None,
) -> Any:
    """One config key: its default, what it means (docs/configuration.md has it), the closed range of its numbers.

    is_path: whether it names files; words: that stand for values; wanted: what a message says instead of the type; explained:
    what the number is, for a message on one outside the range, which is given.
    """
    rules = {"low": low, "high": high, "is_path": is_path, "words": words or {}, "wanted": wanted, "explained": explained}
    return dataclasses.field(default=default, metadata={"meaning": meaning} | rules)


class _Shown(reprlib.Repr):
    """A repr that stays short for any content of a file: deeply nested, or a number of thousands of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else "a number of hundreds of digits"


def shown(value: Any) -> str:
    """A value from a file, on one line and short, for a message."""
    return _Shown().repr(value)


def listed(names: Sequence[str]) -> str:
    """Names, for a message: the first of them, each on one line."""
    return ", ".join(map(one_line, names[:NAMES_LISTED])) + (", ..." if len(names) > NAMES_LISTED else "")


def keys_in_words(settings: Mapping[str, float | tuple[float, float]]) -> str:
    """Values of keys of `data`, for a message: as they are written into a config."""
    *first, last = (f"data.{key}: {as_written(value)}" for key, value in settings.items())
    return f"{', '.join(first)} and {last}" if first else last


def as_written(value: float | tuple[float, float]) -> str:
    """A number or a range as it is written into a config."""
    low, high = value if isinstance(value, tuple) else (value, value)
    return f"{low:.6g}" if low == high else f'"{low:.6g},{high:.6g}"'


def one_line(text: str) -> str:
    """A name, for a message: without line breaks and control characters, and not too long."""
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME // 2] + "..." + text[-LONGEST_NAME // 2 :]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def build(cls: type, raw: Any, where: str) -> Any:
    """The dataclass `cls` of a dictionary with exactly its keys; nested ones likewise. Raises ConfigError with all faults.

    `cls.hints` says what stands for keys that it does not have.
    """
    faults: list[str] = []
    built = _build(cls, raw, "", faults, _Hints(full_names(cls), getattr(cls, "hints", {})))
    if faults:
        raise faults_as_error(where, faults)
    return built


def faults_as_error(where: str, faults: typing.Sequence[str]) -> ConfigError:
    """A ConfigError that lists the faults behind `where`."""
    if len(faults) == 1:
        return ConfigError(f"{where}: {faults[0]}")
    more = [f"... and {len(faults) - FAULTS_SHOWN} more"] if len(faults) > FAULTS_SHOWN else []
    return ConfigError("\n  ".join([f"{where}: {len(faults)} faults:", *faults[:FAULTS_SHOWN], *more]))


class _Hints(typing.NamedTuple):
    """Hints for unknown keys: full names by their last words, and replacements for keys of other suites."""

    names: Mapping[str, list[str]]
    other_suites: Mapping[str, str]


def _build(cls: type, raw: Any, prefix: str, faults: list[str], hints: _Hints) -> Any:
    """The dataclass, or None if faults were added; prefix: of its keys' names, such as `training.`"""
    section = prefix.rstrip(".")
    if not isinstance(raw, dict):
        faults.append(f"'{section}' is a section with keys of its own, found {shown(raw)}")
        return None
    n_faults, values = len(faults), {}
    fields = dataclasses.fields(cls)
    known = [f.name for f in fields]
    faults += [f"{section}: {fault}" if section else fault for fault in _unknown_keys(raw, known, hints)]
    for f in fields:
        name = prefix + f.name
        if f.name not in raw:
            faults.append(f"key '{name}' is missing")
        elif dataclasses.is_dataclass(f.type):
            values[f.name] = _build(f.type, raw[f.name], name + ".", faults, hints)
        else:
            try:
                values[f.name] = _value(raw[f.name], f)
            except ValueError as error:
                faults.append(f"{name}: {error}")
    return cls(**values) if len(faults) == n_faults else None


def _unknown_keys(raw: dict, known: list[str], hints: _Hints) -> typing.Iterator[str]:
    """A fault for each key that a section does not have."""
    for name in itertools.filterfalse(known.__contains__, raw):
        name_shown = one_line(name) if isinstance(name, str) else shown(name)
        meant = hints.names.get(name_shown) or difflib.get_close_matches(name_shown, known, n=1)
        if name_shown in hints.other_suites:
            yield f"unknown key '{name_shown}': {hints.other_suites[name_shown]}"
        elif meant:
            yield f"unknown key '{name_shown}', did you mean {' or '.join(map(repr, meant))}?"
        else:
            yield f"unknown key '{name_shown}'"


def leaves(cls: type, prefix: str = "") -> typing.Iterator[tuple[str, dataclasses.Field]]:
    """(full name such as `training.batch_size`, field) of every key, in the order of the dataclasses."""
    for f in dataclasses.fields(cls):
        if dataclasses.is_dataclass(f.type):
            yield from leaves(f.type, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, f


def full_names(cls: type) -> dict[str, list[str]]:
    """Every key by its last word: {"batch_size": ["training.batch_size", "metrics.batch_size"], ...}."""
    names: dict[str, list[str]] = {}
    for name, f in leaves(cls):
        names.setdefault(f.name, []).append(name)
    return names


def _value(raw: Any, f: dataclasses.Field) -> Any:
    """A key's value in its field's type and range. Raises ValueError with what is wrong."""
    try:
        words = f.metadata["words"]
        value = _typed(words.get(raw, raw) if isinstance(raw, str) else raw, f.type)
    except ValueError as error:
        raise ValueError(f"expected {f.metadata['wanted'] or error}, found {shown(raw)}") from None
    _check_range(value, f)
    if f.metadata["is_path"]:
        return tuple(map(expanded, value)) if isinstance(value, tuple) else expanded(value)
    return value


def expanded(path: str) -> str:
    """The path with ~ and variables such as $HOME filled in, which neither YAML nor a shell in --config=~/a.yaml does."""
    return os.path.expandvars(os.path.expanduser(path))


def _typed(value: Any, kind: Any) -> Any:
    """The value in the type that the dataclass declares. Raises ValueError with what was expected."""
    origin = typing.get_origin(kind)
    if kind == Cadence:
        return _cadence(value)
    if origin is typing.Union:  # a word or a number, or a word or several numbers
        words, numbers = typing.get_args(kind)
        is_word = value is None or (isinstance(value, str) and not _is_number(value) and "," not in value)
        try:
            return _typed(value, words if is_word else numbers)
        except ValueError as error:
            choices = ", ".join(typing.get_args(words))
            one = {int: "a whole number", float: "a number"}
            parts = typing.get_args(numbers)
            wanted = one.get(numbers) or ("numbers" if Ellipsis in parts else f"{len(parts)} numbers")
            raise ValueError(f"{choices} or {wanted}") from error
    if origin is Literal:
        choices = typing.get_args(kind)
        if value is None and "none" in choices:
            return "none"
        if value not in choices or isinstance(value, bool):
            raise ValueError("one of " + ", ".join(choices))
        return value
    if origin is tuple:
        return _typed_tuple(value, typing.get_args(kind))
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value
    if kind is str:
        if not isinstance(value, str):
            raise ValueError("text")
        found = {unicodedata.category(c) for c in value}
        if "Cs" in found:
            raise ValueError(NAME_IN_UTF_8)
        if "Cc" in found:
            raise ValueError("text of one line without control characters")
        return value
    return _number(value, kind)


def minutes_of(cadence: Cadence) -> float | None:
    """The minutes of `5min`; None for a number of steps."""
    return float(cadence.removesuffix("min")) if isinstance(cadence, str) else None


def _cadence(value: Any) -> Cadence:
    if isinstance(value, str) and (found := MINUTES.fullmatch(value.strip())) and float(found[1]) > 0:
        return f"{found[1]}min"
    try:
        return _number(value, int)
    except ValueError:
        raise ValueError("a number of steps, or minutes such as 5min") from None


def _number(value: Any, kind: type) -> float:
    try:  # YAML 1.1 reads 1e-3 as text
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("a number")
    if abs(number) > (LARGEST if kind is float else LARGEST_WHOLE):
        raise ValueError("a smaller number")
    if kind is float:
        return number
    if number != int(number):
        raise ValueError("a whole number")
    return int(number)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _typed_tuple(value: Any, kinds: tuple) -> tuple:
    """A list, text with commas ("9.5,10.5") or a single value, as a tuple of the declared length."""
    if isinstance(value, str) and kinds[0] is not str:
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        value = [value]
    if kinds[-1] is Ellipsis:
        return tuple(_typed(item, kinds[0]) for item in value)
    if len(value) == 1 and len(kinds) == 2:
        value = [value[0], value[0]]
    if len(value) != len(kinds):
        raise ValueError(f"{len(kinds)} numbers")
    return tuple(_typed(item, kinds[0]) for item in value)


def _check_range(value: Any, f: dataclasses.Field) -> None:
    low, high, explained = (f.metadata[rule] for rule in ("low", "high", "explained"))
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (str, bool)):
            continue
        meaning = f"; it is {explained(number)}" if explained else ""
        if low is not None and number < low:
            raise ValueError(f"must be at least {low:g}, found {number:g}{meaning}")
        if high is not None and number > high:
            raise ValueError(f"must be at most {high:g}, found {number:g}{meaning}")
