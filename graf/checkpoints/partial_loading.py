"""Loading weights into networks: strictly, with a table of differences, or partially, with a report of what is left out."""

import logging
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from graf.checkpoints.architecture import differences, is_of_encoder
from graf.config import Config
from graf.errors import CheckpointError
from graf.foreign.checkpoints import Weights, some

from torch import nn

log = logging.getLogger("graf")

ROWS = 12  # of a table of differences, at most
ENOUGH = 0.5  # fraction of a network's parameters

Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class PartialReport:
    """Names of tensors in a file and a network, by what became of them; share: the fraction of parameters loaded."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: tuple[str, ...]
    share: float

    def lines(self) -> list[str]:
        """One line per kind of leftover: the number of tensors by module, and the first few names."""
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "reshaped": self.reshaped}
        return [f"{kind}: {_by_module(names)}" for kind, names in kinds.items() if names]

    def log(self, what: str) -> None:
        """Log the report; `what` names the network."""
        log.info("%s: %d tensors loaded, %.1f%% of the parameters", what, len(self.loaded), 100 * self.share)
        for line in self.lines():
            log.warning("%s: %s", what, line)


def require_fit(networks: dict[str, nn.Module], parts: dict[str, Weights], config: Config, path: Path | str) -> None:
    """Raises CheckpointError, with a table of differences, where a part does not match its network's names and shapes."""
    rows: list[Row] = []
    for name, network in networks.items():
        if name not in parts:
            raise CheckpointError(f"{path}: holds no {name}, only {', '.join(parts)}; use --partial to start from these")
        rows += [row for row in _tensor_rows(network, parts[name]) if row not in rows]
    if not rows:
        return
    keys = [
        (key, str(value), str(finding), _source(finding.source, parts)) for key, value, finding in differences(parts, config)
    ]
    other = ", or start a new run with --set expname=other" if "discriminator" in networks and len(networks) > 1 else ""
    raise CheckpointError(f"{path}: does not fit this config; --partial takes what fits{other}\n{_table(keys or rows)}")


def load_partially(network: nn.Module, weights: Weights, path: Path | str) -> PartialReport:
    """Load the weights whose names and shapes match the network's; the report names the others.

    Raises CheckpointError where they are less than half of the network's parameters; the network is then unchanged. An encoder,
    which is learned again within minutes and may be larger than all else, does not count, and is loaded whole or not at all.
    """
    own = network.state_dict()
    fitting = {name: tensor for name, tensor in weights.items() if name in own and tensor.shape == own[name].shape}
    if any(is_of_encoder(name) for name in own if name not in fitting):
        fitting = {name: tensor for name, tensor in fitting.items() if not is_of_encoder(name)}
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters() if not is_of_encoder(name)}
    report = PartialReport(
        loaded=tuple(fitting),
        missing=tuple(name for name in own if name not in weights),
        unexpected=tuple(name for name in weights if name not in own),
        reshaped=tuple(name for name in weights if name in own and name not in fitting),
        share=sum(size for name, size in sizes.items() if name in fitting) / sum(sizes.values()),
    )
    kind = type(network).__name__.lower()
    if report.share < ENOUGH:
        raise CheckpointError(
            f"{path}: only {report.share:.0%} of the {kind}'s parameters would load, less than half; "
            "use a config closer to the file's\n  " + "\n  ".join(report.lines())
        )
    network.load_state_dict(fitting, strict=False)
    return report


def _tensor_rows(network: nn.Module, weights: Weights) -> list[Row]:
    own = network.state_dict()
    shapes = [(name, _shape(own, name), _shape(weights, name)) for name in own | weights]
    return [(name, here, there, "") for name, here, there in shapes if here != there]


def _shape(weights: Weights, name: str) -> str:
    return str(tuple(weights[name].shape)) if name in weights else "absent"


def _source(name: str, parts: dict[str, Weights]) -> str:
    shape = next((_shape(weights, name) for weights in parts.values() if name in weights), "")
    return f"{name} {shape}".rstrip()


def _table(rows: list[Row]) -> str:
    """The first rows in columns, and the number of further ones."""
    shown = [("", "in the config", "in the file", "seen by" if rows[0][3] else ""), *rows[:ROWS]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    return "\n".join(f"  {line}" for line in lines) + (f"\n  ... and {len(rows) - ROWS} more" if len(rows) > ROWS else "")


def _by_module(names: tuple[str, ...]) -> str:
    modules = defaultdict(list)
    for name in names:
        modules[name.split(".")[0]].append(name)
    return "; ".join(f"{module} {len(inside)} ({some(inside)})" for module, inside in modules.items())
