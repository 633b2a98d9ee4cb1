"""bench/check_versions.py: what is installed for each version, and what it says of their tests; nothing is installed here."""

import re
import subprocess
import sys
from pathlib import Path

import check_versions
from check_versions import VERSIONS, closing_line, interpreter, lowest, ready_environment

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The commands that would be run; each makes what it would have made."""
    commands = []

    def run(command, **_):
        command = [str(word) for word in command]
        commands.append(command)
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            (Path(command[3]) / "bin" / "python").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(check_versions, "ENVIRONMENTS", tmp_path / ".versions")
    monkeypatch.setattr(check_versions, "ROOT", tmp_path)
    monkeypatch.setattr(check_versions.subprocess, "run", run)
    (tmp_path / "requirements.txt").write_text("torch>=2.6\nnumpy>=2\n", encoding="utf-8")
    extras = 'viewer = ["viser>=1.1"]\ndocs = ["mkdocs>=1.6"]\nphotographs = ["opencv>=4.10.0.84", "heif>=0.18"]\n'
    (tmp_path / "pyproject.toml").write_text(extras, encoding="utf-8")
    return commands


def test_every_requirement_has_a_bound_which_the_lowest_environment_takes():
    lines = REQUIREMENTS.splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+(>=|==)[0-9.*]+(; .+)?", line) for line in lines)
    assert f"torch>={VERSIONS[0].torch.removesuffix('.0')}" in lines
    assert f"torchvision>={VERSIONS[0].torchvision.removesuffix('.0')}" in lines
    assert lowest("torch>=2.6\nnumpy>=2\nruff==0.17.*\n") == "numpy==2\nruff==0.17.*\n"


def test_the_lowest_pytorch_comes_with_the_lowest_of_the_rest(installed, tmp_path):
    python = ready_environment(VERSIONS[0], index_url="https://wheels.example/cpu")
    pytorch, rest = (command[5:] for command in installed if "pip" in command)
    assert pytorch == ["--index-url", "https://wheels.example/cpu", "torch==2.6.0", "torchvision==0.21.0"]
    assert rest == ["--constraint", str(python.parents[1] / "constraints.txt"), "--editable", f"{tmp_path}[viewer,photographs]"]
    assert (python.parents[1] / "constraints.txt").read_text(
        encoding="utf-8"
    ) == "numpy==2\nviser==1.1\nopencv==4.10.0.84\nheif==0.18\n"


def test_what_is_there_is_kept_until_the_requirements_change_but_the_newest_is_looked_for(installed, tmp_path):
    for version in (VERSIONS[1], VERSIONS[-1]):
        ready_environment(version, None)
        installed.clear()
        ready_environment(version, None)
        assert ["--upgrade", "torch", "torchvision"] in [command[5:] for command in installed] or installed == []
        assert bool(installed) == (version is VERSIONS[-1])
    (tmp_path / "requirements.txt").write_text("torch>=2.6\nnumpy>=2.1\n", encoding="utf-8")
    ready_environment(VERSIONS[1], None)
    assert not any("venv" in command for command in installed) and installed[-1][-2] == "--editable"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (".....\n3521 passed, 18 skipped in 250.1s (0:04:10)\n", "3521 passed, 18 skipped"),
        ("FAILED a.py::b\n1 failed, 20 passed, 2 errors in 3s\nsome warning\n", "1 failed, 20 passed, 2 errors"),
        ("Timeout (0:10:00)!\nThread 0x1\n", "Thread 0x1"),
        ("", "nothing was printed"),
    ],
)
def test_the_closing_line_is_found(printed, said):
    assert closing_line(printed) == said


def test_a_python_that_is_not_here_is_told(monkeypatch, capsys):
    monkeypatch.setattr(check_versions.shutil, "which", lambda _: None)
    assert interpreter("3.99") == sys.executable
    assert capsys.readouterr().out.startswith("python3.99 is not here; Python 3.")


def test_the_suite_is_run_as_make_test_runs_it():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"$(BIN)/python {' '.join(check_versions.SUITE)}" in makefile


def test_a_suite_that_a_signal_ended_is_no_success(monkeypatch, capsys):
    """The system's out-of-memory killer sends signal 9."""
    found = iter([0, -9, 0, 0])
    monkeypatch.setattr(check_versions, "tried", lambda version, _: ([version.name], "1 passed", 2.0, next(found)))
    monkeypatch.setattr(sys, "argv", ["check_versions.py"])
    assert check_versions.main() == 1
    assert capsys.readouterr().out.count("| 1 passed | 2 |") == len(VERSIONS)


def test_a_version_that_cannot_be_installed_is_a_row_of_the_table(installed, monkeypatch, capsys):
    def run(command, **_):
        raise subprocess.CalledProcessError(3, command)

    monkeypatch.setattr(check_versions.subprocess, "run", run)
    monkeypatch.setattr(check_versions, "interpreter", lambda _: "python")
    found, said, _, status = check_versions.tried(VERSIONS[0], None)
    assert (found, said, status) == (["2.6.0", "0.21.0", "3.10"], "cannot be installed", 3)
    assert "2.6.0: cannot be installed (python -m venv" in capsys.readouterr().out


def test_contributing_tells_what_was_run():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(
        re.search(rf"^\| {re.escape(version.torch)}\S*, \S+, 3\.\d+\.\d+ \| (\d+ failed, )?\d+ passed", table, re.MULTILINE)
        for version in VERSIONS
    )
