"""Find the cameras of photographs that have none, in rounds, and train a generator with them.

    python tools/find_cameras.py --data_dir photos --use_amp --max_steps 6000

Round 0 trains a generator without cameras. In each later round an estimator learns from views of the last generator, whose
cameras are known, and reads the photographs' cameras; with these a generator learns. Where the config has an encoder,
reconstructions correct the cameras of the last round. After an interruption the same command goes on. The cameras are right
up to one turn of the world, which no photograph tells. docs/cameras.md says how far to trust them.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import sys
from pathlib import Path

from graf.checkpoints.generator_loading import load_generator, trained_checkpoint
from graf.checkpoints.run_folder import newest_checkpoint
from graf.config import (
    CONFIG_DIR,
    Cadence,
    Config,
    PoseConfig,
    RunConfig,
    completed_config,
    config_of_ours,
    config_text,
    config_to_dict,
    load_config,
)
from graf.config.advice import advice_on_steps, unread_keys
from graf.config.reading import as_yaml
from graf.data import Views, build_dataset
from graf.data.advice.warnings import UNSURE, too_few_steps
from graf.data.folders import TRANSFORMS, require_outside
from graf.data.resolve import with_alpha
from graf.errors import GrafError
from graf.finding import rounds
from graf.finding.azimuths import agreement
from graf.finding.reconstruction import by_reconstruction
from graf.finding.rounds import FoundCameras, Round
from graf.finding.sheet import write_sheet
from graf.memory.watch import exit_status, started
from graf.pose.accuracy import doubt_about
from graf.pose.loading import load_estimator
from graf.pose.splits import held_out_objects, posed_splits
from graf.reporting.cameras_page import write_cameras_page
from graf.rng import seeded_rng
from graf.rotations import GUESSED_RIGHT, NEAR_DEG, circular_distance
from graf.runtime.command_line import Parser, add_data_flag, add_training_flags, as_typed, positive, run_overrides, whole_number
from graf.runtime.console import log, run_script
from graf.runtime.device import choose_device
from graf.runtime.files import claim_folder, read_object, write_text
from graf.runtime.interruption import exit_status_after
from graf.runtime.run_lock import run_lock

import torch

UNDECIDING_KEYS = {  # that may change when a set goes on: sections, and keys of how a machine is used
    *("memory", "reporting"),
    *(f"data.{key}" for key in ("cache_gb", "cache_device", "prefetch_factor")),
    *(f"training.{key}" for key in ("nworkers", "persistent_workers", "max_hours", "monitoring", "keep_checkpoints")),
    *(f"training.{key}" for key in ("print_every", "save_retries")),
}
ROOT = Path(__file__).resolve().parent.parent
CUTTING_KEYS = ("center_crop", "masks")  # of data: how photographs are cut, which the rounds do once
DISCRIMINATOR = "discriminator.architecture=graf"  # whatever a config file says


def main() -> int:
    args = parser().parse_args()
    config = load_config(args.config, [DISCRIMINATOR, *run_overrides(args)])
    has_encoder = rounds.last_has_encoder(config)
    asked = asked_config(args) if has_encoder else config.without_encoder()
    args.rounds = args.rounds or (1 if has_encoder else 2)
    if args.corrections is None:
        args.corrections = 2 if has_encoder else 0
    if args.corrections < 0:
        raise GrafError(f"--corrections {args.corrections}: expected a number from 0")
    if args.corrections and not has_encoder:
        raise GrafError(
            f"--corrections {args.corrections}: needs a config with an encoder, whose reconstructions correct; leave it out"
        )
    if config.discriminator.architecture == "graf":
        where = "before the last generator" if has_encoder else "in all rounds"
        log.info("%s %s, for which this program was measured; --set chooses another", DISCRIMINATOR, where)
    pose = load_config(args.estimator, schema=PoseConfig)
    if not pose.model.azimuth_bins:
        raise GrafError(f"{args.estimator}: model.azimuth_bins is 0; set it to 24; rounds need to know how sure it is")
    if not 0 < args.keep <= 1:
        raise GrafError(f"--keep {args.keep:g}: expected a share above 0 and up to 1")
    steps = rounds.steps_of(config, args.rounds, args.corrections)
    if min(steps) < 1:
        parts = f"{args.rounds} round{'s' * (args.rounds > 1)} and the first{', with corrections' * (args.corrections > 0)}"
        raise GrafError(
            f"training.max_steps: {config.training.max_steps} steps are too few for {parts}; set more steps"
            f"{', or fewer --rounds' * (args.rounds > 1)}"
        )
    require_outside(args.out, config.data)
    choose_device(args.device)
    unposed = rounds.unposed(config, Round(args.out, 0))
    dataset = build_dataset(unposed)
    photographs = rounds.in_one_class(dataset, config)
    check_numbers(photographs, args, config, pose)
    advice = advice_on_steps(asked) if has_encoder else []
    for message in advice + too_few_steps(config, config_of_ours(args.config), len(photographs), posed=True):
        log.warning("%s", message)
    numbers = {name: getattr(args, name) for name in ("rounds", "corrections", "starts", "views", "keep")}
    settings = numbers | {"steps": steps, "photographs": identity(dataset)}
    settings |= {"config": deciding_keys(asked, config), "estimator": deciding_keys(pose)}
    older = {dataset.fingerprint: settings["photographs"]}
    claim_folder(args.out, settings, functools.partial(completed, older=older, has_encoder=has_encoder))
    if config.data.mirror != "none":
        log.warning("data.mirror: %s has no effect here, since the world is turned until cameras are found", config.data.mirror)
    config = dataclasses.replace(config, data=with_alpha(unposed, None, photographs.alpha).data)
    with run_lock(args.out, "--out"):
        for number in range(args.rounds + 1):
            if status := take_round(Round(args.out, number), args, config, pose, photographs):
                log.info("round %d has not ended (exit status %d); the same command continues it", number, status)
                return status
            page = write_cameras_page(args.out, number) if number else None
    tell_results(Round(args.out, args.rounds), photographs, page, config)
    return 0


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--config",
        type=Path,
        help="YAML file of the generator's run; its steps are those of the last generator where it has an encoder, else those "
        "of all rounds together, with one start",
    )
    add_training_flags(p)
    add_data_flag(p)
    p.add_argument("--out", type=Path, default=Path("results/cameras"), help="folder of the rounds (default results/cameras)")
    p.add_argument(
        "--rounds", type=positive, help="after the one without cameras (default 1 where the config has an encoder, else 2)"
    )
    p.add_argument(
        "--corrections",
        type=whole_number,
        help="of the last round's cameras by reconstructions (default 2 where the config has an encoder, which they need)",
    )
    p.add_argument(
        "--starts",
        type=positive,
        default=1,
        help="generators without cameras to choose from, with seeds of their own (default 1): in turn with the config's "
        "cameras, with some guessed from silhouettes, and with a quarter of the azimuths; for objects that do not turn, or "
        "have their front on both sides",
    )
    p.add_argument("--views", type=positive, default=4000, help="generated views that an estimator learns from (default 4000)")
    p.add_argument(
        "--keep",
        type=float,
        default=0.9,
        help="share of the photographs, the surest ones, that a round trains with (default 0.9)",
    )
    p.add_argument(
        "--estimator",
        type=Path,
        default=CONFIG_DIR / "pose_mixture.yaml",
        help="YAML file of the estimators' runs (default configs/pose_mixture.yaml); the rounds set its data, seed and "
        "use_amp, and halve training.reframe from round 2 on",
    )
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    return p


def tell_results(last: Round, photographs: Views, page: Path, config: Config) -> None:
    """Log where the cameras are that the last round found, and whether they can be trusted; config: the asked one."""
    for file, home, _ in rounds.camera_files(last.out / rounds.CAMERAS, photographs, config.data):
        if file.exists():
            read = "" if config.data.labels == "auto" else ", and set data.labels: auto to train with it"
            log.info("%s: the cameras by the names of your files; copy it to %s%s", file, home / TRANSFORMS, read)
    data, default = config.data, Config().data
    cut = [f"data.{key}={as_yaml(getattr(data, key))}" for key in CUTTING_KEYS if getattr(data, key) != getattr(default, key)]
    if cut:
        reading = as_typed("python", "eval.py", "--run", last.generator, "--invert", "PHOTO", "--set", *cut)
        log.info("its generator was trained on photographs that were cut out already; one of yours: %s", reading)
    check = as_typed("python", "tools/validate_data.py", "--config", config_file(last.generator))
    log.info("the photographs with their cameras: %s; %s draws them; how sure they are: %s", last.photographs, check, page)
    record = read_object(last.record)
    doubt, confidence = record.get("doubt"), record["confidence"]  # older records have no doubt
    if doubt or confidence < UNSURE:
        reason = f"the estimator {doubt}" if doubt else "do not train with them"
        log.warning("these cameras are not to be trusted: mean confidence %.2f; %s", confidence, reason)


def check_numbers(photographs: Views, args: argparse.Namespace, config: Config, pose: PoseConfig) -> None:
    """Raise GrafError where there will be fewer photographs, or views, than a batch takes: it would be found out late."""
    kept = len(rounds.surest_rows(photographs, torch.zeros(len(photographs)), args.keep))
    if kept < config.training.batch_size:
        raise GrafError(
            f"{kept} of {len(photographs)} photographs are left by --keep {args.keep:g}, fewer than training.batch_size "
            f"{config.training.batch_size}; add photographs, or set --keep 1 or a smaller training.batch_size"
        )
    learned = args.views - sum(held_out_objects(args.views, pose.training.validation_share, pose.training.test_share))
    if learned < pose.training.batch_size:
        raise GrafError(
            f"--views {args.views}: an estimator learns from some {learned} of them, fewer than the training.batch_size "
            f"{pose.training.batch_size} of {args.estimator}; make more views"
        )


def take_round(this: Round, args: argparse.Namespace, config: Config, pose: PoseConfig, photographs: Views) -> int:
    """Take a round, or what is left of it. `config`: that of all generators but one with an encoder, with the data section of
    round 0. Returns the exit status of a run that did not end, else 0."""
    if this.record.exists():
        log.info("round %d of %d is done: %s", this.number, args.rounds, this.folder)
        return 0
    log.info("round %d of %d: %s", this.number, args.rounds, this.folder)
    take = posed_round if this.number else first_round
    return take(this, args, config, pose, photographs)


def first_round(this: Round, args: argparse.Namespace, config: Config, pose: PoseConfig, photographs: Views) -> int:
    """A generator without cameras: of several the one about whose photographs two estimators agree best. Returns an exit status
    as `take_round`."""
    if args.starts == 1:
        if not (status := train_unposed(this, rounds.unposed(config, this, photographs), args)):
            write_record(this, {})
        return status
    agreements = []
    for number in range(args.starts):
        start = dataclasses.replace(this, start=number)
        seeded = dataclasses.replace(config.training, seed=config.training.seed + number)
        reseeded = dataclasses.replace(config, training=seeded)
        if not start.record.exists() and (status := judge(start, args, reseeded, pose, photographs)):
            return status
        agreements.append(read_object(start.record)["agreement"])
        log.info("start %d of %d: two estimators agree by %.2f of 1", number + 1, args.starts, agreements[-1])
    write_record(this, {"start": agreements.index(max(agreements)), "agreements": agreements})
    return 0


def train_unposed(this: Round, config: Config, args: argparse.Namespace) -> int:
    """Train a generator without cameras, and show it from all around. Returns an exit status as `take_round`."""
    if not (status := train("train.py", this.generator, config, device=args.device)):
        write_sheet(this.sheet, load_generator(this.generator, device=choose_device(args.device)), this.name)
        log.info("%s: do the objects turn, with one front each? If not, no later round corrects this", this.sheet)
    return status


def judge(start: Round, args: argparse.Namespace, config: Config, pose: PoseConfig, photographs: Views) -> int:
    """Train a generator without cameras, and two estimators that tell whether it shows what photographs show: they agree about
    the photographs where it does. Returns an exit status as `take_round`."""
    device, found = choose_device(args.device), []
    unposed = rounds.unposed(config, start, photographs)
    kind = rounds.STARTS[start.start % len(rounds.STARTS)]
    if (begun := kind(unposed, photographs, start)) is None:
        log.info("start %d: not possible with these photographs and this config; it samples cameras as asked", start.start + 1)
        begun = unposed
    if status := train_unposed(start, begun, args):
        return status
    make_views(start.views, start.generator, args.views, device)
    for seed, name in enumerate(("estimator", "estimator_again")):
        estimator = rounds.of_estimator(pose, unposed, start, seed, name)
        if status := train("train_pose.py", start.folder / name, estimator, device=args.device):
            return status
        found.append(rounds.find_cameras(load_estimator(start.folder / name, device), photographs).azimuth_deg)
    write_record(start, {"agreement": agreement(*found)})
    return 0


def posed_round(this: Round, args: argparse.Namespace, config: Config, pose: PoseConfig, photographs: Views) -> int:
    """Views, an estimator that learns from them, the photographs' cameras, in the last round corrected, and a generator that
    learns from those. Returns an exit status as `take_round`."""
    device, config = choose_device(args.device), rounds.in_range_of_start(config, Round(args.out, 0))
    make_views(this.views, this.before.generator, args.views, device)
    estimator = rounds.of_estimator(pose, config, this, config.training.seed + this.number)
    if status := train("train_pose.py", this.estimator, estimator, device=args.device):
        return status
    found, record = read_cameras(this, args, photographs, config, device)
    is_last = this.number == args.rounds
    if is_last and args.corrections:
        status, found, turned = corrected(this, args, config, photographs, found)
        if status:
            return status
        record |= {"confidence": float(found.confidence.mean()), "turned": turned}
    folders = rounds.write_photographs(this, photographs, found, args.keep, config.data)
    ends_encoding = is_last and rounds.last_has_encoder(config)
    begins_anew = this.number == 1 or ends_encoding
    box = rounds.box_of((this if begins_anew else this.before).generator, photographs, found, config.data)
    if ends_encoding:
        posed = rounds.last_config(dataclasses.replace(asked_config(args), data=config.data), this, folders, box)
    else:
        posed = rounds.posed(config, this, args.rounds, folders, box)
    goes_on = not begins_anew and not newest_checkpoint(this.generator)
    start = ["--resume", str(trained_checkpoint(this.before.generator))] if goes_on else []
    if status := train("train.py", this.generator, posed, *start, device=args.device):
        return status
    write_sheet(this.sheet, load_generator(this.generator, device=device), this.name, (photographs, found))
    if is_last and config.data.type == "images":
        rounds.write_cameras(args.out / rounds.CAMERAS, photographs, found, config.data)
    write_record(this, record)
    return 0


def corrected(
    this: Round, args: argparse.Namespace, config: Config, photographs: Views, found: FoundCameras
) -> tuple[int, FoundCameras, list[float]]:
    """An exit status as `take_round`, with which not all corrections are made; the photographs' cameras after them, each by the
    reconstructions of a generator that learns from the cameras before; and the shares of photographs that they turned."""
    turned = []
    if not rounds.goes_all_around(config):
        low, high = (360 * u for u in config.data.u_range)
        log.info(
            "azimuths are from %.0f to %.0f degrees, not all around, so no camera is corrected to the opposite one", low, high
        )
        return 0, found, turned
    for number in range(1, args.corrections + 1):
        correction = dataclasses.replace(this, correction=number)
        if not correction.cameras.exists():
            log.info("%s: %s", correction.name, correction.folder)
            folders = rounds.write_photographs(correction, photographs, found, args.keep, config.data)
            box = rounds.box_of(correction.generator, photographs, found, config.data)
            reconstructing = rounds.correction_config(config, correction, folders, box)
            if status := train("train.py", correction.generator, reconstructing, device=args.device):
                return status, found, turned
            compare_ends(correction, photographs, found, choose_device(args.device))
        before, found = found, rounds.kept_cameras(correction.cameras, photographs)
        turned.append(float((circular_distance(before.azimuth_deg, found.azimuth_deg) > 90).double().mean()))
        log.info(
            "%s: %.1f %% of the photographs are reconstructed better from the opposite azimuth, and take it; confidence %.2f",
            *(correction.name, 100 * turned[-1], found.confidence.mean()),
        )
    return 0, found, turned


def compare_ends(correction: Round, photographs: Views, found: FoundCameras, device: torch.device) -> None:
    """Keep the cameras from which a correction's generator reconstructs best; its memory is free for the next run."""
    generator = load_generator(correction.generator, device=device)
    rounds.keep_cameras(correction.cameras, photographs, by_reconstruction(generator, photographs, found))


def write_record(this: Round, record: dict) -> None:
    """Write a round's record, which marks it as done."""
    write_text(this.record, json.dumps({"round": this.number} | record, indent=1))


def make_views(folder: Path, run_dir: Path, n: int, device: torch.device) -> None:
    """Write views of a run's generator, unless they are there."""
    if not (folder / TRANSFORMS).exists():
        generator = load_generator(run_dir, device=device)
        config = generator.config
        sampler = rounds.view_sampler(build_dataset(config), config.data)
        log.info("views are written to %s; an interruption here begins them anew", folder)
        rounds.write_views(folder, generator, sampler, n, config.training.seed + config.training.max_steps)


def read_cameras(
    this: Round, args: argparse.Namespace, photographs: Views, config: Config, device: torch.device
) -> tuple[FoundCameras, dict]:
    """The cameras that the round's estimator reads: sampled by their probability, in the last round the most likely; and what
    the round's record says of them."""
    estimator = load_estimator(this.estimator, device)
    if doubt := doubt_about(estimator):
        log.warning("round %d: the estimator %s", this.number, doubt)
    rng = None if this.number == args.rounds else seeded_rng(config.training.seed, this.number)
    found = rounds.find_cameras(estimator, photographs, rng)
    held_out = posed_splits(estimator.config).test
    errors = rounds.held_out_errors(rounds.find_cameras(estimator, held_out), held_out.labels.pose_c2w)
    confidence = float(found.confidence.mean())
    log.info(
        "round %d: of views that it was not trained on, the estimator reads %.0f %% within %g degrees, with a median error of "
        "%.1f degrees; its mean confidence in the photographs' cameras is %.2f (guessing: %.2f)",
        *(this.number, 100 * errors["within_15_deg"], NEAR_DEG, errors["median_deg"], confidence, GUESSED_RIGHT),
    )
    return found, {"held_out_views": errors, "confidence": confidence, "doubt": doubt}


def train(script: str, run_dir: Path, config: RunConfig, *flags: str, device: str) -> int:
    """Train a run to its end, or go on with it, in a process of its own. Returns its exit status."""
    file = config_file(run_dir)
    write_text(file, config_text(config))
    return run([str(ROOT / script), "--config", str(file), "--device", device, *flags])


def run(command: list[str]) -> int:
    """Run a Python program, which gets the signals that would end this one. Returns its exit status; that of a signal also
    where the program came to its end, since nothing is to follow."""
    with started([sys.executable, *command]) as (process, received):
        status = exit_status(process.wait())
    return exit_status_after(received[0]) if received and not status else status


def asked_config(args: argparse.Namespace) -> Config:
    """The config of a last generator with an encoder: as the file and --set have it."""
    return load_config(args.config, run_overrides(args))


def deciding_keys(config: RunConfig, *others: RunConfig) -> dict:
    """The keys on which the cameras depend: not how often a run is saved, drawn and measured, none that is unread, by the
    others too, and none of how the machine is used."""
    cadences = {f"training.{field.name}" for field in dataclasses.fields(config.training) if field.type == Cadence}
    unread = set.intersection(*map(unread_keys, (config, *others)))
    return _without(config_to_dict(config), cadences | unread | UNDECIDING_KEYS)


def _without(section: dict, keys: set[str], prefix: str = "") -> dict:
    kept = {name: value for name, value in section.items() if prefix + name not in keys}
    return {name: _without(v, keys, f"{prefix}{name}.") if isinstance(v, dict) else v for name, v in kept.items()}


def identity(photographs: Views) -> str:
    """sha256 of the names and sizes of the photographs and of their masks, and their classes: their fingerprint has times, too,
    which a copy on another machine changes."""
    masks = [frame.mask for frame in getattr(photographs, "frames", ()) if frame.mask]
    files = [*map(Path, photographs.files), *masks]
    rows = [["/".join(file.parts[-2:]), file.stat().st_size if file.is_file() else 0] for file in files]
    return hashlib.sha256(json.dumps([rows, photographs.class_index.tolist()]).encode()).hexdigest()


def completed(settings: dict, where: str, older: dict[str, str], has_encoder: bool) -> dict:
    """The settings of a folder that an older version began, with the config keys that it lacked, and the photographs' identity
    for their fingerprint (older). Its generators had no encoder, whatever its config says.

    Raises GrafError where has_encoder: the set cannot go on as asked."""
    schemas = {"config": Config, "estimator": PoseConfig}
    settings = settings | {"photographs": older.get(settings["photographs"], settings["photographs"])}
    configs = {name: completed_config(settings[name], where, schemas[name]) for name in schemas}
    if "corrections" not in settings:
        if has_encoder:
            raise GrafError(
                f"{where}: an older version began this set, whose last generator has no encoder; it goes on with --set "
                "encoder.first_steps=0 encoder.weight=0, or choose another --out"
            )
        settings["corrections"], configs["config"] = 0, configs["config"].without_encoder()
    return settings | {name: config_to_dict(config) for name, config in configs.items()}


def config_file(run_dir: Path) -> Path:
    """The config of a round's run."""
    return run_dir.with_name(f"{run_dir.name}.yaml")


if __name__ == "__main__":
    run_script(main)
