"""What names of files may tell of cameras, and the keys that read it."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from graf.config import DataConfig
from graf.data.labels.names import OTHER_WAY, turn_step_deg
from graf.data.views import Views

ANGLES = re.compile(  # car3-066-153: an object, and two numbers
    r"(?:(?P<object>.*?[^\W_])(?P<after>[-_ .]))?(?P<elevation>\d+(?:\.\d+)?)(?P<between>[-_ ])(?P<azimuth>\d+(?:\.\d+)?)"
)
LAST_NUMBER = re.compile(r"(?:(?P<object>.*?[^\W_])(?P<after>[_ ]+|-))?(?P<number>-?\d+(?:\.\d+)?)")  # shoe1_090
FEWEST_OBJECTS, FEWEST_VIEWS = 3, 4  # that have the same numbers, and that look like a turn


def hint_of_names(dataset: Views, data: DataConfig) -> str | None:
    """How to read names of files that may tell cameras: most end in two numbers, or in one that other objects have too."""
    files = [Path(file) for file in dataset.files]
    labels = "data.labels=filename " if data.labels == "none" else ""
    return _hint_of_two_numbers(files, labels) or _hint_of_one_number(files, labels, data)


def _hint_of_two_numbers(files: Sequence[Path], labels: str) -> str | None:
    matches = [match for match in (ANGLES.fullmatch(file.stem) for file in files) if match]
    matches = [match for match in matches if float(match["azimuth"]) < 360 and float(match["elevation"]) <= 180]
    if 2 * len(matches) < len(files) or len({match["azimuth"] for match in matches}) == 1:
        return None
    elevations = sorted({float(match["elevation"]) for match in matches})
    if len(elevations) >= FEWEST_OBJECTS and turn_step_deg(elevations):  # 1, 2, 3, ... are objects
        return None
    first = matches[0]
    pattern = f"{_before(first)}<elevation_deg>{first['between']}<azimuth_deg>"
    return (
        f'if {first[0]} has angles, --set {labels}"data.name_pattern={pattern}" reads them (<polar_deg>: from straight above)'
    )


def _hint_of_one_number(files: Sequence[Path], labels: str, data: DataConfig) -> str | None:
    turns: dict[tuple, dict[float, re.Match]] = defaultdict(dict)  # of each object, the names by their numbers
    for file in files:
        match = LAST_NUMBER.fullmatch(file.stem)
        if match and abs(float(match["number"])) < 360:
            turns[file.parent, match["object"], match["after"]][float(match["number"])] = match
    alike = Counter(frozenset(turn) for turn in turns.values()).most_common(1)
    numbers, n_objects = alike[0] if alike else ((), 0)
    if n_objects < FEWEST_OBJECTS or len(numbers) < FEWEST_VIEWS or 2 * n_objects * len(numbers) < len(files):
        return None
    first = next(turn for turn in turns.values() if turn.keys() == numbers)[min(numbers)]
    notes = [] if len(data.rings) == 1 else ["V by the cameras' height, as docs/datasets.md says"]
    height = ' "data.v=[V]"' if notes else ""
    if step_deg := turn_step_deg(sorted(numbers)):
        found, part = f"is one of a whole turn's {len(numbers)} pictures", f'<index>" data.turntable_step_deg={step_deg:.6g}'
        notes = [OTHER_WAY, *notes]
    else:
        found, part = "has an azimuth in degrees", '<azimuth_deg>"'
    pattern = f'{labels}"data.name_pattern={_before(first)}{part}{height}'
    explained = f" ({'; '.join(notes)})" if notes else ""
    return f"if {first[0]} {found}, --set {pattern} reads its camera{explained}"


def _before(match: re.Match) -> str:
    """What a pattern has before the first number."""
    return f"<object>{match['after']}" if match["object"] else ""
