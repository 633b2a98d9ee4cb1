"""Labels in the names of files, as data.name_pattern reads them: class, object, and a camera that looks at the origin.

An elevation is given in degrees, as a rank among those of all names, which is the index into data.v, or by data.v alone.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graf.camera import elevation_of_v, poses_at, v_of_elevation
from graf.config import DataConfig
from graf.config.name_pattern import NAMED_BY_RANK, NamePattern, name_pattern
from graf.config.strict import one_line
from graf.data.folders import Fault, Folder, Item

import torch

MOST_ELEVATIONS = 32  # that are bins of their own
EXAMPLE_ELEVATIONS_DEG = (0, 15, 30, 45, 60)
OTHER_WAY = "negative where the object is seen turning the other way"
FEWEST_FRAMES = 8  # whose azimuths 1, 2, 3, ... are more likely numbers of frames

log = logging.getLogger("graf")


def read_names(folders: Sequence[Folder], data: DataConfig) -> list[dict[str, str] | None]:
    """The parts of every image's name; None where the name does not match data.name_pattern."""
    pattern = name_pattern(data.name_pattern)
    return [pattern.read(file.stem) for folder in folders for file in folder.images]


def names_have_cameras(folders: Sequence[Folder], data: DataConfig) -> bool:
    """Whether at least half of the names tell an angle; fewer are chance, and are told. Names such as 20240714_150107, none of
    which can be one, are timestamps."""
    pattern = name_pattern(data.name_pattern)
    if pattern.azimuth == "index":
        return data.turntable_step_deg != 0
    if pattern.azimuth is None:
        return False
    files = [file.name for folder in folders for file in folder.images]
    told = [
        name
        for name, parts in zip(files, read_names(folders, data), strict=True)
        if parts is not None and is_azimuth(parts["azimuth_deg"], pattern)
    ]
    if 0 < 2 * len(told) < len(files):
        log.warning(
            "%d of %d names look like cameras, such as %s; most do not, so none is read as one. If these are cameras, put "
            "their images into a folder of their own",
            *(len(told), len(files), one_line(told[0])),
        )
    return 2 * len(told) >= len(files) > 0


def elevations_in(names: Sequence[dict[str, str] | None], pattern: NamePattern, data: DataConfig) -> list[float]:
    """The elevations that the names tell, as they write them, in ascending order: ranks or degrees. Names of images that
    data.on_bad_file: skip leaves out do not count."""
    if pattern.elevation is None:
        return []
    left_out = data.on_bad_file == "skip"
    counted = [parts for parts in names if parts and not (left_out and _label_problem(parts, pattern, data))]
    return sorted({float(parts[pattern.elevation]) for parts in counted})


def elevation_bins(elevations: Sequence[float], pattern: NamePattern, data: DataConfig) -> int:
    """Bins of elevation of images whose names tell these elevations."""
    if pattern.elevation in ("elevation_deg", "polar_deg"):
        return len(elevations) if 0 < len(elevations) <= MOST_ELEVATIONS else 1
    return max(1, len(data.rings))


def items_by_name(folders: list[Folder], data: DataConfig) -> tuple[list[Item], int, list[Fault]]:
    """The images with the cameras given by their names, at the middle of data.radius; the bins of their elevations; and a fault
    per name without a camera. An elevation beyond data.v is no fault of its image alone: those of the others are in doubt."""
    pattern, names = name_pattern(data.name_pattern), read_names(folders, data)
    if pattern.azimuth is None:
        cure = "write <azimuth_deg> or <index> where the names have it, or set data.labels: none"
        faults = [Fault("data.name_pattern", f"{pattern.text} tells no azimuth, which data.labels: filename needs; {cure}")]
        return [], max(1, len(data.rings)), faults
    elevations = elevations_in(names, pattern, data)
    unknown = _unknown_elevation(elevations, pattern, data)
    items, faults = [], [Fault("data.v", unknown)] if unknown else []
    n_elevations = elevation_bins(elevations, pattern, data)
    files = [(index, file) for index, folder in enumerate(folders) for file in folder.images]
    for (class_index, file), parts in zip(files, names, strict=True):
        item = Item(file, class_index)
        if problem := _label_problem(parts, pattern, data):
            faults.append(Fault(str(file), problem, of_image=True))
        elif problem := _rank_beyond_v(parts, pattern, elevations, data):
            faults.append(Fault(str(file), problem))
        elif not unknown:
            azimuth_deg = torch.tensor(_azimuth_deg(parts, pattern, data))
            v = torch.tensor(_v(parts, pattern, elevations, data))
            rank = elevations.index(float(parts[pattern.elevation])) if pattern.elevation and n_elevations > 1 else 0
            item = replace(item, pose_c2w=poses_at(azimuth_deg, v, sum(data.radius) / 2), elevation_index=rank)
        items.append(item)
    return items, n_elevations, faults


def unmatched_pattern(folders: Sequence[Folder], data: DataConfig) -> list[Fault]:
    """A fault where data.name_pattern was given and no name matches it."""
    names = [file.stem for folder in folders for file in folder.images]
    if data.name_pattern == NAMED_BY_RANK or not names or any(read_names(folders, data)):
        return []
    cure = "correct it, or leave it out"
    return [Fault("data.name_pattern", f"{data.name_pattern} matches none of {len(names)} names, such as {names[0]}; {cure}")]


def with_named_classes(items: list[Item], folders: Sequence[Folder], data: DataConfig) -> tuple[list[Item], list[str]]:
    """The items with the class and the object that their names tell, and the names of all classes; without <class> in
    data.name_pattern these are the folders."""
    pattern, class_names = name_pattern(data.name_pattern), _names_apart([folder.path.resolve() for folder in folders])
    if "class" not in pattern.parts and "object" not in pattern.parts:
        return items, class_names
    parts_of = [pattern.read(item.file.stem) or {} for item in items]
    if "class" in pattern.parts:
        classes = [parts.get("class", item.file.parent.name) for item, parts in zip(items, parts_of, strict=True)]
        class_names = sorted(set(classes))
        items = [replace(item, class_index=class_names.index(name)) for item, name in zip(items, classes, strict=True)]
    named = [item.object or _object(parts, class_names[item.class_index]) for item, parts in zip(items, parts_of, strict=True)]
    return [replace(item, object=name) for item, name in zip(items, named, strict=True)], class_names


def _names_apart(folders: Sequence[Path]) -> list[str]:
    """The folders' names, where several have one with as much of their paths as tells them apart."""
    names = [folder.name for folder in folders]
    for n_parts in range(2, 1 + max((len(folder.parts) for folder in folders), default=0)):
        counts = Counter(names)
        if len(counts) == len(names):
            break
        longer = ["/".join(folder.parts[-n_parts:]) for folder in folders]
        names = [longer[i] if counts[name] > 1 else name for i, name in enumerate(names)]
    return names


def _object(parts: dict[str, str], class_name: str) -> str | None:
    """The object that a name tells, in its class; None where it tells none."""
    return f"{class_name}/{parts['object']}" if "object" in parts else None


def report_names(folders: Sequence[Folder], data: DataConfig) -> None:
    """Log the polar position given to each elevation of the names, and warn of what is probably read wrongly."""
    pattern, names = name_pattern(data.name_pattern), read_names(folders, data)
    elevations = elevations_in(names, pattern, data)
    if pattern.elevation == "elevation":
        pairs = ", ".join(f"{rank:g} -> v {v:g}" for rank, v in zip(elevations, data.rings, strict=False))
        log.info("cameras from file names, elevations: %s; if the names are no angles, set data.labels: none", pairs)
        if len(elevations) < len(data.rings):  # with more no image is read
            log.warning(
                "the names have %d elevations, data.v %d, whose first went to the smallest prefix (%s); say what each is: %s",
                *(len(elevations), len(data.rings), pairs, v_flag(data.rings, len(elevations))),
            )
    elif pattern.elevation:
        reference = "above the horizon" if pattern.elevation == "elevation_deg" else "from straight above"
        log.info("cameras from file names, elevations %s degrees %s", _listed(elevations), reference)
    else:
        log.info("cameras from file names, all %.0f degrees above the horizon (data.v)", elevation_of_v(data.rings[0]))
    _warn_of_frame_numbers(names, pattern)


def _warn_of_frame_numbers(names: Sequence[dict[str, str] | None], pattern: NamePattern) -> None:
    if pattern.azimuth != "azimuth_deg":
        return
    azimuths = sorted({float(parts["azimuth_deg"]) for parts in names if parts})
    n, step_deg = len(azimuths), turn_step_deg(azimuths)
    if step_deg and n >= FEWEST_FRAMES:
        log.warning(
            "the azimuths are %g, %g, ... %g degrees; if these are the numbers of a turn's %d pictures, set data.name_pattern: "
            "%s and data.turntable_step_deg: %.6g (%s)",
            *(azimuths[0], azimuths[1], azimuths[-1], n, pattern.text.replace("azimuth_deg", "index"), step_deg, OTHER_WAY),
        )


def turn_step_deg(numbers: Sequence[float]) -> float | None:
    """The degrees between the pictures of a whole turn, by their numbers in ascending order; None where these are not 0, 1, 2,
    ... or 1, 2, 3, ..., or too many."""
    n = len(numbers)
    if 1 < n < 180 and numbers[0] in (0, 1) and list(numbers) == [numbers[0] + i for i in range(n)]:
        return 360 / n
    return None


def _unknown_elevation(elevations: list[float], pattern: NamePattern, data: DataConfig) -> str | None:
    """Why the elevation of names that do not tell it in degrees is not known, and what to do."""
    examples = ", ".join(f"{degrees} degrees {v_of_elevation(degrees):.3g}" for degrees in EXAMPLE_ELEVATIONS_DEG)
    table = f"by the camera's height above the horizon: {examples}"
    if pattern.elevation == "elevation" and elevations and not data.rings:
        degrees = " or ".join(pattern.text.replace("<elevation>", f"<{part}>") for part in ("elevation_deg", "polar_deg"))
        return (
            f"is not given, and the file names have the elevations {_listed(elevations)}; if these are degrees, set "
            f"data.name_pattern: {degrees} (from straight above); else name a v for each, smallest first, {table}. "
            "If the names are no cameras, set data.labels=none"
        )
    if pattern.elevation is None and len(data.rings) != 1:
        found = f"has {len(data.rings)} values" if data.rings else "is not given"
        return f"{found}, and {pattern.text} tells no elevation; set data.v to that of all images, {table}"
    return None


def _listed(elevations: Sequence[float]) -> str:
    return ", ".join(f"{elevation:g}" for elevation in elevations[:8]) + (", ..." if len(elevations) > 8 else "")


def v_flag(v: Sequence[float], n: int) -> str:
    """The flag that sets data.v to its first n values."""
    return f'--set "data.v=[{",".join(f"{value:g}" for value in v[:n])}]"'


def _azimuth_deg(parts: dict[str, str], pattern: NamePattern, data: DataConfig) -> float:
    if pattern.azimuth == "index":
        return int(parts["index"]) * data.turntable_step_deg % 360
    return float(parts["azimuth_deg"])


def _v(parts: dict[str, str], pattern: NamePattern, elevations: list[float], data: DataConfig) -> float:
    if pattern.elevation is None:
        return data.rings[0]
    value = float(parts[pattern.elevation])
    if pattern.elevation == "elevation":
        return data.rings[elevations.index(value)]
    return v_of_elevation(value if pattern.elevation == "elevation_deg" else 90 - value)


def is_azimuth(text: str, pattern: NamePattern) -> bool:
    """Whether a number can be meant as an azimuth: from 0 to 360 degrees, or also below 0 where the pattern was asked for."""
    return (0 if pattern.text == NAMED_BY_RANK else -360) <= float(text) < 360


def _label_problem(parts: dict[str, str] | None, pattern: NamePattern, data: DataConfig) -> str | None:
    """The fault of the label in a file's name, and what to do; None for a label that gives a camera."""
    if parts is None:
        example = ", as in 0_0090.png" if pattern.text == NAMED_BY_RANK else " (data.name_pattern)"
        return f"no label in the name; expected {pattern.text}{example} (or set data.labels: none to train without cameras)"
    if pattern.azimuth == "index":
        if data.turntable_step_deg == 0:
            return "the name has an index, but data.turntable_step_deg is 0; set it to the degrees between two pictures"
    elif not is_azimuth(parts["azimuth_deg"], pattern):
        azimuth = parts["azimuth_deg"]
        return (
            f"the azimuth {azimuth} is outside [0, 360) degrees; name the file for the angle {float(azimuth) % 360:g} "
            "(or set data.labels: none, if it is no angle)"
        )
    if pattern.elevation in ("elevation_deg", "polar_deg"):
        low, high = (-90, 90) if pattern.elevation == "elevation_deg" else (0, 180)
        degrees = float(parts[pattern.elevation])
        if not low <= degrees <= high:
            return (
                f"<{pattern.elevation}> is {degrees:g}, outside {low} to {high} degrees; correct data.name_pattern or the name"
            )
    return None


def _rank_beyond_v(parts: dict[str, str], pattern: NamePattern, elevations: list[float], data: DataConfig) -> str | None:
    """What to do where data.v has no entry for the elevation in a file's name; None where it has."""
    if pattern.elevation != "elevation" or not data.rings:
        return None
    rank = elevations.index(float(parts["elevation"]))
    if rank < len(data.rings):
        return None
    return (
        f"the elevation {parts['elevation']} is number {rank + 1} of those in the names ({_listed(elevations)}), but "
        f"data.v has only {len(data.rings)}; give data.v one entry for each"
    )
