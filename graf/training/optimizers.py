"""Optimizers: Adam, or RMSprop as in GRAF. Both skip a step on the device itself where `found_inf` is 1: nothing is read from a
GPU to decide it.
"""

from graf.config import TrainingConfig

import torch
from torch import nn


def build_optimizer(
    network: nn.Module, training: TrainingConfig, lr_multiplier: float = 1.0, restores: bool = False
) -> torch.optim.Optimizer:
    """An optimizer of all parameters, in their order, with a group per part of the network and its share of the learning rate.

    Adam has no momentum, for gradients of networks that learn against each other turn around; where CCSR `restores`
    real images, which stay what they are, it has its usual one.
    """
    adam, groups = training.optimizer == "adam", []
    for name, part in network.named_children():
        is_ccsr = name == "refinement"
        group = {"params": part.parameters(), "share": lr_multiplier if is_ccsr else 1.0}
        if adam:
            group["betas"] = (0.9 if is_ccsr and restores else 0.0, 0.99)
        groups.append(group)
    if adam:
        return torch.optim.Adam(groups, eps=1e-8, fused=True)  # many small tensors
    return SkippingRMSprop(groups, alpha=0.99, eps=1e-8)


class SkippingRMSprop(torch.optim.RMSprop):
    """RMSprop that, as PyTorch's fused optimizers do, leaves everything as it was where its `found_inf` (a scalar) is 1."""

    _step_supports_amp_scaling = True  # so that torch.amp.GradScaler sets found_inf and reads nothing

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        skip = getattr(self, "found_inf", None)
        if skip is None:
            super().step()
            return
        learning = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        weights, averages = [p.clone() for p in learning], [self._average(p).clone() for p in learning]
        super().step()
        for p, weight, average in zip(learning, weights, averages, strict=True):
            p.copy_(torch.where(skip.bool(), weight, p))
            self._average(p).copy_(torch.where(skip.bool(), average, self._average(p)))

    def _average(self, p: nn.Parameter) -> torch.Tensor:
        """The running mean of a parameter's squared gradient, which is 0 before its first step."""
        return self.state[p]["square_avg"] if "square_avg" in self.state[p] else torch.zeros_like(p)
