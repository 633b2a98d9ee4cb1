"""Check whether a config fits on this machine, and how long it takes.

    python tools/check_system.py --config configs/default.yaml --use_amp

The step is the one that train.py would start with. It is computed in parts if the config allows it (`auto`) and the whole
batch does not fit. Exit status 0: the config fits. 1: it does not fit, and the smallest changes that make it fit are printed.
2: the config has errors.
"""

import argparse
import dataclasses
import math
import platform
import shutil
import time
from pathlib import Path

from graf.camera import Labels, sample_poses
from graf.config import Config, MetricsConfig, TrainingConfig, load_config
from graf.data.loader import loader_processes
from graf.data.resolve import with_alpha, with_condition, without_encoder
from graf.data.views import KnownLabels, expected_labels
from graf.errors import GrafError
from graf.memory.planner import PROCESS_BYTES, Estimate, estimate_step, loader_bytes, measure_process
from graf.memory.sizes import StepSizes, edits_that_fit, planning_budget, starting_sizes, with_sizes
from graf.metrics.extractors import INCEPTION, choose_extractor
from graf.runtime.command_line import Parser, add_folder_flags, add_training_flags, run_overrides
from graf.runtime.console import duration, log, run_script
from graf.runtime.device import choose_device, keep_freed_memory, nvidia_driver, peak_memory_bytes, unusable_gpus
from graf.runtime.limits import GB, MB, available_cores, memory_available, memory_limit
from graf.runtime.out_of_memory import first_line
from graf.runtime.precision import AmpSettings, has_bfloat16, why_not_float16
from graf.runtime.retry import attempt
from graf.training.graphs import EAGER_STEPS
from graf.training.inputs import discriminator_batch, generator_batch, in_one_copy
from graf.training.state import TrainState
from graf.training.step import discriminator_step, generator_step

import imageio_ffmpeg
import psutil
import torch

SHARED_MEMORY = Path("/dev/shm")
PART_OF_UNREFINED = 0.7  # of its time that a refined step of the default takes on a CPU
STEPS = 2  # measured: the first one creates the optimizers' state, which the second one needs too
RECORDED_STEPS = EAGER_STEPS + 2  # where steps are recorded, the last of which is a replayed one


def main() -> int:
    args = parser().parse_args()
    measure_process()
    if args.budget_gb is not None and not 0 < args.budget_gb < math.inf:
        raise GrafError(
            f"--budget_gb {args.budget_gb:g}: expected more than 0 GB, and a finite number; without it, what is free counts"
        )
    config = load_config(args.config, run_overrides(args))
    device = choose_device(args.device)
    log_rows("machine", [*machine(device), number_format(config.training, device), *programs(config.metrics)])
    budget = int(args.budget_gb * GB) if args.budget_gb else free_bytes(device)
    if config.memory.budget_gb:
        budget = min(budget, int(config.memory.budget_gb * GB))
    planned = budget if args.budget_gb else planning_budget(config.memory, device)  # as train.py does, whatever is free
    known = expected_labels(config.data)
    config = without_encoder(with_condition(config, known), known.posed)
    config = with_alpha(config, None, otherwise="rgba")  # no image is read here, and this takes more
    log_rows("storage", storage(config))
    sizes = starting_sizes(config, device.type, planned, known.n_classes, known.n_elevations)
    asked, config = config, with_sizes(config, sizes)
    estimate = estimate_step(config, device.type, known.n_classes, known.n_elevations)
    taken = f"batches of {config.training.batch_size}, {sizes} (peak: {estimate.moment})"
    log_rows(f"estimate: {config.expname}, {taken}", parts(estimate))
    needed = estimate.total_bytes
    if not args.no_step:
        needed = max(needed, measure(config, known, device, estimate, budget))
    if needed <= budget and host_suffices(device):
        log.info("\nfits, %s: %s needed, %s free on %s", sizes, size(needed), size(budget), device)
        return 0
    log.info("\ndoes not fit, %s: %s needed, %s free on %s", sizes, size(needed), size(budget), device)
    log.info("%s", advice(asked, sizes, budget, device, needed / estimate.total_bytes))
    return 1


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("--config", type=Path, help="YAML file; by default configs/default.yaml")
    add_training_flags(p)
    add_folder_flags(p)
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    p.add_argument("--budget_gb", type=float, help="assume this much memory instead of the free memory, in GB, such as 4")
    p.add_argument("--no_step", action="store_true", help="only estimate; do not train a few steps to measure")
    return p


def machine(device: torch.device) -> list[tuple[str, str]]:
    """Versions, GPUs, CPU cores and memory."""
    rows = [
        ("Python", platform.python_version()),
        ("PyTorch", torch.__version__),
        ("CUDA", str(torch.version.cuda or "none")),
        ("driver", driver_version()),
    ]
    rows += [(f"cuda:{i}", name_and_memory(i)) for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    if why := unusable_gpus():
        rows.append(("GPUs", why))
    return [
        *rows,
        ("device", str(device)),
        ("cores", f"{available_cores()}, of {psutil.cpu_count()}"),
        ("memory", f"{size(memory_available())} of {size(memory_limit())} free"),
    ]


def number_format(training: TrainingConfig, device: torch.device) -> tuple[str, str]:
    """The number format of training with this config here, and the one of mixed precision."""
    mixed = dataclasses.replace(training, use_amp=True)
    here, with_amp = (AmpSettings.choose(settings, device).number_format for settings in (training, mixed))
    reasons = [] if has_bfloat16(device) else ["no hardware bfloat16"]
    if reasons and device.type == "cuda" and (why := why_not_float16(device)):
        reasons.append(why)
    return "number format", ", ".join([f"{here}; with --use_amp {with_amp}", *reasons])


def driver_version() -> str:
    driver = nvidia_driver()
    return f"{driver.version}, for CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver else "none that answers"


def name_and_memory(index: int) -> str:
    """Name and memory of a GPU."""
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:  # such as of a GPU that another process has for itself
        return f"{torch.cuda.get_device_name(index)}: {first_line(error)}"
    return f"{torch.cuda.get_device_name(index)}, {size(free)} of {size(total)} free"


def storage(config: Config) -> list[tuple[str, str]]:
    """Room for the run's files, and for the batches that loader processes hand over."""
    folder = config.run_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    rows = [("disk", f"{size(shutil.disk_usage(folder).free)} free for {config.run_dir}")]
    workers = loader_processes(config)
    if SHARED_MEMORY.exists():
        free = shutil.disk_usage(SHARED_MEMORY).free
        batches = workers * config.data.prefetch_factor
        needed = batches * config.training.batch_size * config.data.channels * config.data.imsize**2 * 4
        enough = "" if needed <= free else "; too little: set training.nworkers=0"
        rows.append(("shared memory", f"{size(free)} free, {size(needed)} for {workers} workers{enough}"))
    return rows


def programs(metrics: MetricsConfig) -> list[tuple[str, str]]:
    """Memory that videos and metrics need."""
    try:
        ffmpeg = imageio_ffmpeg.get_ffmpeg_version()
    except RuntimeError as error:
        ffmpeg = f"none: no videos ({error})"
    return [("ffmpeg", ffmpeg), ("extractor", extractor(metrics))]


def extractor(metrics: MetricsConfig) -> str:
    """The network of FID and KID, and where its weights lie; nothing is downloaded."""
    if metrics.extractor == INCEPTION:
        metrics = dataclasses.replace(metrics, extractor="auto")
    try:
        chosen = choose_extractor(metrics)
    except GrafError as error:
        return str(error)
    return f"{chosen.name}, {chosen.weights}"


def parts(estimate: Estimate) -> list[tuple[str, str]]:
    rows = [*estimate.parts.items(), ("gaps of the allocator", estimate.gaps_bytes), ("process", estimate.process_bytes)]
    return [(name, size(value)) for name, value in [*rows, ("total", estimate.total_bytes)]]


def free_bytes(device: torch.device) -> int:
    """Bytes that a training run can use on the device after this program has ended."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + PROCESS_BYTES["cuda"]
    return memory_available() + psutil.Process().memory_info().rss


def host_suffices(device: torch.device) -> bool:
    if device.type == "cpu" or free_bytes(torch.device("cpu")) >= PROCESS_BYTES["cpu"]:
        return True
    log.info("\nthe host has less than the %s that Python with its libraries takes", size(PROCESS_BYTES["cpu"]))
    return False


def measure(config: Config, known: KnownLabels, device: torch.device, estimate: Estimate, budget: int) -> int:
    """Bytes that training steps took at most, process included; 0 where none is taken, the estimate being over the budget, and
    on an Apple GPU, whose peak nothing tells."""
    if estimate.total_bytes > budget:
        log.info("\nmeasured: nothing, because by the estimate a step could exhaust the machine's memory")
        return 0
    idle = peak_memory_bytes(device)
    with attempt(even_smallest=True) as outcome:
        sizes, seconds, n_steps = take_steps(config, known, device)
    if outcome.ran_out:
        log.info("\nmeasured: out of memory (%s)", outcome.ran_out)
        return budget + 1
    if sizes.smaller_than is not None:
        log.info("\nmeasured: out of memory, survived with %s", sizes)
        return budget + 1
    taken = peak_memory_bytes(device)
    if device.type == "mps":
        log.info("\nmeasured in %d steps: time alone, as PyTorch tells no peak of an Apple GPU; the estimate counts", n_steps)
    else:
        log.info("\nmeasured in %d steps: %s over the idle process's %s", n_steps, size(taken - idle), size(idle))
    log.info("%s", completion(seconds, config))
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) + PROCESS_BYTES["cuda"]
    return taken + loader_bytes(config) if device.type == "cpu" else 0


def completion(seconds: float, config: Config) -> str:
    """The length of a run by the time of its costliest step. Where that is not refined, others take PART_OF_UNREFINED of it. On
    a CPU steps of low resolution take a third of the others, and an encoder's a tenth."""
    n_steps = config.training.max_steps
    n_last = min(config.unrefined_steps, n_steps)
    n_first = min(config.encoder.first_steps, n_steps - n_last)
    n_low = min(config.low_res_steps, n_steps - n_last - n_first)
    n_whole = n_steps - n_last - n_first - n_low
    part = PART_OF_UNREFINED if n_last else 1
    length = duration(seconds * (n_last + part * (n_whole + n_low / 3 + n_first / 10)))
    n_shorter = n_steps - (n_last or n_whole)
    shorter = f" (the first {n_shorter:,} are shorter)" if n_shorter else ""
    steps = f"a step takes about {seconds:.2g} s: {n_steps:,}{shorter} in {length}"
    return f"{steps}, and samples, metrics and checkpoints beside them"


def take_steps(config: Config, known: KnownLabels, device: torch.device) -> tuple[StepSizes, float, int]:
    """Training steps on noise instead of images. Returns the sizes of the parts that they were taken in, the last one's
    seconds, for the first finds nothing prepared, and their number."""
    keep_freed_memory()
    state = TrainState(config, device, known.n_classes, known.n_elevations)
    state.skip_to_costliest_step()
    batch, width = config.training.batch_size, config.data.imsize
    images = torch.rand(batch, config.data.channels, width, width, generator=state.rng).to(device) * 2 - 1
    n_steps = RECORDED_STEPS if state.graphs else STEPS
    for _ in range(n_steps):
        start = time.perf_counter()
        labels = [Labels.of_poses(sample_poses(batch, config.data, state.rng)) for _ in range(3)]
        batches = discriminator_batch(state, labels[1], images, labels[0]), generator_batch(state, labels[2], images, labels[0])
        for_d, for_g = in_one_copy(batches, device)
        discriminator_step(state, for_d)
        generator_step(state, for_g)
        state.advance()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()
    return state.sizes, time.perf_counter() - start, n_steps


def advice(config: Config, sizes: StepSizes, budget: int, device: torch.device, excess: float) -> str:
    """The keys to set; `excess` is measured bytes over estimated ones where those were too few."""
    edits = edits_that_fit(config, sizes, int(budget / excess), device.type)
    if not edits:
        return "no setting makes it fit; configs/low_memory_1gb.yaml is the smallest run there is"
    return f"the smallest edits that make it fit: --set {' '.join(edits)}"


def log_rows(heading: str, rows: list[tuple[str, str]]) -> None:
    log.info("\n%s", heading)
    for name, value in rows:
        log.info("  %-24s %s", name, value)


def size(n_bytes: float) -> str:
    return f"{n_bytes / GB:.2f} GB" if n_bytes >= GB / 10 else f"{n_bytes / MB:.1f} MB"


if __name__ == "__main__":
    run_script(main)
