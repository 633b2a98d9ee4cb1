"""How much is rendered at a time: some rays of a few images, by threads of a CPU, and half as many where memory runs out.

None of it changes a rendering. The models call these functions and know nothing of memory, threads and retries.
"""

from collections.abc import Callable
from typing import TypeVar

from graf.config import NerfConfig
from graf.runtime.retry import retry_halved
from graf.runtime.threads import map_in_threads, threads_for

import torch

SMALLEST_CHUNK = 100  # rays that are worth computing at a time
SAMPLES_AT_ONCE = 16384  # on the rays of a piece: only a piece's maps and gradients are in flight between layers
SHARE_OF_FRAME = 0.5  # of a training step's piece, rendered at a time on a CPU where nothing is kept for a backward pass
T = TypeVar("T")


def rays_of_a_piece(nerf: NerfConfig, rays: int, device_type: str) -> int:
    """How many of a batch's `rays` training renders at a time where all activations are kept: all on a GPU, which each piece
    would only give more operations to launch; on a CPU as many as its cache holds."""
    return rays if is_asynchronous(device_type) else min(rays, _rays_in_cache(nerf))


def is_asynchronous(device_type: str) -> bool:
    """Whether the device computes while the host goes on: in training nothing is read from it, and no shape depends on values,
    for then the host would wait."""
    return device_type != "cpu"


def _rays_in_cache(nerf: NerfConfig) -> int:
    return max(1, SAMPLES_AT_ONCE // (nerf.samples_per_ray + nerf.importance_samples_per_ray))


def render_images(
    render: Callable[[slice, int], T],
    n_images: int,
    rays_per_image: int,
    nerf: NerfConfig,
    device: torch.device,
    evaluated_share: float = 1.0,
) -> list[T]:
    """render(images, chunk) for slices of n_images, of at most `chunk` rays of them at a time; threads of a CPU take some each.

    chunk is nerf.chunk; on a CPU at most what its cache holds, by the share of a ray's samples that the field evaluates. Out of
    memory it is halved; raises OutOfMemory where a hundred rays are too many.
    """

    def render_all(chunk: int) -> list[T]:
        at_once = max(1, chunk // rays_per_image)
        images = [slice(start, start + at_once) for start in range(0, n_images, at_once)]
        n_threads = threads_for(len(images)) if device.type == "cpu" else 1
        in_a_thread = torch.inference_mode()(lambda some: render(some, chunk))  # each thread has a mode of its own
        return list(map_in_threads(in_a_thread, images, n_threads))

    chunk = nerf.chunk
    if device.type == "cpu":  # larger tensors leave the cache, and the allocator keeps no pages for them
        chunk = min(chunk, max(SMALLEST_CHUNK, int(SHARE_OF_FRAME * _rays_in_cache(nerf) / evaluated_share)))
    return retry_halved(render_all, chunk, "rendering", SMALLEST_CHUNK)
