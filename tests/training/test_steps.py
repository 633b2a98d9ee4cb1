"""The two halves of a training step: who learns, who does not, and what never reaches a weight."""

import dataclasses
import math

from graf.config.advice import advice
from graf.models.discriminators import convolutional
from graf.models.discriminators.penalties import Penalised, r1_penalty
from graf.models.discriminators.projected import ProjectedDiscriminator
from graf.runtime.out_of_memory import OutOfMemory
from graf.training import learn, losses
from graf.training import step as steps
from graf.training.inputs import discriminator_batch, generator_batch, sample_inputs
from graf.training.losses import discriminator_loss
from graf.training.state import Player, TrainState

import pytest
import torch
from halves import discriminator_step, generator_step

EVERYTHING = ("discriminator.condition=class_and_pose", "discriminator.label_loss=MCE")


@pytest.fixture
def build(smoke):
    def build(*overrides, n_classes=2, n_elevations=3):
        return TrainState(smoke(*overrides), torch.device("cpu"), n_classes, n_elevations)

    return build


def bytes_of(network):
    return {name: p.detach().numpy().tobytes() for name, p in network.named_parameters()}


def gradients(network):
    return {name: p.grad for name, p in network.named_parameters()}


def without_gradient(network):
    return [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


FILM = "nerf.conditioning=film"
FEW_IMAGES = ("discriminator.augment=true", "discriminator.reconstruction=1")
PROJECTED = "discriminator.architecture=projected"
MIXED = "discriminator.architecture=mixed"
CONCAT = ("nerf.conditioning=concat", "nerf.density_activation=relu", "nerf.netdepth=6")


@pytest.mark.parametrize(
    "overrides",
    [
        (*CONCAT, "nerf.use_viewdirs=true"),
        (*CONCAT, "nerf.use_viewdirs=false"),
        (FILM, "nerf.use_viewdirs=false"),
        (FILM, "nerf.use_viewdirs=true", "nerf.importance_samples_per_ray=4"),
        (FILM, "z_dist.dim_appearance=0"),
        ("z_dist.dim_appearance=0",),
        ("nerf.importance_samples_per_ray=4",),
        (*CONCAT, "nerf.use_viewdirs=true", "nerf.importance_samples_per_ray=4"),
        EVERYTHING,
        ("discriminator.norm=instance", "discriminator.spectral_norm=true", "discriminator.condition=none"),
        ("data.alpha=rgba", "training.reg_type=r1_r2"),
        ("data.alpha=rgba", *FEW_IMAGES),
        (PROJECTED, "data.alpha=rgba"),
        (MIXED, "data.alpha=rgba"),
        ("data.background_model=plane", "data.alpha=ignore", "nerf.importance_samples_per_ray=4"),
        (PROJECTED, "discriminator.condition=none", "training.gan_type=hinge", "training.reg_type=none"),
    ],
    ids=lambda overrides: " ".join(o.split(".")[-1] for o in overrides),
)
@pytest.mark.parametrize("use_amp", ["false", "true"])
def test_every_parameter_learns(build, cut_outs, labels, overrides, use_amp):
    state = build(*overrides, f"training.use_amp={use_amp}")
    before, photographs = (bytes_of(state.generator), bytes_of(state.discriminator)), cut_outs[:, : state.config.data.channels]
    for _ in range(4):  # the first steps' logits are near 0, and in bfloat16 real and fake cancel in the last bias
        discriminator_step(state, photographs, labels, labels)
    generator_step(state, labels, photographs, labels)
    assert without_gradient(state.discriminator) == []
    assert without_gradient(state.generator) == []
    for network, old in zip((state.generator, state.discriminator), before, strict=True):
        assert [name for name, value in bytes_of(network).items() if value == old[name]] == []


def test_the_discriminators_step_leaves_the_generator_alone(build, photographs, labels):
    state = build()
    weights, averaged = bytes_of(state.generator), bytes_of(state.generator_ema)
    discriminator_step(state, photographs, labels, labels)
    assert all(gradient is None for gradient in gradients(state.generator).values())
    assert bytes_of(state.generator) == weights
    assert bytes_of(state.generator_ema) == averaged


def test_the_generators_step_leaves_the_discriminator_alone(build, photographs, labels):
    state = build()
    discriminator_step(state, photographs, labels, labels)
    weights = bytes_of(state.discriminator)
    before = {name: gradient.clone() for name, gradient in gradients(state.discriminator).items()}
    generator_step(state, labels)
    assert bytes_of(state.discriminator) == weights
    for name, gradient in gradients(state.discriminator).items():
        assert torch.equal(gradient, before[name]), name
    assert all(p.requires_grad for p in state.discriminator.parameters())


def test_a_generator_step_that_fails_leaves_a_discriminator_that_can_learn(build, labels, monkeypatch):
    state = build()

    def out_of_memory(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(steps, "generator_loss", out_of_memory)
    with pytest.raises(OutOfMemory, match="step 1: out of memory"):
        generator_step(state, labels)
    assert all(p.requires_grad for p in state.discriminator.parameters())


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("use_amp", ["false", "true"])
@pytest.mark.parametrize(
    "overrides",
    [
        EVERYTHING,
        ("discriminator.norm=instance", "discriminator.spectral_norm=true", "discriminator.condition=none"),
        (*CONCAT, "nerf.importance_samples_per_ray=4", "nerf.checkpoint_rays=100"),
        (PROJECTED,),
        (MIXED,),
    ],
    ids=("default", "spectral norm", "concat", "projected", "mixed"),
)
def test_threads_add_up_the_gradients_of_their_rows(build, photographs, labels, three_threads, monkeypatch, overrides, use_amp):
    """Two threads of three take two of four images each: equal to the last bit to two parts in turn with half the rays."""

    states = [build(*overrides, f"training.use_amp={use_amp}") for _ in range(2)]
    # Spectral norms are computed by all threads at once, and their sums differ with the number of threads on some CPUs
    monkeypatch.setattr(convolutional.ConditionedDiscriminator, "update_spectral_norms", lambda _: None)

    def gradients_of_a_step(parts):
        state = states.pop()
        state.sizes.images, state.sizes.rays = state.sizes.images // parts, state.sizes.rays // parts
        stats = discriminator_step(state, photographs, labels, labels) | generator_step(state, labels, photographs, labels)
        return stats, gradients(state.discriminator), gradients(state.generator)

    threaded = gradients_of_a_step(1)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)
    for found, expected in zip(threaded, gradients_of_a_step(2), strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


def test_memory_that_runs_out_in_a_thread_leaves_no_gradient(build, photographs, labels, three_threads, monkeypatch):
    state, rows, loss = build(), [], steps.generator_loss

    def short_of_memory(fake, *args):
        rows.append(len(fake))
        if rows.count(2) == 2:  # one thread of the first attempt has ended well
            rows.append("out of memory")
            raise torch.OutOfMemoryError
        return loss(fake, *args)

    monkeypatch.setattr(steps, "generator_loss", short_of_memory)
    monkeypatch.setattr(state.sizes, "shrink", lambda: False)
    with pytest.raises(OutOfMemory):
        generator_step(state, labels, photographs, labels)
    assert rows == [2, 2, "out of memory"]
    assert all(gradient is None for gradient in gradients(state.generator).values())
    assert torch.get_num_threads() == 3
    monkeypatch.undo()
    generator_step(state, labels, photographs, labels)
    assert without_gradient(state.generator) == []


@pytest.mark.parametrize("reg_type", ["r1", "none"])
def test_nan_in_the_photographs_reaches_no_weight(build, photographs, labels, reg_type):
    state = build(f"training.reg_type={reg_type}")
    discriminator_step(state, photographs, labels, labels)  # the optimizer has its moments
    weights, moments = bytes_of(state.discriminator), str(state.optimizer_d.state_dict())
    photographs[2, 1, 5, 7] = torch.nan
    stats = discriminator_step(state, photographs, labels, labels)
    assert not torch.isfinite(stats["grad_norm_d"])
    assert bytes_of(state.discriminator) == weights
    assert str(state.optimizer_d.state_dict()) == moments
    photographs[2, 1, 5, 7] = 0
    assert torch.isfinite(discriminator_step(state, photographs, labels, labels)["grad_norm_d"])
    assert bytes_of(state.discriminator) != weights


def test_a_generator_whose_loss_is_not_finite_keeps_its_weights(build, labels):
    state = build()
    with torch.no_grad():
        next(state.discriminator.parameters()).fill_(torch.inf)
    weights, averaged = bytes_of(state.generator), bytes_of(state.generator_ema)
    stats = generator_step(state, labels)
    assert not torch.isfinite(stats["grad_norm_g"])
    assert bytes_of(state.generator) == weights
    assert all(torch.isfinite(p).all() for p in state.generator_ema.parameters())
    assert averaged.keys() == weights.keys()


@pytest.mark.parametrize(
    ("gradient", "stat"),
    [(1.0, torch.nan), (1e30, 0.0), (torch.inf, 0.0)],
    ids=["a stat", "the norm of finite gradients", "a gradient"],
)
def test_the_scaler_is_told_of_every_skipped_step(build, gradient, stat):
    """A skipped step halves the scale; two good ones in a row double it."""
    state = build()
    network, scaler = state.discriminator, torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)

    def step(gradient, stat):
        scaler.scale(torch.zeros(()))
        for parameter in network.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        player = Player("grad_norm_d", network, state.optimizer_d, scaler)
        norm = learn.clip_and_step(state, player, torch.tensor([stat]))
        return bool(torch.isfinite(norm)), scaler.get_scale()

    assert step(1.0, 0.0) == (True, 16)
    weights = bytes_of(network)
    assert [step(gradient, stat) for _ in range(2)] == [(False, 8), (False, 4)]
    assert bytes_of(network) == weights
    assert [step(1.0, 0.0) for _ in range(2)] == [(True, 4), (True, 8)]
    assert bytes_of(network) != weights


def test_stats_are_detached_scalars(build, photographs, labels):
    state = build(*EVERYTHING)
    stats = discriminator_step(state, photographs, labels, labels) | generator_step(state, labels)
    assert set(stats) == {
        "loss_d", "logit_real", "logit_fake", "accuracy_d", "sample_std", "real_std", "loss_label_d", "penalty", "grad_norm_d",
        "loss_g", "opacity", "loss_label_g", "grad_norm_g",
    }  # fmt: skip
    for value in stats.values():
        assert value.shape == ()
        assert not value.requires_grad
        assert torch.isfinite(value)


def test_the_gradient_is_that_of_the_loss_written_out(build, photographs, labels, monkeypatch):
    """Loss, label loss and scaled penalty by hand, on the patches that the step drew."""
    options = ("training.reg_param=2", "training.reg_every=3", "discriminator.label_weight=0.5")
    state = build(*EVERYTHING, *options)
    state.step = 2  # the third is penalised
    seen = []
    forward = state.discriminator.forward
    monkeypatch.setattr(state.discriminator, "forward", lambda *args: (seen.append(args[0].detach()), forward(*args))[1])
    state.optimizer_d.step = lambda *_, **__: None
    discriminator_step(state, photographs, labels, labels)
    actual = {name: gradient.clone() for name, gradient in gradients(state.discriminator).items()}

    (real, fake), regularised = seen[0].split(len(photographs)), seen[1]
    torch.testing.assert_close(real, photographs, atol=1e-5, rtol=0)  # a patch at scale 1 is the photograph
    assert torch.equal(regularised, real)
    monkeypatch.setattr(state.discriminator, "forward", forward)
    real_scores, fake_scores = state.discriminator(real, labels), state.discriminator(fake, labels)
    cross = torch.nn.functional.cross_entropy
    loss = discriminator_loss(real_scores.logits, fake_scores.logits, "standard")
    loss = loss + 0.5 * cross(real_scores.class_logits, labels.class_index)
    loss = loss + 0.5 * cross(real_scores.elevation_logits, labels.elevation_index)
    loss = loss + 2 * 3 * r1_penalty(state.discriminator, real, labels)
    expected = torch.autograd.grad(loss, list(state.discriminator.parameters()))
    for (name, gradient), wanted in zip(actual.items(), expected, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-4, msg=name)


ALPHA = {
    "refined": ("refine", ("discriminator.blur_steps=0",)),
    "dual": ("refine", ("discriminator.blur_steps=0", "discriminator.dual=true")),
    "consistency": ("refine", ("ccsr.mode=consistency", "ccsr.judge=restored", "ray_sampler.rays_per_patch=256")),
    "fine network": ("refine", ("nerf.importance_samples_per_ray=4", "discriminator.blur_steps=0")),
    "mirrored": ("smoke", ("discriminator.hflip=true", "discriminator.condition=none")),
    "wgan_gp": ("smoke", ("training.gan_type=wgan", "training.reg_type=wgan_gp")),
}


@pytest.mark.parametrize("name", ALPHA)
def test_the_discriminator_sees_opacity_of_both_kinds(request, cut_outs, labels, monkeypatch, name):
    """Behind the colours: that of photographs, and that of the rendering that the colours are of."""
    fixture, overrides = ALPHA[name]
    config = request.getfixturevalue(fixture)("data.alpha=rgba", "discriminator.blur_steps=0", *overrides)
    state, seen, rendered, mirrored = TrainState(config, torch.device("cpu"), 2, 3), [], [], []
    render, judged = steps._render, steps._seen_by_discriminator
    monkeypatch.setattr(steps, "_render", lambda *given: (rendered.append(render(*given)), rendered[-1])[1])
    monkeypatch.setattr(steps, "_seen_by_discriminator", lambda *given: (mirrored.append(given[2].mirrored), judged(*given))[1])
    state.discriminator.register_forward_pre_hook(lambda network, given: seen.append(given[0].detach()[:, -1:]))
    discriminator_step(state, cut_outs, labels, labels)
    generator_step(state, labels)
    refined = config.ccsr.mode == "refine"

    def expected(opacity, turned):
        alpha = torch.nn.functional.interpolate(2 * opacity - 1, 16, mode="bilinear") if refined else 2 * opacity - 1
        return torch.where(turned, alpha.flip(3), alpha)

    photographed = state.generator.projection.downsample(cut_outs[:, 3:]) if refined else cut_outs[:, 3:]
    real, fake = seen[0].tensor_split([len(cut_outs)])
    torch.testing.assert_close(real, expected((photographed + 1) / 2, mirrored[0]), atol=1e-5, rtol=0)
    of_discriminator, of_generator = [
        [opacity.detach() for opacity in (r.opacity, r.coarse_opacity) if opacity is not None] for r in rendered
    ]
    fakes = torch.cat([expected(opacity, mirrored[1]) for opacity in of_discriminator])
    torch.testing.assert_close(fake, fakes, atol=1e-5, rtol=0)
    for actual, opacity in zip(seen[-len(of_generator) :], of_generator, strict=True):
        torch.testing.assert_close(actual, expected(opacity, mirrored[-1]), atol=1e-5, rtol=0)
    assert name != "mirrored" or 0 < torch.cat(mirrored).float().mean() < 1


@pytest.mark.parametrize("fine", ["nerf.importance_samples_per_ray=0", "nerf.importance_samples_per_ray=4"])
def test_opacity_alone_teaches_the_fields(refine, labels, fine):
    """A discriminator blind to colour teaches density, the coarse network's too, and not colour."""
    state = TrainState(refine("data.alpha=rgba", "ccsr.drift_weight=0", fine), torch.device("cpu"), 2, 3)
    with torch.no_grad():
        state.discriminator.main[0].weight[:, :3] = 0
    generator_step(state, labels)
    for field in (state.generator.field, state.generator.field_fine):
        assert field is None or field.density.weight.grad.abs().sum() > 0
        assert field is None or field.colour.weight.grad is None or field.colour.weight.grad.abs().sum() == 0


def test_opacity_in_parts_of_a_batch_gives_the_same_gradients(refine, cut_outs, labels):
    def gradients_in_parts(at_once):
        state = TrainState(refine("data.alpha=rgba", "training.lr_d=1e-12"), torch.device("cpu"), 2, 3)
        state.sizes.images = at_once
        discriminator_step(state, cut_outs, labels, labels)
        generator_step(state, labels)
        return gradients(state.discriminator) | gradients(state.generator)

    whole, parts = gradients_in_parts(4), gradients_in_parts(3)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_rays_have_the_noise_that_was_sampled_for_the_step(build, photographs, labels, monkeypatch):
    state, given = build("nerf.perturb=true", "nerf.raw_noise_std=1", "discriminator.condition=none"), []
    render_rays = state.generator.render_rays
    monkeypatch.setattr(state.generator, "render_rays", lambda *rays: (given.append(rays[-1]), render_rays(*rays))[1])
    batches = discriminator_batch(state, labels, photographs, labels), generator_batch(state, labels, photographs, labels)
    for batch, half in zip(batches, (steps.discriminator_step, steps.generator_step), strict=True):
        half(state, batch)
        for kind in ("jitter", "density_noise"):
            rays = torch.cat([getattr(noise, kind).flatten() for noise in given])
            assert torch.equal(rays.sort().values, getattr(batch.fake_inputs.noise, kind).flatten().sort().values)
        given.clear()


def test_the_penalty_comes_every_so_many_steps(build, photographs, labels):
    state = build("training.reg_every=3")
    applied = []
    for step in range(7):
        state.step = step
        applied.append("penalty" in discriminator_step(state, photographs, labels, labels))
    assert applied == [False, False, True, False, False, True, False]  # the third, the sixth: as rows of metrics.jsonl come


RELATIVISTIC = ("training.gan_type=relativistic", "training.reg_type=r1_r2")
PAIRED = {
    "shifted patches": (
        "smoke",
        ("ray_sampler.random_shift=true", "ray_sampler.random_scale=true", "ray_sampler.min_scale=0.5"),
    ),
    "mirrored": ("smoke", ("discriminator.hflip=true", "discriminator.condition=none")),
    "refined, dual, opacity": ("refine", ("discriminator.dual=true", "data.alpha=rgba")),
    "restored": ("refine", ("ccsr.mode=consistency", "ccsr.judge=restored", "ray_sampler.rays_per_patch=256")),
}


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("posed", [True, False])
def test_the_generator_is_compared_with_the_photograph_of_the_same_row(request, cut_outs, labels, monkeypatch, name, posed):
    """It is cut and mirrored as the fake is, and both have its class and camera; an unknown one is drawn."""
    fixture, overrides = PAIRED[name]
    condition = () if posed else ("discriminator.condition=none",)
    config = request.getfixturevalue(fixture)(*RELATIVISTIC, *overrides, *condition)
    state, judged, drawn = TrainState(config, torch.device("cpu"), 2, 3), [], []
    images = cut_outs[:, : config.data.channels]
    forward, loss = state.discriminator.forward, steps.generator_objective

    def judge(*given):
        judged.append((given, forward(*given)))
        return judged[-1][1]

    monkeypatch.setattr(state.discriminator, "forward", judge)
    monkeypatch.setattr(steps, "generator_objective", lambda *given: (drawn.append(given[1].fake_inputs), loss(*given))[1])
    own = dataclasses.replace(labels[[1, 0, 3, 2]], pose_c2w=labels.pose_c2w[[3, 2, 1, 0]] if posed else None)
    stats = generator_step(state, labels, images, own)
    ((seen, its_labels), real), ((_, fake_labels), fake) = judged
    assert not real.logits.requires_grad and fake.logits.requires_grad
    assert torch.equal(its_labels.class_index, own.class_index) and torch.equal(fake_labels.class_index, own.class_index)
    assert torch.equal(fake_labels.pose_c2w, own.pose_c2w if posed else labels.pose_c2w)
    assert stats["loss_g"].item() == pytest.approx(torch.nn.functional.softplus(real.logits - fake.logits).mean().item())
    if name != "restored":
        (draws,) = drawn
        patches = steps.cut_patch(images, draws.grid)
        alpha = patches[:, 3:] if config.data.alpha == "rgba" else None
        projection = state.generator.projection
        blur = steps.faded_sigma(config.discriminator, 0)
        expected = steps.discriminator_input(patches[:, :3], None, alpha, config.discriminator, projection, blur)
        assert torch.equal(seen, torch.where(draws.mirrored, expected.flip(3), expected))


@pytest.mark.parametrize("gan_type", ["standard", "relativistic"])
@pytest.mark.parametrize("posed", [True, False])
def test_the_discriminator_compares_pairs_of_one_class_and_camera(smoke, photographs, labels, monkeypatch, gan_type, posed):
    """R3GAN does so. Other losses judge each image by itself, and fakes have the labels that were sampled for them."""
    condition = "class_and_pose" if posed else "class"
    config, judged = smoke(f"training.gan_type={gan_type}", f"discriminator.condition={condition}"), []
    state = TrainState(config, torch.device("cpu"), 2, 3)
    own = dataclasses.replace(labels[[1, 0, 3, 2]], pose_c2w=labels.pose_c2w[[3, 2, 1, 0]] if posed else None)
    rendered, render = [], steps._render
    monkeypatch.setattr(steps, "_render", lambda state, draws: (rendered.append(draws.labels), render(state, draws))[1])
    state.discriminator.register_forward_pre_hook(lambda network, given: judged.append(given[1]))
    stats = discriminator_step(state, photographs, own, labels)
    paired = gan_type == "relativistic"
    real, fake = judged[:2] if paired else (judged[0][:4], judged[0][4:])
    assert torch.equal(real.class_index, own.class_index)
    assert torch.equal(fake.class_index, own.class_index if paired else labels.class_index)
    assert torch.equal(fake.elevation_index, own.elevation_index if paired else labels.elevation_index)
    assert torch.equal(rendered[0].pose_c2w, own.pose_c2w if paired and posed else labels.pose_c2w)
    if paired or posed:  # other fakes are scored beside real images, whose cameras are not known
        assert torch.equal(rendered[0].pose_c2w, fake.pose_c2w)
    else:
        assert fake.pose_c2w is None
    assert stats["accuracy_d"] in (0, 0.25, 0.5, 0.75, 1)


@pytest.mark.parametrize(
    "overrides",
    [(), FEW_IMAGES, ("data.alpha=rgba", "nerf.importance_samples_per_ray=4", "ray_sampler.random_shift=true")],
)
def test_photographs_in_parts_of_a_batch_give_the_same_gradients(refine, cut_outs, labels, overrides):
    def gradients_in_parts(at_once):
        state = TrainState(refine(*RELATIVISTIC, "training.lr_d=1e-12", *overrides), torch.device("cpu"), 2, 3)
        state.sizes.images = at_once
        images = cut_outs[:, : state.config.data.channels]
        discriminator_step(state, images, labels, labels)
        generator_step(state, labels[[1, 0, 3, 2]], images, labels)
        return gradients(state.discriminator) | gradients(state.generator)

    whole, parts = gradients_in_parts(4), gradients_in_parts(3)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_what_is_painted_from_features_reaches_the_discriminator_and_its_log(build, cut_outs, labels):
    """Only real images count: the loss falls as the decoders learn them, and the generator's step has none."""
    state = build("data.alpha=rgba", "discriminator.reconstruction=1", "training.lr_d=0.01")
    plain = cut_outs[:, :, :1, :1].expand_as(cut_outs)
    painted = [discriminator_step(state, plain, labels, labels)["loss_reconstruct"].item() for _ in range(20)]
    assert painted[-1] < 0.7 * painted[0]
    assert "loss_reconstruct" not in generator_step(state, labels)


def test_both_kinds_are_augmented_at_places_of_their_own(build, cut_outs, labels, monkeypatch):
    state, places = build("data.alpha=rgba", "discriminator.augment=true"), []
    augmented = losses.augmented
    monkeypatch.setattr(losses, "augmented", lambda seen, where: (places.append(where), augmented(seen, where))[1])
    discriminator_step(state, cut_outs, labels, labels)
    generator_step(state, labels)
    assert len(torch.cat(places).unique()) == 3 * 4 * 4  # real images, fakes, and those of the generator's step


def test_where_wgan_gp_looks_does_not_depend_on_what_is_mirrored(build, labels):
    state = build("discriminator.hflip=true", "discriminator.condition=none")
    drawn = sample_inputs(state, labels[torch.arange(400) % 4], rendered=False)
    for some in (drawn.mirrored, ~drawn.mirrored):
        assert some.float().mean().item() == pytest.approx(0.5, abs=0.1)
        assert drawn.interpolation[some].mean().item() == pytest.approx(0.5, abs=0.1)


def test_r1_r2_is_the_same_penalty_at_photographs_and_at_fakes(build, photographs, labels):
    state, seen = build(*RELATIVISTIC), []
    handle = state.discriminator.register_forward_pre_hook(lambda network, given: seen.append((given[0].detach(), given[1])))
    state.optimizer_d.step = lambda *_, **__: None
    stats = discriminator_step(state, photographs, labels, labels[[1, 0, 3, 2]])
    handle.remove()
    expected = sum(r1_penalty(state.discriminator, images, of) for images, of in seen[:2])
    assert stats["penalty"].item() == pytest.approx(expected.item(), rel=1e-5) and expected > 0
    assert torch.equal(seen[2][0], seen[0][0]) and torch.equal(seen[3][0], seen[1][0])


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("training.reg_type=r1",), "r1_penalty"),
        (("training.reg_type=r1_r2",), "r1_penalty, r1_penalty"),
        (("training.reg_type=wgan_gp",), "wgan_gp_penalty"),
        (("training.reg_type=none",), None),
        ((PROJECTED, "training.reg_type=r1"), "of features"),
        ((PROJECTED, "training.reg_type=none"), None),
        ((MIXED,), "r1_penalty, of features"),
    ],
)
def test_the_config_names_the_penalty_and_it_is_computed_in_float32(build, photographs, labels, monkeypatch, overrides, name):
    state, called = build(*overrides, "training.use_amp=true"), []
    penalties = {"r1_penalty": convolutional, "wgan_gp_penalty": convolutional, "gradient_penalty": ProjectedDiscriminator}
    for penalty, owner in penalties.items():
        real = getattr(owner, penalty)

        def spy(*args, penalty=penalty, real=real):
            given = [x for arg in args for x in (arg if isinstance(arg, Penalised) else [arg])]
            images = next(x for x in given if isinstance(x, torch.Tensor))
            called.append((penalty.replace("gradient_penalty", "of features"), torch.is_autocast_enabled("cpu"), images.dtype))
            return real(*args)

        monkeypatch.setattr(owner, penalty, spy)
    discriminator_step(state, photographs, labels, labels)
    assert called == ([(penalty, False, torch.float32) for penalty in name.split(", ")] if name else [])


@pytest.mark.parametrize("critics", [(PROJECTED,), (MIXED,)], ids=("projected", "mixed"))
def test_the_heads_penalty_is_at_the_features_of_the_real_images_that_were_scored(
    build, photographs, labels, monkeypatch, critics
):
    state, seen, penalties = build(*critics), [], []
    real_features, real_penalty = ProjectedDiscriminator.features, ProjectedDiscriminator.gradient_penalty

    def features(heads, images):
        seen.append(images)
        return real_features(heads, images)

    def gradient_penalty(heads, *given):
        penalties.append((heads, real_penalty(heads, *given)))
        return penalties[-1][1]

    monkeypatch.setattr(ProjectedDiscriminator, "features", features)
    monkeypatch.setattr(ProjectedDiscriminator, "gradient_penalty", gradient_penalty)
    state.optimizer_d.step = lambda *_, **__: None
    state.discriminator.update_spectral_norms = lambda: None
    discriminator_step(state, photographs, labels, labels[[1, 0, 3, 2]])
    assert [len(images) for images in seen] == [2 * len(photographs)]  # no second time
    (heads, penalty), real = penalties[0], seen[0][: len(photographs)]
    at = Penalised(real, None, labels, None, None, tuple(real_features(heads, real)))
    again = real_penalty(heads, "r1", at)
    assert penalty.item() == pytest.approx(again.item(), rel=1e-4) and penalty > 0


def test_a_penalty_that_is_declared_but_not_written_is_refused(build, labels):
    images = torch.zeros(2, 3, 16, 16)
    with pytest.raises(NotImplementedError, match="training.reg_type: r3 has no penalty in Discriminator"):
        build().discriminator.gradient_penalty("r3", Penalised(images, images, labels, labels, torch.zeros(2, 1, 1, 1), ()))


def test_the_losses_of_mixed_critics_are_added_and_the_generators_is_weighted(build, photographs, labels):
    def losses(weight):
        state = build(MIXED, f"discriminator.projected_weight={weight}", "training.reg_type=none")
        return generator_step(state, labels, photographs, labels)["loss_g"], discriminator_step(
            state, photographs, labels, labels
        )

    (none, _), (half, stats), (one, _) = (losses(weight) for weight in (0, 0.5, 1))
    torch.testing.assert_close(half - none, (one - none) / 2)
    assert one > none > 0 and stats["loss_d_projected"] > 0 and 0 <= stats["accuracy_d_projected"] <= 1
    alone = build("training.reg_type=none")
    alone.discriminator.load_state_dict(build(MIXED, "training.reg_type=none").discriminator.graf.state_dict())
    torch.testing.assert_close(generator_step(alone, labels, photographs, labels)["loss_g"], none)


@pytest.mark.parametrize(
    ("learner", "overrides"),
    [
        ("generator", (*EVERYTHING, "discriminator.label_weight={}")),
        ("generator", ("data.alpha=rgba", "encoder.first_steps=0", "encoder.weight={}")),
        ("discriminator", ("data.alpha=rgba", "discriminator.reconstruction={}")),
    ],
    ids=("labels", "encoder", "reconstruction"),
)
def test_a_loss_counts_by_its_weight(build, cut_outs, labels, learner, overrides):
    def gradient(weight):
        state = build(*(override.format(weight) for override in overrides))
        images = cut_outs[:, : state.config.data.channels]
        if learner == "generator":
            generator_step(state, labels, images, labels)
        else:
            discriminator_step(state, images, labels, labels)
        return torch.cat([p.grad.flatten() for p in getattr(state, learner).parameters()])

    half, one, two = map(gradient, (0.5, 1, 2))
    assert (two - one - 2 * (one - half)).norm() < 1e-3 * (one - half).norm()


@pytest.mark.parametrize(("settings", "weight"), [((), 2), (("encoder.first_steps=3", "encoder.weight=5"), 4)])
def test_heads_weigh_more_after_an_encoders_first_steps(build, photographs, labels, settings, weight):
    def loss(*more):
        state = build(MIXED, *settings, "training.reg_type=none", "discriminator.low_res_steps=0", *more)
        state.step = 3
        return generator_step(state, labels, photographs, labels)["loss_g"]

    assert loss() == loss(f"discriminator.projected_weight={weight}") > loss("discriminator.projected_weight=1")


def test_mixed_precision_is_the_discriminators_too_but_for_its_penalty(build, photographs, labels):
    state, seen = build("training.use_amp=true", "training.amp_dtype=bfloat16"), []
    first = next(m for m in state.discriminator.modules() if isinstance(m, torch.nn.Conv2d))
    first.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    discriminator_step(state, photographs, labels, labels)
    assert seen == [torch.bfloat16, torch.float32]  # photographs with fakes, and photographs for R1
    seen.clear()
    generator_step(state, labels)
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("scale", [1, 512])
@pytest.mark.parametrize("limit", [0.01, 0])
def test_gradients_are_clipped_to_their_norm_without_the_scalers_factor(build, photographs, labels, limit, scale):
    state = build(f"training.grad_clip={limit}")
    state.scaler_d, state.scaler_g = (torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1) for _ in range(2))
    stats = discriminator_step(state, photographs, labels, labels) | generator_step(state, labels)
    for network, key in ((state.discriminator, "grad_norm_d"), (state.generator, "grad_norm_g")):
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in network.parameters()))
        assert stats[key] > 0.01
        assert norm == pytest.approx(limit or stats[key].item(), rel=1e-3)


def test_the_average_follows_each_generator_step(build, labels):
    state = build()
    start = bytes_of(state.generator_ema)
    old = {name: p.detach().clone() for name, p in state.generator_ema.named_parameters()}
    generator_step(state, labels)
    assert bytes_of(state.generator_ema) != start
    for name, p in state.generator_ema.named_parameters():  # beta = 1 / 10 at step 0
        torch.testing.assert_close(p, 0.1 * old[name] + 0.9 * state.generator.state_dict()[name])


def test_spectral_norms_follow_each_discriminator_step(build, photographs, labels):
    state = build("discriminator.spectral_norm=true", "discriminator.condition=none")
    before = {name: buffer.clone() for name, buffer in state.discriminator.named_buffers()}
    discriminator_step(state, photographs, labels, labels)
    assert any(not torch.equal(buffer, before[name]) for name, buffer in state.discriminator.named_buffers())


def test_unposed_photographs_need_no_cameras(build, photographs, labels):
    state, unposed = build("discriminator.condition=none"), dataclasses.replace(labels, pose_c2w=None)
    assert torch.isfinite(discriminator_step(state, photographs, unposed, labels)["loss_d"])


def test_the_steps_leave_torchs_global_random_state_alone(build, photographs, labels):
    state = build("ray_sampler.random_shift=true", "nerf.raw_noise_std=1", "training.reg_type=wgan_gp")
    before = torch.get_rng_state()
    discriminator_step(state, photographs, labels, labels)
    generator_step(state, labels)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("gan_type", ["standard", "wgan", "hinge", "relativistic"])
def test_a_discriminator_learns_to_tell_white_from_what_is_drawn(build, labels, gan_type):
    state = build(f"training.gan_type={gan_type}", "data.background=black", "training.lr_d=0.002")
    white = torch.ones(4, 3, 16, 16)
    first = discriminator_step(state, white, labels, labels)
    for _ in range(15):
        last = discriminator_step(state, white, labels, labels)
    margins = [float(stats["logit_real"] - stats["logit_fake"]) for stats in (first, last)]
    assert margins[1] > margins[0] + 0.2


@pytest.mark.parametrize("judge", ["rendered", "restored"])
@pytest.mark.parametrize("fine", ["nerf.importance_samples_per_ray=0", "nerf.importance_samples_per_ray=4"])
@pytest.mark.parametrize("posed", [True, False])
def test_the_discriminator_sees_both_kinds_restored_or_neither(refine, photographs, labels, monkeypatch, judge, fine, posed):
    condition = "class_and_pose" if posed else "none"
    consistency = ("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256", f"discriminator.condition={condition}")
    state = TrainState(refine(*consistency, f"ccsr.judge={judge}", fine), torch.device("cpu"), 2, 3)
    seen, mark = [], 7.0
    restore = state.generator.restore
    monkeypatch.setattr(state.generator, "restore", lambda *arguments: 0 * restore(*arguments) + mark)
    state.discriminator.register_forward_pre_hook(lambda network, inputs: seen.append(inputs[0].detach().clone()))
    discriminator_step(state, photographs, labels if posed else dataclasses.replace(labels, pose_c2w=None), labels)
    generator_step(state, labels)
    assert len(seen) >= 3  # photographs with fakes, photographs for R1, and the generator's fakes
    assert all(torch.all(images == mark) == (judge == "restored") for images in seen)
    assert judge == "restored" or not any(torch.any(images == mark) for images in seen)


def test_the_perceptual_term_is_part_of_the_consistency_loss(refine, labels):
    def loss(weight):
        overrides = ("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256", "discriminator.condition=none")
        state = TrainState(refine(*overrides, f"ccsr.perceptual_weight={weight}"), torch.device("cpu"))
        assert (state.perception is None) == (weight == 0)
        return generator_step(state, labels)["loss_ccsr"].item()

    assert loss(1) > loss(0.5) > loss(0)


def test_early_on_the_discriminator_sees_both_kinds_blurred_and_the_low_images_sharp(refine, photographs, labels):
    def seen(blur_steps):
        overrides = ("discriminator.dual=true", "discriminator.blur_sigma=2", f"discriminator.blur_steps={blur_steps}")
        state = TrainState(refine(*overrides), torch.device("cpu"), 2, 3)
        inputs = []
        state.discriminator.register_forward_pre_hook(lambda network, given: inputs.append(given[0].detach().clone()))
        discriminator_step(state, photographs, labels, labels)
        return inputs[0].split(len(photographs))  # from the fakes

    for sharp, blurred in zip(seen(0), seen(1000), strict=True):
        edges, smooth = (images[:, :3].diff(dim=-1).abs().mean() for images in (sharp, blurred))
        assert smooth < 0.5 * edges
        torch.testing.assert_close(blurred[:, 3:], sharp[:, 3:])


@pytest.mark.parametrize("name", ["smoke", "refine"])
def test_low_res_steps_have_half_as_many_pixels_along_each_side(request, cut_outs, labels, name):
    overrides = "discriminator.low_res_steps=3", "data.alpha=rgba", "nerf.perturb=true"
    state = TrainState(request.getfixturevalue(name)(*overrides), torch.device("cpu"), 2, 3)
    seen = []
    state.discriminator.register_forward_pre_hook(lambda network, given: seen.append(given[0].detach()))
    for _ in range(4):
        discriminator_step(state, cut_outs, labels, labels)
        generator_step(state, labels)
        state.advance()
    sides = [images.shape[-1] for images in seen]
    assert sides == 3 * 3 * [8] + 3 * [16]  # photographs with fakes, photographs with R1, and fakes of the generator's step
    averaged = torch.nn.functional.avg_pool2d(cut_outs[:, :3], 2)
    torch.testing.assert_close(seen[0][: len(cut_outs), :3], averaged, atol=1e-5, rtol=0)
    assert all(torch.isfinite(value).all() for value in state.discriminator.state_dict().values())


@pytest.mark.parametrize("losses_of", [(), RELATIVISTIC], ids=("fakes alone", "pairs"))
def test_the_blur_is_as_wide_in_the_image_at_a_low_resolution(smoke, photographs, labels, monkeypatch, losses_of):
    overrides = *losses_of, "discriminator.low_res_steps=1", "discriminator.blur_steps=1000000", "discriminator.blur_sigma=1.5"
    state, given = TrainState(smoke(*overrides), torch.device("cpu"), 2, 3), []
    blurred = losses.blurred
    monkeypatch.setattr(losses, "blurred", lambda images, sigma: given.append(sigma) or blurred(images, sigma))
    for sigma in (0.75, 1.5):
        discriminator_step(state, photographs, labels, labels)
        generator_step(state, labels, photographs, labels)
        assert given == pytest.approx([sigma] * len(given)) and len(given) >= 3
        given.clear()
        state.advance()


@pytest.mark.parametrize(
    "overrides",
    [
        ("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256", "ccsr.scale_factor=8", "ccsr.judge=restored"),  # of 1 x 1
        ("ccsr.scale_factor=4", "ray_sampler.rays_per_patch=16", "discriminator.dual=true"),  # of 2 x 2 rays
        ("nerf.importance_samples_per_ray=4", "training.gan_type=wgan", "training.reg_type=wgan_gp"),
        ("ray_sampler.random_scale=true", "ray_sampler.min_scale=0.5", "discriminator.label_loss=MCE"),
        FEW_IMAGES,
        (PROJECTED,),
        (MIXED, "nerf.importance_samples_per_ray=4"),
    ],
    ids=("consistency", "16 rays", "fine", "patches", "few images", "projected", "mixed"),
)
def test_whatever_is_trained_has_a_low_resolution_at_first(refine, cut_outs, labels, overrides):
    state = TrainState(refine("discriminator.low_res_steps=1", "data.alpha=rgba", *overrides), torch.device("cpu"), 2, 3)
    for sides in ({8}, {16}):
        seen = set()
        hook = state.discriminator.register_forward_pre_hook(lambda _, given, seen=seen: seen.add(given[0].shape[-1]))
        stats = discriminator_step(state, cut_outs, labels, labels) | generator_step(state, labels, cut_outs, labels)
        hook.remove()
        state.advance()
        assert seen == sides
        assert all(torch.isfinite(value).all() for value in stats.values())


@pytest.mark.parametrize("more", [("training.use_amp=false",), ("training.use_amp=true",), (MIXED,)], ids=" ".join)
def test_a_state_is_continued_across_the_last_coarse_step(refine, cut_outs, labels, three_threads, more):
    overrides = "discriminator.low_res_steps=2", "data.alpha=rgba", *more

    def taken(n, saved=None):
        state = TrainState(refine(*overrides), torch.device("cpu"), 2, 3)
        if saved:
            state.load_state_dict(saved)
        for _ in range(n):
            discriminator_step(state, cut_outs, labels, labels)
            generator_step(state, labels)
            state.advance()
        return state.state_dict()

    whole, halves = taken(4), taken(3, taken(1))
    for part in ("generator", "generator_ema", "discriminator"):
        assert all(torch.equal(value, halves[part][key]) for key, value in whole[part].items())


@pytest.mark.parametrize(
    ("off", "keys"),
    [
        ("nerf.conditioning=triplane", ["nerf.netdepth=5", "nerf.multires=3"]),
        ("nerf.conditioning=concat", ["nerf.mapping_depth=5", "nerf.plane_size=16"]),
        ("nerf.conditioning=film", ["nerf.plane_channels=8", "nerf.synthesis_width=32", "nerf.multires_views=4"]),
        ("nerf.importance_samples_per_ray=0", ["nerf.netdepth_fine=5", "nerf.netwidth_fine=16"]),
        ("nerf.raw_noise_std=0", ["nerf.decrease_noise=false"]),
        ("data.background_model=none", ["z_dist.dim_background=16"]),
        ("ccsr.mode=consistency", ["ccsr.drift_weight=9", "ccsr.rrdb.nf=8"]),
        ("ccsr.mode=refine", ["ccsr.alpha_init=9", "ccsr.alpha_decay=1", "ccsr.judge=restored"]),
        ("ray_sampler.random_scale=false", ["ray_sampler.min_scale=0.5"]),
        ("discriminator.architecture=graf", ["discriminator.projected_weight=9", "discriminator.feature_size=128"]),
        ("discriminator.blur_steps=0", ["discriminator.blur_sigma=9"]),
        ("discriminator.label_loss=none", ["discriminator.label_weight=9"]),
        ("training.anneal=none", ["training.anneal_lr=0.5", "training.anneal_reg=0.5", "training.anneal_steps=3"]),
        ("training.anneal=r3gan", ["training.lr_anneal=0.1"]),
        ("training.reg_type=none", ["training.reg_param=9", "training.reg_every=3"]),
        ("training.use_amp=false", ["training.amp_dtype=bfloat16"]),
    ],
)
def test_a_step_reads_no_key_of_which_advice_says_so(refine, photographs, labels, off, keys):
    patch = ["ray_sampler.rays_per_patch=256"] if "consistency" in off else []
    plain, changed = refine(*patch, off), refine(*patch, off, *keys)
    told = "".join(advice(changed, plain))
    assert all(key.partition("=")[0] in told for key in keys), told
    weights = []
    for config in (plain, changed):
        state = TrainState(config, torch.device("cpu"), n_classes=2, n_elevations=3)
        discriminator_step(state, photographs, labels, labels)
        generator_step(state, labels, photographs, labels)
        weights.append((bytes_of(state.generator), bytes_of(state.discriminator)))
    assert weights[0] == weights[1]
