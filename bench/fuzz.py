"""Does all bad input end in one clear message? Runs train.py --dry_run on mutated configs and data sets.

    python bench/fuzz.py [--mutations 500] [--seed S] [--json FILE]

Every mutation must end in a dry run that works or in exit status 2 with under ten lines, in time, and without a file left
behind; those that do not are listed, and make the exit status 1. What is legal is made small before it is run.
"""

import collections
import contextlib
import dataclasses
import faulthandler
import fnmatch
import functools
import io
import json
import logging
import os
import random
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from graf.config import CONFIG_DIR, Config, config_to_dict, flat, load_config
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import progress, run_script
from graf.runtime.files import write_text
from mutations import make_data, mutate_config, mutate_data

import torch

log = logging.getLogger("graf")

TRAIN = runpy.run_path(str(Path(__file__).resolve().parents[1] / "train.py"))["main"]
CPU_LIMIT_S, LIMIT_S = 60.0, 600.0  # of a mutation: the cores may be busy with other things
LINES, CHARACTERS = 10, 4000  # a message has fewer
TOY_CARS = "toy_cars_*.pt"
CAPS = {  # the largest that is run of what may be large
    "data.imsize": 32,
    "data.n_images": 4,
    "data.center_crop": 16,
    "nerf.netdepth": 4,
    "nerf.netwidth": 16,
    "nerf.netdepth_fine": 4,
    "nerf.netwidth_fine": 16,
    "nerf.mapping_depth": 2,
    "nerf.samples_per_ray": 8,
    "nerf.render_samples_per_ray": 8,
    "nerf.importance_samples_per_ray": 4,
    "ccsr.light.width": 16,
    "ccsr.light.depth": 2,
    "ccsr.light.width_upsampled": 16,
    "ccsr.rrdb.num_blocks": 1,
    "ccsr.rrdb.nf": 8,
    "ccsr.rrdb.gc": 4,
    "ccsr.num_views": 16,
    "ccsr.elevation_bins": 4,
    "ccsr.code_channels": 8,
    "ccsr.code_size": 16,
    "z_dist.dim": 16,
    "z_dist.dim_appearance": 8,
    "discriminator.ndf": 8,
    "discriminator.blur_sigma": 2,
    "training.batch_size": 2,
    "training.accumulation_steps": 2,
    "training.nworkers": 0,
}
DATA_SETTINGS = (
    *("data.type=images", "data.datadir=photos", "data.imsize=16", "data.v=[0.5, 0.4]"),
    *("training.batch_size=2", "discriminator.condition=none"),
)
DATA_SETS = ("filename", "transforms", "none")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a mutation (`ran`, `refused`, or what must not be: `traceback`, `status 1`, `hang`, ...), and why."""

    kind: str
    said: str

    @property
    def is_fault(self) -> bool:
        return self.kind not in ("ran", "refused")


class TooLong(BaseException):
    """A mutation has not ended in time; no `except Exception` may take it for its own."""


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--mutations", type=positive, default=500, help="of each config, and of data sets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts and faults there too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    subjects = {path.name: functools.partial(fuzz_config, path) for path in sorted(CONFIG_DIR.glob("*.yaml"))}
    rows, faults = {}, []
    for name, fuzz in {**subjects, "data sets": fuzz_data}.items():
        rows[name], wrong = count(name, fuzz, args.mutations, args.seed)
        faults += wrong
    report(rows)
    if args.json:
        write_text(args.json, json.dumps({"seed": args.seed, "counts": rows, "faults": faults}, indent=1))
    return 1 if faults else 0


def count(name: str, fuzz: Callable[[random.Random], Outcome], n: int, seed: int) -> tuple[dict[str, int], list[dict]]:
    """How often n mutations ended how, with the seconds of the slowest, and each fault with the random state that made it."""
    counts: collections.Counter = collections.Counter(ran=0, refused=0)
    faults, slowest_s = [], 0.0
    for index in progress(range(n), desc=name):
        state, start = f"{seed} {name} {index}", time.monotonic()
        outcome = fuzz(random.Random(state))
        slowest_s = max(slowest_s, time.monotonic() - start)
        counts[outcome.kind] += 1
        if outcome.is_fault:
            faults.append({"state": state, "kind": outcome.kind, "said": outcome.said})
            log.warning("%s: %s\n%s", state, outcome.kind, outcome.said[-3000:])
    return {**counts, "slowest_s": round(slowest_s, 1)}, faults


def report(rows: dict[str, dict[str, int]]) -> None:
    """Log the counts as a table."""
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    log.info("| mutated | %s |\n|%s", " | ".join(kinds), " --- |" * (len(kinds) + 1))
    for name, row in rows.items():
        log.info("| %s | %s |", name, " | ".join(str(row.get(kind, 0)) for kind in kinds))


def fuzz_config(path: Path, rng: random.Random) -> Outcome:
    """One mutation of a config, in a folder of its own."""
    with workplace() as folder:
        mutated = folder / "mutated.yaml"
        text = path.read_text(encoding="utf-8").replace("inherit_from: ", f"inherit_from: {CONFIG_DIR}/")
        mutated.write_bytes(mutate_config(text, rng))
        (folder / "loop").symlink_to("loop")
        overrides: list[str] = []
        with contextlib.suppress(TooLong, Exception), time_limit():  # the run meets it again
            overrides = smaller(load_config(mutated), folder)
        return dry_run(["--config", str(mutated), *(["--set", *overrides] if overrides else [])])


def fuzz_data(rng: random.Random) -> Outcome:
    """One mutation of a data set, in a folder of its own."""
    labels = rng.choice(DATA_SETS)
    with workplace() as folder:
        make_data(folder / "photos", labels)
        done = [mutate_data(folder / "photos", rng)]
        settings = [f"data.labels={rng.choice((labels, 'auto'))}", f"data.on_bad_file={rng.choice(('error', 'skip'))}"]
        config = str(CONFIG_DIR / "smoke.yaml")
        outcome = dry_run(["--config", config, "--set", *DATA_SETTINGS, *settings])
        return dataclasses.replace(outcome, said=f"{', '.join(done)}\n{outcome.said}")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A new folder, which is the working directory meanwhile."""
    before = Path.cwd()
    folder = Path(tempfile.mkdtemp(prefix="fuzz_"))
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def smaller(config: Config, folder: Path) -> list[str]:
    """Overrides that leave of a legal config all that is odd about it, and take from it what is large."""
    values = flat(config_to_dict(config))
    caps = CAPS | {"ray_sampler.rays_per_patch": max(16, (16 // config.rendered_scale) ** 2)}  # a patch of 16 pixels
    overrides = [f"{key}={cap}" for key, cap in caps.items() if values[key] > cap]
    if config.training.micro_batch != "auto":
        overrides.append(f"training.micro_batch={min(2, config.training.micro_batch)}")
    if not any(os.path.isdir(name) or name.startswith("data/") for name in config.data.datadir):
        return overrides
    if config.data.type == "toy_cars":
        return [*overrides, f"data.datadir={Path(tempfile.gettempdir()) / 'fuzz_toy_cars'}"]
    make_data(folder / "photos", config.data.labels)
    return [*overrides, "data.datadir=photos"]


def dry_run(arguments: list[str]) -> Outcome:
    """What `train.py --dry_run` does with the arguments, in this process and the working directory."""
    out, err, status = io.StringIO(), io.StringIO(), None
    before, limits = files_here(), resource.getrlimit(resource.RLIMIT_DATA)
    argv, sys.argv = sys.argv, ["train.py", *arguments, "--dry_run", "--device", "cpu"]
    handlers, log.handlers = log.handlers, []  # the run brings its own
    faulthandler.dump_traceback_later(2 * LIMIT_S, exit=True)  # of what does not even take a signal
    try:
        with time_limit(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_script(TRAIN)
    except SystemExit as ended:
        status = ended.code
    except TooLong:
        return Outcome("hang", traceback.format_exc())
    except Exception:
        return Outcome("traceback", traceback.format_exc())
    finally:
        sys.argv, log.handlers = argv, handlers
        resource.setrlimit(resource.RLIMIT_DATA, limits)  # which memory.budget_gb lowers
        faulthandler.cancel_dump_traceback_later()
    left = files_here() - before
    said = err.getvalue()
    if left:
        return Outcome("file left", str(sorted(left)))
    if "Traceback" in said:
        return Outcome("traceback", said)
    if status == 0:
        return Outcome("ran", said)
    if status != 2:
        return Outcome(f"status {status}", said)
    lines = [line for line in said.splitlines() if line.strip() and "%|" not in line]  # but for progress bars
    return Outcome("refused" if len(lines) < LINES and len(said) < CHARACTERS else "long message", said)


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """TooLong where the block takes longer than a mutation may."""

    def raise_too_long(*_: object) -> None:
        raise TooLong

    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, raise_too_long)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)


def files_here() -> set[str]:
    """Every file below the working directory, but for kept toy cars."""
    found = (os.path.join(folder, name) for folder, _, names in os.walk(".") for name in names)
    return {file for file in found if not fnmatch.fnmatch(file, f"*{TOY_CARS}")}


if __name__ == "__main__":
    run_script(main)
