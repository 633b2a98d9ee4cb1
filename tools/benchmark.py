"""Speed and memory of a training step, each variant in a process of its own: python tools/benchmark.py step"""

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graf  # noqa: E402, F401, I001  first: it tells torch's threads how to wait
import torch  # noqa: E402

from graf.camera import Labels, sample_poses  # noqa: E402
from graf.config import Config, load_config  # noqa: E402
from graf.console import run_script  # noqa: E402
from graf.device import choose_device, keep_freed_memory, peak_memory_bytes  # noqa: E402
from graf.training.state import TrainState  # noqa: E402
from graf.training.steps import discriminator_step, generator_step  # noqa: E402

log = logging.getLogger("graf")

VARIANTS = {  # name: (mixed precision, freed memory kept)
    "float32": (False, True),
    "amp": (True, True),
    "amp, system allocator": (True, False),
}
WARM_UP_STEPS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("what", choices=["step"])
    parser.add_argument("--config", help="YAML file; by default configs/default.yaml")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed, after a few that are not")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--json", help="write the rows into this file too")
    parser.add_argument("--variant", choices=list(VARIANTS), help="measure one, and print it as JSON")
    args = parser.parse_args()
    if args.variant:
        config = load_config(args.config, [f"training.use_amp={str(VARIANTS[args.variant][0]).lower()}"])
        log.info(json.dumps(measure_steps(config, args.variant, args.steps, choose_device(args.device))))
        return 0
    rows = [in_own_process(variant) for variant in VARIANTS]
    log.info("%-24s %10s %14s %14s", "variant", "steps / s", "x float32", "peak MiB")
    for row in rows:
        speed = rows[0]["seconds_per_step"] / row["seconds_per_step"]
        log.info("%-24s %10.2f %14.2f %14.0f", row["name"], 1 / row["seconds_per_step"], speed, row["peak_bytes"] / 2**20)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


def in_own_process(variant: str) -> dict:
    done = subprocess.run([sys.executable, *sys.argv, "--variant", variant], capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def measure_steps(config: Config, variant: str, n_steps: int, device: torch.device) -> dict:
    """Median seconds of a training step on random photographs, and its peak bytes: of the card, or resident on the CPU."""
    if VARIANTS[variant][1]:
        keep_freed_memory()
    idle = peak_memory_bytes(device)
    state = TrainState(config, device)
    batch, size = config.training.batch_size, config.data.imsize
    images = torch.rand(batch, 3, size, size, generator=state.draws).to(device) * 2 - 1
    seconds = []
    for _ in range(WARM_UP_STEPS + n_steps):
        start = time.perf_counter()
        labels = [Labels.of_poses(sample_poses(batch, config.data, state.draws)).to(device) for _ in range(3)]
        discriminator_step(state, images, labels[0], labels[1])
        generator_step(state, labels[2])
        state.advance()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    peak = peak_memory_bytes(device) - idle
    return {"name": variant, "seconds_per_step": statistics.median(seconds[WARM_UP_STEPS:]), "peak_bytes": peak}


if __name__ == "__main__":
    run_script(main)
