"""Watch the memory of a training run, or of any process, from outside: warn of a leak, and report with a curve at the end.

    python tools/memory_leak_detector.py [--run results/default] [--clean_up] -- python train.py --config configs/default.yaml
    python tools/memory_leak_detector.py --pid 12345
    python tools/memory_leak_detector.py            # self test: a planted leak and a clean loop

Writes memory_report.json and memory_report.png into --out, at each warning and at the end, and exits with the command's
status. --run names the folder in which the run's own monitor writes memory.jsonl. Then growth is measured per step and phase,
and the report includes the monitor's findings. Without --run it is measured per sample. Ctrl-C is forwarded to the command.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

from graf.memory.watch import WatchSettings, watch_command, watch_pid
from graf.runtime.command_line import Parser, positive
from graf.runtime.console import log, run_script
from graf.runtime.limits import MB

# A loop that writes its step as a run's monitor does: it leaks 1 MB per step, or fills a cache that it drops every 40 steps.
LOOP = """
import json, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
leaks, steps, path = sys.argv[1] == "leak", int(sys.argv[2]), sys.argv[3]
kept = []
for step in range(1, steps + 1):
    kept.append(bytearray(b"1" * 2**20))
    if not leaks and step % 40 == 0:
        kept.clear()
    with open(path, "a") as file:
        file.write(json.dumps({"time": time.time(), "step": step, "phase": "train"}) + "\\n")
    time.sleep(0.02)
"""
SELF_TEST_STEPS, SELF_TEST_INTERVAL_S = 250, 0.005
FOUND_BY_STEP = 200
RATE_MB, RATE_TOLERANCE = 1.0, 0.1


def main() -> int | None:
    arguments, command = parse(sys.argv[1:])
    if arguments.self_test:
        return self_test()
    settings = WatchSettings(arguments.out, arguments.run, arguments.interval_s, arguments.warm_up_s, arguments.clean_up)
    return watch_command(command, settings) if command else watch_pid(arguments.pid, settings)


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the command behind `--`."""
    parser = Parser(__doc__)
    parser.add_argument("--pid", type=positive, help="watch this process instead of a command")
    parser.add_argument("--run", type=Path, help="the run's folder, for steps and phases")
    parser.add_argument(
        "--out", type=Path, default=Path("results/memory"), help="folder of the report (default results/memory)"
    )
    parser.add_argument("--interval_s", type=float, default=1.0, help="seconds between samples (default 1)")
    parser.add_argument(
        "--warm_up_s", type=float, default=60.0, help="without --run: number of seconds to ignore at the start (default 60)"
    )
    parser.add_argument("--clean_up", action="store_true", help="at a warning, ask the training run to free memory (Linux)")
    parser.add_argument("--self_test", action="store_true", help="run the self test; this is the default without arguments")
    split = words.index("--") if "--" in words else len(words)
    arguments, command = parser.parse_args(words[:split]), words[split + 1 :]
    arguments.self_test |= not words
    if (arguments.pid is not None) + bool(command) + arguments.self_test != 1:
        parser.error("expected one of: --pid N, --self_test, or a command behind --, such as -- python train.py")
    if arguments.clean_up and not command:
        parser.error("--clean_up works on a command that is started here, behind --")
    if not 0 < arguments.interval_s < math.inf:
        parser.error(f"--interval_s {arguments.interval_s}: expected more than 0 seconds, and a finite number")
    return arguments, command


def self_test() -> int:
    """Watch a loop that leaks and one that does not. Returns 0 where both are told for what they are, else 1."""
    log.info("self test: a loop that leaks %g MB per step, which must cause a warning, then a clean one", RATE_MB)
    leaks, clean = (reports_of(kind) for kind in ("leak", "clean"))
    found = bool(leaks) and leaks[0]["step"] <= FOUND_BY_STEP
    found = found and abs(leaks[0]["bytes_per_step"] / MB - RATE_MB) <= RATE_TOLERANCE
    said = f"at step {leaks[0]['step']}, {leaks[0]['bytes_per_step'] / MB:.2f} MB per step" if leaks else "not at all"
    log.info("a planted leak of %g MB per step is found %s: %s", RATE_MB, said, "passed" if found else "FAILED")
    log.info("a clean loop raises %d alarms: %s", len(clean), "FAILED" if clean else "passed")
    return 0 if found and not clean else 1


def reports_of(kind: str) -> list[dict]:
    """The leaks that are reported of a LOOP, in a process of its own. Raises SystemExit where a signal ends it."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        command = [sys.executable, "-c", LOOP, kind, str(SELF_TEST_STEPS), str(run_dir / "memory.jsonl")]
        if status := watch_command(command, WatchSettings(run_dir, run_dir, SELF_TEST_INTERVAL_S, tells_report=False)):
            raise SystemExit(status)
        return json.loads((run_dir / "memory_report.json").read_text(encoding="utf-8"))["leaks"]


if __name__ == "__main__":
    run_script(main)
