"""The cameras that an estimator reads off photographs, as a transforms.json.

Legend: N photographs.
"""

import json
from collections.abc import Sequence

from graf.camera import focal_length
from graf.config import DataConfig
from graf.data.decoding import square_side

from torch import Tensor

Size = tuple[int, int]  # width and height in pixels


def transforms_of(
    names: Sequence[str],
    sizes: Sequence[Size],
    poses: Tensor,
    data: DataConfig,
    objects: Sequence[str] | None = None,
    confidence: Tensor | None = None,
) -> str:
    """The text of a transforms.json of N files by their names beside it: pose_c2w (N, 3, 4), and each file's own size and focal
    length in pixels; with the object that it shows and the camera's confidence (N,) in [0, 1], where they are known."""
    frames = []
    for name, (width, height), pose in zip(names, sizes, poses.double(), strict=True):
        focal = focal_length(data.fov, square_side(width, height, data.center_crop))  # the square crop keeps it
        frame = {"file_path": name, "transform_matrix": [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]}
        frames.append(frame | {"fl_x": focal, "fl_y": focal, "w": width, "h": height})
    if objects is not None:
        frames = [frame | {"object": name} for frame, name in zip(frames, objects, strict=True)]
    if confidence is not None:
        frames = [frame | {"confidence": round(float(c), 3)} for frame, c in zip(frames, confidence, strict=True)]
    return json.dumps({"frames": frames}, indent=1) + "\n"
