"""Folders and files whose names are not UTF-8, as on disks of older systems: all programs take them, and say them."""

import importlib
import io
import json
import os
import sys

from graf.pictures.outputs import write_image
from graf.runtime.console import run_script

import pytest
import torch
from command_line import ROOT, SMOKE

ODD, SHOWN = b"caf\xe9", "caf\\udce9"  # Latin-1, and how it is said
DATA = ["--set", "data.type=images", "data.datadir=photos", "data.alpha=ignore", "data.v=[0.4,0.5]", "training.monitoring=none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with photos/ of four objects, two of which have such names, and a file that is no image."""
    folder = tmp_path_factory.mktemp("names")
    photos = os.fsencode(folder / "photos")
    try:
        for name in (ODD, b"\xff", b"bus", b"tram"):
            os.makedirs(os.path.join(photos, name))
    except OSError:
        pytest.skip("the disk takes no such names")
    for index in range(16):
        image = torch.full((3, 16, 16), 16 * index, dtype=torch.uint8)
        write_image(folder / f"{index}.png", image)
        name = (ODD, b"\xff", b"bus", b"tram")[index % 4]
        os.rename(folder / f"{index}.png", os.path.join(photos, name, b"%d_%04d.png" % (index // 8, 20 * index)))
    return folder


@pytest.fixture
def called(folder, monkeypatch):
    """Call a script in the folder, with streams as strict as a terminal's; its exit status and what it said."""

    def call(script, *arguments):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict") for _ in range(2)]
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(ROOT))
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            run_script(importlib.import_module(script.removesuffix(".py").replace("/", ".")).main)
        said = b"".join(stream.detach().getvalue() for stream in streams).decode()
        assert "Traceback" not in said
        return ended.value.code or 0, said

    return call


def test_a_run_is_checked_trained_and_looked_at(called, folder):
    status, said = called("tools/validate_data.py", *SMOKE[:2], *DATA)
    assert (status, said.count(SHOWN)) == (0, 1)
    assert called("train.py", *SMOKE, "--dry_run", *DATA)[0] == 0
    assert called("train.py", *SMOKE, "--max_steps", "1", *DATA)[0] == 0
    looking = ("--run", "results/smoke", "--neighbours", "--report", "--device", "cpu", "--out", os.fsdecode(ODD))
    status, said = called("eval.py", *looking)
    assert status == 0 and f"{SHOWN}/neighbours.png" in said
    shown = json.loads((folder / os.fsdecode(ODD) / "neighbours.json").read_text())["shown"]
    assert all(os.path.exists(folder / file) for row in shown for file in row["files"])


def test_cameras_are_learned_of_objects_with_such_names(called):
    small = ("data.imsize=16", "model.d_model=16", "model.num_heads=2", "model.num_layers=1", "training.batch_size=4")
    assert called("train_pose.py", "--device", "cpu", "--dry_run", *DATA, *small)[0] == 0


def test_an_image_that_cannot_be_read_is_named(called, folder):
    bad = os.path.join(os.fsencode(folder / "photos"), ODD, b"0_0001 caf\xe9.png")
    with open(bad, "wb") as file:
        file.write(b"no image")
    try:
        status, said = called("train.py", *SMOKE, "--dry_run", *DATA, "data.labels=none")
    finally:
        os.unlink(bad)
    assert status == 2 and f"photos/{SHOWN}/0_0001 {SHOWN}.png: cannot be read" in said
