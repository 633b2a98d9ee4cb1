"""The faults of torture.py: each is a function of the run and a random generator, and leaves the run alive or ended.

A fault raises NotSurvived where the run does not take it as it has to: by going on, or by the right message and exit status.
"""

import random
import re
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from graf.config import Config
from graf.data import build_dataset
from graf.evaluation.outputs import write_image
from graf.evaluation.reconstruction import transforms
from torture_run import POLL_S, NotSurvived, Subject

import psutil

DATA_STATUS, FILE_STATUS, TERMINATED_STATUS = 2, 1, 143
CHANGES_OF_A_START, CHANGES_OF_A_SAVE = 9, 12  # fsync, replace, link and torch.save, about


def killed_anywhere(run: Subject, step: int, rng: random.Random) -> None:
    run.train_until(step)
    time.sleep(rng.uniform(0, 0.5))
    run.kill(whole_group=rng.random() < 0.5)


def killed_while_starting(run: Subject, step: int, rng: random.Random) -> None:
    run.kill()
    run.start()
    time.sleep(rng.uniform(0, 2))
    run.kill()


def killed_in_a_write_at_start(run: Subject, step: int, rng: random.Random) -> None:
    run.kill()
    run.halt.write_text(str(rng.randint(1, CHANGES_OF_A_START)))
    run.start()
    _kill_where_it_halts(run)


def killed_in_a_checkpoint(run: Subject, step: int, rng: random.Random) -> None:
    run.train_until(step)
    asked = run.halt.with_suffix(".asked")
    asked.write_text(str(rng.randint(1, CHANGES_OF_A_SAVE)))
    asked.rename(run.halt)
    _kill_where_it_halts(run)


def newest_truncated(run: Subject, step: int, rng: random.Random) -> None:
    newest = _newest_after_sigterm(run, step)
    with newest.open("r+b") as file:
        file.truncate(rng.randrange(newest.stat().st_size))


def newest_bit_flipped(run: Subject, step: int, rng: random.Random) -> None:
    newest = _newest_after_sigterm(run, step)
    content = bytearray(newest.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    newest.write_bytes(content)


def newest_removed(run: Subject, step: int, rng: random.Random) -> None:
    _newest_after_sigterm(run, step).unlink()


def disk_full(run: Subject, step: int, rng: random.Random) -> None:
    run.train_until(step)
    _limit_files(run, rng)
    run.end(FILE_STATUS)
    if "cannot be written" not in run.said():
        raise NotSurvived("it did not say what could not be written")


def disk_full_for_a_while(run: Subject, step: int, rng: random.Random) -> None:
    run.train_until(step)
    _limit_files(run, rng)
    run.wait(lambda: "trying again" in run.said() or None)
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def worker_killed(run: Subject, step: int, rng: random.Random) -> None:
    run.train_until(step)
    told = run.said().count("a loader process died")
    workers = psutil.Process(run.process.pid).children()
    if not workers:
        raise NotSurvived("it has no loader processes; set training.nworkers=1 or more")
    rng.choice(workers).kill()
    run.wait(lambda: run.said().count("a loader process died") > told or None)


def images_damaged(run: Subject, step: int, rng: random.Random) -> None:
    run.train_until(step)
    _with_bad_images(run, rng, lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]))


def images_removed(run: Subject, step: int, rng: random.Random) -> None:
    run.train_until(step)
    _with_bad_images(run, rng, Path.unlink)


def images_missing_at_start(run: Subject, step: int, rng: random.Random) -> None:
    run.kill()
    _with_bad_images(run, rng, Path.unlink)


FAULTS: dict[str, Callable[[Subject, int, random.Random], None]] = {
    "killed at a random instant": killed_anywhere,
    "killed inside the writing of a checkpoint": killed_in_a_checkpoint,
    "newest checkpoint truncated": newest_truncated,
    "loader process killed": worker_killed,
    "disk full, for good": disk_full,
    "images damaged": images_damaged,
    "newest checkpoint bit-flipped": newest_bit_flipped,
    "killed while starting": killed_while_starting,
    "disk full, for a while": disk_full_for_a_while,
    "killed inside another write of a start": killed_in_a_write_at_start,
    "newest checkpoint removed": newest_removed,
    "images removed": images_removed,
    "images missing at the start": images_missing_at_start,
}


def images_of(folder: Path) -> list[Path]:
    """The images that a run is trained on, of which folder/whole has copies."""
    return sorted((folder / "images").rglob("*.png"))


def copy_images(config: Config, folder: Path) -> str:
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
        run.wait(lambda: reached.exists() or None)
    finally:
        run.kill()
        run.halt.unlink(missing_ok=True)
        reached.unlink(missing_ok=True)


def _newest_after_sigterm(run: Subject, step: int) -> Path:
    """model.pt of the run ended by SIGTERM, with another checkpoint before it."""
    run.train_until(step)
    run.wait(lambda: next(run.run_dir.rglob("model*.pt"), None))
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
            shutil.copy2(run.folder / "whole" / file.relative_to(run.folder / "images"), file)
