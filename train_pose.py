"""Train a network that estimates the camera of an image: python train_pose.py --config configs/pose.yaml --use_amp"""

import argparse
import os
from pathlib import Path

from graf.config import CONFIG_DIR, PoseConfig, load_config
from graf.runtime.command_line import EXIT_STATUSES, Parser, add_run_flags, run_overrides
from graf.runtime.console import run_script
from graf.runtime.interruption import end_on_signals


def parser() -> argparse.ArgumentParser:
    p = Parser(
        __doc__,
        EXIT_STATUSES,
        usage="%(prog)s [FLAGS]; --help lists them",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        schema=PoseConfig,
    )
    p.add_argument(
        "--config",
        type=Path,
        help="YAML file, or the name of one in configs/; by default configs/pose.yaml, sized for two cores",
    )
    add_run_flags(p)
    p.set_defaults(partial=False)
    return p


def read_config(args: argparse.Namespace) -> PoseConfig:
    return load_config(args.config or CONFIG_DIR / "pose.yaml", run_overrides(args), PoseConfig)


def main() -> int:
    args = parser().parse_args()
    if args.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    end_on_signals()
    # Faults of the config are told before PyTorch is loaded; several processes end together, which takes PyTorch
    config = None if "RANK" in os.environ else read_config(args)
    from graf.commands.train_pose import train_run

    return train_run(args, read_config, config)


if __name__ == "__main__":
    run_script(main)
