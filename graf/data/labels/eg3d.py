"""Cameras of a dataset.json as EG3D writes it (Chan et al. 2022).

    {"labels": [["00000/img00000000.png", [16 numbers camera to world, row by row, and 9 of the intrinsics]], ...]}

The camera's x is right, its y down and z ahead; the intrinsics are in units of the image's width. Its world has y up.
"""

from pathlib import Path
from typing import Any

from graf.config.strict import shown
from graf.data.cameras.corrections import from_opencv
from graf.data.folders import DATASET_JSON, Fault, Item
from graf.data.labels.intrinsics import Lens, lens
from graf.data.labels.transforms import image_file, read_json, rigid_pose

import torch
from torch import Tensor

NUMBERS = 25


def read_eg3d(folder: Path, class_index: int) -> tuple[list[Item], list[Fault]]:
    """The images named in a folder's dataset.json with their cameras, and every fault of it."""
    file = folder / DATASET_JSON
    try:
        content = read_json(file)
    except ValueError as error:
        return [], [Fault(str(file), str(error))]
    labels = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(labels, list) or not labels:
        return [], [Fault(str(file), "has no labels; expected a list of names, each with 25 numbers of its camera")]
    items, faults = [], []
    for row, label in enumerate(labels):
        try:
            name, numbers = label
            image = image_file(folder, name)
            pose_c2w, found = camera(numbers)
        except (TypeError, ValueError) as error:
            problem = str(error) if isinstance(label, list) and len(label) == 2 else "expected a name and 25 numbers"
            faults.append(Fault(f"{file}: label {row} ({shown(label)})", problem, of_image=True))
            continue
        items.append(Item(image, class_index, pose_c2w=pose_c2w, **found._asdict()))
    return items, faults


def camera(numbers: Any) -> tuple[Tensor, Lens]:
    """pose_c2w (3, 4) in the suite's axes and the lens, from the 25 numbers of a label. Raises ValueError."""
    try:
        values = torch.tensor(numbers, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError("expected 25 numbers of a camera") from None
    if tuple(values.shape) != (NUMBERS,):
        raise ValueError(f"expected {NUMBERS} numbers of a camera, found shape {tuple(values.shape)}")
    matrix = from_opencv(values[:16].reshape(4, 4))
    (fl_x, _, cx), (_, fl_y, cy), _ = values[16:].reshape(3, 3).tolist()
    return rigid_pose(matrix.tolist()), lens({"fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy, "w": 1.0, "h": 1.0})
