"""Measure eval.py --invert on toy cars that were not in the training set: python bench/measure_inversion.py results/default

Each car is looked for twice, with its camera known and with it searched. "Unseen" is the PSNR of the found car from three other
sides against the car itself. Exits with 1 where a bar is missed.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from statistics import mean

import graf
from graf.camera import azimuth_and_v, poses_at
from graf.config import DataConfig
from graf.data.car_shapes import make_car
from graf.data.toy_cars import make_toy_cars, render_cars
from graf.errors import GrafError
from graf.inversion import invert
from graf.inversion.results import Inversion, similarity
from graf.models.generator import Generator
from graf.pictures.sampling import render_views
from graf.rotations import circular_distance
from graf.runtime.command_line import Parser, whole_number
from graf.runtime.console import log, progress, run_script
from graf.runtime.device import choose_device, keep_freed_memory
from graf.runtime.files import check_writable, write_text

import torch
from torch import Tensor

LEAST_PSNR_DB = 18  # mean, with known cameras
LARGEST_ERROR_DEG = 15  # of a searched camera's azimuth
LEAST_SHARE_FOUND = 0.8
UNSEEN_TURNS_DEG = (90.0, 180.0, 270.0)


def main() -> int:
    parser = Parser(__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint file, or a run's folder")
    parser.add_argument("--n_cars", type=whole_number, default=10, help="cars to look for")
    parser.add_argument("--seed", type=whole_number, default=1, help="seed of the cars, another than the training's data.seed")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    args = parser.parse_args()
    if args.json:
        check_writable(args.json)
    keep_freed_memory()
    generator = graf.load_generator(args.checkpoint, device=choose_device(args.device))
    data = held_out(generator.config.data, args.seed, args.n_cars)
    cars = make_toy_cars(data)
    rows = []
    for index in progress(range(data.n_images), desc="finding", unit="car"):
        rows.append(measure_car(generator, cars["images"][index] / 127.5 - 1, cars["pose_c2w"][index], index, data))
        if index == 0:
            log.info("%4s" + "%18s" * len(rows[0]), "car", *rows[0])
        log.info("%4d" + "%18.2f" * len(rows[0]), index, *rows[-1].values())
    if args.json:
        write_text(args.json, json.dumps(rows, indent=1))
    return verdict(rows)


def held_out(data: DataConfig, seed: int, n_cars: int) -> DataConfig:
    """The config of toy cars, without opacity, that a model of `data` was not trained on. GrafError where there are none."""
    if data.type != "toy_cars":
        raise GrafError(f"data.type {data.type}: the model is not one of toy cars; name a run of configs/default.yaml")
    if seed == data.seed or n_cars < 1:
        raise GrafError(
            f"--seed {seed}, --n_cars {n_cars}: wanted 1 car or more, and a seed other than the training's {data.seed}"
        )
    return dataclasses.replace(data, seed=seed, n_images=n_cars, alpha="ignore")


def measure_car(generator: Generator, photograph: Tensor, pose_c2w: Tensor, index: int, data: DataConfig) -> dict[str, float]:
    """A row of the table: dB, SSIM, degrees, seconds (photograph (3, W, W) in [-1, 1], pose_c2w (3, 4))."""
    known = invert(generator, photograph[None], pose_c2w[None])
    start = time.perf_counter()
    searched = invert(generator, photograph[None])
    seconds = time.perf_counter() - start
    (azimuth_deg, _), (found_deg, _) = azimuth_and_v(pose_c2w), azimuth_and_v(searched.pose_c2w[0])
    return {
        "known psnr": known.psnr[0],
        "known ssim": known.ssim[0],
        "known unseen": unseen_psnr(generator, known, pose_c2w, index, data),
        "searched psnr": searched.psnr[0],
        "searched unseen": unseen_psnr(generator, searched, pose_c2w, index, data),
        "azimuth error": float(circular_distance(found_deg, azimuth_deg)),
        "seconds": seconds,
    }


def unseen_psnr(generator: Generator, found: Inversion, pose_c2w: Tensor, index: int, data: DataConfig) -> float:
    """Mean PSNR in dB of the found car from other sides than the photograph's, against car number `index` from there."""
    azimuth_deg, v = azimuth_and_v(pose_c2w)
    turns_deg = torch.tensor(UNSEEN_TURNS_DEG)
    poses = poses_at(azimuth_deg + turns_deg, v.expand_as(turns_deg), sum(data.radius) / 2)
    truth = render_cars([make_car(data.seed, index)] * len(poses), poses, data).images
    images = render_views(generator, (found.latents, found.class_index), poses).images
    return mean(similarity(a, b)[0] for a, b in zip(truth, images, strict=True))


def verdict(rows: list[dict[str, float]]) -> int:
    """Log the means and what they are to be; 1 where they are not, else 0."""
    log.info("mean" + "%18.2f" * len(rows[0]), *(mean(row[name] for row in rows) for name in rows[0]))
    psnr_db = mean(row["known psnr"] for row in rows)
    n_found = sum(row["azimuth error"] <= LARGEST_ERROR_DEG for row in rows)
    log.info("mean PSNR with known cameras: %.1f dB; to be %d or more", psnr_db, LEAST_PSNR_DB)
    share = f"to be {LEAST_SHARE_FOUND:.0%} or more"
    log.info("azimuth within %d degrees: %d of %d; %s", LARGEST_ERROR_DEG, n_found, len(rows), share)
    return 0 if psnr_db >= LEAST_PSNR_DB and n_found >= LEAST_SHARE_FOUND * len(rows) else 1


if __name__ == "__main__":
    run_script(main)
