"""The two halves of a training step: mathematics only, no files, no printing.

Legend: B images a step, K side of a patch, W side of an image.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graf.camera import Labels
from graf.models.generator import Rendering
from graf.rays import cut_patch, sample_patch_grid
from graf.training.losses import (
    consistency_loss,
    consistency_weight,
    discriminator_loss,
    generator_loss,
    label_loss,
    r1_penalty,
    wgan_gp_penalty,
)
from graf.training.state import TrainState


def discriminator_step(state: TrainState, images: Tensor, labels: Labels | None, fake_labels: Labels) -> dict[str, Tensor]:
    """Teach the discriminator on photographs (B, 3, W, W), their labels where known, and as many fakes.

    Returns detached scalars for the log.
    """
    config, training = state.config, state.config.training
    real = _judged(state, cut_patch(images, _patch_grid(state, len(images))))
    with torch.no_grad(), state.amp.autocast():
        rendering = _render(state, state.sample_latents(len(images)), fake_labels, _patch_grid(state, len(images)))
        fake = _judged(state, rendering.images.float(), rendering.low_images)
        if rendering.coarse_images is not None:
            fake = torch.cat([fake, _judged(state, rendering.coarse_images.float())])
            fake_labels = fake_labels[torch.arange(len(fake)) % len(fake_labels)]
    with state.amp.autocast():
        real_scores = state.discriminator(real, labels)
        fake_scores = state.discriminator(fake, fake_labels)
        loss = discriminator_loss(real_scores.logits, fake_scores.logits, training.gan_type)
        stats = {"loss_d": loss, "logit_real": real_scores.logits.mean(), "logit_fake": fake_scores.logits.mean()}
        if config.discriminator.label_loss == "MCE":
            stats["loss_label_d"] = label_loss(real_scores, labels)
            loss = loss + config.discriminator.label_weight * stats["loss_label_d"]
    if training.reg_type != "none" and state.step % training.reg_every == 0:
        stats["penalty"] = _gradient_penalty(state, real, fake[: len(real)], labels)
        loss = loss + training.reg_param * training.reg_every * stats["penalty"]
    stats["grad_norm_d"] = _optimize(state, loss, state.discriminator, state.optimizer_d, state.scaler_d)
    return {name: value.detach() for name, value in stats.items()}


def generator_step(state: TrainState, labels: Labels) -> dict[str, Tensor]:
    """Teach the generator with B cameras, and let its moving average follow. Returns detached scalars for the log."""
    config = state.config
    with _without_gradients(state.discriminator):
        with state.amp.autocast():
            latents, grid = state.sample_latents(len(labels)), _patch_grid(state, len(labels))
            rendering = _render(state, latents, labels, grid)
            scores = state.discriminator(_judged(state, rendering.images.float(), rendering.low_images), labels)
            loss = generator_loss(scores.logits, config.training.gan_type)
            if rendering.coarse_images is not None:
                coarse_scores = state.discriminator(_judged(state, rendering.coarse_images.float()), labels)
                loss = loss + generator_loss(coarse_scores.logits, config.training.gan_type)
            stats = {"loss_g": loss, "opacity": rendering.opacity.mean()}
            if config.ccsr.mode == "consistency":
                restored = state.generator.restore(rendering.images.float(), latents, labels, grid)
                stats["loss_ccsr"] = consistency_loss(rendering.images.float(), restored, config.ccsr.detach)
                loss = loss + consistency_weight(config.ccsr, state.step) * stats["loss_ccsr"]
            if config.discriminator.label_loss == "MCE":
                stats["loss_label_g"] = label_loss(scores, labels)
                loss = loss + config.discriminator.label_weight * stats["loss_label_g"]
        stats["grad_norm_g"] = _optimize(state, loss, state.generator, state.optimizer_g, state.scaler_g)
    state.update_average()
    return {name: value.detach() for name, value in stats.items()}


@contextlib.contextmanager
def _without_gradients(network: nn.Module) -> Iterator[None]:
    """The network passes gradients on and gathers none, which saves the weights' half of a backward pass."""
    network.requires_grad_(False)
    try:
        yield
    finally:
        network.requires_grad_(True)


def _patch_grid(state: TrainState, n: int) -> Tensor:
    """(n, K, K, 2) positions of patches, in pixels."""
    config = state.config
    grid = sample_patch_grid(n, config.patch_size, config.data.imsize, config.ray_sampler, state.step, state.draws)
    return grid.to(state.device, non_blocking=True)


def _render(state: TrainState, latents: Tensor, labels: Labels, grid: Tensor) -> Rendering:
    return state.generator(latents, labels, grid, step=state.step, noise=state.noise)


def _judged(state: TrainState, images: Tensor, low: Tensor | None = None) -> Tensor:
    """What the discriminator sees of images (B, 3, K, K): with discriminator.dual their low-resolution images, enlarged, too.

    Photographs go through the downsampling H that refined images are consistent with.
    """
    if not state.config.discriminator.dual:
        return images
    if low is None:
        low = state.generator.refinement.projection.downsample(images)
    return torch.cat([images, F.interpolate(low.float(), images.shape[-1], mode="bilinear")], dim=1)


def _gradient_penalty(state: TrainState, real: Tensor, fake: Tensor, labels: Labels | None) -> Tensor:
    with state.amp.autocast(enabled=False):
        if state.config.training.reg_type == "r1":
            return r1_penalty(state.discriminator, real, labels)
        return wgan_gp_penalty(state.discriminator, real, fake, labels, state.noise)


def _optimize(
    state: TrainState,
    loss: Tensor,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> Tensor:
    """One optimizer step on the loss, skipped where a gradient is not finite. Returns the gradient's norm before clipping."""
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    limit = state.config.training.grad_clip or torch.inf
    norm = nn.utils.clip_grad_norm_(network.parameters(), limit)
    if torch.isfinite(norm):
        scaler.step(optimizer)
    scaler.update()
    return norm
