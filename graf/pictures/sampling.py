"""Renderings of a trained generator on the CPU: fixed objects from chosen cameras, or fresh samples."""

import dataclasses
from collections.abc import Callable, Iterator

from graf.camera import Labels, sample_poses
from graf.config import DataConfig
from graf.data import Views, sample_labels
from graf.models.generator import Generator, Rendering
from graf.models.occupancy import ObjectRenderer, pays
from graf.runtime.retry import retry_halved

import torch
from torch import Tensor
from tqdm import tqdm

Objects = tuple[Tensor, Tensor]  # latents (N, Z) and classes (N,)
LabelSampler = Callable[[int, torch.Generator], Labels]
VIEWS_AT_ONCE = 8  # between two updates of the progress bar
DRAWN_ALIKE = 16  # rows, of which PyTorch draws multiples alike: the last few numbers of a tensor it draws in another way
SAMPLED_AT_ONCE = 256  # latents and cameras of fresh samples


def sample_objects(generator: Generator, n: int, seed: int, truncation: float = 1.0) -> Objects:
    """Latents (n, Z) and classes (n,) of n objects, those of a seed the same however many there are; classes alternate.

    truncation scales the latents towards their mean 0: less variety, more typical objects (Brock et al. 2019).
    """
    drawn = generator.sample_latents(-(-n // DRAWN_ALIKE) * DRAWN_ALIKE, torch.Generator().manual_seed(seed))
    return truncation * drawn[:n], torch.arange(n) % generator.n_classes


def render_views(
    generator: Generator, objects: Objects, poses: Tensor, resolution: int | None = None, bar: tqdm | None = None
) -> Rendering:
    """Render each of N objects from each of V cameras (V, 3, 4), exactly: N * V images on the CPU, object by object."""
    return render_each(_renderers(generator, objects, fast=False), poses, resolution, bar)


def fast_renderers(generator: Generator, objects: Objects, n_views: int, resolution: int | None = None) -> list[ObjectRenderer]:
    """Renderers of the objects for image grids and videos, fast where n_views per object are enough to gain from it.

    Metrics use `render_views`, which is exact.
    """
    return _renderers(generator, objects, fast=pays(generator, n_views, resolution))


def render_each(
    renderers: list[ObjectRenderer], poses: Tensor, resolution: int | None = None, bar: tqdm | None = None
) -> Rendering:
    """Render the renderers' objects from each of V cameras (V, 3, 4), as `render_views` does."""
    views = []
    for renderer in renderers:
        for some in poses.split(VIEWS_AT_ONCE):
            views.append(renderer.render(some, resolution))
            if bar is not None:
                bar.update(len(some))
    return Rendering.cat(views)


def _renderers(generator: Generator, objects: Objects, fast: bool) -> list[ObjectRenderer]:
    latents, classes = objects
    return [ObjectRenderer(generator, *one, fast) for one in zip(latents.split(1), classes.split(1), strict=True)]


def fresh_samples(
    generator: Generator,
    label_sampler: LabelSampler,
    n: int,
    batch_size: int,
    seed: int,
    bar: tqdm | None = None,
    share: Callable = map,
    truncation: float = 1.0,
) -> Iterator[Tensor]:
    """Batches of images (B, 3, H, W) in [-1, 1], n in all, of new latents and of labels from label_sampler(B, rng).

    They depend on the seed, not on the batch size; truncation scales the latents, as in `sample_objects`. `share` is the
    built-in map, or that of a run's processes, each of which then renders a share of the batches.
    """

    def render(batch: tuple[Tensor, Labels]) -> Tensor:
        images = _render_in_pieces(generator, *batch).images
        if bar is not None:
            bar.update(len(images))
        return images

    yield from share(render, _sampled_batches(generator, label_sampler, n, batch_size, seed, truncation))


def labels_as_in_data(dataset: Views, data: DataConfig) -> LabelSampler:
    """A sampler of labels from the data's own distribution, by `sample_labels`."""
    return lambda n, rng: sample_labels(dataset, n, data, rng)


def recorded(sampler: LabelSampler) -> tuple[LabelSampler, list[Labels]]:
    """The sampler, and a list to which it adds the labels that it samples, one entry per call."""
    sampled: list[Labels] = []

    def sample(n: int, rng: torch.Generator) -> Labels:
        sampled.append(sampler(n, rng))
        return sampled[-1]

    return sample, sampled


def labels_in_range(dataset: Views, data: DataConfig) -> LabelSampler:
    """A sampler of labels with the data's classes and, independently, cameras of the config's range."""
    return lambda n, rng: dataclasses.replace(sample_labels(dataset, n, data, rng), pose_c2w=sample_poses(n, data, rng))


def fresh_renderings(
    generator: Generator, label_sampler: LabelSampler, n: int, batch_size: int, seed: int, truncation: float = 1.0
) -> Iterator[Rendering]:
    """The renderings on the CPU from which `fresh_samples` takes its images, in batches."""
    for batch in _sampled_batches(generator, label_sampler, n, batch_size, seed, truncation):
        yield _render_in_pieces(generator, *batch)


def _sampled_batches(
    generator: Generator, label_sampler: LabelSampler, n: int, batch_size: int, seed: int, truncation: float
) -> Iterator[tuple[Tensor, Labels]]:
    """Latents and labels, n in all, in batches."""
    rng = torch.Generator().manual_seed(seed)
    for start in range(0, n, SAMPLED_AT_ONCE):
        count = min(SAMPLED_AT_ONCE, n - start)
        labels, latents = label_sampler(count, rng), truncation * generator.sample_latents(count, rng)
        for first in range(0, count, batch_size):
            some = slice(first, first + batch_size)
            yield latents[some], labels[some]


def _render_in_pieces(generator: Generator, latents: Tensor, labels: Labels) -> Rendering:
    """Render a batch, in smaller pieces where memory runs out."""

    def render(at_once: int) -> Rendering:
        parts = zip(latents.split(at_once), labels.pose_c2w.split(at_once), labels.class_index.split(at_once), strict=True)
        return Rendering.cat([generator.render(some, poses, class_index=classes) for some, poses, classes in parts])

    return retry_halved(render, len(latents), "rendering")
