"""Check a config's data set: list all errors at once; if it has none, draw a contact sheet with the cameras around the object.

    python tools/validate_data.py --config configs/default.yaml [--set data.datadir=data/chairs] [--out chairs_check]

Exits with 0 if the set can be trained on and with 2 if it has faults. The sheet shows a wrong pose convention at a glance: each
image must show what a camera at the drawn position would see. For images without cameras it shows cameras from the distribution
that training samples from. If there are faults, the sheet of an earlier check is removed.

Known silhouettes show the usual mistakes of cameras. A warning names the mistake and the key that corrects it.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from graf.camera import azimuth_and_v, elevations_of_v, sample_poses
from graf.config import Config, DataConfig, config_of_ours, load_config
from graf.config.advice import advice, advice_on_steps
from graf.config.strict import one_line
from graf.data import Views, build_dataset, resolve, with_cameras_of
from graf.data.advice.summary import log_summary
from graf.data.cameras.agreement import objects_with_silhouettes
from graf.data.cameras.extent import describe_extent, extent
from graf.data.cameras.mistakes import describe_verdict, judge_cameras
from graf.data.folders import require_outside
from graf.data.views import spread
from graf.errors import RunFolderError
from graf.pictures.fonts import font_file
from graf.runtime.command_line import Parser, add_data_flag, folder_overrides
from graf.runtime.console import log, run_script
from graf.runtime.files import save_figure

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

SHEET_ROWS, SHEET_COLUMNS = 6, 5
CAMERAS_DRAWN = 300
IMAGES_ON_MAP = 12
HOW_TO_CUT_OUT = "cut the objects out, or take them in front of a plain background, at least 8 images of each"
FOLDER = Path("results/data_check")
LONGEST_NAME = 100
LONGEST_TITLE = 24


def main() -> None:
    parser = Parser(__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="YAML file of the run (default configs/default.yaml)")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override config keys, e.g. data.fov=32"
    )
    add_data_flag(parser)
    parser.add_argument("--out", type=Path, help=f"folder of the contact sheet (default {FOLDER}/EXPNAME/DATA)")
    arguments = parser.parse_args()
    config = load_config(arguments.config, [*arguments.set, *folder_overrides(arguments.data_dir)])
    if arguments.out:
        require_outside(arguments.out, config.data)
    sheet = (arguments.out or own_folder(config)) / "contact_sheet.png"
    with writable(sheet):
        sheet.unlink(missing_ok=True)  # of an earlier check
    for message in advice(config, config_of_ours(arguments.config)):
        log.warning("%s", message)
    dataset = build_dataset(config, take_cameras=True)
    config = with_cameras_of(config, dataset)
    draw_sheet(dataset, config.data, sheet)
    cameras = "with cameras" if dataset.posed else "without cameras"
    log.info("%d images %s, classes: %s; see %s", len(dataset), cameras, ", ".join(dataset.class_names), sheet)
    for message in advice_on_steps(resolve(config, dataset)):
        log.warning("%s", message)
    if report_cameras(dataset, config.data):
        log.info("no faults but the cameras'; see the warning above")
    else:
        log.info("nothing else that would stop training" if config.data.on_bad_file == "skip" else "no faults")
    log_summary(dataset, config)


@contextlib.contextmanager
def writable(file: Path) -> Iterator[None]:
    """Raises RunFolderError where the file cannot be written or removed inside."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be written ({error.strerror or error}); name another folder with --out") from None


def own_folder(config: Config) -> Path:
    """The folder of a config's contact sheet: by expname, and by the name of the data set."""
    name = "+".join(Path(folder).resolve().name for folder in config.data.datadir) or config.data.type
    return FOLDER / config.expname / re.sub(r"[^\w.+-]", "_", name)[:LONGEST_NAME]


def report_cameras(dataset: Views, data: DataConfig) -> bool:
    """Log what the images' silhouettes tell of their cameras, and return whether these are mistaken."""
    if data.type != "images":
        return False
    if dataset.label_source in ("none", "filename"):  # other cameras have their own distance
        log.info("%s", describe_extent(extent(dataset, data), data))
    objects = objects_with_silhouettes(dataset, data) if dataset.posed else []
    if not objects:
        if dataset.posed:
            log.info("the cameras were not compared with silhouettes, which few of the images have: %s", HOW_TO_CUT_OUT)
        return False
    verdict = judge_cameras(objects, data, dataset.label_source)
    (log.warning if verdict.is_poor else log.info)("%s", describe_verdict(verdict))
    return bool(verdict.mistakes)


def draw_sheet(dataset: Views, data: DataConfig, file: Path) -> None:
    """Draw images at the left, with azimuth and polar angle if known, and the confidence of a camera that was found; at the
    right their cameras, or sampled ones."""
    figure = Figure(figsize=(16, 10), layout="constrained")
    left, right = figure.subfigures(1, 2)
    shown = spread(range(len(dataset)), SHEET_ROWS * SHEET_COLUMNS)
    confidence = dataset.confidence or [None] * len(dataset)
    if dataset.posed:
        poses = dataset.labels.pose_c2w
        azimuth_deg, v = azimuth_and_v(poses)
        polar_deg = 90 - elevations_of_v(v)
        above = draw_cameras(poses.numpy(), right, "{} of {} cameras and where they look; the object is at the origin")
        draw_thumbnails(dataset, azimuth_deg, above)
    else:
        poses = sample_poses(CAMERAS_DRAWN, data, torch.Generator().manual_seed(data.seed))
        draw_cameras(poses.numpy(), right, "the images have no cameras: {} as training samples them (data.camera_prior)")
    for index, axes in zip(shown, left.subplots(SHEET_ROWS, SHEET_COLUMNS).flat, strict=False):
        axes.imshow(picture(dataset, index))
        name = one_line(Path(dataset.files[index]).name)[-LONGEST_TITLE:]
        title = f"{azimuth_deg[index]:.0f}°, {polar_deg[index]:.0f}°" if dataset.posed else name
        if confidence[index] is not None:
            title += f", {confidence[index]:.0%}"
        axes.set_title(title, font=font_file(title), fontsize=8, parse_math=False)
    for axes in left.axes:
        axes.axis("off")
    of_cameras = f"azimuth, angle from the zenith{', confidence of the camera' if any(confidence) else ''}"
    left.suptitle(of_cameras if dataset.posed else "images")
    with writable(file):
        save_figure(figure, file)


def draw_cameras(poses: np.ndarray, figure: SubFigure, title: str) -> Axes:
    """Draw cameras (N, 3, 4) with their look directions in space, and from above; the title gets the number shown and N.
    Returns the axes of the view from above."""
    space = figure.add_subplot(2, 1, 1, projection="3d")
    some = poses[spread(range(len(poses)), CAMERAS_DRAWN)]
    reach = np.abs(poses[:, :, 3]).max()
    space.quiver(*some[:, :, 3].T, *-some[:, :, 2].T, length=0.25 * reach, linewidth=0.7)
    for axis, colour, name in zip(np.eye(3), ("red", "green", "blue"), "xyz", strict=True):
        space.quiver(0, 0, 0, *axis, length=0.4 * reach, color=colour)
        space.text(*(0.45 * reach * axis), name, color=colour)
    space.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach / 2, reach))
    space.set_box_aspect((2, 2, 1.5))
    space.set_title(title.format(len(some), len(poses)), fontsize=10)

    above = figure.add_subplot(2, 1, 2)
    above.quiver(*some[:, :2, 3].T, *-some[:, :2, 2].T, color="lightgrey", width=0.002)
    above.quiver([0, 0], [0, 0], [1, 0], [0, 1], color=["red", "green"], scale=8)
    above.set(xlim=(-1.3 * reach, 1.3 * reach), ylim=(-1.3 * reach, 1.3 * reach), aspect="equal", xlabel="x", ylabel="y")
    above.set_title("from above", fontsize=10)
    return above


def draw_thumbnails(dataset: Views, azimuth_deg: torch.Tensor, above: Axes) -> None:
    """Draw some images at the positions of their cameras."""
    for index in spread(torch.argsort(azimuth_deg).tolist(), IMAGES_ON_MAP):
        thumbnail = OffsetImage(picture(dataset, index), zoom=56 / dataset[index]["image"].shape[-1])
        position = dataset.labels.pose_c2w[index, :2, 3].tolist()
        above.add_artist(AnnotationBbox(thumbnail, position, frameon=True, pad=0.1))
    above.set_title("from above: images at their cameras", fontsize=10)


def picture(dataset: Views, index: int) -> np.ndarray:
    """Image (H, W, 3) in [0, 1]."""
    return ((dataset[index]["image"] + 1) / 2).permute(1, 2, 0).numpy()


if __name__ == "__main__":
    run_script(main)
