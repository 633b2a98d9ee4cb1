"""What eval.py does once its arguments are parsed: load the generator, and make of it what is asked for."""

import argparse
import dataclasses
import errno
import functools
import logging
from collections.abc import Iterable
from pathlib import Path

from graf.camera import rotation_poses
from graf.checkpoints.checkpoint import read_checkpoint
from graf.checkpoints.export import data_fingerprint, require_replaceable, write_export
from graf.checkpoints.foreign.recognition import checkpoint_step, recognise
from graf.checkpoints.generator_loading import checkpoint_config, generator_from_content, trained_checkpoint, trained_config
from graf.checkpoints.run_folder import run_of
from graf.commands.jobs import DUMP_SAMPLES, NEEDS, STAGES, Job
from graf.commands.own_files import make_way
from graf.config import Config, is_set, override
from graf.data import Views, build_dataset, colours_only, resolve
from graf.data.folders import require_folders
from graf.errors import GrafError
from graf.export.mesh import NoSurface, earlier_files, extract_mesh, remove_earlier, write_mesh
from graf.export.rasters import RenderedBack, mean_psnr, rendered_back, write_checks
from graf.export.reconstruction import reconstruction_poses, write_reconstruction
from graf.export.splats import render_splats, splats_of_surface, write_splats
from graf.export.texture import TEXELS_PER_CELL, read_textured, render_textured, require_xatlas, textured
from graf.inversion import invert, most_renderings
from graf.inversion.likeness import InversionSettings
from graf.inversion.photographs import labelled_poses, photograph_files, read_photograph
from graf.inversion.results import INVERSIONS, failures, inversion_folder, write_inversion
from graf.metrics.consistency import multi_view_consistency, nyquist_against_real, rotation_smoothness, sanity
from graf.metrics.haze import haze
from graf.metrics.measure import MeasureSettings, kid_independent, measure_generator
from graf.metrics.neighbours import neighbour_sheet
from graf.metrics.results import FEWEST_IMAGES, ResultFile, merged, summary, title
from graf.metrics.shapes import VARIETY_CAVEAT, Subject, silhouette_variety, surface_coverage
from graf.models.generator import Generator
from graf.pictures.sampling import render_views, sample_objects
from graf.pictures.sheets import (
    class_rows,
    interpolation_sheet,
    interpolation_video,
    real_against_fake_grid,
    truncation_sheet,
)
from graf.pictures.sweep import VIEWS, sweep_trajectories, write_sweep
from graf.pose.accuracy import cameras_of, doubt, pose_accuracy
from graf.pose.loading import TrainedEstimator, load_estimator
from graf.reporting.model_card import require_free, write_card
from graf.reporting.report import write_report
from graf.runtime.console import progress
from graf.runtime.device import choose_device, clean_up, keep_freed_memory
from graf.runtime.files import file_sha256, make_writable_folder

import torch
from torch import Tensor
from trimesh import Trimesh

log = logging.getLogger("graf")

CONSISTENCY_OBJECTS, TURNED_OBJECTS, NYQUIST_IMAGES, SANITY_VIEWS = 64, 4, 256, 8
NOT_PERMITTED = errno.EACCES, errno.EPERM, errno.EROFS
OBJECT_MEASURES = {"variety": silhouette_variety, "coverage": surface_coverage, "haze": haze}  # by entries in metrics.json


def evaluate(args: argparse.Namespace, jobs: Iterable[Job], config: Config | None) -> int:
    """Do the jobs by the flags of eval.py. Returns the exit status.

    config: of --config and --set, where these say which run it is, or what network a --checkpoint is of.
    """
    keep_freed_memory()
    checkpoint = args.checkpoint or trained_checkpoint(args.run or config.run_dir)
    content, sha256 = read_checkpoint(checkpoint), file_sha256(checkpoint)
    if not (args.config and args.checkpoint):
        config = override(checkpoint_config(checkpoint, content), args.set)
    config = resolve(config, trained=trained_config(content, checkpoint))
    if args.resolution and args.resolution % config.rendered_scale:
        scale = config.rendered_scale
        raise GrafError(f"--resolution {args.resolution}: must be a multiple of ccsr.scale_factor {scale}")
    generator = generator_from_content(checkpoint, content, config, choose_device(args.device), args.partial)
    step = checkpoint_step(content)
    run_dir = run_of(checkpoint, config)
    out = args.out or run_dir / "eval" / f"step_{step:08d}"
    log.info("%s, step %d", checkpoint, step)
    if not args.out and run_dir.resolve() not in checkpoint.resolve().parents:
        log.info("the checkpoint is in no run's folder: results go to %s; --out names another", run_dir)
    results = ResultFile(out, checkpoint, sha256, step, recognise(content, checkpoint).averaged, config)
    Evaluation(args, generator, step, run_dir, out, results, data_fingerprint(content)).run(jobs)
    return 0


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A generator as it was after `step`, the flags of eval.py by their names, and what several jobs share."""

    flags: argparse.Namespace
    generator: Generator
    step: int
    run_dir: Path
    out: Path
    results: ResultFile
    data_fingerprint: str = ""  # of what it was trained on; empty where that is not known

    def run(self, jobs: Iterable[Job]) -> None:
        """Do the jobs, once all that they need is there. The log tells the files written.

        Raises NoSurface, when all else is done, where no object has one.
        """
        if not all(job.elsewhere for job in jobs):
            self._require_writable()
        for need in NEEDS:
            if need == "estimator" or any(job.needs == need for job in jobs):
                getattr(self, need)
        files, no_surface = [], None
        for job in jobs:
            if self.flags.out and job.names and self.out.resolve() != self.run_dir.resolve():
                make_way(self.out, job.name, job.names)
            try:
                files += job.run(self)
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
            make_writable_folder(self.out)
        except OSError as error:
            reason = error.strerror
            raise GrafError(f"{self.out}: results cannot be written ({reason}); name another folder with --out") from None

    @functools.cached_property
    def dataset(self) -> Views:
        config, flags, own = colours_only(self.generator.config), self.flags, self.run_dir / "config.yaml"
        if not (is_set("data.datadir", flags.set) or (flags.config and flags.checkpoint)):
            require_folders(config.data, own if own.exists() else self.results.checkpoint)
        return build_dataset(config)

    @functools.cached_property
    def objects(self) -> tuple:
        return sample_objects(self.generator, self.flags.n_objects, self.flags.seed, self.flags.truncation)

    @functools.cached_property
    def photographs(self) -> tuple[Tensor, Tensor | None]:
        """The photographs (N, 3, W, W) to be found and, where all of them are known, their cameras (N, 3, 4)."""
        data, paths = self.generator.config.data, self.photograph_files
        return torch.stack([read_photograph(path, data) for path in paths]), labelled_poses(paths, data)

    @functools.cached_property
    def estimator(self) -> TrainedEstimator | None:
        """That of --estimator. Raises GrafError where there is none and --metrics pose needs it, or where nothing uses it."""
        flags = self.flags
        if flags.estimator and not (flags.invert or "pose" in (flags.metrics or ())):
            raise GrafError("--estimator: has no effect on these metrics; use it with --metrics pose or --invert")
        if flags.estimator:
            estimator = load_estimator(flags.estimator, choose_device(flags.device))
            if doubts := doubt(estimator):
                log.warning("%s", doubts)
            return estimator
        if "pose" in (flags.metrics or ()):
            raise GrafError("--metrics pose: reads cameras with a pose estimator; name a run of train_pose.py with --estimator")
        return None

    @functools.cached_property
    def photograph_files(self) -> list[Path]:
        return photograph_files(self.flags.invert)

    @functools.cached_property
    def card(self) -> tuple[Path, Path]:
        """The files of the model card. Raises GrafError where these or the export would replace files of others."""
        require_replaceable(self.flags.export)
        return require_free(Path(self.flags.export))

    @functools.cached_property
    def trajectories(self) -> dict[str, Tensor]:
        """The cameras of the sweep's sheet and videos."""
        flags = self.flags
        return sweep_trajectories(flags.azimuths, flags.elevations, flags.n_objects, self.generator.config)

    @functools.cached_property
    def footer(self) -> str | None:
        """Below sheets: the run, its step, and its KID where that was measured; None with --plain."""
        if self.flags.plain:
            return None
        kept = self.results.kept()
        key = f"kid_{kept.get('extractor')}"
        measured = f", {title(key)} {kept['values'][key]:.4g}" if key in kept.get("values", {}) else ""
        return f"{self.generator.config.expname}, step {self.step:,}{measured}"

    def sweep(self) -> list[Path]:
        kinds, columns = STAGES[self.flags.stage], len(self.flags.azimuths or range(VIEWS))
        files, errors = write_sweep(
            self.generator, self.objects, self.trajectories, kinds, columns, self.out, self.flags.resolution, self.footer
        )
        if self.generator.config.ccsr.mode == "refine":
            exact = errors["low_resolution_error"]
            log.info("low-resolution consistency error: max |H x' - y| = %.1e of images in [-1, 1]", exact)
            log.info("the same of their files, in 8 bits: %.1e", errors["low_resolution_error_8bit"])
            files.append(self.results.keep({"sweep": errors | self.results.drawn_by}))
        return files

    def metrics(self) -> list[Path]:
        """Distances to the data, with their protocol, and measures of objects, in metrics.json."""
        flags, files = self.flags, []
        asked = {"coverage" if name == "mmd" else name for name in flags.metrics}
        of_images = [name for name in FEWEST_IMAGES if name in asked or (name == "kid" and "kid_independent" in asked)]
        if of_images:
            result = self.distances(of_images, "kid_independent" in asked)
            files.append(self.results.keep(merged(self.results.kept(), result)))
        elif flags.dump_samples:
            raise GrafError(f"--dump_samples: {DUMP_SAMPLES.unused}")
        data = self.generator.config.data  # toy cars have a folder that is ours, and that runs share
        cache = Path(data.datadir[0]) if data.type == "toy_cars" else self.run_dir / "cache"
        subject = Subject(self.generator, self.dataset, flags.seed, flags.truncation, cache)
        measures = OBJECT_MEASURES | {"pose": functools.partial(pose_accuracy, estimator=self.estimator)}
        for name, measure in measures.items():
            if name not in asked:
                continue
            result = measure(subject)
            shown = [f"{key} {value:.4g}" for key, value in result.items() if isinstance(value, float)]
            if shown:  # else a warning has said why there is nothing
                caveat = f". {VARIETY_CAVEAT}" if name == "variety" else ""
                log.info("%s: %s%s", name, ", ".join(shown), caveat)
            files.append(self.results.keep({name: result | self.results.drawn_by}))
        return files

    def distances(self, names: list[str], independent: bool) -> dict:
        """A result of `measure_generator`; independent: also of KID at cameras of the config's range."""
        flags, cache = self.flags, self.run_dir / "cache"
        dump = Path(flags.dump_samples) if flags.dump_samples else None
        settings = MeasureSettings(names, flags.seed, flags.truncation, dump=dump)
        with progress(total=self.generator.config.metrics.counts[1], desc="measuring", unit="image") as bar:
            result = measure_generator(self.generator, self.dataset, settings, cache, bar)
            if independent:
                result["values"] |= kid_independent(self.generator, self.dataset, settings, cache, bar)
        log.info("%s", summary(result))
        return result

    def consistency(self) -> list[Path]:
        """Whether objects are one and solid, in metrics.json."""
        flags, data = self.flags, self.generator.config.data
        result = multi_view_consistency(self.generator, CONSISTENCY_OBJECTS, flags.seed, truncation=flags.truncation)
        result |= rotation_smoothness(self.generator, TURNED_OBJECTS, flags.seed, truncation=flags.truncation)
        result |= nyquist_against_real(self.generator, self.dataset, NYQUIST_IMAGES, flags.seed, flags.truncation)
        objects = sample_objects(self.generator, TURNED_OBJECTS, flags.seed, flags.truncation)
        result |= sanity(render_views(self.generator, objects, rotation_poses(SANITY_VIEWS, data)), data.near, data.far)
        for name, value in result.items():
            log.info("%s: %s", name, "nothing to compare" if value is None else f"{value:.4g}")
        return [self.results.keep({"consistency": result | self.results.drawn_by})]

    def sheets(self) -> list[Path]:
        resolution = self.flags.resolution
        corners = sample_objects(self.generator, 4, self.flags.seed, self.flags.truncation)
        files = interpolation_sheet(self.generator, corners, self.out, resolution=resolution, footer=self.footer)
        files += interpolation_video(self.generator, corners, self.out, resolution=resolution)
        objects = sample_objects(self.generator, self.flags.n_objects, self.flags.seed)  # the sheet truncates them itself
        files += truncation_sheet(self.generator, objects, self.out, resolution=resolution, footer=self.footer)
        if self.generator.class_embedding is not None:
            files += class_rows(self.generator, self.objects[0], self.out, resolution, self.footer)
        return files

    def neighbours(self) -> list[Path]:
        seed, truncation = self.flags.seed, self.flags.truncation
        neighbour_sheet(self.generator, self.dataset, self.out, seed=seed, truncation=truncation, footer=self.footer)
        files = real_against_fake_grid(
            self.generator, self.dataset, self.out, seed=seed, truncation=truncation, footer=self.footer
        )
        return [self.out / "neighbours.png", self.out / "neighbours.json", *files]

    @functools.cached_property
    def unwrapping(self) -> None:
        """Raises GrafError where --textured needs it and it is not installed."""
        if self.flags.textured:
            require_xatlas()

    def mesh(self) -> list[Path]:
        """The objects' meshes, with --textured also how the GLBs look beside the model's own views."""
        folder, files, painted, checks = self.out / "mesh", [], {}, {}
        if self.flags.textured:  # all of them, before an earlier file is replaced
            texels = TEXELS_PER_CELL * self.flags.mesh_resolution
            painted = {i: textured(self.generator, self.one(i), mesh, texels) for i, mesh in self.surfaces.items()}
        earlier = earlier_files(folder)
        for i, mesh in self.surfaces.items():
            files += write_mesh(mesh, folder / f"object_{i:02d}", painted.get(i))
            if not painted:
                continue
            read = read_textured(files[-1])
            checks[i] = rendered_back(self.generator, self.one(i), functools.partial(render_textured, read))
            log.info("texture of object %d: %d x %d; %s", i, *read.visual.material.baseColorTexture.size, checks[i].summary)
        files += self.keep_checks("mesh", checks, folder) if checks else []
        remove_earlier(folder, earlier, files)
        return files

    @functools.cached_property
    def surfaces(self) -> dict[int, Trimesh]:
        """The meshes of the objects, by their numbers. Raises NoSurface where none has one."""
        found, resolution = {}, self.flags.mesh_resolution
        with progress(total=self.flags.n_objects * resolution, desc="mesh", unit="slice") as bar:
            for i, (latent, class_index) in enumerate(zip(*self.objects, strict=True)):
                try:
                    one = latent[None], class_index[None]
                    found[i] = extract_mesh(self.generator, *one, resolution, self.flags.mesh_level, bar)
                except NoSurface as error:
                    log.warning("object %d: %s", i, error)
                    no_surface = error
        if not found:
            raise no_surface
        return found

    def splats(self) -> list[Path]:
        """The objects as Gaussian splats, and how they look beside the model's own views."""
        folder, files, checks = self.out / "splats", [], {}
        earlier = earlier_files(folder)
        for i, mesh in self.surfaces.items():
            splats = splats_of_surface(mesh)
            files.append(write_splats(folder / f"object_{i:02d}.ply", splats))
            checks[i] = rendered_back(self.generator, self.one(i), functools.partial(render_splats, splats))
            log.info("object %d: %d splats; %s", i, len(splats.means), checks[i].summary)
        files += self.keep_checks("splats", checks, folder)
        remove_earlier(folder, earlier, files)
        return files

    def keep_checks(self, name: str, checks: dict[int, RenderedBack], folder: Path) -> list[Path]:
        """How exports look, as a sheet and in metrics.json."""
        terms = {"truncation": self.flags.truncation, "seed": self.flags.seed}
        result = {name: mean_psnr(checks.values()) | terms | self.results.drawn_by}
        return [write_checks(checks, folder / "rendered_back.png", self.footer), self.results.keep(result)]

    def one(self, i: int) -> tuple[Tensor, Tensor]:
        """Latents (1, Z) and class (1,) of an object."""
        latents, classes = self.objects
        return latents[i : i + 1], classes[i : i + 1]

    def reconstruction(self) -> list[Path]:
        poses = reconstruction_poses(self.generator.config.data)
        first = tuple(values[:1] for values in self.objects)
        return write_reconstruction(self.generator, first, poses, self.out / "reconstruction", self.flags.resolution)

    def invert(self) -> list[Path]:
        photographs, poses = self.photographs
        start = cameras_of(self.estimator, photographs) if self.estimator and poses is None else None
        what = photographs, poses, InversionSettings(seed=self.flags.seed)
        with progress(total=most_renderings(self.generator, *what, start), desc="inversion", unit="rendering") as bar:
            inversion = invert(self.generator, *what, bar, start)
        paths = self.photograph_files
        for path, azimuth_deg, psnr in zip(paths, inversion.azimuth_deg.tolist(), inversion.psnr, strict=True):
            log.info("%s: azimuth %.0f degrees, PSNR %.1f dB", path, azimuth_deg, psnr)
        names = list(map(str, paths))
        for sentence in failures(inversion, photographs, names):
            log.warning("%s", sentence)
        folder = inversion_folder(self.out / INVERSIONS, photographs, names)
        return write_inversion(self.generator, inversion, photographs, folder, names, self.footer)

    def export(self) -> list[Path]:
        fingerprint = self.data_fingerprint
        file = write_export(self.flags.export, self.generator, self.step, fingerprint)
        return [file, *write_card(file, self.generator, self.step, fingerprint, self.results.kept())]

    def report(self) -> list[Path]:
        """report.html in the run's folder, or in that of --out."""
        points, page = self.generator.config.reporting.max_metric_rows, (self.flags.out or self.run_dir) / "report.html"
        try:
            return [write_report(self.run_dir, page, self.out, points)]
        except OSError as error:
            if error.errno not in NOT_PERMITTED:
                raise
            raise GrafError(f"{error.filename}: {error.strerror}; --out FOLDER writes the report to another folder") from None
