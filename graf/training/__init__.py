"""Training: losses, steps, state, health, samples, logging and the loop."""
