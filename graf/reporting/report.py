"""A run on one page: report.html tells how good it is, how it learned, whether its objects are 3D and what is lacking, and
holds every picture, video, number and the config below that. It needs no other file and no network."""

import functools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graf.checkpoints.checkpoint import NEWEST
from graf.checkpoints.latents_file import NAME
from graf.config import read_yaml
from graf.errors import ConfigError, GrafError
from graf.inversion.results import INVERSIONS
from graf.memory.monitor import read_rows
from graf.reporting.curves import DPI, MAX_POINTS, Curve, History, draw_history, plot, read_history, time_axis
from graf.reporting.mesh_view import SCRIPT, MeshData, read_mesh
from graf.reporting.pages import CURVES, FILE_MB, MB, TEMPLATES, Embedder, content_policy, is_page, is_shown, is_table
from graf.reporting.run_status import MEMORY, colours_first, distances, read_status
from graf.reporting.story import (
    agreement,
    field_sentence,
    fit_sentence,
    memorised,
    progress_sentence,
    protocol_sentence,
    shortcomings,
)
from graf.runtime.command_line import as_typed
from graf.runtime.console import duration
from graf.runtime.files import readable_object, save_figure, set_aside, whole_file
from graf.runtime.limits import GB

from matplotlib.figure import Figure

log = logging.getLogger("graf")

PARTS = ("config.yaml", "metrics.jsonl", "samples", "videos", "eval")  # of a run, which a report shows: it needs one of them
MANY_FILES = 16  # in a folder of an evaluation; more are data rather than results
STRIP = 6  # steps of training beside each other
HEADLINE = "sweep_rgb"  # the picture that a page begins with, by its name without suffix
TURNS = ("rotation_", "elevation_", "sweep_")  # beginnings of the names of what shows objects from all around
COMPARED = ("neighbours", "real_against_fake")  # pictures with training images beside generated ones
LEARNING = ("losses", "kid")  # of `figures`, what a page shows unfolded


@dataclass(frozen=True)
class RunFiles:
    """The files of a run's folder, and what its newest evaluation found."""

    folder: Path
    history: History
    config: dict
    folders: list[Path]  # of evaluations, the newest first
    pictures: list[Path]  # of the newest evaluation, and videos, colours first
    measured: dict  # content of the newest metrics.json
    is_of_newest: bool  # whether that is of the newest evaluation
    samples: list[list[Path]]  # of each step of training, the newest first
    videos: list[list[Path]]
    overview: list[Path]  # pictures and videos of all of training

    @functools.cached_property
    def first_picture(self) -> list[Path]:
        """The picture that the page begins with: the sweep, or else the newest sample, or else any picture."""
        pictures = [path for path in self.pictures if path.suffix != ".mp4"]
        newest = [path for files in self.samples[:1] for path in sorted(files, key=colours_first) if is_shown(path)]
        return [*(path for path in pictures if path.stem == HEADLINE), *newest, *pictures][:1]

    @functools.cached_property
    def strip(self) -> list[Path]:
        """Colours of at most STRIP steps, from the first to the last, other than the page's first picture."""
        if self.overview:
            return []
        colours = [path for files in reversed(self.samples) for path in files if "_rgb" in path.stem and is_shown(path)]
        colours = [path for path in colours if path not in self.first_picture]
        if len(colours) <= STRIP:
            return colours
        return [colours[round(i * (len(colours) - 1) / (STRIP - 1))] for i in range(STRIP)]

    @property
    def turns(self) -> list[Path]:
        """Pictures and videos of objects from all around, videos first."""
        shown = [path for path in self._named(*TURNS) if path not in self.first_picture]
        return sorted(shown, key=lambda p: (p.suffix == ".png", *colours_first(p)[:1], not p.stem.startswith(TURNS[0])))

    @property
    def compared(self) -> list[Path]:
        """Pictures with training images beside generated ones."""
        return self._named(*COMPARED)

    @property
    def others(self) -> list[Path]:
        """All other pictures of the newest evaluation: interpolations, classes, inversions."""
        shown = {*self.first_picture, *self._named(*TURNS, *COMPARED)}
        return [path for path in self.pictures if path not in shown]

    @property
    def further_steps(self) -> dict[str, list[list[Path]]]:
        """Samples and videos of each step of training that the page has not shown yet."""
        shown = {*self.strip, *self.first_picture}
        found = {"samples": self.samples, "videos": self.videos}
        left = {name: ([path for path in files if path not in shown] for files in steps) for name, steps in found.items()}
        return {name: [files for files in steps if files] for name, steps in left.items()}

    @property
    def newest_result(self) -> tuple[dict, int]:
        """The result of `metrics.measure` that the page begins with, and its step: of the newest evaluation, or else the later
        one of an earlier evaluation and of training; {} without any."""
        newest = self.history.newest
        in_training = (newest.newest, newest.newest_step) if newest else ({}, 0)
        match self.measured:
            case {"values": dict(), "extractor": str(), "step": int(step)} if self.is_of_newest or step >= in_training[1]:
                return self.measured, step
        return in_training

    def _named(self, *stems: str) -> list[Path]:
        """Pictures of the newest evaluation whose names begin with one of these."""
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
    if out_file.is_file() and not is_page(out_file):
        log.warning("%s: not a page of this program; it is now %s", out_file, set_aside(out_file).name)
    page = TEMPLATES.get_template("report.html").generate(
        title=run_dir.resolve().name,
        script=SCRIPT,
        policy=content_policy(SCRIPT),
        HEADLINE=HEADLINE,
        run=run,
        embedder=embedder,
        facts=_facts(run, embedder),
        **_sentences(run, embedder),
        learning_curves=[curves[name] for name in reversed(LEARNING) if name in curves],
        other_curves=[path for name, path in curves.items() if name not in LEARNING],
        memory=_memory(run_dir, embedder, max_points),
        config_text=_text(run_dir / "config.yaml", embedder),
        # What the template asks for while it is written: the first files are embedded, until the page is full
        first_mesh=lambda: _first_mesh(run.folders, embedder),
        files_of=lambda folder: _of_evaluation(folder, embedder),
        fit_of=lambda path: fit_sentence(_json(path.parent / NAME, embedder)) if path.name == "fit.png" else "",
        step_of=_step,
    )
    with whole_file(out_file) as temporary, temporary.open("w", encoding="utf-8", errors="xmlcharrefreplace") as file:
        file.writelines(page)  # the template embeds files in its own order, until the page is full
    return out_file


def _read_run(run_dir: Path, folders: list[Path], max_points: int, embedder: Embedder) -> RunFiles:
    rows, newest = run_dir / "metrics.jsonl", folders[0] if folders else None
    samples, videos = (_by_step(run_dir / name, embedder) for name in ("samples", "videos"))
    paths = sorted(filter(is_shown, _of_evaluation(newest, embedder)[0]), key=colours_first) if newest else []
    contents = [_json(folder / "metrics.json", embedder) for folder in folders]
    return RunFiles(
        run_dir,
        read_history(rows, max_points) if embedder.has_file(rows) else History(max_points),
        _config(run_dir / "config.yaml", embedder),
        folders,
        paths,
        next(filter(None, contents), {}),
        bool(contents and contents[0]),
        *([files for step, files in found.items() if step >= 0] for found in (samples, videos)),
        [path for found in (samples, videos) for path in found.get(-1, []) if is_shown(path)],
    )


def _facts(run: RunFiles, embedder: Embedder) -> dict[str, str]:
    """The report's first lines: quality, steps and time."""
    result, _ = run.newest_result
    found, status = {name: f"{value:.3g}" for name, value in distances(result).items()}, read_status(run.folder)
    taken = status.step or run.measured.get("step")  # of weights from elsewhere, their results alone have a step
    if isinstance(taken, int):
        found["steps"] = f"{taken:,}" + (f" of {status.max_steps:,}" if status.max_steps else "")
    memory = run.folder / "memory.jsonl"
    if embedder.has_file(memory) and (seconds := _seconds(memory)):
        found["run time"] = duration(seconds)
    match run.config:
        case {"data": {"imsize": int(side)}}:
            found["pixels"] = f"{side} x {side}"
    return found


def _sentences(run: RunFiles, embedder: Embedder) -> dict[str, str | list[str]]:
    """The numbers in words, by the names that report.html has for them."""
    (result, step), (found, sweep) = run.newest_result, (run.measured.get(name) for name in ("consistency", "sweep"))
    found_at = run.measured.get("step")
    at = "" if run.is_of_newest or not isinstance(found_at, int) else f"At step {found_at:,}: "
    views = [f"{at}{sentence}" for sentence in agreement(found)] if isinstance(found, dict) else []
    own = (run.folder / NEWEST).is_file()  # other weights have results in a folder of their own
    measure = as_typed("eval.py", "--run", run.folder) if own else "eval.py --checkpoint FILE"
    if run.folders and not views:
        views.append(f"Whether the views of an object agree has not been measured: {measure} --consistency does that.")
    if isinstance(sweep, dict) and (sentence := field_sentence(sweep)):
        views.append(f"{at}{sentence}")
    warnings = [f"{warning}." for warning in result.get("warnings") or [] if isinstance(warning, str)]
    like = f"Samples have not been compared with their nearest training images: {measure} --neighbours does that."
    if run.compared:
        like = memorised(_json(run.compared[0].parent / "neighbours.json", embedder))
    unmeasured = f"Its distance to the data has not been measured: {measure} --metrics fid,kid does that."
    return {
        "measured": protocol_sentence(result, step) if result else unmeasured,
        "progress": progress_sentence(run.history),
        "agreement": views,
        "shortcomings": [*shortcomings(run.measured, run.history, run.config, at), *warnings],
        "memorised": like if run.folders else "",
    }


def _first_mesh(folders: Sequence[Path], embedder: Embedder) -> MeshData | None:
    """The first object's mesh, if there is one that the page can hold."""
    found = (path for folder in folders[:1] for path in sorted(folder.glob("mesh/object_*.ply")))  # z up, as mesh.js has it
    for file in filter(embedder.has_file, found):
        size = file.stat().st_size
        if size <= min(FILE_MB * MB, embedder.bytes_left) and (mesh := read_mesh(file, embedder.name(file))) is not None:
            embedder.bytes_left -= size
            return mesh
    return None


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


def _memory(run_dir: Path, embedder: Embedder, max_points: int) -> list[Path]:
    """The curve of memory.jsonl, and the results of memory_leak_detector.py."""
    rows, watched = run_dir / "memory.jsonl", run_dir / "memory_report.png"
    drawn = embedder.page_dir / CURVES / "memory.png"
    paths = _draw_memory(rows, drawn, max_points) if embedder.has_file(rows) else []
    return paths + [watched] * embedder.has_file(watched)


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
    used = {name: curve for name, curve in curves.items() if (curve.points().means > 0).any()}
    if not used:
        return []
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, curve in used.items():
        plot(axes, MEMORY[name], curve)
    axes.set(xlabel=f"{unit_name} since the start", ylabel="GB", ylim=(0, 1.05 * axes.dataLim.ymax), title="memory")
    axes.legend(fontsize=8)
    save_figure(figure, file, DPI)
    return [file]


def _text(path: Path, embedder: Embedder) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if embedder.has_file(path) else None


def _config(path: Path, embedder: Embedder) -> dict:
    try:
        return read_yaml(path) if embedder.has_file(path) else {}
    except ConfigError:
        return {}


def _json(path: Path, embedder: Embedder) -> dict:
    """The content of a file of results; {} where there is none, or none that can be read."""
    return readable_object(path) if embedder.has_file(path) and is_table(path) else {}


def _by_step(folder: Path, embedder: Embedder) -> dict[int, list[Path]]:
    """Files by the step that their names begin with, -1 without one; the highest first."""
    steps: dict[int, list[Path]] = {}
    for path in _files_under(folder, embedder):
        steps.setdefault(_step(path.name), []).append(path)
    return {step: steps[step] for step in sorted(steps, reverse=True)}


def _files_under(folder: Path, embedder: Embedder) -> list[Path]:
    """All files of a folder in the order of their names; not what is hidden or half written or leads out of the run, no gif
    that is an mp4 too, and neither the page's curves nor a page beside it."""
    page_dir = embedder.page_dir
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    others = (path for path in found if page_dir / CURVES != path.parent and (page_dir, ".html") != (path.parent, path.suffix))
    paths = sorted(filter(embedder.owns, others))
    videos = {path for path in paths if path.suffix == ".mp4"}
    return [path for path in paths if not (path.suffix == ".gif" and path.with_suffix(".mp4") in videos)]


def _step(name: str) -> int:
    """The first number in a name, -1 without one."""
    digits = re.search(r"\d+", name)
    return int(digits[0]) if digits else -1
