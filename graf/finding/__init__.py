"""Finding cameras that nobody wrote down: rounds of views, an estimator, and photographs with the cameras that it reads."""
