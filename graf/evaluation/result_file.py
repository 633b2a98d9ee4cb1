"""metrics.json: the results of one checkpoint. Each measurement adds to them; results of different checkpoints never mix."""

import dataclasses
import itertools
import json
import logging
from pathlib import Path

from graf.config import Config
from graf.evaluation.metrics import rendering_sha256, same_protocol
from graf.runtime.files import write_text

log = logging.getLogger("graf")

METRICS_FILE = "metrics.json"
OF_IMAGES = ("consistency", "sweep")  # entries that record the settings their images were drawn with


@dataclasses.dataclass(frozen=True)
class ResultFile:
    """The results in `folder` of a checkpoint after `step`, drawn by `config`; averaged: its weights are a moving average.

    checkpoint_sha256 is of the file as it was read: a running training may have replaced or removed it since.
    """

    folder: Path
    checkpoint: Path
    checkpoint_sha256: str
    step: int
    averaged: bool
    config: Config

    @property
    def drawn_by(self) -> dict[str, str]:
        """The values that an entry of OF_IMAGES must have; otherwise it is of other images."""
        return {"rendering_sha256": rendering_sha256(self.config)}

    def kept(self) -> dict:
        """The file's content, as far as it is of this checkpoint, drawn with this config."""
        return self._kept_of(self._content())

    def keep(self, result: dict) -> Path:
        """Add a result to the file and return its path. A file whose numbers would be lost is renamed first."""
        file = self.folder / METRICS_FILE
        identity = {
            "step": self.step,
            "ema": self.averaged,
            "checkpoint": self.checkpoint.name,
            "checkpoint_sha256": self.checkpoint_sha256,
        }
        found = self._content()
        content = self._kept_of(found) | identity | result
        if file.exists() and (reason := self._reason_to_part(found, content)):
            aside = next(path for i in itertools.count(1) if not (path := file.with_stem(f"{file.stem}_{i}")).exists())
            file.rename(aside)
            log.warning("%s: %s; it is now %s, and new results begin a file of their own", file, reason, aside.name)
        write_text(file, json.dumps(content, indent=1))
        return file

    def _content(self) -> dict:
        """{} where the file cannot be read as a dictionary."""
        try:
            content = json.loads((self.folder / METRICS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _kept_of(self, content: dict) -> dict:
        if content.get("checkpoint_sha256") != self.checkpoint_sha256:
            return {}
        return {name: entry for name, entry in content.items() if name not in OF_IMAGES or self._drew(entry)}

    def _drew(self, entry: object) -> bool:
        return isinstance(entry, dict) and entry.items() >= self.drawn_by.items()

    def _reason_to_part(self, found: dict, new: dict) -> str:
        """Why the file's content `found` cannot all be kept in the new one; empty where it can."""
        if "checkpoint_sha256" not in found:
            return "it is not a file of this program's results"
        if found["checkpoint_sha256"] != self.checkpoint_sha256:
            return f"its results are of another checkpoint, {found.get('checkpoint')}"
        if found.keys() - self._kept_of(found).keys():
            return "it has results of images that were drawn with other settings"
        if "values" in found and not same_protocol(found, new):
            return "its values are of another protocol or of other samples"
        return ""
