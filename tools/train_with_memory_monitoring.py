"""Train with settings for small GPUs, and watch the memory from outside; the report is written to the run's folder.

    python tools/train_with_memory_monitoring.py --config configs/safe_training.yaml --data_dir D --output_dir O
    python tools/train_with_memory_monitoring.py --script train_pose.py
    python tools/train_with_memory_monitoring.py test

The last command runs the self test of memory_leak_detector.py. Flags that are not listed below are passed to the script, such
as --max_steps 1000 or --device cpu. On Linux the run is asked to free memory at each warning.
"""

import argparse
import math
import sys
from pathlib import Path

from graf.config import Config, PoseConfig, load_config
from graf.errors import GrafError
from graf.memory.watch import WatchSettings, watch_command
from graf.runtime.command_line import Parser, add_folder_flags, add_set_flag, folder_overrides
from graf.runtime.console import run_script
from memory_leak_detector import self_test

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {"train.py": ("safe_training.yaml", Config), "train_pose.py": ("pose.yaml", PoseConfig)}


def main() -> int:
    if sys.argv[1:] == ["test"]:
        return self_test()
    arguments, rest = parser().parse_known_args()
    if not 0 < arguments.interval_s < math.inf:
        raise GrafError(f"--interval_s {arguments.interval_s}: expected more than 0 seconds, and a finite number")
    overrides = [*arguments.set, *folder_overrides(arguments.data_dir, arguments.output_dir)]
    default, schema = SCRIPTS[arguments.script]
    config = arguments.config or ROOT / "configs" / default
    run_dir = load_config(config, overrides, schema).run_dir
    command = [sys.executable, str(ROOT / arguments.script), "--config", str(config)]
    command += ["--set", *overrides] if overrides else []
    return watch_command(command + rest, WatchSettings(run_dir, run_dir, arguments.interval_s, clean_up=True))


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__, allow_abbrev=False)
    p.add_argument("--script", choices=SCRIPTS, default="train.py", help="training program")
    p.add_argument(
        "--config",
        type=Path,
        help="YAML file of the run; by default configs/safe_training.yaml, or configs/pose.yaml for train_pose.py",
    )
    add_folder_flags(p)
    add_set_flag(p)
    p.add_argument("--interval_s", type=float, default=1.0, help="seconds between samples (default 1)")
    return p


if __name__ == "__main__":
    run_script(main)
