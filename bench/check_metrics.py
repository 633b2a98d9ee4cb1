"""Do FID and KID rank known damage to real images as they should? A table, and exit status 1 where they do not.

    python bench/check_metrics.py [--config C] [--n 500]

One half of the data set is compared with the other half as it is, blurred, noisy, or one image repeated.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from graf.config import MetricsConfig, load_config
from graf.data import Views, build_dataset
from graf.errors import GrafError
from graf.metrics.extractors import choose_extractor
from graf.metrics.measure import measure
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.device import keep_freed_memory

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Subset

ORDER = (  # each chain rises
    ("held out", "blur of 3", "blur of 5", "blur of 9"),
    ("held out", "noise of 0.05", "noise of 0.1", "noise of 0.2"),
    ("held out", "one repeated"),
)
FEWEST = 4  # images of each half
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
    values = distances(damages(held_out.images), reference, with_extractor(config.metrics))
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
    """The metrics that are not in the order that they should be."""
    wrong = []
    for metric in ("fid", "kid"):
        for chain in ORDER:
            for nearer, farther in zip(chain, chain[1:], strict=False):
                if values[nearer][metric] >= values[farther][metric]:
                    wrong.append(f"{metric}: {nearer} is not nearer than {farther}")
    if values["one repeated"]["fid"] < FAR * values["held out"]["fid"]:
        wrong.append(f"fid: one repeated is less than {FAR} times as far as held out")
    return wrong


def halves(dataset: Views, n: int) -> tuple["Part", "Part"]:
    """Reference images, and as many others: n of each, or half of the data set if that is less.

    Raises GrafError for halves of under 4.
    """
    if n < FEWEST:
        raise GrafError(f"--n {n}: at least {FEWEST} images of each half are needed")
    if len(dataset) < 2 * FEWEST:
        raise GrafError(f"{len(dataset)} images: two halves of at least {FEWEST} are needed")
    n = min(n, len(dataset) // 2)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
    return Part(dataset, order[:n]), Part(dataset, order[n : 2 * n])


def with_extractor(config: MetricsConfig) -> MetricsConfig:
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


class Part(Subset):
    """Some of a data set's images, in an order of their own."""

    @property
    def fingerprint(self) -> str:
        return f"{self.dataset.fingerprint} {self.indices}"

    @functools.cached_property
    def images(self) -> Tensor:
        """All of them (N, 3, H, W), in [-1, 1]."""
        return torch.stack([self[i]["image"] for i in range(len(self))])


if __name__ == "__main__":
    run_script(main)
