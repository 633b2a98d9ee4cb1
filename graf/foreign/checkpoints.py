"""Recognises a checkpoint's content: ours, the official GRAF's, the graf_ccsr family's, or the weights of one network.

Whatever it is, the weights come out under this suite's own names. Nothing here decides whether they fit a config.
"""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from graf.errors import CheckpointError

from torch import Tensor

log = logging.getLogger("graf")

Weights = dict[str, Tensor]

WRAPPERS = ("model_state_dict", "state_dict")  # around a state dict
WRAPPING_MODULES = {"module", "_orig_mod"}  # in a parameter's name, of DataParallel and of torch.compile
CONFIG_NAMES = ("model_config", "config", "hyper_parameters", "hparams")
STEP_NAMES = ("step", "it", "global_step")
NETWORKS = (
    "generator", "generator_test", "generator_ema", "generator_fine", "generator_fine_test", "discriminator", "ccsr",
)  # fmt: skip
AVERAGES = ("_ema", "_test")  # of a network's name, ours and GRAF's
OWN_GENERATOR, GRAF_FIELD, DISCRIMINATOR = ("field.", "refinement."), ("pts_linears.",), ("main.", "heads.")
NAMES_SHOWN = 3  # at most, in a message
CONVOLUTION = re.compile(r"main\.(\d+)\.")

DESCRIPTIONS = {
    "ours": "weights of this suite",
    "graf": "an official GRAF checkpoint",
    "graf_ccsr": "a checkpoint of the graf_ccsr family",
    "weights": "weights without a run",
}


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint's weights under our names.

    kind: who wrote it, `weights` being a single network's; step: 0 where it does not say; parts: the weights of `generator`,
    `generator_ema` (each standing in for the other where there is but one) and `discriminator`, as far as it has them; config:
    as it is stored, None without one; n_classes: that an embedding knows; left_out: other networks than ours, by name;
    averaged: whether `generator_ema` is an average.
    """

    kind: Literal["ours", "graf", "graf_ccsr", "weights"]
    step: int
    parts: dict[str, Weights]
    config: dict | None = None
    n_classes: int = 1
    left_out: dict[str, Weights] = field(default_factory=dict)
    averaged: bool = False

    @property
    def description(self) -> str:
        return DESCRIPTIONS[self.kind]

    def part(self, name: str, path: Path | str) -> Weights:
        """The weights of one network. Raises CheckpointError, in the name of the file, where it has none."""
        if name not in self.parts:
            raise CheckpointError(f"{path}: holds no {name.removesuffix('_ema')}, only {', '.join(self.parts)}")
        return self.parts[name]

    def report_left_out(self, path: Path | str) -> None:
        """Name in the log what is not taken."""
        for name, weights in self.left_out.items():
            size = sum(tensor.numel() for tensor in weights.values())
            log.warning(
                "%s: %s is a network that this suite has not; not taken: %d tensors, %s numbers (%s)",
                path, name, len(weights), f"{size:,}", some(list(weights)),
            )  # fmt: skip


def recognise(content: dict, path: Path | str) -> ForeignCheckpoint:
    """The kind of a checkpoint's content. Raises CheckpointError for what holds no network of a known kind."""
    ours = str(content.get("format")).startswith("graf_ccsr")
    state = content["state"] if ours and isinstance(content.get("state"), dict) else content
    if ours and "estimator" in state:
        raise CheckpointError(f"{path}: a pose estimator of train_pose.py, not a generator; name a run of train.py")
    networks = _networks(state)
    left_out = {"ccsr": networks["ccsr"]} if "ccsr" in networks else {}
    generator = _generator(networks, "")
    average = next((weights for end in AVERAGES if (weights := _generator(networks, end))), None)
    parts = {
        "generator": generator or average,
        "generator_ema": average or generator,
        "discriminator": _discriminator(networks.get("discriminator", {}), left_out),
    }
    parts = {name: weights for name, weights in parts.items() if weights}
    if not parts:
        keys = ", ".join(str(key) for key in list(content)[:8])
        raise CheckpointError(
            f"{path}: neither a checkpoint of this suite, the official GRAF or the graf_ccsr family; its keys are {keys}"
        )
    config = next((content[name] for name in CONFIG_NAMES if isinstance(content.get(name), dict)), None)
    kind = "ours" if ours else _kind(content, left_out)
    return ForeignCheckpoint(kind, checkpoint_step(content), parts, config, _n_classes(parts), left_out, averaged=bool(average))


def _kind(content: dict, left_out: dict) -> Literal["graf", "graf_ccsr", "weights"]:
    if left_out or "generator" in content and "it" not in content:
        return "graf_ccsr"
    return "graf" if "generator" in content else "weights"


def some(names: list[str]) -> str:
    """The first few of the names."""
    return ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")


def _networks(content: dict) -> dict[str, Weights]:
    """State dicts by the names of NETWORKS: entries of their own, prefixes within one state dict, or guessed of a bare one."""
    content = _unwrapped(content)
    networks = {name: weights for name in NETWORKS if (weights := _state_dict(content.get(name)))}
    if networks:
        return networks
    bare = _state_dict(content)
    for name, tensor in bare.items():
        network, _, rest = name.partition(".")
        if network in NETWORKS:
            networks.setdefault(network, {})[rest] = tensor
    for network, beginnings in (("generator", (*OWN_GENERATOR, *GRAF_FIELD)), ("discriminator", DISCRIMINATOR)):
        if not networks and any(name.startswith(beginnings) for name in bare):
            return {network: bare}
    return networks


def _state_dict(value: Any) -> Weights:
    """The tensors by name, out of their wrapper and without the names of wrapping modules; empty for what is no state dict."""
    return {
        ".".join(part for part in name.split(".") if part not in WRAPPING_MODULES): tensor
        for name, tensor in _unwrapped(value).items()
        if isinstance(name, str) and isinstance(tensor, Tensor)
    }


def _unwrapped(value: Any) -> dict:
    for wrapper in WRAPPERS:
        value = value[wrapper] if isinstance(value, dict) and isinstance(value.get(wrapper), dict) else value
    return value if isinstance(value, dict) else {}


def _generator(networks: dict[str, Weights], ending: str) -> Weights:
    """The generator of the official code's fields, or one that has our names already."""
    weights = networks.get(f"generator{ending}", {})
    if any(name.startswith(OWN_GENERATOR) for name in weights):
        return dict(weights)
    named = {f"field.{name}": tensor for name, tensor in weights.items()}
    if named or not ending:
        named |= {f"field_fine.{name}": tensor for name, tensor in networks.get(f"generator_fine{ending}", {}).items()}
    return named


def _discriminator(weights: Weights, left_out: dict[str, Weights]) -> Weights:
    """Ours or the official code's as it is; the family's last convolution as one of `main`, its label head into left_out."""
    label_head = {name: tensor for name, tensor in weights.items() if name.startswith("label_out.")}
    if label_head:
        left_out["discriminator.label_out"] = label_head
    numbers = [int(match[1]) for name in weights if (match := CONVOLUTION.match(name)) and weights[name].ndim == 4]
    last = f"main.{max(numbers, default=0) + 3}."  # behind the last layer's normalisation and activation
    return {
        last + name.removeprefix("conv_out.") if name.startswith("conv_out.") else name: tensor
        for name, tensor in weights.items()
        if name not in label_head
    }


def checkpoint_step(content: dict) -> int:
    """The training step that a checkpoint's content is of; 0 where it does not say."""
    content = content["state"] if isinstance(content.get("state"), dict) else content
    return next((max(content[name], 0) for name in STEP_NAMES if isinstance(content.get(name), int)), 0)


def _n_classes(parts: dict[str, Weights]) -> int:
    embeddings = (parts.get(name, {}).get("class_embedding.weight") for name in ("generator", "discriminator"))
    return next((len(weight) for weight in embeddings if weight is not None), 1)
