"""What is not finite reaches no weight, is named, and ends a run only after one way back; a collapse is told once."""

import gc
import json
import warnings
import weakref
from types import SimpleNamespace

from graf.camera import Labels, sample_poses
from graf.checkpoints.checkpoint import NEWEST, read_checkpoint
from graf.checkpoints.run_folder import run_checkpoints, save_newest
from graf.data import Views
from graf.errors import CheckpointError, GrafError
from graf.foreign.checkpoints import checkpoint_step
from graf.runtime.guard import Guard
from graf.runtime.interruption import Interruption
from graf.runtime.out_of_memory import OutOfMemory
from graf.runtime.precision import AmpSettings
from graf.runtime.processes import ALONE, AnotherProcessFailed, Processes
from graf.training import health, inputs, loop
from graf.training import step as steps
from graf.training.graphs import Graphs
from graf.training.health import (
    Derailed,
    HalfUpdated,
    anomalies_named,
    check_numbers,
    count_bad_steps,
    roll_back,
    roll_back_all,
)
from graf.training.loop import train
from graf.training.state import TrainState, load_checkpoint
from graf.training.statistics import Values, accuracy_by_pairs, accuracy_by_sign, colour_deviation, colour_moments
from graf.training.step import train_step

import pytest
import torch
from compare_runs import compare_parts

QUIET = (
    "training.max_bad_steps=3", "training.save_every=2", "training.sample_every=0", "training.monitoring=none",
    "memory.interval_s=0", "discriminator.condition=none",
)  # fmt: skip


class Noise(Views):
    """Eight photographs of noise, 16 x 16, without cameras."""

    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randint(256, (8, 3, 16, 16), generator=generator, dtype=torch.uint8)
        super().__init__([f"{i}.png" for i in range(8)], ["things"], torch.zeros(8, dtype=torch.long), None, "fingerprint")

    def read(self, index):
        return self.images[index]


@pytest.fixture
def build(smoke, tmp_path):
    def build(*overrides):
        config = smoke(*QUIET, f"training.outdir={tmp_path}", *overrides)
        config.run_dir.mkdir(parents=True, exist_ok=True)
        return TrainState(config, torch.device("cpu"))

    return build


@pytest.fixture
def batch(photographs, smoke):
    poses = sample_poses(4, smoke().data, torch.Generator().manual_seed(4))
    return photographs, Labels(poses, torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long))


def weights(state):
    networks = (state.generator, state.discriminator, state.generator_ema)
    return [tensor.clone() for network in networks for tensor in network.state_dict().values()]


def same(first, second):
    return all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(first, second, strict=True))


def take_step(state, dataset, images, labels):
    """A step as the loop takes it."""
    stats = train_step(state, dataset, images, labels)
    state.advance()
    check_numbers(state, stats, images)
    return stats


def derail(state, batch):
    """What is said where every step of the state is bad."""
    with pytest.raises(Derailed) as error:
        for _ in range(state.config.training.max_bad_steps):
            take_step(state, Noise(), *batch)
    return str(error.value)


def test_nan_in_the_photographs_is_named(build, batch):
    state = build()
    take_step(state, Noise(), *batch)
    batch[0][2, 1, 5, 7] = torch.nan
    said = derail(state, batch)
    assert "First, step 2: loss_d is nan; the first tensor not finite is the real images of the step" in said
    assert "the last good step is 1." in said
    assert all(tensor.isfinite().all() for tensor in weights(state))
    assert "lr_g 0.001, lr_d 0.001; loss scales: 1" in said


@pytest.mark.parametrize("network", ["generator", "discriminator"])
def test_a_nan_weight_is_named_and_the_average_stays_clean(build, batch, network):
    state = build()
    name, weight = list(getattr(state, network).named_parameters())[2]
    with torch.no_grad():
        weight.view(-1)[0] = torch.nan
    before = weights(state)
    said = derail(state, batch)
    assert f"loss_d is nan; the first tensor not finite is the weight {network}.{name}" in said
    assert same(weights(state), before)


@pytest.mark.parametrize(("network", "norm"), [("generator", "grad_norm_g"), ("discriminator", "grad_norm_d")])
def test_a_nan_gradient_is_named(build, batch, network, norm):
    state = build("training.reg_type=none")
    name, weight = list(getattr(state, network).named_parameters())[-1]
    weight.register_hook(lambda gradient: gradient * torch.nan)
    learner, before = getattr(state, network), [p.clone() for p in getattr(state, network).parameters()]
    assert f"{norm} is nan; the first tensor not finite is the gradient of {network}.{name}" in derail(state, batch)
    assert same(list(learner.parameters()), before)


def test_an_infinite_loss_with_finite_gradients_moves_nothing(build, batch, monkeypatch):
    state, real = build(), steps.generator_loss
    monkeypatch.setattr(steps, "generator_loss", lambda *given: real(*given) + torch.inf)
    before = [p.clone() for network in (state.generator, state.generator_ema) for p in network.parameters()]
    assert "loss_g is inf; all weights and gradients are finite" in derail(state, batch)
    assert same([p for network in (state.generator, state.generator_ema) for p in network.parameters()], before)


def test_a_good_step_between_bad_ones_begins_the_count_anew(build, batch):
    state, bad = build(), batch[0].clone().fill_(torch.nan)
    for images in (bad, bad, batch[0], bad, bad):
        take_step(state, Noise(), images, batch[1])
    assert state.bad_steps == 2
    assert state.first_bad.startswith("step 4: ")
    take_step(state, Noise(), *batch)
    assert (state.bad_steps, state.first_bad) == (0, "")


@pytest.mark.parametrize(("print_every", "read"), [(0, [10, 12]), (5, [5, 10, 12])])
def test_a_gpus_numbers_are_read_when_a_row_is_due_and_after_the_last_step(build, photographs, print_every, read):
    """On a CPU they are read in each step."""
    state, found = build("training.max_steps=12", f"training.print_every={print_every}"), []
    for device, expected in (("cuda", read), ("cpu", [*range(1, 13)])):
        state.device = torch.device(device)
        for state.step in range(1, 13):
            check_numbers(state, {"grad_norm_g": torch.tensor(1.0)}, photographs)
            found += [] if state.unread else [state.step]
        assert found == expected
        found.clear()


def test_a_steps_trouble_is_not_said_to_be_in_the_images_of_a_later_one(build, photographs):
    """A GPU's numbers are read a few steps later."""
    state = build("training.print_every=2")
    state.device = torch.device("cuda")
    for state.step in (1, 2):
        check_numbers(state, {"grad_norm_g": torch.tensor(torch.nan)}, photographs * torch.nan)
    assert state.bad_steps == 2 and state.first_bad == "step 1: grad_norm_g is nan; all weights are finite"


def test_numbers_that_were_not_read_are_forgotten_on_the_way_back(build, photographs):
    state = build("training.print_every=10")
    save_newest(state.checkpoint())
    state.step, state.device = 1, torch.device("cuda")
    check_numbers(state, {"grad_norm_g": torch.tensor(torch.nan)}, photographs)
    state.device = torch.device("cpu")
    roll_back(state, HalfUpdated("out of memory"))
    count_bad_steps(state)
    assert (state.bad_steps, state.first_bad) == (0, "")


def spoil(monkeypatch, steps_of_trouble):
    """Photographs are nan at these calls of train_step, counted from 1."""
    real, taken = loop.train_step, []

    def spoiled(state, dataset, images, labels):
        taken.append(state.step)
        images = images * torch.nan if len(taken) in steps_of_trouble else images
        return real(state, dataset, images, labels)

    monkeypatch.setattr(loop, "train_step", spoiled)
    return taken


def test_a_run_goes_back_once_with_other_draws_and_on_to_its_end(build, monkeypatch, caplog):
    state, taken = build("training.max_steps=8"), spoil(monkeypatch, (4, 5, 6))
    train(state, Noise(), Interruption())
    run_dir = state.config.run_dir
    assert taken == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7]  # good to step 3, of which 2 was saved; not 4, amid bad ones
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert None not in rows[2].values()
    assert any("rolled back to step 2 of" in message and "model.pt (" in message for message in caplog.messages)
    assert state.step == 8 and state.rollbacks == 1

    resumed = build()
    load_checkpoint(run_dir / NEWEST, resumed)
    assert resumed.rollbacks == 1


def test_runs_that_are_ended_amid_bad_steps_keep_the_last_good_checkpoint(build, monkeypatch):
    """Though each leaves a checkpoint of its own, and one is kept."""
    taken, state = spoil(monkeypatch, (4, 5)), build("training.max_steps=20", "training.keep_checkpoints=1")
    for bad_steps in (1, 2):
        monkeypatch.setattr(Interruption, "requested", property(lambda _, last=3 + bad_steps: len(taken) == last))
        train(state, Noise(), Interruption())
        resumed = build("training.max_steps=20", "training.keep_checkpoints=1")
        load_checkpoint(state.config.run_dir / NEWEST, resumed)
        assert (resumed.bad_steps, resumed.bad_since) == (bad_steps, 4)
        state = resumed
    roll_back(state, Derailed("loss_d is nan"))
    assert state.step == 2
    assert [checkpoint_step(read_checkpoint(path)) for path in run_checkpoints(state.config.run_dir)] == [2]


def test_the_second_time_a_run_ends_with_the_diagnosis(build, monkeypatch):
    state, taken = build("training.max_steps=20"), spoil(monkeypatch, range(4, 20))
    with pytest.raises(GrafError, match="loss_d is nan.*had been rolled back once already"):
        train(state, Noise(), Interruption())
    assert taken == [0, 1, 2, 3, 4, 5, 2, 3, 4]
    assert checkpoint_step(read_checkpoint(state.config.run_dir / NEWEST)) == 2


def test_without_a_checkpoint_a_run_ends_right_away(build, monkeypatch):
    state, taken = build(), spoil(monkeypatch, range(1, 20))
    with pytest.raises(GrafError, match="There is no good checkpoint"):
        train(state, Noise(), Interruption())
    assert len(taken) == 3
    assert not (state.config.run_dir / NEWEST).exists()


@pytest.mark.parametrize("network", ["generator", "generator_ema", "discriminator"])
def test_going_back_passes_over_what_is_damaged_or_not_finite(build, network):
    state = build("training.keep_checkpoints=5")
    for state.step in (1, 2, 3, 4):
        if state.step == 2:
            good = weights(state)
        if state.step == 3:
            with torch.no_grad():
                next(getattr(state, network).parameters()).fill_(torch.inf)
        save_newest(state.checkpoint())
    newest = state.config.run_dir / NEWEST
    newest.write_bytes(newest.read_bytes()[:-1000])
    state.sizes.images = 4
    roll_back(state, HalfUpdated("out of memory"))
    assert state.step == 2
    assert same(weights(state), good)
    assert state.sizes.images == 2


def test_going_back_passes_over_what_was_saved_amid_bad_steps(build):
    state = build("training.keep_checkpoints=5")
    for state.step, state.bad_steps in ((1, 0), (2, 1)):
        save_newest(state.checkpoint())
    roll_back(state, Derailed("trouble"))
    assert (state.step, state.bad_steps) == (1, 0)


class OneOfTwo(Processes):
    """A process of two whose other one always answers at once, and like this one."""

    def barrier(self):
        pass

    def require_same(self, value, what):
        pass


@pytest.mark.parametrize("trouble", [HalfUpdated, Derailed])
@pytest.mark.parametrize("rank", [0, 1])
def test_all_processes_go_back_from_out_of_memory_without_recorded_graphs(build, rank, trouble):
    """One that went on recording would run out of memory again, beside one that does not."""
    state = build()
    save_newest(state.checkpoint())
    state.processes, state.graphs = OneOfTwo(rank, 2), Graphs(object)
    roll_back_all(state, trouble("out of memory"))
    assert bool(state.graphs) == (trouble is Derailed)


def test_a_process_that_does_not_see_the_checkpoint_says_so(build):
    state = build()
    state.processes = OneOfTwo(1, 2)
    with pytest.raises(CheckpointError, match="has no checkpoint to roll back to.*all processes need the same training.outdir"):
        roll_back_all(state, Derailed("loss_d is nan"))


def test_going_back_from_out_of_memory_amid_an_update_begins_with_new_scalers(build, batch, monkeypatch):
    """Between unscale_ and update a GradScaler takes no other step."""

    def out_of_memory(_):
        raise MemoryError

    state = build()
    state.amp = AmpSettings("cpu", torch.float16)
    state.scaler_g, state.scaler_d = torch.amp.GradScaler("cpu", init_scale=512.0), torch.amp.GradScaler("cpu")
    save_newest(state.checkpoint())
    with monkeypatch.context() as patch, pytest.raises(HalfUpdated) as caught:
        patch.setattr(torch.nn.utils, "get_total_norm", out_of_memory)
        take_step(state, Noise(), *batch)
    roll_back(state, caught.value)
    assert state.scaler_g.get_scale() == 512
    take_step(state, Noise(), *batch)
    assert (state.step, state.bad_steps) == (1, 0)


def test_going_back_does_not_forget_what_the_best_file_is_of(build):
    state = build()
    save_newest(state.checkpoint())
    state.best = {"value": 1.0, "step": 9, "terms": {}}
    roll_back(state, Derailed("trouble"))
    assert state.best["step"] == 9


def test_what_a_run_went_back_to_is_saved_with_the_word_that_it_did(build):
    """Or one that is killed and restarted would go back a second time."""
    state = build()
    save_newest(state.checkpoint())
    roll_back(state, Derailed("trouble"))
    assert read_checkpoint(state.config.run_dir / NEWEST)["state"]["rollbacks"] == 1


DRAWS = {
    "latents": lambda state: state.sample_latents(4),
    "noise": lambda state: torch.rand(4, generator=state.device_rng),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_what_is_drawn_after_going_back_is_new_but_always_the_same(build, draw):
    def drawn(n_rollbacks):
        load_checkpoint(path, state)
        for _ in range(n_rollbacks):
            roll_back(state, Derailed("trouble"))
        return draw(state)

    state = build()
    save_newest(state.checkpoint())
    path = state.config.run_dir / "first.pt"
    path.write_bytes((state.config.run_dir / NEWEST).read_bytes())
    assert torch.equal(drawn(0), drawn(0))
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(0), drawn(1))
    before, state = drawn(1), build("training.seed=9")
    assert not torch.equal(drawn(1), before)


def test_out_of_memory_in_the_optimizer_goes_back_and_takes_less(build, monkeypatch):
    state = build("training.max_steps=5")
    real, calls = state.optimizer_g.step, []

    def step(*given, **options):
        calls.append(state.step)
        if len(calls) == 4:
            with torch.no_grad():
                next(state.generator.parameters()).fill_(torch.nan)  # half updated
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*given, **options)

    monkeypatch.setattr(state.optimizer_g, "step", step)
    train(state, Noise(), Interruption())
    assert calls == [0, 1, 2, 3, 2, 3, 4]
    assert state.sizes.images == 2
    assert all(tensor.isfinite().all() for tensor in weights(state))


def test_out_of_memory_in_an_update_before_the_first_checkpoint_ends_a_run_with_advice(build, monkeypatch):
    def step(*given, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    state = build()
    monkeypatch.setattr(state.optimizer_g, "step", step)
    with pytest.raises(OutOfMemory, match=r"CUDA out of memory.*There is no good checkpoint.*by the plan.*check_system\.py"):
        train(state, Noise(), Interruption())


def test_weights_half_updated_are_not_saved_where_there_is_no_memory_to_go_back_either(build, monkeypatch, caplog):
    def no_memory(*given):
        raise MemoryError("no room")

    def step(*given, **options):
        if state.step == 3:
            monkeypatch.setattr(health, "load_checkpoint", no_memory)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*given, **options)

    state = build("training.max_steps=5")
    real = state.optimizer_g.step
    monkeypatch.setattr(state.optimizer_g, "step", step)
    with pytest.raises(MemoryError, match="no room") as error:
        train(state, Noise(), Interruption())
    assert "by the plan" in str(error.value)
    assert "step 4: out of memory (CUDA out of memory) while weights were changed" in caplog.text
    assert checkpoint_step(read_checkpoint(state.config.run_dir / NEWEST)) == 2


def test_nothing_is_saved_of_a_run_that_failed_on_its_way_back():
    run, saved = SimpleNamespace(step=3, bad_steps=0, savable=True, processes=ALONE), []

    def half_loaded():
        run.step = 2
        raise ValueError("a mistake of ours")

    guard = Guard(run, Interruption(), lambda: saved.append(run.step), empty_caches=False)
    with pytest.raises(ValueError, match="a mistake of ours"), guard:
        guard.roll_back(half_loaded)
    assert saved == []


@pytest.fixture
def guard():
    """The guard of a run that is at step 3, and notes its saves in `saved`."""
    run, saved = SimpleNamespace(step=3, bad_steps=0, processes=ALONE), []
    run.require_same_everywhere = lambda: saved.append("compared")
    made = Guard(run, Interruption(), lambda: saved.append(run.step), empty_caches=False)
    made.saved = saved
    return made


def test_a_run_that_went_back_is_saved_where_an_error_ends_it_later(guard):
    guard.owes_checkpoint = True  # of the bad steps that it went back from
    with pytest.raises(ValueError), guard:
        guard.roll_back(lambda: setattr(guard.run, "step", 2))
        assert guard.saved_step == 2 and not guard.owes_checkpoint
        guard.run.step = 5
        raise ValueError
    assert guard.saved == [5]


def test_processes_are_compared_before_each_checkpoint(guard):
    guard.checkpoint()
    assert guard.saved == ["compared", 3]


def test_what_a_step_holds_is_freed_before_the_last_checkpoint(guard):
    held, freed = [], []

    def take_step():
        activations = torch.zeros(1)
        held.append(weakref.ref(activations))
        raise error

    guard.save = lambda: freed.append(held[0]() is None)
    error = OutOfMemory("in its smallest parts")
    with pytest.raises(OutOfMemory) as caught, guard:
        guard.run.step = 4
        take_step()
    assert freed == [True] and caught.value is error


@pytest.mark.parametrize("empty_caches", [True, False])
def test_memory_is_freed_before_a_second_try_and_at_the_end_where_that_is_asked_for(guard, monkeypatch, empty_caches):
    seen = []
    monkeypatch.setattr("graf.runtime.guard.clean_up", lambda: seen.append("freed"))

    def work():
        seen.append("work")
        if len(seen) == 1:
            raise MemoryError

    guard.empty_caches = empty_caches
    guard.optional("samples", work)
    assert seen == ["work", "freed", "work"] + ["freed"] * empty_caches


def test_a_step_too_large_in_its_smallest_part_ends_a_run_saved_with_advice(build, monkeypatch):
    state, real = build("training.max_steps=5", "memory.budget_gb=0.3"), steps.generator_loss

    def loss(*given):
        if state.step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*given)

    monkeypatch.setattr(steps, "generator_loss", loss)
    with pytest.raises(OutOfMemory, match=r"by the plan .* 0\.3 GB.*tools/check_system\.py") as error:
        train(state, Noise(), Interruption())
    assert error.value.exit_status == 2
    assert checkpoint_step(read_checkpoint(state.config.run_dir / NEWEST)) == 3


def failing_at_step_3(monkeypatch, state, where, name, error=None):
    """In the step after step 3, what of `where` has this name fails. The run ends by that."""
    real = getattr(where, name)

    def fails(*given, **options):
        if state.step == 3:
            raise error or ValueError("a mistake of ours")
        return real(*given, **options)

    monkeypatch.setattr(where, name, fails)
    with pytest.raises(type(error) if error else ValueError):
        train(state, Noise(), Interruption())


EARLY = {"its sampling": (inputs, "sample_inputs"), "its discriminator's loss": (steps, "discriminator_loss")}


@pytest.mark.parametrize("where", EARLY.values(), ids=EARLY.keys())
@pytest.mark.parametrize("error", [None, AnotherProcessFailed("and says why"), OutOfMemory("no smaller")], ids=type)
def test_an_error_before_a_first_update_saves_the_step_before_bit_for_bit(build, monkeypatch, tmp_path, where, error):
    undisturbed = build("training.max_steps=3", f"training.outdir={tmp_path / 'undisturbed'}")
    train(undisturbed, Noise(), Interruption())
    state = build("training.max_steps=5")
    failing_at_step_3(monkeypatch, state, *where, error)
    found, expected = (read_checkpoint(run.config.run_dir / NEWEST)["state"] for run in (state, undisturbed))
    assert found["step"] == 3
    expected["sizes"] = found["sizes"]  # smaller where memory ran out
    assert compare_parts(found, expected) == []


LATE = {
    "amid the discriminator's update": lambda state: (state.optimizer_d, "step"),
    "between the updates": lambda state: (steps, "generator_loss"),
    "amid the generator's update": lambda state: (state.optimizer_g, "step"),
    "during the EMA's": lambda state: (state, "update_ema"),
}


@pytest.mark.parametrize("where", LATE.values(), ids=LATE.keys())
def test_an_error_amid_the_updates_of_a_step_saves_nothing_half_done(build, monkeypatch, where):
    state = build("training.max_steps=5")
    failing_at_step_3(monkeypatch, state, *where(state))
    assert state.step == 3
    assert checkpoint_step(read_checkpoint(state.config.run_dir / NEWEST)) == 2  # by training.save_every


def test_an_error_amid_bad_steps_leaves_the_last_good_checkpoint(build, monkeypatch):
    state = build("training.max_steps=5")
    spoil(monkeypatch, (3,))
    failing_at_step_3(monkeypatch, state, steps, "discriminator_loss")
    assert state.bad_steps == 1
    assert checkpoint_step(read_checkpoint(state.config.run_dir / NEWEST)) == 2


def test_an_anomaly_is_named_with_its_step_and_place(build, batch, monkeypatch, recwarn):
    state = build("training.reg_type=none")
    state.step = 6
    monkeypatch.setattr(steps, "generator_loss", lambda logits, *_: (logits * 0).sqrt().mean())
    told = r"^step 7: the backward pass of MulBackward0, called in graf.training.step\.py, line \d+ \(_adversarial_loss\), "
    with pytest.raises(GrafError, match=told), anomalies_named(state):
        take_step(state, Noise(), *batch)
    assert not torch.is_anomaly_enabled()
    assert not [warning for warning in recwarn if "Error detected" in str(warning.message)]
    assert state.step == 6


def test_other_warnings_are_shown_while_anomalies_are_looked_for(build):
    with pytest.warns(UserWarning, match="of another kind"), anomalies_named(build()):
        warnings.warn("of another kind", stacklevel=1)


def test_accuracy_by_hand():
    """Half of the photographs are above 0 and half of the fakes below. In the pairs 1, 0.5; -1, -2; 1, 3; -1, -4 three
    photographs are above their fakes, which stays so where all logits rise."""
    real, fake = torch.tensor([1.0, -1.0]), torch.tensor([0.5, -2.0, 3.0, -4.0])
    assert accuracy_by_sign(real, fake) == (0.5 + 0.5) / 2
    assert accuracy_by_pairs(real, fake) == accuracy_by_pairs(real + 5, fake + 5) == 3 / 4
    assert accuracy_by_sign(real, torch.tensor([-1.0, -2.0, 3.0, -4.0])) == (0.5 + 0.75) / 2


@pytest.mark.parametrize("side", [8, 10])
def test_cells_have_the_mean_colours_of_their_pixels(side):
    """Those of 10 pixels are of 3 in each direction, as in F.adaptive_avg_pool2d, where 10 is no multiple of 4."""
    images = torch.arange(float(side * side)).view(1, 1, side, side)
    mean, square = colour_moments(images)
    first = {8: (0 + 1 + 8 + 9) / 4, 10: sum(10 * row + column for row in range(3) for column in range(3)) / 9}[side]
    assert mean.shape == (1, 4, 4) and mean[0, 0, 0].item() == pytest.approx(first)
    assert mean.flip(1, 2)[0, 0, 0].item() == pytest.approx(side * side - 1 - first)
    assert torch.equal(square, mean.square())


def test_values_keep_their_names_shapes_and_digits():
    given = {
        "loss_d": torch.tensor(1.5),
        "moments": torch.tensor([[1 / 3, 2.0]], dtype=torch.float64),
        "none": torch.ones(2, 0),
    }
    values = Values.of(given)
    assert values.flat.dtype == Values.of({"loss_g": torch.tensor(1.5)}).flat.dtype == torch.float64 and len(values.flat) == 3
    assert {name: (x.shape, x.tolist()) for name, x in values.by_name().items()} == {
        name: (x.shape, x.tolist()) for name, x in given.items()
    }


def test_deviation_by_hand_and_in_parts():
    """Grey images of 0, 1, 2 and 3 deviate by sqrt(1.25), and so do their parts put together."""
    images = torch.arange(4.0)[:, None, None, None].expand(4, 3, 16, 16)
    parts = 0.25 * colour_moments(images[:1]) + 0.75 * colour_moments(images[1:])
    for moments in (colour_moments(images), parts):
        assert colour_deviation(moments).item() == pytest.approx(1.25**0.5)
    assert colour_deviation(colour_moments(images[:1])) == 0
    assert not colour_moments(images.clone().requires_grad_()).requires_grad


def test_a_batch_of_one_image_has_no_deviation(build, batch):
    state = build()
    assert {"sample_std", "real_std"} <= take_step(state, Noise(), *batch).keys()
    one = take_step(state, Noise(), batch[0][:1], batch[1][:1])
    assert not {"sample_std", "real_std"} & one.keys()


def test_memory_that_runs_out_on_the_way_to_the_device_is_retried(build, monkeypatch):
    state, real, calls = build("training.max_steps=2", "training.batch_size=4"), Labels.to, []

    def to(labels, device):
        calls.append(len(labels))
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(labels, device)

    monkeypatch.setattr(Labels, "to", to)
    train(state, Noise(), Interruption())
    assert state.step == 2 and state.rollbacks == 0


def test_a_roll_back_holds_nothing_of_the_step(build, monkeypatch):
    """Whose tensors the frames of the error would keep when memory has run out."""
    state, held = build("training.max_steps=3", "training.save_every=1"), []
    real, calls = state.optimizer_g.step, []

    def step(*given, **options):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*given, **options)

    def sampled(*given):
        batches = sample_step(*given)
        held.append(weakref.ref(batches[1].fake_inputs.latents))
        return batches

    def back(*given):
        gc.collect()  # as it does first
        held.append(held[1]())
        return roll_back(*given)

    sample_step = inputs.sample_step
    monkeypatch.setattr(steps, "sample_step", sampled)
    monkeypatch.setattr(health, "roll_back", back)
    monkeypatch.setattr(state.optimizer_g, "step", step)
    train(state, Noise(), Interruption())
    assert state.rollbacks == 1 and held[2] is None
