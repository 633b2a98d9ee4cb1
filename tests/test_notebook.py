"""notebooks/quickstart.ipynb runs from top to bottom, and is kept without what a run of it leaves."""

import json
import os
import re
from pathlib import Path

import pytest
import trimesh

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


def cells(kind: str) -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_it_is_kept_without_outputs_and_without_paths_of_a_machine():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells("code"))
    assert not re.search(r"/(home|Users|work|tmp|root)/|[A-Z]:\\\\", NOTEBOOK.read_text(encoding="utf-8"))


def test_it_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """In a kernel of its own, away from the repository; the found car is like the photograph, and its mesh a solid."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=folder).execute()
    results = {cell["id"]: cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"}
    for name in ("render", "depth", "interpolate", "invert", "mesh"):
        assert any("image/png" in result.get("data", {}) for result in results[name]), name
    printed = "".join(result.get("text", "") for result in results["invert"])
    assert float(re.search(r"PSNR ([\d.]+) dB", printed)[1]) > 15
    assert trimesh.load(tmp_path / "quickstart" / "found.ply").is_watertight
