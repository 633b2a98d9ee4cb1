"""Memory: how much a run needs, whether its use grows, and what holds it."""
