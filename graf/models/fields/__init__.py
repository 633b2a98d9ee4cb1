"""Radiance fields: from points and latents to density and colour."""
