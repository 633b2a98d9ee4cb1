"""Each function of torch.cuda that is called, on machines without a GPU too, exists and takes what it is given."""

import ast
import inspect
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
SOURCES = sorted({*ROOT.glob("*.py"), *(path for room in ("graf", "tools", "bench") for path in (ROOT / room).rglob("*.py"))})


def calls_in(path):
    """File and line, name below torch.cuda, and the call, for each in a source."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)).startswith("torch.cuda."):
            yield f"{path.relative_to(ROOT)}:{node.lineno}", name.removeprefix("torch.cuda."), node


CALLS = [call for path in SOURCES for call in calls_in(path)]


@pytest.mark.parametrize("name", sorted({name for _, name, _ in CALLS}))
def test_a_function_of_torch_cuda_takes_its_arguments(name):
    function = torch.cuda
    for part in name.split("."):
        function = getattr(function, part)
    signature = inspect.signature(function)
    for place, called, call in CALLS:
        if called == name:
            given = [None] * len(call.args), {word.arg: None for word in call.keywords}
            try:
                signature.bind(*given[0], **given[1])
            except TypeError as error:
                pytest.fail(f"{place}: {error}")


def test_calls_are_found():
    assert {"is_available", "mem_get_info", "memory_reserved", "empty_cache"} <= {name for _, name, _ in CALLS}
