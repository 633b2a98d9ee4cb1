"""Weights of older versions of this suite, in today's form."""

import torch


def add_whitening(networks: dict) -> None:
    """Give encoders among weights of networks, by name, a whitening that changes nothing, where they are from before latents
    were whitened; a run that goes on learns its own."""
    for weights in networks.values():
        if not isinstance(weights, dict) or "encoder.gaussian.bias" not in weights or "encoder.whitening" in weights:
            continue
        n = len(weights["encoder.gaussian.bias"]) // 2
        weights |= {"encoder.centre": torch.zeros(n), "encoder.whitening": torch.eye(n)}
