"""The pose estimator, which predicts the camera of an image: network, training, validation and plots."""
