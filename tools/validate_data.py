"""Check a config's data set and picture it: every fault at once, or a contact sheet with the cameras around the object.

    python tools/validate_data.py --config configs/default.yaml [--set data.datadir=data/chairs] [--out results/data_check]

Exits with 0 where the set can be trained on and with 2 where it has faults. The sheet tells a wrong pose convention at a
glance: each image must show what a camera standing where it is drawn would see.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import graf  # noqa: E402, F401, I001  first: it tells torch's threads how to wait
import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from graf.camera import azimuth_and_v  # noqa: E402
from graf.config import load_config  # noqa: E402
from graf.console import log, run_script  # noqa: E402
from graf.data import Views, build_dataset  # noqa: E402
from graf.files import whole_file  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.offsetbox import AnnotationBbox, OffsetImage  # noqa: E402

SHEET_ROWS, SHEET_COLUMNS = 6, 5
CAMERAS_DRAWN = 300
IMAGES_ON_MAP = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", help="YAML file of the run; without it configs/default.yaml")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as data.fov=32")
    parser.add_argument("--out", default="results/data_check", help="folder of the contact sheet")
    arguments = parser.parse_args()
    dataset = build_dataset(load_config(arguments.config, arguments.set))
    sheet = Path(arguments.out) / "contact_sheet.png"
    draw_sheet(dataset, sheet)
    cameras = "with cameras" if dataset.posed else "without cameras"
    log.info("%d images %s, classes: %s; no faults; see %s", len(dataset), cameras, ", ".join(dataset.class_names), sheet)


def draw_sheet(dataset: Views, file: Path) -> None:
    """Images with their azimuth and polar angle at the left; where the data is posed, the cameras at the right."""
    figure = plt.figure(figsize=(16, 10) if dataset.posed else (8, 10), layout="constrained")
    left, *right = figure.subfigures(1, 2) if dataset.posed else [figure]
    shown = spread(len(dataset), SHEET_ROWS * SHEET_COLUMNS)
    if dataset.posed:
        azimuth_deg, v = azimuth_and_v(dataset.labels.pose_c2w)
        polar_deg = torch.rad2deg(torch.arccos(1 - 2 * v))
        draw_cameras(dataset, azimuth_deg, right[0])
    for index, axes in zip(shown, left.subplots(SHEET_ROWS, SHEET_COLUMNS).flat, strict=False):
        axes.imshow(picture(dataset, index))
        title = Path(dataset.files[index]).name if not dataset.posed else f"{azimuth_deg[index]:.0f}°, {polar_deg[index]:.0f}°"
        axes.set_title(title, fontsize=8)
    for axes in left.axes:
        axes.axis("off")
    left.suptitle("azimuth, angle from the zenith" if dataset.posed else "images")
    with whole_file(file) as temporary:
        figure.savefig(temporary, dpi=100)
    plt.close(figure)


def draw_cameras(dataset: Views, azimuth_deg: torch.Tensor, figure: matplotlib.figure.SubFigure) -> None:
    """The cameras with their look directions in space, and from above with some images where they were taken."""
    poses = dataset.labels.pose_c2w.numpy()
    space = figure.add_subplot(2, 1, 1, projection="3d")
    some = poses[spread(len(poses), CAMERAS_DRAWN)]
    reach = np.abs(poses[:, :, 3]).max()
    space.quiver(*some[:, :, 3].T, *-some[:, :, 2].T, length=0.25 * reach, linewidth=0.7)
    for axis, colour, name in zip(np.eye(3), ("red", "green", "blue"), "xyz", strict=True):
        space.quiver(0, 0, 0, *axis, length=0.4 * reach, color=colour)
        space.text(*(0.45 * reach * axis), name, color=colour)
    space.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach / 2, reach))
    space.set_box_aspect((2, 2, 1.5))
    space.set_title(f"{len(some)} of {len(poses)} cameras and where they look; the object is at the origin", fontsize=10)

    above = figure.add_subplot(2, 1, 2)
    above.quiver(*some[:, :2, 3].T, *-some[:, :2, 2].T, color="lightgrey", width=0.002)
    above.quiver([0, 0], [0, 0], [1, 0], [0, 1], color=["red", "green"], scale=8)
    by_azimuth = torch.argsort(azimuth_deg)
    for index in by_azimuth[spread(len(by_azimuth), IMAGES_ON_MAP)].tolist():
        thumbnail = OffsetImage(picture(dataset, index), zoom=56 / dataset[index]["image"].shape[-1])
        above.add_artist(AnnotationBbox(thumbnail, poses[index, :2, 3], frameon=True, pad=0.1))
    above.set(xlim=(-1.3 * reach, 1.3 * reach), ylim=(-1.3 * reach, 1.3 * reach), aspect="equal", xlabel="x", ylabel="y")
    above.set_title("from above: images where their cameras stand", fontsize=10)


def picture(dataset: Views, index: int) -> np.ndarray:
    """Image (H, W, 3) in [0, 1]."""
    return ((dataset[index]["image"] + 1) / 2).permute(1, 2, 0).numpy()


def spread(n: int, count: int) -> list[int]:
    """At most `count` indices, evenly over range(n)."""
    count = min(n, count)
    return [index * n // count for index in range(count)]


if __name__ == "__main__":
    run_script(main)
