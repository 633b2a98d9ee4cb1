"""Saving, verified loading, the folder of a run, and exports; graf.foreign reads other people's files."""

SUFFIX = ".safetensors"  # of an exported generator
