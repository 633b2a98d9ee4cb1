"""All that a run is: its EMA, schedules and random state; and the device it runs on."""

import importlib.util
import math
import shutil
from types import SimpleNamespace

from graf.checkpoints.checkpoint import save_checkpoint
from graf.config import load_config
from graf.errors import GrafError
from graf.models.generator import Generator
from graf.runtime.device import choose_device
from graf.training.state import TrainState, compile_fields, load_checkpoint

import pytest
import torch


@pytest.fixture
def build(smoke):
    return lambda *overrides: TrainState(smoke(*overrides), torch.device("cpu"), n_classes=2, n_elevations=3)


def fill(module, value):
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(value)


@pytest.mark.parametrize(("step", "beta"), [(0, 0.1), (8, 0.5), (90, 0.91), (10**6, 0.995)])  # (1 + step) / (10 + step)
def test_the_average_moves_by_one_minus_beta(build, step, beta):
    state = build("training.model_average_beta=0.995")
    fill(state.generator, 1.0)
    fill(state.generator_ema, 3.0)
    state.step = step
    state.update_ema(torch.tensor(True))
    for p in state.generator_ema.parameters():
        torch.testing.assert_close(p, torch.full_like(p, beta * 3 + (1 - beta) * 1))
    assert all((p == 1).all() for p in state.generator.parameters())


def test_no_average_is_the_generator_itself(build):
    state = build("training.model_average_beta=0")
    fill(state.generator, 0.1)
    state.update_ema(torch.tensor(True))
    assert all((p == torch.tensor(0.1)).all() for p in state.generator_ema.parameters())


def test_the_average_starts_as_a_copy_and_takes_no_gradient(build):
    state = build()
    for p, q in zip(state.generator.parameters(), state.generator_ema.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.data_ptr() != q.data_ptr()
        assert not q.requires_grad
    assert not state.generator_ema.training


def test_learning_rates_fall_at_their_milestones(build):
    state = build("training.lr_g=0.01", "training.lr_d=0.004", "training.lr_anneal=0.5", "training.lr_anneal_every=[2, 3]")
    rates = []
    for _ in range(4):
        rates.append((state.step, state.optimizer_g.param_groups[0]["lr"], state.optimizer_d.param_groups[0]["lr"]))
        state.optimizer_g.step()
        state.optimizer_d.step()
        state.advance()
    assert rates == [(0, 0.01, 0.004), (1, 0.01, 0.004), (2, 0.005, 0.002), (3, 0.0025, 0.001)]


def test_by_default_learning_rates_fall_once_near_the_end(build):
    state = build("training.max_steps=9", "training.lr_anneal_every=auto", "training.lr_g=0.01")
    rates = []
    for _ in range(9):
        rates.append(state.learning_rates()["lr_g"])
        state.optimizer_g.step()
        state.advance()
    assert rates == 7 * [0.01] + 2 * [0.005]


@pytest.mark.parametrize(("max_steps", "expected"), [(27, (22, 24)), (19, (18,)), (18, ()), (9, ())])
def test_after_an_encoders_first_steps_rates_fall_in_the_second_half_of_the_whole_ones(smoke, max_steps, expected):
    short = "encoder.first_steps=12", "discriminator.low_res_steps=5"
    assert smoke(*short, f"training.max_steps={max_steps}", "training.lr_anneal_every=auto").milestones == expected


def test_annealing_follows_a_cosine_of_the_step_alone(build):
    settings = "training.anneal=r3gan", "training.anneal_steps=8", "training.lr_g=0.01"
    state = build(*settings, "training.reg_param=2", "training.model_average_beta=0.25", "ccsr.learns_from=photographs")
    found = {}
    for step in (0, 4, 8, 100):
        state.step = step
        state.follow_schedule()
        betas = state.optimizer_g.param_groups[0]["betas"]
        found[step] = [state.learning_rates()["lr_g"], state.penalty_weight, betas[1]]
    # Half way, a cosine is at the mean of its ends
    last = [0.0025, 0.2, 0.99]
    expected = {0: [0.01, 2, 0.9], 4: [0.00625, 1.1, 0.945], 8: last, 100: last}
    assert found == {step: pytest.approx(values) for step, values in expected.items()}


@pytest.mark.parametrize(
    ("step", "beta"), [(0, 0.0), (50, 0.0625), (100, 0.25), (200, 0.25)]
)  # at half the half-life, its square
def test_annealing_lengthens_the_averages_half_life(build, step, beta):
    state = build("training.anneal=r3gan", "training.anneal_steps=100", "training.model_average_beta=0.25")
    fill(state.generator, 1.0)
    fill(state.generator_ema, 3.0)
    state.step = step
    state.update_ema(torch.tensor(True))
    for p in state.generator_ema.parameters():
        torch.testing.assert_close(p, torch.full_like(p, beta * 3 + (1 - beta)))


def test_a_run_of_one_step_has_the_rates_of_its_config(build):
    assert build("training.max_steps=1", "training.lr_anneal_every=auto").config.milestones == (1,)


@pytest.mark.parametrize(("reg_every", "low_res_steps", "step"), [(1, 0, 0), (4, 0, 3), (4, 3, 3), (4, 4, 7), (3, 10, 11)])
def test_what_measures_a_step_takes_a_whole_one(build, reg_every, low_res_steps, step):
    state = build(f"training.reg_every={reg_every}", f"discriminator.low_res_steps={low_res_steps}", "training.max_steps=20")
    state.skip_to_whole_step()
    assert state.step == step and state.penalty_weight is not None
    state.skip_to_costliest_step()
    assert state.step == step


def test_no_step_costs_more_than_one_that_is_not_refined(refine):
    overrides = "ccsr.unrefined_steps=3", "discriminator.low_res_steps=4", "training.max_steps=20", "training.reg_every=4"
    state = TrainState(refine(*overrides), torch.device("cpu"))
    state.skip_to_whole_step()
    assert (state.step, state.generator.config.rendered_scale) == (7, 2)
    state.skip_to_costliest_step()
    assert (state.step, state.generator.config.rendered_scale) == (19, 1)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("adam", torch.optim.Adam, [{"betas": (0.0, 0.99)}, {"betas": (0.0, 0.9)}]),
        ("rmsprop", torch.optim.RMSprop, [{"alpha": 0.99}, {"alpha": 0.99}]),
    ],
)
def test_optimizers_hold_all_of_their_network(build, name, kind, expected):
    state = build(f"training.optimizer={name}")
    players = (state.optimizer_g, state.generator), (state.optimizer_d, state.discriminator)
    for (optimizer, network), options in zip(players, expected, strict=True):
        assert isinstance(optimizer, kind)
        assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in network.parameters()]
        assert all(options.items() <= group.items() for group in optimizer.param_groups)


def test_ccsr_learns_at_its_share_of_the_generators_rate(build):
    state = build("training.lr_g=0.01", "ccsr.mode=refine", "ccsr.lr_multiplier=0.25")
    of_ccsr = {id(p) for p in state.generator.refinement.parameters()}
    for group in state.optimizer_g.param_groups:
        refines = {id(p) in of_ccsr for p in group["params"]}
        assert refines == {group["lr"] == 0.0025}


@pytest.mark.parametrize("source", ["photographs", "discriminator"])
def test_only_a_ccsr_that_restores_real_images_has_momentum(build, source):
    state = build("ccsr.mode=refine", f"ccsr.learns_from={source}")
    of_ccsr = {id(p) for p in state.generator.refinement.parameters()}
    for group in state.optimizer_g.param_groups:
        restores = source == "photographs" and id(group["params"][0]) in of_ccsr
        assert group["betas"] == (0.9 if restores else 0.0, 0.99)
    assert all(group["betas"] == (0.0, 0.9) for group in state.optimizer_d.param_groups)


def test_an_encoder_has_momentum(build):
    state = build("encoder.weight=1")
    of_encoder = {id(p) for p in state.generator.encoder.parameters()}
    for group in state.optimizer_g.param_groups:
        assert group["betas"] == (0.9 if id(group["params"][0]) in of_encoder else 0.0, 0.99)


def test_a_state_whose_optimizers_have_one_group_is_loaded(build):
    """Older versions have it so: the moments go to the parameters in their order."""
    saved, state = build(), build()
    for p in saved.generator.parameters():
        p.grad = torch.randn_like(p)
    saved.optimizer_g.step()
    content = saved.state_dict()
    optimizer = content["optimizer_g"]
    numbers = [number for group in optimizer["param_groups"] for number in group["params"]]
    old_group = {key: value for key, value in optimizer["param_groups"][0].items() if key != "share"} | {"params": numbers}
    content["optimizer_g"] = {"state": optimizer["state"], "param_groups": [old_group]}
    state.load_state_dict(content)
    for p, q in zip(saved.generator.parameters(), state.generator.parameters(), strict=True):
        assert torch.equal(saved.optimizer_g.state[p]["exp_avg_sq"], state.optimizer_g.state[q]["exp_avg_sq"])


def test_the_seed_makes_the_weights(build):
    first, same, other = build("training.seed=5"), build("training.seed=5"), build("training.seed=6")
    for network in ("generator", "discriminator"):
        for name, value in getattr(first, network).state_dict().items():
            assert torch.equal(value, getattr(same, network).state_dict()[name]), name
    name = next(iter(first.generator.state_dict()))
    assert not torch.equal(first.generator.state_dict()[name], other.generator.state_dict()[name])
    assert torch.equal(first.sample_latents(3), same.sample_latents(3))
    assert not torch.equal(first.sample_latents(3), other.sample_latents(3))


def test_draws_do_not_depend_on_torchs_global_state(build):
    first, second = build(), build()
    torch.manual_seed(77)
    assert torch.equal(first.sample_latents(2), second.sample_latents(2))


def test_the_lowest_of_each_loss_is_noted_with_its_step(build):
    state = build()
    for state.step, value in enumerate((2.0, math.nan, 1.5, 1.5, -math.inf, 1.75)):
        state.note_losses({"loss_g": value, "opacity": value})
    assert state.lowest_losses == {"loss_g": {"value": 1.5, "step": 2}}


def test_random_state_is_saved_and_restored(build):
    state = build()
    saved = state.state_dict()
    wanted = state.sample_latents(2), torch.rand(3, generator=state.device_rng), torch.rand(3)
    other = build("training.seed=9")
    other.load_state_dict(saved)
    for actual, expected in zip(
        (other.sample_latents(2), torch.rand(3, generator=other.device_rng), torch.rand(3)), wanted, strict=True
    ):
        assert torch.equal(actual, expected)


def test_images_are_counted_as_they_are_seen_over_sessions_with_other_batch_sizes(build, tmp_path):
    """3 steps of 4 images, then 2 of 2; an older checkpoint, without the count, has seen its steps times its batch size."""
    first = build("training.batch_size=4", "training.max_steps=5")
    for _ in range(3):
        first.advance()
    save_checkpoint(tmp_path / "model.pt", first.checkpoint())
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    del content["state"]["images_seen"]
    torch.save(content, tmp_path / "older.pt")
    for name in ("model.pt", "older.pt"):
        continued = build("training.batch_size=2", "training.max_steps=5")
        load_checkpoint(tmp_path / name, continued)
        assert (continued.step, continued.images_seen) == (3, 12)
        for _ in range(2):
            continued.advance()
        assert continued.images_seen == continued.state_dict()["images_seen"] == 16


def test_the_saved_state_is_tensors_and_plain_values(build, tmp_path):
    torch.save(build().state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 0


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("name", ["default", "graf"])
def test_a_field_compiles_to_two_graphs_at_most_without_a_break(name):
    """Both passes, for six numbers of rays; fullgraph raises where the graph would break."""
    generator, graphs = Generator(load_config(name, ("nerf.netwidth=8", "nerf.samples_per_ray=4"))), []

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch.compiler.reset()
    field = torch.compile(generator.field, backend=backend, dynamic=True, fullgraph=True)
    for rays in (64, 100, 128, 129, 256, 300):
        styles = generator.field.styles(generator.sample_latents(2))
        density, colour = field(torch.rand(2, rays, 4, 3), torch.rand(2, rays, 3), styles)
        (density.sum() + colour.sum()).backward()
    assert 1 <= len(graphs) <= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_a_compiled_field_renders_the_same_and_is_saved_under_the_same_names(smoke, labels, monkeypatch, tmp_path):
    """Both passes; the EMA, which renders samples, and the discriminator are as they were."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # or its threads and processes outlive the test
    monkeypatch.setattr("torch._inductor.config.cpp.vec_isa_ok", True)  # instead of compiling a program for each kind
    plain, compiled = (TrainState(smoke(f"training.compile={c}"), torch.device("cpu"), 2, 3) for c in ("false", "true"))
    latents, found = plain.sample_latents(4), []
    for state in (plain, compiled):
        images = state.generator(latents, labels).images
        found.append((images, torch.autograd.grad(images.square().mean(), list(state.generator.field.parameters()))))
    (images, gradients), (compiled_images, compiled_gradients) = found
    assert compiled.generator.field._compiled_call_impl is not None
    assert compiled.generator_ema.field._compiled_call_impl is None
    torch.testing.assert_close(compiled_images, images, atol=1e-4, rtol=0)
    wanted = torch.cat([gradient.flatten() for gradient in gradients])
    assert (torch.cat([gradient.flatten() for gradient in compiled_gradients]) - wanted).norm() <= 1e-3 * wanted.norm() > 0
    assert compiled.state_dict()["generator"].keys() == plain.state_dict()["generator"].keys()


def test_compiling_without_a_compiler_is_refused(build, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(GrafError, match="training.compile: no C.. compiler is found; install g.."):
        build("training.compile=true")


@pytest.mark.parametrize(("capability", "found"), [((8, 0), None), ((6, 1), "triton")])
def test_compiling_on_a_gpu_without_triton_is_refused(cards, monkeypatch, capability, found):
    cards("NVIDIA A", capability=capability)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    generator = SimpleNamespace(background=SimpleNamespace(device=torch.device("cuda", 0)))
    with pytest.raises(GrafError, match="training.compile: on a GPU it takes Triton"):
        compile_fields(generator)


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "mps", "meta", "", "gpu0", "cuda:x"])
def test_a_device_that_is_not_here_is_an_error_that_names_it(name):
    with pytest.raises(GrafError, match=f"--device {name}"):
        choose_device(name)


def test_devices_that_are_here(cards):
    assert choose_device("cpu") == torch.device("cpu")
    calls = cards()
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(GrafError, match="sees 0 CUDA"):
        choose_device("cuda")
    assert calls == []
    calls = cards("NVIDIA A", "NVIDIA A")
    for name, index in (("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)):
        assert choose_device(name) == torch.device("cuda", index)
        assert calls.pop() == ("setDevice", index)  # or the CUDA functions that are given no device would ask another card
    assert choose_device("cuda") == torch.device("cuda", 1)  # the current one
    with pytest.raises(GrafError, match="sees 2 CUDA"):
        choose_device("cuda:2")
