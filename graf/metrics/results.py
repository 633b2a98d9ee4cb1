"""Results of `metrics.measure`: which may be compared and are best, how they are named, and metrics.json, which keeps them."""

import dataclasses
import hashlib
import json
import logging
import math
from pathlib import Path

from graf.config import Config
from graf.config.digest import rendering_sha256
from graf.runtime.files import read_object, set_aside, write_text

log = logging.getLogger("graf")

METRICS_FILE = "metrics.json"
OF_IMAGES = (  # entries with the settings of their images
    *("consistency", "sweep", "variety", "coverage", "haze", "pose"),
    *("splats", "mesh"),  # exports, rendered back
)
FEWEST_IMAGES = {"fid": 2, "kid": 2, "prc": 4}  # of each kind, by a metric's name; prc looks at the third neighbour
COMPARABLE = (
    *("extractor", "weights_sha256", "resize", "resolution", "n_real", "n_fake", "real_fingerprint"),
    *("kid_subsets", "kid_subset_size", "seed"),
)
SAMPLES = ("sample_seed", "truncation", "generator_sha256", "rendering_sha256")  # what the generated images depend on


def comparable(result: dict) -> dict:
    """What two results of `measure` must share for their values to be compared."""
    return {name: result[name] for name in COMPARABLE}


def same_protocol(earlier: dict, result: dict) -> bool:
    """Whether the values of two results of `measure_generator` may stand beside each other."""
    return all(earlier.get(name) == result.get(name) for name in (*COMPARABLE, *SAMPLES))


def merged(earlier: dict, result: dict) -> dict:
    """A result of `measure_generator` with the values that an earlier one under the same protocol has besides."""
    if "values" not in earlier or not same_protocol(earlier, result):
        return result
    return result | {
        "values": earlier["values"] | result["values"],
        "warnings": list(dict.fromkeys([*earlier["warnings"], *result["warnings"]])),
    }


def new_best(result: dict, best: dict | None, metric: str, step: int) -> dict | None:
    """The new best measurement, as a run records it, if a result of `measure` after `step` is better than `best`; else None.

    metric: "fid" or "kid"; lower is better. A result under another protocol than the best so far cannot be compared with it
    and replaces it.
    """
    value, terms = result["values"][f"{metric}_{result['extractor']}"], {"metric": metric} | comparable(result)
    if not math.isfinite(value) or (best is not None and best["terms"] == terms and best["value"] <= value):
        return None
    return {"value": value, "step": step, "terms": terms}


def series_name(key: str, result: dict) -> str:
    """The name under which the value `key` of a result is plotted, the same for comparable results only."""
    digest = hashlib.sha256(json.dumps(comparable(result), sort_keys=True).encode()).hexdigest()[:6]
    return f"{key}/{result['n_fake']}_of_{result['n_real']}_at_{result['resolution']}px_{digest}"


def summary(result: dict) -> str:
    """One line for people: "FID (efficientnet-lite0) 12.34, KID (efficientnet-lite0) 0.0567; 1000 generated, ..."."""
    values = ", ".join(f"{title(key)} {value:.4g}" for key, value in result["values"].items())
    return f"{values}; {result['n_fake']} generated and {result['n_real']} real images at {result['resolution']} px"


def title(key: str) -> str:
    """The key of a value as people read it: "kid_std_efficientnet-lite0" is "KID std (efficientnet-lite0)"."""
    name, _, extractor = key.rpartition("_")
    name = name.replace("fid", "FID").replace("kid", "KID").replace("_", " ")
    return f"{name} ({extractor})"


def protocol_title(protocol: dict) -> str:
    """A protocol as text, in full; hashes are cut to their first digits."""
    known = {name: "?" if value is None else value for name, value in protocol.items()}
    weights, real = (str(known[name])[:8] for name in ("weights_sha256", "real_fingerprint"))
    return (
        f"{known['extractor']} (weights {weights}), images resized to {known['resize']}; {known['n_real']} real and "
        f"{known['n_fake']} generated images at {known['resolution']} px; real images {real}, seed {known['seed']}; "
        f"KID over {known['kid_subsets']} subsets of {known['kid_subset_size']}"
    )


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
            aside = set_aside(file).name
            log.warning("%s: %s; it is now %s, and new results begin a file of their own", file, reason, aside)
        write_text(file, json.dumps(content, indent=1))
        return file

    def _content(self) -> dict:
        """{} where the file cannot be read, which would cost the new result too."""
        try:
            return read_object(self.folder / METRICS_FILE)
        except OSError:
            return {}

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
            return "it has results of images that were drawn with other settings, or by another version of graf"
        if "values" in found and not same_protocol(found, new):
            return "its values are of another protocol or of other samples, or by another version of graf"
        return ""
