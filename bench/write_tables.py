"""Write configs/default.yaml and the tables of flags and keys in README.md and docs/: python bench/write_tables.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; NAME is train, train_pose, eval, view (flags),
config, pose (keys) or older (names of keys).
"""

import argparse
import dataclasses
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path

from graf.config import CONFIG_DIR, Config, PoseConfig, config_rows
from graf.config.older import OLDER_NAMES
from graf.config.reading import as_yaml
from graf.errors import GrafError
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.runtime.files import write_text

ROOT = Path(__file__).resolve().parent.parent
MARKS = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 116  # of a comment in default.yaml
HEAD = """\
# The default run, and the default of every key: other files say only what differs.
# Toy cars at 64 x 64, sized so that two cores show turning cars within a quarter of an hour; a GPU uses the same.
# Written by bench/write_tables.py from graf/config/schema.py, where the defaults are: a change here changes only
# the run that names this file.
"""


def parser_of(program: str) -> argparse.ArgumentParser:
    """The parser of a program at the top."""
    return runpy.run_path(str(ROOT / program))["parser"]()


def flag_table(parser: argparse.ArgumentParser) -> str:
    """Markdown table of a script's flags."""
    rows = []
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            continue
        unset = action.default is None or action.default is False or action.default == []  # not 0, which equals False
        default = "" if unset else f"`{action.default}`"
        rows.append((f"`{', '.join(action.option_strings) or action.dest.upper()}`", default, action.help))
    return _table(("flag", "default", "meaning"), rows)


TABLES = {
    "train": lambda: flag_table(parser_of("train.py")),
    "train_pose": lambda: flag_table(parser_of("train_pose.py")),
    "eval": lambda: flag_table(parser_of("eval.py")),
    "view": lambda: flag_table(parser_of("view.py")),
    "config": lambda: _key_table(config_rows()),
    "pose": lambda: _key_table([row for row in config_rows(PoseConfig) if row not in config_rows()]),
    "older": lambda: _table(("older name", "name"), [(f"`{old}`", f"`{new}`") for old, new in OLDER_NAMES.items()]),
}


def _key_table(rows: list[tuple[str, str, str]]) -> str:
    return _table(("key", "default", "meaning"), [(f"`{name}`", f"`{default}`", meaning) for name, default, meaning in rows])


def with_tables(page: str) -> str:
    """A page's text with each table between its marks as the code has it. Raises GrafError for a table of another name."""

    def written(match: re.Match) -> str:
        if match[2] not in TABLES:
            raise GrafError(f"no table is named {match[2]}; there are {', '.join(TABLES)}")
        return match[1] + TABLES[match[2]]() + match[3]

    return MARKS.sub(written, page)


def default_yaml() -> str:
    """The text of configs/default.yaml: every key with its default, under its meaning."""

    def lines(cls: type, indent: str) -> Iterator[str]:
        for f in dataclasses.fields(cls):
            is_section = dataclasses.is_dataclass(f.type)
            yield from textwrap.wrap(
                f.metadata["meaning"], WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
            yield f"{indent}{f.name}:" + ("" if is_section else " " + as_yaml(f.default, f.metadata["words"]))
            if is_section:
                yield from lines(f.type, indent + "  ")

    return HEAD + "\n".join(lines(Config, "")) + "\n"


def pages() -> dict[Path, str]:
    """The files that are written from the code, with the text that each should have."""
    texts = {CONFIG_DIR / "default.yaml": default_yaml()}
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]):
        text = path.read_text(encoding="utf-8")
        if MARKS.search(text):
            texts[path] = with_tables(text)
    return texts


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> int:
    Parser(__doc__).parse_args()
    for path, text in pages().items():
        write_text(path, text)
        log.info("%s: written", path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    run_script(main)
