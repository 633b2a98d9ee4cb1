"""Checkpoints and weights of other projects."""
