"""A cache of decoded images as they are trained on: in memory up to data.cache_gb, beyond it in a file.

Legend: N images, C channels, W side in pixels.
"""

import contextlib
import errno
import logging
import math
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from graf.config import Config
from graf.data.loader import start_method
from graf.runtime.files import remove_leftovers
from graf.runtime.limits import GB, local_processes, memory_limit

import numpy as np
import torch
from torch import Tensor

MEMORY_SHARE = 1 / 8  # of the memory that the run may use, at most
OPAQUE = 255  # of 8 bits

log = logging.getLogger("graf")
writing = threading.Lock()


class ImageCache:
    """N images (C, W, W) uint8, put in by any thread while a data set is checked; `read` gives them back.

    Loader processes share them: memory with the process that they are forked from, a file with everyone. Each read maps the
    file anew, so that its pages, which the system drops when it needs them, are not counted as the run's. Behind the pixels a
    file has a byte per image, 1 where it was put in: one that cannot be read in this run may be sound in the next.
    """

    def __init__(self, shape: tuple[int, int, int, int], file: Path | None = None):
        self.shape, self.file = shape, file
        self.filled = False
        self._size = math.prod(shape)  # bytes of all pixels
        self._present = bytearray(shape[0])
        self._rows: Sequence[int] = range(shape[0])  # of the images that `read` knows
        self._pixels, self._unfinished, self._failure = None, None, None
        if file is None:
            self._pixels = torch.empty(shape, dtype=torch.uint8)
        elif file.is_file() and file.stat().st_size == self._size + shape[0]:
            with open(file, "rb") as stream:
                stream.seek(self._size)
                self._present = bytearray(stream.read())
            self.filled = True
        else:
            self._unfinished = file.with_name(f".{file.stem}.{os.getpid()}.partial{file.suffix}")
            file.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(file.parent).free < self._size:  # it would leave no room for checkpoints
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for its {self._size / GB:.2f} GB")
            self._unfinished.touch()

    def put(self, index: int, image: Tensor) -> None:
        """Keep an image (C, W, W) uint8; one without the opacity that others may have is opaque."""
        if len(image) < self.shape[1]:
            image = torch.cat([image, torch.full_like(image[:1], OPAQUE)])
        if self._pixels is not None:
            self._pixels[index] = image
        elif self._failure is None:
            pixels = image.contiguous().numpy().tobytes()
            try:
                with writing, open(self._unfinished, "r+b") as file:
                    file.seek(index * len(pixels))
                    file.write(pixels)
            except OSError as error:
                self._failure = error
                return
        self._present[index] = 1

    def finish(self) -> "ImageCache | None":
        """Complete the file, which is there whole or not at all; None, with a warning, where it cannot be written."""
        if self._unfinished:
            try:
                if self._failure:
                    raise self._failure
                with open(self._unfinished, "r+b") as file:
                    file.seek(self._size)
                    file.write(self._present)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(self._unfinished, self.file)
            except OSError as error:
                self.discard()
                return _warn_unwritable(self.file, error)
            self._unfinished = None
        self.filled = True
        return self

    def discard(self) -> None:
        """Remove the file that is not finished, if there is one."""
        if self._unfinished:
            with contextlib.suppress(OSError):
                self._unfinished.unlink(missing_ok=True)

    def select(self, rows: Sequence[int]) -> "ImageCache":
        """The same cache, in which `read` counts these images only."""
        self._rows = rows
        return self

    def read(self, index: int) -> Tensor:
        """Image (C, W, W) uint8. Raises OSError or ValueError where it is absent, or the file is gone or cut off."""
        row = self._rows[index]
        if not self._present[row]:
            raise ValueError(f"image {row} is not in the cache")
        if self._pixels is not None:
            return self._pixels[row]
        return torch.from_numpy(np.array(np.memmap(self.file, np.uint8, "r", shape=self.shape)[row]))


def image_cache(n: int, fingerprint: str, config: Config, folder: Path) -> ImageCache | None:
    """The cache for n images of a config: in memory, or in a file of the folder, named by the set's fingerprint.

    None with data.cache_gb: 0, and, with a warning, where a file cannot be written. Files of other sets are removed.
    """
    data, memory = config.data, config.memory
    shape = (n, 3 if data.alpha == "ignore" else 4, data.imsize, data.imsize)
    may_use = min(memory.budget_gb * GB or math.inf, memory_limit()) // local_processes()
    shared = config.training.nworkers == 0 or start_method() == "fork"
    in_memory = shared and math.prod(shape) <= min(data.cache_gb * GB, MEMORY_SHARE * may_use)

    def named(shape: tuple[int, ...]) -> Path:
        return folder / f"photographs_{fingerprint[:16]}_{'x'.join(map(str, shape))}.pixels"

    file, with_opacity = named(shape), (n, 4, *shape[2:])
    if named(with_opacity).is_file() and not in_memory:  # written while it was not known whether there is any
        shape, file = with_opacity, named(with_opacity)
    with contextlib.suppress(OSError):
        remove_leftovers(folder, own=(".photographs_*",))
        for other in folder.glob("photographs_*.pixels"):
            if other != file or in_memory or not data.cache_gb:
                other.unlink()
    if not data.cache_gb or not n:
        return None
    if in_memory:
        return ImageCache(shape)
    try:
        cache = ImageCache(shape, file)
    except OSError as error:
        return _warn_unwritable(file, error)
    log.info("decoded images (%.2f GB; data.cache_gb: 0 keeps none) are kept in %s", math.prod(shape) / GB, file)
    return cache


def _warn_unwritable(file: Path, error: OSError) -> None:
    log.warning(
        "%s: cannot be written (%s); images are decoded each time that they are read, which may be slower; make room, or set "
        "data.cache_gb to what memory has room for",
        *(file, error.strerror or error),
    )
