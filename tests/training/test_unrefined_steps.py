"""The last steps of a run, which render the field at all pixels: when they are, what they teach, what comes of them."""

import graf
from graf.checkpoints.checkpoint import save_checkpoint
from graf.checkpoints.export import write_export
from graf.config import load_config
from graf.data import build_dataset, resolve
from graf.errors import ConfigError
from graf.models.generator import Generator
from graf.training import step as steps
from graf.training.inputs import generator_batch
from graf.training.state import TrainState, load_checkpoint

import pytest
import torch
from halves import discriminator_step, generator_step

CPU = torch.device("cpu")
LAST_TWO = ("training.max_steps=5", "ccsr.unrefined_steps=2", "ccsr.learns_from=photographs", "encoder.weight=10")


@pytest.fixture
def build(refine):
    return lambda *overrides: TrainState(refine(*LAST_TWO, "data.alpha=rgba", *overrides), CPU, 2, 3)


def copies(network):
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def changed(network, before):
    return {name.split(".")[0] for name, p in network.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), 200),  # half of 4,900 - 4,000 - 500
        (("ccsr.unrefined_steps=7",), 7),
        (("ccsr.unrefined_steps=7", "ccsr.mode=none", "ray_sampler.rays_per_patch=4096"), 0),
        (("encoder.first_steps=0",), 0),
        (("training.max_steps=4000",), 0),
        (("data.imsize=128", "ray_sampler.rays_per_patch=4096"), 0),
        (("data.background_model=plane",), 0),
        (("ccsr.backbone=rrdb",), 0),
        (("discriminator.dual=true", "discriminator.architecture=graf"), 0),
    ],
)
def test_half_of_the_whole_steps_are_not_refined(overrides, expected):
    assert load_config(None, overrides).unrefined_steps == expected


def test_the_defaults_rates_fall_in_its_last_steps():
    assert load_config(None, ()).milestones == (4700, 4800)


@pytest.mark.parametrize("setting", ["data.background_model=plane", "discriminator.dual=true"])
def test_what_needs_refined_images_is_refused(refine, setting):
    with pytest.raises(ConfigError, match="ccsr.unrefined_steps"):
        refine("ccsr.unrefined_steps=2", "data.alpha=ignore", "discriminator.architecture=graf", setting)


def test_the_last_steps_render_every_pixel(build, cut_outs, labels, caplog):
    state, rays, says = build(), [], []
    caplog.set_level("INFO", "graf")
    for _ in range(5):
        batch = generator_batch(state, labels, cut_outs, labels)
        rays.append((batch.fake_inputs.noise.jitter.shape[1], batch.encoder_inputs.grid.shape[1] ** 2))
        says.append("render all pixels" in caplog.text)
        state.advance()
    assert rays == 3 * [(64, 16)] + 2 * [(256, 64)]
    assert says == 3 * [False] + 2 * [True] and "last 2 steps, from step 3 on" in caplog.text
    assert state.config.ccsr.mode == "refine" and state.generator_ema.config.ccsr.mode == "none"


def test_ccsr_learns_until_then_and_keeps_its_weights(build, cut_outs, labels):
    state, learned = build(), []
    for _ in range(5):
        before = copies(state.generator)
        discriminator_step(state, cut_outs, labels, labels)
        stats = generator_step(state, labels, cut_outs, labels)
        assert ("loss_restore" in stats) == ("ccsr_drift" in stats) == (state.step < 3)
        learned.append("refinement" in changed(state.generator, before))
        assert "field" in changed(state.generator, before)
        state.advance()
    assert learned == [True, True, True, False, False]


def test_a_run_that_goes_on_refines_again(build):
    state = build()
    state.step = 4
    state.follow_schedule()
    longer = build("training.max_steps=9")
    longer.load_state_dict(state.state_dict())
    assert (state.generator.config.rendered_scale, longer.generator.config.rendered_scale) == (1, 2)


def test_recorded_steps_are_forgotten_where_the_last_ones_begin(build, monkeypatch):
    state, forgotten = build(), []
    monkeypatch.setattr(state.graphs, "clear", lambda: forgotten.append(state.step))
    for _ in range(5):
        state.advance()
    assert forgotten == [3]


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(build, tmp_path, cut_outs, labels):
    def train(state, n):
        dataset = build_dataset(state.config)
        for _ in range(n):
            steps.train_step(state, dataset, cut_outs, labels)
            state.advance()
        return state

    data = f"data.datadir={tmp_path}", "data.n_images=4"
    straight = train(build(*data), 5)
    save_checkpoint(tmp_path / "model.pt", train(build(*data), 4).checkpoint())
    resumed = build(*data)
    load_checkpoint(tmp_path / "model.pt", resumed)
    train(resumed, 1)
    for name, p in straight.generator_ema.state_dict().items():
        assert torch.equal(p, resumed.generator_ema.state_dict()[name]), name


@pytest.mark.parametrize(("step", "refines"), [(2, True), (3, False), (5, False)])
def test_the_trained_generator_renders_as_the_last_step_did(build, labels, tmp_path, step, refines):
    state = build()
    state.step = step
    state.follow_schedule()
    save_checkpoint(tmp_path / "model.pt", state.checkpoint())
    loaded = graf.load_generator(tmp_path / "model.pt")
    write_export(tmp_path / "cars.safetensors", loaded, step)
    exported = graf.load_generator(tmp_path / "cars.safetensors")
    latents = loaded.sample_latents(4, torch.Generator().manual_seed(1))
    renderings = [g.render(latents, labels.pose_c2w, None, labels.class_index) for g in (state.generator_ema, loaded, exported)]
    for rendering in renderings:
        assert torch.equal(rendering.images, renderings[0].images) and rendering.images.shape == (4, 3, 16, 16)
        assert (rendering.low_images is not None) == refines
    found = any(name.startswith("refinement.") for name in exported.state_dict())
    assert found == refines and (exported.config.ccsr.mode == "refine") == refines


def test_a_checkpoint_is_rendered_as_its_own_run_did_whatever_is_asked_of_it_now(build, refine, tmp_path):
    state = build()
    for step in (2, 5):
        state.step = step
        save_checkpoint(tmp_path / f"{step}.pt", state.checkpoint())
    for others in (("training.max_steps=3",), ("training.max_steps=9",), ("ccsr.unrefined_steps=0",)):
        config = refine(*LAST_TWO, "data.alpha=rgba", *others)
        found = [graf.load_generator(tmp_path / f"{step}.pt", config).config.ccsr.mode for step in (2, 5)]
        assert found == ["refine", "none"]


def test_an_export_without_ccsr_names_no_weights_of_its_backbone(refine, tmp_path):
    config = refine("ccsr.backbone=rrdb", "ccsr.rrdb.pretrained_path=missing.pth", "ccsr.rrdb.num_blocks=1", "ccsr.rrdb.nf=8")
    path = write_export(tmp_path / "cars.safetensors", Generator(config).unrefined(), 5)
    assert graf.load_generator(path).config.ccsr.mode == "none"


@pytest.mark.parametrize(("begun_with", "asked", "expected"), [("0", "auto", 0), ("3", "auto", 3), ("0", "2", 2)])
def test_a_run_goes_on_with_the_steps_that_it_began_with_unless_others_are_asked_for(refine, begun_with, asked, expected):
    config, trained = refine(f"ccsr.unrefined_steps={asked}"), refine(f"ccsr.unrefined_steps={begun_with}")
    assert resolve(config, trained=trained).unrefined_steps == expected


def test_auto_follows_the_length_of_the_run():
    short, longer = (load_config(None, [f"training.max_steps={steps}"]) for steps in (1000, 20000))
    assert (short.unrefined_steps, resolve(longer, trained=short).unrefined_steps) == (0, 7750)
