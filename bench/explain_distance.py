"""Which faults of generated images make up their distance to photographs: python bench/explain_distance.py results/default

Distances of photographs to other photographs, to photographs that were given one fault, to generated images, and to those
relieved of one. "Spread" is the variance of the features, as a share of other photographs': generated images well below 1 lack
variety; those near 1 and far away look wrong. A second table shows one property at a time, of either kind.
"""

from pathlib import Path

import graf
from check_metrics import Part, distances, halves, with_extractor
from graf.camera import Labels
from graf.config import MetricsConfig
from graf.data import Views, build_dataset, colours_only, sample_labels
from graf.metrics.extractors import choose_extractor, extractor_network, features
from graf.models.generator import Generator, Rendering
from graf.pictures.outputs import as_uint8
from graf.pictures.sampling import fresh_renderings, labels_as_in_data
from graf.rays import full_grid
from graf.runtime.command_line import Parser, positive, whole_number
from graf.runtime.console import log, progress, run_script
from graf.runtime.device import choose_device, keep_freed_memory
from one_property import SOLID, Looks, Pictures, generated_looks, photographed_looks, properties, recoloured

import torch
from torch import Tensor
from torch.nn import functional as F

HAZE = 0.2  # of images in [-1, 1]: how far from the background a pixel may be and count as it
OTHERS = "other photographs"
COLOURS = "colours: photographs with those of generated objects"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint file, or a run's folder")
    parser.add_argument("--n", type=positive, default=500, help="images of each kind, at most")
    parser.add_argument("--seed", type=whole_number, default=0, help="seed of the generated images")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    args = parser.parse_args()
    keep_freed_memory()
    generator = graf.load_generator(args.checkpoint, device=choose_device(args.device))
    dataset = build_dataset(colours_only(generator.config))
    reference, others = halves(dataset, args.n)
    metrics = with_extractor(generator.config.metrics)
    drawn = draw(generator, dataset, len(others), args.seed)
    sets = {OTHERS: others.images} | stages(generator, dataset, others, drawn[0], args.seed)
    cuda = generator.background.device.type == "cuda"
    values = distances(sets.items(), reference, metrics, cuda)
    spreads = spread(sets, metrics, generator.background.device)
    log.info("| %d images of each kind | KID x 1000 | FID | spread |\n| --- | --- | --- | --- |", len(reference))
    for name, found in values.items():
        kid, fid = round(1000 * found["kid"]), round(found["fid"])  # whole numbers: KID of equals is as often below 0
        log.info("| %s | %d | %d | %.2f |", name, kid, fid, spreads[name] / spreads[OTHERS])
    looks = (generated_looks(*drawn, generator.config), *(photographed_looks(part, generator) for part in (others, reference)))
    log.info("| one property, at the field's resolution | generated | %s |\n| --- | --- | --- |", OTHERS)
    for name, (ours, theirs, wanted) in one_at_a_time(*looks).items():
        found = distances({"generated": ours, OTHERS: theirs}.items(), Pictures(wanted), metrics, cuda)
        log.info("| %s | %d | %d |", name, *(round(1000 * values["kid"]) for values in found.values()))


def one_at_a_time(generated: Looks, others: Looks, reference: Looks) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Pictures (N, 3, h, h) in [-1, 1] by property: of generated objects, of other photographs, of those to compare with."""
    of_each = [properties(looks) for looks in (generated, others, reference)]
    found = {name: tuple(pictures[name] for pictures in of_each) for name in of_each[-1]}
    if reference.opacity is not None and (generated.opacity >= SOLID).any():
        found[COLOURS] = recoloured(others, generated), others.images, reference.images
    return found


def stages(generator: Generator, dataset: Views, others: Part, rendering: Rendering, seed: int) -> dict[str, Tensor]:
    """Named sets, each of as many images (N, 3, H, W) in [-1, 1] as there are other photographs: these with a fault, generated
    ones, and those without a fault."""
    photographs, background = others.images, generator.background.cpu()
    images, width = rendering.images, rendering.images.shape[-1]
    found = {
        "photographs, near-background cleared": without_haze(photographs, background),
        "generated": images,
        "generated, near-background cleared": without_haze(images, background),
    }
    if rendering.low_images is not None:
        low_photographs = generator.refinement.projection.downsample(photographs)
        found["photographs at the field's resolution"] = enlarged(low_photographs, width)
        found["the same, restored by CCSR"] = restored(generator, dataset, others, seed)
        found["generated, before refinement"] = enlarged(rendering.low_images, width)
    return found


def draw(generator: Generator, dataset: Views, n: int, seed: int) -> tuple[Rendering, Tensor]:
    """n renderings at cameras and classes sampled from the data's, and these cameras (n, 3, 4): those that eval.py --metrics
    measures, with the same seed."""
    config, sampler, poses = generator.config, labels_as_in_data(dataset, generator.config.data), []

    def noted(count: int, rng: torch.Generator) -> Labels:
        labels = sampler(count, rng)
        poses.append(labels.pose_c2w)
        return labels

    batches = fresh_renderings(generator, noted, n, config.metrics.batch_size, seed)
    rendering = Rendering.cat(list(progress(batches, total=-(-n // config.metrics.batch_size), desc="rendering", unit="batch")))
    return rendering, torch.cat(poses)


@torch.inference_mode()
def restored(generator: Generator, dataset: Views, others: Part, seed: int) -> Tensor:
    """The photographs (N, 3, H, W) in [-1, 1], downsampled and restored with their own classes and cameras, sampled where
    the data is unposed, and with sampled latents."""
    data, device, rng = generator.config.data, generator.background.device, torch.Generator().manual_seed(seed)
    index = torch.tensor(others.indices)
    labels = dataset.labels_at(index)
    if not dataset.posed:
        labels = labels.with_cameras(sample_labels(dataset, len(others), data, rng))
    latents, grid, images = generator.sample_latents(len(others), rng), full_grid(data.imsize, device), others.images
    rows = torch.arange(len(others)).split(generator.config.metrics.batch_size)
    parts = [(images[i].to(device), latents[i].to(device), labels[i].to(device), grid) for i in rows]
    return torch.cat([generator.restore(*part).cpu() for part in parts])


def enlarged(images: Tensor, width: int) -> Tensor:
    return F.interpolate(images, width, mode="bicubic")


def without_haze(images: Tensor, background: Tensor) -> Tensor:
    """Images (N, 3, H, W) in [-1, 1] whose pixels near the background (3,), in [0, 1], are the background."""
    backdrop = (2 * background - 1)[:, None, None]
    near = ((images - backdrop).abs() <= HAZE).all(dim=1, keepdim=True)
    return torch.where(near, backdrop, images)


def spread(sets: dict[str, Tensor], config: MetricsConfig, device: torch.device | str = "cpu") -> dict[str, float]:
    """The total variance of the extractor's features of each set (N, 3, H, W) in [-1, 1]."""
    network = extractor_network(choose_extractor(config), device)

    def variance(images: Tensor) -> float:
        batches = as_uint8(images).split(config.batch_size)
        return torch.cat([features(network, batch) for batch in batches]).var(dim=0).sum().item()

    return {name: variance(images) for name, images in progress(sets.items(), desc="spread", unit="set")}


if __name__ == "__main__":
    run_script(main)
