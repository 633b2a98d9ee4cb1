"""Training: losses, steps, state, checkpoints and the loop."""
