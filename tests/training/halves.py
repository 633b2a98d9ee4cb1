"""The two halves of a training step, on labels that a test names."""

from graf.training import inputs, learn, step


def discriminator_step(state, images, labels, fake_labels):
    batch = learn.retried(state, lambda: inputs.discriminator_batch(state, fake_labels, images, labels))
    return step.discriminator_step(state, *inputs.in_one_copy((batch,), state.device))


def generator_step(state, fake_labels, images=None, labels=None):
    batch = learn.retried(state, lambda: inputs.generator_batch(state, fake_labels, images, labels))
    return step.generator_step(state, *inputs.in_one_copy((batch,), state.device))
