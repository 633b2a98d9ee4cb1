"""The two halves of a training step, on labels that a test names."""

from graf.training import inputs, learn, step


def discriminator_step(state, images, labels, fake_labels):
    return step.discriminator_step(
        state, learn.retried(state, lambda: inputs.discriminator_batch(state, images, labels, fake_labels))
    )


def generator_step(state, fake_labels, images=None, labels=None):
    return step.generator_step(state, learn.retried(state, lambda: inputs.generator_batch(state, fake_labels, images, labels)))
