"""Dependencies point one way: no import of the package runs back up its layers, and none in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "graf"
LAYERS = (  # from the ground up: a module imports from its own layer and those before it
    *("version", "errors", "private_torch", "rng", "tensors", "foreign", "config", "camera", "rotations", "rays", "rendering"),
    *("runtime", "pieces", "models"),
    *("data", "memory", "checkpoints"),
    *("pictures", "photographs", "metrics", "export", "inversion", "training", "pose", "finding", "reporting", "commands"),
)


def modules(package: Path) -> dict[str, Path]:
    """The package's files by their dotted names."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }


def imports(files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """(importing, imported) of the modules, wherever in a file an import stands."""
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                imported = [full if full in files else node.module for full in whole]
            else:
                continue
            yield from ((name, other) for other in imported if other in files)


def upward(files: dict[str, Path]) -> list[tuple[str, str]]:
    """The imports of a layer above; the package's own __init__ is above all."""

    def layer(name: str) -> int:
        parts = name.split(".")
        return LAYERS.index(parts[1]) if len(parts) > 1 else len(LAYERS)

    return sorted({(name, other) for name, other in imports(files) if layer(other) > layer(name)})


def circle(files: dict[str, Path]) -> set[str]:
    """The modules that import each other, and those between them."""
    arrows = {(name, other) for name, other in imports(files) if name != other}
    while loose := {name for arrow in arrows for name in arrow} - ({a for a, _ in arrows} & {b for _, b in arrows}):
        arrows = {(a, b) for a, b in arrows if a not in loose and b not in loose}
    return {name for arrow in arrows for name in arrow}


def test_no_import_runs_back_up():
    assert upward(modules(PACKAGE)) == []


def test_no_files_import_each_other_in_a_circle():
    assert circle(modules(PACKAGE)) == set()


@pytest.fixture
def planted(tmp_path) -> Path:
    """A package of two layers and nothing wrong with it."""
    package = tmp_path / "graf"
    for folder in ("config", "training"):
        (package / folder).mkdir(parents=True)
        (package / folder / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "config" / "schema.py").touch()
    (package / "training" / "loop.py").write_text("from graf.config.schema import Config\n")
    return package


@pytest.mark.parametrize("line", ["from graf.training import loop", "def lazily():\n    import graf.training.loop"])
def test_a_planted_upward_import_is_found(planted, line):
    assert upward(modules(planted)) == []
    (planted / "config" / "schema.py").write_text(line + "\n")
    assert upward(modules(planted)) == [("graf.config.schema", "graf.training.loop")]


def test_a_planted_circle_is_found(planted):
    assert circle(modules(planted)) == set()
    (planted / "config" / "checks.py").write_text("from graf.config import reading\n")
    (planted / "config" / "reading.py").write_text("import graf.config.checks\n")
    assert circle(modules(planted)) == {"graf.config.checks", "graf.config.reading"}
