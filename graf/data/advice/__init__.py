"""Tells what a data set offers to learn from, and what it lacks, before hours are spent on it."""
