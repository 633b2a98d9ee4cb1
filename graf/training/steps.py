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
    faded_blur,
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
    real_grid = _patch_grid(state, len(images))
    real = cut_patch(images, real_grid)
    with torch.no_grad(), state.amp.autocast():
        if config.judges_restored:  # a photograph has no latents; drawn ones bring in the same kind of detail
            real = _restore(state, real, state.sample_latents(len(images)), labels or fake_labels, real_grid)
        real = _judged(state, real)
        latents, grid = state.sample_latents(len(images)), _patch_grid(state, len(images))
        rendering = _render(state, latents, fake_labels, grid)
        stages = [(rendering.images.float(), rendering.low_images)]
        if rendering.coarse_images is not None:
            stages.append((rendering.coarse_images.float(), None))
        if config.judges_restored:
            stages = [(_restore(state, fake, latents, fake_labels, grid), low) for fake, low in stages]
        fake = torch.cat([_judged(state, fake, low) for fake, low in stages])
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
            fake = rendering.images.float()
            if config.ccsr.mode == "consistency":
                restored = _restore(state, fake, latents, labels, grid)
            judged = _judged(state, restored if config.judges_restored else fake, rendering.low_images)
            scores = state.discriminator(judged, labels)
            loss = generator_loss(scores.logits, config.training.gan_type)
            if rendering.coarse_images is not None:
                coarse = rendering.coarse_images.float()
                if config.judges_restored:
                    coarse = _restore(state, coarse, latents, labels, grid)
                coarse_scores = state.discriminator(_judged(state, coarse), labels)
                loss = loss + generator_loss(coarse_scores.logits, config.training.gan_type)
            stats = {"loss_g": loss, "opacity": rendering.opacity.mean()}
            if config.ccsr.mode == "consistency":
                ccsr = config.ccsr
                stats["loss_ccsr"] = consistency_loss(fake, restored, ccsr.detach, state.perception, ccsr.perceptual_weight)
                loss = loss + consistency_weight(ccsr, state.step) * stats["loss_ccsr"]
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


def _restore(state: TrainState, images: Tensor, latents: Tensor, labels: Labels, grid: Tensor) -> Tensor:
    """What CCSR makes of the downsampling of patches (B, 3, K, K), for ccsr.mode: consistency."""
    return state.generator.restore(images, latents, labels, grid).float()


def _judged(state: TrainState, images: Tensor, low: Tensor | None = None) -> Tensor:
    """What the discriminator sees of images (B, 3, K, K), which are blurred early on: with discriminator.dual their
    low-resolution images, enlarged, too.

    Photographs go through the downsampling H that refined images are consistent with.
    """
    config = state.config.discriminator
    with state.amp.autocast(enabled=False):
        seen = faded_blur(images, config.blur_sigma, config.blur_steps, state.step)
    if not config.dual:
        return seen
    if low is None:
        low = state.generator.refinement.projection.downsample(images)
    return torch.cat([seen, F.interpolate(low.float(), images.shape[-1], mode="bilinear")], dim=1)


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
