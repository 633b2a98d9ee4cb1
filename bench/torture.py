"""Fault injection: faults at random moments of a training run, the same command after each, and the same weights at the end.

    python bench/torture.py --minutes 10 [--config FILE] [--set KEY=VALUE ...] [--seed S] [--json FILE]

A run is made undisturbed; then the same run in another folder is killed, its newest checkpoint damaged, its disk filled, its
loader processes killed, its images damaged and removed, and resumed. The exit status is 0 where every fault was survived with
at most training.save_every steps lost, and the weights, optimizers and random states at the end are those of the
undisturbed run bit for bit. Of the config, the architecture is kept, and what the log names is made small. Linux only.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from graf.config import Config, config_to_dict, load_config
from graf.errors import GrafError
from graf.runtime.command_line import Parser
from graf.runtime.console import run_script
from state_digests import digests
from torture_faults import FAULTS, copy_images
from torture_run import FORK, NotSurvived, Subject

import yaml

log = logging.getLogger("graf")

FEWEST_FAULTS, FAULTS_PER_MINUTE, STEPS_PER_FAULT = 30, 4, 8
SMALL = (  # what is made small, before what --set says
    *(
        "data.n_images=64",
        "training.batch_size=2",
        "training.save_every=10",
        "training.save_retries=1",
        "training.nworkers=2",
    ),
    *(f"training.{cadence}=0" for cadence in ("sample_every", "video_every", "backup_every", "fid_every")),
)
LINES_SHOWN = 15  # of the log, where a fault was not survived


@dataclasses.dataclass
class Fault:
    """One that was injected: at which step, how many steps had to be taken again, and what went wrong."""

    kind: str
    step: int = 0
    lost: int = 0
    problem: str = ""


def main() -> int:
    args = parser().parse_args()
    if not args.minutes > 0 or (args.faults is not None and args.faults < 1):
        raise GrafError("--minutes and --faults: expected more than 0")
    n_faults = args.faults or max(FEWEST_FAULTS, round(args.minutes * FAULTS_PER_MINUTE))
    n_steps = STEPS_PER_FAULT * n_faults
    with tempfile.TemporaryDirectory() if args.work is None else contextlib.nullcontext(args.work) as folder:
        folder = Path(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise GrafError(f"--work {folder}: is not empty; name an empty folder, or a new one")
        overrides = [*SMALL, *args.set, f"training.max_steps={n_steps}", "training.print_every=1"]
        log.info("%d faults in %d steps; of the config: %s", n_faults, n_steps, " ".join(overrides))
        source = load_config(args.config, [*overrides, f"data.datadir={folder / 'source'}"])
        args.config = str(keep_config(source, folder))
        labels = apart(copy_images, source, folder)
        overrides += ["data.type=images", f"data.labels={labels}", f"data.datadir={folder / 'images'}"]
        result = torture(args, overrides, folder, n_faults, source.training.save_every)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    survived = result["survived"] == result["faults"] == n_faults
    return 0 if survived and result["bit_identical"] and result["steps_lost_max"] <= result["save_every"] else 1


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("--minutes", type=float, default=10.0, help="on two free cores; so many faults and steps are chosen")
    p.add_argument("--faults", type=int, help="instead of those that fit into --minutes, at least 30")
    p.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as training.nworkers=1")
    p.add_argument("--seed", type=int, default=0, help="of the instants and of what is damaged")
    p.add_argument("--json", type=Path, help="write faults, survived, steps_lost_max and bit_identical into this file")
    p.add_argument("--work", type=Path, help="an empty or new folder for the runs, which stay; by default one that is removed")
    return p


def torture(args: argparse.Namespace, overrides: list[str], folder: Path, n_faults: int, save_every: int) -> dict:
    """The undisturbed run, the disturbed one, and what comes of the comparison."""
    undisturbed, disturbed = (subject(args.config, overrides, folder, name) for name in ("undisturbed", "disturbed"))
    began = time.monotonic()
    with ended(undisturbed), ended(disturbed):
        undisturbed.start()
        undisturbed.end(0)
        log.info("undisturbed: %d steps in %.0f s", undisturbed.step(), time.monotonic() - began)
        faults = list(inject(disturbed, n_faults, save_every, random.Random(args.seed)))
    expected, found = (apart(digests, run.run_dir / "model.pt") for run in (undisturbed, disturbed))
    different = [name for name in expected if found.get(name) != expected[name]]
    for kind, count in collections.Counter(fault.kind for fault in faults).items():
        log.info("%3d x %s", count, kind)
    result = {
        "faults": len(faults),
        "survived": sum(not fault.problem for fault in faults),
        "steps_lost_max": max((fault.lost for fault in faults), default=0),
        "bit_identical": not different,
        "save_every": save_every,
        "steps": undisturbed.step(),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    log.info("%d faults, %d survived, at most %d of %d steps lost", *list(result.values())[:3], save_every)
    log.info("the final state is %s", f"ANOTHER: {', '.join(different)}" if different else "the same, bit for bit")
    if different:
        log.info("their rows: %s", first_difference(undisturbed, disturbed))
    return result


def keep_config(config: Config, folder: Path) -> Path:
    """All of the config in a file of the folder's, so that no start finds it changed."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config_to_dict(config), sort_keys=False), encoding="utf-8")
    return file


def first_difference(undisturbed: Subject, disturbed: Subject) -> str:
    """The first step that two runs told of differently, and the numbers in which."""
    rows, others = undisturbed.rows(), disturbed.rows()
    for step in sorted(rows.keys() & others.keys()):
        row, other = rows[step], others[step]
        names = [
            f"{name} {row.get(name)!r} and {other.get(name)!r}" for name in row | other if row.get(name) != other.get(name)
        ]
        if names:
            return f"step {step} is the first to differ: {', '.join(names)}"
    return f"none of the {len(rows.keys() & others.keys())} steps that both told of differs"


def subject(config: str | None, overrides: list[str], folder: Path, name: str) -> Subject:
    """The run of the overrides in a folder of this name."""
    overrides = [*overrides, f"training.outdir={folder / name}"]
    arguments = [*(["--config", config] if config else []), "--device", "cpu", "--set", *overrides]
    (folder / name).mkdir()
    return Subject(arguments, load_config(config, overrides).run_dir, folder)


def inject(run: Subject, n: int, save_every: int, rng: random.Random) -> Iterator[Fault]:
    """The faults, spread over the run, each with what it cost; then the run goes on to its end."""
    for number in range(n):
        kind = list(FAULTS)[number % len(FAULTS)]
        planned = round(0.8 * STEPS_PER_FAULT * (number + rng.random()))
        fault = Fault(kind)
        with surviving(run, fault):
            FAULTS[kind](run, planned, rng)
        fault.step = run.step()
        if not run.alive:
            with surviving(run, fault):
                run.start_training()
                fault.lost = fault.step - run.resumed_step
        if fault.lost > save_every:
            fault.problem = fault.problem or f"{fault.lost} steps are lost, more than {save_every}"
        not_survived = f", NOT SURVIVED: {fault.problem}" if fault.problem else ""
        log.info("%3d, step %4d: %s, %d lost%s", number + 1, fault.step, kind, fault.lost, not_survived)
        yield fault
    last = Fault("to the end")
    with surviving(run, last):
        run.end(0)
    if last.problem:
        yield last


@contextlib.contextmanager
def ended(run: Subject) -> Iterator[None]:
    """Whatever comes, the run's process ends before the folder that it writes into is removed."""
    try:
        yield
    finally:
        run.kill()


@contextlib.contextmanager
def surviving(run: Subject, fault: Fault) -> Iterator[None]:
    try:
        yield
    except NotSurvived as error:
        fault.problem = fault.problem or str(error)
        log.info("%s: %s; the end of the log:\n%s", fault.kind, error, "\n".join(run.said().splitlines()[-LINES_SHOWN:]))
        run.kill()


def apart(function: Callable, *arguments: Any) -> Any:
    """The function's result from a process of its own: none that trainings are forked from may have computed with torch."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=FORK) as pool:
        return pool.submit(function, *arguments).result()


if __name__ == "__main__":
    run_script(main)
