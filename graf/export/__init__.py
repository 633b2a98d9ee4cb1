"""Files that other programs read: meshes with their texture, Gaussian splats, reconstructions."""
