"""The package's version, which checkpoints record and pyproject.toml reads."""

__version__ = "0.1.0"
