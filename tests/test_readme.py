"""The README tells the truth: its tables are the code's, and what it names exists."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_those_of_the_code(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from readme_tables import with_tables

    assert with_tables(README) == README, "run `python bench/readme_tables.py`"


def test_files_it_names_exist():
    named = set(re.findall(r"\b(?:configs|tools|docs|graf)/[\w/.]+\.(?:yaml|py|md|png|gif)", README))
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_make_targets_it_names_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake (\w+)`", README))
    assert named
    assert named <= targets
