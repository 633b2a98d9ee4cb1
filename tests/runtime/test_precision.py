"""Mixed precision where the processor multiplies 16-bit numbers, float32 elsewhere, and nobody is slowed down in silence."""

import logging
import platform

from graf.checkpoints.checkpoint import NEWEST, read_checkpoint, save_checkpoint
from graf.memory.planner import estimate_step
from graf.runtime import precision, private_torch
from graf.runtime.precision import AmpSettings, log_number_format, multiplies_bfloat16
from graf.training.samples import write_samples
from graf.training.state import TrainState, restore

import pytest
import torch

CPU, CARD = torch.device("cpu"), torch.device("cuda")
FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture
def products(monkeypatch):
    """Say whether the device has bfloat16 products."""
    return lambda there: monkeypatch.setattr(precision, "multiplies_bfloat16", lambda _: there)


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
    assert multiplies_bfloat16(CPU) == expected


@pytest.mark.parametrize(
    ("found", "expected"), [({"avx512_bf16": True}, True), ({"amx_tile": True}, True), ({"avx512_f": True}, False), ({}, False)]
)
def test_from_pytorch_2_14_on_the_public_function_is_asked(monkeypatch, found, expected):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setattr(private_torch, "_answer", lambda *_: pytest.fail("a private function was asked"))
    assert private_torch.multiplies_bfloat16_on_cpu() == expected


def test_a_version_of_torch_that_does_not_tell_has_no_products(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert not multiplies_bfloat16(CPU)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not multiplies_bfloat16(CPU)


@pytest.mark.parametrize(
    ("overrides", "there", "level", "said"),
    [
        (["training.use_amp=true"], False, logging.INFO, "no bfloat16 products on this processor; training in float32"),
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
    restore(tmp_path / NEWEST, TrainState(config, CPU))
    assert "number format" not in caplog.text
    products(False)
    restore(tmp_path / NEWEST, TrainState(config, CPU))
    assert "number format bfloat16 -> float32" in caplog.text


def test_a_checkpoint_without_its_number_format_is_continued_in_silence(smoke, tmp_path, caplog):
    state = TrainState(smoke(), CPU)
    save_checkpoint(tmp_path / NEWEST, state.checkpoint())
    content = read_checkpoint(tmp_path / NEWEST)
    del content["conditions"]["number_format"]
    torch.save(content, tmp_path / "older.pt")
    restore(tmp_path / "older.pt", TrainState(smoke(), CPU))
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
