"""Plots of a pose estimator's validation: predicted against true motion of pairs, and a CSV of the same numbers."""

import csv
import io
import math
from pathlib import Path

from graf.pose.validation import Validation
from graf.rotations import nearest_vector, pose_errors
from graf.runtime.files import save_figure, write_text

import torch
from matplotlib.figure import Figure
from torch import Tensor

AXES = "xyz"


def write_pose_plots(folder: Path, validation: Validation) -> list[Path]:
    """translation_x.png ... rotation_z.png and rotation_angle.png, each predicted against true with the identity line and R2,
    and validation.csv. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    predicted, target = comparable(validation)
    files = []
    for index, name in enumerate([f"translation_{axis}" for axis in AXES] + [f"rotation_{axis}" for axis in AXES]):
        unit = "scene units" if index < 3 else "degrees"
        files.append(_scatter(folder / f"{name}.png", predicted[:, index], target[:, index], name, unit, validation))
    angles = [torch.rad2deg(motion[:, 3:].norm(dim=1)) for motion in (validation.predicted, validation.target)]
    files.append(_scatter(folder / "rotation_angle.png", *angles, "rotation_angle", "degrees", validation))
    files.append(folder / "validation.csv")
    write_text(files[-1], csv_of(validation))
    return files


def comparable(validation: Validation) -> tuple[Tensor, Tensor]:
    """predicted and target (N, 6) in scene units and degrees; a rotation vector in its form nearer to the true one."""
    rotation = nearest_vector(validation.predicted[:, 3:], validation.target[:, 3:])
    predicted = torch.cat([validation.predicted[:, :3], torch.rad2deg(rotation)], dim=1)
    return predicted, torch.cat([validation.target[:, :3], torch.rad2deg(validation.target[:, 3:])], dim=1)


def r2(predicted: Tensor, true: Tensor) -> float:
    """The coefficient of determination of values (N,): 1 - residual / total variance; nan without variance."""
    total = (true - true.mean()).square().sum()
    return float(1 - (predicted - true).square().sum() / total) if total > 0 else math.nan


def csv_of(validation: Validation) -> str:
    """A row per pair: true and predicted motion in scene units and radians, and the errors of its first image in degrees."""
    names = [f"t{axis}" for axis in AXES] + [f"r{axis}" for axis in AXES]
    errors = pose_errors(validation.predicted_pose, validation.target_pose)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    heads = [f"{kind}_{name}" for kind in ("target", "predicted") for name in names]
    table.writerow(["step", "epoch", *heads, *(f"error_{name}" for name in errors._fields)])
    for target, predicted, *wrong in zip(validation.target, validation.predicted, *errors, strict=True):
        values = [*target.tolist(), *predicted.tolist(), *(float(value) for value in wrong)]
        table.writerow([validation.step, f"{validation.epoch:.2f}", *(f"{value:.6g}" for value in values)])
    return text.getvalue()


def _scatter(file: Path, predicted: Tensor, true: Tensor, name: str, unit: str, validation: Validation) -> Path:
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    ends = [float(min(predicted.min(), true.min())), float(max(predicted.max(), true.max()))]
    axes.plot(ends, ends, color="0.6", linewidth=1, label="identity")
    axes.scatter(true.numpy(), predicted.numpy(), s=8, alpha=0.6)
    title = f"{name.replace('_', ' ')}, R2 = {r2(predicted, true):.4f}"
    if name == "rotation_angle":
        error = pose_errors(validation.predicted_pose, validation.target_pose).rotation_deg
        title += f", angular error of an image: median {float(error.median()):.2f} degrees"
    title += f"\nstep {validation.step}, epoch {validation.epoch:.1f}, {len(true)} pairs"
    axes.set(xlabel=f"true, {unit}", ylabel=f"predicted, {unit}", aspect="equal")
    axes.set_title(title, fontsize=9)
    axes.legend(loc="best")
    axes.grid(alpha=0.3)
    save_figure(figure, file)
    return file
