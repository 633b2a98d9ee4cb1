"""The two halves of a training step, on labels that a test names."""

from graf.training import inputs, learn, step

import torch


def discriminator_step(state, images, labels, fake_labels):
    batch = learn.retried(state, lambda: inputs.discriminator_batch(state, fake_labels, images, labels))
    return step.discriminator_step(state, *inputs.in_one_copy((batch,), state.device))


def generator_step(state, fake_labels, images=None, labels=None):
    """Without images, of black ones."""
    if images is None:
        data, n = state.config.data, len(fake_labels) // state.processes.world_size
        images, labels = torch.zeros(n, data.channels, data.imsize, data.imsize, device=state.device), fake_labels[slice(n)]
    batch = learn.retried(state, lambda: inputs.generator_batch(state, fake_labels, images, labels))
    return step.generator_step(state, *inputs.in_one_copy((batch,), state.device))
