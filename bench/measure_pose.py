"""A pose estimator beside simpler answers, on the objects that it was not trained on: python bench/measure_pose.py results/pose

The mean pose looks at no image. A small convolutional network is trained here with the same data, loss and schedule, for as
many steps as cost what the estimator's did, or a share of it, by the CPU time of a few steps of both.
"""

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path

from graf.checkpoints.checkpoint import read_checkpoint
from graf.config import PoseConfig
from graf.data import build_loader
from graf.pose.accuracy import accuracy, images_of, read_cameras
from graf.pose.loading import load_estimator
from graf.pose.loop import train_pose
from graf.pose.splits import Splits, posed_splits
from graf.pose.state import PoseState
from graf.pose.step import pose_step
from graf.rotations import rotation_of_six
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.runtime.device import choose_device, keep_freed_memory
from graf.runtime.files import check_writable, write_text
from graf.runtime.interruption import Interruption

import torch
from torch import Tensor, nn

TIMED_STEPS, WARM_STEPS = 10, 3
WIDTHS = (32, 64, 128, 256)


class SmallConvNet(nn.Module):
    """Four times two convolutions, of which the first halves the image, and the mean of what they find."""

    distance: Tensor

    def __init__(self, distance: float):
        super().__init__()
        layers, before = [], 3
        for width in WIDTHS:
            for stride, channels in ((2, before), (1, width)):
                layers += [nn.Conv2d(channels, width, 3, stride=stride, padding=1), nn.GroupNorm(8, width), nn.GELU()]
            before = width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(before, 9)
        self.register_buffer("distance", torch.tensor(distance))

    def forward(self, images: Tensor) -> Tensor:
        """pose_c2w (B, 3, 4) of images (B, 3, H, W)."""
        found = self.head(self.layers(images).mean(dim=(2, 3))).float()
        return torch.cat([rotation_of_six(found[:, 3:]), self.distance * found[:, :3, None]], dim=-1)


def main() -> int:
    parser = Parser(__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of train_pose.py")
    parser.add_argument(
        "--share", type=float, default=1.0, help="what the network's training costs, as a share of the estimator's"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--json", type=Path, help="write the rows into this file too")
    args = parser.parse_args()
    if args.json:
        check_writable(args.json)
    keep_freed_memory()
    device = choose_device(args.device)
    estimator = load_estimator(args.run, device)
    config, steps = estimator.config, read_checkpoint(estimator.checkpoint)["state"]["step"]
    splits = posed_splits(config)
    true = splits.test.labels.pose_c2w
    distance = float(splits.training.labels.pose_c2w[..., 3].norm(dim=-1).mean())
    log.info("%d images to train on, %d to test on, by object: %s", len(splits.training), len(splits.test), splits.by_object)
    rows = {"mean pose": accuracy(mean_pose(splits.training.labels.pose_c2w).expand(len(true), -1, -1), true)}
    cost = step_seconds(PoseState(config, device, distance), splits)
    read = read_cameras(estimator.network, images_of(splits.test), len(true), device)
    rows["estimator"] = accuracy(read, true) | {"steps": steps, "cpu_minutes": steps * cost / 60}
    own = step_seconds(PoseState(config, device, distance, estimator=SmallConvNet(distance)), splits)
    rows["convolutions"] = trained(config, device, splits, distance, round(args.share * steps * cost / own))
    rows["convolutions"]["cpu_minutes"] = rows["convolutions"]["steps"] * own / 60
    for name, row in rows.items():
        log.info("%-12s  %s", name, ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    if args.json:
        write_text(args.json, json.dumps(rows, indent=1))
    return 0


def mean_pose(poses: Tensor) -> Tensor:
    """The rotation nearest to the mean of those of pose_c2w (N, 3, 4), and the mean position: (3, 4)."""
    u, _, v = torch.linalg.svd(poses[..., :3].mean(0))
    sign = torch.diag(torch.tensor([1.0, 1.0, float(torch.linalg.det(u @ v))]))
    return torch.cat([u @ sign @ v, poses[..., 3].mean(0)[:, None]], dim=1)


def step_seconds(state: PoseState, splits: Splits) -> float:
    """CPU seconds of a training step, loading left out."""
    batches = build_loader(splits.training, state.config, state.device)
    images, labels = next(batches)
    batches.close()
    for step in range(WARM_STEPS + TIMED_STEPS):
        if step == WARM_STEPS:
            began = time.process_time()
        pose_step(state, images, labels)
        state.advance()
    return (time.process_time() - began) / TIMED_STEPS


def trained(config: PoseConfig, device: torch.device, splits: Splits, distance: float, steps: int) -> dict[str, float]:
    """The small network's errors after so many steps, on the test set."""
    with tempfile.TemporaryDirectory() as folder:
        training = dataclasses.replace(config.training, outdir=folder, max_steps=steps, validate_every=0, monitoring="none")
        config = dataclasses.replace(config, training=training)
        config.run_dir.mkdir()
        state = PoseState(config, device, distance, estimator=SmallConvNet(distance))
        measured = train_pose(state, splits, Interruption())
    tested = {name.removeprefix("test_"): value for name, value in measured.items() if name.startswith("test_")}
    return tested | {"steps": steps}


if __name__ == "__main__":
    run_script(main)
