"""Results of `graf.metrics.measure`: which are comparable, which is best, how they are named, and the file metrics.json."""

import dataclasses
import hashlib
import json
import logging
import math
from pathlib import Path
from typing import Any

from graf.config import Config
from graf.config.digest import older_rendering_sha256, rendering_sha256
from graf.runtime.files import readable_object, set_aside, write_text

log = logging.getLogger("graf")

METRICS_FILE = "metrics.json"
OF_IMAGES = (  # entries that record how their images were rendered
    *("consistency", "sweep", "variety", "coverage", "haze", "pose", "memorised"),
    *("splats", "mesh"),  # exports, rendered back
)
FEWEST_IMAGES = {"fid": 2, "kid": 2, "prc": 4}  # real and generated images per metric; prc needs a third neighbour
COMPARABLE = (
    *("extractor", "weights_sha256", "resize", "resolution", "n_real", "n_fake", "real_fingerprint"),
    *("kid_subsets", "kid_subset_size", "seed"),
)
TERMS = ("seed", "truncation", "latents")  # of an entry of OF_IMAGES, in which it does not replace one of others
FINGERPRINTS = ("real_fingerprint", "held_out_fingerprint")  # further terms, which older files lack
SAMPLES = ("sample_seed", "truncation", "generator_sha256", "rendering_sha256")  # what the generated images depend on


def comparable(result: dict) -> dict:
    """The terms of a result of `measure` that must be equal for values to be compared."""
    return {name: result[name] for name in COMPARABLE}


def same_protocol(earlier: dict, result: dict) -> bool:
    """Whether two results of `measure_generator` are of the same samples and terms, so that their values can be merged."""
    return all(earlier.get(name) == result.get(name) for name in (*COMPARABLE, *SAMPLES))


def merged(earlier: dict, result: dict) -> dict:
    """A result of `measure_generator` with the other values of an earlier one under the same protocol."""
    if "values" not in earlier or not same_protocol(earlier, result):
        return result
    return result | {
        "values": earlier["values"] | result["values"],
        "warnings": list(dict.fromkeys([*earlier["warnings"], *result["warnings"]])),
    }


def new_best(result: dict, best: dict | None, metric: str, step: int) -> dict | None:
    """The new best measurement, as a run records it, if a result of `measure` at `step` is better than `best`; else None.

    metric: "fid" or "kid"; lower is better. A result under another protocol cannot be compared with `best` and replaces it.
    """
    value, terms = result["values"][f"{metric}_{result['extractor']}"], {"metric": metric} | comparable(result)
    if not math.isfinite(value) or (best is not None and best["terms"] == terms and best["value"] <= value):
        return None
    return {"value": value, "step": step, "terms": terms}


def series_name(key: str, result: dict) -> str:
    """The name under which the value `key` of a result is plotted, equal for comparable results only."""
    digest = hashlib.sha256(json.dumps(comparable(result), sort_keys=True).encode()).hexdigest()[:6]
    return f"{key}/{result['n_fake']}_of_{result['n_real']}_at_{result['resolution']}px_{digest}"


def summary(result: dict) -> str:
    """A line for the log: "FID (efficientnet-lite0) 12.34, KID (efficientnet-lite0) 0.0567; 1000 generated, ..."."""
    values = ", ".join(f"{title(key)} {value:.4g}" for key, value in result["values"].items())
    return f"{values}; {result['n_fake']} generated and {result['n_real']} real images at {result['resolution']} px"


def title(key: str) -> str:
    """The key of a value in words: "kid_std_efficientnet-lite0" is "KID std (efficientnet-lite0)"."""
    name, _, extractor = key.rpartition("_")
    name = name.replace("fid", "FID").replace("kid", "KID").replace("_", " ")
    return f"{name} ({extractor})"


def protocol_title(protocol: dict) -> str:
    """A protocol in words; hashes are cut to their first digits."""
    known = {name: "?" if value is None else value for name, value in protocol.items()}
    weights, real = (str(known[name])[:8] for name in ("weights_sha256", "real_fingerprint"))
    return (
        f"{known['extractor']} (weights {weights}), images resized to {known['resize']}; {known['n_real']} real and "
        f"{known['n_fake']} generated images at {known['resolution']} px; real images {real}, seed {known['seed']}; "
        f"KID over {known['kid_subsets']} subsets of {known['kid_subset_size']}"
    )


def _finite(content: Any) -> Any:
    """The content of JSON, with None in place of numbers that are not finite."""
    match content:
        case dict():
            return {name: _finite(value) for name, value in content.items()}
        case list() | tuple():
            return [_finite(value) for value in content]
        case float() if not math.isfinite(content):
            return None
    return content


@dataclasses.dataclass(frozen=True)
class ResultFile:
    """metrics.json in `folder`: results of a checkpoint at `step`, rendered with `config`; averaged: its weights are an EMA.

    checkpoint_sha256 is of the file as it was read; training may have replaced or removed the file since.
    """

    folder: Path
    checkpoint: Path
    checkpoint_sha256: str
    step: int
    averaged: bool
    config: Config

    @property
    def rendered_by(self) -> dict[str, str]:
        """The values that an entry of OF_IMAGES has if it is of this config's images."""
        return {"rendering_sha256": rendering_sha256(self.config)}

    def kept(self) -> dict:
        """The part of the file's content that is of this checkpoint and config."""
        return self._kept_of(readable_object(self.folder / METRICS_FILE))

    def kept_at(self, truncation: float) -> dict:
        """`kept`, with those results alone that are of images of this config and truncation."""
        kept = self.kept()
        others = {name for name in OF_IMAGES if name in kept and kept[name].get("truncation", truncation) != truncation}
        if not kept.items() >= ({"truncation": truncation} | self.rendered_by).items():
            others |= {"values", "warnings"}
        return {name: entry for name, entry in kept.items() if name not in others}

    def keep(self, result: dict) -> Path:
        """Add a result to the file and return its path. A file whose results would be lost is renamed first.

        Numbers that are not finite become null, as JSON has none.
        """
        file = self.folder / METRICS_FILE
        identity = {
            "step": self.step,
            "ema": self.averaged,
            "checkpoint": self.checkpoint.name,
            "checkpoint_sha256": self.checkpoint_sha256,
        }
        found = readable_object(file)  # of a file that cannot be read, too, the new result is kept
        content = _of_the_data_of(result, self._kept_of(found)) | identity | result
        if file.exists() and (reason := self._conflict(found, content)):
            aside = set_aside(file).name
            log.warning("%s: %s; it is now %s, and new results begin a file of their own", file, reason, aside)
        write_text(file, json.dumps(_finite(content), indent=1, allow_nan=False))
        return file

    def _kept_of(self, content: dict) -> dict:
        if content.get("checkpoint_sha256") != self.checkpoint_sha256:
            return {}
        content = {name: self._with_todays_digest(entry) for name, entry in self._with_todays_digest(content).items()}
        rendering = self.rendered_by.items()
        return {
            name: entry
            for name, entry in content.items()
            if name not in OF_IMAGES or (isinstance(entry, dict) and entry.items() >= rendering)
        }

    def _with_todays_digest(self, entry: object) -> Any:
        """The entry, if an earlier version wrote it of images that are rendered so, with the digest of this one."""
        digest = entry.get("rendering_sha256") if isinstance(entry, dict) else None
        if digest is not None and digest == older_rendering_sha256(self.config):
            return entry | self.rendered_by
        return entry

    def _conflict(self, found: dict, new: dict) -> str:
        """The reason why the file's content `found` cannot all be kept in `new`; empty where it can."""
        if "checkpoint_sha256" not in found:
            return "it is not a file of this program's results"
        if found["checkpoint_sha256"] != self.checkpoint_sha256:
            return f"its results are of another checkpoint, {found.get('checkpoint')}"
        if found.keys() - self._kept_of(found).keys():
            return "it has results of images rendered with other settings, or by another version of graf"
        if found.keys() - new.keys():
            return "it has results of other images, or of the same with other times of change"
        both = [name for name in OF_IMAGES if name in found and name in new]
        if any(found[name].get(term) != new[name].get(term) for name in both for term in TERMS):
            return "it has results of other objects or of another truncation"
        if any(_differ(found[name], new[name], term) for name in both for term in FINGERPRINTS):
            return "it has results of other images, or of the same with other times of change"
        if "values" in found and not same_protocol(self._with_todays_digest(found), new):
            return "its values are of another protocol or of other samples, or by another version of graf"
        return ""


def _of_the_data_of(result: dict, kept: dict) -> dict:
    """The part of a file's content that is not of other data than a new result."""
    new = next((some for some in (result, *result.values()) if isinstance(some, dict) and "real_fingerprint" in some), {})
    if _differ(kept, new, "real_fingerprint"):  # what stands beside its values too
        kept = {name: entry for name, entry in kept.items() if name in OF_IMAGES}
    return {name: entry for name, entry in kept.items() if not (name in OF_IMAGES and _differ(entry, new, "real_fingerprint"))}


def _differ(earlier: dict, new: dict, term: str) -> bool:
    """Whether both have the term, and not the same."""
    return term in earlier and term in new and earlier[term] != new[term]
