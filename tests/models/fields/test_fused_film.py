"""The fused field against the field, in Triton's interpreter on the CPU, and where it is taken."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from graf.config import CONFIG_DIR, load_config
from graf.models.fields import fused_film, fusing
from graf.models.fields.fused_film import TILE, rows_at_once, scratch_bytes
from graf.models.fields.fusing import why_not_fused
from graf.models.fields.radiance_field import FilmField
from graf.models.registry import build_field
from graf.training import state

import pytest
import torch

HERE = Path(__file__).parent
TAKEN = ("nerf.conditioning=film", "nerf.netwidth=64")


@pytest.fixture(scope="module")
def interpreted():
    """What interpreted_film.py finds; in a process of its own, for Triton asks for the interpreter once."""
    pytest.importorskip("triton")
    paths = [str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(HERE / "interpreted_film.py")]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.mark.parametrize("width", fused_film.SAMPLES_AND_WARPS)
def test_a_fused_field_has_the_outputs_and_gradients_of_its_layers(interpreted, width):
    found = interpreted[str(width)]
    assert {"density", "colour", "layers.0.weight", "colour.bias", "shape_mapping.0.weight"} <= found["float32"].keys()
    assert max(found["float32"].values()) < 1e-5, found
    assert found["float16"] < 0.01 and found["recomputed"]


@pytest.mark.parametrize("width", fused_film.SAMPLES_AND_WARPS)
def test_what_is_not_finite_shows_in_the_outputs(interpreted, width):
    """With ReLUs that take it for 0 the discriminator would learn from such fakes."""
    assert interpreted[str(width)]["not finite"] == [True, True]


@pytest.fixture
def ampere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "toy GPU")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(fusing.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(fusing, "fault_of_kernels", lambda *field: "")
    return monkeypatch


def config(*overrides):
    return load_config(CONFIG_DIR / "smoke.yaml", (*TAKEN, *overrides))


def test_a_film_of_a_fitting_width_is_fused_in_mixed_precision_on_a_gpu(ampere):
    assert why_not_fused(config(), "cuda", torch.bfloat16) == why_not_fused(config(), "cuda", torch.float16) == ""
    assert why_not_fused(config(), "cuda", torch.float32) == "numbers are float32"
    assert why_not_fused(config(), "cpu", torch.bfloat16) == "no NVIDIA GPU is here"


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("training.fused_field=none", "training.fused_field=none"),
        ("nerf.conditioning=concat", "only a film field"),
        ("nerf.use_viewdirs=true", "without view directions"),
        ("nerf.netwidth=96", "nerf.netwidth is 96, not 64 or 128"),
        ("nerf.multires=11", "nerf.multires=11 makes 69 channels, more than nerf.netwidth"),
    ],
)
def test_what_the_kernel_does_not_know_is_not_fused(ampere, override, why):
    assert why in why_not_fused(config(override), "cuda", torch.bfloat16)


def test_a_fine_network_is_fused_with_the_coarse_one_or_neither(ampere):
    fine = ("nerf.importance_samples_per_ray=8", "nerf.netwidth_fine=128")
    assert why_not_fused(config(*fine), "cuda", torch.bfloat16) == ""
    assert "is 32" in why_not_fused(config(*fine, "nerf.netwidth_fine=32"), "cuda", torch.bfloat16)
    assert why_not_fused(config("nerf.netwidth_fine=32"), "cuda", torch.bfloat16) == ""  # which is not built


@pytest.mark.parametrize(
    ("where", "name", "value", "why"),
    [
        (torch.cuda, "get_device_capability", lambda: (7, 5), "this toy GPU is older than Ampere"),
        (torch.version, "cuda", None, "no NVIDIA GPU is here"),
        (fusing.importlib.util, "find_spec", lambda name: None, "this PyTorch comes without Triton"),
        (fusing, "fault_of_kernels", lambda *field: "it is Friday", "it is Friday"),
    ],
)
def test_other_gpus_and_a_pytorch_without_triton_compute_layers(ampere, where, name, value, why):
    ampere.setattr(where, name, value)
    assert why_not_fused(config(), "cuda", torch.bfloat16) == why


@pytest.fixture
def on_cpu(monkeypatch):
    """fault_of_kernels as on a GPU; what it finds is forgotten after the test."""
    for module in (torch.Tensor, FilmField):
        monkeypatch.setattr(module, "to", lambda self, *where, **options: self)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "toy GPU")
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    fusing.fault_of_kernels.cache_clear()
    yield monkeypatch
    fusing.fault_of_kernels.cache_clear()


def test_a_kernel_that_cannot_be_built_is_tried_once(on_cpu):
    """Python's headers or a compiler may be missing."""
    tries = []

    def fails(*inputs):
        tries.append(inputs)
        raise RuntimeError("Failed to find C compiler\nmore of it")

    on_cpu.setattr(FilmField, "fused_forward", fails)
    found = {fusing.fault_of_kernels(3, 64, 6, torch.bfloat16) for _ in range(2)}
    assert len(tries) == len(found) == 1 and found.pop().endswith("C compiler or Python's headers: Failed to find C compiler")


def test_a_kernel_with_wrong_numbers_is_not_taken(on_cpu):
    on_cpu.setattr(FilmField, "fused_forward", lambda field, points, styles, dtype: field(points, points[:, :, 0], styles))
    assert fusing.fault_of_kernels(3, 64, 6, torch.bfloat16) == ""
    half = lambda field, points, styles, dtype: [x / 2 for x in field(points, points[:, :, 0], styles)]  # noqa: E731
    on_cpu.setattr(FilmField, "fused_forward", half)
    assert fusing.fault_of_kernels(3, 128, 6, torch.bfloat16) == "the kernel is off by 75% on this toy GPU"
    on_cpu.setattr(
        FilmField, "fused_forward", lambda field, points, styles, dtype: [x / 0 for x in half(field, points, styles, dtype)]
    )
    assert "off by inf" in fusing.fault_of_kernels(2, 64, 6, torch.bfloat16)


def test_memory_that_runs_out_is_no_fault_of_the_kernel(on_cpu):
    def runs_out(*inputs):
        raise torch.OutOfMemoryError("no room")

    on_cpu.setattr(FilmField, "fused_forward", runs_out)
    with pytest.raises(torch.OutOfMemoryError):
        fusing.fault_of_kernels(3, 64, 6, torch.bfloat16)


def test_a_fused_field_is_taken_under_autocast_for_points_without_gradient(monkeypatch):
    field = build_field(config(), 2, 64)
    points, styles, taken = torch.rand(2, 3, 4, 3), field.styles(torch.randn(2, config().z_dist.dim)), []
    monkeypatch.setattr(field, "fused_forward", lambda *inputs: taken.append(inputs[2]))

    def evaluate(points, enabled=True):
        with torch.autocast("cpu", torch.bfloat16, enabled):
            field(points, torch.zeros(2, 3, 3), styles)

    evaluate(points)
    assert taken == []
    field.fused = True
    evaluate(points, enabled=False)
    evaluate(points.requires_grad_())
    assert taken == []
    evaluate(points.detach())
    assert taken == [torch.bfloat16]


def test_the_fields_that_train_are_fused_and_not_compiled(monkeypatch, caplog):
    monkeypatch.setattr(state, "why_not_fused", lambda *asked: "")
    monkeypatch.setattr(state, "compile_fields", lambda generator: pytest.fail("compiled"))
    with caplog.at_level("INFO", "graf"):
        training = state.TrainState(config("training.compile=true"), torch.device("cpu"))
    assert training.generator.field.fused and not training.generator_ema.field.fused
    assert "training.compile: nothing to compile" in caplog.text


def test_the_backward_pass_holds_its_scratch_and_no_more():
    for n_images, n_samples, width in ((1, 100, 64), (8, 98304, 64), (32, 196608, 128)):
        rows = rows_at_once(n_images, n_samples, 5, width, 2)
        assert rows % TILE == 0 and rows < n_samples + TILE
        assert scratch_bytes(n_images, rows, 5, width, 2) <= max(
            fused_film.SCRATCH_BYTES, scratch_bytes(n_images, TILE, 5, width, 2)
        )
    assert rows_at_once(1000, 98304, 5, 128, 2) == TILE


@pytest.mark.parametrize("width", fused_film.SAMPLES_AND_WARPS)
@pytest.mark.parametrize("name", ["film_forward", "film_backward"])
def test_the_kernels_compile_for_a_gpu_that_is_not_here(name, width, monkeypatch, tmp_path):
    """The interpreter lets pass what the compiler refuses. The wider one has fewer layers and frequencies than a run's, which
    repeat the same code."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pytest.importorskip("triton")
    from graf.models.fields import film_kernels

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    kernel, (samples, n_warps) = getattr(film_kernels, name), fused_film.SAMPLES_AND_WARPS[width][name == "film_backward"]
    layers, frequencies = (5, 6) if width == 64 else (3, 2)
    constants = {"FREQUENCIES": frequencies, "L": layers, "C": width, "M": samples}
    types = dict.fromkeys(("weights", "inputs", "d_outputs"), "*bf16") | dict.fromkeys(("n", "start", "layer_stride"), "i32")
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    target = GPUTarget("cuda", 10 * fusing.LEAST_CAPABILITY[0], 32)
    options = fused_film.OPTIONS | {"num_warps": n_warps, "maxnreg": fused_film.MOST_REGISTERS if n_warps == 4 else None}
    assert compile(ASTSource(kernel, signature, constants), target, options).asm["cubin"]
