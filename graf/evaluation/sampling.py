"""Rendering a trained generator: fixed objects from chosen cameras, or fresh samples. Results go to the CPU at once."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from tqdm import tqdm

from graf.camera import Labels
from graf.models.generator import Generator, Rendering

VIEWS_AT_ONCE = 8  # between two updates of the progress bar


def sample_objects(generator: Generator, n: int, seed: int, truncation: float = 1.0) -> tuple[Tensor, Tensor]:
    """Latents (n, Z) and classes (n,) of n objects, the same for the same seed; classes take turns.

    truncation scales the latents towards their mean, which is 0: less variety, more typical objects (Brock et al. 2019).
    """
    latents = truncation * generator.sample_latents(n, torch.Generator().manual_seed(seed))
    n_classes = 1 if generator.class_embedding is None else generator.class_embedding.num_embeddings
    return latents, torch.arange(n) % n_classes


def render_views(
    generator: Generator, objects: tuple[Tensor, Tensor], poses: Tensor, resolution: int | None = None, bar: tqdm | None = None
) -> Rendering:
    """Each of N objects (latents, classes) from each of V cameras (V, 3, 4), object by object: N * V images on the CPU."""
    views = []
    for latent, class_index in zip(*objects, strict=True):
        for some in poses.split(VIEWS_AT_ONCE):
            n = len(some)
            views.append(generator.render(latent.expand(n, -1), some, resolution, class_index.expand(n)))
            if bar is not None:
                bar.update(n)
    return Rendering.cat(views)


def fresh_samples(
    generator: Generator,
    draw_labels: Callable[[int, torch.Generator], Labels],
    n: int,
    batch_size: int,
    seed: int,
    bar: tqdm | None = None,
) -> Iterator[Tensor]:
    """Batches of images (B, 3, H, W) in [-1, 1], n in all, of new latents and the labels that draw_labels(B, rng) gives."""
    rng = torch.Generator().manual_seed(seed)
    for start in range(0, n, batch_size):
        count = min(batch_size, n - start)
        labels = draw_labels(count, rng)
        yield generator.render(generator.sample_latents(count, rng), labels.pose_c2w, class_index=labels.class_index).images
        if bar is not None:
            bar.update(count)
