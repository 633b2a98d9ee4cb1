"""What can be wrong with a config: the mutations of bench/fuzz.py, each a function of a random state."""

import contextlib
import dataclasses
import random
import typing
from typing import Any

from graf.config import Config

import yaml

ODD_VALUES = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 16, 2**31, 2**64, 10**5000, 0.5, -0.0, 1e-300, 1e30, 1e300),
    *(float("nan"), float("inf"), "", " ", "auto", "none", "1e3", "1_000", "9.5,10.5", ",", "a" * 5000, "a\nb", "a\0b"),
    *("ü 日本", "\ud800", "../..", "/dev/null", "/dev/zero", "~", "%s{0}", "[", [], [[]], [1], [3, 2, 1], list(range(2000))),
    *({}, {"a": 1}, {1: 2}, "!!python/object/apply:os.getcwd []"),
)
ODD_TEXT = (
    *("\t", "\0", "- ", ": ", "{", "}", "[", "]", "&a ", "*a", "<<: *a\n", "!!python/name:os.system ", "!!set ", "? ", "|\n"),
    *(">\n", "'", '"', "#", "---\n", "...\n", "%YAML 9.9\n", "\ufeff", "\u2028", "=", "0x", "1:30:30", "2024-02-30", "\r"),
)
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join(['*' + old] * 9)}]}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
WHOLE_FILES = (
    *("", "\0", "[" * 20_000, "{a: " * 3000, "- a\n- b\n", "words", "data:\nnerf:\n", LAUGHS + "data: *i\n", MERGES),
    *("inherit_from: /dev/zero\n", 'inherit_from: "a\\0b"\n', f"inherit_from: {'a' * 5000}\n", "inherit_from: mutated.yaml\n"),
    *("inherit_from: .\n", "data: {type: [carla]}\n", "data: &a {near: *a}\n", "inherit_from: loop\n"),
    *("nerf: {netwidth: 0x" + "f" * 9000 + "}", "nerf: 0x" + "f" * 9000, "? 0x" + "f" * 9000 + "\n: 3\n"),
    *("training: {lr_anneal_every: 1, chunk: 9, netchunk: 1}\n", "data: {type: carla, white_bkgd: []}\n", "a" * 3_000_000),
)


def mutate_config(text: str, rng: random.Random) -> bytes:
    """A config's text with one to three things wrong, or right by chance: of its characters, or of its keys."""
    kind = rng.random()
    if kind < 0.05:
        return rng.choice(WHOLE_FILES).encode("utf-8", "surrogatepass")
    if kind < 0.3:
        return mutate_bytes(text.encode(), rng)
    raw = yaml.safe_load(text)
    for _ in range(rng.randint(1, 3)):
        _mutate_key(raw, rng)
    with contextlib.suppress(ValueError, yaml.YAMLError):  # an integer of thousands of digits cannot be written
        return yaml.safe_dump(raw, allow_unicode=True).encode("utf-8", "surrogatepass")
    return text.encode()


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """The content cut off, with a part left out, repeated or overwritten, or with something odd in it."""
    at, length = rng.randrange(len(content) + 1), rng.choice((1, 2, 8, 64))
    odd = rng.choice(ODD_TEXT).encode() if rng.random() < 0.7 else rng.randbytes(length)
    return rng.choice(
        (
            content[:at],
            content[:at] + content[at + length :],
            content[:at] + content[at : at + length] * 2 + content[at + length :],
            content[:at] + odd + content[at + len(odd) :],
            content[:at] + odd + content[at:],
        )
    )


def _mutate_key(raw: dict, rng: random.Random) -> None:
    section = rng.choice([f for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.type)])
    field = rng.choice(dataclasses.fields(section.type))
    part = raw.setdefault(section.name, {})
    kind = rng.random()
    if kind < 0.8 and isinstance(part, dict):
        part[field.name] = _value(field, rng)
    elif kind < 0.85:
        raw[section.name] = rng.choice(ODD_VALUES)
    elif kind < 0.9 and isinstance(part, dict):
        part[rng.choice((field.name[:-1], field.name.upper(), "zzz", "", 3, True, None, "a\nb", "k" * 5000))] = 1
    elif kind < 0.95:
        raw[rng.choice((section.name + "s", "", 7, None, "expname", "inherit_from", "x" * 999))] = rng.choice(ODD_VALUES)
    elif raw:
        raw.pop(rng.choice(list(raw)))


def _value(field: dataclasses.Field, rng: random.Random) -> Any:
    """Something odd, something at or about the key's bounds, or one of its words."""
    low, high = field.metadata["low"], field.metadata["high"]
    if rng.random() < 0.3:
        return rng.choice(ODD_VALUES)
    candidates: list[Any] = [bound + step for bound in (low, high) if bound is not None for step in (-1, 0, 1)]
    if typing.get_origin(field.type) in (typing.Literal, typing.Union):
        candidates += [word for word in typing.get_args(field.type) if isinstance(word, str)] or [5, "auto"]
    elif field.type is bool:
        candidates += [True, False]
    elif field.type in (int, float):
        start = 0 if low is None else low
        candidates += [start + rng.randint(0, 8), start + rng.randint(0, 64), start + rng.random()]
    return rng.choice(candidates or ODD_VALUES)
