"""Training: what a step samples and learns, the state of a run and its health, and the loop with all that it logs."""
