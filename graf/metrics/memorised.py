"""Whether samples repeat training images: the three-sample test for data-copying of Meehan, Chaudhuri & Dasgupta (2020).

Samples of a generator that copies are nearer to the training images than images of other objects are. Held-out images show
such objects. The distances of both to their nearest training images are compared by rank.

Legend: M samples, H held-out images, N training images, D features, P pixels of a mask, C cells.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from graf.camera import Labels
from graf.config import Config
from graf.data import Views, build_dataset, colours_only, sample_labels
from graf.data.toy_cars import unseen_toy_cars
from graf.errors import GrafError
from graf.metrics.extractors import choose_extractor, extractor_network, features
from graf.metrics.neighbours import AT_ONCE, images_at, nearest
from graf.metrics.shapes import MOST_RAYS, OPAQUE, Subject, silhouette_distances
from graf.pictures.outputs import as_uint8
from graf.pictures.sampling import LabelSampler, fresh_renderings
from graf.rays import mirrored_images
from graf.rng import seeded_rng
from graf.runtime.console import progress

import torch
from scipy.cluster.vq import kmeans2
from scipy.stats import mannwhitneyu, norm
from torch import Tensor, nn
from torch.nn import functional as F

ALARM = 0.01  # a lower p-value says that samples are nearer to training images than other objects are
MEMORISED_CAVEAT = (
    f"Samples repeat training images, or show the most typical objects alone, where p is below {ALARM:g}: they are nearer to "
    "training images than other objects are. A higher p-value does not show that none are repeated."
)
FEWEST_OBJECTS, MOST_HELD_OUT = 3, 256
MOST_CELLS, HELD_OUT_PER_CELL = 8, 32  # cells at most, and held-out images that each has on average at least
FEWEST_IN_CELL = 5  # samples and held-out images; smaller cells are taken together
NEEDED = (
    "keep the photographs of some objects ({fewest} or more) out of data.datadir before training, and name their folder with "
    "--heldout DIR. Against training images alone, repeating them would look best"
)

log = logging.getLogger("graf")


class Seen(NamedTuple):
    """Features (K, D) of K images, and their silhouettes (K, P) bool; None where these are not known."""

    features: Tensor
    masks: Tensor | None


class HeldOut(NamedTuple):
    """Images that were not trained on: those `chosen` of views, one per object; objects_are: what tells the objects."""

    views: Views
    chosen: list[int]
    objects_are: str


def memorisation(subject: Subject, heldout: HeldOut) -> dict:
    """p-values of the samples' distances to training images, were they distributed as held-out images' are; ready for JSON.

    The samples have the held-out images' cameras, and classes as frequent as the training data's. p_value is that
    of features and silhouettes together (Bonferroni); share_nearer is the probability that a sample is nearer than a held-out
    image, 0.5 for new objects of the data's distribution. Raises GrafError where training images are held out.
    """
    config, n, batch_size = subject.config, subject.n, subject.config.metrics.batch_size
    extractor = choose_extractor(config.metrics)
    network = extractor_network(extractor, subject.generator.background.device)
    known = trained_on(subject.dataset, network, config)
    others = seen_in(heldout.views, heldout.chosen, network, config)
    require_unseen(heldout, others, known)
    sampler = labels_of_both(subject.dataset, heldout.views, config)
    renderings = fresh_renderings(subject.generator, sampler, n, batch_size, subject.seed, subject.truncation)
    samples = described(((as_uint8(r.images), r.opacity[:, 0]) for r in renderings), network, config)
    result = p_values(samples, others, known)
    if result["p_value"] < ALARM:
        log.warning(
            "memorised: samples are nearer to training images than images of other objects are (p = %.2g): they repeat them, "
            "or show the most typical objects alone%s; --neighbours shows the nearest ones side by side",
            *(result["p_value"], "" if subject.truncation == 1 else ", as with --truncation"),
        )
    return result | {
        "held_out_images": len(heldout.chosen),
        "held_out_are": heldout.objects_are,
        "held_out_fingerprint": heldout.views.fingerprint,
        "training_images": len(subject.dataset),
        "extractor": extractor.name,
        "weights_sha256": extractor.sha256,
        **subject.terms,
    }


def hold_out(config: Config, folder: str | None, seed: int) -> HeldOut:
    """Toy cars that are in no data set, or the photographs of a folder, read as the config's own are.

    Raises GrafError where photographs have no folder or show too few objects, and DataError where they cannot be read.
    """
    if config.data.type == "toy_cars":
        if folder:
            raise GrafError(f"--heldout {folder}: toy cars need none, as new cars are made; leave it out")
        return held_out_of(unseen_toy_cars(config.data, MOST_HELD_OUT, seed), seed)
    if not folder:
        raise GrafError(f"--metrics memorised: needs photographs to compare with; {NEEDED.format(fewest=FEWEST_OBJECTS)}")
    own = dataclasses.replace(config.data, datadir=(folder,), hflip=False, mirror="none")
    single = dataclasses.replace(config.training, batch_size=1)  # as few as there are will do
    return held_out_of(build_dataset(colours_only(dataclasses.replace(config, data=own, training=single))), seed)


def held_out_of(views: Views, seed: int) -> HeldOut:
    """One image of each object, chosen at random. Raises GrafError for too few objects."""
    names, objects_are = objects_of(views)
    return HeldOut(views, one_per_object(names, seed)[:MOST_HELD_OUT], objects_are)


def objects_of(views: Views) -> tuple[list[str], str]:
    """The object of each held-out image, and in words what tells it. Raises GrafError where they are too few."""
    n_objects = len(set(views.objects))
    if n_objects < FEWEST_OBJECTS and not views.posed:  # the names of single photographs are like those of views
        if len(views) >= FEWEST_OBJECTS:
            log.warning(
                "memorised: each of the %d held-out photographs is taken to show another object, as their names do not tell "
                "objects; if several show the same one, name them <object>_<view>, or p-values are too small",
                len(views),
            )
            return views.files, "photographs, each taken to show another object"
        n_objects = len(views)
    if n_objects < FEWEST_OBJECTS:
        needed = NEEDED.format(fewest=FEWEST_OBJECTS)
        raise GrafError(f"--heldout: {len(views)} images of {n_objects} objects are too few; {needed}")
    return views.objects, "one image per object"


def one_per_object(objects: list[str], seed: int) -> list[int]:
    """The index of one image per object, in random order: several views of one object are not independent."""
    chosen: dict[str, int] = {}
    for i in torch.randperm(len(objects), generator=seeded_rng(seed)).tolist():
        chosen.setdefault(objects[i], i)
    return list(chosen.values())


def require_unseen(heldout: HeldOut, others: Seen, known: Seen) -> None:
    """Raises GrafError where held-out images are training images."""
    copies = (nearest_features(others.features, known.features) == 0).nonzero()[:, 0].tolist()
    if copies:
        raise GrafError(
            f"--heldout: {len(copies)} of {len(heldout.chosen)} images are training images, such as "
            f"{heldout.views.files[heldout.chosen[copies[0]]]}; name a folder of objects that were not trained on"
        )


def labels_of_both(dataset: Views, heldout: Views, config: Config) -> LabelSampler:
    """A sampler of labels with the held-out images' cameras and, independently, the training data's classes."""

    def sample(n: int, rng: torch.Generator) -> Labels:
        cameras = sample_labels(heldout, n, config.data, rng)
        return dataclasses.replace(sample_labels(dataset, n, config.data, rng), pose_c2w=cameras.pose_c2w)

    return sample


def trained_on(dataset: Views, network: nn.Module, config: Config) -> Seen:
    """Features and silhouettes of all training images, and of their mirror images where training mirrors."""
    known = seen_in(dataset, range(len(dataset)), network, config)
    if not (config.data.hflip or config.discriminator.hflip or config.data.mirror != "none"):
        return known
    mirrored = seen_in(dataset, range(len(dataset)), network, config, mirrored=True)
    return Seen(*(None if a is None else torch.cat([a, b]) for a, b in zip(known, mirrored, strict=True)))


def seen_in(views: Views, indices: Sequence[int], network: nn.Module, config: Config, mirrored: bool = False) -> Seen:
    """Features and silhouettes of some images of a data set, or of their mirror images."""
    batches = progress(torch.tensor(indices).split(config.metrics.batch_size), desc="real images", unit="batch")

    def shown(images: list[Tensor]) -> Tensor:
        return mirrored_images(torch.stack(images)) if mirrored else torch.stack(images)

    def seen(some: list[int]) -> tuple[Tensor, Tensor | None]:
        alphas = [views.opacity(i, config.data) for i in some]
        known = all(alpha is not None for alpha in alphas)
        return shown(images_at(views, some)), shown(alphas) if known else None

    return described((seen(some.tolist()) for some in batches), network, config)


def described(batches: Iterable[tuple[Tensor, Tensor | None]], network: nn.Module, config: Config) -> Seen:
    """Features and silhouettes of batches of images (B, 3, H, W) uint8 with their opacity (B, H, W), None where that is not
    known; a silhouette has a pixel per ray of the field."""
    side = min(MOST_RAYS, config.data.imsize // config.rendered_scale)
    found, masks = [], []
    for images, opacity in batches:
        found.append(features(network, images))
        masks.append(None if opacity is None else (F.adaptive_avg_pool2d(opacity, side) > OPAQUE).flatten(1))
    return Seen(torch.cat(found), None if any(mask is None for mask in masks) else torch.cat(masks))


def p_values(samples: Seen, heldout: Seen, known: Seen) -> dict:
    """The p-values of samples and held-out images in features and, where all are known, in silhouettes."""
    kinds = samples, heldout, known
    found = {"features": compared([kind.features for kind in kinds], nearest_features)}
    if all(kind.masks is not None for kind in kinds):
        found["silhouettes"] = compared([kind.masks for kind in kinds], nearest_silhouette)
    p_value = min(1.0, len(found) * min(p for p, _ in found.values()))
    p_each = {f"p_{name}": p for name, (p, _) in found.items()}
    return {"p_value": p_value} | p_each | {f"share_nearer_{name}": share for name, (_, share) in found.items()}


def compared(kinds: Sequence[Tensor], distance: Callable[[Tensor, Tensor], Tensor]) -> tuple[float, float]:
    """p-value and share_nearer of samples (M, D), held-out images (H, D) and training images (N, D) by a distance."""
    samples, heldout, known = kinds
    cells = cells_of(samples.float(), heldout.float(), known.float())
    distances = distance(samples, known), distance(heldout, known)
    return float(norm.cdf(copying_z(*distances, *cells))), share_nearer(*distances)


def cells_of(samples: Tensor, heldout: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each sample (M,) and held-out image (H,), by the nearest of k means of the training images (N, D)."""
    n_cells = max(1, min(MOST_CELLS, len(heldout) // HELD_OUT_PER_CELL, len(known)))
    means = torch.from_numpy(kmeans2(known.numpy(), n_cells, minit="++", seed=0)[0])
    of_samples, of_heldout = (torch.cdist(some, means).argmin(1) for some in (samples, heldout))
    counts = torch.stack([cells.bincount(minlength=n_cells) for cells in (of_samples, of_heldout)])
    merged = torch.where((counts < FEWEST_IN_CELL).any(0), n_cells, torch.arange(n_cells))  # (C,)
    return merged[of_samples], merged[of_heldout]


def nearest_features(queries: Tensor, known: Tensor) -> Tensor:
    """Euclidean distance (M,) of features (M, D) to the nearest of known (N, D)."""
    return nearest(queries, known, 1)[0][:, 0]


def nearest_silhouette(queries: Tensor, known: Tensor) -> Tensor:
    """1 - IoU (M,) of each mask (M, P) with the most similar one of known (N, P)."""
    return torch.stack([silhouette_distances(queries, some).min(1).values for some in known.split(AT_ONCE)]).min(0).values


def copying_z(samples: Tensor, heldout: Tensor, sample_cells: Tensor, heldout_cells: Tensor) -> float:
    """Z of distances (M,) and (H,) to the training images: standard normal where both have the same distribution, far below 0
    where samples are nearer (Meehan et al. 2020).

    A cell's weight is its share of the held-out images; the weighted mean is divided by its standard deviation. 0 where no cell
    holds both.
    """
    total = square = 0.0
    for cell in heldout_cells.unique():
        ours, theirs = samples[sample_cells == cell], heldout[heldout_cells == cell]
        if len(ours):
            weight = len(theirs)
            total += weight * z_of_ranks(ours, theirs)
            square += weight**2
    return total / square**0.5 if square else 0.0


def z_of_ranks(samples: Tensor, heldout: Tensor) -> float:
    """The standardised Mann-Whitney statistic of samples (M,) against held-out images (H,)."""
    m, h = len(samples), len(heldout)
    u = mannwhitneyu(samples.numpy(), heldout.numpy(), method="asymptotic").statistic
    return float((u - m * h / 2) / (m * h * (m + h + 1) / 12) ** 0.5)


def share_nearer(samples: Tensor, heldout: Tensor) -> float:
    """The share of pairs of a sample (M,) and a held-out image (H,) in which the sample's distance is less; ties count half."""
    u = mannwhitneyu(samples.numpy(), heldout.numpy(), method="asymptotic").statistic
    return float(1 - u / (len(samples) * len(heldout)))
