"""What keeps a run alive on a machine: retries, processes, signals, locks, files, devices."""
