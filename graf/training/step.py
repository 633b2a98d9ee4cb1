"""A training step: the discriminator learns, then the generator. Each has one objective, read from top to bottom: no files, no
printing.

Legend: B images of a step, or of a part of one, K side of a patch, W side of an image.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

from graf.camera import Labels
from graf.data import Views
from graf.models.discriminators.convolutional import Scores
from graf.models.discriminators.penalties import Penalised
from graf.models.encoder import divergence
from graf.models.generator import Generator, Rendering
from graf.rays import cut_patch
from graf.training.inputs import Batch, Inputs, low_res_stride, sample_step
from graf.training.learn import Objective, Stats, learn, whole_step
from graf.training.losses import (
    GAN_LOSSES,
    consistency_loss,
    consistency_weight,
    discriminator_input,
    discriminator_loss,
    faded_sigma,
    generator_loss,
    label_loss,
)
from graf.training.state import TrainState
from graf.training.statistics import colour_deviation, colour_moments

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def train_step(state: TrainState, dataset: Views, images: Tensor, labels: Labels) -> Stats:
    """One step of both networks on one batch from the loader. Returns detached values for the log.

    Raises HalfUpdated where weights may be half updated, OutOfMemory where memory does not suffice for the smallest part.
    """
    with whole_step(state):
        for_d, for_g = sample_step(state, dataset, images, labels)
        if state.step < state.config.encoder.first_steps:
            stats = encoder_step(state, for_g)
        else:
            stats = discriminator_step(state, for_d) | generator_step(state, for_g)
    return stats | state.learning_rates()


def discriminator_step(state: TrainState, batch: Batch) -> Stats:
    """Train the discriminator on real images and as many fakes. Returns and raises as `learn`."""
    stats = learn(state, state.d, batch, discriminator_objective, (_blur(state), state.penalty_weight))
    state.discriminator.update_spectral_norms()
    deviations = {f"{name}_std": colour_deviation(stats.pop(f"{name}_moments")) for name in ("sample", "real")}
    return stats | (deviations if len(batch) * state.processes.world_size > 1 else {})  # one image has no deviation


def generator_step(state: TrainState, batch: Batch) -> Stats:
    """Train the generator through the frozen discriminator. Returns and raises as `learn`."""
    config = state.config
    ccsr_weight = consistency_weight(config.ccsr, state.step) if config.ccsr.mode == "consistency" else None
    with frozen(state.discriminator):
        return _generator_learns(state, batch, generator_objective, (_blur(state), ccsr_weight))


def _blur(state: TrainState) -> float:
    config = state.config
    return faded_sigma(config.discriminator, state.step - config.encoder.first_steps, low_res_stride(config, state.step))


def encoder_step(state: TrainState, batch: Batch) -> Stats:
    """Train the field and the encoder to reconstruct real images. Returns and raises as `learn`."""
    return _generator_learns(state, batch, encoder_objective)


def _generator_learns(state: TrainState, batch: Batch, objective: Objective, constants: tuple = ()) -> Stats:
    """`learn`, after which the EMA and the encoder's whitening follow the generator."""
    stats = learn(state, state.g, batch, objective, constants)
    learned = stats["grad_norm_g"].isfinite()
    if "latent_moments" in stats:
        n_images = len(batch) * state.processes.world_size
        state.generator.encoder.follow(stats.pop("latent_moments"), n_images, learned)
    state.update_ema(learned)
    return stats


@contextlib.contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Freeze the weights, which saves their half of a backward pass; gradients still reach the inputs."""
    network.requires_grad_(False)
    try:
        yield
    finally:
        network.requires_grad_(True)


def discriminator_objective(state: TrainState, batch: Batch, blur: float, penalty_weight: float | None) -> tuple[Tensor, Stats]:
    """The discriminator's loss on B real images and as many fakes, with its gradient penalty in steps that have one, and values
    for the log. blur: the standard deviation, in pixels, by which it sees images blurred."""
    config, training, real_labels = state.config, state.config.training, batch.real_labels
    # What the discriminator sees: patches of real images, and fakes without gradient
    with torch.no_grad(), state.amp.autocast():
        real, alpha = cut_patch(batch.real_images, batch.real_inputs.grid).tensor_split([3], dim=1)
        moments = {"real_moments": colour_moments(real)}
        real = _seen_by_discriminator(state, real, batch.real_inputs, blur, alpha)
        rendering = _render(state, batch.fake_inputs)
        moments["sample_moments"] = colour_moments(rendering.images)
        fakes = [(rendering.images.float(), 2 * rendering.opacity - 1, rendering.low_images)]
        if rendering.coarse_images is not None:
            fakes.append((rendering.coarse_images.float(), 2 * rendering.coarse_opacity - 1, None))
        fake = torch.cat([_seen_by_discriminator(state, images, batch.fake_inputs, blur, *rest) for images, *rest in fakes])
        fake_labels = batch.fake_inputs.labels[torch.arange(len(fake), device=fake.device) % len(batch)]  # twice with coarse
    # The adversarial loss, and that of the labels
    with state.amp.autocast():
        real_scores, fake_scores = _scores_of_both(state, real, fake, real_labels, fake_labels)
        loss = discriminator_loss(real_scores.logits, fake_scores.logits, training.gan_type)
        stats = {"loss_d": loss, "logit_real": real_scores.logits.mean(), "logit_fake": fake_scores.logits.mean()} | moments
        if accuracy := GAN_LOSSES[training.gan_type].accuracy:
            stats["accuracy_d"] = accuracy(real_scores.logits, fake_scores.logits)
        if real_scores.projected_logits is not None:
            both = real_scores.projected_logits, fake_scores.projected_logits
            stats["loss_d_projected"] = discriminator_loss(*both, training.gan_type)
            loss = loss + stats["loss_d_projected"]
            if accuracy:
                stats["accuracy_d_projected"] = accuracy(*both)
        if config.discriminator.label_loss == "MCE":
            stats["loss_label_d"] = label_loss(real_scores, real_labels)
            loss = loss + config.discriminator.label_weight * stats["loss_label_d"]
        if config.discriminator.reconstruction > 0:
            choices = batch.real_inputs.places[:, 4]
            stats["loss_reconstruct"] = state.discriminator.reconstruction.loss(real_scores.maps, real, choices)
            loss = loss + config.discriminator.reconstruction * stats["loss_reconstruct"]
    # The gradient penalty
    if penalty_weight is not None:
        with state.amp.autocast(enabled=False):
            at = Penalised(real, fake, real_labels, fake_labels, batch.fake_inputs.interpolation, real_scores.judged)
            stats["penalty"] = state.discriminator.gradient_penalty(training.reg_type, at)
        loss = loss + penalty_weight * stats["penalty"]
    return loss, stats


def generator_objective(state: TrainState, batch: Batch, blur: float, ccsr_weight: float | None) -> tuple[Tensor, Stats]:
    """The generator's loss on B fakes, with real images in the same rows where it uses them, and on as many reconstructions
    where there are encoder_inputs; and values for the log.

    blur: the standard deviation, in pixels, by which the discriminator sees images blurred. ccsr_weight: that of the
    loss of ccsr.mode: consistency.
    """
    config, fake_labels = state.generator.config, batch.fake_inputs.labels
    # The encoder's loss comes first: so its backward pass comes last, when what the others keep is free
    reconstruction, of_encoder = encoder_objective(state, batch) if batch.encoder_inputs is not None else (None, {})
    real_logits = _real_logits(state, batch, blur) if GAN_LOSSES[config.training.gan_type].paired else None
    with state.amp.autocast():
        # The adversarial loss, of the coarse network's images too where there is one
        inputs = batch.fake_inputs
        rendering = _render(state, inputs)
        fake = rendering.images.float()
        restored = _restore(state, fake, inputs) if config.judges_restored else None
        seen = _seen_by_discriminator(state, fake, inputs, blur, 2 * rendering.opacity - 1, rendering.low_images, restored)
        scores = state.discriminator(seen, fake_labels)
        loss = _adversarial_loss(state, scores, real_logits)
        if rendering.coarse_images is not None:
            coarse = rendering.coarse_images.float()
            seen = _seen_by_discriminator(state, coarse, inputs, blur, 2 * rendering.coarse_opacity - 1)
            loss = loss + _adversarial_loss(state, state.discriminator(seen, fake_labels), real_logits)
        stats = of_encoder | {"loss_g": loss, "opacity": rendering.opacity.mean()}
        if reconstruction is not None:
            loss = loss + config.encoder.weight * reconstruction
        # CCSR's losses, and that of the labels; the drift is that of real images where CCSR restores them
        drift = rendering.drift
        if config.restores_real_images:
            patches = cut_patch(batch.real_images, inputs.grid)[:, :3]
            cameras = batch.real_labels.with_cameras(fake_labels)
            sharpened, drift = state.generator.restore_with_drift(patches, inputs.latents, cameras, inputs.grid)
            stats["loss_restore"] = F.l1_loss(sharpened, patches)
            loss = loss + stats["loss_restore"]
        if drift is not None:
            stats["ccsr_drift"] = drift.mean()
            loss = loss + config.ccsr.drift_weight * stats["ccsr_drift"]
        if config.ccsr.mode == "consistency":
            ccsr = config.ccsr
            if ccsr.detach == "nerf":  # the field does not learn through its restored image either
                restored = _restore(state, fake.detach(), inputs)
            elif restored is None:
                restored = _restore(state, fake, inputs)
            stats["loss_ccsr"] = consistency_loss(fake, restored, ccsr.detach, state.perception, ccsr.perceptual_weight)
            loss = loss + ccsr_weight * stats["loss_ccsr"]
        if config.discriminator.label_loss == "MCE":
            stats["loss_label_g"] = label_loss(scores, fake_labels)
            loss = loss + config.discriminator.label_weight * stats["loss_label_g"]
    return loss, stats


def encoder_objective(state: TrainState, batch: Batch) -> tuple[Tensor, Stats]:
    """The loss of B real images' reconstructions by the field alone, before CCSR refines them, and values for the log: their
    distance at the pixels that rays pass through, and the weighted divergence of the latents that the encoder finds from
    sampled ones. Images without cameras are seen from those that it finds. Among the values are the moments that the whitening
    follows, which are not for the log."""
    inputs = batch.encoder_inputs
    encoder = state.generator.encoder
    with state.amp.autocast(enabled=False):
        gaussians = encoder(batch.real_images, inputs.labels.pose_c2w)
        latents, pose_c2w = encoder.sample(*gaussians, inputs.latents)
        labels = inputs.labels if pose_c2w is None else dataclasses.replace(inputs.labels, pose_c2w=pose_c2w)
        stats = {"divergence": divergence(*gaussians).mean(), "latent_moments": encoder.moments(*gaussians)}
    with state.amp.autocast():
        rendering = _render(state, dataclasses.replace(inputs, latents=latents, labels=labels), state.generator.unrefined())
        real = cut_patch(batch.real_images, inputs.grid)
        loss = _squared_distance(rendering.images, rendering.opacity, real)
        if rendering.coarse_images is not None:
            loss = loss + _squared_distance(rendering.coarse_images, rendering.coarse_opacity, real)
    stats |= {"loss_encoder": loss, "opacity": rendering.opacity.mean()}
    return loss + state.config.encoder.divergence_weight * stats["divergence"], stats


def _squared_distance(images: Tensor, opacity: Tensor, real: Tensor) -> Tensor:
    """The mean square difference of images (B, 3, h, w) from real ones (B, 3 or 4, h, w), plus that of opacity where they have
    it."""
    squares = (torch.cat([images.float(), 2 * opacity - 1], dim=1)[:, : real.shape[1]] - real).square()
    return squares[:, :3].mean() + squares[:, 3:].mean(dim=(0, 2, 3)).sum()


def _scores_of_both(
    state: TrainState, real: Tensor, fake: Tensor, real_labels: Labels, fake_labels: Labels
) -> tuple[Scores, Scores]:
    """The discriminator's scores of real images and fakes, at once, which takes half as many operations. What the images of a
    pair share cancels out in the loss of pairs; its gradient is exactly 0 where they are scored apart, else rounding."""
    if GAN_LOSSES[state.config.training.gan_type].paired:
        return state.discriminator(real, real_labels), state.discriminator(fake, fake_labels)
    scores = state.discriminator(torch.cat([real, fake]), real_labels.followed_by(fake_labels))
    return scores[: len(real)], scores[len(real) :]


def _adversarial_loss(state: TrainState, scores: Scores, real_logits: Tensor | None) -> Tensor:
    """The generator's loss of its scores (B), with the weighted one of a mixed discriminator's heads."""
    gan_type = state.config.training.gan_type
    loss = generator_loss(scores.logits, gan_type, real_logits)
    if scores.projected_logits is None:
        return loss
    return loss + state.config.projected_weight * generator_loss(scores.projected_logits, gan_type)


def _render(state: TrainState, inputs: Inputs, generator: Generator | None = None) -> Rendering:
    rays, generator = state.sizes.rays_of(len(inputs.latents)), generator or state.generator
    return generator(inputs.latents, inputs.labels, inputs.grid, noise=inputs.noise, rays_at_once=rays)


def _restore(state: TrainState, images: Tensor, inputs: Inputs) -> Tensor:
    """Patches (B, 3, K, K) that CCSR restored from their downsampling, for ccsr.mode: consistency."""
    return state.generator.restore(images, inputs.latents, inputs.labels, inputs.grid).float()


def _seen_by_discriminator(
    state: TrainState,
    images: Tensor,
    inputs: Inputs,
    blur: float,
    alpha: Tensor,
    low: Tensor | None = None,
    restored: Tensor | None = None,
) -> Tensor:
    """The discriminator's input from images (B, 3, K, K) and, with data.alpha: rgba, of their opacity in [-1, 1].

    restored: the images as CCSR restores them, where the discriminator sees them so, and None computes them. Real images have
    no latents: sampled ones add the same kind of detail.
    """
    config, projection = state.config, state.generator.projection
    if config.judges_restored:
        images = _restore(state, images, inputs) if restored is None else restored
    alpha = alpha if config.data.alpha == "rgba" else None
    mirrored = inputs.mirrored if config.discriminator.hflip else None
    return discriminator_input(images, low, alpha, config.discriminator, projection, blur, mirrored, inputs.places[:, :4])


@torch.no_grad()
def _real_logits(state: TrainState, batch: Batch, blur: float) -> Tensor:
    """Logits (B,) of the real images, cut and mirrored as the fakes in their rows are."""
    with state.amp.autocast():
        patches, alpha = cut_patch(batch.real_images, batch.fake_inputs.grid).tensor_split([3], dim=1)
        # Fakes have the labels of the real images in their rows
        seen = _seen_by_discriminator(state, patches, batch.fake_inputs, blur, alpha)
        return state.discriminator(seen, batch.real_labels).logits
