"""Saving, verified loading, the folder of a run, and exports; other people's files are in foreign/."""

SUFFIX = ".safetensors"  # of an exported generator
