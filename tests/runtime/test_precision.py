"""Mixed precision where the CPU multiplies 16-bit numbers, float32 elsewhere, and nobody is slowed down in silence."""

import logging
import math
import platform

from graf import private_torch
from graf.checkpoints.checkpoint import NEWEST, read_checkpoint, save_checkpoint
from graf.config import CONFIG_DIR, load_config, override
from graf.memory.planner import estimate_step
from graf.memory.sizes import starting_sizes
from graf.runtime import precision
from graf.runtime.limits import GB
from graf.runtime.precision import LARGEST_ERROR, AmpSettings, float16_error, has_bfloat16, log_number_format
from graf.training.samples import write_samples
from graf.training.state import TrainState, load_checkpoint

import pytest
import torch
from torch.nn import functional as F

CPU, CARD = torch.device("cpu"), torch.device("cuda")
FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture
def products(monkeypatch):
    """Say whether the device has hardware bfloat16; a GPU is fast and right in float16."""
    monkeypatch.setattr(precision, "why_not_float16", lambda _: "")
    return lambda there: monkeypatch.setattr(precision, "has_bfloat16", lambda _: there)


def chosen(smoke, device, *overrides):
    return AmpSettings.choose(smoke(*overrides).training, device)


@pytest.mark.parametrize(
    ("device", "named", "there", "dtype"),
    [
        (CPU, "auto", True, BFLOAT16),
        (CPU, "auto", False, FLOAT32),
        (CPU, "bfloat16", False, BFLOAT16),
        (CPU, "float16", True, BFLOAT16),
        (CPU, "float16", False, FLOAT32),
        (CARD, "auto", True, BFLOAT16),
        (CARD, "auto", False, FLOAT16),
        (CARD, "float16", True, FLOAT16),
        (CARD, "bfloat16", False, BFLOAT16),
    ],
)
def test_auto_takes_what_the_device_multiplies(smoke, products, device, named, there, dtype):
    products(there)
    amp = chosen(smoke, device, "training.use_amp=true", f"training.amp_dtype={named}")
    assert (amp.enabled, amp.dtype) == (dtype != FLOAT32, dtype)
    assert amp.number_format == str(dtype).split(".")[1]
    off = chosen(smoke, device, f"training.amp_dtype={named}")
    assert (off.enabled, off.number_format) == (False, "float32")


@pytest.mark.parametrize(
    ("use_amp", "there", "dtype"), [("true", True, BFLOAT16), ("true", False, FLOAT32), ("false", True, FLOAT32)]
)
def test_products_under_autocast_have_the_chosen_format(smoke, products, use_amp, there, dtype):
    products(there)
    amp = chosen(smoke, CPU, f"training.use_amp={use_amp}")
    with amp.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
        with amp.autocast(enabled=False):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == FLOAT32
    assert not amp.scaler().is_enabled()


@pytest.fixture
def gpu(cards, monkeypatch):
    """A GPU of this name, compute capability, and error of a convolution in float16."""

    def install(name, capability=(7, 5), error=3e-4):
        cards(name, capability=capability)
        monkeypatch.setattr(precision, "float16_error", lambda _: error)

    return install


@pytest.mark.parametrize(
    ("name", "capability", "dtype"),
    [
        ("NVIDIA GeForce GTX 1650", (7, 5), FLOAT32),
        ("NVIDIA GeForce GTX 1660 SUPER", (7, 5), FLOAT32),
        ("GeForce GTX 1650 with Max-Q Design", (7, 5), FLOAT32),
        ("NVIDIA GeForce MX450", (7, 5), FLOAT32),
        ("NVIDIA T400 4GB", (7, 5), FLOAT32),
        ("NVIDIA T1200 Laptop GPU", (7, 5), FLOAT32),
        ("Quadro T2000 with Max-Q Design", (7, 5), FLOAT32),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1), FLOAT32),
        ("Tesla P100-PCIE-16GB", (6, 0), FLOAT32),
        ("Tesla T4", (7, 5), FLOAT16),
        ("NVIDIA T4G", (7, 5), FLOAT16),
        ("NVIDIA GeForce RTX 2060", (7, 5), FLOAT16),
        ("Quadro RTX 4000", (7, 5), FLOAT16),
        ("NVIDIA TITAN RTX", (7, 5), FLOAT16),
        ("Tesla V100-SXM2-32GB", (7, 0), FLOAT16),
        ("NVIDIA A100-SXM4-40GB", (8, 0), BFLOAT16),
        ("NVIDIA GeForce MX570", (8, 6), BFLOAT16),
    ],
)
def test_auto_takes_float16_where_a_gpu_has_tensor_cores(smoke, gpu, name, capability, dtype):
    """By PyTorch's own functions, from names and capabilities as cards tell them."""
    gpu(name, capability)
    assert chosen(smoke, CARD, "training.use_amp=true").dtype == dtype
    assert chosen(smoke, torch.device("cuda", 0), "training.use_amp=true").dtype == dtype


@pytest.mark.parametrize(("error", "dtype"), [(9e-4, FLOAT16), (0.011, FLOAT32), (math.inf, FLOAT32)])
def test_auto_takes_float32_where_convolutions_in_float16_are_wrong(smoke, gpu, error, dtype):
    gpu("Tesla T4", error=error)
    assert chosen(smoke, CARD, "training.use_amp=true").dtype == dtype
    assert chosen(smoke, CARD, "training.use_amp=true", "training.amp_dtype=float16").dtype == FLOAT16


def test_a_gpu_that_is_not_asked_for_16_bits_compares_nothing(smoke, cards, monkeypatch):
    monkeypatch.setattr(precision, "float16_error", lambda _: pytest.fail("compared"))
    cards("Tesla T4", capability=(7, 5))
    assert chosen(smoke, CARD).dtype == FLOAT32
    cards("NVIDIA A100", capability=(8, 0))
    assert chosen(smoke, CARD, "training.use_amp=true").dtype == BFLOAT16


PLANTED = {  # in one of the three convolutions: output, expected error
    "right": (lambda out: out, 6e-4),
    "one pixel": (lambda out: out.index_fill(3, torch.tensor([0]), torch.nan), math.inf),
    "overflow": (lambda out: out * 65504 * 65504, math.inf),
    "too large by an eighth": (lambda out: out * 1.125, 0.125),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_convolutions_in_float16_are_compared_with_float32(monkeypatch, planted):
    (spoil, expected), conv2d = PLANTED[planted], F.conv2d

    def faulty(images, weights):
        out = conv2d(images, weights)
        return spoil(out) if images.dtype == FLOAT16 and len(weights) == 256 else out

    monkeypatch.setattr(F, "conv2d", faulty)
    before = torch.get_rng_state()
    error = float16_error.__wrapped__(CPU, side=8)
    if planted == "right":
        assert 0 < error < 1e-3 < LARGEST_ERROR
    elif math.isfinite(expected):
        # the gradient of a square has the factor twice
        assert error == pytest.approx((1 + expected) ** 2 - 1, rel=0.01)
    else:
        assert error == math.inf
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "error", "named", "level", "said"),
    [
        ("GTX 1650", 3e-4, "auto", logging.INFO, "mixed precision: this GTX 1650 has no tensor cores; training in float32"),
        (
            *("GTX 1650", math.inf, "auto", logging.INFO),
            "mixed precision: a convolution in float16 is not finite on this GTX 1650; training in float32",
        ),
        (
            *("Tesla T4", 0.25, "auto", logging.INFO),
            "mixed precision: a convolution in float16 is off by 25% of float32's on this Tesla T4; training in float32",
        ),
        (
            *("GTX 1650", math.inf, "float16", logging.WARNING),
            "training.amp_dtype: float16, but a convolution in float16 is not finite on this GTX 1650; "
            "training.amp_dtype=auto takes another format here",
        ),
        (
            *("Tesla T4", 3e-4, "bfloat16", logging.WARNING),
            "training.amp_dtype: bfloat16 on a GPU that only emulates it: expect slow steps; training.amp_dtype=auto takes "
            "another format here",
        ),
        ("Tesla T4", 3e-4, "auto", None, ""),
        ("Tesla T4", 3e-4, "float16", None, ""),
    ],
)
def test_a_line_says_why_a_gpu_does_not_train_in_float16(smoke, gpu, caplog, name, error, named, level, said):
    gpu(name, error=error)
    with caplog.at_level(logging.INFO, "graf"):
        log_number_format(smoke("training.use_amp=true", f"training.amp_dtype={named}").training, CARD)
        log_number_format(smoke(f"training.amp_dtype={named}").training, CARD)  # without use_amp: nothing
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == ([] if level is None else [(level, said)])


def test_safe_training_fits_4_gb_in_float32_too(gpu):
    """By the planner, on the GTX 1650 that it is for, which trains in float32."""
    config = load_config(CONFIG_DIR / "safe_training.yaml")
    gpu("Tesla T4")
    in_float16 = estimate_step(config, "cuda").total_bytes
    gpu("NVIDIA GeForce GTX 1650")
    in_float32 = estimate_step(config, "cuda").total_bytes
    assert in_float16 < in_float32 == estimate_step(override(config, ["training.use_amp=false"]), "cuda").total_bytes
    assert in_float32 < GB  # of 4
    sizes = starting_sizes(config, "cuda", 3 * GB)
    assert (sizes.images, sizes.rays) == (4, 0)  # what the config asks for


def test_float16_needs_a_scaler_and_bfloat16_none():
    assert AmpSettings("cpu", FLOAT16).scaler().is_enabled()
    assert not AmpSettings("cpu", BFLOAT16).scaler().is_enabled()
    assert not AmpSettings("cpu", FLOAT32).scaler().is_enabled()


@pytest.mark.parametrize(
    ("machine", "has", "variables", "aten", "expected"),
    [
        ("x86_64", {"_is_avx512_bf16_supported"}, {}, "AVX512", True),
        ("AMD64", {"_is_amx_tile_supported"}, {}, "AVX512", True),
        ("x86_64", {"_is_mkldnn_bf16_supported"}, {}, "AVX512", False),  # AVX-512 without the products: oneDNN emulates them
        ("x86_64", set(), {}, "AVX2", False),
        ("x86_64", {"_is_avx512_bf16_supported"}, {}, "AVX2", False),  # ATEN_CPU_CAPABILITY=avx2
        ("x86_64", {"_is_avx512_bf16_supported"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "AVX512", False),
        ("x86_64", {"_is_avx512_bf16_supported"}, {"DNNL_MAX_CPU_ISA": "avx512_core"}, "AVX512", False),
        ("x86_64", {"_is_avx512_bf16_supported"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "AVX512", True),
        ("x86_64", {"_is_amx_tile_supported"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, "AVX512", True),
        ("aarch64", {"_is_mkldnn_bf16_supported"}, {}, "DEFAULT", True),
        ("arm64", set(), {}, "DEFAULT", False),
        ("ppc64le", {"_is_mkldnn_bf16_supported"}, {}, "VSX", False),
    ],
)
def test_products_are_a_matter_of_the_processor_and_what_the_user_lets_it_do(
    monkeypatch, machine, has, variables, aten, expected
):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(private_torch, "_answer", lambda _, name: name in has)
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)  # as before PyTorch 2.14
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: aten)
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_bfloat16(CPU) == expected


@pytest.mark.parametrize(
    ("found", "expected"), [({"avx512_bf16": True}, True), ({"amx_tile": True}, True), ({"avx512_f": True}, False), ({}, False)]
)
def test_from_pytorch_2_14_on_the_public_function_is_asked(monkeypatch, found, expected):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(private_torch, "_answer", lambda *_: pytest.fail("a private function was asked"))
    assert private_torch.cpu_has_bfloat16() == expected


def test_a_version_of_torch_that_does_not_tell_has_no_products(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert not has_bfloat16(CPU)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not has_bfloat16(CPU)


@pytest.mark.parametrize(
    ("overrides", "there", "level", "said"),
    [
        (["training.use_amp=true"], False, logging.INFO, "no hardware bfloat16 on this CPU; training in float32"),
        (["training.use_amp=true", "training.amp_dtype=float16"], False, logging.INFO, "training in float32"),
        (["training.use_amp=true", "training.amp_dtype=float16"], True, logging.INFO, "training in bfloat16"),
        (["training.use_amp=true", "training.amp_dtype=bfloat16"], False, logging.WARNING, "expect steps 7 times slower"),
        (["training.use_amp=true"], True, None, ""),
        (["training.use_amp=true", "training.amp_dtype=bfloat16"], True, None, ""),
        (["training.amp_dtype=bfloat16"], False, None, ""),
    ],
)
def test_one_line_says_what_is_not_as_its_name_says(smoke, products, caplog, overrides, there, level, said):
    products(there)
    with caplog.at_level(logging.INFO, "graf"):
        log_number_format(smoke(*overrides).training, CPU)
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])
    assert said in caplog.text


def test_the_planner_counts_the_format_that_the_step_takes(refine, products):
    def size(*overrides):
        return estimate_step(refine("training.batch_size=16", *overrides)).step_bytes

    products(True)
    half = size("training.use_amp=true")
    products(False)
    assert size("training.use_amp=true") == size() > 1.1 * half
    assert size("training.use_amp=true", "training.amp_dtype=bfloat16") == half


def test_a_run_that_moved_says_that_its_number_format_changed(smoke, products, tmp_path, caplog):
    products(True)
    config = smoke("training.use_amp=true")
    save_checkpoint(tmp_path / NEWEST, TrainState(config, CPU).checkpoint())
    load_checkpoint(tmp_path / NEWEST, TrainState(config, CPU))
    assert "number format" not in caplog.text
    products(False)
    load_checkpoint(tmp_path / NEWEST, TrainState(config, CPU))
    assert "number format bfloat16 -> float32" in caplog.text


def test_a_checkpoint_without_its_number_format_is_continued_in_silence(smoke, tmp_path, caplog):
    state = TrainState(smoke(), CPU)
    save_checkpoint(tmp_path / NEWEST, state.checkpoint())
    content = read_checkpoint(tmp_path / NEWEST)
    del content["conditions"]["number_format"]
    torch.save(content, tmp_path / "older.pt")
    load_checkpoint(tmp_path / "older.pt", TrainState(smoke(), CPU))
    assert "number format" not in caplog.text


def test_pictures_are_rendered_in_float32_whatever_training_takes(smoke, products, tmp_path):
    products(True)
    outdir = f"training.outdir={tmp_path}"
    state, seen = TrainState(smoke("training.use_amp=true", "memory.max_validation_outputs=4", outdir), CPU), set()
    field = state.generator_ema.field
    field.register_forward_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    state.config.run_dir.mkdir()
    write_samples(state)
    assert seen == {False}


def test_threads_share_no_cache_of_converted_weights():
    with AmpSettings("cpu", torch.bfloat16).autocast():
        assert not torch.is_autocast_cache_enabled()


def test_operations_are_repeatable_for_a_block_alone():
    def settings():
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled(), warns, torch.utils.deterministic.fill_uninitialized_memory

    before = settings()
    with precision.repeatable(CPU):
        assert settings() == (True, True, False)
    assert settings() == before == (False, False, True)


def test_on_a_card_float32_is_what_pytorch_makes_of_it():
    """Convolutions multiply in TF32, matrix products do not, as docs/running.md says."""
    with precision.repeatable(CPU):
        assert torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"
