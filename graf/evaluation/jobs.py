"""What can be made of a trained generator: each job of eval.py, and the files that it writes."""

import dataclasses
import functools
import logging
import tempfile
from pathlib import Path

from graf.camera import rotation_poses
from graf.checkpoints.export import write_export
from graf.data import Views, build_dataset
from graf.errors import GrafError
from graf.evaluation.consistency import multi_view_consistency, nyquist_against_real, rotation_smoothness, sanity
from graf.evaluation.inversion import invert_files
from graf.evaluation.inversion.photographs import labelled_poses, photograph_files, read_photograph
from graf.evaluation.mesh import NoSurface, extract_mesh, object_stem, remove_meshes, write_mesh
from graf.evaluation.metrics import measure_generator, merged, summary
from graf.evaluation.neighbours import neighbour_sheet
from graf.evaluation.reconstruction import reconstruction_poses, write_reconstruction
from graf.evaluation.result_file import ResultFile
from graf.evaluation.sampling import render_views, sample_objects
from graf.evaluation.sheets import (
    class_rows,
    interpolation_sheet,
    interpolation_video,
    real_against_fake_grid,
    sheet_pose,
    truncation_sheet,
)
from graf.evaluation.sweep import VIEWS, sweep_frames, sweep_trajectories, write_sweep
from graf.models.generator import Generator
from graf.reporting.report import write_report
from graf.runtime.cleanup import clean_up
from graf.runtime.console import progress

import torch
from torch import Tensor

log = logging.getLogger("graf")

JOBS = (
    *("metrics", "consistency", "sweep", "sheets", "neighbours"),
    *("mesh", "reconstruction", "invert", "report", "export"),
)
NEEDS = {  # of a job: what may fail before any work, the quick first
    "sweep": "trajectories",
    "invert": "photographs",
    **dict.fromkeys(("metrics", "consistency", "neighbours"), "dataset"),
}
ELSEWHERE = ("report", "export")  # jobs whose files do not lie in the results' folder
STAGES = {"refined": ("rgb", "depth"), "nerf": ("nerf", "depth"), "both": ("rgb", "nerf", "depth")}
CONSISTENCY_OBJECTS, TURNED_OBJECTS, NYQUIST_IMAGES, SANITY_VIEWS = 64, 4, 256, 8


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """The jobs, of JOBS, and what their flags say; the flags of eval.py tell what each is."""

    jobs: tuple[str, ...]
    seed: int
    n_objects: int
    truncation: float
    resolution: int | None
    azimuths: list[float] | None
    elevations: list[float] | None
    stage: str
    metrics: list[str]
    dump_samples: str | None
    mesh_resolution: int
    mesh_level: float | None
    invert: list[str] | None
    export: str | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A generator as it was after `step`, and what is to be made of it: a method a job, which returns the files written."""

    settings: EvaluationSettings
    generator: Generator
    step: int
    run_dir: Path
    out: Path
    results: ResultFile

    def run(self) -> None:
        """Do all that is asked for, once all that it needs is there. The log tells the files written.

        Raises NoSurface, when all else is done, where no object has one.
        """
        if set(self.settings.jobs) - set(ELSEWHERE):
            self._require_writable()
        for job, need in NEEDS.items():
            if job in self.settings.jobs:
                getattr(self, need)
        files, no_surface = [], None
        for job in self.settings.jobs:
            try:
                files += getattr(self, job)()
            except NoSurface as error:
                no_surface = error
            if self.generator.config.memory.empty_cache == "phases":
                clean_up()
        for file in dict.fromkeys(files):
            log.info("%s", file)
        if no_surface:
            raise no_surface

    def _require_writable(self) -> None:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.out).close()
        except OSError as error:
            raise GrafError(f"{self.out}: results cannot be written ({error}); name another folder with --out") from None

    @functools.cached_property
    def dataset(self) -> Views:
        return build_dataset(self.generator.config)

    @functools.cached_property
    def objects(self) -> tuple:
        return sample_objects(self.generator, self.settings.n_objects, self.settings.seed, self.settings.truncation)

    @functools.cached_property
    def photographs(self) -> tuple[Tensor, Tensor | None]:
        """The photographs (N, 3, W, W) to be found and, where all of them are known, their cameras (N, 3, 4)."""
        data, paths = self.generator.config.data, self.photograph_files
        return torch.stack([read_photograph(path, data) for path in paths]), labelled_poses(paths, data)

    @functools.cached_property
    def photograph_files(self) -> list[Path]:
        return photograph_files(self.settings.invert)

    @functools.cached_property
    def trajectories(self) -> dict[str, Tensor]:
        """The cameras of the sweep's sheet and videos."""
        settings = self.settings
        return sweep_trajectories(settings.azimuths, settings.elevations, settings.n_objects, self.generator.config)

    def sweep(self) -> list[Path]:
        settings, kinds = self.settings, STAGES[self.settings.stage]
        columns = len(settings.azimuths) if settings.azimuths else VIEWS
        frames = sweep_frames(self.generator, self.objects, self.trajectories, kinds, self.out, settings.resolution)
        total = settings.n_objects * sum(map(len, self.trajectories.values()))
        left = settings.n_objects * sum(len(some.missing()) for some in frames.values())
        with progress(total=total, initial=total - left, desc="rendering", unit="image") as bar:
            files, errors = write_sweep(frames, columns, self.out, bar)
        if self.generator.config.ccsr.mode == "refine":
            exact = errors["low_resolution_error"]
            log.info("low-resolution consistency error: max |H x' - y| = %.1e of images in [-1, 1]", exact)
            log.info("the same of their files, in 8 bits: %.1e", errors["low_resolution_error_8bit"])
            files.append(self.results.keep({"sweep": errors | self.results.drawn_by}))
        return files

    def metrics(self) -> list[Path]:
        """Distances to the data, in metrics.json, with their protocol."""
        settings, config = self.settings, self.generator.config
        dump = Path(settings.dump_samples) if settings.dump_samples else None
        with progress(total=config.metrics.counts[1], desc="measuring", unit="image") as bar:
            result = measure_generator(
                self.generator,
                self.dataset,
                settings.metrics,
                settings.seed,
                self.run_dir / "cache",
                dump,
                bar,
                truncation=settings.truncation,
            )
        log.info("%s", summary(result))
        return [self.results.keep(merged(self.results.kept(), result))]

    def consistency(self) -> list[Path]:
        """Whether objects are one and solid, in metrics.json."""
        settings, data = self.settings, self.generator.config.data
        result = multi_view_consistency(self.generator, CONSISTENCY_OBJECTS, settings.seed, truncation=settings.truncation)
        result |= rotation_smoothness(self.generator, TURNED_OBJECTS, settings.seed, truncation=settings.truncation)
        result |= nyquist_against_real(self.generator, self.dataset, NYQUIST_IMAGES, settings.seed, settings.truncation)
        objects = sample_objects(self.generator, TURNED_OBJECTS, settings.seed, settings.truncation)
        result |= sanity(render_views(self.generator, objects, rotation_poses(SANITY_VIEWS, data)), data.near, data.far)
        for name, value in result.items():
            log.info("%s: %s", name, "nothing to compare" if value is None else f"{value:.4g}")
        return [self.results.keep({"consistency": result | self.results.drawn_by})]

    def sheets(self) -> list[Path]:
        pose, resolution = sheet_pose(self.generator.config.data), self.settings.resolution
        corners = sample_objects(self.generator, 4, self.settings.seed, self.settings.truncation)
        files = interpolation_sheet(self.generator, corners, pose, self.out, resolution=resolution)
        files += interpolation_video(self.generator, corners, pose, self.out, resolution=resolution)
        objects = sample_objects(self.generator, self.settings.n_objects, self.settings.seed)  # the sheet truncates them itself
        files += truncation_sheet(self.generator, objects, pose, self.out, resolution=resolution)
        if self.generator.class_embedding is not None:
            files += class_rows(self.generator, self.objects[0], pose, self.out, resolution)
        return files

    def neighbours(self) -> list[Path]:
        neighbour_sheet(self.generator, self.dataset, self.out, seed=self.settings.seed)
        files = real_against_fake_grid(self.generator, self.dataset, self.out, seed=self.settings.seed)
        return [self.out / "neighbours.png", self.out / "neighbours.json", *files]

    def mesh(self) -> list[Path]:
        files, resolution = [], self.settings.mesh_resolution
        remove_meshes(self.out / "mesh")
        with progress(total=self.settings.n_objects * resolution, desc="mesh", unit="slice") as bar:
            for i, (latent, class_index) in enumerate(zip(*self.objects, strict=True)):
                try:
                    surface = extract_mesh(
                        self.generator, latent[None], class_index[None], resolution, self.settings.mesh_level, bar
                    )
                except NoSurface as error:
                    log.warning("object %d: %s", i, error)
                    no_surface = error
                    continue
                files += write_mesh(surface, object_stem(self.out / "mesh", i))
        if not files:
            raise no_surface
        return files

    def reconstruction(self) -> list[Path]:
        poses = reconstruction_poses(self.generator.config.data)
        latents, classes = self.objects
        with progress(total=len(poses), desc="reconstruction", unit="image") as bar:
            out, resolution = self.out / "reconstruction", self.settings.resolution
            return write_reconstruction(self.generator, latents[:1], classes[:1], poses, out, resolution, bar)

    def invert(self) -> list[Path]:
        settings, (photographs, poses) = self.settings, self.photographs
        with progress(desc="inversion", unit="rendering") as bar:
            out = self.out / "inversion"
            return invert_files(self.generator, self.photograph_files, photographs, out, poses, settings.seed, bar)

    def report(self) -> list[Path]:
        points = self.generator.config.memory.max_metric_rows
        return [write_report(self.run_dir, self.run_dir / "report.html", self.out, points)]

    def export(self) -> list[Path]:
        return [write_export(self.settings.export, self.generator, self.step)]
