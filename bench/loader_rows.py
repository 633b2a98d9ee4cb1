"""How long a training step waits for its photographs, decoded each time that they are read or kept decoded."""

import statistics
import time
from pathlib import Path

from graf.config import Config, load_config
from graf.data import build_dataset, build_loader, resolve
from graf.data.loader import loader_processes
from graf.training.state import TrainState
from graf.training.step import train_step
from speed_rows import described

import numpy as np
import torch
from PIL import Image

KEPT = {"decoded each time": 0.0, "kept in memory": 1.0, "kept in a file": 1e-9}  # data.cache_gb
PHOTOGRAPHS = 24
WIDTH, HEIGHT = 4000, 3000  # 12 megapixels
WARM_UP_STEPS = 4  # in which loader processes start, and what they fetch ahead is used up


def put_photographs(folder: Path) -> None:
    """JPEGs as a phone's in size, of smooth random colours."""
    rng = np.random.default_rng(0)
    for index in range(PHOTOGRAPHS):
        coarse = Image.fromarray(rng.integers(0, 256, (HEIGHT // 20, WIDTH // 20, 3), dtype=np.uint8))
        coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(folder / f"{index:02d}.jpg", quality=90)


def loader_config(file: Path | None, folder: Path, name: str) -> Config:
    settings = [f"data.datadir={folder}", f"data.cache_gb={KEPT[name]}", "data.labels=none", "data.box=none"]
    return load_config(file, ["data.type=images", *settings])


def loader_row(config: Config, cache: Path, steps: int, device: torch.device) -> dict:
    """Median seconds that a step waits for its batch, the share of all steps' time that is spent waiting, however unevenly, and
    images per second; CPU seconds are of whole steps, without those of loader processes."""
    dataset = build_dataset(config, cache)
    config = resolve(config, dataset)
    state = TrainState(config, device, len(dataset.class_names), dataset.n_elevations)
    state.skip_to_whole_step()
    batches = build_loader(dataset, config, device)
    waits, wholes = [], []
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            cpu_start = time.process_time()
        start = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - start)
        train_step(state, dataset, *batch)
        state.advance()
        wholes.append(time.perf_counter() - start)
    cpu_seconds = (time.process_time() - cpu_start) / steps
    batches.close()
    waits, wholes = waits[WARM_UP_STEPS:], wholes[WARM_UP_STEPS:]
    work = f"{PHOTOGRAPHS} JPEGs of {WIDTH} x {HEIGHT}, loader processes: {loader_processes(config)}"
    return described(config, device) | {
        "work": f"wait of a step for its photographs: {work}",
        "seconds": statistics.median(waits),
        "share_of_step": sum(waits) / sum(wholes),
        "images_per_second": config.training.batch_size * steps / sum(wholes),
        "cpu_seconds": cpu_seconds,
        "peak_bytes": None,
        "flop_utilisation": None,
    }
