"""Rounds that find cameras nobody wrote down: a generator shows views from known cameras, an estimator learns from them and
reads the photographs' cameras, and the generator goes on with these.

Round 0 trains a generator without cameras. Each round after it makes views, an estimator, labelled photographs and a generator,
each in a folder of its own. Where the last generator has an encoder, reconstructions correct the last round's cameras, and that
generator begins anew. Legend: N photographs.
"""

import dataclasses
import json
import logging
import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from graf.camera import Labels, azimuth_and_v, poses_at, sample_poses
from graf.checkpoints.run_folder import newest_checkpoint
from graf.config import Config, DataConfig, PoseConfig, load_config
from graf.data import Views, sample_labels
from graf.data.advice.warnings import FEWEST_OF_A_CLASS, has_small_classes, n_classes_of
from graf.data.decoding import upright_size
from graf.data.folders import TRANSFORMS, is_within, matching_folders
from graf.data.hull import data_box
from graf.errors import GrafError
from graf.finding.azimuths import azimuth_numbers
from graf.finding.silhouettes import azimuths_by_width, elongations_of
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8, write_image
from graf.pictures.sampling import LabelSampler, fresh_renderings, labels_in_range, recorded
from graf.pose.accuracy import images_of, mixtures
from graf.pose.labelling import transforms_of
from graf.pose.loading import TrainedEstimator
from graf.pose.splits import Subset
from graf.runtime.console import progress
from graf.runtime.files import read_object, write_text

import torch
from torch import Tensor

log = logging.getLogger("graf")

CAMERAS = "cameras"  # folder of all photographs' cameras by the names of their own files
BOX_SHARE = 1 / 2  # of the photographs, whose silhouettes tell the box: one that is misread takes it far beyond the objects
BOX_HOLDS = 0.98  # of these silhouettes: an estimator may be sure, and wrong
FEWEST_FOR_BOX = 400  # fewer silhouettes leave more room around the objects than misread ones
UNPOSED_SHARE = 1 / 8  # of all steps, for round 0: enough for views that turn
CORRECTION_SHARE = 1 / 6  # of the last generator's steps, for each correction: enough for reconstructions that have a front
UNMEASURED = {"fid_every": 0, "save_best": "none"}  # KID of a round that another follows is worth less than its minutes
CONSTANT = {"lr_anneal_every": (), "anneal": "none"}
READING_KEYS = (  # how files are read; a round's photographs are written as they were read
    *("name_pattern", "turntable_step_deg", "align_cameras", "masks", "azimuths", "roll_deg", "camera_axes"),
    *("v", "center_crop", "hflip"),
)


@dataclasses.dataclass(frozen=True)
class Round:
    """A round's number and where its parts are; start: which of several that round 0 chooses from; correction: which of those
    that the last round makes, with parts of their own."""

    out: Path
    number: int
    start: int | None = None
    correction: int | None = None

    @property
    def folder(self) -> Path:
        return self.out.joinpath(f"round_{self.number}", *(f"{part}_{number}" for part, number in self._part))

    @property
    def name(self) -> str:
        return ", ".join([f"round {self.number}", *(f"{part} {number}" for part, number in self._part)])

    @property
    def _part(self) -> list[tuple[str, int]]:
        parts = {"start": self.start, "correction": self.correction}
        return [(part, number) for part, number in parts.items() if number is not None]

    @property
    def views(self) -> Path:
        """The generated views that its estimator learns from."""
        return self.folder / "views"

    @property
    def estimator(self) -> Path:
        """The run of train_pose.py."""
        return self.folder / "estimator"

    @property
    def photographs(self) -> Path:
        """The photographs with the cameras that were found, a folder per class."""
        return self.folder / "photographs"

    @property
    def chosen(self) -> "Round":
        """The start that round 0 chose, once it has chosen one of several; else the round itself."""
        start = read_object(self.record).get("start") if self.number == 0 and self.start is None else None
        return self if start is None else Round(self.out, 0, start)

    @property
    def generator(self) -> Path:
        """The run of train.py."""
        return self.chosen.folder / "generator"

    @property
    def sheet(self) -> Path:
        """Generated objects seen from all around, below photographs by the azimuths that were read, if any were."""
        return self.chosen.folder / "sheet.png"

    @property
    def record(self) -> Path:
        """The file of the round's numbers; the round is done once it is there."""
        return self.folder / "round.json"

    @property
    def cameras(self) -> Path:
        """The file of the cameras of all photographs that a correction found."""
        return self.folder / "cameras.json"

    @property
    def before(self) -> "Round":
        return Round(self.out, self.number - 1)


class CameraFile(NamedTuple):
    """A file of the cameras of some of a data set's rows, and the folder that a copy of it belongs into."""

    file: Path
    home: Path
    rows: list[int]


class FoundCameras(NamedTuple):
    """Cameras read off N photographs: azimuth_deg (N,) in [0, 360), v (N,) in [0, 1], and the probabilities (N,) that the
    azimuth is right to 15 degrees, and that it or the opposite one is."""

    azimuth_deg: Tensor
    v: Tensor
    confidence: Tensor
    either_end: Tensor


# What each part of a round is trained with


def unposed_steps(config: Config) -> int:
    """The steps of round 0, whose generator is used for its views alone."""
    return max(1, round(UNPOSED_SHARE * config.training.max_steps))


def posed_steps(config: Config, number: int, n_rounds: int) -> int:
    """The steps of the second generator after a round: those that round 0 leaves are divided by 1 : 2 : 3 and so on, for
    cameras are better in later rounds."""
    return (config.training.max_steps - unposed_steps(config)) * number * (number + 1) // (n_rounds * (n_rounds + 1))


def in_one_class(photographs: Views, config: Config) -> Views:
    """The photographs, as of one class where their folders have so few that each shows one object, unless the discriminator
    learns classes. A generator that is told which object it makes does not learn what all objects have in common, such as a
    front."""
    if config.discriminator.label_loss != "none" or not has_small_classes(photographs):
        return photographs
    n_classes = n_classes_of(photographs)
    log.info(
        "%d folders with %.0f photographs each, on the mean, are taken for objects and not for classes, which have at least %d",
        *(n_classes, len(photographs) / n_classes, FEWEST_OF_A_CLASS),
    )
    whole, of_one = Subset(photographs, list(range(len(photographs)))), torch.zeros_like(photographs.class_index)
    whole.class_names, whole.class_index = ["photographs"], of_one
    if whole.labels is not None:
        whole.labels = dataclasses.replace(whole.labels, class_index=of_one)
    return whole


def unposed(config: Config, first: Round, photographs: Views | None = None) -> Config:
    """The config of round 0, of the same photographs without their cameras, if they have any; once they are read, of one class
    or several. Only the last round is measured."""
    config, steps = config.without_encoder(), unposed_steps(config)  # it would learn from cameras that are still being found
    data = dataclasses.replace(config.data, labels="none", mirror="none")
    training = dataclasses.replace(config.training, outdir=str(first.folder), max_steps=steps, **UNMEASURED, **CONSTANT)
    ccsr = dataclasses.replace(config.ccsr, unrefined_steps=0)
    discriminator = dataclasses.replace(config.discriminator, low_res_steps=min(steps, config.low_res_steps))
    if photographs is not None and len(photographs.class_names) == 1:
        discriminator = dataclasses.replace(discriminator, condition="none")
    parts = {"data": data, "ccsr": ccsr, "discriminator": discriminator, "training": training}
    return dataclasses.replace(config, expname=first.generator.name, **parts)


def as_asked(unposed: Config, photographs: Views, start: Round) -> Config | None:
    """The config of a start whose cameras are sampled as the config says."""
    return unposed


def from_silhouettes(unposed: Config, photographs: Views, start: Round) -> Config | None:
    """The config of a start whose photographs have the cameras that silhouettes suggest, at sampled heights; it writes
    these photographs. None where there are no silhouettes, or where the config's azimuths do not go all around, as those that
    silhouettes suggest do. unposed: the config without cameras, with their data.alpha."""
    if not goes_all_around(unposed) or (elongations := elongations_of(photographs, unposed.data)) is None:
        return None
    rng = torch.Generator().manual_seed(unposed.training.seed)
    azimuth_deg = azimuths_by_width(elongations, rng)
    _, v = azimuth_and_v(sample_poses(len(photographs), unposed.data, rng))
    unsure = torch.zeros(len(photographs))
    guessed = FoundCameras(azimuth_deg, v, unsure, unsure)
    folders = write_photographs(start, photographs, guessed, 1.0, unposed.data)
    return dataclasses.replace(unposed, data=written(unposed.data, folders))


def narrowed(unposed: Config, photographs: Views, start: Round) -> Config | None:
    """The config of a start whose cameras are sampled from the middle quarter of the config's azimuths, for photographs that do
    not go all around. None for a distribution about the front."""
    if unposed.data.camera_prior == "front":
        return None
    low, high = unposed.data.u_range
    middle, eighth = (low + high) / 2, (high - low) / 8
    return dataclasses.replace(unposed, data=dataclasses.replace(unposed.data, umin=middle - eighth, umax=middle + eighth))


STARTS = (as_asked, from_silhouettes, narrowed)  # in turn; where one has no config, the photographs start as asked


def in_range_of_start(config: Config, first: Round) -> Config:
    """The config with the range of azimuths that round 0 trained with, which a narrow start has made smaller."""
    data = load_config(first.generator / "config.yaml").data
    return dataclasses.replace(config, data=dataclasses.replace(config.data, umin=data.umin, umax=data.umax))


def posed(config: Config, this: Round, n_rounds: int, folders: list[Path], box: str | tuple[float, ...]) -> Config:
    """The config of a later round's generator; `config`: the asked one, with the data section of round 0; folders: those of the
    round's photographs.

    Rounds 1, 2, ... are one training run, which begins anew and each of them takes further. Its schedule is the config's,
    shortened by the steps of round 0.
    """
    config = config.without_encoder()
    training, discriminator = config.training, config.discriminator
    in_all = posed_steps(config, n_rounds, n_rounds)

    def shortened(step: int) -> int:
        return max(1, step * in_all // training.max_steps)

    if training.anneal == "none":
        schedule = {"lr_anneal_every": tuple(sorted(set(map(shortened, config.milestones))))}
    else:
        schedule = {"anneal_steps": shortened(training.annealing_steps)}
    if this.number < n_rounds:
        schedule |= UNMEASURED
    steps = posed_steps(config, this.number, n_rounds)
    low_res_steps = config.low_res_steps and shortened(config.low_res_steps)
    unrefined_steps = config.unrefined_steps and shortened(config.unrefined_steps) if this.number == n_rounds else 0
    return dataclasses.replace(
        config,
        expname=this.generator.name,
        ccsr=dataclasses.replace(config.ccsr, unrefined_steps=unrefined_steps),
        data=dataclasses.replace(written(config.data, folders), box=box),
        discriminator=dataclasses.replace(discriminator, low_res_steps=low_res_steps),
        training=dataclasses.replace(training, outdir=str(this.folder), max_steps=steps, **schedule),
    )


def box_of(run_dir: Path, photographs: Views, found: FoundCameras, data: DataConfig) -> str | tuple[float, ...]:
    """data.box of a generator: the asked one; where it goes on with the run in run_dir that run's own, in which it has learned;
    else one around the photographs whose cameras are the surest."""
    if data.box != "auto":
        return data.box
    if newest_checkpoint(run_dir):
        return load_config(run_dir / "config.yaml").data.box
    return box_around(photographs, found, data)


def last_has_encoder(config: Config) -> bool:
    """Whether the last round's generator has an encoder, once its photographs have cameras. One that finds cameras itself is of
    photographs that need no rounds."""
    before_plane = config.data.background_model == "plane"
    return config.encodes_images and not config.encoder.finds_cameras and not before_plane


def goes_all_around(config: Config) -> bool:
    """Whether sampled cameras stand all around, so that the one opposite a camera may be right."""
    low, high = config.data.u_range
    return high - low > 1 - 1e-6


def steps_of(config: Config, n_rounds: int, n_corrections: int) -> list[int]:
    """The steps of each later round's generator, and of a correction's where there are any."""
    steps = [posed_steps(config, number, n_rounds) for number in range(1, n_rounds + 1)]
    if last_has_encoder(config):
        steps[-1] = config.training.max_steps
    return [*steps, correction_steps(config)] if n_corrections and goes_all_around(config) else steps


def correction_steps(config: Config) -> int:
    """The steps of each correction's generator."""
    return round(CORRECTION_SHARE * config.training.max_steps)


def correction_config(config: Config, this: Round, folders: list[Path], box: str | tuple[float, ...]) -> Config:
    """The config of a correction's generator, which only reconstructs; arguments as for `posed`."""
    steps = correction_steps(config)
    return dataclasses.replace(
        config,
        expname=this.generator.name,
        encoder=dataclasses.replace(config.encoder, first_steps=steps, weight=0.0),
        ccsr=dataclasses.replace(config.ccsr, unrefined_steps=0),
        data=dataclasses.replace(written(config.data, folders), box=box),
        discriminator=dataclasses.replace(config.discriminator, low_res_steps=0),
        training=dataclasses.replace(config.training, outdir=str(this.folder), max_steps=steps, **UNMEASURED, **CONSTANT),
    )


def last_config(config: Config, this: Round, folders: list[Path], box: str | tuple[float, ...]) -> Config:
    """The config of a last generator with an encoder: all that `config`, the asked one, says, of the round's photographs. It
    begins anew, since an encoder's steps are the first ones of a run."""
    data = dataclasses.replace(written(config.data, folders), box=box)
    training = dataclasses.replace(config.training, outdir=str(this.folder))
    return dataclasses.replace(config, expname=this.generator.name, data=data, training=training)


def box_around(photographs: Views, found: FoundCameras, data: DataConfig) -> str | tuple[float, ...]:
    """data.box around the silhouettes of the photographs whose cameras are the surest; "none" where they have no opacity."""
    share = max(BOX_SHARE, min(1.0, FEWEST_FOR_BOX / len(photographs)))
    rows = surest_rows(photographs, found.confidence, share)
    labels = Labels.of_poses(poses_at(found.azimuth_deg, found.v, sum(data.radius) / 2)[rows])
    return data_box(Subset(photographs, rows.tolist(), labels), data, BOX_HOLDS)


def of_estimator(pose: PoseConfig, config: Config, this: Round, seed: int, name: str = "estimator") -> PoseConfig:
    """The config of a round's estimator; `config`: one with the data section of round 0; name: that of its run's folder.

    From round 2 on frames vary half as much: the generator has seen the photographs' cameras.
    """
    data = dataclasses.replace(written(config.data, [this.views]), alpha="ignore", background_model="none", mirror="none")
    reframe = pose.training.reframe / (2 if this.number > 1 else 1)
    changed = {"outdir": str(this.folder), "seed": seed, "use_amp": config.training.use_amp, "reframe": reframe}
    training = dataclasses.replace(pose.training, **changed)
    return dataclasses.replace(pose, expname=name, data=data, training=training)


def written(data: DataConfig, folders: list[Path]) -> DataConfig:
    """The data config of images that a round wrote with their cameras, as they are to be seen."""
    default = DataConfig()
    as_they_are = {name: getattr(default, name) for name in READING_KEYS}
    return dataclasses.replace(data, type="images", labels="transforms", datadir=tuple(map(str, folders)), **as_they_are)


# What each part of a round writes


def view_sampler(dataset: Views, data: DataConfig) -> LabelSampler:
    """A sampler of the cameras of a round's views: half from the config's range, half as the round before found them."""
    in_range = labels_in_range(dataset, data)
    if not dataset.posed:
        return in_range

    def sample(n: int, rng: torch.Generator) -> Labels:
        asked, found = in_range(n, rng), sample_labels(dataset, n, data, rng)
        poses = torch.where((torch.rand(n, generator=rng) < 0.5)[:, None, None], asked.pose_c2w, found.pose_c2w)
        return dataclasses.replace(found, pose_c2w=poses)

    return sample


def write_views(folder: Path, generator: Generator, sampler: LabelSampler, n: int, seed: int) -> None:
    """Write n views of as many objects, and their cameras in a transforms.json, which comes last."""
    sampler, asked = recorded(sampler)
    config, names = generator.config, [f"{number:05d}.png" for number in range(n)]
    renderings = fresh_renderings(generator, sampler, n, config.metrics.batch_size, seed)
    images = (image for rendering in renderings for image in as_uint8(rendering.images))
    for name, image in zip(names, progress(images, total=n, desc="views", unit="view"), strict=True):
        write_image(folder / name, image)
    side = config.data.imsize
    poses = torch.cat([labels.pose_c2w for labels in asked]).cpu()
    write_text(folder / TRANSFORMS, transforms_of(names, [(side, side)] * n, poses, config.data, objects=names))


def write_photographs(this: Round, dataset: Views, found: FoundCameras, keep: float, data: DataConfig) -> list[Path]:
    """Write the photographs as the data set reads them, with their cameras, unless they are there: of each class the share
    `keep` of which the estimator is surest. Returns their folders, one per class."""
    folders = {this.photographs / name: rows for name, rows in class_rows(dataset).items()}
    if all((folder / TRANSFORMS).exists() for folder in folders):
        return list(folders)
    objects, kept = known_objects(dataset), set(surest_rows(dataset, found.confidence, keep).tolist())
    poses, data = poses_at(found.azimuth_deg, found.v, sum(data.radius) / 2), dataclasses.replace(data, center_crop=0)
    for folder, of_class in folders.items():
        rows = [row for row in of_class if row in kept]
        names = [f"{row:05d}.png" for row in rows]
        for name, row in zip(names, rows, strict=True):
            write_image(folder / name, straight_alpha(dataset.read(row), data.background))
        sizes, shown = [(data.imsize, data.imsize)] * len(rows), [objects[row] for row in rows]
        write_text(folder / TRANSFORMS, transforms_of(names, sizes, poses[rows], data, shown, found.confidence[rows]))
    return list(folders)


def write_cameras(out: Path, dataset: Views, found: FoundCameras, data: DataConfig) -> list[Path]:
    """Write the cameras of all photographs by the names of their own files, into `camera_files`. Returns these. data: with
    which the photographs were read."""
    poses, of_all = poses_at(found.azimuth_deg, found.v, sum(data.radius) / 2), known_objects(dataset)
    written_files = camera_files(out, dataset, data)
    for file, home, rows in written_files:
        photographs = [Path(dataset.files[row]) for row in rows]
        names = [Path(os.path.relpath(photograph, home)).as_posix() for photograph in photographs]
        sizes = [upright_size(photograph) for photograph in photographs]
        if None in sizes:
            raise GrafError(f"{photographs[sizes.index(None)]}: cannot be read any more; put it back, and run again")
        objects = [of_all[row] for row in rows]
        write_text(file, transforms_of(names, sizes, poses[rows], data, objects, found.confidence[rows]))
    return [file for file, _, _ in written_files]


def keep_cameras(file: Path, dataset: Views, found: FoundCameras) -> None:
    """Write what was found of all photographs, by their names in the folder that all are in."""
    numbers = {name: values.tolist() for name, values in found._asdict().items()}
    write_text(file, json.dumps({"photographs": names_of(dataset), **numbers}))


def kept_cameras(file: Path, dataset: Views) -> FoundCameras:
    """What `keep_cameras` wrote, in the order of the data set's rows, which may be another. Raises GrafError where the file is
    damaged, or lacks one of them."""
    kept, names = read_object(file), names_of(dataset)
    try:
        row_of = {name: row for row, name in enumerate(kept["photographs"])}
        numbers = [torch.tensor([float(kept[field][row]) for row in row_of.values()]) for field in FoundCameras._fields]
    except (LookupError, TypeError, ValueError) as error:
        raise GrafError(
            f"{file}: is damaged ({error}); delete it, and its round's round.json, and find_cameras.py makes both anew"
        ) from None
    if lacking := [name for name in names if name not in row_of]:
        raise GrafError(f"{file}: has no camera of {lacking[0]}; its {len(row_of)} photographs are others")
    return FoundCameras._make(values[[row_of[name] for name in names]] for values in numbers)


def names_of(dataset: Views) -> list[str]:
    """The photographs' files, in the folder that all are in."""
    files = [os.path.abspath(file) for file in dataset.files]
    home = os.path.commonpath([os.path.dirname(file) for file in files])
    return [Path(os.path.relpath(file, home)).as_posix() for file in files]


def camera_files(out: Path, dataset: Views, data: DataConfig) -> list[CameraFile]:
    """A file for each class in each folder of data.datadir, so that a copy in the folder that its photographs are in gives each
    of them its camera. Those of which one folder holds another's are one file, as its copy would hide what is below."""
    roots = sorted({os.path.abspath(root) for pattern in data.datadir for root in matching_folders(pattern)}, key=len)
    groups: dict[tuple[str, str], list[int]] = {}
    for name, rows in class_rows(dataset).items():
        for row in rows:
            file = os.path.abspath(dataset.files[row])
            inside = [root for root in roots if Path(root) in Path(file).parents]
            groups.setdefault((name, inside[-1] if inside else ""), []).append(row)
    parts = [(home_of(dataset, rows), name, rows) for (name, _), rows in groups.items()]
    found: list[CameraFile] = []
    names: Counter[str] = Counter()
    for home, name, rows in sorted(parts, key=lambda part: len(part[0].absolute().parts)):
        around = next((other for other in found if is_within(home, other.home)), None)
        if around is None:
            names[name] += 1
            numbered = name if names[name] == 1 else f"{name}_{names[name]}"
            found.append(CameraFile(out / numbered / TRANSFORMS, home, rows))
        else:
            around.rows.extend(rows)
    return found


def known_objects(dataset: Views) -> list[str]:
    """The name of the object in each photograph; if names of files do not tell objects apart, one for each photograph."""
    objects = dataset.objects
    return objects if len(set(objects)) > 1 else [str(row) for row in range(len(dataset))]


def class_rows(dataset: Views) -> dict[str, list[int]]:
    """The rows of each class that has photographs, by a name for its folder, in the classes' order."""
    names = [re.sub(r"[^\w.-]+", "_", name).lstrip(".") for name in dataset.class_names]
    rows = {
        f"{number:03d}_{name}": (dataset.class_index == number).nonzero()[:, 0].tolist() for number, name in enumerate(names)
    }
    return {name: of_class for name, of_class in rows.items() if of_class}


def class_indices(dataset: Views) -> Tensor:
    """The class (N,) of each row, as a generator knows it that learned from a round's photographs: a number for each of their
    folders."""
    classes = torch.zeros(len(dataset), dtype=torch.long)
    for index, rows in enumerate(class_rows(dataset).values()):
        classes[rows] = index
    return classes


def home_of(dataset: Views, rows: list[int]) -> Path:
    """The folder that the files of these rows are in, where their transforms.json belongs; in the working directory relative to
    that."""
    home = Path(os.path.commonpath([os.path.dirname(os.path.abspath(dataset.files[row])) for row in rows]))
    return home.relative_to(Path.cwd()) if home.is_relative_to(Path.cwd()) else home


def surest_rows(dataset: Views, confidence: Tensor, share: float) -> Tensor:
    """The rows, in their order, of the share of each class's photographs whose cameras are the surest, at least one."""
    kept = []
    for of_class in class_rows(dataset).values():
        rows = torch.tensor(of_class)
        order = confidence[rows].argsort(descending=True, stable=True)
        kept.append(rows[order[: max(1, round(share * len(rows)))]])
    return torch.cat(kept).sort().values


def straight_alpha(image: Tensor, background: tuple[float, float, float]) -> Tensor:
    """An image (3 or 4, H, W) of uint8 over its background, as a file has it: colours that are not mixed with the background
    where there is an opacity."""
    if len(image) == 3:
        return image
    colours, opacity = image[:3].float(), image[3:].float() / 255
    behind = 255 * torch.tensor(background)[:, None, None]
    own = (colours - (1 - opacity) * behind) / opacity.clamp_min(1 / 255)
    return torch.cat([own.round().clamp(0, 255).to(torch.uint8), image[3:]])


# What a round's estimator reads


def find_cameras(estimator: TrainedEstimator, views: Views, rng: torch.Generator | None = None) -> FoundCameras:
    """The most likely cameras of a data set's images, or with `rng` one of each image's answers, by their probability."""
    parts = []
    for mixture in mixtures(estimator, images_of(views), len(views)):
        azimuth_deg = mixture.most_likely() if rng is None else mixture.sample_answer(rng)
        confidence = mixture.confidence(azimuth_deg)
        either_end = (confidence + mixture.confidence(azimuth_deg + 180)).clamp_max(1)
        parts.append((azimuth_deg, mixture.v, confidence, either_end))
    return FoundCameras(*map(torch.cat, zip(*parts, strict=True)))


def held_out_errors(found: FoundCameras, true: Tensor) -> dict:
    """Errors of cameras found for views of which pose_c2w (N, 3, 4) is true, and the calibration curve, ready for JSON."""
    azimuth_deg, v = azimuth_and_v(true)
    errors = azimuth_numbers(found.azimuth_deg, azimuth_deg, found.confidence)
    return errors | {"height": float((found.v - v).abs().median())}
