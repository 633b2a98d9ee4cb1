"""A telephone's pictures become a data set: reading, checks, duplicates, cut-outs, crops; `prepare.py` puts them together."""
