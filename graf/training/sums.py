"""Gradients and scalars of a step, summed over the processes of a run: once a network, when all its parts are done."""

import dataclasses

from graf.runtime.processes import Processes

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Sums:
    """gradients (P,): all of a network's, of which they are views; scalars (S,): the stats' numbers in float64."""

    gradients: Tensor
    scalars: Tensor
    stats: dict[str, Tensor]


def collect(network: nn.Module, stats: dict[str, Tensor]) -> Sums:
    """The network's gradients moved into one buffer, and the stats in another."""
    learning = [p for p in network.parameters() if p.grad is not None]
    gradients = torch.cat([p.grad.flatten() for p in learning])
    for p, part in zip(learning, gradients.split([p.numel() for p in learning]), strict=True):
        p.grad = part.view_as(p)
    scalars = torch.cat([value.double().flatten() for value in stats.values()])
    return Sums(gradients, scalars, stats)


def add_up(sums: Sums, processes: Processes) -> dict[str, Tensor]:
    """Sum both over all processes: the network then has the gradients of all. Returns the stats of all."""
    processes.sum_(sums.gradients)
    parts = processes.sum_(sums.scalars).split([value.numel() for value in sums.stats.values()])
    return {name: part.view_as(own).to(own.dtype) for (name, own), part in zip(sums.stats.items(), parts, strict=True)}
