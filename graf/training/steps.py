"""A training step and its two halves, the discriminator's and the generator's: no files, no printing.

Everything random in a step is drawn for the whole batch before any of it is computed. So a step gives the same gradients in
however many parts it is taken, and can be taken again in smaller ones where memory runs out.

Legend: B images of a step, or of a part of one, K side of a patch, W side of an image.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import partial

from graf.camera import Labels
from graf.data import Views, sample_labels
from graf.models.discriminator import COARSE
from graf.models.generator import Rendering
from graf.rays import cut_patch, low_resolution_grid, sample_patch_grid
from graf.rendering import RayNoise
from graf.runtime.guard import retry_smaller
from graf.training.accumulation import LossOfRows, Stats, accumulate, all_reduced, optimize, shrinking, whole_step
from graf.training.health import accuracy, colour_deviation, colour_moments
from graf.training.losses import (
    consistency_loss,
    consistency_weight,
    discriminator_loss,
    feature_penalty,
    generator_loss,
    judged_images,
    label_loss,
    r1_penalty,
    wgan_gp_penalty,
)
from graf.training.state import TrainState

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Draws:
    """Random inputs of B images: latents (B, Z); labels; grid (B, K, K, 2), the patches' positions in pixels; mirrored
    (B, 1, 1, 1), whether the discriminator sees an image mirrored; share (B, 1, 1, 1) in [0, 1), the interpolation of WGAN-GP;
    the noise of their rays."""

    latents: Tensor
    labels: Labels
    grid: Tensor
    mirrored: Tensor
    share: Tensor
    noise: RayNoise

    def __getitem__(self, rows: slice) -> "Draws":
        return Draws(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))


def draw(state: TrainState, labels: Labels, rendered: bool = True) -> Draws:
    """Random inputs of a step, one per label; photographs are not `rendered` and have no rays."""
    config, n = state.config, len(labels)
    grid = sample_patch_grid(n, config.patch_size, config.data.imsize, config.ray_sampler, state.step, state.draws)
    if state.step < config.discriminator.coarse_steps:
        grid = low_resolution_grid(grid, COARSE)
    n_rays = (grid.shape[1] // config.rendered_scale) ** 2
    coins = torch.rand(2, n, 1, 1, 1, generator=state.draws)
    mirrored, share = coins[0] < 0.5 * config.discriminator.hflip, coins[1]
    return Draws(
        latents=state.sample_latents(n),
        labels=labels,
        grid=grid.to(state.device, non_blocking=True),
        mirrored=mirrored.to(state.device, non_blocking=True),
        share=share.to(state.device, non_blocking=True),
        noise=state.generator.draw_noise(n, state.step, state.noise, n_rays) if rendered else RayNoise(),
    )


def train_step(state: TrainState, dataset: Views, images: Tensor, labels: Labels) -> Stats:
    """One step of both networks on one batch from the loader. Returns the step's scalars.

    Raises Derailed where training cannot go on from here, OutOfMemory where the smallest part of the step is too large.
    """
    config = state.config

    def draw_labels() -> Labels:
        n = len(images) * state.processes.world_size
        return sample_labels(dataset, n, config.data, state.draws).to(state.device)

    images = images.to(state.device, non_blocking=True)
    labels = labels.to(state.device)

    def both_networks() -> Stats:
        stats = discriminator_step(state, images, labels, draw_labels())
        return stats | generator_step(state, draw_labels(), images, labels)

    return whole_step(state, images, both_networks)


def discriminator_step(state: TrainState, images: Tensor, labels: Labels, fake_labels: Labels) -> Stats:
    """Train the discriminator on photographs (B, data.channels, W, W) with their labels, and as many fakes.

    In a run of N processes each brings its own B photographs and the fake_labels of all N * B, in the order of their rows. The
    relativistic loss takes those of the photographs instead.
    Returns detached scalars for the log. Raises OutOfMemory where memory does not suffice for the smallest part.
    """

    def drawn_loss() -> LossOfRows:
        mine = state.processes.rows
        real, fake = draw(state, fake_labels, rendered=False)[mine], draw(state, fake_labels)[mine]
        real = dataclasses.replace(real, labels=labels.with_cameras(real.labels))
        fake = _paired(state, fake, labels)
        return lambda rows: _discriminator_loss(state, images[rows], labels[rows], real[rows], fake[rows])

    learner = state.discriminator, state.optimizer_d, state.scaler_d
    gradients = partial(accumulate, state, drawn_loss, len(fake_labels), *learner)
    sums = retry_smaller(gradients, shrinking(state), f"step {state.step}", state.processes)
    stats = all_reduced(*sums, state.processes)
    deviations = {name: colour_deviation(stats.pop(name)) for name in ("sample_std", "real_std")}
    if len(fake_labels) > 1:
        stats |= deviations
    stats["grad_norm_d"] = optimize(state, state.discriminator, state.optimizer_d, state.scaler_d, stats)
    state.discriminator.update_spectral_norms()
    return stats


def generator_step(
    state: TrainState, labels: Labels, images: Tensor | None = None, image_labels: Labels | None = None
) -> Stats:
    """Train the generator with B cameras, and update its moving average. Returns and raises as discriminator_step.

    Every process of a run is given the labels of all of them. images (B, data.channels, W, W) and image_labels: the photographs
    of the discriminator's step, of which each process has its own, for CCSR to restore and the losses that compare fakes with
    them.
    """

    def drawn_loss() -> LossOfRows:
        fake = draw(state, labels)[state.processes.rows]
        if images is None:
            return lambda rows: _generator_loss(state, fake[rows])
        fake = _paired(state, fake, image_labels)
        return lambda rows: _generator_loss(state, fake[rows], images[rows], image_labels[rows])

    gradients = partial(accumulate, state, drawn_loss, len(labels), state.generator, state.optimizer_g, state.scaler_g)
    with _without_gradients(state.discriminator):
        sums = retry_smaller(gradients, shrinking(state), f"step {state.step}", state.processes)
    stats = all_reduced(*sums, state.processes)
    stats["grad_norm_g"] = optimize(state, state.generator, state.optimizer_g, state.scaler_g, stats)
    if torch.isfinite(stats["grad_norm_g"]):
        state.update_average()
    return stats


def _paired(state: TrainState, fake: Draws, labels: Labels) -> Draws:
    """Random inputs of fakes with the labels of the photographs in their rows, for the relativistic loss: its pairs share class
    and camera, as in R3GAN, so that they differ in nothing that the discriminator is told. An unknown camera is drawn."""
    if state.config.training.gan_type != "relativistic":
        return fake
    return dataclasses.replace(fake, labels=labels.with_cameras(fake.labels))


def _discriminator_loss(
    state: TrainState, images: Tensor, labels: Labels, real_draws: Draws, fake_draws: Draws
) -> tuple[Tensor, Stats]:
    """The discriminator's loss on B photographs and as many fakes, with its penalty, and scalars for the log."""
    config, training = state.config, state.config.training
    # What the discriminator is shown: patches of photographs, and fakes without gradient
    with torch.no_grad(), state.amp.autocast():
        real, alpha = _patches(images, real_draws.grid)
        moments = {"real_std": colour_moments(real)}
        real = _shown(state, real, real_draws, alpha)
        rendering = _render(state, fake_draws)
        moments["sample_std"] = colour_moments(rendering.images)
        stages = [(rendering.images.float(), rendering.opacity, rendering.low_images)]
        if rendering.coarse_images is not None:
            stages.append((rendering.coarse_images.float(), rendering.coarse_opacity, None))
        fake = torch.cat([_shown(state, fake, fake_draws, 2 * opacity - 1, low) for fake, opacity, low in stages])
        fake_labels = fake_draws.labels[torch.arange(len(fake)) % len(images)]
    # Its loss
    with state.amp.autocast():
        real_scores, fake_scores = state.discriminator(real, labels), state.discriminator(fake, fake_labels)
        loss = discriminator_loss(real_scores.logits, fake_scores.logits, training.gan_type)
        stats = {"loss_d": loss, "logit_real": real_scores.logits.mean(), "logit_fake": fake_scores.logits.mean()} | moments
        if training.gan_type != "wgan":  # whose logits have no zero
            stats["accuracy_d"] = accuracy(real_scores.logits, fake_scores.logits, training.gan_type)
        if config.discriminator.label_loss == "MCE":
            stats["loss_label_d"] = label_loss(real_scores, labels)
            loss = loss + config.discriminator.label_weight * stats["loss_label_d"]
    # The gradient penalty
    if state.penalises:
        stats["penalty"] = _gradient_penalty(state, real, fake, labels, fake_labels, fake_draws.share)
        loss = loss + training.reg_param * training.reg_every * stats["penalty"]
    return loss, stats


def _generator_loss(
    state: TrainState, draws: Draws, images: Tensor | None = None, image_labels: Labels | None = None
) -> tuple[Tensor, Stats]:
    """The generator's loss on B cameras, with photographs in the same rows, and scalars for the log."""
    config, labels, gan_type, real_logits = state.config, draws.labels, state.config.training.gan_type, None
    if gan_type == "relativistic":
        real_logits = _logits_of_photographs(state, images, image_labels, draws)
    with state.amp.autocast():
        # The adversarial loss, of the coarse rendering too where there is one
        rendering = _render(state, draws)
        fake = rendering.images.float()
        restored = _restore(state, fake, draws) if config.judges_restored else None
        seen = fake if restored is None else restored
        judged = _judged(state, seen, draws, 2 * rendering.opacity - 1, rendering.low_images)
        scores = state.discriminator(judged, labels)
        loss = generator_loss(scores.logits, gan_type, real_logits)
        if rendering.coarse_images is not None:
            coarse = _shown(state, rendering.coarse_images.float(), draws, 2 * rendering.coarse_opacity - 1)
            loss = loss + generator_loss(state.discriminator(coarse, labels).logits, gan_type, real_logits)
        stats = {"loss_g": loss, "opacity": rendering.opacity.mean()}
        # CCSR's losses, and that of the labels
        drift = rendering.drift
        if config.restores_photographs:
            photographs, _ = _patches(images, draws.grid)
            of_photographs = image_labels.with_cameras(labels)
            sharpened, drift = state.generator.restoration(photographs, draws.latents, of_photographs, draws.grid)
            stats["loss_restore"] = F.l1_loss(sharpened, photographs)
            loss = loss + stats["loss_restore"]
        if drift is not None:
            stats["ccsr_drift"] = drift.mean()
            loss = loss + config.ccsr.drift_weight * stats["ccsr_drift"]
        if config.ccsr.mode == "consistency":
            ccsr = config.ccsr
            if ccsr.detach == "nerf" or restored is None:  # the field does not learn through its restored image either
                restored = _restore(state, fake.detach() if ccsr.detach == "nerf" else fake, draws)
            stats["loss_ccsr"] = consistency_loss(fake, restored, ccsr.detach, state.perception, ccsr.perceptual_weight)
            loss = loss + consistency_weight(ccsr, state.step) * stats["loss_ccsr"]
        if config.discriminator.label_loss == "MCE":
            stats["loss_label_g"] = label_loss(scores, labels)
            loss = loss + config.discriminator.label_weight * stats["loss_label_g"]
    return loss, stats


@contextlib.contextmanager
def _without_gradients(network: nn.Module) -> Iterator[None]:
    """The network passes gradients on and gathers none, which saves the weights' half of a backward pass."""
    network.requires_grad_(False)
    try:
        yield
    finally:
        network.requires_grad_(True)


def _render(state: TrainState, draws: Draws) -> Rendering:
    rays = state.sizes.rays_of(len(draws.latents))
    return state.generator(draws.latents, draws.labels, draws.grid, noise=draws.noise, rays_at_once=rays)


def _restore(state: TrainState, images: Tensor, draws: Draws) -> Tensor:
    """What CCSR makes of the downsampling of patches (B, 3, K, K), for ccsr.mode: consistency."""
    return state.generator.restore(images, draws.latents, draws.labels, draws.grid).float()


def _patches(images: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Patches (B, 3, K, K) of photographs (B, data.channels, W, W), and of their opacity (B, 1, K, K); empty where they have
    none."""
    return cut_patch(images, grid).tensor_split([3], dim=1)


def _shown(state: TrainState, images: Tensor, draws: Draws, alpha: Tensor, low: Tensor | None = None) -> Tensor:
    """`_judged` of images as CCSR restores them, where the discriminator sees them so. A photograph has no latents: drawn ones
    bring in the same kind of detail."""
    if state.config.judges_restored:
        images = _restore(state, images, draws)
    return _judged(state, images, draws, alpha, low)


def _judged(state: TrainState, images: Tensor, draws: Draws, alpha: Tensor, low: Tensor | None = None) -> Tensor:
    """What the discriminator sees of images (B, 3, K, K) and, with data.alpha: judge, of their opacity in [-1, 1]."""
    config, alpha = state.config.discriminator, alpha if state.config.data.alpha == "judge" else None
    seen = judged_images(images, low, alpha, config, state.generator.projection, state.step)
    # Patches have no optical axis, and no camera is judged with them: those of both kinds are flipped alike
    return torch.where(draws.mirrored, seen.flip(3), seen) if config.hflip else seen


@torch.no_grad()
def _logits_of_photographs(state: TrainState, images: Tensor, labels: Labels, draws: Draws) -> Tensor:
    """Logits (B,) of photographs, cut and mirrored as the fakes of these draws are."""
    with state.amp.autocast():
        patches, alpha = _patches(images, draws.grid)
        draws = dataclasses.replace(draws, labels=labels.with_cameras(draws.labels))
        return state.discriminator(_shown(state, patches, draws, alpha), labels).logits


def _gradient_penalty(
    state: TrainState, real: Tensor, fake: Tensor, labels: Labels, fake_labels: Labels, share: Tensor
) -> Tensor:
    reg_type = state.config.training.reg_type
    with state.amp.autocast(enabled=False):
        if state.config.discriminator.architecture == "projected":
            return feature_penalty(state.discriminator, real, labels)
        if reg_type == "wgan_gp":
            return wgan_gp_penalty(state.discriminator, real, fake[: len(real)], labels, share)
        penalty = r1_penalty(state.discriminator, real, labels)
        return penalty + r1_penalty(state.discriminator, fake, fake_labels) if reg_type == "r1_r2" else penalty
