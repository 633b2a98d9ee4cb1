"""tools/check_system.py: what it prints and how it ends."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

from graf.config import CONFIG_DIR, load_config, override
from graf.memory import planner
from graf.memory.planner import estimate_step
from graf.runtime import precision
from graf.runtime.limits import GB, MB
from graf.training import step as steps

import pytest
import torch

ROOT = Path(__file__).parents[2]
SMOKE = CONFIG_DIR / "smoke.yaml"


@pytest.fixture
def check(monkeypatch, caplog):
    """Run the program with flags: its exit status and what it printed. Python with its libraries takes 800 MB."""
    monkeypatch.setitem(planner.PROCESS_BYTES, "cpu", 800 * MB)
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_system

    monkeypatch.setattr(check_system, "measure_process", lambda: None)

    def run(*flags: str) -> tuple[int, str]:
        caplog.clear()
        monkeypatch.setattr(sys, "argv", ["check_system.py", *flags])
        with caplog.at_level("INFO", logger="graf"), pytest.raises(SystemExit) as ended:
            check_system.run_script(check_system.main)
        return ended.value.code, "\n".join(caplog.messages)

    return run


@pytest.fixture
def module(check):
    return sys.modules["check_system"]


def test_a_small_config_fits_and_is_measured(check):
    status, text = check("--config", str(SMOKE), "--device", "cpu", "--budget_gb", "64")
    assert status == 0
    assert "\nfits, " in text and "64.00 GB free on cpu" in text
    assert re.search(r"measured in 2 steps: [\d.]+ [GM]B over the idle process's [\d.]+ GB", text)
    assert re.search(r"^a step takes about [\d.e-]+ s: 20 in \S+ \w+, and samples, metrics and checkpoints", text, re.MULTILINE)
    for name in ("Python", "PyTorch", "CUDA", "driver", "cores", "memory", "disk", "ffmpeg", "extractor", "optimizers"):
        assert re.search(rf"^  {name} +\S", text, re.MULTILINE), name


def test_a_driver_that_is_too_old_for_pytorch_is_told_and_the_cpu_checked(check, driver):
    driver("NVIDIA GeForce GTX 1650")
    status, text = check("--config", str(SMOKE), "--budget_gb", "64", "--no_step")
    assert status == 0 and "64.00 GB free on cpu" in text
    assert re.search(r"^  driver +535.54, for CUDA up to 12.2$", text, re.MULTILINE)
    assert re.search(r"^  CUDA +13.0$", text, re.MULTILINE)
    assert re.search(r"^  GPUs +NVIDIA GeForce GTX 1650 cannot be used by PyTorch .*cu12x", text, re.MULTILINE)


def test_cards_are_listed_also_where_one_is_taken(module, cards, monkeypatch):
    cards("NVIDIA A", "NVIDIA B")

    def free(index):
        if index == 0:
            raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable\nand more")
        return 6 * GB, 8 * GB

    monkeypatch.setattr(torch.cuda, "_cudart", SimpleNamespace(cudaMemGetInfo=free))
    rows = dict(module.machine(torch.device("cuda", 1)))
    assert rows["cuda:0"] == "NVIDIA A: CUDA-capable device(s) is/are busy or unavailable"
    assert rows["cuda:1"] == "NVIDIA B, 6.00 GB of 8.00 GB free" and rows["device"] == "cuda:1"


def test_what_it_advises_fits(check):
    flags = ("--device", "cpu", "--budget_gb", "1", "--no_step", "--set", "training.micro_batch=8", "nerf.checkpoint_rays=0")
    status, text = check(*flags)
    assert status == 1 and "does not fit" in text and "measured" not in text
    edits = re.search(r"--set (.+)", text)[1].split()
    status, text = check(*flags, *edits)
    assert status == 0 and "\nfits, " in text


def test_a_batch_that_train_would_take_in_parts_is_judged_in_them(check):
    status, text = check("--device", "cpu", "--budget_gb", "1", "--no_step", "--set", "nerf.netwidth=128")
    assert status == 0 and re.search(r"\nfits, \d images? at a time.*: [\d.]+ GB needed, 1.00 GB free on cpu", text)
    assert "fits, 8 images" not in text


def test_what_is_judged_is_what_train_would_take_not_what_is_free_would_allow(check, module, monkeypatch):
    monkeypatch.setattr(module, "planning_budget", lambda *_: 64 * GB)  # of which others have taken the most
    monkeypatch.setattr(module, "free_bytes", lambda _: GB)
    status, text = check("--device", "cpu", "--no_step", "--set", "nerf.netwidth=128", "nerf.conditioning=film")
    assert status == 1 and "does not fit, 8 images at a time" in text and "1.00 GB free on cpu" in text
    assert "training.micro_batch=" in text.split("--set")[1]


@pytest.mark.parametrize("flags", [(), ("--budget_gb", "8")])
def test_the_budget_of_the_config_is_kept_to(check, flags):
    status, text = check("--device", "cpu", "--no_step", *flags, "--set", "memory.budget_gb=0.5")
    assert status == 1 and "0.50 GB free on cpu" in text


@pytest.mark.parametrize("budget_gb", ["0", "-1", "nan", "inf"])
def test_a_budget_is_a_finite_number(check, capsys, budget_gb):
    assert check("--config", str(SMOKE), "--device", "cpu", "--no_step", "--budget_gb", budget_gb)[0] == 2
    assert f"--budget_gb {budget_gb}: expected more than 0 GB" in capsys.readouterr().err


def test_nothing_is_run_that_would_not_fit(check, module, monkeypatch):
    monkeypatch.setattr(module, "take_steps", lambda *_: pytest.fail("a step was taken"))
    status, text = check("--device", "cpu", "--budget_gb", "0.5")
    assert status == 1 and "measured: nothing" in text and "no setting makes it fit" in text


def test_out_of_memory_in_the_step_is_a_verdict(check, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(steps, "_render", fail)
    status, text = check("--config", str(SMOKE), "--device", "cpu", "--budget_gb", "8")
    assert status == 1 and "out of memory" in text and "planted" in text and "does not fit" in text


def test_out_of_memory_that_smaller_parts_survive_is_no_fit(check, monkeypatch):
    real, calls = steps._render, []

    def fails_once(*given):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("planted")
        return real(*given)

    monkeypatch.setattr(steps, "_render", fails_once)
    status, text = check("--config", str(SMOKE), "--device", "cpu", "--budget_gb", "8", "--set", "training.batch_size=4")
    assert status == 1 and "out of memory, survived with 2 images at a time" in text and "does not fit" in text


def test_a_step_that_takes_more_than_estimated_counts(check, module, monkeypatch):
    monkeypatch.setattr(module, "peak_memory_bytes", lambda _: 9 * GB)
    status, text = check("--config", str(SMOKE), "--device", "cpu", "--budget_gb", "8")
    assert status == 1 and "9.00 GB needed, 8.00 GB free" in text


def test_of_an_apple_gpu_the_time_is_measured_and_the_memory_estimated(check, module, monkeypatch):
    """No such GPU is here: its steps are not taken."""
    sizes = SimpleNamespace(smaller_than=None)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(module, "take_steps", lambda *_: (sizes, 1.5, 2))
    monkeypatch.setattr(module, "peak_memory_bytes", lambda _: 9 * GB)  # the host's alone
    monkeypatch.setitem(planner.PROCESS_BYTES, "mps", 800 * MB)
    status, text = check("--config", str(SMOKE), "--device", "mps", "--budget_gb", "8")
    needed = module.size(estimate_step(load_config(SMOKE), "mps").total_bytes)
    assert status == 0 and f"{needed} needed, 8.00 GB free on mps" in text
    assert "measured in 2 steps: time alone" in text and "a step takes about 1.5 s" in text and "over the idle" not in text


@pytest.mark.parametrize(
    "flags", [("--config", "missing.yaml"), ("--set", "training.batch_size=0"), ("--device", "abacus"), ("--budget_gb", "0")]
)
def test_a_faulty_config_is_status_2(flags, check, capsys):
    status, _ = check("--no_step", *flags)
    assert status == 2
    assert "check_system.py: error: " in capsys.readouterr().err


def test_the_time_to_completion_is_the_steps_times_all_of_them(module, monkeypatch):
    def said(*overrides):
        none = "discriminator.low_res_steps=0", "encoder.first_steps=0", "ccsr.unrefined_steps=0"
        return module.completion(0.25, load_config(None, [*none, *overrides]))

    assert said("training.max_steps=1800").startswith("a step takes about 0.25 s: 1,800 in 8 min, and samples")  # 450 s
    short = "encoder.first_steps=10000", "discriminator.low_res_steps=300"
    assert "12,700 (the first 10,300 are shorter) in 15 min, and" in said(*short, "training.max_steps=12700")  # 3,500 * 0.25
    assert "5,000 (the first 5,000 are shorter) in 2 min, and" in said(*short, "training.max_steps=5000")
    last = "training.max_steps=12700", "ccsr.unrefined_steps=1500"  # (1,500 + 0.7 * 2,000) * 0.25 s
    assert "12,700 (the first 11,200 are shorter) in 12 min, and" in said(*short, *last)
    ticks = iter([0.0, 9.0, 10.5])  # both steps' starts, and the end: the second took 1.5 s
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(module, "discriminator_step", lambda *_: None)
    monkeypatch.setattr(module, "generator_step", lambda *_: None)
    config = load_config(SMOKE)
    assert module.take_steps(config, module.expected_labels(config.data), torch.device("cpu"))[1] == 1.5


def test_printed_parts_add_up(module):
    estimate = estimate_step(load_config(SMOKE))
    rows = dict(module.parts(estimate))
    total = sum(estimate.parts.values()) + estimate.gaps_bytes + estimate.process_bytes
    assert rows["total"] == module.size(total) and len(rows) == len(estimate.parts) + 3


def test_sizes_are_read_easily(module):
    assert (module.size(1.5 * GB), module.size(3.25 * MB), module.size(GB / 2)) == ("1.50 GB", "3.2 MB", "0.50 GB")


def test_shared_memory_of_two_workers(module, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("graf.data.loader.available_cores", lambda: 2)
    config = override(
        load_config(SMOKE), ["training.nworkers=2", "training.batch_size=64", "data.imsize=128", "data.alpha=ignore"]
    )
    rows = dict(module.storage(config))
    assert "48.0 MB for 2 workers" in rows["shared memory"]  # 2 workers, 2 batches each, 64 x 3 x 128 x 128 floats
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 47 * MB}))
    assert dict(module.storage(config))["shared memory"].endswith("too little: set training.nworkers=0")


def test_inception_is_not_downloaded(module, monkeypatch):
    monkeypatch.setattr("graf.metrics.extractors._download", lambda _: pytest.fail("a download"))
    metrics = override(load_config(SMOKE), ["metrics.extractor=inception-v3-compat"]).metrics
    assert "inception" in module.extractor(metrics) or "efficientnet-lite0" in module.extractor(metrics)
    absent = override(load_config(SMOKE), ["metrics.weights_path=nowhere.pth"]).metrics
    assert "no such file: nowhere.pth" in module.extractor(absent)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (True, "float32; with --use_amp bfloat16"),
        (False, "float32; with --use_amp float32, no hardware bfloat16"),
    ],
)
def test_it_tells_what_mixed_precision_is_here(module, smoke, monkeypatch, there, said):
    for namespace in (module, precision):
        monkeypatch.setattr(namespace, "has_bfloat16", lambda _: there)
    assert module.number_format(smoke().training, torch.device("cpu")) == ("number format", said)


def test_it_tells_why_a_gpu_trains_in_float32(module, smoke, cards, monkeypatch):
    cards("NVIDIA GeForce GTX 1650", capability=(7, 5))
    monkeypatch.setattr(precision, "float16_error", lambda _: 3e-4)
    _, said = module.number_format(smoke().training, torch.device("cuda", 0))
    assert said == ("float32; with --use_amp float32, no hardware bfloat16, this NVIDIA GeForce GTX 1650 has no tensor cores")


def test_images_without_cameras_are_measured_without_an_encoder(check):
    flags = ["--config", str(SMOKE), "--device", "cpu", "--no_step", "--budget_gb", "64", "--set", "encoder.weight=1"]
    with_cameras, without = (check(*flags, f"data.labels={labels}")[1] for labels in ("auto", "none"))
    assert "encoder.first_steps and encoder.weight: 0" in without and "encoder." not in with_cameras
    weights = [re.search(r"^  weights +(\S+ \S+)", text, re.MULTILINE)[1] for text in (with_cameras, without)]
    assert weights[0] != weights[1]
