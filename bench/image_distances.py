"""Distances of named sets of images from one half of a data set, for bench/check_metrics.py and bench/explain_distance.py."""

import dataclasses
import tempfile
from collections.abc import Iterable
from pathlib import Path

from graf.config import MetricsConfig
from graf.data import Views
from graf.errors import GrafError
from graf.evaluation.extractors import choose_extractor
from graf.evaluation.metrics import measure

import torch
from torch import Tensor
from torch.utils.data import Dataset

FEWEST = 4  # images of each half


def halves(dataset: Views, n: int) -> tuple["Part", Tensor]:
    """Reference images, and as many others (n, 3, H, W): n of each, or half of the data set if that is less.

    Raises GrafError for halves of under 4.
    """
    if n < FEWEST:
        raise GrafError(f"--n {n}: at least {FEWEST} images of each half are needed")
    if len(dataset) < 2 * FEWEST:
        raise GrafError(f"{len(dataset)} images: two halves of at least {FEWEST} are needed")
    n = min(n, len(dataset) // 2)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    held_out = Part(dataset, order[n : 2 * n])
    return Part(dataset, order[:n]), torch.stack([held_out[i]["image"] for i in range(n)])


def settled(config: MetricsConfig) -> MetricsConfig:
    """The config with `auto` replaced by what it chooses, so that a note about missing Inception weights is logged once."""
    return dataclasses.replace(config, extractor=choose_extractor(config).name)


def distances(
    sets: Iterable[tuple[str, Tensor]], reference: "Part", config: MetricsConfig, cuda: bool = False
) -> dict[str, dict[str, float]]:
    """{name: {"fid": ..., "kid": ...}} of named images (N, 3, H, W) in [-1, 1] from the reference's; the extractor runs on the
    current CUDA device where `cuda` is set."""
    values = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, images in sets:
            counts = dataclasses.replace(config, protocol="counts", n_real=len(reference), n_fake=len(images))
            found = measure(images.split(config.batch_size), reference, counts, Path(cache), cuda)
            values[name] = {key: found["values"][f"{key}_{found['extractor']}"] for key in ("fid", "kid")}
    return values


class Part(Dataset):
    """Some of a data set's images, in an order of their own."""

    def __init__(self, dataset: Views, indices: list[int]):
        self.dataset, self.indices = dataset, indices
        self.fingerprint = f"{dataset.fingerprint} {indices}"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return self.dataset[self.indices[i]]
