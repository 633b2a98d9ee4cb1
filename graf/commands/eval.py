"""The work of eval.py once its arguments are parsed: load the generator, then measure, render or export it."""

import argparse
import dataclasses
import errno
import functools
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from graf.camera import rotation_poses, view_azimuths
from graf.checkpoints.checkpoint import read_with_sha256
from graf.checkpoints.directions_file import write_directions
from graf.checkpoints.export import data_fingerprint, require_replaceable, write_export
from graf.checkpoints.generator_loading import (
    checkpoint_config,
    generator_from_content,
    trained_checkpoint,
    with_checkpoint_cameras,
)
from graf.checkpoints.latents_file import NAME, fitting_latents
from graf.checkpoints.run_folder import TUNED, run_folder_of
from graf.commands.jobs import DIRECTION_SHEET, DUMP_SAMPLES, JOBS, STAGES, Job
from graf.commands.own_files import hashes_of, remove_earlier, set_others_aside
from graf.config import Config, is_set, override
from graf.data import Views, build_dataset, colours_only
from graf.data.folders import require_folders
from graf.errors import GrafError
from graf.export.mesh import NoSurface, extract_mesh, object_files, require_room, write_mesh
from graf.export.rasters import RenderedBack, mean_psnr, rendered_back, write_checks
from graf.export.reconstruction import reconstruction_poses, write_reconstruction
from graf.export.splats import render_splats, splats_of_surface, write_splats
from graf.export.texture import TEXELS_PER_CELL, read_textured, render_textured, require_xatlas, textured
from graf.foreign.checkpoints import checkpoint_step, recognise
from graf.inversion import invert, most_renderings
from graf.inversion.loss import InversionSettings
from graf.inversion.results import INVERSIONS, Inversion, failures, inversion_folder, write_inversion
from graf.inversion.targets import known_poses, read_target, target_files, warn_of_backgrounds
from graf.inversion.tuning import TuningSettings, tune
from graf.metrics.consistency import multi_view_consistency, nyquist_against_real, rotation_smoothness, sanity
from graf.metrics.haze import haze
from graf.metrics.measure import MeasureSettings, kid_independent, measure_generator
from graf.metrics.memorised import HeldOut, hold_out, memorisation
from graf.metrics.neighbours import neighbour_sheet
from graf.metrics.results import FEWEST_IMAGES, ResultFile, merged, summary, title
from graf.metrics.shapes import VARIETY_CAVEAT, Subject, silhouette_variety, surface_coverage
from graf.models.directions import principal_directions
from graf.models.generator import Generator
from graf.pictures.sampling import Objects, render_views, sample_objects
from graf.pictures.sheets import (
    check_objects,
    class_rows,
    direction_sheets,
    interpolation_sheet,
    interpolation_video,
    real_against_fake_grid,
    truncation_sheet,
)
from graf.pictures.sweep import VIEWS, sweep_trajectories, write_sweep
from graf.pose.accuracy import accuracy_warning, cameras_of, pose_accuracy
from graf.pose.loading import TrainedEstimator, load_estimator
from graf.reporting.model_card import require_free, write_card
from graf.reporting.report import write_report
from graf.runtime.command_line import as_typed
from graf.runtime.console import progress
from graf.runtime.device import choose_device, clean_up, freeze_imports, keep_freed_memory
from graf.runtime.files import make_writable_folder

import torch
from torch import Tensor
from trimesh import Trimesh

log = logging.getLogger("graf")

CONSISTENCY_OBJECTS, TURNED_OBJECTS, NYQUIST_IMAGES, SANITY_VIEWS = 64, 4, 256, 8
NOT_PERMITTED = errno.EACCES, errno.EPERM, errno.EROFS
OBJECT_MEASURES = {"variety": silhouette_variety, "coverage": surface_coverage, "haze": haze}  # by entries in metrics.json


def evaluate(args: argparse.Namespace, jobs: Iterable[Job], config: Config | None) -> int:
    """Do the jobs with the flags of eval.py. Returns the exit status.

    config: the one of --config and --set, where they name the run or the network of a --checkpoint; else None.
    """
    keep_freed_memory()
    freeze_imports()
    checkpoint = args.checkpoint or trained_checkpoint(args.run or config.run_dir)
    content, sha256 = read_with_sha256(checkpoint)
    if args.config and args.checkpoint:
        config = with_checkpoint_cameras(config, content, checkpoint)
    else:
        config = override(checkpoint_config(checkpoint, content), args.set)
    generator = generator_from_content(checkpoint, content, config, choose_device(args.device), args.partial)
    if args.resolution and args.resolution % (scale := generator.config.rendered_scale):
        raise GrafError(f"--resolution {args.resolution}: must be a multiple of ccsr.scale_factor {scale}")
    step = checkpoint_step(content)
    run_dir = run_folder_of(checkpoint, config)
    out = args.out or own_results(run_dir, step, args.latents)
    log.info("%s, step %d", checkpoint, step)
    if not args.out and run_dir.resolve() not in checkpoint.resolve().parents:
        log.info("the checkpoint is in no run's folder: results go to %s; --out names another", run_dir)
    averaged = recognise(content, checkpoint).averaged
    results = ResultFile(out, checkpoint, sha256, step, averaged, generator.config)
    Evaluation(args, generator, step, run_dir, out, results, data_fingerprint(content)).run(jobs)
    return 0


def own_results(run_dir: Path, step: int, latents: Sequence[Path] | None) -> Path:
    """The folder of results without --out: of a step, and in it one of found objects, those of --latents."""
    return run_dir / "eval" / f"step_{step:08d}" / ("found" if latents else "")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A generator after `step` training steps, the flags of eval.py by name, and what several jobs share.

    data_fingerprint: the fingerprint of its training data, empty where that is not known.
    """

    flags: argparse.Namespace
    generator: Generator
    step: int
    run_dir: Path
    out: Path
    results: ResultFile
    data_fingerprint: str = ""

    def run(self, jobs: Iterable[Job]) -> None:
        """Check what all jobs need, then do them and log the files written.

        Raises NoSurface, once all other jobs are done, where no object has a surface.
        """
        if any(job.writes_results for job in jobs):
            try:
                make_writable_folder(self.out)
            except OSError as error:
                message = f"results cannot be written ({error.strerror}); name another folder with --out"
                raise GrafError(f"{self.out}: {message}") from None
        if self.flags.latents:
            _ = self.objects
        for job in jobs:
            if job.check:
                job.check(self)
        if any(job.needs_dataset for job in jobs):
            _ = self.dataset  # last, as it takes longest
        own = self.run_dir, own_results(self.run_dir, self.step, self.flags.latents)
        may_hold_others = self.flags.out and self.out.resolve() not in [folder.resolve() for folder in own]
        files, no_surface = [], None
        for job in jobs:
            if job.files and may_hold_others:
                set_others_aside(self.out, job.name, job.files)
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

    @functools.cached_property
    def dataset(self) -> Views:
        config, flags, own = colours_only(self.generator.config), self.flags, self.run_dir / "config.yaml"
        if not (is_set("data.datadir", flags.set) or (flags.config and flags.checkpoint)):
            require_folders(config.data, own if own.exists() else self.results.checkpoint)
        dataset = build_dataset(config)
        if self.data_fingerprint and self.data_fingerprint != dataset.fingerprint:
            log.warning(
                "the model was trained on other data than these %d images of %s (by names, sizes and times of change), or with "
                "other labels or preprocessing; results are about these; --set data.datadir=FOLDER names others",
                *(len(dataset), ", ".join(config.data.datadir)),
            )
        if known := self.generator.class_names:
            for before, now in dataset.number_classes_as(known).items():
                log.warning("the model has no class %s: its class %s is compared with these images", now, before)
        return dataset

    @functools.cached_property
    def cache(self) -> Path:
        """The folder where what is computed of the data is kept: the run's, or that of the results if it cannot be written."""
        folder = self.run_dir / "cache"
        try:
            make_writable_folder(folder)
        except OSError:
            return self.out / "cache"
        return folder

    @functools.cached_property
    def objects(self) -> Objects:
        """Latents (N, Z) and classes (N,) of --latents, or else sampled; scaled by --truncation."""
        latents, classes = self.whole_objects
        return self.flags.truncation * latents, classes

    @functools.cached_property
    def whole_objects(self) -> Objects:
        """The objects without truncation."""
        if self.flags.latents:
            return fitting_latents(self.flags.latents, self.generator, self.results.checkpoint)
        return sample_objects(self.generator, self.flags.n_objects, self.flags.seed)

    @functools.cached_property
    def corners(self) -> Objects:
        """Four objects to interpolate between: those of --latents first, then sampled ones."""
        sampled = self.sample(4)
        if not self.flags.latents:
            return sampled
        latents, classes = (torch.cat(pair)[:4] for pair in zip(self.objects, sampled, strict=True))
        return latents, classes

    def sample(self, n: int) -> Objects:
        """Latents (n, Z) and classes (n,) of objects sampled with --seed and --truncation."""
        return sample_objects(self.generator, n, self.flags.seed, self.flags.truncation)

    @property
    def n_objects(self) -> int:
        return len(self.flags.latents or ()) or self.flags.n_objects

    def object(self, i: int) -> Objects:
        """Latents (1, Z) and class (1,) of one object."""
        latents, classes = self.objects
        return latents[i : i + 1], classes[i : i + 1]

    @functools.cached_property
    def target_files(self) -> list[Path]:
        return target_files(self.flags.invert, self.generator.config.data)

    @functools.cached_property
    def targets(self) -> tuple[Tensor, Tensor | None]:
        """The images (N, 3, W, W) of --invert and, where all of them are known, their cameras (N, 3, 4)."""
        data, paths = self.generator.config.data, self.target_files
        targets = torch.stack([read_target(path, data) for path in paths])
        warn_of_backgrounds(paths, targets, data)
        if len(paths) > 1:
            log.info("--invert: %d images, taken as views of one object; name one image for each object otherwise", len(paths))
        return targets, known_poses(paths, data)

    @functools.cached_property
    def estimator(self) -> TrainedEstimator | None:
        """The pose estimator of --estimator. Raises GrafError where --metrics pose lacks one, or where no job uses it."""
        flags = self.flags
        reads_poses = "pose" in (flags.metrics or ())
        if flags.estimator and not (flags.invert or reads_poses):
            raise GrafError("--estimator: has no effect on these metrics; use it with --metrics pose or --invert")
        if reads_poses and not flags.estimator:
            raise GrafError("--metrics pose: reads cameras with a pose estimator; name a run of train_pose.py with --estimator")
        if not flags.estimator:
            return None
        estimator = load_estimator(flags.estimator, choose_device(flags.device))
        if warning := accuracy_warning(estimator):
            log.warning("%s", warning)
        return estimator

    @functools.cached_property
    def heldout(self) -> HeldOut | None:
        """The held-out images of --metrics memorised. Raises GrafError where there are none, or where no job uses --heldout."""
        flags = self.flags
        if "memorised" in (flags.metrics or ()):
            return hold_out(self.generator.config, flags.heldout, flags.seed)
        if flags.heldout:
            raise GrafError("--heldout: has no effect on these metrics; use it with --metrics memorised")
        return None

    def check_sheets(self, of_directions: bool = False) -> None:
        check_objects(self.generator, self.n_objects, of_directions)

    def check_cells(self) -> None:
        require_room(self.flags.mesh_resolution)

    def check_mesh(self) -> None:
        self.check_cells()
        if self.flags.textured:
            require_xatlas()

    def check_export(self) -> None:
        """Raises GrafError where the export or its model card would replace files of others."""
        require_replaceable(self.flags.export)
        require_free(Path(self.flags.export))

    @functools.cached_property
    def trajectories(self) -> dict[str, Tensor]:
        """The cameras of the sweep's sheet and videos."""
        flags, config = self.flags, self.generator.config
        return sweep_trajectories(self.azimuths, flags.elevations, self.n_objects, config, flags.resolution)

    @property
    def azimuths(self) -> list[float]:
        """The azimuths in degrees of the sweep's sheet: those of --azimuths, or else VIEWS around the object."""
        return self.flags.azimuths or view_azimuths(VIEWS, self.generator.config.data).tolist()

    @functools.cached_property
    def footer(self) -> str | None:
        """The line below image grids: run, step and, where measured of such images, KID; None with --plain."""
        if self.flags.plain:
            return None
        kept = self.results.kept_at(self.flags.truncation)
        key = f"kid_{kept.get('extractor')}"
        kid = kept.get("values", {}).get(key)  # None, too, where it was not finite
        measured = "" if kid is None else f", {title(key)} {kid:.4g}"
        return f"{self.of_step}{measured}"

    @property
    def of_step(self) -> str:
        return f"{self.generator.config.expname}, step {self.step:,}"

    def sweep(self) -> list[Path]:
        what = self.objects, self.trajectories, STAGES[self.flags.stage], self.azimuths
        files, errors = write_sweep(self.generator, *what, self.out, self.flags.resolution, self.footer)
        if self.generator.config.ccsr.mode == "refine":
            log.info(
                "CCSR: refined images, downsampled again, differ from renderings by at most %.1e, as images in [-1, 1], "
                "and as 8-bit files by %.1e; 0 is exact",
                *(errors["low_resolution_error"], errors["low_resolution_error_8bit"]),
            )
            files.append(self.results.keep({"sweep": errors | self.results.rendered_by}))
        return files

    def metrics(self) -> list[Path]:
        """Measure distances to the data and properties of objects; write them to metrics.json."""
        flags, config, files = self.flags, self.generator.config, []
        asked = {"coverage" if name == "mmd" else name for name in flags.metrics}
        distances = [name for name in FEWEST_IMAGES if name in asked or (name == "kid" and "kid_independent" in asked)]
        if distances:
            dump = Path(flags.dump_samples) if flags.dump_samples else None
            settings = MeasureSettings(distances, flags.seed, flags.truncation, dump=dump)
            with progress(total=config.metrics.counts[1], desc="measuring", unit="image") as bar:
                measured = self.generator, self.dataset, settings, self.cache, bar
                result = measure_generator(*measured)
                if "kid_independent" in asked:
                    result["values"] |= kid_independent(*measured)
            log.info("%s", summary(result))
            files.append(self.results.keep(merged(self.results.kept(), result)))
        elif flags.dump_samples:
            raise GrafError(f"--dump_samples: {DUMP_SAMPLES.unused}")
        # toy cars have a folder of their own, which runs share
        cache = Path(config.data.datadir[0]) if config.data.type == "toy_cars" else self.cache
        subject = Subject(self.generator, self.dataset, flags.seed, flags.truncation, cache)
        measures = OBJECT_MEASURES | {
            "pose": functools.partial(pose_accuracy, estimator=self.estimator),
            "memorised": functools.partial(memorisation, heldout=self.heldout),
        }
        for name, measure in measures.items():
            if name not in asked:
                continue
            result = measure(subject)
            shown = [f"{key} {value:.4g}" for key, value in result.items() if isinstance(value, float)]
            if shown:  # else a warning has said why nothing was measured
                caveat = f". {VARIETY_CAVEAT}" if name == "variety" else ""
                log.info("%s: %s%s", name, ", ".join(shown), caveat)
            files.append(self.results.keep({name: result | self.results.rendered_by}))
        return files

    def consistency(self) -> list[Path]:
        """Check that views show one solid object; write the numbers to metrics.json."""
        flags, data = self.flags, self.generator.config.data
        result = multi_view_consistency(self.generator, CONSISTENCY_OBJECTS, flags.seed, truncation=flags.truncation)
        result |= rotation_smoothness(self.generator, TURNED_OBJECTS, flags.seed, truncation=flags.truncation)
        result |= nyquist_against_real(self.generator, self.dataset, NYQUIST_IMAGES, flags.seed, flags.truncation)
        views = render_views(self.generator, self.sample(TURNED_OBJECTS), rotation_poses(SANITY_VIEWS, data))
        result |= sanity(views, data.near, data.far)
        for name, value in result.items():
            log.info("%s: %s", name, "nothing to compare" if value is None else f"{value:.4g}")
        of_data = {"real_fingerprint": self.dataset.fingerprint}
        return [self.results.keep({"consistency": result | of_data | self.results.rendered_by})]

    def sheets(self) -> list[Path]:
        options = {"resolution": self.flags.resolution, "footer": self.footer}
        files = interpolation_sheet(self.generator, self.corners, self.out, **options)
        files += interpolation_video(self.generator, self.corners, self.out, resolution=self.flags.resolution)
        files += truncation_sheet(self.generator, self.whole_objects, self.out, **options)  # which it truncates itself
        if self.generator.class_embedding is not None:
            files += class_rows(self.generator, self.objects[0], self.out, **options)
        return files

    def directions(self) -> list[Path]:
        """Write the principal directions of shape and of appearance as JSON, and an image grid of each."""
        wanted, seed = self.flags.directions, self.flags.seed
        found = principal_directions(self.generator, wanted, seed)
        for part, principal in found.items():
            shares = ", ".join(f"{share:.0%}" for share in principal.shares)
            log.info("directions of %s: %s of the variance", part, shares or "none, as nothing varies")
            if 0 < len(principal.shares) < wanted:
                log.info("--directions %d: there are no more of %s than these %d", wanted, part, len(principal.shares))
        terms = {"checkpoint": str(self.results.checkpoint), "step": self.step, "seed": seed}
        file = write_directions(self.out / "directions.json", found, terms)
        earlier = hashes_of(path for path in self.out.glob("direction_*") if re.fullmatch(DIRECTION_SHEET, path.name))
        sheets = direction_sheets(self.generator, self.objects, found, self.out, self.flags.resolution, self.footer)
        remove_earlier(self.out, earlier, sheets)
        return [file, *sheets]

    def neighbours(self) -> list[Path]:
        options = {"seed": self.flags.seed, "truncation": self.flags.truncation, "footer": self.footer}
        neighbour_sheet(self.generator, self.dataset, self.out, **options)
        files = real_against_fake_grid(self.generator, self.dataset, self.out, **options)
        return [self.out / "neighbours.png", self.out / "neighbours.json", *files]

    def mesh(self) -> list[Path]:
        """Write the objects' meshes; with --textured, also compare the rendered GLBs with the model's own views."""
        folder, files, painted, checks = self.out / "mesh", [], {}, {}
        if self.flags.textured:  # all of them, before an earlier file is replaced
            texels = TEXELS_PER_CELL * self.flags.mesh_resolution
            painted = {i: textured(self.generator, self.object(i), mesh, texels) for i, mesh in self.surfaces.items()}
        earlier = hashes_of(object_files(folder))
        for i, mesh in self.surfaces.items():
            files += write_mesh(mesh, folder / f"object_{i:02d}", painted.get(i))
            if not painted:
                continue
            read = read_textured(files[-1])
            checks[i] = rendered_back(self.generator, self.object(i), functools.partial(render_textured, read))
            log.info("texture of object %d: %d x %d; %s", i, *read.visual.material.baseColorTexture.size, checks[i].summary)
        files += self.keep_checks("mesh", checks, folder) if checks else []
        remove_earlier(folder, earlier, files)
        return files

    @functools.cached_property
    def surfaces(self) -> dict[int, Trimesh]:
        """The objects' meshes by number, without objects that have no surface. Raises NoSurface where none has one."""
        found, resolution = {}, self.flags.mesh_resolution
        with progress(total=self.n_objects * resolution, desc="mesh", unit="slice") as bar:
            for i in range(self.n_objects):
                try:
                    found[i] = extract_mesh(self.generator, *self.object(i), resolution, self.flags.mesh_level, bar)
                except NoSurface as error:
                    log.warning("object %d: %s", i, error)
                    no_surface = error
        if not found:
            raise no_surface
        return found

    def splats(self) -> list[Path]:
        """Write the objects as Gaussian splats, and compare their renderings with the model's own views."""
        folder, files, checks = self.out / "splats", [], {}
        earlier = hashes_of(object_files(folder))
        for i, mesh in self.surfaces.items():
            splats = splats_of_surface(mesh)
            files.append(write_splats(folder / f"object_{i:02d}.ply", splats))
            checks[i] = rendered_back(self.generator, self.object(i), functools.partial(render_splats, splats))
            log.info("object %d: %d splats; %s", i, len(splats.means), checks[i].summary)
        files += self.keep_checks("splats", checks, folder)
        remove_earlier(folder, earlier, files)
        return files

    def keep_checks(self, name: str, checks: dict[int, RenderedBack], folder: Path) -> list[Path]:
        """Write how exports look as an image grid, and their PSNR to metrics.json."""
        objects = {"latents": self.flags.latents} if self.flags.latents else {"seed": self.flags.seed}
        terms = {"truncation": self.flags.truncation} | objects
        result = {name: mean_psnr(checks.values()) | terms | self.results.rendered_by}
        return [write_checks(checks, folder / "rendered_back.png", self.footer), self.results.keep(result)]

    def reconstruction(self) -> list[Path]:
        poses, folder = reconstruction_poses(self.generator.config.data), self.out / "reconstruction"
        return write_reconstruction(self.generator, self.object(0), poses, folder, self.flags.resolution)

    def invert(self) -> list[Path]:
        targets, poses = self.targets
        start = cameras_of(self.estimator, targets) if self.estimator and poses is None else None
        what = targets, poses, InversionSettings(seed=self.flags.seed)
        with progress(total=most_renderings(self.generator, *what, start), desc="inversion", unit="rendering") as bar:
            inversion = invert(self.generator, *what, bar, start)
        names = list(map(str, self.target_files))
        for name, azimuth_deg, psnr in zip(names, inversion.azimuth_deg.tolist(), inversion.psnr, strict=True):
            log.info("%s: azimuth %.0f degrees, PSNR %.1f dB", name, azimuth_deg, psnr)
        for sentence in failures(inversion, targets, names):
            log.warning("%s", sentence)
        folder = inversion_folder(self.out / INVERSIONS, targets, names)
        checkpoint = self.results.checkpoint, self.step
        files = write_inversion(self.generator, inversion, targets, folder, names, checkpoint, self.footer)
        log.info("other jobs, and view.py, show this object with --latents %s", as_typed(folder / NAME))
        return files + (self.tune(inversion, folder) if self.flags.tune else [])

    def tune(self, inversion: Inversion, folder: Path) -> list[Path]:
        """Write the generator tuned to the photographs of an inversion, and what it makes of the object, below its folder."""
        (targets, _), names = self.targets, list(map(str, self.target_files))
        out = folder / TUNED
        file = out / f"{folder.name}.safetensors"
        require_replaceable(file)
        settings = TuningSettings(self.flags.tune, seed=self.flags.seed)
        with progress(total=settings.steps, desc="tuning", unit="step") as bar:
            tuned, seen = tune(self.generator, inversion, targets, settings, bar)
        for name, before, after in zip(names, inversion.psnr, seen.psnr, strict=True):
            log.info("%s: PSNR %.1f dB before tuning, %.1f dB after", name, before, after)
        write_export(file, tuned, self.step, self.data_fingerprint)
        footer = None if self.flags.plain else f"{self.of_step}, tuned in {settings.steps:,} steps"
        files = write_inversion(tuned, seen, targets, out, names, (file, self.step), footer)
        flags = as_typed("--checkpoint", file, "--latents", out / NAME)
        log.info("the tuned model: eval.py and view.py show it with %s", flags)
        return [file, *files]

    def export(self) -> list[Path]:
        fingerprint, measured = self.data_fingerprint, self.results.kept_at(truncation=1.0)
        file = write_export(self.flags.export, self.generator, self.step, fingerprint)
        return [file, *write_card(file, self.generator, self.step, fingerprint, measured)]

    def report(self) -> list[Path]:
        """Write report.html to the folder of --out, else to the run's. It shows `out` first if it has results of this model."""
        points, page = self.generator.config.reporting.max_metric_rows, (self.flags.out or self.run_dir) / "report.html"
        beside = any(job.writes_results and getattr(self.flags, job.name) for job in JOBS)
        of_found = self.flags.latents and not self.flags.out  # a folder within the evaluation's own
        newest = self.out if not of_found and (beside or self.results.kept()) else None
        try:
            return [write_report(self.run_dir, page, newest, points)]
        except OSError as error:
            if error.errno not in NOT_PERMITTED:
                raise
            raise GrafError(f"{error.filename}: {error.strerror}; --out FOLDER writes the report to another folder") from None
