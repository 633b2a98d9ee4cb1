"""Pieces of a self-contained HTML page: files as data URIs, results as tables, links to files that are too large."""

import base64
import hashlib
import io
import json
import logging
import os
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from graf.metrics.results import COMPARABLE, protocol_title, title

import imageio.v2 as imageio
from PIL import Image

log = logging.getLogger("graf")

MB = 1_000_000
CURVES = "curves"  # the folder of drawn curves beside a page
FILE_MB = 8  # a larger file is linked
PAGE_MB = 64  # once a page holds so much, further files are linked
BESIDE = ("variety", "coverage", "haze", "consistency")  # an evaluation's other measurements, beside the distance to the data
WHOLE = 16  # characters of a value that stay on one line
TABLE_KB = 256  # of JSON; more is data rather than a result
MEDIA = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
WIDE = 560  # pixels; smaller pictures are enlarged by whole factors towards it
CONTROLS = 72  # pixels of a video's controls, which stand below its picture
LONG_WORD = 24  # characters from which one that has no spaces may be broken
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
h1, h2, h3, li, p {{ overflow-wrap: anywhere; }}
h2 {{ border-bottom: 1px solid #8886; margin-top: 2.5rem; }}
p, li {{ max-width: 46rem; }}
summary {{ cursor: pointer; padding: 0.25rem 0; }}
.files {{ container-type: inline-size; }}
.files, .plots {{ display: flex; flex-wrap: wrap; gap: 1.25rem; align-items: flex-start; margin: 1rem 0; }}
.strip {{ display: flex; gap: 0.75rem; overflow-x: auto; margin: 1rem 0; }}
.strip figure {{ flex: 0 0 9.5rem; }}
.strip img {{ width: 100%; }}
.strip code {{ display: none; }}
figure {{ margin: 0; max-width: 100%; }}
figcaption {{ font-size: 0.85rem; overflow-wrap: anywhere; }}
figcaption code {{ opacity: 0.6; }}
img, video {{ display: block; max-width: 100%; height: auto; background: #fff; }}
.enlarged {{ image-rendering: pixelated; }}
video {{ min-width: 16rem; object-fit: contain; object-position: top; }}
canvas {{ width: min(100%, 26rem); aspect-ratio: 1; background: #fff; touch-action: pan-y; cursor: grab; }}
progress {{ width: 100%; height: 1.5rem; accent-color: #286; display: block; }}
.facts {{ display: flex; flex-wrap: wrap; gap: 0.5rem 2.5rem; margin: 1.25rem 0; }}
.facts div {{ display: flex; flex-direction: column-reverse; }}
.facts dt {{ font-size: 0.85rem; opacity: 0.75; }}
.facts dd {{ margin: 0; font-size: 1.6rem; line-height: 1.25; white-space: nowrap; }}
table {{ border-collapse: collapse; margin: 0.5rem 0; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.15rem 0.8rem 0.15rem 0; border-bottom: 1px solid #8884; }}
th {{ font-weight: normal; opacity: 0.75; }}
.whole {{ white-space: nowrap; }}
.long {{ overflow-wrap: anywhere; }}
.curve {{ width: 20rem; padding-right: 0; }}
.curve svg {{ display: block; width: 100%; min-width: 3rem; }}
pre {{ overflow-x: auto; padding: 0.75rem; background: #8882; }}
li > table {{ display: inline-table; vertical-align: top; }}
@media (max-width: 40rem) {{
  body {{ margin: 1rem auto; }}
  .facts {{ gap: 0.5rem 1.5rem; }}
  .facts dd {{ font-size: 1.3rem; }}
  .plots .wide {{ overflow-x: auto; }}
  .plots .wide img {{ max-width: none; width: 56rem; }}
  .curves, .curves tbody {{ display: block; }}
  .curves tr {{ display: grid; grid-template-columns: 4.5rem repeat(3, 1fr) 3.5rem; font-size: 0.8rem; }}
  .curves th, .curves td {{ padding-right: 0.3rem; border-bottom: 0; }}
  .curves .curve {{ grid-column: 1 / -1; width: auto; }}
  tr:has(> td > table, > td > ul) > * {{ display: block; border-bottom: 0; }}
  ul {{ padding-left: 1.25rem; }}
}}
@media print {{
  :root {{ color-scheme: light; }}
  body {{ font-size: 11pt; max-width: none; margin: 0; }}
  h2, h3 {{ break-after: avoid; }}
  figure, tr, .facts {{ break-inside: avoid; }}
  .strip figure {{ flex: 1 1 0; }}
  .strip img {{ min-width: 0; }}
  video::-webkit-media-controls {{ display: none; }}
  .screen, details:not([open]) {{ display: none; }}
}}
.note {{ border-left: 4px solid #d80; padding-left: 0.75rem; }}
</style>
</head>
<body>
"""


def head(title: str, script: str = "") -> str:
    """The page until its content. `title` is HTML. The browser fetches nothing, and runs no other script than this one."""
    policy = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
    if script:
        policy += f"; script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    return HEAD.format(title=title, policy=policy)


def is_page(path: Path) -> bool:
    """Whether a file begins as every page of `head` does."""
    beginning = HEAD.partition("{")[0]
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(len(beginning)) == beginning


class Embedder:
    """Turns files of a run into HTML for a page in page_dir, and counts what the page holds already."""

    def __init__(self, run_dir: Path, page_dir: Path, results: Path | None = None):
        """results: a folder of results outside the run's."""
        self.run_dir, self.page_dir = run_dir, page_dir
        self.bytes_left = PAGE_MB * MB
        self._homes = [Path(os.path.realpath(folder)) for folder in (run_dir, page_dir / CURVES, results) if folder is not None]
        self._refused: set[Path] = set()

    def owns(self, path: Path) -> bool:
        """Whether a file that is there may be shown: links do not lead it out of the run's folder, the results' or the curves'.

        Whoever made the run could otherwise have any file of whoever writes the page embedded. The log tells what is refused.
        """
        target = Path(os.path.realpath(path))  # Path.resolve raises where links go round before Python 3.13
        if any(target.is_relative_to(home) for home in self._homes):
            return True
        if path not in self._refused:
            self._refused.add(path)
            log.warning("%s: not in the page, as it leads out of the run, to %s", path, target)
        return False

    def figure(self, path: Path, words: str = "", is_wide: bool = False) -> str:
        """The picture or video with words and its name below it; a link that says why where it is too large for the page.

        words are HTML. is_wide: of drawings, whose letters must not shrink with a telephone.
        """
        size = path.stat().st_size
        if size > min(FILE_MB * MB, self.bytes_left):
            reason = f"over {FILE_MB} MB" if size > FILE_MB * MB else f"the page holds its {PAGE_MB} MB already"
            return f"<figure>{self.link(path)}: linked, not embedded ({reason})</figure>\n"
        self.bytes_left -= size
        media, name = MEDIA[path.suffix.lower()], escape(self.name(path))
        source, still = data_uri(media, path.read_bytes()), first_frame(path)
        factor = max(1, WIDE // still.width) if still else 1
        looks = ' class="enlarged"' if factor > 1 else ""
        width, height = (factor * side for side in still.size) if still else (0, 0)
        if media.startswith("video/"):
            high = f"calc(min({width}px,100cqw)*{height / max(width, 1):.4f} + {CONTROLS}px)"  # also where the page is narrower
            shape = f"width:{width}px;height:{high}"
            looks += f' poster="{poster(still)}" style="{shape}"' if still else ""
            shown = f'<video controls loop muted playsinline{looks} src="{source}"></video>'
        else:
            looks += f' width="{width}" height="{height}"' if factor > 1 else ""
            shown = f'<img alt="{name}"{looks} src="{source}">'
        attributes = ' class="wide"' if is_wide else ""
        below = f"{words} <code>{name}</code>" if words else f"<code>{name}</code>"
        return f"<figure{attributes}>{shown}<figcaption>{below}</figcaption></figure>\n"

    def link(self, path: Path) -> str:
        """A link from the page to the file, with its size, or to the folder."""
        target = quote(os.fsencode(os.path.relpath(path, self.page_dir)))
        size = "" if path.is_dir() else f" ({path.stat().st_size / MB:.2f} MB)"
        return f'<a href="{target}">{escape(self.name(path))}</a>{size}'

    def name(self, path: Path) -> str:
        """The file as seen from the run's folder, or from the page's where it lies outside of that, or else as it is."""
        bases = (base for base in (self.run_dir, self.page_dir) if path.is_relative_to(base))
        return next((path.relative_to(base).as_posix() for base in bases), path.as_posix())


def data_uri(media: str, content: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def first_frame(path: Path) -> Image.Image | None:
    """The picture, or the first of a video; None where it cannot be read."""
    try:
        if MEDIA[path.suffix.lower()].startswith("image/"):
            with Image.open(path) as image:
                return image.copy()
        with imageio.get_reader(path) as reader:
            return Image.fromarray(reader.get_data(0))
    except (OSError, ValueError, RuntimeError, IndexError, ImportError):  # of Pillow, and of ffmpeg
        return None


def poster(frame: Image.Image) -> str:
    """A picture as a data URI: what a video shows before it plays, and on paper."""
    content = io.BytesIO()
    frame.convert("RGB").save(content, "PNG")
    return data_uri("image/png", content.getvalue())


def is_shown(path: Path) -> bool:
    """Whether a browser shows the file as a picture or a video."""
    return path.suffix.lower() in MEDIA


def is_table(path: Path) -> bool:
    """Whether the file is JSON of a size that people read."""
    return path.suffix == ".json" and path.stat().st_size <= TABLE_KB * 1000


def json_table(path: Path, name: str) -> str:
    """The content of a JSON file as a table under its name; what cannot be read is said."""
    try:
        content = value_html(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        content = f'<p class="note">cannot be read: {escape(str(error))}</p>\n'
    return f"<h3>{escape(name)}</h3>\n{content}"


def value_html(value: Any) -> str:
    """A value of JSON as HTML: a table of names and values, a list, or text. Results of `metrics.measure`, wherever they stand,
    are tables with their protocol and warnings."""
    match value:
        case {"values": dict(), "extractor": str()}:
            return result_table(value)
        case dict():
            return _table({name: value_html(part) for name, part in value.items()})
        case list() if any(isinstance(part, (dict, list)) for part in value):
            return "<ul>\n" + "".join(f"<li>{value_html(part)}</li>\n" for part in value) + "</ul>\n"
        case list():
            return ", ".join(map(value_html, value))
        case float():
            return f"{value:.6g}"
        case None:
            return "–"  # a number that could not be measured
    return escape(str(value))


def result_table(result: dict) -> str:
    """A result of `metrics.measure`: its values, the protocol that they belong to, its warnings, and all else folded away."""
    extractor = str(result["extractor"])
    values = {title(key) if key.endswith(extractor) else key: value_html(value) for key, value in result["values"].items()}
    protocol = {name: result.get(name) for name in COMPARABLE}
    warnings = result.get("warnings") or []
    others = {name: value_html(value) for name, value in result.items() if name not in ("values", "warnings", *BESIDE)}
    return (
        _table(values)
        + f"<p>{escape(protocol_title(protocol))}</p>\n"
        + "".join(f'<p class="note">{value_html(warning)}</p>\n' for warning in warnings)
        + "".join(value_html({name: result[name]}) for name in BESIDE if name in result)
        + f"<details><summary>all terms</summary>\n{_table(others)}</details>\n"
    )


def _table(rows: dict[str, str]) -> str:
    """A table of names and HTML; short values, such as numbers, are not wrapped, and only what no line could hold is broken."""
    cells = (f"<tr><th>{escape(name)}</th><td{_wrapping(value)}>{value}</td></tr>\n" for name, value in rows.items())
    return "<table>\n" + "".join(cells) + "</table>\n"


def _wrapping(value: str) -> str:
    if len(value) <= WHOLE:
        return ' class="whole"'
    is_long = "<" not in value and max(map(len, value.split()), default=0) > LONG_WORD
    return ' class="long"' if is_long else ""
