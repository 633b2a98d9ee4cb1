"""Train a 3D-aware generator from photographs: python train.py --config configs/default.yaml --use_amp"""

import argparse
import functools
import os
from pathlib import Path

from graf.config import load_config
from graf.config.strict import expanded
from graf.runtime.command_line import Parser, add_folder_flags, folder_overrides
from graf.runtime.console import run_script
from graf.runtime.interruption import requeue_at_start

EXIT_STATUSES = (
    "exit status: 0 done; 1 a file, such as a checkpoint, cannot be written or read; 2 a mistake in the command, the config or "
    "the data; 3 ended with a checkpoint by training.max_hours or SIGUSR1, to be started again; 130 ended by Ctrl-C, 143 by "
    "SIGTERM, both with a checkpoint (a second signal ends at once, with 130 and the checkpoint before)"
)


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
        help="YAML file, or one of configs/ by name; by default configs/default.yaml, from which all others start",
    )
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as training.batch_size=4")
    add_folder_flags(p)
    p.add_argument("--use_amp", action="store_true", help="mixed precision, as training.use_amp=true")
    p.add_argument(
        "--resume",
        type=expanded,
        default="auto",
        help="auto: continue the run in its folder; none: refuse if there is one; or a file",
    )
    p.add_argument("--partial", action="store_true", help="with --resume FILE: a new run from those of its weights that fit")
    p.add_argument("--max_steps", type=int, help="train until this step instead of training.max_steps")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--local_rank", type=int, help="set by torch.distributed.launch; same as the variable LOCAL_RANK")
    p.add_argument("--seed", type=int, help="instead of training.seed")
    p.add_argument(
        "--memory_snapshot", action="store_true", help="list what memory holds at each checkpoint: memory/memory_STEP.json"
    )
    p.add_argument(
        "--detect_anomaly", action="store_true", help="name the operation whose backward pass produces a nan, and stop; slow"
    )
    p.add_argument(
        "--dry_run", action="store_true", help="build everything, run one step, print what would be trained, and stop"
    )
    return p


def main() -> int:
    args = parser().parse_args()
    if args.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    requeue_at_start()
    config = functools.cache(lambda: load_config(args.config, overrides(args)))
    if "RANK" not in os.environ:
        config()  # its faults are told before PyTorch is loaded; several processes end together, which takes PyTorch
    from graf.commands.train import train_run

    return train_run(args, config)


def overrides(args: argparse.Namespace) -> list[str]:
    """The flags that stand for config keys, behind --set."""
    flags = [*args.set, *folder_overrides(args.data_dir, args.output_dir)]
    if args.use_amp:
        flags.append("training.use_amp=true")
    named = {"max_steps": args.max_steps, "seed": args.seed}
    return flags + [f"training.{key}={value}" for key, value in named.items() if value is not None]


if __name__ == "__main__":
    run_script(main)
