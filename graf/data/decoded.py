"""Photographs as they are trained on, decoded once: in memory up to data.cache_gb, beyond it in a file.

Legend: N images, C channels, W side in pixels.
"""

import logging
import math
import multiprocessing
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from graf.config import Config
from graf.runtime.files import remove_leftovers
from graf.runtime.limits import GB, memory_limit

import numpy as np
import torch
from torch import Tensor

SHARE_OF_MEMORY = 1 / 8  # that they may take, at most, of the memory that the run may use
OPAQUE = 255  # of 8 bits

log = logging.getLogger("graf")


class Decoded:
    """N images (C, W, W) uint8, kept one by one while a data set is checked, by any thread; `read` gives them back.

    Loader processes share them: memory with the process that they are forked from, a file with everyone. Each read maps the
    file anew, so that its pages, which the system drops when it needs them, are not counted as the run's.
    """

    def __init__(self, shape: tuple[int, int, int, int], file: Path | None = None):
        self.shape, self.file = shape, file
        self.filled = False
        self._places: Sequence[int] = range(shape[0])  # of the images that `read` knows
        self._pixels, self._lock, self._unfinished, self._failure = None, threading.Lock(), None, None
        if file is None:
            self._pixels = torch.empty(shape, dtype=torch.uint8)
        elif file.is_file() and file.stat().st_size == math.prod(shape):
            self.filled = True
        else:
            self._unfinished = file.with_name(f".{file.stem}.{os.getpid()}.partial{file.suffix}")
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(self._unfinished, "wb") as empty:
                empty.truncate(math.prod(shape))

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_lock": None}  # for loader processes that are not forked, which only read

    def keep(self, index: int, image: Tensor) -> None:
        """Keep an image (C, W, W) uint8; one without the opacity that the others may have is opaque."""
        if len(image) < self.shape[1]:
            image = torch.cat([image, torch.full_like(image[:1], OPAQUE)])
        if self._pixels is not None:
            self._pixels[index] = image
        elif self._failure is None:
            pixels = image.contiguous().numpy().tobytes()
            try:
                with self._lock, open(self._unfinished, "r+b") as file:
                    file.seek(index * len(pixels))
                    file.write(pixels)
            except OSError as error:
                self._failure = error

    def finished(self) -> "Decoded | None":
        """All of them, once each is kept; None where the disk had no room, with a warning. The file is there whole, or not at
        all."""
        if self._unfinished:
            try:
                if self._failure:
                    raise self._failure
                with open(self._unfinished, "r+b") as file:
                    os.fsync(file.fileno())
                os.replace(self._unfinished, self.file)
            except OSError as error:
                self._unfinished.unlink(missing_ok=True)
                return _not_kept(self.file, error)
            self._unfinished = None
        self.filled = True
        return self

    def only(self, places: Sequence[int]) -> "Decoded":
        """The same with `read` counting these images alone, of which the others are not sound."""
        self._places = places
        return self

    def read(self, index: int) -> Tensor:
        """The image (C, W, W) uint8 of this index. Raises OSError or ValueError where the file is gone or cut off."""
        place = self._places[index]
        if self._pixels is not None:
            return self._pixels[place]
        return torch.from_numpy(np.array(np.memmap(self.file, np.uint8, "r", shape=self.shape)[place]))


def room_for(n: int, fingerprint: str, config: Config, folder: Path) -> Decoded | None:
    """Room for n photographs of a config: memory, or a file in the folder that is named by the set's fingerprint and replaces
    that of any other set. None with data.cache_gb: 0, and, with a warning, where a file cannot be written."""
    data, memory = config.data, config.memory
    shape = (n, 3 if data.alpha == "ignore" else 4, data.imsize, data.imsize)
    if not data.cache_gb or not n:
        return None
    may_use = min(memory.budget_gb * GB or math.inf, memory_limit())
    shared = config.training.nworkers == 0 or multiprocessing.get_start_method() == "fork"
    if shared and math.prod(shape) <= min(data.cache_gb * GB, SHARE_OF_MEMORY * may_use):
        return Decoded(shape)
    file = folder / f"photographs_{fingerprint[:16]}_{'x'.join(map(str, shape))}.pixels"
    try:
        remove_leftovers(folder, own=(".photographs_*",))
        for other in folder.glob("photographs_*.pixels"):
            if other != file:
                other.unlink()
        decoded = Decoded(shape, file)
    except OSError as error:
        return _not_kept(file, error)
    log.info("decoded photographs (%.2f GB) are kept in %s; data.cache_gb: 0 keeps none", math.prod(shape) / GB, file)
    return decoded


def _not_kept(file: Path, error: OSError) -> None:
    log.warning(
        "%s: cannot be written (%s); photographs are decoded each time that they are read, which may be slower; make room, or "
        "set data.cache_gb to what memory has room for",
        *(file, error.strerror or error),
    )
