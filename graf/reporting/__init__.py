"""Pages and pictures that people look at during or after a run: curves, status page, report."""
