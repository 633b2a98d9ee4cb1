"""Train with settings that small cards stand, memory watched from outside and a report of it in the run's folder.

    python tools/train_with_memory_monitoring.py --config configs/safe_training.yaml --data_dir D --output_dir O
    python tools/train_with_memory_monitoring.py test

The second checks that the watching works, on a planted leak and a clean loop. Flags that are not listed below are train.py's,
such as --max_steps 1000 or --device cpu. At a warning the training is asked to clean up.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from memory_leak_detector import self_test  # noqa: E402

from graf.config import load_config  # noqa: E402
from graf.console import log, run_script  # noqa: E402
from graf.errors import GrafError  # noqa: E402
from graf.memory.supervision import WatchSettings, watch_command  # noqa: E402


def main() -> int:
    if sys.argv[1:] == ["test"]:
        return self_test()
    arguments, rest = parser().parse_known_args()
    if not arguments.interval_s > 0:
        raise GrafError(f"--interval_s {arguments.interval_s}: expected more than 0 seconds")
    overrides = overrides_of(arguments)
    run_dir = load_config(arguments.config, overrides).run_dir
    command = [sys.executable, str(ROOT / "train.py"), "--config", arguments.config]
    command += ["--set", *overrides] if overrides else []
    status = watch_command(command + rest, WatchSettings(run_dir, run_dir, arguments.interval_s, clean_up=True))
    log.info("memory: %s", run_dir / "memory_report.png")
    return status


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--config", default=str(ROOT / "configs" / "safe_training.yaml"), help="YAML file of the run")
    p.add_argument("--data_dir", type=Path, help="folder of your images; without it the config's data")
    p.add_argument("--output_dir", type=Path, help="parent folder of the run, instead of training.outdir")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as training.batch_size=2")
    p.add_argument("--interval_s", type=float, default=1.0, help="seconds between samples")
    return p


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """The flags that stand for config keys, before what --set says. Raises GrafError where there is no folder of images."""
    overrides = []
    if arguments.data_dir is not None:
        if not arguments.data_dir.is_dir():
            raise GrafError(f"--data_dir {arguments.data_dir}: no such folder; it is where the images lie")
        overrides += ["data.type=images", f"data.datadir={json.dumps(str(arguments.data_dir))}"]
    if arguments.output_dir is not None:
        overrides.append(f"training.outdir={json.dumps(str(arguments.output_dir))}")
    return overrides + arguments.set


if __name__ == "__main__":
    run_script(main)
