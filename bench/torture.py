"""Fault injection: faults at random moments of a training run, the same command after each, and the same weights at the end.

    python bench/torture.py --minutes 10 [--script train_pose.py] [--config FILE] [--set KEY=VALUE ...] [--seed S] [--json FILE]

A run is made undisturbed; then the same run in another folder is killed, its newest checkpoint damaged, its disk filled, its
loader processes killed, its images damaged and removed, and resumed. The exit status is 0 where every fault was survived with
at most training.save_every steps lost, none where an error ended the run, and the weights, optimizers and random states at the
end are those of the undisturbed run bit for bit. Of the config, the architecture is kept, and what the log names is made small.
Linux only.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from graf.checkpoints.checkpoint import read_checkpoint
from graf.config import Config, PoseConfig, RunConfig, config_text, load_config
from graf.data import build_dataset
from graf.errors import GrafError
from graf.export.reconstruction import transforms
from graf.pictures.outputs import write_image
from graf.pose.state import PoseState
from graf.runtime.command_line import Parser, whole_number
from graf.runtime.console import log, run_script
from graf.runtime.files import write_text
from graf.training.state import TrainState
from torture_run import FORK, POLL_S, NotSurvived, Subject

import psutil
import torch

COUNTS = ("step", "images_seen", "bad_steps", "rollbacks", "best", "lowest_losses", "sizes", "rng")
PARTS = (*TrainState.saved_parts(), *PoseState.saved_parts(), "validation", *COUNTS)  # of a checkpoint
SCHEMAS = {"train.py": Config, "train_pose.py": PoseConfig}
DATA_STATUS, FILE_STATUS, TERMINATED_STATUS = 2, 1, 143
CHANGES_OF_A_START, CHANGES_OF_A_SAVE = 9, 12  # fsync, replace, link and torch.save, about
FEWEST_FAULTS, FAULTS_PER_MINUTE, STEPS_PER_FAULT = 30, 4, 8
SMALL = (  # what is made small, before what --set says
    *("data.n_images=64", "training.batch_size=2", "training.save_every=10", "training.save_retries=1", "training.nworkers=2"),
    "training.backup_every=0",
)
SMALL_OF = {
    "train.py": tuple(f"training.{cadence}=0" for cadence in ("sample_every", "video_every", "fid_every")),
    "train_pose.py": ("training.validate_every=15", "data.imsize=16", "model.num_layers=1", "model.d_model=32"),
}
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
        overrides = [*SMALL, *SMALL_OF[args.script], *args.set, f"training.max_steps={n_steps}", "training.print_every=1"]
        log.info("%d faults in %d steps; of the config: %s", n_faults, n_steps, " ".join(overrides))
        source = load_config(args.config, [*overrides, f"data.datadir={folder / 'source'}"], SCHEMAS[args.script])
        args.config = str(keep_config(source, folder))
        labels = apart(copy_images, source, folder)
        overrides += ["data.type=images", f"data.labels={labels}", f"data.datadir={folder / 'images'}", "data.cache_gb=0"]
        result = torture(args, overrides, folder, n_faults, source.training.save_every)
    if args.json:
        write_text(args.json, json.dumps(result, indent=1))
    survived = result["survived"] == result["faults"] == n_faults
    return 0 if survived and result["bit_identical"] and result["steps_lost_max"] <= result["save_every"] else 1


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("--minutes", type=float, default=10.0, help="on two free cores; so many faults and steps are chosen")
    p.add_argument("--faults", type=whole_number, help="instead of those that fit into --minutes, at least 30")
    p.add_argument("--script", choices=SCHEMAS, default="train.py", help="training program")
    p.add_argument("--config", type=Path, help="YAML file; by default the script's own defaults")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as training.nworkers=1")
    p.add_argument("--seed", type=whole_number, default=0, help="seed of the moments and of what is damaged")
    p.add_argument("--json", type=Path, help="write faults, survived, steps_lost_max and bit_identical into this file")
    p.add_argument("--work", type=Path, help="an empty or new folder for the runs, which stay; by default one that is removed")
    return p


def torture(args: argparse.Namespace, overrides: list[str], folder: Path, n_faults: int, save_every: int) -> dict:
    """The undisturbed run, the disturbed one, and what comes of the comparison."""
    undisturbed, disturbed = (subject(args, overrides, folder, name) for name in ("undisturbed", "disturbed"))
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


def keep_config(config: RunConfig, folder: Path) -> Path:
    """All of the config in a file of the folder's, so that no start finds it changed."""
    file = folder / "config.yaml"
    file.write_text(config_text(config), encoding="utf-8")
    return file


def first_difference(undisturbed: Subject, disturbed: Subject) -> str:
    """The first step whose rows differ between two runs, and the numbers in which they do."""
    rows, others = undisturbed.rows(), disturbed.rows()
    for step in sorted(rows.keys() & others.keys()):
        row, other = rows[step], others[step]
        names = [
            f"{name} {row.get(name)!r} and {other.get(name)!r}" for name in row | other if row.get(name) != other.get(name)
        ]
        if names:
            return f"step {step} is the first to differ: {', '.join(names)}"
    return f"none of the {len(rows.keys() & others.keys())} steps that both told of differs"


def subject(args: argparse.Namespace, overrides: list[str], folder: Path, name: str) -> Subject:
    """The run of the overrides in a folder of this name."""
    overrides = [*overrides, f"training.outdir={folder / name}"]
    arguments = ["--config", args.config, "--device", "cpu", "--set", *overrides]
    (folder / name).mkdir()
    run_dir = load_config(args.config, overrides, SCHEMAS[args.script]).run_dir
    return Subject(arguments, run_dir, folder, args.script)


def inject(run: Subject, n: int, save_every: int, rng: random.Random) -> Iterator[Fault]:
    """The faults, spread over the run, each with what it cost; then the run goes on to its end."""
    for number in range(n):
        inflict = FAULTS[number % len(FAULTS)]
        planned = round(0.8 * STEPS_PER_FAULT * (number + rng.random()))
        fault = Fault(inflict.__name__.replace("_", " "))
        with surviving(run, fault):
            run.kill() if inflict in WHILE_ENDED else run.train_until(planned)
            inflict(run, rng)
        fault.step = run.step()
        if not run.alive:
            with surviving(run, fault):
                run.start_training()
                fault.lost = fault.step - run.resumed_step
        most = 0 if inflict in SAVED_FIRST else save_every
        if fault.lost > most:
            fault.problem = fault.problem or f"{fault.lost} steps are lost, more than {most}"
        not_survived = f", NOT SURVIVED: {fault.problem}" if fault.problem else ""
        log.info("%3d, step %4d: %s, %d lost%s", number + 1, fault.step, fault.kind, fault.lost, not_survived)
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


def digests(checkpoint: Path) -> dict[str, str]:
    """The sha256 of each part of our checkpoint's state. Raises CheckpointError where the file cannot be read."""
    state = read_checkpoint(checkpoint)["state"]
    return {name: digest(state[name]) for name in PARTS if name in state}  # older ones have fewer


def digest(value: Any) -> str:
    """sha256 of nested tensors and plain values, bit for bit."""
    if isinstance(value, torch.Tensor):
        numbers = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(repr((value.dtype, value.shape)).encode() + numbers).hexdigest()
    if isinstance(value, dict):
        value = [(repr(key), digest(item)) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        value = [digest(item) for item in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()


# A fault finds the run training, or ended if it is of WHILE_ENDED, and leaves it alive or ended. It raises NotSurvived where
# the run does not take it as it has to: by going on, or by the right message and exit status.


def killed_anywhere(run: Subject, rng: random.Random) -> None:
    time.sleep(rng.uniform(0, 0.5))
    run.kill(whole_group=rng.random() < 0.5)


def killed_while_starting(run: Subject, rng: random.Random) -> None:
    run.start()
    time.sleep(rng.uniform(0, 2))
    run.kill()


def killed_in_a_write_at_start(run: Subject, rng: random.Random) -> None:
    run.halt.write_text(str(rng.randint(1, CHANGES_OF_A_START)))
    run.start()
    _kill_where_it_halts(run)


def killed_in_a_checkpoint(run: Subject, rng: random.Random) -> None:
    asked = run.halt.with_suffix(".asked")
    asked.write_text(str(rng.randint(1, CHANGES_OF_A_SAVE)))
    asked.rename(run.halt)
    _kill_where_it_halts(run)


def newest_truncated(run: Subject, rng: random.Random) -> None:
    newest = _newest_after_sigterm(run)
    os.truncate(newest, rng.randrange(newest.stat().st_size))


def newest_bit_flipped(run: Subject, rng: random.Random) -> None:
    newest = _newest_after_sigterm(run)
    content = bytearray(newest.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    newest.write_bytes(content)


def newest_removed(run: Subject, rng: random.Random) -> None:
    _newest_after_sigterm(run).unlink()


def disk_full(run: Subject, rng: random.Random) -> None:
    _limit_files(run, rng)
    run.end(FILE_STATUS)
    if "cannot be written" not in run.said():
        raise NotSurvived("it did not say what could not be written")


def disk_full_for_a_while(run: Subject, rng: random.Random) -> None:
    _limit_files(run, rng)
    run.wait(lambda: "trying again" in run.said())
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def worker_killed(run: Subject, rng: random.Random) -> None:
    told = run.said().count("a loader process died")
    workers = psutil.Process(run.process.pid).children()
    if not workers:
        raise NotSurvived("it has no loader processes; set training.nworkers=1 or more")
    rng.choice(workers).kill()
    run.wait(lambda: run.said().count("a loader process died") > told)


def workers_keep_dying(run: Subject, rng: random.Random) -> None:
    run.deadly.touch()
    try:
        run.end(DATA_STATUS)
    finally:
        run.kill()
        run.deadly.unlink()
    if "loader processes died" not in run.said():
        raise NotSurvived("it did not say what died")


def images_damaged(run: Subject, rng: random.Random) -> None:
    _with_bad_images(run, rng, lambda file: os.truncate(file, file.stat().st_size // 2))


def images_removed(run: Subject, rng: random.Random) -> None:
    _with_bad_images(run, rng, Path.unlink)


def images_unreadable(run: Subject, rng: random.Random) -> None:
    """Replace each image by a link to itself, which is there and cannot be opened."""

    def link_to_itself(file: Path) -> None:
        file.unlink()
        file.symlink_to(file.name)

    _with_bad_images(run, rng, link_to_itself)


def images_missing_at_start(run: Subject, rng: random.Random) -> None:
    _with_bad_images(run, rng, Path.unlink)


FAULTS = (  # in the order in which they are injected
    *(killed_anywhere, killed_in_a_checkpoint, newest_truncated, worker_killed, disk_full, images_damaged),
    *(newest_bit_flipped, killed_while_starting, disk_full_for_a_while, killed_in_a_write_at_start, newest_removed),
    *(images_removed, images_missing_at_start, images_unreadable, workers_keep_dying),
)
SAVED_FIRST = (images_damaged, images_removed, images_unreadable, workers_keep_dying)  # errors, before which a run saves itself
WHILE_ENDED = (killed_while_starting, killed_in_a_write_at_start, images_missing_at_start)


def images_of(folder: Path) -> list[Path]:
    """The images that a run is trained on, of which folder/whole has copies."""
    return sorted((folder / "images").rglob("*.png"))


def copy_images(config: RunConfig, folder: Path) -> str:
    """The first data.n_images of the config's data as PNGs in folder/images, and again in folder/whole. Returns data.labels."""
    dataset = build_dataset(config)
    indices = range(min(config.data.n_images, len(dataset)))
    for index in indices:
        write_image(folder / "images" / "images" / f"{index:04d}.png", dataset.read(index))
    if dataset.posed:
        names = [f"{index:04d}.png" for index in indices]
        text = transforms(names, dataset.labels.pose_c2w[: len(names)].double().numpy(), config.data.imsize, config.data)
        (folder / "images" / "transforms.json").write_text(text, encoding="utf-8")
    shutil.copytree(folder / "images", folder / "whole")
    return "transforms" if dataset.posed else "none"


def _kill_where_it_halts(run: Subject) -> None:
    reached = run.halt.with_suffix(".reached")
    try:
        run.wait(reached.exists)
    finally:
        run.kill()
        run.halt.unlink(missing_ok=True)
        reached.unlink(missing_ok=True)


def _newest_after_sigterm(run: Subject) -> Path:
    """model.pt of the run ended by SIGTERM, with another checkpoint before it."""
    run.wait(lambda: any(run.run_dir.rglob("model*.pt")))
    run.train_until(run.step() + 1)
    run.process.terminate()
    run.end(TERMINATED_STATUS)
    return run.run_dir / "model.pt"


def _limit_files(run: Subject, rng: random.Random) -> None:
    """No file of the run may grow beyond a part of its checkpoint's size."""
    newest = run.run_dir / "model.pt"
    size = newest.stat().st_size if newest.exists() else 2**17
    limit = rng.randrange(size // 4, size)
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def _with_bad_images(run: Subject, rng: random.Random, damage: Callable[[Path], object]) -> None:
    """Damage every third image until the run has named one of them and ended, then put them back as they were."""
    images = images_of(run.folder)
    try:
        for file in rng.sample(images, len(images) // 3):
            damage(file)
        if not run.alive:
            run.start()
        run.end(DATA_STATUS)
        if not re.search(r"error: .*\.png", run.said(), re.DOTALL):
            raise NotSurvived("it did not name the file")
    finally:
        run.kill()
        time.sleep(POLL_S)
        for file in images:
            file.unlink(missing_ok=True)  # it may be a link
            shutil.copy2(run.folder / "whole" / file.relative_to(run.folder / "images"), file)


if __name__ == "__main__":
    run_script(main)
