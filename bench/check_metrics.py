"""Do FID and KID rank known damage to real images as they should? A table, and exit status 1 where they do not.

    python bench/check_metrics.py [--config C] [--n 500]

One half of the data set is compared with the other half as it is, blurred, noisy, or one image repeated.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from graf.config import load_config
from graf.data import build_dataset
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import run_script
from graf.runtime.device import keep_freed_memory
from image_distances import distances, halves, settled

import torch
from torch import Tensor
from torch.nn import functional as F

log = logging.getLogger("graf")

ORDER = (  # each chain rises
    ("held out", "blur of 3", "blur of 5", "blur of 9"),
    ("held out", "noise of 0.05", "noise of 0.1", "noise of 0.2"),
    ("held out", "one repeated"),
)
FAR = 3  # times as far as the held-out half is one image repeated at least, by FID, which is never near 0 for few images


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as data.imsize=64")
    parser.add_argument("--n", type=positive, default=500, help="images of each half, at most")
    args = parser.parse_args()
    keep_freed_memory()
    config = load_config(args.config, args.set)
    reference, held_out = halves(build_dataset(config), args.n)
    values = distances(damages(held_out), reference, settled(config.metrics))
    log.info("| %s images against %s others | FID | KID x 1000 |\n| --- | --- | --- |", *[len(reference)] * 2)
    for name, found in values.items():
        log.info("| %s | %.1f | %.1f |", name, found["fid"], 1000 * found["kid"])
    wrong = misranked(values)
    for problem in wrong:
        log.warning("%s", problem)
    return 1 if wrong else 0


def damages(images: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The images (N, 3, H, W) in [-1, 1] and what is made of them, one at a time and named; noise is of images in [0, 1]."""
    yield "held out", images
    for k in (3, 5, 9):
        yield f"blur of {k}", F.avg_pool2d(F.pad(images, (k // 2,) * 4, mode="replicate"), k, 1)
    for std in (0.05, 0.1, 0.2):
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
        yield f"noise of {std}", (images + 2 * std * noise).clamp(-1, 1)
    yield "one repeated", images[:1].expand_as(images)


def misranked(values: dict[str, dict[str, float]]) -> list[str]:
    """What is not in the order that it should be."""
    wrong = []
    for metric in ("fid", "kid"):
        for chain in ORDER:
            for nearer, farther in zip(chain, chain[1:], strict=False):
                if values[nearer][metric] >= values[farther][metric]:
                    wrong.append(f"{metric}: {nearer} is not nearer than {farther}")
    if values["one repeated"]["fid"] < FAR * values["held out"]["fid"]:
        wrong.append(f"fid: one repeated is less than {FAR} times as far as held out")
    return wrong


if __name__ == "__main__":
    run_script(main)
