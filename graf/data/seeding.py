"""Random generators that depend on numbers alone, not on what was drawn before."""

import hashlib

import torch


def generator_of(*numbers: int) -> torch.Generator:
    """A CPU generator for these numbers, for example (seed, epoch); other numbers give an unrelated stream."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
