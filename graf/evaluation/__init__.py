"""Evaluation: rendering of trained generators, pictures and videos, metrics."""
