"""Walks the tensors in tuples and dataclasses, such as those of a batch with its labels and noise."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


def each_tensor(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """Tuples and dataclasses with what `change` makes of each tensor in them; anything else stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(each_tensor(part, change) for part in value)
    if is_dataclass(value):
        return type(value)(*(each_tensor(getattr(value, f.name), change) for f in fields(value)))
    return value


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in tuples and dataclasses, in their order."""
    found: list[Tensor] = []
    each_tensor(value, lambda x: found.append(x) or x)
    return found


class Rows:
    """A dataclass whose tensors, and those of dataclasses in it, have a row per image: an index takes the same part of each."""

    def __getitem__(self: T, rows: Any) -> T:
        return each_tensor(self, lambda x: x[rows])
