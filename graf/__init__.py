"""GRAF + CCSR: 3D-aware generative models in plain PyTorch.

Import it before torch, as every script here does: the OpenMP library reads how waiting threads wait when torch loads it.
"""

import os
from typing import Any

from graf.version import __version__

__all__ = ["__version__", "load_generator"]

# Waiting threads sleep instead of spinning. Beside other busy processes a small training step is many times as fast for it,
# alone as fast as before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    """load_generator, for which alone torch is imported."""
    if name != "load_generator":
        raise AttributeError(f"module 'graf' has no attribute {name!r}")
    from graf.checkpoints.generator_loading import load_generator

    return load_generator
