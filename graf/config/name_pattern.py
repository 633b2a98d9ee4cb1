"""data.name_pattern: which parts of an image's file name are its class, its object and its camera.

    <elevation>_<azimuth_deg>                      0_0090: the rank of the elevation among those of all names, and degrees
    <class><object>-<polar_deg>-<azimuth_deg>      car3-066-153: degrees from straight above, and around
    <object>_<index>                               chair_0012: the twelfth of pictures data.turntable_step_deg apart

A name is that of the file without its extension, and has to match from its first to its last character.
"""

import dataclasses
import functools
import re

NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
PARTS = {
    "class": r"\D*[^\W\d]",  # ends with a letter, so that an object's number may follow
    "object": r".+?",
    "index": r"[0-9]+",
    **dict.fromkeys(("elevation", "elevation_deg", "polar_deg", "azimuth_deg"), NUMBER),
}
ELEVATIONS = ("elevation", "elevation_deg", "polar_deg")
NAMED_BY_RANK = "<elevation>_<azimuth_deg>"
PART = re.compile(r"<([^<>]*)>")


@dataclasses.dataclass(frozen=True)
class NamePattern:
    """A pattern's parts in their order, and the expression whose groups they are."""

    text: str
    parts: tuple[str, ...]
    expression: re.Pattern

    @property
    def elevation(self) -> str | None:
        """The part that tells the elevation."""
        return next((part for part in self.parts if part in ELEVATIONS), None)

    @property
    def azimuth(self) -> str | None:
        """The part that tells the azimuth: in degrees, or as the number of a turntable's picture."""
        return next((part for part in ("azimuth_deg", "index") if part in self.parts), None)

    def read(self, stem: str) -> dict[str, str] | None:
        """The text of each part of a file's name without its extension; None where it does not match."""
        match = self.expression.fullmatch(stem)
        return match.groupdict() if match else None


@functools.lru_cache
def name_pattern(text: str) -> NamePattern:
    """The pattern of a text such as "<elevation>_<azimuth_deg>". Raises ValueError with what is wrong and what is possible."""
    parts = PART.findall(text)
    possible = ", ".join(f"<{part}>" for part in PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"<{unknown[0]}> is no part of a name; they are {possible}")
    if not parts:
        raise ValueError(f"has no part in angle brackets; they are {possible}")
    if repeated := [part for part in parts if parts.count(part) > 1]:
        raise ValueError(f"has <{repeated[0]}> twice")
    if len(elevations := [part for part in parts if part in ELEVATIONS]) > 1:
        raise ValueError(f"tells the elevation twice, by <{elevations[0]}> and <{elevations[1]}>; leave one out")
    pieces = PART.split(text)  # the texts between the parts, and the parts, in turns
    groups = [f"(?P<{piece}>{PARTS[piece]})" if i % 2 else re.escape(piece) for i, piece in enumerate(pieces)]
    return NamePattern(text, tuple(parts), re.compile("".join(groups)))
