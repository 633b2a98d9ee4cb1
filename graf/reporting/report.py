"""A run on one page: report.html tells how good it is, how it learned, whether its objects are 3D and what is lacking, and
holds every picture, video, number and the config below that. It needs no other file and no network."""

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from graf.config import read_yaml
from graf.errors import ConfigError, GrafError
from graf.inversion.results import INVERSIONS
from graf.memory.monitor import read_rows
from graf.reporting.curves import MAX_POINTS, Curve, History, draw_history, plot, read_history, save_figure, time_axis
from graf.reporting.html_pieces import (
    CURVES,
    FILE_MB,
    MB,
    TABLE_KB,
    Embedder,
    head,
    is_page,
    is_shown,
    is_table,
    json_table,
    result_table,
)
from graf.reporting.mesh_view import SCRIPT, mesh_html, read_mesh
from graf.reporting.run_status import MEMORY, colours_first, read_status
from graf.reporting.story import (
    agreement,
    distances,
    field_sentence,
    fit_sentence,
    memorised,
    progress_sentence,
    protocol_sentence,
    shortcomings,
)
from graf.runtime.console import duration
from graf.runtime.files import set_aside, whole_file
from graf.runtime.limits import GB

from matplotlib.figure import Figure

log = logging.getLogger("graf")

PARTS = ("config.yaml", "metrics.jsonl", "samples", "videos", "eval")  # a folder with any of these is a run's
MANY_FILES = 16  # in a folder of an evaluation; more are data rather than results
STRIP = 6  # steps of training beside each other
HEADLINE = "sweep_rgb"  # the picture that a page begins with, by its name without suffix
TURNS = ("rotation_", "elevation_", "sweep_")  # beginnings of the names of what shows objects from all around
COMPARED = ("neighbours", "real_against_fake")  # pictures with training images beside generated ones
LEARNING = ("losses", "kid")  # of `figures`, what a page shows unfolded


@dataclasses.dataclass(frozen=True)
class _Run:
    """What a run's folder holds, and what its newest evaluation found."""

    folder: Path
    history: History
    config: dict
    folders: list[Path]  # of evaluations, the newest first
    pictures: list[Path]  # of the newest evaluation, and videos, colours first
    measured: dict  # content of its metrics.json
    samples: list[list[Path]]  # of each step of training, the newest first
    videos: list[list[Path]]
    overview: list[Path]  # pictures and videos of all of training

    def picture(self, *stems: str) -> list[Path]:
        """Those of the newest evaluation whose name begins so."""
        return [path for path in self.pictures if path.stem.startswith(stems)]


def write_report(run_dir: Path, out_file: Path, newest: Path | None = None, max_points: int = MAX_POINTS) -> Path:
    """Write a page of a run: what its newest evaluation and its training tell, then everything else, folded away.

    Curves are drawn again, with at most max_points points, into the folder `curves` beside the page. Pictures and videos are
    embedded; those that are too large, or too many, are relative links with a note. `newest`: a folder of results, anywhere,
    to show before those in the run's eval/. A file at out_file that is no such page is renamed, with a warning. Raises
    GrafError where run_dir is no run's folder.
    """
    embedder = Embedder(run_dir, out_file.parent, newest)
    folders = _evaluations(run_dir, newest, embedder)
    if not folders and not any((run_dir / part).exists() for part in PARTS):
        raise GrafError(f"{run_dir}: no run here (none of {', '.join(PARTS)}); name the folder of a run that train.py made")
    run = _read_run(run_dir, folders, max_points, embedder)
    curves = {path.stem: path for path in draw_history(run.history, embedder.page_dir / CURVES)}
    name = escape(run_dir.resolve().name)
    if out_file.is_file() and not is_page(out_file):
        log.warning("%s: not a page of this program; it is now %s", out_file, set_aside(out_file).name)
    with whole_file(out_file) as temporary, temporary.open("w", encoding="utf-8", errors="xmlcharrefreplace") as page:
        page.write(head(name, SCRIPT))
        page.write(f"<h1>{name}</h1>\n")
        page.writelines(_headline(run, embedder))
        sections = (  # the first ones are embedded, until the page is full
            ("How it learned", _learning(run, curves, embedder)),
            ("Is it 3D?", _solidity(run, embedder)),
            ("What else it draws", _others(run, embedder)),
            ("What it cannot do", _lacking(run, embedder)),
            ("Terms, numbers and files", _terms(run, curves, embedder, max_points)),
        )
        for heading, content in sections:
            for number, piece in enumerate(content):
                page.write(piece if number else f"<h2>{heading}</h2>\n{piece}")
        page.write(f"<script>{SCRIPT}</script>\n</body>\n</html>\n")
    return out_file


def _read_run(run_dir: Path, folders: list[Path], max_points: int, embedder: Embedder) -> _Run:
    rows, newest = run_dir / "metrics.jsonl", folders[0] if folders else None
    samples, videos = (_by_step(run_dir / name, embedder) for name in ("samples", "videos"))
    paths = sorted(filter(is_shown, _of_evaluation(newest, embedder)[0]), key=colours_first) if newest else []
    return _Run(
        run_dir,
        read_history(rows, max_points) if _is_own_file(rows, embedder) else History(max_points),
        _config(run_dir / "config.yaml", embedder),
        folders,
        paths,
        _json(newest / "metrics.json", embedder) if newest else {},
        *([files for step, files in found.items() if step >= 0] for found in (samples, videos)),
        [path for found in (samples, videos) for path in found.get(-1, []) if is_shown(path)],
    )


def _headline(run: _Run, embedder: Embedder) -> Iterator[str]:
    """A picture, and what a reader asks first: how good, after how many steps, in what time."""
    result, step = _newest_result(run)
    found = dict(distances(result))
    status = read_status(run.folder)
    taken = status.step or run.measured.get("step")  # of weights from elsewhere, their results alone know
    if isinstance(taken, int):
        found["steps"] = f"{taken:,}" + (f" of {status.max_steps:,}" if status.max_steps else "")
    memory = run.folder / "memory.jsonl"
    if _is_own_file(memory, embedder) and (seconds := _seconds(memory)):
        found["run time"] = duration(seconds)
    match run.config:
        case {"data": {"imsize": int(side)}}:
            found["pixels"] = f"{side} x {side}"
    for path in _first_picture(run):
        yield embedder.figure(path, "Each row is one object, seen from all around." if path.stem == HEADLINE else "")
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in found.items())
    yield f'<dl class="facts">{items}</dl>\n'
    if result:
        yield _paragraph(protocol_sentence(result, step))
    else:
        yield _paragraph("Its distance to the data has not been measured: eval.py --metrics fid,kid does that.")


def _learning(run: _Run, curves: dict[str, Path], embedder: Embedder) -> Iterator[str]:
    """Samples of a few steps beside each other, losses and KID."""
    if run.history.damaged:
        yield _note(f"metrics.jsonl: {run.history.damaged} lines cannot be read and are left out.")
    if run.overview:
        yield _figures(run.overview, embedder)
    elif strip := _strip(run):
        figures = (embedder.figure(path, f"step {_step(path.name):,}") for path in strip)
        yield '<div class="strip">\n' + "".join(figures) + "</div>\n"
    if sentence := progress_sentence(run.history):
        yield _paragraph(sentence)
    if drawn := [curves[name] for name in reversed(LEARNING) if name in curves]:
        yield _figures(drawn, embedder)


def _solidity(run: _Run, embedder: Embedder) -> Iterator[str]:
    """Sweeps, whether their views agree, and the surface."""
    found, sweep = (run.measured.get(name) for name in ("consistency", "sweep"))
    words = [*agreement(found)] if isinstance(found, dict) else []
    if run.folders and not words:
        words.append("Whether the views of an object agree has not been measured: eval.py --consistency does that.")
    words += [field_sentence(sweep)] if isinstance(sweep, dict) else []
    if words := [*filter(None, words)]:
        yield _list(words)
    shown = [path for path in run.picture(*TURNS) if path not in _first_picture(run)]
    if shown:
        order = {path: (path.suffix == ".png", *colours_first(path)[:1], not path.stem.startswith(TURNS[0])) for path in shown}
        yield _figures(sorted(shown, key=order.get), embedder)
    if run.folders:
        yield from _surface(run.folders[0] / "mesh", embedder)


def _surface(folder: Path, embedder: Embedder) -> Iterator[str]:
    """The first object's mesh, to turn."""
    files = [path for suffix in (".ply", ".glb") for path in sorted(folder.glob(f"object_*{suffix}"))]
    for file in (file for file in files if _is_own_file(file, embedder)):
        size = file.stat().st_size
        if size <= min(FILE_MB * MB, embedder.bytes_left) and (mesh := read_mesh(file)) is not None:
            embedder.bytes_left -= size
            yield mesh_html(mesh, embedder.name(file))
            return


def _others(run: _Run, embedder: Embedder) -> Iterator[str]:
    """All other pictures of the newest evaluation: interpolations, classes, inversions."""
    shown = {*_first_picture(run), *run.picture(*TURNS, *COMPARED)}
    if others := [path for path in run.pictures if path not in shown]:
        figures = (embedder.figure(path, escape(_of_fit(path, embedder))) for path in others)
        yield '<div class="files">\n' + "".join(figures) + "</div>\n"


def _of_fit(path: Path, embedder: Embedder) -> str:
    """What is told below photographs beside their fits, the picture of an inversion; empty of others."""
    return fit_sentence(_json(path.parent / "inversion.json", embedder)) if path.name == "fit.png" else ""


def _lacking(run: _Run, embedder: Embedder) -> Iterator[str]:
    """What is known to be lacking, and generated images beside the training images that they are like."""
    words = [*shortcomings(run.measured, run.history, run.config)]
    result, _ = _newest_result(run)
    words += [f"{warning}." for warning in result.get("warnings") or [] if isinstance(warning, str)]
    if words:
        yield _list(words)
    if compared := run.picture(*COMPARED):
        yield _figures(compared, embedder)
        if sentence := memorised(_json(compared[0].parent / "neighbours.json", embedder)):
            yield _paragraph(sentence)
    elif run.folders:
        yield _paragraph("Samples have not been compared with their nearest training images: eval.py --neighbours does that.")


def _terms(run: _Run, curves: dict[str, Path], embedder: Embedder, max_points: int) -> Iterator[str]:
    """Everything else, folded away: what was measured and how, all curves, samples, earlier evaluations, the config."""
    if run.folders:
        yield from _folded(f"measured in {run.folders[0].name}", _tables(run.folders[0], embedder))
    for evaluations in run.history.evaluations.values():
        yield from _folded(f"measured in training, step {evaluations.newest_step:,}", [result_table(evaluations.newest)])
    if others := [path for name, path in curves.items() if name not in LEARNING]:
        yield from _folded("all curves of training", [_plots(others, embedder)])
    if memory := _memory(run.folder, embedder, max_points):
        yield from _folded("memory", [_plots(memory, embedder)])
    shown = {*_strip(run), *_first_picture(run)}
    for name, steps in (("samples", run.samples), ("videos", run.videos)):
        if left := [kept for files in steps if (kept := [path for path in files if path not in shown])]:
            pieces = (piece for files in left for piece in _files(files, embedder))
            yield from _folded(f"{name} of {len(left)} step{'s' if len(left) > 1 else ''} of training", pieces)
    for folder in run.folders[1:]:
        yield from _folded(folder.name, _evaluation(folder, embedder))
    if _is_own_file(path := run.folder / "config.yaml", embedder):
        yield from _folded("config.yaml", [f"<pre>{escape(path.read_text(encoding='utf-8', errors='replace'))}</pre>\n"])


def _first_picture(run: _Run) -> list[Path]:
    """That of the page's beginning: the sweep, or else the newest sample, or else any picture."""
    pictures = [path for path in run.pictures if path.suffix != ".mp4"]
    newest = [path for files in run.samples[:1] for path in sorted(files, key=colours_first) if is_shown(path)]
    return [*(path for path in pictures if path.stem == HEADLINE), *newest, *pictures][:1]


def _strip(run: _Run) -> list[Path]:
    """Colours of at most STRIP steps, from the first to the last, other than the page's first picture."""
    if run.overview:
        return []
    colours = [path for files in reversed(run.samples) for path in files if "_rgb" in path.stem and is_shown(path)]
    colours = [path for path in colours if path not in _first_picture(run)]
    if len(colours) <= STRIP:
        return colours
    return [colours[round(i * (len(colours) - 1) / (STRIP - 1))] for i in range(STRIP)]


def _newest_result(run: _Run) -> tuple[dict, int]:
    """The newest result of `metrics.measure` and its step: of the newest evaluation, or else of training; {} without any."""
    match run.measured:
        case {"values": dict(), "extractor": str(), "step": int(step)}:
            return run.measured, step
    newest = max(run.history.evaluations.values(), key=lambda evaluations: evaluations.newest_step, default=None)
    return (newest.newest, newest.newest_step) if newest else ({}, 0)


def _seconds(rows_file: Path) -> float:
    """Seconds that a run's sessions took, samples and measurements included, by the rows of its memory.jsonl; each session
    begins with a row of step 0."""
    total, before = 0.0, None
    for row in read_rows(rows_file):
        if before is not None and row.get("step") != 0:
            total += max(0.0, row["time"] - before)
        before = row["time"]
    return total


def _evaluations(run_dir: Path, newest: Path | None, embedder: Embedder) -> list[Path]:
    """Folders of results: the newest where it is named, then those in eval/, the highest step first."""
    folders = [folder for folder in (run_dir / "eval").glob("*") if folder.is_dir() and embedder.owns(folder)]
    folders.sort(key=lambda folder: (_step(folder.name), folder.name), reverse=True)
    if newest is None or not _files_under(newest, embedder):
        return folders
    return [newest, *(folder for folder in folders if folder.resolve() != newest.resolve())]


def _of_evaluation(folder: Path, embedder: Embedder) -> tuple[list[Path], dict[Path, int]]:
    """Files of an evaluation, and the folders in it that hold many, such as the frames of a video, with their numbers."""
    folders = [path for path in (*folder.glob("*"), *(folder / INVERSIONS).glob("*")) if path.is_dir()]
    inside = {path: len(_files_under(path, embedder)) for path in sorted(folders) if path != folder / INVERSIONS}
    crowded = {path: number for path, number in inside.items() if number > MANY_FILES}
    paths = _files_under(folder, embedder)
    return [path for path in paths if not any(path.is_relative_to(crowd) for crowd in crowded)], crowded


def _evaluation(folder: Path, embedder: Embedder) -> Iterator[str]:
    """Of a folder in it that holds many files there is a link only."""
    paths, crowded = _of_evaluation(folder, embedder)
    yield from _files(paths, embedder, [f"{embedder.link(path)} ({number} files)" for path, number in crowded.items()])


def _tables(folder: Path, embedder: Embedder) -> Iterator[str]:
    """Numbers of an evaluation and links to its files, without the pictures."""
    paths, crowded = _of_evaluation(folder, embedder)
    links = [f"{embedder.link(path)} ({number} files)" for path, number in crowded.items()]
    yield from _files([path for path in paths if not is_shown(path)], embedder, links)


def _memory(run_dir: Path, embedder: Embedder, max_points: int) -> list[Path]:
    """The curve of memory.jsonl, and the results of memory_leak_detector.py."""
    rows, watched = run_dir / "memory.jsonl", run_dir / "memory_report.png"
    drawn = embedder.page_dir / CURVES / "memory.png"
    paths = _draw_memory(rows, drawn, max_points) if _is_own_file(rows, embedder) else []
    return paths + [watched] * _is_own_file(watched, embedder)


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


def _config(path: Path, embedder: Embedder) -> dict:
    try:
        return read_yaml(path) if _is_own_file(path, embedder) else {}
    except ConfigError:
        return {}


def _json(path: Path, embedder: Embedder) -> dict:
    """The content of a file of results; {} where there is none, or none that can be read."""
    if not _is_own_file(path, embedder):
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= TABLE_KB * 1000 else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _by_step(folder: Path, embedder: Embedder) -> dict[int, list[Path]]:
    """Files by the step that their names begin with, -1 without one; the highest first."""
    steps: dict[int, list[Path]] = {}
    for path in _files_under(folder, embedder):
        steps.setdefault(_step(path.name), []).append(path)
    return {step: steps[step] for step in sorted(steps, reverse=True)}


def _files(paths: list[Path], embedder: Embedder, links: Sequence[str] = ()) -> Iterator[str]:
    """Figures, then tables of JSON files, then links to all other files: meshes, latents, logs."""
    if shown := sorted(filter(is_shown, paths), key=colours_first):
        yield _figures(shown, embedder)
    yield from (json_table(path, embedder.name(path)) for path in paths if is_table(path))
    links = [*links, *(embedder.link(path) for path in paths if not is_shown(path) and not is_table(path))]
    if links:
        items = "".join(f"<li>{link}</li>\n" for link in links)
        yield f"<p>In the run's folder, not in this page:</p>\n<ul>\n{items}</ul>\n"


def _figures(paths: Iterable[Path], embedder: Embedder) -> str:
    return '<div class="files">\n' + "".join(map(embedder.figure, paths)) + "</div>\n"


def _plots(paths: list[Path], embedder: Embedder) -> str:
    """Figures that stay wider than a telephone's screen, so that their labels remain legible."""
    return '<div class="plots">\n' + "".join(embedder.figure(path, is_wide=True) for path in paths) + "</div>\n"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>\n"


def _list(sentences: Iterable[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{escape(text[:1].upper() + text[1:])}</li>\n" for text in sentences) + "</ul>\n"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def _is_own_file(path: Path, embedder: Embedder) -> bool:
    return path.is_file() and embedder.owns(path)


def _files_under(folder: Path, embedder: Embedder) -> list[Path]:
    """All files of a folder in the order of their names; not what is hidden or half written or leads out of the run, no gif
    that is an mp4 too, and neither the page's curves nor a page beside it."""
    page_dir = embedder.page_dir
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    others = (path for path in found if page_dir / CURVES != path.parent and (page_dir, ".html") != (path.parent, path.suffix))
    paths = sorted(filter(embedder.owns, others))
    videos = {path for path in paths if path.suffix == ".mp4"}
    return [path for path in paths if not (path.suffix == ".gif" and path.with_suffix(".mp4") in videos)]


def _folded(summary: str, content: Iterable[str]) -> Iterator[str]:
    yield f"<details><summary>{escape(summary)}</summary>\n"
    yield from content
    yield "</details>\n"


def _step(name: str) -> int:
    """The first number in a name, -1 without one."""
    digits = re.search(r"\d+", name)
    return int(digits[0]) if digits else -1
