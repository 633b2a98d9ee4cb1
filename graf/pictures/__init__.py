"""Pictures of a generator: sampled objects, sweeps, image grids, videos, captions."""
