"""From a telephone's pictures to a data set: reading, checks, duplicates, cut-outs, crops; `prepare.py` puts them together."""
