"""Counts of a training step on a pretended GPU, for bench/benchmark.py step."""

import dataclasses
from collections.abc import Iterator

from graf.camera import Labels, sample_poses
from graf.config import Config
from graf.data.resolve import with_alpha
from graf.memory.planner import estimate_step
from graf.memory.sizes import starting_sizes, with_sizes
from graf.runtime.limits import GB
from graf.training.state import TrainState
from graf.training.step import train_step
from pretended_gpu import GPU, PretendedGpu, pretended_gpu

import torch

BOX = (-0.95, -0.5, -0.45, 0.95, 0.5, 0.45)  # of the toy cars, where a config leaves it to the data

ADDS_IN_NO_ORDER = {  # on CUDA, by PyTorch's documentation of torch.use_deterministic_algorithms
    *("convolution_backward", "cumsum", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "index_add", "index_put"),
    *("scatter_add", "scatter_reduce", "put_", "upsample_bilinear2d_backward", "upsample_bicubic2d_backward", "histc"),
    *("replication_pad2d_backward", "reflection_pad2d_backward", "adaptive_avg_pool2d_backward", "avg_pool3d_backward"),
    *("_adaptive_avg_pool2d_backward", "max_pool2d_with_indices_backward", "kthvalue", "median"),
}
LAUNCH_S = 5e-6  # of one operation, by the host: what PyTorch's authors and users report
GPUS = {  # memory in bytes and bandwidth in bytes per second, by the maker's data sheets, and whether it multiplies bfloat16
    "H100 (80 GB)": (80 * GB, 3.35e12, True),
    "RTX 4090 (24 GB)": (24 * GB, 1.01e12, True),
    "RTX 3060 (12 GB)": (12 * GB, 0.36e12, True),
    "GTX 1650 (4 GB)": (4 * GB, 0.128e12, False),
}
USABLE = 0.9  # of a GPU's memory


@dataclasses.dataclass
class AnyViews:
    """A data set, as far as a training step asks it."""

    labels: Labels
    posed = True

    def labels_at(self, rows: torch.Tensor) -> Labels:
        return self.labels[rows]

    def __len__(self) -> int:
        return len(self.labels)


def counted_step(config: Config) -> PretendedGpu:
    """The work of a GPU in a step of whole images with a gradient penalty; the first of two also makes what is kept."""
    for gpu in steps_on_pretended_gpu(with_data(config), 2):
        last = gpu
    return last


def adds_in_no_order(gpu: PretendedGpu) -> list[str]:
    """Names of the operations that were launched which add in no fixed order on CUDA."""
    return sorted({name.removesuffix("_") for name in gpu.launches} & ADDS_IN_NO_ORDER)


def steps_on_pretended_gpu(config: Config, n_steps: int, device: torch.device = GPU) -> Iterator[PretendedGpu]:
    """Take n_steps steps of whole images with a gradient penalty; yields after each what it asked of the GPU."""
    with pretended_gpu(device) as gpu:
        state, batch, width = TrainState(config, device), config.training.batch_size, config.data.imsize
        images = torch.rand(batch, config.data.channels, width, width) * 2 - 1
        views = AnyViews(Labels.of_poses(sample_poses(batch, config.data, state.rng)))
        for _ in range(n_steps):
            state.skip_to_whole_step()
            gpu.reset()
            train_step(state, views, images.pin_memory(), views.labels)
            state.advance()
            yield gpu


def with_data(config: Config) -> Config:
    """The config as the toy cars would end its `auto`s."""
    config = with_alpha(config, None, otherwise="rgba")
    data = config.data
    return config if data.box != "auto" else dataclasses.replace(config, data=dataclasses.replace(data, box=BOX))


def estimated_rows(config: Config) -> Iterator[dict]:
    """A row per GPU: the images at a time that the planner finds room for, the estimate of the step's memory, and what a step
    launches and touches, counted for one image at a time and for two, on which it depends linearly.

    images_per_second is a bound and no measurement: the batch, over the longer of touching all bytes once from memory and
    launching all operations.
    """
    counts = {}
    for name, (memory, bandwidth, has_bfloat16) in GPUS.items():
        training = dataclasses.replace(config.training, use_amp=has_bfloat16, fused_field="none")
        config = with_data(dataclasses.replace(config, training=training))
        if has_bfloat16 not in counts:
            counts[has_bfloat16] = [_counts(config, n) for n in (1, 2)]
        (one_ops, one_bytes), (_, two_bytes) = counts[has_bfloat16]
        batch, per_image = config.training.batch_size, two_bytes - one_bytes
        sizes = starting_sizes(config, "cuda", int(USABLE * memory))
        estimate = estimate_step(with_sizes(config, sizes), "cuda").total_bytes
        n_parts = len(sizes.parts(batch))
        operations, touched = n_parts * one_ops, n_parts * (one_bytes - per_image) + batch * per_image
        seconds = max(operations * LAUNCH_S, touched / bandwidth)
        fits = estimate <= memory
        yield {
            "batch": batch,
            "GPU": name,
            "images_at_a_time": f"{sizes.images}" + (f", {sizes.rays} rays" if sizes.rays else "") if fits else "none",
            "estimate_gb": estimate / GB,
            "operations": operations,
            "touched_gb": touched / GB,
            "images_per_second": batch / seconds if fits else 0.0,
        }


def _counts(config: Config, n_images: int) -> tuple[int, int]:
    """Launched operations, and bytes that they read and write, of a step on so many images."""
    training = dataclasses.replace(config.training, batch_size=n_images, micro_batch="auto", accumulation_steps=1)
    gpu = counted_step(dataclasses.replace(config, training=training))
    return gpu.launches.total(), gpu.bytes
