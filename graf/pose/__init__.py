"""The pose estimator, which reads the camera off an image: all of it, from network to plots."""
