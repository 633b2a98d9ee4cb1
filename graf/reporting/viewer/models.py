"""The models that the viewer shows: each read once for all browsers, and again when its checkpoint has changed."""

import contextlib
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from graf.errors import GrafError
from graf.reporting.viewer.object_view import Model, training_views

log = logging.getLogger("graf")

RELOAD_EVERY_S = 1.0


class Models:
    """The models of all browsers, by their source: a run's folder or a checkpoint."""

    def __init__(self, sources: list[Path], load: Callable[[Path], Model], clock: Callable[[], float] = time.monotonic):
        """sources: runs' folders and checkpoints; load: reads the model of one, and raises GrafError."""
        self.sources, self._load, self._clock = list(sources), load, clock
        self._loaded: dict[Path, Model] = {}
        self._seen: dict[Path, tuple[float, tuple]] = {}  # when a source was checked, and the stamp of its file
        self._views: dict[Path, Future] = {}
        self.background = ThreadPoolExecutor()  # for what takes seconds

    def load_first(self) -> None:
        """Load the first source that is a generator, and leave out those before it. Raises GrafError where there is none."""
        while True:
            try:
                self.get(self.sources[0])
                return
            except GrafError as error:
                if len(self.sources) == 1:
                    raise
                log.warning("left out: %s", error)
                del self.sources[0]

    def get(self, source: Path) -> Model:
        """The model of a source. If a changed checkpoint cannot be read, that is logged and the previous model is kept."""
        now = self._clock()
        checked, stamp = self._seen.get(source, (-math.inf, ()))
        if now - checked < RELOAD_EVERY_S:
            return self._loaded[source]
        found = _stamp(source)
        if found != stamp or source not in self._loaded:
            try:
                self._loaded[source] = self._load(source)
            except GrafError as error:
                if source not in self._loaded:
                    raise
                log.warning("%s; the viewer goes on with step %d", error, self._loaded[source].step)
            else:
                log.info("%s: step %d", self._loaded[source].checkpoint, self._loaded[source].step)
        self._seen[source] = now, found
        return self._loaded[source]

    def training_views(self, source: Path) -> Future:
        """The result of `object_view.training_views`, read once, in the background: a data set may have to be made first."""
        if source not in self._views or (self._views[source].done() and self._views[source].exception()):
            config = self.get(source).generator.config
            self._views[source] = self.background.submit(training_views, config)
        return self._views[source]


def _stamp(source: Path) -> tuple:
    """Time, size and inode of a checkpoint, a run's model.pt; () where there is none."""
    with contextlib.suppress(OSError):
        found = (source / "model.pt" if source.is_dir() else source).stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
    return ()
