"""make alone explains itself, and an installation says what it downloads before it does."""

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from write_tables import parser_of

import pytest
import torch

ROOT = Path(__file__).parents[1]
MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="make")
PYTHON = """#!/bin/sh
test "$1" = -c && exit 0
mkdir -p .venv/bin
printf '#!/bin/sh\\ntest "$1" = show && exec test -e .venv/ready\\necho pip "$@"\\n' > .venv/bin/pip
printf '#!/bin/sh\\n' > .venv/bin/python
chmod +x .venv/bin/pip .venv/bin/python
"""
TOO_OLD = "#!/bin/sh\nexit 1\n"
INDEX = "https://wheels.example/cpu"


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Runs the Makefile in a folder without an environment, on a machine without a card; nothing is installed."""
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "sed", "mkdir", "chmod", "touch", "test", "echo", "rm"):
        (programs / name).symlink_to(shutil.which(name))
    for name, text in (("python", PYTHON), ("uname", "#!/bin/sh\necho Linux\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(programs))
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "TORCH_INDEX"):  # of `make test`, which may run this test
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> list[str]:
        command = [MAKE, f"PYTHON={programs / 'python'}", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()

    run.programs = programs
    return run


def test_make_alone_prints_a_line_for_each_target(make):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    lines = make()
    assert [line.split()[:2] for line in lines] == [["make", target] for target in targets]
    assert all(len(line.split()) > 3 for line in lines)


def test_the_shipped_weights_are_shown_once_the_viewer_is_installed(make):
    commands = [line for line in make("--dry-run", "view") if ".venv/bin" in line]
    assert commands[-2:] == [".venv/bin/pip install --no-compile --editable '.[viewer]'", ".venv/bin/python view.py"]


def test_the_tests_are_installed_for_at_once_and_once(make):
    installed = [line for line in make(".venv/tests") if line.startswith("pip ")]
    assert installed == ["pip install --no-compile --editable .[docs,viewer,photographs]"]
    assert make("--question", ".venv/ready", ".venv/tests") == []  # which fails where there is something to do


def test_an_environment_whose_pip_does_not_run_is_made_again(make):
    """As after an upgrade of the system's Python."""
    make(".venv/ready")
    pip = make.programs.parent / ".venv" / "bin" / "pip"
    pip.write_text("#!/bin/sh\nexit 1\n")
    assert "pip install --no-compile --editable .[viewer]" in make(".venv/viewer")


def test_an_environment_of_a_python_that_is_too_old_is_made_again(make):
    make(".venv/ready")
    python = make.programs.parent / ".venv" / "bin" / "python"
    python.write_text(TOO_OLD)
    python.chmod(stat.S_IRWXU)
    mine = make.programs.parent / ".venv" / "notes.txt"
    mine.write_text("mine")
    make(".venv/viewer")
    assert python.read_text() != TOO_OLD and mine.read_text() == "mine"


def test_an_environment_whose_python_is_gone_is_made_again_also_where_it_was_ready(make):
    make(".venv/ready")
    python = make.programs.parent / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert "pip install --no-compile --editable ." in make(".venv/ready")
    assert python.is_file() and not python.is_symlink()
    assert make("--question", ".venv/ready") == []


def test_no_environment_is_made_with_a_python_that_is_too_old(make):
    (make.programs / "python").write_text(PYTHON.replace("exit 0", "exit 1"))
    with pytest.raises(subprocess.CalledProcessError):
        make(".venv/ready")
    assert not (make.programs.parent / ".venv").exists()


def test_a_python_that_is_too_old_is_named(monkeypatch):
    text = re.search(r"define SUITABLE\n(.*?)\nendef", (ROOT / "Makefile").read_text(encoding="utf-8"), re.DOTALL)[1]
    exec(text, {})  # this one is suitable
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(SystemExit, match=rf"3\.10 or newer is needed, and {re.escape(sys.executable)} is 3\.9: make PYTHON="):
        exec(text, {})


def test_what_python_compiles_is_kept_where_the_environment_forbids_it(make, monkeypatch):
    """As images of containers do: nothing is compiled as it is installed, and each program would compile PyTorch anew."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (make.programs / "python").write_text(PYTHON.replace('"$@"', '"$@" ${PYTHONDONTWRITEBYTECODE-unset}'))
    assert "pip install --no-compile --editable . unset" in make(".venv/ready")


def test_weights_are_exported_from_the_run_and_measured_beside_the_file(make):
    lines = "\n".join(make("--dry-run", "weights")).replace("\\\n", " ").splitlines()
    train, sweep, export, measure = (line.split()[1:] for line in lines if line.startswith(".venv/bin/python "))
    assert (train[0], sweep) == ("train.py", ["eval.py"])
    flags = parser_of("eval.py")
    exported, measured = (flags.parse_args(command[1:]) for command in (export, measure))
    assert exported.export == str(measured.checkpoint) == "weights/toy_cars.safetensors"
    assert measured.out == Path("weights") and measured.consistency and "kid" in measured.metrics


def test_without_a_card_the_download_is_told_first(make):
    lines = make(".venv/ready")
    told = next(i for i, line in enumerate(lines) if "TORCH_INDEX=" in line)
    installed = lines.index("pip install --no-compile --editable .")
    assert told < installed
    assert any("6 GB" in line for line in lines[:told])
    assert not any("--quiet" in line for line in lines)


def test_where_torch_is_installed_nothing_is_downloaded_and_told(make):
    """As after a change of requirements.txt."""
    assert any("TORCH_INDEX" in line for line in make(".venv/ready"))
    (make.programs.parent / "requirements.txt").touch()
    assert not any("TORCH_INDEX" in line for line in make(".venv/ready"))  # its pip knows all packages


def test_with_a_card_there_is_nothing_to_tell(make):
    (make.programs / "nvidia-smi").write_text("#!/bin/sh\nexit 0\n")
    (make.programs / "nvidia-smi").chmod(stat.S_IRWXU)
    assert not any("TORCH_INDEX" in line for line in make(".venv/ready"))


def test_a_chosen_build_is_installed_before_the_rest_and_told_no_more(make):
    lines = make(".venv/ready", f"TORCH_INDEX={INDEX}")
    run = [line for line in lines if line.startswith("pip ")]
    assert run == [f"pip install --no-compile --index-url {INDEX} torch torchvision", "pip install --no-compile --editable ."]
    assert not any("No NVIDIA GPU" in line for line in lines)


def test_the_tests_begin_with_what_they_run_on():
    """make starts them so, though none is run here."""
    recipe = re.search(r"^test:.*\n\t\S+python (-m pytest .*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    command = [sys.executable, *recipe[1].split(), "--collect-only", "tests/test_rotations.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    python = ".".join(map(str, sys.version_info[:3]))
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"torch {torch.__version__}, torchvision ") and f", Python {python}, " in first
    assert torch.backends.cpu.get_cpu_capability() in first
