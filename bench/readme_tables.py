"""Write the README's tables of flags and config keys from the code: python bench/readme_tables.py"""

import argparse
import logging
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # of train.py and eval.py

import eval as evaluation
import train as training
from graf.config import config_rows
from graf.errors import GrafError
from graf.runtime.command_line import Parser
from graf.runtime.console import run_script
from graf.runtime.files import whole_file

ROOT = Path(__file__).resolve().parent.parent

log = logging.getLogger("graf")


def flag_table(parser: argparse.ArgumentParser) -> str:
    """Markdown table of a script's flags."""
    rows = []
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            continue
        default = "" if action.default in (None, False) or action.default == [] else f"`{action.default}`"
        rows.append((f"`{', '.join(action.option_strings)}`", default, action.help))
    return _table(("flag", "default", "meaning"), rows)


def key_table() -> str:
    """Markdown table of every config key."""
    return _table(("key", "default", "meaning"), [(f"`{key}`", f"`{default}`", text) for key, default, text in config_rows()])


def with_tables(readme: str) -> str:
    """The README's text with each table between its `<!-- table: name -->` marks as the code has it."""
    tables = {"train": flag_table(training.parser()), "eval": flag_table(evaluation.parser()), "config": key_table()}
    for name, table in tables.items():
        marks = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        readme, found = marks.subn(lambda match, table=table: f"{match[1]}{table}{match[2]}", readme)
        if found != 1:
            raise GrafError(f"README.md: expected `<!-- table: {name} -->` ... `<!-- end -->` once, found it {found} times")
    return readme


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> int:
    Parser(__doc__).parse_args()
    path = ROOT / "README.md"
    text = with_tables(path.read_text(encoding="utf-8"))
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    log.info("%s: tables written", path.name)
    return 0


if __name__ == "__main__":
    run_script(main)
