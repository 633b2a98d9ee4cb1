"""Keys and values of older versions of this suite, read under today's names; the log says each once."""

import logging

from graf.foreign import configs as foreign

log = logging.getLogger("graf")

OLDER_NAMES = foreign.GRAF_NAMES | {  # of keys
    "nerf.N_samples_render": "nerf.render_samples_per_ray",
    "ccsr.width": "ccsr.light.width",
    "ccsr.depth": "ccsr.light.depth",
    "ccsr.width_upsampled": "ccsr.light.width_upsampled",
    "ccsr.num_rrdb_blocks": "ccsr.rrdb.num_blocks",
    "ccsr.nf": "ccsr.rrdb.nf",
    "ccsr.gc": "ccsr.rrdb.gc",
    "ccsr.pretrained_path": "ccsr.rrdb.pretrained_path",
    "ccsr.freeze_backbone": "ccsr.rrdb.freeze",
    "ccsr.rate": "ccsr.lr_multiplier",
    "discriminator.coarse_steps": "discriminator.low_res_steps",
    "training.save_every_steps": "training.save_every",
    "memory.max_metric_rows": "reporting.max_metric_rows",
}
OLDER_WORDS = {("data.alpha", "judge"): "rgba"}  # of values, by today's keys
OLDER_VALUES = {  # of keys that checkpoints of older versions lack
    "data": {"alpha": "ignore", "box": "none"},
    "ccsr": {"lr_multiplier": 1.0, "learns_from": "discriminator", "unrefined_steps": 0},
    "encoder": {"first_steps": 0, "weight": 0.0},
    "discriminator": {"architecture": "graf", "low_res_steps": 0},
}
FEATURE_SIZE_BEFORE = 64  # of mixed critics whose checkpoint has discriminator.feature_size: auto
FIRST_VALUES = {  # by their first names, of keys that images of given weights depend on and whose defaults have changed since
    "nerf.conditioning": "film",
    "nerf.multires": 4,
    "ccsr.kernel": "bicubic",
    "nerf.N_samples": 20,
    "nerf.N_samples_render": 48,
}
FIRST_WORDS = {("data.v", "auto"): [0.5, 0.4, 0.3, 0.2]}  # of values that older versions wrote out
_logged: set[str] = set()  # renamed keys and values that this process has logged


def translate(raw: dict, where: str) -> tuple[dict, bool]:
    """A config of any suite or version in today's keys, and whether it is the official GRAF's, to be merged over
    configs/graf.yaml.

    The log names what has another name now and what is left out. Raises ConfigError for a key that is there under two names.
    """
    raw, is_graf = foreign.translate(raw, where)
    return translate_names(raw, where), is_graf


def translate_names(raw: dict, where: str) -> dict:
    """A config of ours with older keys and values under their new names; the log says each once. Raises ConfigError."""
    raw, renamed = with_todays_names(raw, where)
    if new := [text for text in renamed if text not in _logged]:
        _logged.update(new)
        log.info("%s: %s", where, new[0] if len(new) == 1 else "\n  ".join([f"{len(new)} keys have new names:", *new]))
    return raw


def with_todays_names(raw: dict, where: str) -> tuple[dict, list[str]]:
    """The config with older keys and values under their new names, and what was renamed, as "ccsr.rate is now ..."."""
    raw, renamed = foreign.with_new_names(raw, OLDER_NAMES, where)
    for (name, old), new in OLDER_WORDS.items():
        section, key = name.split(".")
        if isinstance(raw.get(section), dict) and raw[section].get(key) == old:
            raw[section][key] = new
            renamed.append(f"{name}: {old} is now {new}")
    return raw, renamed
