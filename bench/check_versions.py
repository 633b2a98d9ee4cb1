"""Runs the tests with each PyTorch that is promised: a table, and exit status 1 where one of them fails.

    python bench/check_versions.py [2.6.0 ...] [--index-url URL]

Each version has an environment of its own in .versions/, of 5 GB, or less with the CPU wheels of --index-url. The lowest
PyTorch is tried with the lowest of everything else that requirements.txt admits. What the tests printed is in
.versions/<version>.log.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".versions"
EXTRAS = ("viewer", "photographs")  # of pyproject.toml, whose tests would be skipped
SUITE = ("-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart", "0")
FOUND = "import platform, torch, torchvision as v; print(torch.__version__, v.__version__, platform.python_version())"


@dataclass(frozen=True)
class Version:
    """A PyTorch with its torchvision, on a Python where the machine has it; empty for the newest."""

    torch: str
    torchvision: str
    python: str

    @property
    def name(self) -> str:
        return self.torch or "newest"


VERSIONS = (
    Version("2.6.0", "0.21.0", "3.10"),  # the lowest, as requirements.txt says
    Version("2.9.1", "0.24.1", "3.12"),
    Version("2.14.1", "0.29.1", "3.13"),
    Version("", "", "3.14"),
)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [version.name for version in VERSIONS]
    p.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(names)}; by default all of them")
    p.add_argument("--index-url", help="where pip finds torch and torchvision, such as the address of the CPU wheels")
    args = p.parse_args()
    if unknown := [name for name in args.versions if name not in names]:
        p.error(f"{unknown[0]}: expected one of {', '.join(names)}")
    wanted = [version for version in VERSIONS if version.name in (args.versions or names)]
    results = [tried(version, args.index_url) for version in wanted]
    print("\n| PyTorch, torchvision, Python | tests | minutes |\n| --- | --- | --- |")
    for found, said, minutes, _ in results:
        print(f"| {', '.join(found)} | {said} | {minutes:.0f} |")
    return int(any(status for *_, status in results))  # of a suite that a signal ended it is negative


def tried(version: Version, index_url: str | None) -> tuple[list[str], str, float, int]:
    """The versions that were found, what the tests ended with, their minutes and their exit status."""
    try:
        python = ready_environment(version, index_url)
        found = subprocess.run([python, "-c", FOUND], capture_output=True, text=True, check=True).stdout.split()
    except subprocess.CalledProcessError as error:
        print(
            f"{version.name}: cannot be installed ({shlex.join(map(str, error.cmd))} ended with {error.returncode})", flush=True
        )
        return [version.name, version.torchvision, version.python], "cannot be installed", 0.0, error.returncode
    log = ENVIRONMENTS / f"{version.name}.log"
    print(f"{version.name}: the tests run, into {log.relative_to(ROOT)}", flush=True)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run([python, *SUITE], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    return (
        found,
        closing_line(log.read_text(encoding="utf-8", errors="replace")),
        (time.monotonic() - began) / 60,
        done.returncode,
    )


def closing_line(printed: str) -> str:
    """`3521 passed, 18 skipped` of what pytest printed; its last line where it has no such line."""
    lines = printed.strip().splitlines() or ["nothing was printed"]
    for line in reversed(lines):
        if counts := re.findall(r"\d+ (?:failed|passed|skipped|errors?)\b", line):
            return ", ".join(counts)
    return lines[-1]


def ready_environment(version: Version, index_url: str | None) -> Path:
    """The environment's Python, with the requirements as they are today; what is there already is kept."""
    folder, requirements = ENVIRONMENTS / f"torch-{version.name}", required()
    python, made_of = folder / "bin" / "python", folder / "requirements.txt"
    if version.torch and made_of.exists() and made_of.read_text(encoding="utf-8") == requirements:
        return python
    print(f"{version.name}: an environment is made in {folder.relative_to(ROOT)}", flush=True)
    if not python.exists():
        subprocess.run([interpreter(version.python), "-m", "venv", folder], check=True)
    pip = (python, "-m", "pip", "install", "--quiet")
    pytorch = [f"torch=={version.torch}", f"torchvision=={version.torchvision}"]
    pytorch = pytorch if version.torch else ["--upgrade", "torch", "torchvision"]
    subprocess.run([*pip, *(("--index-url", index_url) if index_url else ()), *pytorch], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(lowest(requirements) if version is VERSIONS[0] else "", encoding="utf-8")
    subprocess.run([*pip, "--constraint", constraints, "--editable", f"{ROOT}[{','.join(EXTRAS)}]"], check=True)
    made_of.write_text(requirements, encoding="utf-8")
    return python


def required() -> str:
    """requirements.txt, and what EXTRAS need besides."""
    listed = re.findall(r"^(\w+) = \[(.+)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    extras = [name for extra, names in listed if extra in EXTRAS for name in re.findall('"(.+?)"', names)]
    return (ROOT / "requirements.txt").read_text(encoding="utf-8") + "".join(f"{name}\n" for name in extras)


def interpreter(python: str) -> str:
    """The Python of that version, `3.10`, where one is there and runs; else the one that runs this program."""
    found = shutil.which(f"python{python}")
    if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
        return found
    print(f"python{python} is not here; Python {sys.version_info.major}.{sys.version_info.minor} takes its place", flush=True)
    return sys.executable


def lowest(requirements: str) -> str:
    """Constraints that hold each requirement at its lower bound, but PyTorch, of which the caller chooses."""
    return "".join(f"{line.replace('>=', '==')}\n" for line in requirements.splitlines() if not line.startswith("torch>="))


if __name__ == "__main__":
    sys.exit(main())
