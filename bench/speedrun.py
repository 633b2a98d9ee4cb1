"""How much a recipe learns within a budget: trained on the default's toy cars with hidden seeds, and measured against new cars.

    python bench/speedrun.py                                  # 15 minutes of training on two cores, three seeds
    python bench/speedrun.py --config mine.yaml --set training.batch_size=16 --json mine.json
    python bench/speedrun.py --operations 3.74e13             # the same work on any CPU

The seeds, of training and of the new cars, come from the system's entropy and are written into the JSON afterwards. Only
training counts; a few steps before it tell how many fit, so that a schedule is run to its end. Operations are the additions
and multiplications of products and convolutions.
"""

import argparse
import bisect
import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

from graf.commands.jobs import checked
from graf.config import Config, load_config
from graf.data import Views, build_dataset, resolve
from graf.data.toy_cars import cars_fingerprint, unseen_toy_cars
from graf.errors import GrafError
from graf.metrics.extractors import EFFICIENTNET_2
from graf.metrics.measure import MeasureSettings, measure_generator
from graf.metrics.shapes import Subject, silhouette_variety, surface_coverage
from graf.models.generator import Generator
from graf.runtime.command_line import Parser, positive, whole_number
from graf.runtime.console import log, progress, run_script
from graf.runtime.device import keep_freed_memory
from graf.runtime.files import check_writable, write_text
from graf.runtime.limits import available_cores
from graf.version import __version__
from measure_training import SCALES, Table, new_run, print_row, timed_step
from speed_rows import Work, instructions

import torch

DEFAULT_SECONDS = 900
amount = checked(float, lambda value: 0 < value < math.inf, "a number above 0,")
WARM_UP_STEPS, TIMED_STEPS, COUNTED_STEPS = 3, 10, 2  # of each kind of step, before the runs
COLUMNS = {  # of a row: its heading and format
    "seed": ("seed", "{}"),
    "steps": ("steps", "{}"),
    "seconds": ("minutes", "{:.1f}"),
    "operations": ("10^12 operations", "{:.0f}"),
    "kid": ("KID x 1000", "{:.0f}"),
    "kid_lite2": ("by efficientnet-lite2", "{:.0f}"),
    "variety": ("variety", "{:.2f}"),
    "coverage": ("coverage", "{:.2f}"),
    "mmd": ("MMD x 1000", "{:.2f}"),
}
SCALES |= {"seconds": 1 / 60, "operations": 1e-12, "kid_lite2": 1000, "mmd": 1000}
TABLE = Table("KID by %s, against cars that were never trained on; variety as a share of the data's", COLUMNS)


@dataclass(frozen=True)
class Costs:
    """Seconds and operations per step of each kind, and the number of steps before the first of its kind: those that only
    reconstruct, those that see half the pixels, and the others. The costs of steps that are not refined come last."""

    starts: tuple[int, ...]
    seconds: tuple[float, ...]
    operations: tuple[float, ...]

    def total(self, per_step: tuple[float, ...], steps: int, unrefined: int = 0) -> float:
        """The cost of a run of so many steps, the last of which are not refined."""
        last = min(unrefined, steps)
        ends = (*self.starts[1:], math.inf)
        of_kinds = (max(0, min(steps - last, end) - start) for start, end in zip(self.starts, ends, strict=True))
        return last * per_step[-1] + sum(n * cost for n, cost in zip(of_kinds, per_step, strict=False))

    def steps_within(self, budget: float, per_step: tuple[float, ...], unrefined: Callable[[int], int] = lambda _: 0) -> int:
        """The most steps that a budget, in the unit of per_step, pays; unrefined: how many of a run's steps are not refined."""
        at_most = range(1 + int(budget / min(per_step)))
        return bisect.bisect_right(at_most, budget, key=lambda steps: self.total(per_step, steps, unrefined(steps))) - 1


def main() -> None:
    args = arguments()
    if args.json.exists() and args.json.stat().st_size:
        raise GrafError(f"{args.json}: exists already; name another file with --json")
    check_writable(args.json)
    keep_freed_memory()
    settings = [*args.set, f"training.use_amp={str(not args.no_amp).lower()}"]
    config, device = load_config(args.config, settings), torch.device("cpu")  # on which operations are counted
    if config.data.type != "toy_cars":
        raise GrafError("data.type: new objects to compare with are made of toy cars alone")
    if not is_default_data(config):
        log.warning("these are not the default's toy cars: nothing that is measured can be compared with its records")
    cores = limit_cores(args.cores)
    dataset = build_dataset(config)
    config = resolve(config, dataset)
    costs = measured_costs(config, dataset, device)
    config = within_budget(config, costs, args)
    record = {
        "config": str(args.config or "configs/default.yaml"),
        "set": args.set,
        "budget": {name: getattr(args, name) for name in ("seconds", "operations", "steps", "cores")},
        "machine": f"{instructions(device)}, {cores} cores",
        "default_data": is_default_data(config),
        "versions": {"graf": __version__, "torch": torch.__version__},
        "costs": asdict(costs),
        "runs": [],
    }
    for seed in args.seeds or [secrets.randbelow(2**32) for _ in range(args.runs)]:
        record["runs"].append(run(config, dataset, seed, costs, device))
        print_row(record["runs"][-1], TABLE, first=len(record["runs"]) == 1)
        write_text(args.json, json.dumps(record, indent=1))
    log.info("%s", mean_row(record["runs"]))


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as nerf.multires=6")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--seconds", type=amount, help=f"of training in each run, by default {DEFAULT_SECONDS}")
    budget.add_argument("--operations", type=amount, help="operations of training in each run, instead of seconds")
    budget.add_argument("--steps", type=positive, help="steps of each run, instead of seconds")
    parser.add_argument("--cores", type=positive, default=2, help="most cores of the CPU; 2 by default")
    parser.add_argument("--runs", type=positive, default=3, help="each with a seed of its own; 3 by default")
    parser.add_argument("--seeds", type=whole_number, nargs="+", help="known ones instead, to repeat a record")
    parser.add_argument("--no_amp", action="store_true", help="float32 instead of mixed precision")
    parser.add_argument(
        "--json", type=Path, default=Path("speedrun.json"), help="a new file of all rows; speedrun.json by default"
    )
    args = parser.parse_args()
    if not (args.seconds or args.operations or args.steps):
        args.seconds = DEFAULT_SECONDS
    return args


def is_default_data(config: Config) -> bool:
    """Whether the config's toy cars are those of configs/default.yaml; what is judged of them may differ."""
    own, default = (cars_fingerprint(replace(some.data, alpha="ignore")) for some in (config, load_config(None)))
    return own == default


def limit_cores(most: int) -> int:
    """Let this process use so many cores at most. Returns how many it has."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:most])
    cores = min(most, available_cores())
    if cores < torch.get_num_threads():
        torch.set_num_threads(cores)
    return cores


def measured_costs(config: Config, dataset: Views, device: torch.device) -> Costs:
    """The cost of steps, measured on a state that is not trained on."""
    state, batches = new_run(config, dataset, device)
    every = config.training.reg_every  # only every so many steps have a penalty
    n_timed, n_counted = (-(-n // every) * every for n in (TIMED_STEPS, COUNTED_STEPS))

    def cost() -> tuple[float, float]:
        seconds = [timed_step(state, dataset, batches) for _ in range(WARM_UP_STEPS + n_timed)]
        with Work() as work:
            for _ in range(n_counted):
                timed_step(state, dataset, batches)
        return mean(seconds[WARM_UP_STEPS:]), work.flops / n_counted

    starts = sorted({0, config.encoder.first_steps, config.short_steps})
    found = []
    for start in (*starts, config.first_unrefined) if config.unrefined_steps else starts:
        state.step = start
        state.follow_schedule()
        found.append(cost())
    return Costs(tuple(starts), *zip(*found, strict=True))


def within_budget(config: Config, costs: Costs, args: argparse.Namespace) -> Config:
    """The config with the training.max_steps that the budget pays, of which the log tells. Raises GrafError for no step."""

    def ending_at(steps: int) -> Config:
        return replace(config, training=replace(config.training, max_steps=steps))

    def unrefined(steps: int) -> int:
        return ending_at(steps).unrefined_steps

    steps = args.steps
    if args.operations:
        steps = costs.steps_within(args.operations, costs.operations, unrefined)
    elif args.seconds:
        steps = costs.steps_within(args.seconds, costs.seconds, unrefined)
    if steps < 1:
        one = f"{costs.seconds[0]:.2g} s and {costs.operations[0]:.2g} operations"
        raise GrafError(f"the budget pays for no step, which takes {one}; raise --seconds or --operations")
    seconds, operations = (costs.total(each, steps, unrefined(steps)) for each in (costs.seconds, costs.operations))
    log.info("%d steps: about %.1f minutes and %.3g operations of training", steps, seconds / 60, operations)
    return ending_at(steps)


def run(config: Config, dataset: Views, seed: int, costs: Costs, device: torch.device) -> dict:
    """The row of one run: what it took, and what it learned."""
    config = replace(config, training=replace(config.training, seed=seed))
    steps = config.training.max_steps
    state, batches = new_run(config, dataset, device)
    cpu_start = time.process_time()
    seconds = sum(timed_step(state, dataset, batches) for _ in progress(range(steps), desc="training", unit="step"))
    cpu_seconds = time.process_time() - cpu_start
    row = {"seed": seed, "steps": steps, "seconds": seconds, "cpu_seconds": cpu_seconds}
    operations = costs.total(costs.operations, steps, config.unrefined_steps)
    return row | {"operations": operations} | learned(state.generator_ema, dataset, seed)


def learned(generator: Generator, dataset: Views, seed: int) -> dict:
    """All measures of a generator; what they compare with are cars that were not trained on, those of KID with this seed."""
    config = generator.config
    reference = unseen_toy_cars(config.data, config.metrics.n_real or len(dataset), seed)
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, extractor in (("kid", config.metrics.extractor), ("kid_lite2", EFFICIENTNET_2)):
            settings = MeasureSettings(["kid"], seed, options=replace(config.metrics, extractor=extractor))
            result = measure_generator(generator, reference, settings, Path(cache))
            found |= {name: result["values"][f"kid_{result['extractor']}"]}
            found.setdefault("extractor", result["extractor"])
    subject = Subject(generator, dataset, seed, truncation=1.0, cache=Path(config.data.datadir[0]))
    surfaces = surface_coverage(subject)
    found |= {name: surfaces[name] for name in ("coverage", "mmd", "coverage_best", "mmd_best")}
    return found | {"variety": silhouette_variety(subject)["share_of_data"]}


def mean_row(rows: Sequence[dict]) -> str:
    """The table's last row: means, with the least and the most of what was measured."""
    cells = [f"mean of {len(rows)}"]
    for name, (_, form) in list(COLUMNS.items())[1:]:
        values = [row[name] * SCALES.get(name, 1) for row in rows if row[name] is not None]
        if not values:
            cells.append("")
        elif name == "steps" or min(values) == max(values):
            cells.append(form.format(values[0]))
        else:
            average, least, most = (form.format(of(values)) for of in (mean, min, max))
            cells.append(f"{average} ({least} to {most})")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    run_script(main)
