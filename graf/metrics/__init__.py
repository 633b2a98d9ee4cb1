"""Numbers of a generator: FID and KID, consistency of views, variety of shapes, haze, nearest training images, collapse."""
