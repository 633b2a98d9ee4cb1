"""The closing summary when photographs are prepared: how many were kept, why others were not, how many objects they show."""

import re
from collections import Counter
from pathlib import Path

from graf.config import Config, load_config
from graf.config.name_pattern import name_pattern
from graf.config.strict import one_line
from graf.data.advice.warnings import FEW_OBJECTS
from graf.data.folders import CONFIG, SHEET
from graf.photographs.cutout.grabcut import opencv
from graf.photographs.prepare import Prepared
from graf.photographs.reading import EXTRA
from graf.photographs.writing import LEFT_OUT, SIDES
from graf.runtime.command_line import as_typed

EXAMPLES = 3
DETAIL = re.compile(r"[:;,]| as | \(")  # ends what is the same for all photographs with a reason
HOW = {
    "kept": "with their own transparency",
    "mask": "by your masks",
    "negative mask": "by your masks, read as negatives, for their objects were black",
    "plain": "by the colour of a plain background",
    "refined": "by the colour of a plain background, refined by GrabCut",
    "grabcut": "by GrabCut alone",
    "corrected": "as another program left them",
    "none": "not cut out",
}


def summary(prepared: Prepared, out: Path, home: Path) -> list[str]:
    """Lines on what was read, kept and left out, and what to do next; home: the folder of the config, `out`, or the set like
    which the photographs were prepared."""
    config = load_config(home / CONFIG)
    videos = f", frames of {prepared.n_videos} videos among them" if prepared.n_videos else ""
    n_kept, n_left_out = len(prepared.made), len(prepared.left_out)
    lines = [f"{n_kept + n_left_out} photographs found{videos}; {n_kept} kept, {n_left_out} left out"]
    lines += [f"  {n} left out: {reason}" for reason, n in reasons(prepared.left_out).most_common()]
    if prepared.left_out:
        lines.append(f"  {out / LEFT_OUT} says why, photograph by photograph")
    if prepared.others:
        n_others = prepared.others.total()
        lines.append(f"passed over {n_others} files that are neither photographs nor videos: {_by_suffix(prepared.others)}")
    lines += [f"{n} {HOW[how]}" for how, n in Counter(made.how for made in prepared.made).most_common()]
    lines += _notes(prepared, out, config.data.imsize)
    if home != out:
        invert = as_typed("python", "eval.py", "--config", home / CONFIG, "--invert", prepared.made[0].file)
        return [*lines, f"look at {out / SHEET}, then:", f"  {invert}"]
    return [*lines, _on_objects(prepared), *_next(prepared, out, config)]


def nothing_usable(left_out: dict[str, str], others: Counter[str]) -> str:
    """Why no photograph can be used: how many were left out for which reasons, each with an example in full; others: files of
    other kinds, by suffix."""
    examples = {DETAIL.split(reason, maxsplit=1)[0]: f"{one_line(place)}: {reason}" for place, reason in left_out.items()}
    found = [f"{n} such as {examples[kind]}" for kind, n in reasons(left_out).most_common(EXAMPLES)]
    return "; ".join(found) or f"there is none in it{f', only {_by_suffix(others)}' if others else ''}"


def _by_suffix(files: Counter[str]) -> str:
    return ", ".join(f"{n} {one_line(suffix)}" for suffix, n in files.most_common(EXAMPLES))


def reasons(left_out: dict[str, str]) -> Counter[str]:
    """How many photographs were left out for each kind of reason, without the details that differ between them."""
    return Counter(DETAIL.split(reason, maxsplit=1)[0] for reason in left_out.values())


def _notes(prepared: Prepared, out: Path, imsize: int) -> list[str]:
    ways = Counter(made.how for made in prepared.made)
    found = []
    if any("pillow-heif" in reason for reason in prepared.left_out.values()):
        found.append(f"HEIC files are read with the package pillow-heif: {EXTRA}")
    if ways["none"] and not opencv():
        found.append(f"GrabCut cuts out what stands before a busy background, with OpenCV: {EXTRA}")
    if 0 < ways["none"] < len(prepared.made):
        found.append(
            "some photographs are cut out and others are not, so that silhouettes cannot be compared (data.alpha: ignore); "
            "make masks for the others, or leave them out"
        )
    if ways["grabcut"]:
        found.append(f"GrabCut errs where an object has colours of what is behind it: look at {out / SHEET}")
    if cut_off := [made for made in prepared.made if made.cut_off]:
        names = ", ".join(one_line(made.source.place) for made in cut_off[:EXAMPLES])
        found.append(
            f"objects that the frame of their photograph cuts off: {len(cut_off)}, such as {names}; better leave them out"
        )
    if prepared.renamed:
        n_renamed, names = len(prepared.renamed), ", ".join(map(one_line, prepared.renamed[:EXAMPLES]))
        found.append(
            f"photographs with another name in {out}, for theirs was taken or not printable: {n_renamed}, such as {names}"
        )
    if prepared.labels != "none":
        what = "the whole photograph is" if prepared.labels == "transforms" else "the centre square is"
        found.append(f"the photographs have cameras: {what} kept, and nothing is left out for being alike")
    if enlarged := sum(made.side < imsize for made in prepared.made):
        found.append(f"{enlarged} have fewer than {imsize} pixels a side and are enlarged in training")
    return found


def _on_objects(prepared: Prepared) -> str:
    number, how = prepared.objects
    text = f"different objects in all: about {number} ({how})"
    if number == 1:
        return (
            f"{text}: a single object is a matter for nerfstudio or COLMAP, which reconstruct it from its photographs; "
            "this project learns a class from photographs of many objects, and a trained generator reconstructs one with "
            "eval.py --invert"
        )
    if number < FEW_OBJECTS:
        return (
            f"{text}: few to learn a class from, which takes {FEW_OBJECTS} or more; to have one of them in 3D, nerfstudio "
            "reconstructs it"
        )
    return text


def _next(prepared: Prepared, out: Path, config: Config) -> list[str]:
    file, rays = as_typed(out / CONFIG), (SIDES[-1] // config.rendered_scale) ** 2
    smaller = f"--set data.imsize={SIDES[-1]} ray_sampler.rays_per_patch={rays}"
    lines = [
        f"look at {out / SHEET}{_before(prepared, out, config)}, then:",
        f"  python tools/validate_data.py --config {file}",
        f"  python tools/check_system.py --config {file} --use_amp",
        f"  python train.py --config {file} --use_amp",
    ]
    too_slow = f"if the second command tells more hours than you have, add {smaller} to the last two"
    return [*lines, too_slow] if config.data.imsize > SIDES[-1] else lines


def _before(prepared: Prepared, out: Path, config: Config) -> str:
    """What is to be done before the commands, if there is something."""
    ranked = prepared.labels == "filename" and name_pattern(prepared.name_pattern).elevation == "elevation"
    return f", say in data.v of {out / CONFIG} how high the camera stood" if ranked and not config.data.rings else ""
