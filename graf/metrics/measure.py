"""FID and KID through torch-fidelity, returned with their protocol.

A distance means nothing without its extractor, sample counts and resampling, so `measure` returns them together, and the
extractor's name is part of every value's key. Images are rounded to 8 bits first: the numbers are those of
`torch_fidelity.calculate_metrics` on folders of PNGs.
"""

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Literal

from graf.config import MetricsConfig
from graf.config.digest import rendering_sha256
from graf.data import Views
from graf.errors import DataError, GrafError
from graf.metrics.extractors import EFFICIENTNET_2, INCEPTION, Extractor, choose_extractor, networks_of_training, tell_once
from graf.metrics.results import FEWEST_IMAGES
from graf.models.generator import Generator, weights_hash
from graf.pictures.outputs import as_uint8
from graf.pictures.sampling import fresh_samples, labels_as_in_data, labels_in_range
from graf.runtime.files import is_taken
from graf.runtime.out_of_memory import first_line, is_machine_fault, is_out_of_memory
from graf.runtime.processes import ALONE, Processes
from graf.runtime.retry import retry_halved

import imageio.v2 as imageio
import numpy as np
import torch
import torch_fidelity
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

log = logging.getLogger("graf")

SEED = 2020  # torch-fidelity's default, for the choice of real images and KID's subsets, which are the same in every run
KID_SUBSETS = 100
KID_SUBSET_SIZE = 1000
KEYS = {  # of the values, by torch-fidelity's
    torch_fidelity.KEY_METRIC_FID: "fid",
    torch_fidelity.KEY_METRIC_KID_MEAN: "kid",
    torch_fidelity.KEY_METRIC_KID_STD: "kid_std",
    torch_fidelity.KEY_METRIC_PRECISION: "precision",
    torch_fidelity.KEY_METRIC_RECALL: "recall",
    torch_fidelity.KEY_METRIC_F_SCORE: "f_score",
}
NUMPY_ARRAYS = [  # the types in cached statistics
    np._core.multiarray._reconstruct,
    np.ndarray,
    np.dtype,
    type(np.dtype("float32")),
    type(np.dtype("float64")),
]


@dataclasses.dataclass(frozen=True)
class MeasureSettings:
    """The metrics of a generator: `names` of fid, kid and prc, on samples of `seed` with latents scaled by `truncation`.

    options: extractor, counts and batch size; by default the metrics section of the generator's config. dump: a new folder for
    the generated images as PNGs, and in its folder `real` the real ones. cameras: those of the data, or sampled from the
    config's range.
    """

    names: Sequence[str]
    seed: int
    truncation: float = 1.0
    options: MetricsConfig | None = None
    dump: Path | None = None
    cameras: Literal["data", "range"] = "data"


def measure_generator(
    generator: Generator,
    dataset: Views,
    settings: MeasureSettings,
    cache_dir: Path,
    bar: tqdm | None = None,
    processes: Processes = ALONE,
) -> dict:
    """`measure` samples of a generator, and return the result with what the samples depend on.

    All ranks render and the first one measures; the others return {}. The numbers are those of a single process. Raises
    GrafError as `measure` does.
    """
    config, options = generator.config, settings.options or generator.config.metrics
    label_sampler = (labels_as_in_data if settings.cameras == "data" else labels_in_range)(dataset, config.data)
    dump = None if settings.dump is None else new_folder(settings.dump)
    cuda = generator.background.device.type == "cuda"

    def sample_and_measure(batch_size: int) -> dict | Exception:
        """The result, or an error, such as one of the cache, to be raised once all ranks are done."""
        if bar is not None:
            bar.reset()
        samples = fresh_samples(
            generator, label_sampler, options.counts[1], batch_size, settings.seed, bar, processes.map, settings.truncation
        )
        at_once = dataclasses.replace(options, batch_size=batch_size)
        with contextlib.closing(samples):
            if not processes.first:
                return dict.fromkeys(samples)  # {}: the first rank receives all samples
            try:
                fakes = samples if dump is None else written(samples, dump)
                return measure(fakes, dataset, at_once, cache_dir, cuda, settings.names)
            except Exception as error:
                if not processes.alone:  # the other ranks wait for the first samples before they can learn of the error
                    next(samples, None)
                if not isinstance(error, NO_RESULT) or is_out_of_memory(error):
                    raise
                return error

    result = retry_halved(sample_and_measure, options.batch_size, "metrics", processes=processes)
    if isinstance(result, Exception):
        raise result
    if not processes.first:
        return {}
    if dump is not None:
        subset = RealSubset(dataset, result["n_real"], SEED)
        for _ in written((dataset[i]["image"][None] for i in subset.indices), new_folder(dump / "real")):
            pass
    trained_with = networks_of_training(config)
    if result.get("extractor") in trained_with:
        warning = f"{result['extractor']} took part in this training and may favour it; measure with {EFFICIENTNET_2} too"
        tell_once(logging.WARNING, f"metrics: {warning}")
        result["warnings"].append(warning)
    return result | {
        "networks_of_training": trained_with,
        "sample_seed": settings.seed,
        "truncation": settings.truncation,
        "generator_sha256": weights_hash(generator),
        "rendering_sha256": rendering_sha256(config),
    }


def kid_independent(
    generator: Generator, dataset: Views, settings: MeasureSettings, cache_dir: Path, bar: tqdm | None = None
) -> dict[str, float]:
    """{"kid_independent_<extractor>": KID} of samples whose cameras are sampled from the config's range."""
    settings = dataclasses.replace(settings, names=["kid"], cameras="range", dump=None)
    result = measure_generator(generator, dataset, settings, cache_dir, bar)
    return {f"kid_independent_{result['extractor']}": result["values"][f"kid_{result['extractor']}"]}


def measure(
    fakes: Iterable[Tensor],
    real: Dataset,
    config: MetricsConfig,
    cache_dir: Path,
    cuda: bool = False,
    names: Sequence[str] = ("fid", "kid"),
) -> dict:
    """Distances between generated and real images, with their protocol, ready for JSON.

    fakes yields batches (B, 3, H, W) in [-1, 1] of any size; config.counts says how many images are taken, config.batch_size at
    a time. real[i]["image"] is (3, H, W) in [-1, 1], not augmented; `real.fingerprint` changes with its images, and names their
    features in cache_dir. names are of FEWEST_IMAGES: fid, kid, prc (improved precision and recall). The extractor runs on the
    current CUDA device where `cuda` is set. Global random states are left as they were. Returns {"values":
    {"fid_<extractor>": ...}, "warnings": [...], ...}. Raises GrafError where Inception's weights are missing or the images too
    few, NotFinite where generated images are not finite.
    """
    extractor = choose_extractor(config)
    n_real, n_fake = image_counts(config, len(real), names)
    subset = RealSubset(real, n_real, SEED)
    terms = {  # all that the values depend on besides the generated images
        "protocol": config.protocol,
        "extractor": extractor.name,
        "weights_sha256": extractor.sha256,
        "resize": extractor.resize,
        "resolution": subset.resolution,
        "n_real": n_real,
        "n_fake": n_fake,
        "real_fingerprint": real.fingerprint,
        "kid_subsets": KID_SUBSETS,
        "kid_subset_size": min(KID_SUBSET_SIZE, n_real, n_fake),
        "seed": SEED,
        "versions": {"torch": torch.__version__, "torch-fidelity": torch_fidelity.__version__},
    }
    warnings = _warnings(names, config, extractor, terms)
    cache_name = subset.cache_name(extractor)
    remove_damaged(cache_dir, cache_name)

    # torch-fidelity initialises networks and starts loaders with the global generators
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []):
        raw = torch_fidelity.calculate_metrics(
            input1=FakeStream(fakes, subset.resolution),
            input1_model_num_samples=n_fake,
            input2=subset,
            input2_cache_name=cache_name,
            cache_root=str(cache_dir),
            **{name: name in names for name in FEWEST_IMAGES},
            kid_subsets=KID_SUBSETS,
            kid_subset_size=terms["kid_subset_size"],
            rng_seed=SEED,
            feature_extractor=extractor.name,
            feature_extractor_weights_path=str(extractor.weights),
            batch_size=config.batch_size,
            cuda=cuda,
            save_cpu_ram=True,  # no loader processes
            verbose=False,
        )
    values = {key: float(raw[name]) for name, key in KEYS.items() if name in raw}
    if _subsets_are_whole(terms):
        values.pop("kid_std", None)
    return {"values": {f"{key}_{extractor.name}": value for key, value in values.items()}} | terms | {"warnings": warnings}


def image_counts(config: MetricsConfig, n_images: int, names: Sequence[str] = ("fid", "kid")) -> tuple[int, int]:
    """How many real and generated images are compared, of n_images real ones. Raises GrafError where they are too few."""
    wanted, n_fake = config.counts
    n_real = min(wanted or n_images, n_images)
    fewest = max(FEWEST_IMAGES[name] for name in names)
    if min(n_real, n_fake) < fewest:
        raise GrafError(
            f"metrics: {', '.join(names)} need at least {fewest} images of each kind, found {n_real} real and {n_fake} "
            "generated; raise metrics.n_real and metrics.n_fake, or add images"
        )
    return n_real, n_fake


def _subsets_are_whole(terms: dict) -> bool:
    """Whether each of KID's subsets is the whole set, which makes their standard deviation meaningless."""
    return terms["kid_subset_size"] == terms["n_real"] == terms["n_fake"]


def _warnings(names: Sequence[str], config: MetricsConfig, extractor: Extractor, terms: dict) -> list[str]:
    """Warnings for a reader of the values; they are logged too."""
    n_real, n_fake, subset_size = terms["n_real"], terms["n_fake"], terms["kid_subset_size"]
    warnings = []
    if "fid" in names and min(n_real, n_fake) < extractor.width:
        warnings.append(
            f"FID of {n_real} real and {n_fake} generated images is biased upwards: fewer than the {extractor.width} "
            f"features of {extractor.name}; compare it only at equal counts, and trust KID more"
        )
    if "kid" in names and subset_size < KID_SUBSET_SIZE:
        warnings.append(f"KID uses subsets of {subset_size} images instead of {KID_SUBSET_SIZE}")
    if "kid" in names and _subsets_are_whole(terms):
        warnings.append("each of KID's subsets is the whole set, so their standard deviation is meaningless and left out")
    if config.protocol != "counts" and n_real < config.counts[0]:
        warnings.append(f"protocol {config.protocol} asks for {config.counts[0]} real images, the data has {n_real}")
    for warning in warnings:
        tell_once(logging.WARNING, f"metrics: {warning}")
    if config.extractor == "auto" and extractor.name != INCEPTION:  # choose_extractor has logged it
        warnings.append(f"there are no Inception weights on this machine; {extractor.name} takes their place")
    return warnings


class RealSubset(Dataset):
    """The first n images of a seeded permutation of `real`, or all in their order, as uint8."""

    def __init__(self, real: Dataset, n: int, seed: int):
        self.real, self.seed = real, seed
        permutation = torch.randperm(len(real), generator=torch.Generator().manual_seed(seed)).tolist()
        self.indices = permutation[:n] if n < len(real) else range(n)
        self.resolution = real[0]["image"].shape[-1]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Tensor:
        return as_uint8(self.real[self.indices[i]]["image"])

    def cache_name(self, extractor: Extractor) -> str:
        """A name by all that the images' features depend on; torch-fidelity adds the extractor's name."""
        sources = repr((self.real.fingerprint, self.seed, extractor.sha256, extractor.resize))
        return f"real-{len(self)}-{self.resolution}px-{hashlib.sha256(sources.encode()).hexdigest()[:16]}"


def remove_damaged(cache_dir: Path, cache_name: str) -> None:
    """Remove cached features and statistics that cannot be read, so that torch-fidelity computes them again."""
    for file in cache_dir.glob(f"{cache_name}-*.pt"):
        try:
            with torch.serialization.safe_globals(NUMPY_ARRAYS):
                torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can make torch.load raise nearly anything
            if is_machine_fault(error):
                raise
            log.warning("%s: damaged (%s); removed, to be computed again from the images", file, first_line(error))
            file.unlink()


class NotFinite(GrafError):
    """Generated images have nan or infinite pixels."""


NO_RESULT = (OSError, DataError, NotFinite)  # errors of files and images: a run goes on without the measurement


class FakeStream(torch_fidelity.GenerativeModelBase):
    """Generated images in the form of a torch-fidelity model, whose noise only gives the size of the next batch.

    Raises NotFinite, because nan rounded to 8 bits would become an ordinary grey.
    """

    z_size = 1
    z_type = "normal"
    num_classes = 0

    def __init__(self, batches: Iterable[Tensor], resolution: int):
        super().__init__()
        self.images = chain.from_iterable(batches)
        self.resolution = resolution

    def forward(self, noise: Tensor) -> Tensor:
        images = list(islice(self.images, len(noise)))
        assert len(images) == len(noise), "the stream of generated images ended early"
        images = torch.stack(images).to(noise.device)  # (B, 3, H, W)
        assert images.shape[1:] == (3, self.resolution, self.resolution), f"generated images are {tuple(images.shape)}"
        finite = images.isfinite().all(dim=(1, 2, 3))
        if not finite.all():
            raise NotFinite(
                f"metrics: {int((~finite).sum())} of {len(images)} generated images have pixels that are not finite; "
                "look at the training's losses, and measure an earlier checkpoint"
            )
        return as_uint8(images)


def new_folder(folder: Path) -> Path:
    """Make the folder, and return it. Raises GrafError where it exists and is not empty."""
    if is_taken(folder):
        raise GrafError(f"{folder}: not empty; samples would be mixed with what is there, name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def written(batches: Iterable[Tensor], folder: Path) -> Iterator[Tensor]:
    """Yield the batches (B, 3, H, W), and write each image to `folder` as 000000.png, 000001.png and so on."""
    numbers = count()
    for batch in batches:
        for image in as_uint8(batch):
            imageio.imwrite(folder / f"{next(numbers):06d}.png", image.movedim(0, -1).numpy())
        yield batch
