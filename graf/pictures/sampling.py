"""Rendering a trained generator: fixed objects from chosen cameras, or fresh samples. Results go to the CPU at once."""

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
VIEWS_AT_ONCE = 8  # between two updates of the progress bar
DRAWN_AT_ONCE = 256  # latents and cameras of fresh samples


def sample_objects(generator: Generator, n: int, seed: int, truncation: float = 1.0) -> Objects:
    """Latents (n, Z) and classes (n,) of n objects, the same for the same seed; classes take turns.

    truncation scales the latents towards their mean, which is 0: less variety, more typical objects (Brock et al. 2019).
    """
    latents = truncation * generator.sample_latents(n, torch.Generator().manual_seed(seed))
    n_classes = 1 if generator.class_embedding is None else generator.class_embedding.num_embeddings
    return latents, torch.arange(n) % n_classes


def render_views(
    generator: Generator, objects: Objects, poses: Tensor, resolution: int | None = None, bar: tqdm | None = None
) -> Rendering:
    """Each of N objects (latents, classes) from each of V cameras (V, 3, 4), object by object: N * V images on the CPU."""
    return render_each(_renderers(generator, objects, fast=False), poses, resolution, bar)


def fast_renderers(generator: Generator, objects: Objects, n_views: int, resolution: int | None = None) -> list[ObjectRenderer]:
    """Renderers of the objects for sheets and videos, fast where n_views of each object are enough to gain from it.

    What is measured comes from `render_views`, which is exact.
    """
    return _renderers(generator, objects, fast=pays(generator, n_views, resolution))


def render_each(
    renderers: list[ObjectRenderer], poses: Tensor, resolution: int | None = None, bar: tqdm | None = None
) -> Rendering:
    """The renderers' objects from each of V cameras (V, 3, 4), as `render_views`."""
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
    label_sampler: Callable[[int, torch.Generator], Labels],
    n: int,
    batch_size: int,
    seed: int,
    bar: tqdm | None = None,
    share: Callable = map,
    truncation: float = 1.0,
) -> Iterator[Tensor]:
    """Batches of images (B, 3, H, W) in [-1, 1], n in all, of new latents and the labels that label_sampler(B, rng) gives.

    The seed alone says which, not the batches' size; truncation scales the latents, as in `sample_objects`. `share` is the
    built-in map, or that of a run's processes, which then render a share of the batches each.
    """

    def render(drawn: tuple[Tensor, Labels]) -> Tensor:
        images = _render_in_pieces(generator, *drawn).images
        if bar is not None:
            bar.update(len(images))
        return images

    yield from share(render, _draw_in_batches(generator, label_sampler, n, batch_size, seed, truncation))


def labels_of(dataset: Views, data: DataConfig) -> Callable[[int, torch.Generator], Labels]:
    """What draws labels for fresh samples from the data's own distribution, as `sample_labels` does."""
    return lambda n, rng: sample_labels(dataset, n, data, rng)


def labels_in_range(dataset: Views, data: DataConfig) -> Callable[[int, torch.Generator], Labels]:
    """The same with classes of the data's and cameras of the config's range, drawn independently of each other."""

    def draw(n: int, rng: torch.Generator) -> Labels:
        return dataclasses.replace(sample_labels(dataset, n, data, rng), pose_c2w=sample_poses(n, data, rng))

    return draw


def fresh_renderings(
    generator: Generator,
    label_sampler: Callable[[int, torch.Generator], Labels],
    n: int,
    batch_size: int,
    seed: int,
    truncation: float = 1.0,
) -> Iterator[Rendering]:
    """What fresh_samples takes its images from, whole: batches of renderings on the CPU."""
    for drawn in _draw_in_batches(generator, label_sampler, n, batch_size, seed, truncation):
        yield _render_in_pieces(generator, *drawn)


def _draw_in_batches(
    generator: Generator,
    label_sampler: Callable[[int, torch.Generator], Labels],
    n: int,
    batch_size: int,
    seed: int,
    truncation: float,
) -> Iterator[tuple[Tensor, Labels]]:
    rng = torch.Generator().manual_seed(seed)
    for start in range(0, n, DRAWN_AT_ONCE):
        count = min(DRAWN_AT_ONCE, n - start)
        labels, latents = label_sampler(count, rng), truncation * generator.sample_latents(count, rng)
        for first in range(0, count, batch_size):
            some = slice(first, first + batch_size)
            yield latents[some], labels[some]


def _render_in_pieces(generator: Generator, latents: Tensor, labels: Labels) -> Rendering:
    """Renderings of a batch, fewer of them at a time where memory does not suffice."""

    def render(at_once: int) -> Rendering:
        parts = zip(latents.split(at_once), labels.pose_c2w.split(at_once), labels.class_index.split(at_once), strict=True)
        return Rendering.cat([generator.render(some, poses, class_index=classes) for some, poses, classes in parts])

    return retry_halved(render, len(latents), "rendering")
