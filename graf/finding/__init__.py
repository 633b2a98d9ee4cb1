"""Finding cameras that nobody wrote down: rounds of generated views, an estimator, and photographs with its cameras."""
