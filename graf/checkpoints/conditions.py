"""Conditions on which a run's numbers depend bit for bit beside its config and data: versions, number format, threads, CPU.

A checkpoint records its conditions, so that a run that continues under others can warn.
"""

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from graf.config import CONFIG_DIR, RunConfig, config_to_dict, flat
from graf.config.advice import unread_keys
from graf.config.older import FEATURE_SIZE_BEFORE, OLDER_VALUES, with_todays_names

import torch

log = logging.getLogger("graf")

PACKAGE_DIR = Path(__file__).parents[1]
UNCHANGED = [("discriminator.feature_size", "auto", FEATURE_SIZE_BEFORE)]  # a run goes on with it
LABELS = {
    "torch": "PyTorch",
    "source": "source of graf/ and configs/",
    "threads": "threads",
    "cpu_capability": "instructions of the CPU",
    "number_format": "number format",
}


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The conditions of a run in this process; threads and CPU instructions are None on a GPU, where they do not matter."""

    torch: str  # its version
    source: str  # digest of graf/ and configs/
    threads: int | None  # of an operation on the CPU, which split its sums
    cpu_capability: str | None  # the instructions that PyTorch uses, such as AVX512
    number_format: str  # of products under autocast, such as bfloat16

    @classmethod
    def current(cls, device: torch.device, number_format: str) -> "Conditions":
        on_cpu = device.type == "cpu"
        return cls(
            torch=str(torch.__version__),
            source=loaded_source(),
            threads=torch.get_num_threads() if on_cpu else None,
            cpu_capability=torch.backends.cpu.get_cpu_capability() if on_cpu else None,
            number_format=number_format,
        )

    def changes_since(self, saved: Mapping[str, object]) -> dict[str, str]:
        """Differences from a checkpoint's conditions by name, such as "threads 4 -> 2"; unknown values are left out."""
        pairs = {name: (saved.get(name), value) for name, value in dataclasses.asdict(self).items()}
        changed = {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}
        return {name: f"{LABELS[name]} {old} -> {new}" for name, (old, new) in changed.items()}


@functools.cache
def loaded_source() -> str:
    """The `source_digest` when it is first asked for: what a process runs it has loaded by then."""
    return source_digest()


def source_digest(package: Path = PACKAGE_DIR, configs: Path = CONFIG_DIR) -> str:
    """12 characters that change when a Python file of graf/ or a file of configs/ is added, removed, renamed or edited."""
    digest = hashlib.sha256()
    for folder, pattern in ((package, "*.py"), (configs, "*.yaml")):
        for path in sorted(filter(Path.is_file, folder.rglob(pattern))):
            content = path.read_bytes()
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:12]


def report_config_changes(saved: dict, config: RunConfig) -> None:
    """Log the values of the config that differ from a checkpoint's, and that something reads."""
    before = flat(OLDER_VALUES) | flat(with_todays_names(saved, "the checkpoint's config")[0])
    unread = unread_keys(config)
    for name, value in flat(config_to_dict(config)).items():
        if name not in unread and before.get(name, value) != value and (name, before[name], value) not in UNCHANGED:
            log.info("%s changed since the checkpoint: %s -> %s", name, before[name], value)


def report_changed_conditions(path: Path, saved: Mapping[str, object], now: Conditions, step: int) -> None:
    """Warn of differences from the conditions that a checkpoint of this step was saved under."""
    changes = now.changes_since(saved)
    if changes:
        log.warning(
            "%s: saved under other conditions (%s); from step %d on, the run %s from one that was never stopped",
            path,
            ", ".join(changes.values()),
            step,
            "will differ" if "number_format" in changes else "may differ",
        )
