"""notebooks/quickstart.ipynb runs from top to bottom, gets the project where it is missing, and is kept without outputs."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import trimesh
from PIL import Image

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"
ADDRESS = "https://example.org/somebody/graf_ccsr"


def cells() -> dict[str, str]:
    """The source of each cell of code, by the cell's id."""
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"}


def run_cell(source: str, names: dict) -> object:
    """Run a cell as a kernel does, and return the value of its last line where that is an expression."""
    tree = ast.parse(source)
    shown = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return shown and eval(compile(shown, NOTEBOOK.name, "eval"), names)


def test_it_is_kept_without_outputs_and_without_paths_of_a_machine():
    text = NOTEBOOK.read_text(encoding="utf-8")
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert not re.search(r"/(home|Users|content|work|tmp|root)/|[A-Z]:\\\\", text)


def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """Away from the repository; the car that it finds is like the photograph, and its mesh is closed."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    shown = {name: run_cell(source, names) for name, source in cells().items()}
    plt.close(names["figure"])
    columns = {"render": 6, "depth": 6, "interpolate": 6, "invert": 8}
    assert {name: type(shown[name]) for name in columns} == dict.fromkeys(columns, Image.Image)
    side = 2 * (names["config"].data.imsize + 2)  # make_grid puts 2 pixels around each image, the picture is enlarged twice
    assert {name: (shown[name].width - 4) // side for name in columns} == columns
    assert float(re.search(r"PSNR ([\d.]+) dB", capsys.readouterr().out)[1]) > 15
    assert {path.suffix for path in (tmp_path / "quickstart").glob("found.*")} >= {".ply", ".obj", ".glb"}
    assert trimesh.load(tmp_path / "quickstart" / "found.ply").is_watertight


def test_where_the_project_is_installed_nothing_is_downloaded(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    run_cell(cells()["install"], {})


def test_without_the_project_and_without_its_address_it_says_what_to_fill_in(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="set REPOSITORY to its address"):
        run_cell(cells()["install"], {})


def test_without_the_project_it_is_cloned_once_and_its_requirements_are_installed(tmp_path, monkeypatch):
    """Colab starts so."""
    called: list[list[str]] = []

    def run(command: list[str], check: bool) -> None:
        assert check
        called.append(command)
        if command[0] == "git":
            Path(command[-1]).mkdir()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", [])
    source = cells()["install"].replace('REPOSITORY = ""', f'REPOSITORY = "{ADDRESS}"')
    for _ in range(2):
        run_cell(source, {})
    project = str(tmp_path / "graf_ccsr")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--requirement", f"{project}/requirements.txt"]
    assert called == [["git", "clone", "--depth", "1", ADDRESS, project], install, install]
    assert sys.path[0] == project
