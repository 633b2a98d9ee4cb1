"""Train a 3D-aware generator from photographs: python train.py --config configs/default.yaml --use_amp"""

import argparse
import logging
from pathlib import Path

import yaml

from graf.camera import rotation_poses
from graf.config import Config, config_to_dict, load_config
from graf.console import run_script
from graf.data import Views, build_dataset, build_loader
from graf.device import choose_device, keep_freed_memory
from graf.errors import CheckpointError, GrafError
from graf.evaluation.curves import draw_curves
from graf.files import whole_file
from graf.training.checkpoint import NEWEST, restore
from graf.training.interruption import Interruption
from graf.training.logging import check_monitoring
from graf.training.loop import train, train_step
from graf.training.state import TrainState

log = logging.getLogger("graf")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--config", help="YAML file; by default configs/default.yaml, from which others say only what differs")
    p.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="such as training.batch_size=4",
    )
    p.add_argument("--use_amp", action="store_true", help="mixed precision, as training.use_amp=true")
    p.add_argument(
        "--resume", default="auto", help="auto: continue the run in its folder; none: refuse if there is one; or a file"
    )
    p.add_argument("--max_steps", type=int, help="train until this step instead of training.max_steps")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--seed", type=int, help="instead of training.seed")
    p.add_argument(
        "--dry_run", action="store_true", help="build everything, run one step, print what would be trained, and stop"
    )
    return p


def main() -> int:
    args = parser().parse_args()
    keep_freed_memory()
    config = load_config(args.config, overrides(args))
    device = choose_device(args.device)
    check_monitoring(config)
    checkpoint = find_checkpoint(args.resume, config.run_dir)
    dataset = build_dataset(config)
    state = TrainState(config, device, len(dataset.class_names), dataset.n_elevations)
    if checkpoint is not None:
        restore(checkpoint, state)
        log.info("continuing %s from step %d", checkpoint, state.step)
    elif config.ccsr.pretrained_path and state.generator.refinement is not None:
        state.load_pretrained_backbone(config.ccsr.pretrained_path)
    if args.dry_run:
        dry_run(state, dataset)
        return 0
    if state.step >= config.training.max_steps:
        log.info("%s is at step %d already; a higher --max_steps trains on", checkpoint, state.step)
        return 0
    write_config(config)
    log.info(
        "training on %d images on %s until step %d, into %s", len(dataset), device, config.training.max_steps, config.run_dir
    )
    with Interruption() as interruption:
        train(state, dataset, interruption)
    if interruption.signal is not None:
        log.warning("interrupted at step %d; the same command continues from there", state.step)
    else:
        draw_curves(config.run_dir, config.run_dir / "curves")
        log.info("done: %s at step %d; python eval.py --run %s renders it", config.run_dir / NEWEST, state.step, config.run_dir)
    return interruption.exit_status


def overrides(args: argparse.Namespace) -> list[str]:
    """The flags that stand for config keys, behind --set."""
    flags = list(args.set)
    if args.use_amp:
        flags.append("training.use_amp=true")
    if args.max_steps is not None:
        flags.append(f"training.max_steps={args.max_steps}")
    if args.seed is not None:
        flags.append(f"training.seed={args.seed}")
    return flags


def find_checkpoint(resume: str, run_dir: Path) -> Path | None:
    """The checkpoint to continue from, or None for a new run. Raises CheckpointError where a run would be written over."""
    newest = run_dir / NEWEST
    if resume == "auto":
        return newest if newest.exists() else None
    if resume == "none":
        if (run_dir / "config.yaml").exists() or newest.exists():
            raise CheckpointError(
                f"{run_dir}: holds a run already, and --resume none starts a new one; continue it with --resume auto, "
                "or name another folder with --set expname=..."
            )
        return None
    path = Path(resume)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint; --resume takes auto, none or a file")
    if newest.exists() and newest.resolve() != path.resolve() and run_dir.resolve() not in path.resolve().parents:
        raise CheckpointError(
            f"{run_dir}: holds another run than {path}, which would be written over; continue it with --resume auto, "
            "or name another folder with --set expname=..."
        )
    return path


def write_config(config: Config) -> None:
    """config.yaml of the run's folder: every key, as it is trained with."""
    try:
        with whole_file(config.run_dir / "config.yaml") as temporary:
            temporary.write_text(yaml.safe_dump(config_to_dict(config), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise GrafError(f"training.outdir: {config.run_dir} cannot be written ({error}); choose another folder") from None


def dry_run(state: TrainState, dataset: Views) -> None:
    """One training step and one sample, and what the run would be; nothing is written but toy cars that are missing."""
    training = state.config.training
    images, labels = next(build_loader(dataset, state.config, state.device))
    stats = train_step(state, dataset, images, labels)
    sample = state.generator_ema.render(state.generator_ema.sample_latents(1), rotation_poses(1, state.config.data))
    log.info("a sample: images %s, depth %s", tuple(sample.images.shape), tuple(sample.depth.shape))
    for name in ("generator", "discriminator"):
        count = sum(p.numel() for p in getattr(state, name).parameters())
        log.info("%s: %s parameters", name, f"{count:,}")
    patch = state.config.patch_size
    log.info("images: %s, patches: %s", tuple(images.shape), (len(images), 3, patch, patch))
    log.info(
        "data: %d images, cameras %s, classes %s", len(dataset), "known" if dataset.posed else "drawn", len(dataset.class_names)
    )
    log.info(
        "schedule: %d steps, learning rates times %g at %s", training.max_steps, training.lr_anneal, training.lr_anneal_every
    )
    for cadence in ("print_every", "sample_every", "save_every_steps", "backup_every", "fid_every", "video_every"):
        every = getattr(training, cadence)
        log.info("%s: %s", cadence, f"{every} steps" if every else "never")
    log.info("one step: %s", ", ".join(f"{name} {float(value):.4g}" for name, value in stats.items()))


if __name__ == "__main__":
    run_script(main)
