"""Each path of the code that only a GPU takes, once: `make test-gpu`."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import closing

from graf.camera import Labels
from graf.checkpoints.checkpoint import save_checkpoint
from graf.data import build_loader
from graf.data.toy_cars import ToyCars
from graf.memory.budget import enforce_budget
from graf.memory.readings import GPU_READINGS, Gpu, read_allocator
from graf.models.fields import fused_film
from graf.models.fields.fused_film import SAMPLES_AND_WARPS, TILE
from graf.models.fields.fusing import LEAST_CAPABILITY, why_not_fused
from graf.models.generator import Generator
from graf.runtime.precision import LARGEST_ERROR, float16_error, why_not_float16
from graf.training.graphs import EAGER_STEPS, CudaRecorder, Graphs
from graf.training.state import TrainState, load_checkpoint
from graf.training.step import train_step
from step_rows import AnyViews

import pytest
import torch
from command_line import ROOT
from halves import discriminator_step, generator_step
from test_distributed import run_that_loses_its_second_process

GPU = torch.device("cuda", 0)
N_GPUS = torch.cuda.device_count()
SETTLED = ("discriminator.low_res_steps=0", "discriminator.blur_steps=0")  # so that steps are of one kind, which is recorded
FLOAT16 = ("training.use_amp=true", "training.amp_dtype=float16")
CAN_FUSE = N_GPUS > 0 and torch.cuda.get_device_capability(GPU) >= LEAST_CAPABILITY
WIDE = ("training.use_amp=true", "nerf.netwidth=64", "nerf.multires=6")
only_fusing = pytest.mark.skipif(not CAN_FUSE, reason="no GPU here fuses fields")
FUSED = pytest.param(WIDE, marks=only_fusing, id="fused")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(N_GPUS == 0, reason="no CUDA GPU here")]


def take_steps(state, images, labels, n):
    for _ in range(n):
        stats = discriminator_step(state, images, labels, labels) | generator_step(state, labels, images, labels)
        state.advance()
    return stats


def weights(state):
    return [p.clone() for network in (state.generator, state.discriminator) for p in network.parameters()]


def test_float16_trains_with_a_live_scaler_that_falls_where_a_step_overflows(film, photographs, labels):
    state, images, labels = TrainState(film(*FLOAT16), GPU, n_classes=2, n_elevations=3), photographs.to(GPU), labels.to(GPU)
    before = weights(state)
    state.scaler_g.scale(torch.zeros((), device=GPU))  # which makes the scale
    state.scaler_g.update(2.0**60)
    take_steps(state, images, labels, 1)
    assert state.gradient_scales()["gradient_scale_g"] == 2.0**59
    n_of_generator = len(list(state.generator.parameters()))
    assert all(torch.equal(p, q) for p, q in zip(before[:n_of_generator], weights(state), strict=False))
    state.scaler_g.update(1024.0)
    take_steps(state, images, labels, 1)
    assert not all(torch.equal(p, q) for p, q in zip(before[:n_of_generator], weights(state), strict=False))


@pytest.mark.parametrize("overrides", [(), FUSED])
@pytest.mark.parametrize("cuda_graphs", ["none", "auto"])
def test_a_step_waits_for_nothing(film, photographs, labels, cuda_graphs, overrides):
    """This is bench/pretended_gpu.py on a real GPU; the first steps make what is kept, and record."""
    config = film(*SETTLED, *overrides, f"training.cuda_graphs={cuda_graphs}")
    state, views = TrainState(config, GPU, 2, 3), AnyViews(labels)
    for mode in ["default"] * (EAGER_STEPS + 1) + ["error"]:
        torch.cuda.set_sync_debug_mode(mode)
        try:
            stats = train_step(state, views, photographs.pin_memory(), labels)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        state.advance()
    assert stats["grad_norm_g"].isfinite() and state.graphs.recorded == (2 if cuda_graphs == "auto" else 0)


COMPILED = pytest.param(("training.compile=true",), marks=pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler"))


@pytest.mark.parametrize("overrides", [(), FLOAT16, ("training.micro_batch=2",), COMPILED, FUSED])
def test_recorded_steps_are_those_that_are_launched(film, photographs, labels, monkeypatch, overrides):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    rows, states = [], []
    for cuda_graphs in ("none", "auto"):
        states.append(TrainState(film(*SETTLED, *overrides, f"training.cuda_graphs={cuda_graphs}"), GPU, 2, 3))
        steps = [take_steps(states[-1], photographs.to(GPU).roll(i, 2), labels.to(GPU), 1) for i in range(EAGER_STEPS + 6)]
        rows.append([{name: value.sum().item() for name, value in stats.items()} for stats in steps])
    assert [state.graphs.recorded for state in states] == [0, 2]
    for launched, recorded in zip(*rows, strict=True):
        assert recorded == pytest.approx(launched, rel=1e-3, abs=1e-4)


@only_fusing
@pytest.mark.parametrize("width", SAMPLES_AND_WARPS)
def test_a_fused_field_is_the_field(film, monkeypatch, width):
    """Within a product's rounding in 16 bits; the backward pass takes three pieces, of which the last is not full."""
    monkeypatch.setattr(fused_film, "SCRATCH_BYTES", 0)
    config = film(*WIDE, f"nerf.netwidth={width}", f"nerf.samples_per_ray={5 * TILE // 2 // 64}")
    assert why_not_fused(config, "cuda", torch.bfloat16) == ""
    torch.manual_seed(0)
    generator = Generator(config).to(GPU)
    field, latents = generator.field, torch.randn(4, config.z_dist.dim, device=GPU)
    points = torch.rand(4, 64, config.nerf.samples_per_ray, 3, device=GPU) * 2 - 1
    density_gradient, colour_gradient = torch.randn_like(points[..., 0]), torch.randn_like(points)
    found = []
    for enabled, fused in ((False, False), (True, False), (True, True)):
        field.zero_grad()
        field.fused = fused
        with torch.autocast("cuda", torch.bfloat16, enabled):
            outputs = field(points, torch.zeros(4, 64, 3, device=GPU), field.styles(latents))
        torch.autograd.backward(outputs, [density_gradient, colour_gradient])
        found.append([*outputs, *(p.grad.clone() for p in field.parameters())])
    exact, by_layers, fused = found
    for true, rounded, value in zip(exact, by_layers, fused, strict=True):
        assert (value - true).norm() <= 3 * (rounded - true).norm()


def runs_out():
    raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize("fail", [runs_out, lambda: torch.ones(1, device=GPU).item()], ids=["memory", "a value is read"])
def test_steps_go_on_where_one_cannot_be_recorded(film, photographs, labels, caplog, fail):
    class Fails(CudaRecorder):
        def __call__(self, work):
            return super().__call__(lambda: (work(), fail())[0])

    launched, recorded = (TrainState(film(*SETTLED, f"training.cuda_graphs={yes}"), GPU, 2, 3) for yes in ("none", "auto"))
    recorded.graphs = Graphs(Fails)
    images, labels = photographs.to(GPU), labels.to(GPU)
    expected, found = (take_steps(state, images, labels, EAGER_STEPS + 4) for state in (launched, recorded))
    assert caplog.text.count("steps are no longer recorded as CUDA graphs") == 1
    assert found["loss_g"].item() == pytest.approx(expected["loss_g"].item(), rel=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_step_that_is_not_finite_leaves_everything_as_it_was(film, photographs, labels, optimizer):
    state = TrainState(film(f"training.optimizer={optimizer}"), GPU, n_classes=2, n_elevations=3)
    take_steps(state, photographs.to(GPU), labels.to(GPU), 1)
    before = [p.clone() for p in state.discriminator.parameters()]
    averages = {id(p): {name: x.clone() for name, x in kept.items()} for p, kept in state.optimizer_d.state.items()}
    take_steps(state, torch.full_like(photographs, torch.nan).to(GPU), labels.to(GPU), 1)
    assert all(torch.equal(p, q) for p, q in zip(before, state.discriminator.parameters(), strict=True))
    for p, kept in state.optimizer_d.state.items():
        assert all(torch.equal(kept[name], x) for name, x in averages[id(p)].items() if name != "step" or optimizer == "adam")


def test_what_the_gpu_computes_in_float16_is_compared_with_float32():
    assert (float16_error(GPU) <= LARGEST_ERROR) == ("convolution" not in why_not_float16(GPU))


def test_each_weight_of_grafs_field_has_a_gradient_in_float16(concat, photographs, labels):
    """The discriminator's fakes are rendered without gradients before, by the same weights."""
    state = TrainState(concat(*FLOAT16), GPU, n_classes=2, n_elevations=3)
    take_steps(state, photographs.to(GPU), labels.to(GPU), 1)
    assert [name for name, p in state.generator.field.named_parameters() if p.grad is None] == []


def test_batches_lie_in_pinned_memory(smoke, labels):
    pictures = torch.zeros(4, 3, 16, 16, dtype=torch.uint8)
    with closing(build_loader(ToyCars(pictures, Labels.of_poses(labels.pose_c2w), "grey"), smoke(), GPU)) as batches:
        images, _ = next(batches)
        assert images.is_pinned()


def test_a_rendering_that_does_not_fit_is_taken_in_smaller_pieces(film, labels, caplog):
    wide = ("nerf.netwidth=512", "nerf.samples_per_ray=256", "nerf.render_samples_per_ray=0", "data.imsize=64")
    fits, too_large = (Generator(film(*wide, f"nerf.chunk={chunk}")).to(GPU) for chunk in (512, 2**20))
    too_large.load_state_dict(fits.state_dict())
    latents = fits.sample_latents(4, torch.Generator().manual_seed(0)).to(GPU)
    expected = fits.render(latents, labels.pose_c2w).images
    torch.cuda.empty_cache()
    try:
        enforce_budget(film("memory.budget_gb=1").memory, GPU)  # of the 8 GB of a layer
        found = too_large.render(latents, labels.pose_c2w).images
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    assert "retried in smaller pieces" in caplog.text
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_driver_and_the_allocator_answer():
    tensor = torch.zeros(2**20, device=GPU)
    assert read_allocator(GPU)["allocated_bytes"] >= tensor.nbytes
    found = Gpu(GPU).read()
    assert tensor.nbytes <= found["gpu_used_bytes"] <= found["gpu_total_bytes"]
    pytest.importorskip("pynvml")
    assert GPU_READINGS.keys() & found.keys()


@pytest.mark.parametrize("overrides", [pytest.param((), id="float32"), pytest.param(FLOAT16, id="float16"), FUSED])
def test_a_resumed_run_is_the_straight_one_bit_for_bit(film, photographs, labels, tmp_path, monkeypatch, overrides):
    """With cuDNN's deterministic kernels: a film without CCSR has no other operation that adds in no fixed order. The straight
    run's last steps are recorded ones, the resumed run's are not."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    images, labels = photographs.to(GPU), labels.to(GPU)
    straight, first, second = (TrainState(film(*SETTLED, *overrides), GPU, n_classes=2, n_elevations=3) for _ in range(3))
    take_steps(straight, images, labels, EAGER_STEPS + 4)
    take_steps(first, images, labels, EAGER_STEPS + 2)
    assert straight.graphs.recorded == first.graphs.recorded == 2
    save_checkpoint(tmp_path / "model.pt", first.checkpoint())
    load_checkpoint(tmp_path / "model.pt", second)
    take_steps(second, images, labels, 2)
    assert all(torch.equal(p, q) for p, q in zip(weights(straight), weights(second), strict=True))


def test_a_run_that_loads_an_earlier_state_records_anew(film, photographs, labels):
    state, images, labels = TrainState(film(*SETTLED), GPU, n_classes=2, n_elevations=3), photographs.to(GPU), labels.to(GPU)
    for _ in range(3):
        take_steps(state, images, labels, EAGER_STEPS + 2)
        assert state.graphs.recorded == 2
        state.load_state_dict(state.state_dict())


@pytest.mark.skipif(N_GPUS < 2, reason="fewer than two CUDA GPUs here")
@pytest.mark.parametrize("loss", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_lost_in_the_middle_of_a_step_ends_the_other(tmp_path, loss):
    statuses, said, step = run_that_loses_its_second_process(tmp_path, loss, "cuda")
    assert statuses[0] == 1 and "another process of the run is gone or hangs" in said and step == 2


@pytest.mark.skipif(N_GPUS < 2, reason="fewer than two CUDA GPUs here")
def test_two_processes_train_as_one(tmp_path):
    rows = []
    for n in (1, 2):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={n}",
            str(ROOT / "train.py"),
        ]
        command += ["--config", "smoke", "--device", "cuda", "--max_steps", "4", "--set", f"training.outdir={n}"]
        subprocess.run(command, cwd=tmp_path, check=True)
        lines = (tmp_path / str(n) / "smoke" / "metrics.jsonl").read_text().splitlines()
        rows.append([row for row in map(json.loads, lines) if "loss_g" in row])
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]] == [1, 2, 3, 4]
    for one, two in zip(*rows, strict=True):
        assert two["loss_g"] == pytest.approx(one["loss_g"], rel=1e-2)
        assert two["loss_d"] == pytest.approx(one["loss_d"], rel=1e-2)
