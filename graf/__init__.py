"""GRAF + CCSR: 3D-aware generative models in plain PyTorch.

Import it before torch, as every script here does: the OpenMP library reads OMP_WAIT_POLICY and OMP_NUM_THREADS once, when
torch loads it.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from graf.runtime.limits import keep_threads_within_quota
from graf.version import __version__

# Waiting threads sleep instead of spinning. This makes a small training step many times faster beside other busy processes,
# and no slower alone.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
keep_threads_within_quota()
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")  # what Apple GPUs cannot compute, the CPU does

HOMES = {  # module of each public name; it is imported, and torch with it, on first access
    "Config": "graf.config",
    "Generator": "graf.models.generator",
    "edited": "graf.models.directions",
    "load_config": "graf.config",
    "load_directions": "graf.checkpoints.directions_file",
    "load_generator": "graf.checkpoints.generator_loading",
    "load_latents": "graf.checkpoints.latents_file",
    "poses_at": "graf.camera",
    "principal_directions": "graf.models.directions",
}
__all__ = ["__version__", *HOMES]

ROOT, PROGRAM = Path(__file__).resolve().parents[1], Path(sys.argv[0]).resolve()


def _tell_interrupt(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """sys.excepthook: Ctrl-C while a program loads PyTorch prints the same line as later on, not a traceback."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("\ninterrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)


if PROGRAM.is_file() and PROGRAM.parent in (ROOT, ROOT / "tools", ROOT / "bench"):  # not other people's
    sys.excepthook = _tell_interrupt


def __getattr__(name: str) -> Any:
    """A public name, imported from its module."""
    if name not in HOMES:
        raise AttributeError(f"module 'graf' has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
