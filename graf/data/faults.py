"""What is wrong with a data set, told as one message."""

from collections.abc import Sequence
from dataclasses import dataclass

from graf.config.strict import one_line

LINES_SHOWN = 20
FILES_SHOWN_PER_PROBLEM = 3


@dataclass(frozen=True)
class Fault:
    """Where (a file, a folder or a key), and what is wrong with its cure. data.on_bad_file: skip forgives those of images."""

    where: str
    problem: str
    of_image: bool = False


def describe(faults: Sequence[Fault]) -> str:
    """One line a fault; a problem of many files is told for the first of them and counted for the others."""
    files_of: dict[str, list[str]] = {}
    for fault in faults:
        files_of.setdefault(fault.problem, []).append(one_line(fault.where))
    lines, n_told = [], 0
    for problem, files in files_of.items():
        if len(lines) >= LINES_SHOWN:
            lines.append(f"... and {len(faults) - n_told:,} more")
            break
        lines += [f"{file}: {problem}" for file in files[:FILES_SHOWN_PER_PROBLEM]]
        if len(files) > FILES_SHOWN_PER_PROBLEM:
            lines.append(f"... and {len(files) - FILES_SHOWN_PER_PROBLEM:,} more with the same fault, to {files[-1]}")
        n_told += len(files)
    head = [] if len(faults) == 1 else [f"{len(faults):,} faults in the data:"]
    return "\n".join([*head, *lines])
