"""What stands around the package: the citation is of this version, the image copies what is there and nothing private."""

import re
import shlex
from pathlib import Path

from graf.version import __version__

import yaml

ROOT = Path(__file__).parents[1]


def test_the_citation_is_of_this_version_and_complete():
    """The keys that version 1.2.0 of the Citation File Format requires, of the software and of each reference."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    assert citation["version"] == __version__
    for reference in citation["references"]:
        assert reference.keys() >= {"type", "title", "authors"}
        assert reference["url"].rsplit("/", 1)[-1] in (ROOT / "README.md").read_text(encoding="utf-8")


def instructions() -> list[list[str]]:
    """The Dockerfile's instructions as words, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [shlex.split(line) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_the_image_is_made_of_what_is_there():
    copied = [words[1] for words in instructions() if words[0] == "COPY"]
    assert copied == ["requirements.txt", "."]
    named = re.findall(r"\b(?:tools/)?\w+\.py\b", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert named and all((ROOT / name).exists() for name in named)


def test_one_argument_chooses_between_cards_and_cpus():
    """It is the Makefile's, without a default: no address of packages stands in either."""
    assert ["ARG", "TORCH_INDEX="] in instructions()
    assert "$(TORCH_INDEX)" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_image_has_the_compilers_that_training_compile_needs():
    """PyTorch's C++ and, on a card, Triton's C: Debian's g++ depends on gcc and on the headers of both."""
    install = next(words for words in instructions() if "apt-get" in words)
    assert "g++" in install[install.index("install") : install.index("rm")]


def test_nothing_that_git_ignores_comes_into_the_image():
    lines = (ROOT / ".dockerignore").read_text().split()
    ignored = {line.strip("/").removeprefix("**/") for line in lines} | {"*.pyc"}
    assert {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()} <= ignored
