"""Parses arguments for all programs: hyphens for underscores, ~ and $HOME in paths, --version, hints on unknown flags."""

import argparse
import contextlib
import difflib
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from graf.config import Config, RunConfig
from graf.config.older import OLDER_NAMES
from graf.config.reading import FlagOverride, quoted
from graf.config.strict import expanded, full_names
from graf.errors import GrafError
from graf.version import __version__

YAML = (".yaml", ".yml")
FLAGS_OF_PATHS = {
    "--data_dir": "a folder of images",
    "--run": "a run's folder",
    "--config": "a config",
    "--checkpoint": "a checkpoint",
}
EXIT_STATUSES = (
    "exit status: 0: done; 1: a file, such as a checkpoint, cannot be written, a disk or another process of the run failed; 2: "
    "an error in the command, the config or the data, a checkpoint that is missing or damaged, or too little memory; 3: ended "
    "by training.max_hours or SIGUSR1 with a checkpoint, to be started again; 130: ended by Ctrl-C, 149: by Ctrl-Break on "
    "Windows, 143: by SIGTERM and 129: by a closed terminal elsewhere, all with a checkpoint (a second Ctrl-C, Ctrl-Break or "
    "SIGTERM ends the run at once with status 130, without a new checkpoint)"
)  # of programs that train


def as_typed(*words: str | Path) -> str:
    """The words of a command as they are typed: on Windows with double quotes, as its cmd.exe takes single ones for letters."""
    texts = [str(word) for word in words]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def file_path(text: str) -> Path:
    """The type of a flag that names a file or folder."""
    return Path(expanded(text))


def whole_number(text: str) -> int:
    """The type of a flag that is a whole number, as configs take them: 20000, 20_000 or 2e4."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise argparse.ArgumentTypeError(f"expected a whole number, such as 20000 or 2e4, found {text!r}")


def positive(text: str) -> int:
    """The type of a flag that is a whole number above 0."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        if (number := whole_number(text)) > 0:
            return number
    raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")


class Parser(argparse.ArgumentParser):
    """An argparse parser where --max-steps is --max_steps, `type=Path` takes ~ and $HOME, and unknown flags get a hint."""

    def __init__(
        self,
        description: str | None,
        epilog: str | None = None,
        usage: str | None = None,
        formatter_class: type[argparse.HelpFormatter] = argparse.RawDescriptionHelpFormatter,
        allow_abbrev: bool = True,
        schema: type[RunConfig] = Config,
    ):
        """schema: the config whose keys --set takes."""
        super().__init__(
            description=description, epilog=epilog, usage=usage, formatter_class=formatter_class, allow_abbrev=allow_abbrev
        )
        self.schema = schema
        self.register("type", Path, file_path)
        versions = f"graf_ccsr {__version__}, PyTorch {version('torch')}, Python {sys.version.split()[0]}"
        self.add_argument("--version", action="version", version=versions, help="print versions and exit")

    def format_help(self) -> str:
        """The help text, without defaults that say only that a flag is not given."""
        return re.sub(r"\s+\(default:\s+(None|False|\[\])\)", "", super().format_help())

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([self._underscored(word) for word in words], namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            of_keys = hints(unknown, self.schema) if "--set" in self._option_string_actions else []
            found = [*(of_keys or self._nearest_flags(unknown)), *self._flags_of_paths(unknown)]
            self.error("".join([f"unrecognized arguments: {' '.join(unknown)}", *found]))
        return parsed

    def _nearest_flags(self, unknown: Sequence[str]) -> list[str]:
        """Hints that name the known flag nearest to each unknown one, where one is near."""
        flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        near = [(flag, difflib.get_close_matches(flag, self._option_string_actions, n=1)) for flag in flags]
        return [f"; {flag}: did you mean {known[0]}?" for flag, known in near if known]

    def _flags_of_paths(self, unknown: Sequence[str]) -> list[str]:
        """Hints that name the flag for each file or folder without one; not behind an unknown flag, whose value it may be."""
        found = []
        for before, word in zip(["", *unknown], unknown, strict=False):
            if before.startswith("-") or word.startswith("-"):
                continue
            path = file_path(word)
            fitting = ("--data_dir", "--run") if path.is_dir() else ("--config",) if path.suffix in YAML else ("--checkpoint",)
            flag = next((flag for flag in fitting if flag in self._option_string_actions), None)
            if flag and path.exists():
                found.append(f"; {word}: name {FLAGS_OF_PATHS[flag]} with {flag} {as_typed(word)}")
        return found

    def _underscored(self, word: str) -> str:
        """Return --max-steps=9 as --max_steps=9, where there is such a flag."""
        name, equals, value = word.partition("=")
        underscored = "--" + name[2:].replace("-", "_")
        is_flag = len(name) > 2 and any(flag.startswith(underscored) for flag in self._option_string_actions)
        return underscored + equals + value if is_flag and name.startswith("--") else word


def hints(unknown: Sequence[str], schema: type[RunConfig] = Config) -> list[str]:
    """Hints on unknown flags that are config keys of this or another project: how to set them instead."""
    names, found = full_names(schema), []
    for old, new in OLDER_NAMES.items():
        names.setdefault(old.rpartition(".")[2], []).append(new)
    for word, following in itertools.pairwise([*unknown, "--"]):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_").rpartition(".")[2]
        value = value if equals else "..." if following.startswith("--") else following
        if not flag.startswith("--"):
            continue
        if name in schema.hints:
            found.append(f"; {flag}: {schema.hints[name]} (--set KEY=VALUE)")
        elif name in names:
            found.append(f"; {flag}: use {' or '.join(f'--set {key}={value}' for key in names[name])}")
    return found


def add_set_flag(parser: argparse.ArgumentParser, example: str = "training.batch_size=4") -> None:
    """Add the flag for overrides of config keys."""
    help = f"override config keys, e.g. {example}"
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=help)


def add_data_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the folder of images, named as in other projects."""
    parser.add_argument("--data_dir", type=Path, help="folder of your images; sets data.type=images and data.datadir")


def add_folder_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the folders of images and of runs, named as in other projects."""
    add_data_flag(parser)
    parser.add_argument("--output_dir", type=Path, help="parent folder of the run; sets training.outdir")


def folder_overrides(data_dir: Path | None, output_dir: Path | None = None) -> list[str]:
    """The values of the folder flags as overrides of the config. Raises GrafError where there is no folder of images."""
    overrides = []
    if data_dir is not None:
        if not data_dir.is_dir():
            what = "a file, not a folder" if data_dir.exists() else "no such folder"
            raise GrafError(f"--data_dir {data_dir}: {what}; name the folder of your images")
        typed = as_typed("--data_dir", data_dir)
        overrides += [FlagOverride(f"data.{text}", typed) for text in ("type=images", f"datadir={quoted(str(data_dir))}")]
    if output_dir is not None:
        typed = as_typed("--output_dir", output_dir)
        overrides.append(FlagOverride(f"training.outdir={quoted(str(output_dir))}", typed))
    return overrides


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every program that trains, or measures a training, for overrides of config keys."""
    add_set_flag(parser)
    parser.add_argument("--use_amp", action="store_true", help="mixed precision; sets training.use_amp")
    parser.add_argument("--max_steps", type=whole_number, help="steps of training; sets training.max_steps")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the programs that train a run, beside --config."""
    p = parser
    add_training_flags(p)
    add_folder_flags(p)
    p.add_argument(
        "--resume",
        type=expanded,
        default="auto",
        help="auto: continue the run in its folder; none: refuse if the folder has a run; or a checkpoint file",
    )
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    p.add_argument(
        "--local_rank", type=int, help="set by torch.distributed.launch; the same as the environment variable LOCAL_RANK"
    )
    p.add_argument("--seed", type=whole_number, help="random seed of the run; sets training.seed")
    p.add_argument(
        "--memory_snapshot",
        action="store_true",
        help="write live tensors and objects at each checkpoint to memory/memory_STEP.json",
    )
    p.add_argument(
        "--detect_anomaly",
        action="store_true",
        help="stop if a backward pass produces a NaN, and name the operation; slow",
    )
    p.add_argument(
        "--dry_run", action="store_true", help="build everything, run one step, print what would be trained, and stop"
    )


def run_overrides(args: argparse.Namespace) -> list[str]:
    """Overrides of the config by the flags: those of --set first, then the folders, --use_amp, --max_steps and --seed, as far
    as the program has them."""
    given = vars(args)
    flags = [*args.set, *folder_overrides(args.data_dir, given.get("output_dir"))]
    if args.use_amp:
        flags.append(FlagOverride("training.use_amp=true", "--use_amp"))
    values = {key: given[key] for key in ("max_steps", "seed") if given.get(key) is not None}
    return flags + [FlagOverride(f"training.{key}={value}", f"--{key} {value}") for key, value in values.items()]
