"""What people look at beside or after a run: curves, status page, report."""
