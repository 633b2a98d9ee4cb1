"""PyTorch's private interface is used in two files only, behind names of ours: what a new version takes away is seen there."""

import ast
import logging
from pathlib import Path

from graf import private_torch

import pytest
import torch

ROOT = Path(__file__).parents[1]
PLACES = (ROOT / "graf/private_torch.py", ROOT / "bench/operations.py")
KEPT = {"_modules", "_parameters", "_buffers"}
SOURCES = sorted({*ROOT.glob("*.py"), *(path for room in ("graf", "tools", "bench") for path in (ROOT / room).rglob("*.py"))})


def dotted(node: ast.AST) -> str:
    """`torch.cuda.memory` of the expression; empty where it is not a chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return before and f"{before}.{node.attr}"


def private_names(source: str) -> set[str]:
    """Dotted names of torch, imported or used, with a part that begins with an underscore, and those of torch.ops; and the
    attributes in which a module keeps its parts."""
    names, kept = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            names.add(dotted(node))
            kept |= {node.attr} & KEPT if isinstance(node, ast.Attribute) else set()
    parts = [name.split(".") for name in names if name.split(".")[0] == "torch"]
    return kept | {
        ".".join(name)
        for name in parts
        if name[1:2] == ["ops"] or any(part.startswith("_") and not part.startswith("__") for part in name)
    }


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch._foreach_lerp_(a, b, 1)", {"torch._foreach_lerp_"}),
        ("from torch._subclasses import FakeTensorMode", {"torch._subclasses.FakeTensorMode"}),
        ("import torch\nf = torch.cuda.memory._dump_snapshot", {"torch.cuda.memory._dump_snapshot"}),
        ("import torch\ntorch.ops.aten.add(1, 2)", {"torch.ops", "torch.ops.aten", "torch.ops.aten.add"}),
        ("twin._modules = dict(network._modules)", {"_modules"}),
        ("from torch.nn import functional\nself._torch = torch.__version__", set()),
    ],
)
def test_a_private_name_is_seen(source, found):
    assert private_names(source) == found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_private_names_stand_in_two_files(path):
    assert path in PLACES or not private_names(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("place", PLACES, ids=lambda path: path.name)
def test_each_is_listed_at_its_head(place):
    text = place.read_text(encoding="utf-8")
    parts = {part for name in private_names(text) for part in name.split(".") if part.startswith("_")}
    constants = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    parts |= {name for name in constants if isinstance(name, str) and name.startswith("_")}  # asked for by name
    listed = ast.get_docstring(ast.parse(text))
    assert parts and [part for part in parts if part not in listed] == []


def test_without_a_history_of_allocations_a_run_goes_on(monkeypatch, caplog):
    for name in ("_record_memory_history", "_snapshot"):
        monkeypatch.delattr(torch.cuda.memory, name)
    with caplog.at_level(logging.WARNING, "graf"):
        private_torch.record_allocations(torch.device("cuda", 0), 10)
        assert private_torch.allocations() is None
    assert [record.message.split(":")[0].split()[-1] for record in caplog.records] == [
        "torch.cuda.memory._record_memory_history",
        "torch.cuda.memory._snapshot",
    ]
