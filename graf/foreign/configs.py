"""Configs of the official GRAF and of the older graf_ccsr, translated to today's keys.

What differs is renamed, what has no meaning here is named in a warning, and whatever remains is checked like any config.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from graf.errors import ConfigError

import yaml

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
CCSR_WITHOUT_MEANING = {
    "data": ("use_default_rays",),
    "discriminator": ("num_classes",),  # the data tell
    "ray_sampler": ("type", "use_region_weight", "lower_half_weight"),
}
CCSR_SECTIONS_WITHOUT_MEANING = ("wandb", "nerfacc")

GRAF_NAMES = {  # of keys that both have
    "nerf.N_samples": "nerf.samples_per_ray",
    "nerf.N_importance": "nerf.importance_samples_per_ray",
    "ray_sampler.N_samples": "ray_sampler.rays_per_patch",
}
EPOCHS = "training.max_steps, which counts steps of training.batch_size images, not epochs"
RATES = "training.lr_g and training.lr_d, one for each network"
OTHER_SUITES = {  # what a user of PyTorch Lightning and its like may look for, and where it is here
    "accumulate_grad_batches": (
        "here it is training.accumulation_steps, the parts that training.batch_size is taken in, which is the whole batch"
    ),
    "check_val_every_n_epoch": "here it is training.fid_every, steps between measurements of FID and KID",
    "epochs": f"here it is {EPOCHS}",
    "gradient_clip_val": "here it is training.grad_clip",
    "learning_rate": f"here it is {RATES}",
    "lr": f"here it is {RATES}",
    "max_epochs": f"here it is {EPOCHS}",
    "num_epochs": f"here it is {EPOCHS}",
    "num_workers": "here it is training.nworkers",
    "pin_memory": "not needed here, where batches are pinned whenever a run trains on a GPU",
    "precision": "here it is training.use_amp, or --use_amp, with training.amp_dtype for the number format",
}


def translate(raw: dict, where: str) -> tuple[dict, bool]:
    """A config of any suite in today's keys, and whether it is one of the official GRAF, to be merged over configs/graf.yaml.

    The log names what is left out. Raises ConfigError for a key that is there under two names.
    """
    raw = translate_ccsr(raw, where)
    return (translate_graf(raw, where), True) if is_graf_format(raw) else (raw, False)


def with_new_names(raw: dict, names: Mapping[str, str], where: str) -> tuple[dict, list[str]]:
    """The config with keys of older names under their new ones, and what was renamed: "nerf.N_samples is now ..."."""
    raw, renamed = copy.deepcopy(raw), []
    for old, new in names.items():
        (section, old_key), (*path, new_key) = old.split("."), new.split(".")
        if old_key not in _section(raw, section):
            continue
        target = raw
        for name in path:
            target[name] = {} if target.get(name) is None else target[name]
            target = target[name]
            if not isinstance(target, dict):
                raise ConfigError(f"{where}: {old} is now {new}, but '{name}' is no section with keys of its own")
        if new_key in target:
            raise ConfigError(f"{where}: {old} is now {new}, which is there too; leave {old} out")
        target[new_key] = raw[section].pop(old_key)
        renamed.append(f"{old} is now {new}")
    return raw, renamed


def translate_ccsr(raw: dict, where: str) -> dict:
    """A config of the older graf_ccsr, known by `ccsr.enabled`, which stood for what is ccsr.mode: consistency.

    Its published files write commas behind the values of that section, which makes texts of them, and their data set's own name
    into data.type. The rest is as the official GRAF has it.
    """
    if "enabled" not in _section(raw, "ccsr"):
        return raw
    ccsr = {name: _without_comma(value) for name, value in raw["ccsr"].items()}
    if not isinstance(ccsr["enabled"], bool):
        return raw
    if ccsr != raw["ccsr"]:
        log.warning("%s: ccsr: the commas behind its values are left out; remove them", where)
    raw = copy.deepcopy(raw) | {"ccsr": {"mode": "consistency" if ccsr.pop("enabled") else "none"} | ccsr}
    data_type = _section(raw, "data").get("type", "images")
    if isinstance(data_type, str) and data_type not in ("images", "toy_cars", *CENTER_CROPS):
        log.warning("%s: data.type: %s, which is of no suite but the older one, is taken for images", where, data_type)
        raw["data"]["type"] = "images"
    sections = [name for name in CCSR_SECTIONS_WITHOUT_MEANING if _drop(raw, name)]
    _leave_out(raw, CCSR_WITHOUT_MEANING, f"{where}: a config of the older graf_ccsr", sections)
    return raw


def is_graf_format(raw: dict) -> bool:
    """Whether a config has keys or values of the official GRAF's."""
    return bool(_marks_of_graf(raw))


def _marks_of_graf(raw: dict) -> list[str]:
    """The keys by which a config is taken for one of the official GRAF; none where it inherits from another, as GRAF's do not
    by that key."""
    if "inherit_from" in raw:
        return []
    is_of_graf = _section(raw, "data").get("type") in tuple(CENTER_CROPS)
    return ["data.type"] * is_of_graf + [f"{name}.{key}" for name, key in MARKS if key in _section(raw, name)]


def translate_graf(raw: dict, where: str) -> dict:
    """The config's keys in our words, to be merged over configs/graf.yaml; a warning names those without a counterpart."""
    log.warning("%s: taken for a config of the official GRAF, over configs/graf.yaml, for %s", where, _marks_of_graf(raw)[0])
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
    _leave_out(raw, WITHOUT_MEANING, f"{where}: a config of the official GRAF")
    return with_new_names(raw, GRAF_NAMES, where)[0]


def _leave_out(raw: dict, keys_by_section: dict[str, tuple[str, ...]], what: str, dropped: Sequence[str] = ()) -> None:
    """Drop the keys, and name them and what was dropped already in a warning."""
    keys = [f"{name}.{key}" for name, keys in keys_by_section.items() for key in keys if _drop(_section(raw, name), key)]
    if keys or dropped:
        log.warning("%s; without meaning here and left out: %s", what, ", ".join([*dropped, *keys]))


def _without_comma(value: Any) -> Any:
    """`8,` as 8."""
    if not isinstance(value, str) or not value.endswith(","):
        return value
    try:
        return yaml.safe_load(value[:-1])
    except yaml.YAMLError:
        return value


def _section(raw: dict, name: str) -> dict[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def _drop(section: dict, key: str) -> bool:
    return section.pop(key, _drop) is not _drop
