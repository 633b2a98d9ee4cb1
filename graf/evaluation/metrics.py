"""FID and KID through torch-fidelity, with their protocol written beside them.

A distance without its extractor, its sample counts and its resampling means nothing, so `measure` returns them together, and
the extractor's name is part of every value's key. Images are rounded to 8 bits first, as a folder of PNGs would be: the
numbers are those of `torch_fidelity.calculate_metrics` on such folders.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path

import torch
import torch_fidelity
from torch import Tensor
from torch.utils.data import Dataset

from graf.config import MetricsConfig
from graf.errors import GrafError
from graf.evaluation.extractors import Extractor, choose_extractor
from graf.evaluation.outputs import as_uint8

log = logging.getLogger("graf")

SEED = 2020  # torch-fidelity's default; draws the real images and KID's subsets, the same ones in every run
KID_SUBSETS = 100
KID_SUBSET_SIZE = 1000
FEWEST_IMAGES = {"fid": 2, "kid": 2, "prc": 4}  # prc looks at the third neighbour
KEYS = {
    torch_fidelity.KEY_METRIC_FID: "fid",
    torch_fidelity.KEY_METRIC_KID_MEAN: "kid",
    torch_fidelity.KEY_METRIC_KID_STD: "kid_std",
    torch_fidelity.KEY_METRIC_PRECISION: "precision",
    torch_fidelity.KEY_METRIC_RECALL: "recall",
    torch_fidelity.KEY_METRIC_F_SCORE: "f_score",
}


def measure(
    fakes: Iterable[Tensor],
    real: Dataset,
    config: MetricsConfig,
    cache_dir: Path,
    cuda: bool = False,
    names: Sequence[str] = ("fid", "kid"),
) -> dict:
    """The distance between generated and real images, with its protocol, ready for JSON.

    fakes yields batches (B, 3, H, W) in [-1, 1] of any size; the first config.n_fake images are taken, config.batch_size at a
    time. real[i]["image"] is (3, H, W) in [-1, 1], not augmented; `real.fingerprint` changes when its images do, and names
    their features in cache_dir. names are of fid, kid and prc (improved precision and recall).
    The extractor runs on the current CUDA device where `cuda` is set. Global random states are left as they were.
    Returns {"values": {"fid_<extractor>": ...}, "warnings": [...], ...}. Raises GrafError where Inception's weights are
    missing or the images too few.
    """
    extractor = choose_extractor(config)
    n_real, n_fake = min(config.n_real or len(real), len(real)), config.n_fake
    fewest = max(FEWEST_IMAGES[name] for name in names)
    if min(n_real, n_fake) < fewest:
        raise GrafError(
            f"metrics: {', '.join(names)} need at least {fewest} images of each kind, found {n_real} real and {n_fake} "
            "generated; raise metrics.n_real and metrics.n_fake, or add photographs"
        )
    subset = _RealSubset(real, n_real)
    subset_size = min(KID_SUBSET_SIZE, n_real, n_fake)
    warnings = _warnings(names, extractor, n_real, n_fake, subset_size)
    for warning in warnings:
        log.warning("metrics: %s", warning)

    # torch-fidelity initialises networks and starts loaders with the global generators
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []):
        raw = torch_fidelity.calculate_metrics(
            input1=_FakeStream(fakes, subset.resolution),
            input1_model_num_samples=n_fake,
            input2=subset,
            input2_cache_name=subset.cache_name(extractor),
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
        "values": {f"{key}_{extractor.name}": float(raw[name]) for name, key in KEYS.items() if name in raw},
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
        warnings.append("each of KID's subsets is the whole set, so that their standard deviation says nothing")
    return warnings


class _RealSubset(Dataset):
    """The first n images of a seeded permutation of `real`, or all in their order, as torch-fidelity takes them: uint8."""

    def __init__(self, real: Dataset, n: int):
        self.real = real
        permutation = torch.randperm(len(real), generator=torch.Generator().manual_seed(SEED)).tolist()
        self.indices = permutation[:n] if n < len(real) else range(n)
        self.resolution = real[0]["image"].shape[-1]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Tensor:
        return as_uint8(self.real[self.indices[i]]["image"])

    def cache_name(self, extractor: Extractor) -> str:
        """All that the features of these images depend on; torch-fidelity adds the extractor's name."""
        sources = repr((self.real.fingerprint, SEED, extractor.sha256, extractor.resize))
        return f"real-{len(self)}-{self.resolution}px-{hashlib.sha256(sources.encode()).hexdigest()[:16]}"


class _FakeStream(torch_fidelity.GenerativeModelBase):
    """Batches of generated images as the model that torch-fidelity draws from: its noise only says how many come next."""

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
        return as_uint8(images)
