"""The last rows of a JSON-lines file that grows, read in bounded memory."""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from graf.runtime.files import json_rows

TAIL_BYTES = 2**20  # read at a time, at most; what is further from the end is skipped


class Tail:
    """Rows near the end of a file that another program appends to, or replaces by a shorter one.

    Each update reads only new bytes, and at most TAIL_BYTES of them. A line that is still being written is read later; one
    that cannot be parsed is left out.
    """

    def __init__(self, path: Path, wanted: Callable[[dict], bool], kept: int):
        """`rows` will hold the last `kept` rows that are `wanted`; all of these have an integer `step`."""
        self.path, self.wanted = path, wanted
        self.rows: deque[dict] = deque(maxlen=kept)
        self._file: tuple[int, int] | None = None
        self._offset = 0

    def update(self) -> None:
        """Read the lines appended since the last update; start from the beginning where the file was replaced or removed."""
        try:
            with self.path.open("rb") as file:
                block = self._new_lines(file)
        except OSError:
            self._begin(None)
            return
        rows = (row for row in json_rows(block.splitlines()) if isinstance(row.get("step"), int))
        self.rows.extend(row for row in rows if self.wanted(row))

    def _begin(self, file: tuple[int, int] | None) -> None:
        self.rows.clear()
        self._file, self._offset = file, 0

    def _new_lines(self, file: BinaryIO) -> bytes:
        """Complete lines from the offset on, which moves to their end."""
        stat = os.fstat(file.fileno())
        if self._file != (stat.st_dev, stat.st_ino) or stat.st_size < self._offset:
            self._begin((stat.st_dev, stat.st_ino))
        start = max(self._offset, stat.st_size - TAIL_BYTES)
        file.seek(start)
        block = file.read(TAIL_BYTES)
        cut = b"" if start == self._offset else block[: block.find(b"\n") + 1 or len(block)]  # the end of a line
        lines = block[len(cut) :]
        lines = lines[: lines.rfind(b"\n") + 1]
        self._offset = start + len(cut) + len(lines)
        return lines
