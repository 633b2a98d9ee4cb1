"""GRAF + CCSR: 3D-aware generative models in plain PyTorch."""

import os

__version__ = "0.1.0"

# Read when torch is first imported: waiting threads sleep instead of spinning. Beside other busy processes a small training
# step is many times as fast for it, alone as fast as before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from graf.training.generator_loading import load_generator  # noqa: E402

__all__ = ["load_generator"]
