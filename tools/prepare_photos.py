"""Prepare your photographs for training: leave out unfit ones and duplicates, cut out the object, crop it, write a config.

    python tools/prepare_photos.py photos data/mugs
    python train.py --config data/mugs/config.yaml --use_amp

IN is a folder of photographs, of folders of photographs (one per class), or of videos, or one of these
files. IN is not changed. OUT gets images/ (PNGs, RGBA where the object was cut out), before_after.png, left_out.csv with the
reason for each photograph that was left out, and config.yaml. After an interruption the same command continues. A
picture in images/ that you have changed or moved stays as it is.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graf.config import load_config
from graf.config.name_pattern import NAMED_BY_RANK, name_pattern
from graf.data.folders import CONFIG, IMAGES, SHEET, is_within
from graf.errors import DataError, GrafError
from graf.photographs.cutout.grabcut import opencv
from graf.photographs.cutout.ways import WAYS
from graf.photographs.making import Options, longest_ratio_in
from graf.photographs.prepare import prepare
from graf.photographs.reading import EXTRA
from graf.photographs.summary import nothing_usable, summary
from graf.photographs.writing import LEFT_OUT, write_cameras, write_config, write_left_out, write_sheet
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.files import is_taken, make_writable_folder, read_object, remove_leftovers, write_text
from graf.runtime.run_lock import run_lock

SETTINGS, FRAMES = "settings.json", ".frames_"


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("source", type=Path, metavar="IN", help="folder of photographs, a photograph or a video")
    p.add_argument("out", type=Path, metavar="OUT", help="folder to write, new or empty")
    p.add_argument(
        "--cut",
        choices=WAYS,
        default="auto",
        help="how to cut out the object. plain: from a background of one colour; grabcut: from any background (needs OpenCV); "
        "masks DIR: by your masks, with the names of the photographs, in DIR, or beside the photographs without DIR; none: do "
        "not cut out. auto (default): masks beside the photographs, else plain (refined by grabcut if OpenCV is installed), "
        "else grabcut, else none. Existing transparency is kept",
    )
    p.add_argument("--masks", type=Path, metavar="DIR", help="the same as --cut masks DIR")
    p.add_argument(
        "--every",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="seconds between the frames taken from a video (default 0.5)",
    )
    p.add_argument(
        "--margin", type=float, default=0.1, help="margin around the object, as a share of its longer side (default 0.1)"
    )
    p.add_argument(
        "--scale",
        choices=("area", "own"),
        default="area",
        help="size of cut-out objects without cameras in their frames. area (default): all have about one area, which varies "
        "a little, and the longest ones fill their frames; own: each fills its frame, also for flat objects",
    )
    p.add_argument(
        "--like",
        type=Path,
        metavar="SET",
        help="cut-out photographs for eval.py --invert: give their objects the size that those of SET have in their frames, a "
        "folder that this tool wrote; --margin, --scale and --labels are SET's",
    )
    p.add_argument("--size", type=positive, default=512, help="largest side of the written images, pixels (default 512)")
    p.add_argument(
        "--smallest", type=positive, default=64, help="leave out photographs with a smaller side than this, pixels (default 64)"
    )
    p.add_argument("--keep_duplicates", action="store_true", help="keep photographs that show the same as another one")
    p.add_argument(
        "--labels",
        choices=("auto", "none"),
        default="auto",
        help="auto (default): read cameras from names such as 0_0090.jpg or from a transforms.json; none: do not",
    )
    p.add_argument(
        "--name_pattern",
        default=NAMED_BY_RANK,
        metavar="PATTERN",
        help='cameras in the file names, as data.name_pattern: "<object>_<elevation_deg>_<azimuth_deg>" (default '
        f'"{NAMED_BY_RANK}")',
    )
    return p


def main() -> int:
    arguments = parser().parse_args(with_masks_flag(sys.argv[1:]))
    options = options_of(arguments)
    root, out = arguments.source, arguments.out
    check_folders(root, out, options.masks, arguments.like)
    claim(out, root, options)
    with run_lock(out, "the second argument"):
        remove_unfinished(out)
        write_set(root, out, options, arguments.like)
    return 0


def write_set(root: Path, out: Path, options: Options, like: Path | None) -> None:
    """Prepare the photographs, write all files of the output folder, and log the summary."""
    with tempfile.TemporaryDirectory(prefix=FRAMES, dir=out) as frames:
        prepared = prepare(root, out, Path(frames), options)
        write_left_out(out / LEFT_OUT, prepared.left_out)
        if not prepared.made:
            others = f" ({out / LEFT_OUT} has all)" if prepared.left_out else ""
            raise DataError(f"{root}: no photograph can be used: {nothing_usable(prepared.left_out, prepared.others)}{others}")
        write_cameras(out, root, prepared)
        write_sheet(out / SHEET, prepared.made)
    if not like:
        write_config(out, prepared)
    for line in summary(prepared, out, like or out):
        log.info("%s", line)


def with_masks_flag(words: Sequence[str]) -> list[str]:
    """The words of a command line with `--cut masks DIR` as `--cut masks --masks DIR`."""
    for index in range(len(words) - 2):
        if words[index : index + 2] == ["--cut", "masks"] and not words[index + 2].startswith("-"):
            return [*words[: index + 2], "--masks", *words[index + 2 :]]
    return list(words)


def options_of(arguments: argparse.Namespace) -> Options:
    """The choices that the flags make. Raises GrafError for values that cannot be meant."""
    if not 0 < arguments.every < 3600:
        raise GrafError(f"--every {arguments.every:g}: expected seconds above 0")
    if not 0 <= arguments.margin <= 2:
        raise GrafError(f"--margin {arguments.margin:g}: expected a number from 0 to 2")
    if arguments.smallest > arguments.size:
        raise GrafError(f"--smallest {arguments.smallest} is above --size {arguments.size}")
    if arguments.masks and arguments.cut not in ("auto", "masks"):
        raise GrafError(f"--masks {arguments.masks}: only --cut masks and auto use masks")
    if arguments.cut == "grabcut" and not opencv():
        raise GrafError(f"--cut grabcut needs the package opencv-python-headless: {EXTRA}")
    if arguments.masks and not arguments.masks.is_dir():
        flag = "--cut masks" if arguments.cut == "masks" else "--masks"
        raise GrafError(f"{flag} {arguments.masks}: no such folder")
    try:
        pattern = name_pattern(arguments.name_pattern)
    except ValueError as error:
        raise GrafError(f"--name_pattern {arguments.name_pattern} {error}") from None
    if pattern.azimuth == "index":
        raise GrafError(
            f"--name_pattern {arguments.name_pattern}: <index> tells no angle here; rename the photographs so that names have "
            "<azimuth_deg>, or train on them as they are with data.turntable_step_deg"
        )
    options = Options(
        cut="masks" if arguments.masks and arguments.cut == "auto" else arguments.cut,
        masks=arguments.masks,
        every_s=arguments.every,
        margin=arguments.margin,
        scale=arguments.scale,
        largest=arguments.size,
        smallest=arguments.smallest,
        keep_duplicates=arguments.keep_duplicates,
        labels=arguments.labels,
        name_pattern=arguments.name_pattern,
    )
    return framed_like(arguments.like, options) if arguments.like else options


def framed_like(prepared: Path, options: Options) -> Options:
    """The options with the framing of a set that was prepared before. Raises GrafError where it is none, or its frames are not
    those of cut-out objects."""
    settings = settings_in(prepared)
    if not settings or not (prepared / CONFIG).is_file():
        raise GrafError(f"--like {prepared}: is no folder that this tool wrote; such a one has {SETTINGS} and {CONFIG}")
    if settings.get("scale") not in ("area", "own"):
        raise GrafError(f"--like {prepared}: was made by an older version; prepare it again")
    data = load_config(prepared / CONFIG).data
    if data.labels in ("filename", "transforms"):
        raise GrafError(
            f"--like {prepared}: its photographs were kept as their cameras saw them, so objects have no common size"
        )
    longest_ratio = 0.0 if data.alpha == "ignore" else longest_ratio_in(prepared / IMAGES)
    if not longest_ratio:
        raise GrafError(
            f"--like {prepared}: its photographs are not all cut out, so objects have no common size in their frames"
        )
    margin, scale = float(settings["margin"]), settings["scale"]
    log.info("framed like %s: --margin %g --scale %s --labels none", prepared, margin, scale)
    return replace(options, margin=margin, scale=scale, labels="none", longest_ratio=longest_ratio)


def settings_in(folder: Path) -> dict:
    """The settings with which this tool wrote a folder; {} where it did not."""
    found = read_object(folder / SETTINGS) if folder.is_dir() else {}
    return found if {"in", "cut"} <= found.keys() else {}


def check_folders(root: Path, out: Path, masks: Path | None, like: Path | None) -> None:
    """Raises GrafError where there is nothing to read, or where what is written would lie among it."""
    if not root.exists():
        raise GrafError(f"{root}: no such file or folder")
    if root.is_dir() and not os.access(root, os.R_OK | os.X_OK):
        raise GrafError(f"{root}: this folder may not be read; change its permissions")
    for taken in filter(None, (root, masks, like and like / IMAGES)):
        if is_within(out, taken):
            raise GrafError(f"{out}: lies in {taken}, of which nothing is changed; name an output folder elsewhere")


def claim(out: Path, root: Path, options: Options) -> None:
    """Make the output folder, or continue what the same command has begun in it.

    Raises GrafError where it has anything else, DataError where root is empty.
    """
    settings = {"in": str(root.resolve())} | {name: str(value) for name, value in vars(options).items()}
    kept = settings_in(out)
    if kept:
        kept.setdefault("longest_ratio", "0.0")  # it had no --like
    if kept == settings:
        log.info("%s: continuing what is there", out)
        return
    if kept and any((out / IMAGES).rglob("*.png")):
        differing = ", ".join(name for name in settings if settings[name] != kept.get(name))
        raise GrafError(f"{out}: was made with other settings ({differing}); name a new folder, or remove this one")
    if not kept and is_taken(out):
        raise GrafError(f"{out}: is not empty, and this tool did not make it; nothing was written, name a new folder")
    if root.is_dir() and not is_taken(root):
        raise DataError(f"{root}: no photograph can be used: {nothing_usable({}, Counter())}")
    make_writable_folder(out)
    write_text(out / SETTINGS, json.dumps(settings, indent=1))


def remove_unfinished(out: Path) -> None:
    """Remove what an interrupted run was writing."""
    for folder, _, _ in os.walk(out / IMAGES):
        remove_leftovers(Path(folder), own=("*.png",))
    for frames in out.glob(f"{FRAMES}*"):
        shutil.rmtree(frames)


if __name__ == "__main__":
    run_script(main)
