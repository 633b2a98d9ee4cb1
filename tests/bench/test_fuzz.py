"""bench/fuzz.py in short: bad input ends in one message, and what does not is seen."""

import functools
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import fuzz
from graf.config import CONFIG_DIR, load_config
from graf.errors import GrafError

import pytest


@pytest.fixture(autouse=True)
def toy_cars_here(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz.tempfile, "tempdir", str(tmp_path))


@pytest.fixture(autouse=True)
def pytest_keeps_its_time_limit(monkeypatch):
    """A process has one, and a dry run's own would take its place and end it."""
    timer = SimpleNamespace(dump_traceback_later=lambda *_, **__: None, cancel_dump_traceback_later=lambda: None)
    monkeypatch.setattr(fuzz, "faulthandler", timer)


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("smoke", functools.partial(fuzz.fuzz_config, CONFIG_DIR / "smoke.yaml")),
        ("turntable", functools.partial(fuzz.fuzz_config, CONFIG_DIR / "turntable_256.yaml")),
        ("data sets", fuzz.fuzz_data),
    ],
)
def test_bad_input_ends_in_a_dry_run_or_one_message(name, subject):
    counts, faults = fuzz.count(name, subject, 8, seed=0)
    assert faults == []
    assert counts["ran"] and counts["refused"] and counts["ran"] + counts["refused"] == 8


def test_a_seed_names_its_mutations(tmp_path):
    text = (CONFIG_DIR / "default.yaml").read_text(encoding="utf-8")
    first, again, other = (fuzz.mutate_config(text, fuzz.random.Random(state)) for state in ("0 a 1", "0 a 1", "0 a 2"))
    assert first == again != other


@pytest.mark.parametrize("path", fuzz.generator_configs(), ids=lambda path: path.stem)
def test_a_legal_config_stays_legal_when_it_is_made_small(path, tmp_path):
    small = load_config(path, fuzz.smaller(load_config(path), tmp_path))
    assert small.data.imsize <= 32 and small.patch_size == 16 and small.nerf.netwidth <= 16 and small.training.batch_size <= 2


def ends_with(monkeypatch, main) -> fuzz.Outcome:
    monkeypatch.setattr(fuzz, "TRAIN", main)
    with fuzz.workplace():
        return fuzz.dry_run([])


def test_every_way_to_fail_is_seen(monkeypatch):
    def fail(error):
        raise error

    def say(lines):
        logging.getLogger("graf").warning("%s", "words\n" * lines)
        raise GrafError("wrong")

    def spin():
        while True:
            pass

    monkeypatch.setattr(fuzz, "CPU_LIMIT_S", 0.2)
    ways = {
        "ran": lambda: 0,
        "refused": lambda: fail(GrafError("wrong")),
        "traceback": lambda: fail(KeyError("x")),
        "status 1": lambda: fail(OSError("full")),
        "hang": spin,
        "file left": lambda: Path("model.pt").write_text("x") and 0,
        "long message": lambda: say(20),
    }
    assert {kind: ends_with(monkeypatch, main).kind for kind, main in ways.items()} == {kind: kind for kind in ways}


def test_toy_cars_may_be_left_and_the_working_directory_is_given_back(monkeypatch):
    before = os.getcwd()
    assert ends_with(monkeypatch, lambda: Path("toy_cars_0123.pt").write_text("x") and 0).kind == "ran"
    assert os.getcwd() == before
