"""Does `eval.py --metrics memorised` find a generator that copies, and only such? A table, and exit status 1 if not.

    python bench/check_memorised.py [--config C] [--n 32] [--draws 40]

Samples are toy cars that are in no data set (each p-value below the threshold is a false alarm), training images with slight
noise, which have to be found in each draw, and both half and half. Held-out images are other new cars, made anew for each draw.
"""

from pathlib import Path
from statistics import median

from graf.config import Config, load_config
from graf.data import Views, build_dataset
from graf.data.toy_cars import unseen_toy_cars
from graf.errors import GrafError
from graf.metrics.extractors import choose_extractor, extractor_network
from graf.metrics.memorised import ALARM, FEWEST_OBJECTS, Seen, described, p_values, seen_in
from graf.pictures.outputs import as_uint8
from graf.rng import seeded_rng
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.device import keep_freed_memory

import torch
from torch import nn

NOISE = 0.01  # standard deviation, of images in [0, 1]
MOST_ALARMS = 0.05  # share of the draws
NEW, COPIED, HALF = "new cars", "training images with noise", "half of them"


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as data.n_images=500")
    parser.add_argument("--n", type=positive, default=32, help="samples and held-out images in each draw")
    parser.add_argument("--draws", type=positive, default=40, help="draws of new cars")
    args = parser.parse_args()
    keep_freed_memory()
    config = load_config(args.config, args.set)
    found = drawn_p_values(config, args.n, args.draws)
    log.info("| samples | draws | p below %g | median p |\n| --- | --- | --- | --- |", ALARM)
    for name, values in found.items():
        log.info("| %s | %d | %d | %.2g |", name, len(values), sum(p < ALARM for p in values), median(values))
    wrong = mistaken(found)
    for problem in wrong:
        log.warning("%s", problem)
    return 1 if wrong else 0


def drawn_p_values(config: Config, n: int, draws: int) -> dict[str, list[float]]:
    """The p-values of each kind of samples, one per draw. Raises GrafError for photographs and for too few images."""
    if config.data.type != "toy_cars":
        raise GrafError("data.type: new objects are made of toy cars alone")
    if not FEWEST_OBJECTS <= n <= config.data.n_images:
        raise GrafError(f"--n {n}: from {FEWEST_OBJECTS} to data.n_images, {config.data.n_images}")
    dataset, network = build_dataset(config), extractor_network(choose_extractor(config.metrics))
    known = seen_in(dataset, range(len(dataset)), network, config)
    found = {NEW: [], COPIED: [], HALF: []}
    for draw in range(draws):
        cars = seen_in(unseen_toy_cars(config.data, 2 * n, draw), range(2 * n), network, config)
        new, heldout = part(cars, slice(n)), part(cars, slice(n, None))
        copied = copies(dataset, n, draw, network, config)
        half = Seen(*(torch.cat([a[: n // 2], b[n // 2 :]]) for a, b in zip(copied, new, strict=True)))
        for name, samples in ((NEW, new), (COPIED, copied), (HALF, half)):
            found[name].append(p_values(samples, heldout, known)["p_value"])
    return found


def part(seen: Seen, rows: slice) -> Seen:
    return Seen(seen.features[rows], seen.masks[rows])


def copies(dataset: Views, n: int, draw: int, network: nn.Module, config: Config) -> Seen:
    """Features and silhouettes of n training images with noise."""
    rng = seeded_rng(draw)
    index = torch.randperm(len(dataset), generator=rng)[:n].tolist()
    images = torch.stack([dataset[i]["image"] for i in index])
    noisy = (images + 2 * NOISE * torch.randn(images.shape, generator=rng)).clamp(-1, 1)
    return described([(as_uint8(noisy), torch.stack([dataset.opacity(i, config.data) for i in index]))], network, config)


def mistaken(found: dict[str, list[float]]) -> list[str]:
    """The false alarms, and the copies that are not found."""
    shares = {name: sum(p < ALARM for p in values) / len(values) for name, values in found.items()}
    wrong = [f"{COPIED}: not found in {1 - shares[COPIED]:.0%} of the draws"] if shares[COPIED] < 1 else []
    if shares[NEW] >= MOST_ALARMS:
        wrong.append(f"{NEW}: false alarms in {shares[NEW]:.1%} of the draws, not under {MOST_ALARMS:.0%}")
    return wrong


if __name__ == "__main__":
    run_script(main)
