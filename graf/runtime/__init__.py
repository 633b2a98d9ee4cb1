"""The parts that keep a run alive on a machine: retries, processes, signals, locks, files, devices."""
