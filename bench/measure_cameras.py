"""The cameras that tools/find_cameras.py found, or a run's encoder, beside the true ones, which they did not see.

    python tools/find_cameras.py --out results/cameras --use_amp
    python bench/measure_cameras.py results/cameras [--data_dir photos] [--set data.labels=filename]

    python train.py --use_amp --set expname=fronts data.labels=none data.camera_prior=front data.hflip=true \
        encoder.finds_cameras=true
    python bench/measure_cameras.py results/fronts --may_mirror --set data.labels=auto data.hflip=false

Found azimuths are aligned with the true ones by the turn, and the mirror with --may_mirror, with the least mean error. The
baselines are cameras sampled at random and the same camera for all photographs, aligned alike. With --runs the last round's
generator is compared with runs of train.py, such as one that knew the cameras, by KID x 1000 against toy cars that are new to
all, or against the photographs.
"""

import argparse
import dataclasses
import itertools
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

from graf.camera import azimuth_and_v
from graf.checkpoints.generator_loading import load_generator
from graf.checkpoints.run_folder import run_checkpoints
from graf.config import Config, completed_config, override
from graf.data import Views, as_floats, build_dataset
from graf.data.toy_cars import unseen_toy_cars
from graf.errors import GrafError
from graf.finding.azimuths import azimuth_numbers
from graf.finding.rounds import Round, find_cameras, in_one_class, kept_cameras
from graf.metrics.measure import MeasureSettings, measure_generator
from graf.models.generator import Generator
from graf.pose.loading import load_estimator
from graf.rotations import circular_distance
from graf.runtime.command_line import Parser, add_data_flag, add_set_flag, folder_overrides
from graf.runtime.console import log, run_script
from graf.runtime.files import SETTINGS, check_writable, read_object, write_text

import torch
from torch import Tensor

COLUMNS = (("median_deg", "{:.1f}", 1), ("within_15_deg", "{:.2f}", 1), ("confused", "{:.2f}", 1), ("kid", "{:.0f}", 1000))


class Alignment(NamedTuple):
    """The transform from found azimuths to the true ones: a mirror if there is one, then a turn, degrees in [0, 360)."""

    turn_deg: float
    mirrored: bool

    def applied(self, azimuth_deg: Tensor) -> Tensor:
        """The azimuths in degrees, in [0, 360)."""
        return (self.turn_deg + (-azimuth_deg if self.mirrored else azimuth_deg)) % 360


def main() -> None:
    args = arguments()
    if args.json:
        check_writable(args.json)
    settings = read_object(args.out / SETTINGS)
    if "rounds" in settings:
        config, n_rounds = completed_config(settings["config"], str(args.out / SETTINGS)), settings["rounds"]
    else:
        generator, n_rounds = generator_with_cameras(args.out), 0
        config = generator.config.without_encoder()  # of data whose cameras are known
    config = override(config, [*args.set, *folder_overrides(args.data_dir)])
    dataset = build_dataset(config)
    if not dataset.posed:
        raise GrafError("the true cameras are not known; name them with --set data.labels=..., or --data_dir")
    if any(confidence is not None for confidence in dataset.confidence or []):
        raise GrafError("these cameras have a confidence, so they were found too; name the true ones: --set data.labels=...")
    photographs = in_one_class(dataset, config)
    true, v = azimuth_and_v(photographs.labels.pose_c2w)
    rng = torch.Generator().manual_seed(0)
    rows = {"cameras at random": row(360 * torch.rand(len(true), generator=rng), true, args.may_mirror)}
    rows["one camera for all"] = row(torch.zeros(len(true)), true, args.may_mirror)
    if n_rounds == 0:
        azimuth_deg, found_v = azimuth_and_v(cameras_of_encoder(generator, photographs))
        rows["encoder"] = row(azimuth_deg, true, args.may_mirror) | {"height": float((found_v - v).abs().median())}
    for number in range(1, n_rounds + 1):
        this = Round(args.out, number)
        if not this.estimator.is_dir():
            break
        read = {this.name: find_cameras(load_estimator(this.estimator), photographs)}
        corrections = (dataclasses.replace(this, correction=of_round) for of_round in itertools.count(1))
        for correction in itertools.takewhile(lambda correction: correction.cameras.exists(), corrections):
            try:
                read[correction.name] = kept_cameras(correction.cameras, photographs)
            except GrafError as error:
                log.warning("%s; they have no row", error)
        for name, found in read.items():
            rows[name] = row(found.azimuth_deg, true, args.may_mirror, found.confidence)
            rows[name]["height"] = float((found.v - v).abs().median())
    if args.runs:
        last = {next(reversed(rows)): Round(args.out, n_rounds).generator if n_rounds else args.out}
        for name, run_dir in (last | {str(run_dir): run_dir for run_dir in args.runs}).items():
            rows[name] = rows.get(name, {}) | {"kid": kid(load_generator(run_dir), config, photographs)}
    print_table(rows)
    if args.json:
        write_text(args.json, json.dumps(rows, indent=1))


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("out", type=Path, help="the --out of tools/find_cameras.py, or the folder of a run")
    add_data_flag(parser)
    add_set_flag(parser, "data.labels=filename")
    parser.add_argument("--may_mirror", action="store_true", help="for objects that are the same on both sides")
    parser.add_argument("--runs", type=Path, nargs="+", metavar="RUN", help="also KID, beside that of these runs")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    return parser.parse_args()


def generator_with_cameras(run_dir: Path) -> Generator:
    """The generator of a run whose encoder finds cameras. Raises GrafError for another folder."""
    generator = load_generator(run_dir) if run_checkpoints(run_dir) else None
    if generator is None or generator.encoder is None or not generator.encoder.n_angles:
        raise GrafError(f"{run_dir}: no folder of tools/find_cameras.py, nor of a run whose encoder finds cameras; name one")
    return generator


@torch.no_grad()
def cameras_of_encoder(generator: Generator, photographs: Views) -> Tensor:
    """pose_c2w (N, 3, 4) that a generator's encoder finds of N photographs."""
    channels, nothing, found = generator.config.data.channels, torch.zeros(1, generator.latent_dim), []
    for index in range(len(photographs)):
        image = as_floats(photographs.read(index))[None, :channels]
        found.append(generator.encoder.sample(*generator.encoder(image, None), nothing)[1])
    return torch.cat(found)


def best_alignment(found_deg: Tensor, true_deg: Tensor, may_mirror: bool) -> Alignment:
    """The alignment of azimuths (N,) with the least mean error, exactly, unmirrored where both are equal.

    The mean of |d_i - t| around a circle is linear in t between the differences d_i, where it has its minima, and their
    opposites, where it has its maxima: the best turn t is one of the differences.
    """
    best, least = Alignment(0.0, False), float("inf")
    for mirrored in (False, True) if may_mirror else (False,):
        differences = Alignment(0.0, mirrored).applied(found_deg.double())
        differences = (true_deg.double() - differences) % 360
        for turn in differences.unique():
            error = float(circular_distance(differences, turn).mean())
            if error < least - 1e-9:
                best, least = Alignment(float(turn), mirrored), error
    return best


def row(found: Tensor, true: Tensor, may_mirror: bool, confidence: Tensor | None = None) -> dict:
    """Errors of azimuths (N,) in degrees after the best alignment, and the calibration of their confidence (N,)."""
    alignment = best_alignment(found, true, may_mirror)
    aligned = alignment.applied(found.double())
    return azimuth_numbers(aligned, true, confidence) | alignment._asdict()


def kid(generator: Generator, config: Config, photographs: Views) -> float:
    """KID of a generator against the photographs, or against toy cars that it was not trained on, by as many images as the
    config says. Its cameras are the reference's, which should be all around: a found world is turned."""
    options, seed = config.metrics, config.training.seed
    made = config.data.type == "toy_cars"
    reference = unseen_toy_cars(config.data, options.n_real, seed) if made else photographs
    with tempfile.TemporaryDirectory() as cache:
        result = measure_generator(generator, reference, MeasureSettings(["kid"], seed, options=options), Path(cache))
    return result["values"][f"kid_{result['extractor']}"]


def print_table(rows: dict[str, dict]) -> None:
    """A row of the table for each of them, then a line for each calibration curve."""
    print("| cameras | median azimuth error | within 15 degrees | front for rear | KID x 1000 |")
    print("| --- | --- | --- | --- | --- |")
    for name, told in rows.items():
        cells = [form.format(scale * told[key]) if key in told else "" for key, form, scale in COLUMNS]
        print(f"| {' | '.join([name, *cells])} |")
    for name, told in rows.items():
        if "turn_deg" in told:
            print(f"{name}: azimuths turned by {told['turn_deg']:.1f} degrees{', and mirrored' if told['mirrored'] else ''}")
    for name, told in rows.items():
        if "calibration" in told:
            curve = ", ".join(f"{group['confidence']:.2f}: {group['right']:.2f}" for group in told["calibration"])
            print(f"{name}, share of right answers by confidence: {curve}")


if __name__ == "__main__":
    run_script(main)
