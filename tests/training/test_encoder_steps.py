"""Reconstructions of real images beside the fakes: when there are any, what they learn from, and the first steps."""

import dataclasses

from graf.checkpoints.checkpoint import save_checkpoint
from graf.data import build_dataset
from graf.rays import cut_patch
from graf.training import losses
from graf.training import step as steps
from graf.training.inputs import generator_batch
from graf.training.state import TrainState, load_checkpoint

import pytest
import torch
from halves import generator_step

ENCODER = ("encoder.weight=10", "encoder.first_steps=0", "data.alpha=rgba", "nerf.perturb=false")
FRONT = ("data.camera_prior=front", "data.hflip=true")


@pytest.fixture
def build(smoke):
    return lambda *overrides: TrainState(smoke(*ENCODER, *overrides), torch.device("cpu"), 2, 3)


def changed(network, before):
    return {name.split(".")[0] for name, p in network.named_parameters() if not torch.equal(p, before[name])}


def copies(network):
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def test_reconstructions_have_the_labels_of_their_images_and_fakes_their_own(build, cut_outs, labels):
    others = labels[[1, 2, 3, 0]]
    batch = generator_batch(build(), others, cut_outs, labels)
    assert torch.equal(batch.fake_inputs.labels.pose_c2w, others.pose_c2w)
    for field in dataclasses.fields(labels):
        assert torch.equal(getattr(batch.encoder_inputs.labels, field.name), getattr(labels, field.name))
    assert not torch.equal(batch.encoder_inputs.latents, batch.fake_inputs.latents)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [(("encoder.first_steps=2",), [True, True, True]), (("encoder.first_steps=2", "encoder.weight=0"), [True, True, False])],
)
def test_images_are_reconstructed_in_the_first_steps_and_with_a_weight_after_them(build, cut_outs, labels, overrides, expected):
    state, found = build(*overrides), []
    for state.step in range(3):
        found.append(generator_batch(state, labels, cut_outs, labels).encoder_inputs is not None)
    assert found == expected


def test_without_an_encoder_nothing_is_reconstructed(smoke, cut_outs, labels):
    state = TrainState(smoke("data.alpha=rgba"), torch.device("cpu"), 2, 3)
    assert state.generator.encoder is None
    assert generator_batch(state, labels, cut_outs, labels).encoder_inputs is None
    assert "loss_encoder" not in generator_step(state, labels, cut_outs, labels)


@pytest.mark.parametrize("alpha", ["rgba", "ignore"])
def test_the_loss_is_the_distance_of_reconstructions(build, cut_outs, labels, alpha):
    state = build(f"data.alpha={alpha}")
    images = cut_outs[:, : state.config.data.channels]
    steps.encoder_step(state, generator_batch(state, labels, images, labels))  # the whitening changes something
    batch = generator_batch(state, labels[[1, 0, 3, 2]], images, labels)
    with torch.no_grad():
        mean, log_variance = state.generator.encoder(images, labels.pose_c2w)
        inputs = batch.encoder_inputs
        latents = state.generator.encoder.whitened(mean + (0.5 * log_variance).exp() * inputs.latents)
        rendering = state.generator(latents, labels, inputs.grid)
        real = cut_patch(images, inputs.grid)
        expected = (rendering.images - real[:, :3]).square().mean()
        if alpha == "rgba":
            expected += (2 * rendering.opacity - 1 - real[:, 3:]).square().mean()
    stats = steps.generator_step(state, batch)
    assert stats["loss_encoder"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_discriminator_sees_no_reconstruction(build, cut_outs, labels):
    """The generator's adversarial loss is that of the same fakes without an encoder's weight."""
    losses = []
    for weight in (0, 10):
        torch.manual_seed(3)
        state = build("encoder.first_steps=1", f"encoder.weight={weight}")
        state.step = 1
        losses.append(generator_step(state, labels, cut_outs, labels)["loss_g"].item())
    assert losses[0] == losses[1]


def test_images_without_cameras_are_reconstructed_from_those_that_are_found(build, cut_outs, labels):
    state = build("encoder.finds_cameras=true", *FRONT, "encoder.divergence_weight=0")
    unposed = dataclasses.replace(labels, pose_c2w=None)
    batch, before = generator_batch(state, labels, cut_outs, unposed), copies(state.generator.encoder)
    with torch.no_grad():
        inputs = batch.encoder_inputs
        latents, poses = state.generator.encoder.sample(*state.generator.encoder(cut_outs, None), inputs.latents)
        seen = dataclasses.replace(labels, pose_c2w=poses)
        rendering = state.generator.unrefined()(latents, seen, inputs.grid)
        real = cut_patch(cut_outs, inputs.grid)
        expected = (rendering.images - real[:, :3]).square().mean()
        expected += (2 * rendering.opacity - 1 - real[:, 3:]).square().mean()
    stats = steps.encoder_step(state, batch)
    assert stats["loss_encoder"].item() == pytest.approx(expected.item(), rel=1e-4)
    angles = state.generator.encoder.gaussian.weight[:2]
    assert (angles != before["gaussian.weight"][:2]).any(1).all()  # through the rendering, for the divergence weighs nothing


@pytest.mark.parametrize(("overrides", "side"), [(("ccsr.mode=none", "ray_sampler.rays_per_patch=256"), 2), ((), 4)])
def test_a_ray_is_compared_with_one_pixel_of_its_block(refine, cut_outs, labels, overrides, side):
    state = TrainState(refine(*ENCODER, *overrides), torch.device("cpu"), 2, 3)
    grids = torch.stack([generator_batch(state, labels, cut_outs, labels).encoder_inputs.grid for _ in range(20)])
    assert grids.shape == (20, 4, 16 // side, 16 // side, 2)
    corners = grids[:, :, 0, 0].flatten(0, 1).round(decimals=3).unique(dim=0)
    assert torch.equal(corners, torch.cartesian_prod(*[torch.arange(float(side))] * 2))
    batch = generator_batch(state, labels, cut_outs, labels)
    x, y = batch.encoder_inputs.grid.round().long().unbind(-1)
    pixels = cut_outs[torch.arange(4)[:, None, None], :, y, x].movedim(-1, 1)
    with torch.no_grad():
        mean, log_variance = state.generator.encoder(cut_outs, labels.pose_c2w)
        latents = state.generator.encoder.whitened(mean + (0.5 * log_variance).exp() * batch.encoder_inputs.latents)
        rendering = state.generator.unrefined()(latents, labels, batch.encoder_inputs.grid)
        seen = torch.cat([rendering.images, 2 * rendering.opacity - 1], dim=1)
        expected = (seen - pixels).square().mean(dim=(0, 2, 3))
    stats = steps.encoder_step(state, batch)
    assert stats["loss_encoder"].item() == pytest.approx((expected[:3].mean() + expected[3]).item(), rel=1e-4)


@pytest.mark.parametrize("overrides", [(), ("nerf.importance_samples_per_ray=4",)])
def test_refined_images_are_compared_before_they_are_refined(refine, cut_outs, labels, overrides):
    state = TrainState(refine(*ENCODER, *overrides), torch.device("cpu"), 2, 3)
    before = copies(state.generator)
    stats = steps.encoder_step(state, generator_batch(state, labels, cut_outs, labels))
    assert stats["loss_encoder"] > 0
    learned = {"field", "encoder"} | ({"field_fine"} if overrides else set())
    assert changed(state.generator, before) - {"class_embedding"} == learned


@pytest.mark.parametrize("first_steps", [0, 1])
def test_a_first_step_teaches_no_discriminator(build, cut_outs, labels, tmp_path, first_steps):
    state = build(f"encoder.first_steps={first_steps}", f"data.datadir={tmp_path}", "data.n_images=4")
    before, averaged = copies(state.discriminator), copies(state.generator_ema)
    stats = steps.train_step(state, build_dataset(state.config), cut_outs, labels)
    assert bool(changed(state.discriminator, before)) == ("loss_d" in stats) == (first_steps == 0)
    assert "loss_encoder" in stats and "encoder" in changed(state.generator_ema, averaged)


def test_reconstructions_come_to_look_like_their_images(build, cut_outs, labels):
    state = build("encoder.first_steps=100", "training.lr_g=0.002", "encoder.divergence_weight=0")
    plain = cut_outs[:, :, :1, :1].expand_as(cut_outs)
    losses = []
    for _ in range(40):
        losses.append(steps.encoder_step(state, generator_batch(state, labels, plain, labels))["loss_encoder"].item())
        state.advance()
    assert losses[-1] < 0.6 * losses[0]


def test_parts_of_a_batch_have_the_same_gradients(build, cut_outs, labels):
    def gradients_in_parts(at_once):
        torch.manual_seed(3)
        state = build()
        state.sizes.images = at_once
        generator_step(state, labels[[1, 0, 3, 2]], cut_outs, labels)
        whitening = {name: x for name, x in state.generator.named_buffers() if name.startswith("encoder.")}
        return {name: p.grad for name, p in state.generator.named_parameters()} | whitening

    whole, parts = gradients_in_parts(4), gradients_in_parts(3)
    assert not torch.equal(whole["encoder.whitening"], torch.eye(len(whole["encoder.whitening"])))
    assert whole["encoder.gaussian.weight"].abs().sum() > 0
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_the_average_has_the_generators_whitening(build, cut_outs, labels):
    state = build()
    start = state.generator.encoder.whitening.clone()
    generator_step(state, labels, cut_outs, labels)
    whitening = state.generator.encoder.whitening
    assert torch.equal(state.generator_ema.encoder.whitening, whitening) and not torch.equal(whitening, start)


def test_low_resolution_lasts_from_the_first_step_on(build, cut_outs, labels):
    state, sides = build("encoder.first_steps=1", "discriminator.low_res_steps=2"), []
    for state.step in range(4):
        batch = generator_batch(state, labels, cut_outs, labels)
        sides.append([inputs.grid.shape[1] for inputs in (batch.fake_inputs, batch.encoder_inputs)])
    assert sides == [[8, 8], [8, 8], [8, 8], [16, 8]]
    state = build("encoder.first_steps=1")
    assert generator_batch(state, labels, cut_outs, labels).fake_inputs.grid.shape[1] == 16  # where none is asked for


def test_the_blur_begins_with_the_discriminators_steps(build, cut_outs, labels, monkeypatch):
    state, widths = build("encoder.first_steps=3", "discriminator.blur_steps=2", "discriminator.blur_sigma=1"), []
    blurred = losses.blurred
    monkeypatch.setattr(losses, "blurred", lambda images, sigma: (widths.append(sigma), blurred(images, sigma))[1])
    for state.step in (3, 4, 5):
        generator_step(state, labels, cut_outs, labels)
    assert sorted(set(widths)) == [0.0, 0.5, 1.0]


def test_a_state_is_continued_across_the_encoders_last_step(build, cut_outs, labels):
    def taken(n, saved=None):
        state = build("encoder.first_steps=2")
        if saved:
            state.load_state_dict(saved)
        for _ in range(n):
            batch = generator_batch(state, labels, cut_outs, labels)
            (steps.encoder_step if state.step < 2 else steps.generator_step)(state, batch)
            state.advance()
        return state.state_dict()

    whole, halves = taken(4), taken(3, taken(1))
    for part in ("generator", "generator_ema"):
        assert all(torch.equal(value, halves[part][key]) for key, value in whole[part].items())


def test_a_run_from_before_latents_were_whitened_goes_on(build, tmp_path):
    state, path = build(), tmp_path / "model.pt"
    saved = state.checkpoint()
    for name in ("generator", "generator_ema"):
        for buffer in dict(state.generator.encoder.named_buffers()):
            del saved.state[name][f"encoder.{buffer}"]
    save_checkpoint(path, saved)
    other = build()
    load_checkpoint(path, other)
    assert torch.equal(other.generator.encoder.whitening, torch.eye(state.generator.latent_dim))
    assert torch.equal(other.generator.encoder.hidden.weight, state.generator.encoder.hidden.weight)
