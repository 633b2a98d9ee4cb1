"""The networks: radiance field, generator, discriminator."""
