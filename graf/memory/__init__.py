"""Memory: what a run takes, whether it grows, what holds it, and giving it back."""
