"""Two runs that should be one and the same, and where they part: step, network, tensor, elements, by how much."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from graf.checkpoints.checkpoint import backup_name, read_checkpoint

import torch


def require_same_run(straight: Path, resumed: Path, steps: int, sources: Mapping[str, str]) -> None:
    """Fail where one checkpoint, row of metrics or toy car of two runs of so many steps is not the other's to the last bit.

    straight, resumed: folders with log.txt, data/ and the run in results/smoke, which holds a backup of each step. Both are
    kept on a failure. sources: the digest of graf/ and configs/ before each part of the runs.
    """
    found = compare_data(straight / "data", resumed / "data")
    found += differences(straight / "results" / "smoke", resumed / "results" / "smoke", steps)
    if len(set(sources.values())) > 1:
        found.append("graf/ or configs/ changed between the runs")
    if not found:
        return
    kept = Path(tempfile.mkdtemp(prefix="runs_that_differ_"))
    for folder in (straight, resumed):
        shutil.copytree(folder, kept / folder.name)
    logs = [f"--- {folder.name}/log.txt\n{(folder / 'log.txt').read_text()}" for folder in (straight, resumed)]
    digests = [f"digest of graf/ and configs/ before the {part}: {digest}" for part, digest in sources.items()]
    raise AssertionError("\n".join([*found, *digests, f"both folders are kept in {kept}", *logs]))


def compare_data(ours: Path, theirs: Path) -> list[str]:
    """A line for each set of toy cars that is not the same, each run having drawn its own."""
    sets = [{path.name: torch.load(path, weights_only=True) for path in data.rglob("*.pt")} for data in (ours, theirs)]
    return [f"data, {line}" for line in compare_parts(*sets)]


def differences(straight: Path, resumed: Path, steps: int) -> list[str]:
    """Lines on the first step at which two runs' folders differ, by its rows of metrics and its checkpoint, and on the
    conditions; none where all steps are the same to the last bit."""
    for step in range(1, steps + 1):
        ours, theirs = (read_checkpoint(run / backup_name(step)) for run in (straight, resumed))
        lines = [
            *compare_rows(row_of(straight, step), row_of(resumed, step)),
            *compare_parts(ours["state"], theirs["state"]),
        ]
        if ours["conditions"] != theirs["conditions"]:
            lines.append(f"conditions: {ours['conditions']} and {theirs['conditions']}")
        if lines:
            return [f"step {step} is the first that differs", *lines]
    return []


def row_of(run: Path, step: int) -> dict:
    """The step's numbers in metrics.jsonl, which are those of before its update; a sheet of samples has another row."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["step"] == step and "loss_d" in row]
    return row


def compare_rows(ours: dict, theirs: dict) -> list[str]:
    names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    return [f"metrics.jsonl, {name}: {ours.get(name)!r} and {theirs.get(name)!r}" for name in names]


def compare_parts(ours: dict, theirs: dict) -> list[str]:
    """A line for each part, such as a network of a state, that is not the same: its first tensor that differs."""
    lines = []
    for part in ours | theirs:
        a, b = dict(leaves(ours.get(part))), dict(leaves(theirs.get(part)))
        names = [name for name in a | b if not same(a.get(name), b.get(name))]
        if names:
            first = names[0]
            how = describe(a.get(first), b.get(first))
            lines.append(f"{part}: {len(names)} of {len(a | b)} entries differ, first {first or part}: {how}")
    return lines


def leaves(tree: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Tensors and plain values of a nested state, by their dotted names."""
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{name}.{key}".removeprefix("."))
    else:
        yield name, tree


def same(a: object, b: object) -> bool:
    """To the last bit: 0.0 is not -0.0, and nan is nan."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return repr(a) == repr(b)
    return a.dtype == b.dtype and a.shape == b.shape and not differing(a, b).any()


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which elements of two tensors of one shape and dtype differ in any bit."""
    a, b = (x.contiguous().reshape(-1, 1).view(torch.uint8) for x in (a, b))
    return (a != b).any(1)


def describe(a: object, b: object) -> str:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return f"{a!r:.200} and {b!r:.200}"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
    largest = (a.double() - b.double()).abs().max().item()
    return f"{int(differing(a, b).sum())} of {a.numel()} elements, by {largest:.3g} at most"
