"""The README tells the truth: its tables are the code's, and what it and the pages of docs/ name exists."""

import re
import sys
from pathlib import Path

from graf.config import CONFIG_DIR, Config, load_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_and_the_default_config_are_those_of_the_code(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from write_tables import MARKS, TABLES, pages

    texts = pages()
    assert {mark[1] for text in texts.values() for mark in MARKS.findall(text)} == set(TABLES)
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, "run `python bench/write_tables.py`"


def test_the_default_config_says_what_the_dataclasses_say():
    assert load_config(CONFIG_DIR / "default.yaml") == load_config() == Config()


def test_files_that_the_docs_name_exist():
    pages = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))]
    path = r"\b(?:bench|configs|docs|graf|tests|tools)/[\w/.]+\.(?:yaml|py|md|png|gif)"
    named = {name for page in pages for name in re.findall(path, page)}
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_make_targets_it_names_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake (\w+)`", README))
    assert named
    assert named <= targets
