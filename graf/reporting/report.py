"""A run on one page: report.html with its pictures, videos, curves, numbers and config, without any external resource."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from graf.errors import GrafError
from graf.memory.monitor import read_rows
from graf.reporting.curves import MAX_POINTS, Curve, draw_history, plot, read_history, save_figure, time_axis
from graf.reporting.html_pieces import Embedder, head, is_shown, is_table, json_table, result_table
from graf.reporting.run_status import MEMORY, colours_first
from graf.runtime.files import whole_file
from graf.runtime.limits import GB

from matplotlib.figure import Figure

PARTS = ("config.yaml", "metrics.jsonl", "samples", "videos", "eval")  # a folder with any of these is a run's
MANY_FILES = 16  # in a folder of an evaluation; more are data rather than results


def write_report(run_dir: Path, out_file: Path, newest: Path | None = None, max_points: int = MAX_POINTS) -> Path:
    """Write a page of all results of a run: its newest evaluation, curves, samples, videos, earlier ones, its config.

    Curves are drawn again, with at most max_points points, into the folder `curves` beside the page. Pictures and videos are
    embedded; those that are too large, or too many, are relative links with a note. `newest`: a folder of results, anywhere,
    to show before those in the run's eval/. Raises GrafError where run_dir is no run's folder.
    """
    folders = _evaluations(run_dir, newest)
    if not folders and not any((run_dir / part).exists() for part in PARTS):
        raise GrafError(f"{run_dir}: no run here (none of {', '.join(PARTS)}); name the folder of a run that train.py made")
    embedder = Embedder(run_dir, out_file.parent)
    samples, videos = _by_step(run_dir / "samples"), _by_step(run_dir / "videos")
    with whole_file(out_file) as temporary, temporary.open("w", encoding="utf-8", errors="xmlcharrefreplace") as page:
        page.write(head(escape(run_dir.resolve().name)))
        page.write(f"<h1>{escape(run_dir.resolve().name)}</h1>\n")
        sections = (  # the first ones are embedded, until the page is full
            ("Evaluation", *(_folded(folder.name, _evaluation(folder, embedder), is_open=True) for folder in folders[:1])),
            ("Curves", _curves(run_dir, embedder, max_points)),
            ("Memory", _memory(run_dir, embedder, max_points)),
            ("Samples in training", *(_files(paths, embedder) for paths in samples[:1])),
            ("Videos in training", *(_files(paths, embedder) for paths in videos[:1])),
            ("Earlier", _earlier(folders[1:], {"samples": samples[1:], "videos": videos[1:]}, embedder)),
            ("Config", _config(run_dir)),
        )
        for heading, *content in sections:
            for number, piece in enumerate(itertools.chain.from_iterable(content)):
                page.write(piece if number else f"<h2>{heading}</h2>\n{piece}")
        page.write("</body>\n</html>\n")
    return out_file


def _evaluations(run_dir: Path, newest: Path | None) -> list[Path]:
    """Folders of results: the newest where it is named, then those in eval/, the highest step first."""
    folders = [folder for folder in (run_dir / "eval").glob("*") if folder.is_dir()]
    folders.sort(key=lambda folder: (_step(folder.name), folder.name), reverse=True)
    if newest is None or not newest.is_dir():
        return folders
    return [newest, *(folder for folder in folders if folder.resolve() != newest.resolve())]


def _evaluation(folder: Path, embedder: Embedder) -> Iterator[str]:
    """Of a folder in it that holds many files, such as the frames of a video, there is a link only."""
    inside = {path: _files_under(path) for path in sorted(folder.glob("*")) if path.is_dir()}
    crowded = [path for path, files in inside.items() if len(files) > MANY_FILES]
    paths = [path for path in _files_under(folder) if not any(path.is_relative_to(crowd) for crowd in crowded)]
    yield from _files(paths, embedder, [f"{embedder.link(path)} ({len(inside[path])} files)" for path in crowded])


def _curves(run_dir: Path, embedder: Embedder, max_points: int) -> Iterator[str]:
    """Curves of metrics.jsonl, and of each protocol the newest numbers."""
    if not (run_dir / "metrics.jsonl").is_file():
        return
    history = read_history(run_dir / "metrics.jsonl", max_points)
    if history.damaged:
        yield f'<p class="note">metrics.jsonl: {history.damaged} lines cannot be read and are left out.</p>\n'
    yield from _plots(draw_history(history, embedder.page_dir / "curves"), embedder)
    for evaluations in history.evaluations.values():
        yield f"<h3>Measured in training, step {evaluations.newest_step}</h3>\n" + result_table(evaluations.newest)


def _memory(run_dir: Path, embedder: Embedder, max_points: int) -> Iterator[str]:
    """The curve of memory.jsonl, and the results of memory_leak_detector.py."""
    paths = [*_draw_memory(run_dir / "memory.jsonl", embedder.page_dir / "curves" / "memory.png", max_points)]
    if (run_dir / "memory_report.png").is_file():
        paths.append(run_dir / "memory_report.png")
    if paths:
        yield from _plots(paths, embedder)


def _draw_memory(rows_file: Path, file: Path, max_points: int) -> list[Path]:
    """Draw the rows of a memory.jsonl over time, in at most max_points points. Returns the file, if there is anything."""
    times = [row["time"] for row in read_rows(rows_file)]
    if not times:
        return []
    start, (unit, unit_name) = times[0], time_axis(max(times) - times[0])
    curves = {name: Curve(max_points) for name in MEMORY}
    for row in read_rows(rows_file):
        for name, curve in curves.items():
            if isinstance(value := row.get(name), int | float):
                curve.add((row["time"] - start) / unit, value / GB)
    used = {name: curve for name, curve in curves.items() if any(mean > 0 for mean in curve.means())}
    if not used:
        return []
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, curve in used.items():
        plot(axes, MEMORY[name], curve)
    axes.set(xlabel=f"{unit_name} since the start", ylabel="GB", ylim=(0, 1.05 * axes.dataLim.ymax), title="memory")
    axes.legend(fontsize=8)
    save_figure(figure, file)
    return [file]


def _earlier(folders: list[Path], made: dict[str, list[list[Path]]], embedder: Embedder) -> Iterator[str]:
    """Samples and videos of earlier steps, then earlier evaluations, collapsed."""
    for name, steps in made.items():
        if steps:
            yield from _folded(f"{name} of {len(steps)} earlier steps", (p for paths in steps for p in _files(paths, embedder)))
    for folder in folders:
        yield from _folded(folder.name, _evaluation(folder, embedder))


def _config(run_dir: Path) -> Iterator[str]:
    path = run_dir / "config.yaml"
    if path.is_file():
        yield from _folded("config.yaml", [f"<pre>{escape(path.read_text(encoding='utf-8', errors='replace'))}</pre>\n"])


def _by_step(folder: Path) -> list[list[Path]]:
    """Files whose names begin with a step, by step, the newest first."""
    steps: dict[int, list[Path]] = {}
    for path in _files_under(folder):
        steps.setdefault(_step(path.name), []).append(path)
    return [steps[step] for step in sorted(steps, reverse=True)]


def _files(paths: list[Path], embedder: Embedder, links: Sequence[str] = ()) -> Iterator[str]:
    """Figures, then tables of JSON files, then links to all other files: meshes, latents, logs."""
    yield '<div class="files">\n'
    yield from (embedder.figure(path) for path in sorted(paths, key=colours_first) if is_shown(path))
    yield "</div>\n"
    yield from (json_table(path, embedder.name(path)) for path in paths if is_table(path))
    links = [*links, *(embedder.link(path) for path in paths if not is_shown(path) and not is_table(path))]
    if links:
        yield "<ul>\n" + "".join(f"<li>{link}</li>\n" for link in links) + "</ul>\n"


def _plots(paths: list[Path], embedder: Embedder) -> Iterator[str]:
    """Figures that stay wider than a phone's screen, so that their labels remain legible."""
    yield '<div class="plots">\n' + "".join(embedder.figure(path, is_wide=True) for path in paths) + "</div>\n"


def _files_under(folder: Path) -> list[Path]:
    """All files of a folder in the order of their names; not what is hidden or half written, and no gif that is an mp4 too."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    videos = {path for path in paths if path.suffix == ".mp4"}
    return [path for path in paths if not (path.suffix == ".gif" and path.with_suffix(".mp4") in videos)]


def _folded(summary: str, content: Iterable[str], is_open: bool = False) -> Iterator[str]:
    yield f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>\n"
    yield from content
    yield "</details>\n"


def _step(name: str) -> int:
    """The first number in a name, -1 without one."""
    digits = re.search(r"\d+", name)
    return int(digits[0]) if digits else -1
