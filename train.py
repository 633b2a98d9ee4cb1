"""Train a 3D-aware generator from images: python train.py --config configs/default.yaml --use_amp"""

import argparse
import os
from pathlib import Path

from graf.config import Config, load_config
from graf.runtime.command_line import EXIT_STATUSES, Parser, add_run_flags, run_overrides
from graf.runtime.console import run_script
from graf.runtime.interruption import end_on_signals


def parser() -> argparse.ArgumentParser:
    p = Parser(
        __doc__,
        EXIT_STATUSES,
        usage="%(prog)s [FLAGS]; --help lists them",  # all of them would bury an error's message
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument(
        "--config",
        type=Path,
        help="YAML file, or the name of one in configs/; by default the values in configs/default.yaml",
    )
    add_run_flags(p)
    p.add_argument("--partial", action="store_true", help="with --resume FILE: start a new run from weights whose shapes match")
    return p


def read_config(args: argparse.Namespace) -> Config:
    return load_config(args.config, run_overrides(args))


def main() -> int:
    args = parser().parse_args()
    if args.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    end_on_signals()
    # Faults of the config are told before PyTorch is loaded; several processes end together, which takes PyTorch
    config = None if "RANK" in os.environ else read_config(args)
    from graf.commands.train import train_run

    return train_run(args, read_config, config)


if __name__ == "__main__":
    run_script(main)
