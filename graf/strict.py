"""Strict reading of dictionaries into frozen dataclasses: a fault names the key, what was found and what is wanted."""

import dataclasses
import difflib
import math
import reprlib
import typing
import unicodedata
from typing import Any, Literal

from graf.errors import ConfigError

LARGEST, LARGEST_WHOLE = 1e30, 2**53  # what float32 and exact reading leave room for
LONGEST_NAME = 200  # characters of a name in a message


def key(meaning: str, low: float | None = None, high: float | None = None) -> Any:
    """One config key: what it means (the README's table prints it) and the closed range of its numbers."""
    return dataclasses.field(metadata={"meaning": meaning, "low": low, "high": high})


class _Shown(reprlib.Repr):
    """repr that stays short, whatever a file holds: nested a million deep, or a number of thousands of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else "a number of hundreds of digits"


def shown(value: Any) -> str:
    """A value out of a file, as a message has it: on one line and short."""
    return _Shown().repr(value)


def one_line(text: str) -> str:
    """A name out of a file or of a file, as a message has it: without line breaks and control characters, and not too long."""
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME // 2] + "..." + text[-LONGEST_NAME // 2 :]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def check_keys(raw: dict, known: typing.Iterable[str], where: str) -> None:
    """Raises ConfigError for the first key of `raw` that is not known, with the nearest that is."""
    known = list(known)
    for name in raw:
        if name not in known:
            told = one_line(name) if isinstance(name, str) else shown(name)
            hint = difflib.get_close_matches(told, known, n=1)
            raise ConfigError(f"{where}: unknown key '{told}'" + (f", did you mean '{hint[0]}'?" if hint else ""))


def build(cls: type, raw: Any, where: str, prefix: str = "") -> Any:
    """The dataclass `cls` of a dictionary with exactly its keys; nested ones likewise. Raises ConfigError."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: '{prefix.rstrip('.')}' is a section with keys of its own, found {shown(raw)}")
    fields = dataclasses.fields(cls)
    check_keys(raw, [f.name for f in fields], f"{where}: {prefix.rstrip('.')}" if prefix else where)
    values = {}
    for f in fields:
        name = prefix + f.name
        if f.name not in raw:
            raise ConfigError(f"{where}: key '{name}' is missing")
        if dataclasses.is_dataclass(f.type):
            values[f.name] = build(f.type, raw[f.name], where, name + ".")
        else:
            try:
                value = _typed(raw[f.name], f.type, f.name)
            except ValueError as error:
                raise ConfigError(f"{where}: {name}: expected {error}, found {shown(raw[f.name])}") from None
            _check_range(value, f, f"{where}: {name}")
            values[f.name] = value
    return cls(**values)


COLOURS = {"white": [1.0, 1.0, 1.0], "black": [0.0, 0.0, 0.0]}


def _typed(value: Any, kind: Any, name: str) -> Any:
    """The value as the type that the dataclass declares; ValueError with what was expected where it is none."""
    origin = typing.get_origin(kind)
    if origin is typing.Union:  # a word or a number
        words, number = typing.get_args(kind)
        try:
            return _typed(value, words if isinstance(value, str) and not value.isdigit() else number, name)
        except ValueError as error:
            choices = ", ".join(typing.get_args(words))
            raise ValueError(f"{choices} or a whole number") from error
    if origin is Literal:
        choices = typing.get_args(kind)
        if value is None and "none" in choices:
            return "none"
        if value not in choices or isinstance(value, bool):
            raise ValueError("one of " + ", ".join(choices))
        return value
    if origin is tuple:
        return _typed_tuple(value, typing.get_args(kind), name)
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value
    if kind is str:
        if not isinstance(value, str):
            raise ValueError("text")
        if any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
            raise ValueError("text of one line without control characters")
        return value
    return _number(value, kind)


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


def _typed_tuple(value: Any, kinds: tuple, name: str) -> tuple:
    """A list, text with commas ("9.5,10.5"), a colour's name or a single value, as a tuple of the declared length."""
    if name == "background" and isinstance(value, str):
        value = COLOURS.get(value, value)
    if isinstance(value, str) and kinds[0] is not str:
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        value = [value]
    if kinds[-1] is Ellipsis:
        return tuple(_typed(item, kinds[0], name) for item in value)
    if len(value) == 1 and len(kinds) == 2:
        value = [value[0], value[0]]
    if len(value) != len(kinds):
        expected = "white, black or [r, g, b]" if name == "background" else f"{len(kinds)} numbers"
        raise ValueError(expected)
    return tuple(_typed(item, kinds[0], name) for item in value)


def _check_range(value: Any, f: dataclasses.Field, where: str) -> None:
    low, high = f.metadata["low"], f.metadata["high"]
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (str, bool)):
            continue
        if low is not None and number < low:
            raise ConfigError(f"{where}: must be at least {low:g}, found {number:g}")
        if high is not None and number > high:
            raise ConfigError(f"{where}: must be at most {high:g}, found {number:g}")
