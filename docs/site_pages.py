"""A hook of MkDocs: adds pages from files beside docs/, and turns links to where the site has their targets."""

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from graf import HOMES

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of files beside docs/, and the reference of the public names."""
    from mkdocs.structure.files import File

    for name, page in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=turned(text, PurePosixPath())))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn a page's links."""
    if page.file.generated_by:  # its links were turned when it was added
        return markdown
    return turned(markdown, PurePosixPath("docs", page.file.src_uri).parent)


def turned(text: str, folder: PurePosixPath) -> str:
    """The text of a file in a folder of the repository with its links to where the site has their targets; of a link to what
    the site does not have, the words remain."""

    def link(match: re.Match) -> str:
        words, target, anchor = match.groups()
        if "://" in target:
            return match[0]
        file = posixpath.normpath(folder / target)
        page = BESIDE.get(file, file.removeprefix("docs/"))
        if file not in BESIDE and page == file:
            return words
        here = "docs" if folder == PurePosixPath() else str(folder)
        return f"[{words}]({posixpath.relpath(f'docs/{page}', here)}{anchor or ''})"

    return LINK.sub(link, text)


def reference() -> str:
    """The page of the public names' docstrings."""
    names = "\n\n".join(f"::: {home}.{name}" for name, home in HOMES.items())
    return f"# Reference\n\nThe docstrings of the [public names](api.md).\n\n{names}\n"
