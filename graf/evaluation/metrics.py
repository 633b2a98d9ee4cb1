"""FID and KID through torch-fidelity, with their protocol written beside them.

A distance without its extractor, its sample counts and its resampling means nothing, so `measure` returns them together, and
the extractor's name is part of every value's key. Images are rounded to 8 bits first, as a folder of PNGs would be: the
numbers are those of `torch_fidelity.calculate_metrics` on such folders.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from graf.config import Config, MetricsConfig
from graf.data import Views
from graf.errors import GrafError
from graf.evaluation.extractors import INCEPTION, Extractor, choose_extractor, tell_once
from graf.evaluation.image_streams import FakeStream, NotFinite, RealSubset, new_folder, remove_damaged, written
from graf.evaluation.sampling import fresh_samples, labels_of
from graf.models.generator import Generator, weights_hash
from graf.runtime.guard import is_out_of_memory, retry_smaller
from graf.runtime.processes import ALONE, Processes

import torch
import torch_fidelity
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

SEED = 2020  # torch-fidelity's default; draws the real images and KID's subsets, the same ones in every run
KID_SUBSETS = 100
KID_SUBSET_SIZE = 1000
COMPARABLE = (
    *("extractor", "weights_sha256", "resize", "resolution", "n_real", "n_fake", "real_fingerprint"),
    *("kid_subsets", "kid_subset_size", "seed"),
)
SAMPLES = ("sample_seed", "truncation", "generator_sha256", "rendering_sha256")  # what the generated images depend on
FEWEST_IMAGES = {"fid": 2, "kid": 2, "prc": 4}  # prc looks at the third neighbour
KEYS = {
    torch_fidelity.KEY_METRIC_FID: "fid",
    torch_fidelity.KEY_METRIC_KID_MEAN: "kid",
    torch_fidelity.KEY_METRIC_KID_STD: "kid_std",
    torch_fidelity.KEY_METRIC_PRECISION: "precision",
    torch_fidelity.KEY_METRIC_RECALL: "recall",
    torch_fidelity.KEY_METRIC_F_SCORE: "f_score",
}


def measure_generator(
    generator: Generator,
    dataset: Views,
    names: Sequence[str],
    seed: int,
    cache_dir: Path,
    dump: Path | None = None,
    bar: tqdm | None = None,
    processes: Processes = ALONE,
    truncation: float = 1.0,
    options: MetricsConfig | None = None,
) -> dict:
    """`measure` of a generator, by its config's metrics section or `options`, at cameras and classes drawn from the data's own.

    The same seed gives the same samples; truncation scales their latents, as in `sample_objects`. With `dump`, a new folder,
    the generated images are written there as PNGs and the real ones that they are compared with into its folder `real`. The
    result also says what was measured.

    Of the processes of a run all render, and the first measures; the others return {}. The numbers are those of one process.
    Raises GrafError as `measure` does.
    """
    config, options = generator.config, options or generator.config.metrics
    n_fake, draw_labels = options.counts[1], labels_of(dataset, config.data)
    dump_folder = new_folder(dump) if dump is not None else None
    batch_size = options.batch_size
    faults: list[OSError | NotFinite] = []  # such as of the cache: raised when all processes are through

    def work() -> dict:
        faults.clear()
        if bar is not None:
            bar.reset()
        samples = fresh_samples(generator, draw_labels, n_fake, batch_size, seed, bar, processes.map, truncation)
        with contextlib.closing(samples):
            if not processes.first:
                return dict.fromkeys(samples)  # none: the first process is given them all
            fakes = samples if dump_folder is None else written(samples, dump_folder)
            cuda = generator.background.device.type == "cuda"
            try:
                return measure(fakes, dataset, dataclasses.replace(options, batch_size=batch_size), cache_dir, cuda, names)
            except Exception as error:
                if not processes.alone:  # the others wait for the first one's samples, before they can hear that all is over
                    next(samples, None)
                if not isinstance(error, OSError | NotFinite) or is_out_of_memory(error):
                    raise
                faults.append(error)
                return {}

    def shrink() -> bool:
        nonlocal batch_size
        batch_size //= 2
        return batch_size > 0

    result = retry_smaller(work, shrink, "metrics", agree=processes.any)
    if not processes.first:
        return {}
    if faults:
        raise faults[0]
    if dump is not None:
        subset = RealSubset(dataset, result["n_real"], SEED)
        for _ in written((subset.real[i]["image"][None] for i in subset.indices), new_folder(dump / "real")):
            pass
    return result | {
        "sample_seed": seed,
        "truncation": truncation,
        "generator_sha256": weights_hash(generator),
        "rendering_sha256": rendering_sha256(config),
    }


def rendering_sha256(config: Config) -> str:
    """A digest of the settings that the images of given weights depend on."""
    return hashlib.sha256(repr((config.data, config.nerf, config.ccsr)).encode()).hexdigest()


def measure(
    fakes: Iterable[Tensor],
    real: Dataset,
    config: MetricsConfig,
    cache_dir: Path,
    cuda: bool = False,
    names: Sequence[str] = ("fid", "kid"),
) -> dict:
    """The distance between generated and real images, with its protocol, ready for JSON.

    fakes yields batches (B, 3, H, W) in [-1, 1] of any size; config.counts says how many images are taken of them,
    config.batch_size at a time. real[i]["image"] is (3, H, W) in [-1, 1], not augmented; `real.fingerprint` changes when its
    images do, and names their features in cache_dir. names are of fid, kid and prc (improved precision and recall).
    The extractor runs on the current CUDA device where `cuda` is set. Global random states are left as they were.
    Returns {"values": {"fid_<extractor>": ...}, "warnings": [...], ...}. Raises GrafError where Inception's weights are
    missing or the images too few, NotFinite where generated images are not finite.
    """
    extractor = choose_extractor(config)
    wanted, n_fake = config.counts
    n_real = min(wanted or len(real), len(real))
    fewest = max(FEWEST_IMAGES[name] for name in names)
    if min(n_real, n_fake) < fewest:
        raise GrafError(
            f"metrics: {', '.join(names)} need at least {fewest} images of each kind, found {n_real} real and {n_fake} "
            "generated; raise metrics.n_real and metrics.n_fake, or add photographs"
        )
    subset = RealSubset(real, n_real, SEED)
    subset_size = min(KID_SUBSET_SIZE, n_real, n_fake)
    warnings = _warnings(names, extractor, n_real, n_fake, subset_size)
    if config.protocol != "counts" and n_real < wanted:
        warnings.append(f"protocol {config.protocol} asks for {wanted} real images, the data has {n_real}")
    untold = "kid_std" if subset_size == n_real == n_fake else None  # of subsets that are one and the same
    for warning in warnings:
        tell_once(logging.WARNING, f"metrics: {warning}")
    if config.extractor == "auto" and extractor.name != INCEPTION:  # which choosing it has said in the log
        warnings.append(f"there are no Inception weights on this machine; {extractor.name} takes their place")
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
            fid="fid" in names,
            kid="kid" in names,
            prc="prc" in names,
            kid_subsets=KID_SUBSETS,
            kid_subset_size=subset_size,
            rng_seed=SEED,
            feature_extractor=extractor.name,
            feature_extractor_weights_path=str(extractor.weights),
            batch_size=config.batch_size,
            cuda=cuda,
            save_cpu_ram=True,  # no loader processes
            verbose=False,
        )
    return {
        "values": {f"{key}_{extractor.name}": float(raw[name]) for name, key in KEYS.items() if name in raw and key != untold},
        "protocol": config.protocol,
        "extractor": extractor.name,
        "weights_sha256": extractor.sha256,
        "resize": extractor.resize,
        "resolution": subset.resolution,
        "n_real": n_real,
        "n_fake": n_fake,
        "real_fingerprint": real.fingerprint,
        "kid_subsets": KID_SUBSETS,
        "kid_subset_size": subset_size,
        "seed": SEED,
        "versions": {"torch": torch.__version__, "torch-fidelity": torch_fidelity.__version__},
        "warnings": warnings,
    }


def comparable(result: dict) -> dict:
    """What two results of `measure` must share for their values to be compared."""
    return {name: result[name] for name in COMPARABLE}


def same_protocol(earlier: dict, result: dict) -> bool:
    """Whether the values of two results of `measure_generator` may stand beside each other."""
    return all(earlier.get(name) == result.get(name) for name in (*COMPARABLE, *SAMPLES))


def merged(earlier: dict, result: dict) -> dict:
    """A result of `measure_generator` with the values that an earlier one under the same protocol has besides."""
    if "values" not in earlier or not same_protocol(earlier, result):
        return result
    return result | {
        "values": earlier["values"] | result["values"],
        "warnings": list(dict.fromkeys([*earlier["warnings"], *result["warnings"]])),
    }


def series_name(key: str, result: dict) -> str:
    """The name under which the value `key` of a result is plotted, the same for comparable results only."""
    digest = hashlib.sha256(json.dumps(comparable(result), sort_keys=True).encode()).hexdigest()[:6]
    return f"{key}/{result['n_fake']}_of_{result['n_real']}_at_{result['resolution']}px_{digest}"


def summary(result: dict) -> str:
    """One line for people: "FID (efficientnet-lite0) 12.34, KID (efficientnet-lite0) 0.0567; 1000 generated, ..."."""
    values = ", ".join(f"{title(key)} {value:.4g}" for key, value in result["values"].items())
    return f"{values}; {result['n_fake']} generated and {result['n_real']} real images at {result['resolution']} px"


def title(key: str) -> str:
    """The key of a value as people read it: "kid_std_efficientnet-lite0" is "KID std (efficientnet-lite0)"."""
    name, _, extractor = key.rpartition("_")
    name = name.replace("fid", "FID").replace("kid", "KID").replace("_", " ")
    return f"{name} ({extractor})"


def _warnings(names: Sequence[str], extractor: Extractor, n_real: int, n_fake: int, subset_size: int) -> list[str]:
    warnings = []
    if "fid" in names and min(n_real, n_fake) < extractor.width:
        warnings.append(
            f"FID of {n_real} real and {n_fake} generated images is biased upwards: fewer than the {extractor.width} "
            f"features of {extractor.name}; compare it only at equal counts, and trust KID more"
        )
    if "kid" in names and subset_size < KID_SUBSET_SIZE:
        warnings.append(f"KID uses subsets of {subset_size} images in place of {KID_SUBSET_SIZE}")
    if "kid" in names and subset_size == n_real == n_fake:
        warnings.append(
            "each of KID's subsets is the whole set, so that their standard deviation, which would say nothing, is left out"
        )
    return warnings
