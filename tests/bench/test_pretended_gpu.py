"""A GPU that a CPU pretends to be: it notes what would wait, and a training step on it does not."""

import copy
import dataclasses
import functools
import re
from contextlib import closing
from pathlib import Path

from graf.camera import Labels, sample_poses
from graf.config import CONFIG_DIR, PoseConfig, load_config, override
from graf.data import Views, as_floats, build_loader, images_on_device
from graf.errors import DataError
from graf.memory.planner import estimate_step
from graf.pose.state import PoseState
from graf.pose.step import pose_step
from graf.runtime.interruption import Interruption
from graf.training import step as steps
from graf.training.health import Derailed, check_numbers, count_bad_steps
from graf.training.inputs import in_one_copy
from graf.training.session import Session
from graf.training.state import TrainState
from graf.training.step import train_step
from operations import LiveBytes
from pretended_gpu import GPU, pretended_gpu
from step_rows import AnyViews, adds_in_no_order, counted_step, steps_on_pretended_gpu, with_data

import pytest
import torch

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
LIGHT = (  # which change no count
    *("nerf.netwidth=8", "nerf.samples_per_ray=4", "discriminator.ndf=4", "ccsr.light.width=8", "ccsr.light.width_upsampled=8"),
    *("ccsr.rrdb.nf=4", "ccsr.rrdb.gc=4"),
)
CONFIGS = sorted(path.stem for path in Path(CONFIG_DIR).glob("*.yaml") if not path.stem.startswith("pose"))


@pytest.mark.parametrize(
    "work, noted",
    [
        (lambda x: x.sum().item(), "item"),
        (lambda x: bool(x.sum() > 0), "__bool__"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "index by a mask"),
        (lambda x: x[torch.tensor([1, 0])], "index of the host"),
        (lambda x: x.cpu(), "copy to the host"),
        (lambda x: x.new_tensor([1.0]), "new_tensor"),
        (lambda x: torch.ones(3).to(GPU), "copy from the host"),
    ],
)
def test_what_waits_is_noted(work, noted):
    with pretended_gpu() as gpu:
        x = torch.ones(3, device=GPU)
        gpu.reset()
        work(x)
        assert [what.partition(" at ")[0] for what in gpu.waits] == [noted]


def test_operations_are_counted_in_both_passes_and_those_of_the_host_are_not():
    with pretended_gpu() as gpu:
        x, y = torch.ones(3, device=GPU, requires_grad=True), torch.ones(3)
        gpu.reset()
        (x * 2).sum().backward()
        y * 2
    assert gpu.launches["mul"] == 2 and gpu.launches["sum"] == 1 and not gpu.waits
    assert x.grad.tolist() == [2, 2, 2] and y.device == CPU


def test_tensors_of_two_devices_and_copies_of_what_is_not_pinned_are_noted():
    with pretended_gpu() as gpu:
        x = torch.ones(3, device=GPU)
        assert x.device == GPU and x.is_cuda and (x + 1).device == GPU and x.cpu().device == CPU
        gpu.reset()
        x + torch.ones(3)
        torch.ones(4).to(GPU, non_blocking=True)
        torch.ones(4).pin_memory().to(GPU, non_blocking=True)
    assert gpu.mixtures.total() == 1 and gpu.copies.total() == 2 and gpu.unpinned.total() == 1 and not gpu.waits


def test_one_copy_takes_no_rows_of_other_processes_along():
    with pretended_gpu():
        noise, frame = torch.rand(8, 4, device=GPU)[1::4], torch.rand(1, 4, device=GPU).expand(8, 4)
        (own, same), labels = in_one_copy(((noise, frame), torch.arange(3)), GPU)
        assert torch.equal(own.cpu(), noise.cpu()) and own.untyped_storage().nbytes() == own.nbytes
        assert same is frame and labels.tolist() == [0, 1, 2]


@functools.cache
def light_step(name):
    """What a step of a shipped config's light variant does on a GPU."""
    config = load_config(CONFIG_DIR / f"{name}.yaml", LIGHT)
    return counted_step(override(config, [f"training.batch_size={max(2, config.training.accumulation_steps)}"]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_waits_for_nothing_mixes_nothing_and_copies_from_pinned_memory(name):
    gpu = light_step(name)
    assert (gpu.waits, gpu.mixtures, gpu.unpinned) == ({}, {}, {})
    assert gpu.copies.total() == 2  # the images, and everything else
    assert set(adds_in_no_order(gpu)) <= documented()


def documented():
    """The operations that docs/running.md names."""
    said = (ROOT / "docs/running.md").read_text(encoding="utf-8")
    return set(re.findall(r"`(\w+)`", said.partition("the run is on a CUDA GPU")[2].partition("\n")[0]))


def test_what_adds_in_no_fixed_order_is_what_the_docs_say():
    found = (adds_in_no_order(light_step(name)) for name in ("default", "film_64", "few_images"))
    assert {name for names in found for name in names} == documented()


@pytest.mark.parametrize("name, most", [("convolutional", 1700), ("cars_128", 1900), ("default", 3800)])
def test_a_step_asks_for_few_operations(name, most):
    gpu = counted_step(load_config(CONFIG_DIR / f"{name}.yaml", (*LIGHT, "training.batch_size=4", "training.use_amp=true")))
    assert 500 < gpu.launches.total() <= most


@pytest.fixture
def runs(smoke, tmp_path, photographs):
    """Makes states on a device, and takes steps of them on the same images."""

    def build(device, *overrides):
        overrides = "training.use_amp=false", "training.max_bad_steps=3", f"expname={tmp_path.name}", *overrides
        config = smoke(*overrides)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, box=(-0.9, -0.5, -0.45, 0.9, 0.5, 0.45)))
        return TrainState(config, device)

    def step(state, spoilt=False):
        views = AnyViews(Labels.of_poses(sample_poses(8, state.config.data, torch.Generator().manual_seed(1))))
        images = torch.full_like(photographs, torch.nan) if spoilt else photographs
        stats = train_step(state, views, images.pin_memory() if state.device == GPU else images, views.labels[:4])
        state.advance()
        check_numbers(state, stats, images)
        return stats

    return build, step


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_steps_on_a_gpu_are_those_of_the_cpu_with_a_skipped_one_among_them(runs, optimizer):
    build, step = runs
    found = []
    for device in (CPU, GPU):
        with pretended_gpu():
            state = build(device, f"training.optimizer={optimizer}")
            for i in range(12):
                step(state, spoilt=i == 7)
            count_bad_steps(state)
            assert state.bad_steps == 0 and state.step == 12
            networks = state.generator, state.discriminator, state.generator_ema
            found.append([p.detach().clone() for network in networks for p in network.parameters()])
    rate = min(group["lr"] for steps in (state.optimizer_g, state.optimizer_d) for group in steps.param_groups)
    for ours, theirs in zip(*found, strict=True):  # an optimizer turns the rounding of tiny gradients into parts of a rate
        assert (ours - theirs).abs().max() <= 0.02 * rate


def test_a_skipped_step_changes_nothing_on_a_gpu(runs):
    build, step = runs
    with pretended_gpu():
        state = build(GPU, "training.optimizer=rmsprop")
        step(state)
        before = [p.detach().clone() for p in state.discriminator.parameters()]
        averages = [value["square_avg"].clone() for value in state.optimizer_d.state.values()]
        step(state, spoilt=True)  # by real images, which the generator does not learn from
        kept = [value["square_avg"] for value in state.optimizer_d.state.values()]
        for old, new in ((before, state.discriminator.parameters()), (averages, kept)):
            assert all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


def test_bad_steps_are_read_when_a_row_is_due_with_the_same_decision(runs, caplog):
    build, step = runs
    with pretended_gpu() as gpu:
        state = build(GPU, "training.print_every=5")
        gpu.reset()
        for i in range(4):
            step(state, spoilt=i > 0)
        assert not gpu.waits and state.bad_steps == 0 and "skipped" not in caplog.text
        with pytest.raises(Derailed, match="3 steps in a row .* the last good step is 1. First, step 2: loss_d is nan"):
            step(state)
    assert caplog.text.count("skipped (") == 3


def test_bad_steps_are_counted_before_a_checkpoint_is_saved(runs):
    build, step = runs
    with pretended_gpu():
        state = build(GPU, "training.print_every=50")
        for _ in range(2):
            step(state, spoilt=True)
        count_bad_steps(state)
        assert state.bad_steps == 2 and state.first_bad.startswith("step 1: loss_d is nan")


FLOAT16 = ("training.use_amp=true", "training.amp_dtype=float16")


def scales(state):
    return [state.gradient_scales()[f"gradient_scale_{name}"] for name in "dg"]


def test_float16_backs_off_where_a_step_overflows_grows_and_goes_on_from_a_checkpoint(runs):
    build, step = runs
    with pretended_gpu() as gpu:
        state = build(GPU, *FLOAT16, "training.print_every=50")
        assert state.amp.dtype == torch.float16
        for scaler in (state.scaler_d, state.scaler_g):
            scaler.set_growth_interval(3)
            scaler.scale(torch.zeros((), device=GPU))  # which makes the scale
            scaler.update(1024.0)
        before = [p.detach().clone() for p in state.generator.parameters()]
        state.scaler_g.update(2.0**60)
        gpu.reset()
        step(state)
        assert not gpu.waits
        assert scales(state) == [1024, 2.0**59]
        assert all(torch.equal(a, b) for a, b in zip(before, state.generator.parameters(), strict=True))
        state.scaler_g.update(1024.0)
        step(state)
        assert not all(torch.equal(a, b) for a, b in zip(before, state.generator.parameters(), strict=True))
        saved = copy.deepcopy(state.state_dict())
        step(state)
        assert scales(state) == [2048, 1024]  # after three good steps, and after two
        resumed = build(GPU, *FLOAT16)
        resumed.load_state_dict(saved)
        assert scales(resumed) == [1024, 1024]
        step(resumed)
        assert scales(resumed) == [2048, 1024]
        for ours, theirs in zip(state.generator.parameters(), resumed.generator.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_step_that_is_not_finite_is_told_to_the_scaler(runs):
    build, step = runs
    with pretended_gpu():
        state = build(GPU, *FLOAT16)
        for scaler in (state.scaler_d, state.scaler_g):
            scaler.scale(torch.zeros((), device=GPU))
            scaler.update(1024.0)
        step(state, spoilt=True)
        assert scales(state) == [512, 1024]


@pytest.mark.parametrize("name, amp", [("default", True), ("default", False), ("cars_128", False)])
def test_the_planned_peak_is_near_what_tensors_hold(name, amp):
    settings = ("training.batch_size=2", f"training.use_amp={amp}", "training.amp_dtype=bfloat16", "ccsr.unrefined_steps=0")
    config = with_data(load_config(CONFIG_DIR / f"{name}.yaml", settings))
    with LiveBytes() as held, closing(steps_on_pretended_gpu(config, 2)) as steps_taken:  # or its modes outlive LiveBytes
        next(steps_taken)  # after which optimizers have their state
        held.peak = held.live
        next(steps_taken)
    assert 0.75 <= estimate_step(config, "cuda").step_bytes / held.peak <= 1.25


@pytest.mark.parametrize("failing", [1, 3])
def test_memory_that_runs_out_on_a_gpu_is_survived_in_smaller_parts(runs, monkeypatch, failing):
    build, step = runs
    with pretended_gpu():
        state, real, calls = build(GPU), steps.generator_loss, []

        def runs_out(logits, *given):
            calls.append(len(logits))
            if len(calls) == failing:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(logits, *given)

        monkeypatch.setattr(steps, "generator_loss", runs_out)
        for _ in range(3):
            step(state)
        assert state.step == 3 and state.sizes.images == 2
        assert calls == [4] * failing + [2] * 2 * (4 - failing)


@pytest.mark.parametrize("name", ["default", "graf"])
def test_an_apple_gpu_computes_a_step_in_float32_without_float64(name):
    config = with_data(load_config(CONFIG_DIR / f"{name}.yaml", (*LIGHT, "training.batch_size=2", "training.use_amp=true")))
    _, gpu = steps_on_pretended_gpu(config, 2, torch.device("mps"))
    assert gpu.launches.total() > 500 and not (gpu.mixtures | gpu.doubles)
    assert not gpu.copies  # from memory that is not pinned they are not to go on while it is freed
    assert {what.partition(" at ")[0] for what in gpu.waits} == {"copy from the host", "__bool__"}  # of a finite norm


class Pictures(Views):
    """Ten images of noise, with cameras or without; of `bad` ones none can be read."""

    def __init__(self, posed, bad=()):
        cameras = Labels.of_poses(sample_poses(10, load_config().data, torch.Generator().manual_seed(1)))
        super().__init__([f"{i}.png" for i in range(10)], ["a", "b"], torch.arange(10) % 2, cameras if posed else None, "x")
        self.bad = bad

    def read(self, index):
        if index in self.bad:
            raise DataError("no image")
        return torch.randint(256, (3, 16, 16), generator=torch.Generator().manual_seed(index), dtype=torch.uint8)


@pytest.mark.parametrize(
    "posed, mirror",
    [(True, "hflip=false"), (False, "hflip=false"), (False, "hflip=true"), (True, "mirror=0"), (True, "mirror=30")],
)
def test_images_on_the_gpu_come_in_the_batches_of_the_loader(smoke, posed, mirror):
    config = smoke("training.batch_size=4", f"data.{mirror}", "data.alpha=ignore", "training.nworkers=0")
    views = Pictures(posed)
    with closing(build_loader(views, config, CPU, 3)) as loader:
        wanted = [next(loader) for _ in range(4)]
    with pretended_gpu() as gpu:
        images = images_on_device(views, config, GPU, room_bytes=10 * 3 * 16 * 16)
        loader = build_loader(views, config, GPU, 3, images=images)
        gpu.reset()
        found = [next(loader) for _ in range(4)]
        assert not gpu.waits and not gpu.mixtures and not gpu.unpinned
        for (theirs, labels), (ours, known) in zip(wanted, found, strict=True):
            assert ours.device == GPU and torch.equal(as_floats(ours).cpu(), theirs)
            for name in ("class_index", "elevation_index") + posed * ("pose_c2w",):
                assert torch.equal(getattr(known, name), getattr(labels, name))


def test_images_stay_with_the_loader_where_they_do_not_fit_or_are_not_wanted(smoke, monkeypatch, caplog):
    config = smoke("data.alpha=ignore")
    with pretended_gpu():
        assert images_on_device(Pictures(True), config, GPU, room_bytes=10 * 3 * 16 * 16 - 1) is None
        assert images_on_device(Pictures(True), smoke("data.alpha=ignore", "data.cache_device=none"), GPU, 10**9) is None
        assert images_on_device(Pictures(True, bad=(4,)), config, GPU, room_bytes=10**9) is None
        assert images_on_device(Pictures(True), config, CPU, room_bytes=10**9) is None
        monkeypatch.setattr(
            Pictures, "read", lambda self, index: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
        )
        assert images_on_device(Pictures(True), config, GPU, room_bytes=10**9) is None
        assert "the images do not fit on the GPU (CUDA out of memory)" in caplog.text
        assert TrainState(config, GPU).spare_bytes() > 10**9 and TrainState(config, CPU).spare_bytes() == 0


def test_no_checkpoint_is_saved_amid_bad_steps_that_are_not_read_yet(runs, monkeypatch):
    build, step = runs
    with pretended_gpu():
        state, saved = build(GPU, "training.print_every=50", "training.save_every=2", "training.backup_every=2"), []
        session = Session(state, Interruption(), False, ())
        monkeypatch.setattr(session.guard, "_save", lambda: saved.append((state.step, "newest")))
        monkeypatch.setattr(session, "_save_backup", lambda: saved.append((state.step, "backup")))
        for i in range(4):
            step(state, spoilt=i == 1)
            session.save_what_is_due()
        assert saved == [(3, "newest"), (4, "newest"), (4, "backup")]  # not at step 2


def test_the_last_steps_of_a_run_are_judged(runs):
    build, step = runs
    with pretended_gpu():
        state = build(GPU, "training.print_every=50", "training.max_steps=4")
        step(state)
        for _ in range(2):
            step(state, spoilt=True)
        stats = {"loss_d": torch.tensor(torch.nan, device=GPU), "grad_norm_d": torch.tensor(torch.nan, device=GPU)}
        state.step += 1
        with pytest.raises(Derailed, match="the last good step is 1"):
            check_numbers(state, stats, torch.zeros(1))


def test_a_pose_step_waits_for_nothing_and_learns_as_on_the_cpu(photographs, labels):
    found, images = [], photographs[:, :3]
    for device in (CPU, GPU):
        with pretended_gpu() as gpu:
            settings = (
                "training.mirror=true",
                "training.batch_size=4",
                "data.imsize=16",
                "model.num_layers=1",
                "model.d_model=8",
            )
            state = PoseState(load_config("pose", (*settings, "training.use_amp=false"), PoseConfig), device, 4.0)
            for _ in range(3):
                gpu.reset()
                shown = images.pin_memory() if device == GPU else images
                stats = pose_step(state, shown, labels)
                state.advance()
                check_numbers(state, stats, shown)
            assert not (gpu.waits | gpu.mixtures | gpu.unpinned)
            found.append([p.detach().clone() for p in state.estimator.parameters()])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5
