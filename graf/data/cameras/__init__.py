"""The cameras of real images: keys that mend them, and whether the silhouettes agree with them."""
