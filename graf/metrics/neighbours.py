"""Nearest training images of samples in an extractor's features: a test for memorisation.

Legend: M samples, N training images, D features, k neighbours.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from graf.data.views import Views
from graf.errors import GrafError
from graf.metrics.extractors import Extractor, choose_extractor, extractor_network, features
from graf.models.generator import Generator
from graf.pictures.captions import Captions
from graf.pictures.outputs import as_uint8, write_grid
from graf.pictures.sampling import fresh_samples, labels_as_in_data
from graf.runtime.console import progress
from graf.runtime.files import write_text

import torch
from torch import Tensor

AT_ONCE = 4096  # training images in one matrix of distances
TYPICAL_IMAGES = 1000  # at most, for the training set's own distances
SPARE = 8  # candidates per block beyond k, whose distances are computed exactly

log = logging.getLogger("graf")


@dataclass(frozen=True)
class Neighbours:
    """distance and index (M, k) of each sample's nearest training images, nearest first; typical_distance: the median distance
    of a training image to the nearest one of another object, where names tell objects apart, or else to the nearest other;
    share_nearer: the share of samples that are nearer to a training image than that.

    share_nearer is about 0.5 for new samples of the data's distribution, and about 1 for repeated training images; not where
    images may be views of one object (not `objects_differ`).
    """

    distance: Tensor
    index: Tensor
    typical_distance: float
    share_nearer: float
    objects_differ: bool


def neighbour_sheet(
    generator: Generator,
    dataset: Views,
    out: Path,
    n_samples: int = 64,
    k: int = 3,
    n_shown: int = 8,
    seed: int = 0,
    footer: str | None = None,
    truncation: float = 1.0,
) -> Neighbours:
    """Write out/neighbours.png: of n_samples fresh samples the n_shown nearest to a training image, one per row, each followed
    by its k nearest training images, with captions where there is a footer; and their files and distances to neighbours.json.

    truncation as in `sample_objects`. Raises GrafError where there are fewer than 2 training images, or where the extractor's
    weights are missing.
    """
    config, device = generator.config, generator.background.device
    batch_size = config.metrics.batch_size
    with progress(total=n_samples, desc="samples", unit="image") as bar:
        what = labels_as_in_data(dataset, config.data), n_samples, batch_size, seed, bar
        fakes = fresh_samples(generator, *what, truncation=truncation)
        samples = torch.cat([as_uint8(images) for images in fakes])
    extractor = choose_extractor(config.metrics)
    found = find_neighbours(samples.split(batch_size), dataset, extractor, k, batch_size, device)
    shown = found.distance[:, 0].argsort()[:n_shown].tolist()
    pictures = [picture for i in shown for picture in (samples[i], *images_at(dataset, found.index[i].tolist()))]
    k_found = found.index.shape[1]
    names = [f"real image {i + 1}" for i in range(k_found)]
    captions = Captions(footer, ["generated", *names], note="real images: the nearest of the training set first")
    write_grid(out / "neighbours.png", torch.stack(pictures), 1 + k_found, captions)
    summary = {
        "share_nearer": found.share_nearer,
        "typical_distance": found.typical_distance,
        "objects_differ": found.objects_differ,
        "n_samples": len(found.distance),
        "n_training_images": len(dataset),
        "extractor": extractor.name,
        "weights_sha256": extractor.sha256,
        "resize": extractor.resize,
        "seed": seed,
        "truncation": truncation,
        "shown": [
            {"distances": found.distance[i].tolist(), "files": [dataset.files[j] for j in found.index[i].tolist()]}
            for i in shown
        ],
    }
    write_text(out / "neighbours.json", json.dumps(summary, indent=1))
    distances = found.distance[:, 0]
    tells = found.objects_differ and truncation == 1
    log.info(
        "neighbours: samples are %.4g (nearest) and %.4g (median) from a training image by %s, training images%s %.4g (median) "
        "from one another; %.0f%% of %d samples are nearer than that%s",
        *(distances.min(), distances.median(), extractor.name, " of different objects" if found.objects_differ else ""),
        *(found.typical_distance, 100 * found.share_nearer, n_samples),
        ": about 50% for new samples of the same kind, nearly all for a memorised training set" if tells else "",
    )
    return found


def find_neighbours(
    samples: Iterable[Tensor], dataset: Views, extractor: Extractor, k: int, batch_size: int, device: torch.device | str = "cpu"
) -> Neighbours:
    """The k nearest images of the dataset, or all where it has fewer, to samples: batches of uint8 (B, 3, H, W).

    The extractor runs on `device`; features are kept on the CPU, 4 D bytes per training image. Raises GrafError where there are
    fewer than 2 training images.
    """
    n = len(dataset)
    if n < 2:
        raise GrafError(f"neighbours: the training images need others to be compared with, found {n}; add images")
    network = extractor_network(extractor, device)
    wanted = torch.cat([features(network, batch) for batch in samples])  # (M, D)
    known = torch.empty(n, extractor.width)  # (N, D)
    for some in progress(torch.arange(n).split(batch_size), desc="training images", unit="batch"):
        known[some] = features(network, torch.stack(images_at(dataset, some.tolist())))
    distance, index = nearest(wanted, known, min(k, n))
    some = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:TYPICAL_IMAGES]
    objects, differ = numbered_objects(dataset)
    typical = nearest(known[some], known, 1, apart=(objects[some], objects))[0].median()
    return Neighbours(distance, index, typical.item(), (distance[:, 0] < typical).double().mean().item(), differ)


def numbered_objects(dataset: Views) -> tuple[Tensor, bool]:
    """The number (N,) of each image's object, and whether images of other numbers show other objects. Photographs without
    cameras are taken to; of views whose names are no more than the classes it is not known, and each has its own."""
    names, each = dataset.objects, torch.arange(len(dataset))
    if not dataset.posed:
        return each, True
    if len(set(names)) <= len(dataset.class_names):
        return each, False
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([number_of[name] for name in names]), True


def nearest(queries: Tensor, known: Tensor, k: int, apart: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Euclidean distances and indices (M, k) of the k vectors in known (N, D) nearest to each of queries (M, D), nearest first.

    apart: numbers of the queries (M,) and of the known (N,), whose equals are no neighbours. Candidates are found by matrix
    products, which round; their distances are then computed from differences, so that equal vectors are at distance 0.
    """
    distances, indices = [], []
    for start in range(0, len(known), AT_ONCE):
        block = torch.cdist(queries, known[start : start + AT_ONCE])  # (M, AT_ONCE)
        if apart is not None:
            block[apart[0][:, None] == apart[1][start : start + AT_ONCE]] = torch.inf
        best = block.topk(min(k + SPARE, block.shape[1]), largest=False)
        distances.append(best.values)
        indices.append(best.indices + start)
    distance, index = torch.cat(distances, dim=1), torch.cat(indices, dim=1)  # (M, candidates)
    exact = torch.stack([(query - known[row]).norm(dim=-1) for query, row in zip(queries, index, strict=True)])
    distance, order = exact.masked_fill(distance.isinf(), torch.inf).sort(dim=1, stable=True)
    return distance[:, :k], index.gather(1, order)[:, :k]


def images_at(dataset: Views, indices: Iterable[int]) -> list[Tensor]:
    """Images (3, H, W) uint8 of the dataset."""
    return [as_uint8(dataset[i]["image"]) for i in indices]
