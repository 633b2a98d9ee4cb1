"""Configs in the official GRAF's format, translated to ours.

What differs is renamed, what has no meaning here is named in a warning, and whatever remains is checked like any config.
"""

import copy
import logging
from typing import Any

log = logging.getLogger("graf")

CENTER_CROPS = {"carla": 0, "celebA": 108, "celebA_hq": 650, "cats": 0, "cub": 0}  # of each data type, pixels
MIRRORED = ("celebA", "celebA_hq", "cats")
CADENCES = ("print_every", "sample_every", "fid_every", "backup_every", "video_every")
MARKS = (
    ("data", "white_bkgd"),
    ("training", "chunk"),
    ("training", "netchunk"),
    ("nerf", "i_embed"),
    ("training", "model_file"),
)
GRAF_STEPS = 300_000  # an interval of learning rate steps is spelled out until here
WITHOUT_MEANING = {
    "training": (
        "netchunk", "n_test_samples_with_same_shape_code", "equalize_lr", "model_average_reinit", "model_file",
        "restart_every", "save_every", "save_best",
    ),
}  # fmt: skip


def translate_ccsr(raw: dict) -> dict:
    """The `ccsr` section of the older graf_ccsr configs, where `enabled` stood for what is ccsr.mode: consistency."""
    ccsr = _section(raw, "ccsr")
    if "enabled" not in ccsr:
        return raw
    ccsr = dict(ccsr)
    enabled = ccsr.pop("enabled")
    if not isinstance(enabled, bool):
        return raw
    return raw | {"ccsr": {"mode": "consistency" if enabled else "none"} | ccsr}


def is_graf_format(raw: dict) -> bool:
    """Whether a config speaks as the official GRAF's do."""
    return _section(raw, "data").get("type") in tuple(CENTER_CROPS) or any(key in _section(raw, name) for name, key in MARKS)


def translate_graf(raw: dict, where: str) -> dict:
    """The config's keys in our words, to be merged over configs/graf.yaml; a warning names those without a counterpart."""
    raw = copy.deepcopy(raw)
    data, nerf, training, rays = (_section(raw, name) for name in ("data", "nerf", "training", "ray_sampler"))

    if data.get("type") in tuple(CENTER_CROPS):  # a dict would want a hash, which a broken config's value may not have
        data["hflip"] = data["type"] in MIRRORED
        data["center_crop"] = CENTER_CROPS[data["type"]]
        data["labels"] = "none"
        data["type"] = "images"
    if "white_bkgd" in data:
        data["background"] = "white" if data.pop("white_bkgd") else "black"

    if isinstance(nerf.get("perturb"), (int, float)):
        nerf["perturb"] = nerf["perturb"] > 0
    if nerf.pop("i_embed", 0) == -1:
        nerf["multires"] = nerf["multires_views"] = 0
    if isinstance(rays.get("scale_anneal"), (int, float)):
        rays["scale_anneal"] = max(0.0, rays["scale_anneal"])

    if "chunk" in training and isinstance(raw.get("nerf") or {}, dict):
        raw["nerf"] = nerf | {"chunk": training.pop("chunk")}
    if training.get("reg_type") == "real":
        training["reg_type"] = "r1"
    for cadence in CADENCES:
        if training.get(cadence) == -1:
            training[cadence] = 0
    interval = training.get("lr_anneal_every")
    if isinstance(interval, int) and interval > 0:
        training["lr_anneal_every"] = list(range(interval, GRAF_STEPS + 1, interval))
    if training.pop("take_model_average", True) is False:
        training["model_average_beta"] = 0.0

    if "reg_param" in training:
        log.warning(
            "%s: training.reg_param is taken as it is, a penalty per image; the official code's is per ray of the patch",
            where,
        )
    dropped = [f"{name}.{key}" for name, keys in WITHOUT_MEANING.items() for key in keys if _drop(_section(raw, name), key)]
    if dropped:
        log.warning("%s: a config of the official GRAF; without meaning here and left out: %s", where, ", ".join(dropped))
    return raw


def _section(raw: dict, name: str) -> dict[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def _drop(section: dict, key: str) -> bool:
    return section.pop(key, _drop) is not _drop
