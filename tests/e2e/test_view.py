"""view.py as people start it, and its page in a headless Chromium where there is one."""

import argparse
import re
import signal
import subprocess
import sys
from pathlib import Path

from graf.checkpoints.generator_loading import load_generator
from graf.checkpoints.latents_file import write_latents
from graf.commands.view import found_sources, load_model, view
from graf.errors import GrafError

import pytest
import torch

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "weights" / "toy_cars.safetensors"


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two runs with a checkpoint, and one that has none yet."""
    for name in ("a", "b", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
        if name != "new":
            (tmp_path / name / "model.pt").touch()
    return tmp_path


def test_runs_to_choose_from(runs):
    assert sorted(found_sources(runs, None, None)) == [runs / "a", runs / "b"]
    assert found_sources(runs / "a", None, None) == [runs / "a"]
    assert found_sources(None, runs / "b", None) == [runs / "b"]
    assert found_sources(runs / "a" / "model.pt", None, None) == [runs / "a" / "model.pt"]


def test_without_a_name_the_shipped_weights_can_be_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert found_sources(None, None, None) == [WEIGHTS]


def test_nothing_to_look_at(runs):
    with pytest.raises(GrafError, match="new: no run with a checkpoint here; train one"):
        found_sources(runs / "new", None, None)
    with pytest.raises(GrafError, match="leave all but one out"):
        found_sources(runs, runs / "a", None)


def test_without_viser_it_says_how_to_install_it_once_there_is_something_to_look_at(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    monkeypatch.delitem(sys.modules, "graf.reporting.viewer.server", raising=False)
    with pytest.raises(GrafError, match=r"optional extra: pip install -e \"\.\[viewer\]\""):
        view(argparse.Namespace(path=runs, run=None, checkpoint=None))
    with pytest.raises(GrafError, match="nowhere: no run with a checkpoint here"):
        view(argparse.Namespace(path=runs / "nowhere", run=None, checkpoint=None))


def test_objects_of_files_come_with_the_model(tmp_path, caplog):
    generator = load_generator(WEIGHTS)
    file = write_latents(tmp_path / "car.json", generator, torch.ones(generator.config.z_dist.dim), 0, WEIGHTS, 1)
    model = load_model(WEIGHTS, torch.device("cpu"), tmp_path, [file])
    assert model.found[str(file)][0].eq(1).all() and not caplog.records
    assert load_model(WEIGHTS, torch.device("cpu"), tmp_path).found == {}
    file.write_text('{"latents": [1.0]}')
    with pytest.raises(GrafError, match=r"car\.json: 1 latents, of another model; .*toy_cars\.safetensors takes"):
        load_model(WEIGHTS, torch.device("cpu"), tmp_path, [file])


def test_the_page_shows_the_object_and_ctrl_c_ends_the_program(tmp_path):
    pytest.importorskip("viser")
    chromium = pytest.importorskip("chromium")
    if chromium.PROGRAM is None:
        pytest.skip("no Chromium here")
    command = [sys.executable, ROOT / "view.py", "--checkpoint", WEIGHTS, "--port", "0", "--out", tmp_path / "out"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = next(match[0] for line in program.stdout if (match := re.match(r"http://127\.0\.0\.1:\d+", line)))
        assert "only browsers on this machine reach it" in program.stdout.readline()
        with chromium.Page(url, tmp_path / "profile", (640, 480)) as page:
            chromium.until(lambda: "256 pixels at rest" in page.text())
            assert page.errors == []
            page.click("Save")
            chromium.until(lambda: "save latents" in page.text())
            saved = tmp_path / "out" / "latents_0001.json"
            chromium.until(lambda: saved.exists() or page.click("save latents"))  # it moves while the folder unfolds
            program.send_signal(signal.SIGINT)
            assert program.wait(timeout=120) == 130
    finally:
        program.kill()
        said = program.communicate()[1]
    assert "Traceback" not in said
