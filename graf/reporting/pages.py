"""Self-contained HTML pages: Jinja2 templates, which escape all values, and the files of a run that a page embeds or links."""

import base64
import hashlib
import io
import json
import logging
import os
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from graf.metrics.results import COMPARABLE, protocol_title, title
from graf.reporting.run_status import colours_first

import imageio.v2 as imageio
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from PIL import Image

log = logging.getLogger("graf")

MB = 1_000_000
CURVES = "curves"  # the folder of drawn curves beside a page
FILE_MB = 8  # a larger file is linked
PAGE_MB = 64  # once a page holds so much, further files are linked
BESIDE = ("variety", "coverage", "haze", "memorised", "consistency")  # an evaluation's other measurements than distances
WHOLE = 16  # characters of a value that stay on one line
NUMBERS_SHOWN = 32  # of a list; more are counted
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
PICTURES = ("PNG", "JPEG", "GIF", "WEBP")  # of MEDIA, whatever the extension; EPS would be run as a program
WIDE = 560  # pixels; smaller pictures are enlarged by whole factors towards it
CONTROLS = 72  # pixels of a video's controls, which stand below its picture
LONG_WORD = 24  # characters from which one that has no spaces may be broken


class EmbeddedFile(NamedTuple):
    """A picture or video of a page, or the `reason` why it is only linked."""

    reason: str = ""
    is_video: bool = False
    source: str = ""  # a data URI, as is the poster
    poster: str = ""  # a video's first frame, which is shown before it plays, and on paper
    width: int = 0  # on the page, in pixels; 0 where the file cannot be read
    height: int = 0
    is_enlarged: bool = False


class Embedder:
    """Turns files of a run into pieces of a page in page_dir, and counts the bytes that the page may still hold."""

    def __init__(self, run_dir: Path, page_dir: Path, results: Path | None = None):
        """results: a folder of results outside the run's."""
        self.run_dir, self.page_dir = run_dir, page_dir
        self.bytes_left = PAGE_MB * MB
        self._homes = [Path(os.path.realpath(folder)) for folder in (run_dir, page_dir / CURVES, results) if folder is not None]
        self._refused: set[Path] = set()

    def owns(self, path: Path) -> bool:
        """Whether a file may be shown: links do not lead it out of the folders of the run, the results and the curves.

        Whoever made the run could otherwise have any file of whoever writes the page embedded. Refused files are logged.
        """
        target = Path(os.path.realpath(path))  # Path.resolve raises where links go round before Python 3.13
        if any(target.is_relative_to(home) for home in self._homes):
            return True
        if path not in self._refused:
            self._refused.add(path)
            log.warning("%s: not in the page, as it leads out of the run, to %s", path, target)
        return False

    def has_file(self, path: Path) -> bool:
        """Whether there is such a file that may be shown."""
        return path.is_file() and self.owns(path)

    def embed(self, path: Path) -> EmbeddedFile:
        """The picture or video, unless it is too large for the page."""
        size = path.stat().st_size
        if size > FILE_MB * MB:
            return EmbeddedFile(f"over {FILE_MB} MB")
        if size > self.bytes_left:
            return EmbeddedFile(f"the page holds its {PAGE_MB} MB already")
        self.bytes_left -= size
        media, frame = MEDIA[path.suffix.lower()], _first_frame(path)
        source, is_video = _data_uri(media, path.read_bytes()), media.startswith("video/")
        if frame is None:
            return EmbeddedFile(is_video=is_video, source=source)
        factor = max(1, WIDE // frame.width)
        width, height = (factor * side for side in frame.size)
        return EmbeddedFile("", is_video, source, _poster(frame) if is_video else "", width, height, factor > 1)

    def address(self, path: Path) -> str:
        """The file's or folder's address in a link from the page, which is a whole one on another drive of Windows."""
        try:
            return quote(os.fsencode(Path(os.path.relpath(path, self.page_dir)).as_posix()))
        except ValueError:
            return path.resolve().as_uri()

    def size(self, path: Path) -> str:
        """The file's size in words; "" of a folder."""
        return "" if path.is_dir() else f"({path.stat().st_size / MB:.2f} MB)"

    def name(self, path: Path) -> str:
        """The file's path from the run's folder, or from the page's if it lies outside of that, or else the whole path."""
        bases = (base for base in (self.run_dir, self.page_dir) if path.is_relative_to(base))
        return next((path.relative_to(base).as_posix() for base in bases), path.as_posix())


def content_policy(script: str = "") -> str:
    """A Content-Security-Policy by which a browser fetches nothing, and runs no script other than this one."""
    policy = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{policy}; script-src 'sha256-{digest}'" if script else policy


def is_page(path: Path) -> bool:
    """Whether a file begins as every page of ours does."""
    source, *_ = TEMPLATES.loader.get_source(TEMPLATES, "base.html")
    beginning = source.partition("{")[0]
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(len(beginning)) == beginning


def is_shown(path: Path) -> bool:
    """Whether a browser shows the file as a picture or a video."""
    return path.suffix.lower() in MEDIA


def is_table(path: Path) -> bool:
    """Whether the file is JSON of a size that people read."""
    return path.suffix == ".json" and path.stat().st_size <= TABLE_KB * 1000


def json_html(path: Path) -> str:
    """The content of a JSON file as HTML, or the reason why it cannot be read."""
    try:
        return value_html(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        return TEMPLATES.get_template("pieces.html").module.note(f"cannot be read: {error}")


def value_html(content: Any) -> str:
    """A value of JSON as HTML, by values.html."""
    return TEMPLATES.get_template("values.html").module.value(content)


def _data_uri(media: str, content: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def _first_frame(path: Path) -> Image.Image | None:
    """The picture, or the first of a video; None where it cannot be read."""
    try:
        if MEDIA[path.suffix.lower()].startswith("image/"):
            with Image.open(path, formats=PICTURES) as image:
                return image.copy()
        with imageio.get_reader(path) as reader:
            return Image.fromarray(reader.get_data(0))
    except (OSError, ValueError, RuntimeError, IndexError, ImportError, SyntaxError, Image.DecompressionBombError):
        return None  # errors of Pillow, whose SyntaxError is a broken chunk, and of ffmpeg


def _poster(frame: Image.Image) -> str:
    content = io.BytesIO()
    frame.convert("RGB").save(content, "PNG")
    return _data_uri("image/png", content.getvalue())


def _are_numbers(values: list) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _is_result(value: Any) -> bool:
    """Whether a value of JSON is a result of `metrics.measure`."""
    match value:
        case {"values": dict(), "extractor": str()}:
            return True
    return False


def _titled(result: dict) -> dict:
    """The values of a result by their titles."""
    return {title(name) if name.endswith(result["extractor"]) else name: value for name, value in result["values"].items()}


def _wrapping(cell: str) -> str:
    """The class of a table's cell: `whole` is kept on one line, `long` may be broken within words."""
    if len(cell) <= WHOLE:
        return "whole"
    return "long" if "<" not in cell and max(map(len, cell.split()), default=0) > LONG_WORD else ""


TEMPLATES = Environment(
    loader=PackageLoader("graf.reporting"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.globals |= {
    "MB": MB,
    "CONTROLS": CONTROLS,
    "BESIDE": BESIDE,
    "json_html": json_html,
    "value_html": value_html,
    "titled": _titled,
    "protocol": lambda result: protocol_title({name: result.get(name) for name in COMPARABLE}),
    "others": lambda result: {name: value for name, value in result.items() if name not in ("values", "warnings", *BESIDE)},
}
TEMPLATES.tests |= {
    "shown": is_shown,
    "table": is_table,
    "result": _is_result,
    "nested": lambda value: isinstance(value, dict | list),
    "numbers": lambda value: isinstance(value, list) and len(value) > NUMBERS_SHOWN and _are_numbers(value),
}
TEMPLATES.filters |= {
    "wrapping": _wrapping,
    "colours_first": lambda paths: sorted(paths, key=colours_first),
    "number": lambda value: "nothing to compare" if value is None else f"{value:.4g}" if isinstance(value, float) else value,
}
