"""Pictures and files of a state of the viewer: an object, a camera and what to show. Needs no browser and no viser."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from graf.camera import azimuth_and_v, elevation_of_v, poses_at, rotation_poses, side_pose
from graf.checkpoints.latents_file import write_latents
from graf.config import Config, DataConfig, LatentConfig
from graf.data import build_dataset, colours_only
from graf.errors import GrafError
from graf.export.mesh import SUFFIXES, extract_mesh, write_mesh
from graf.models.directions import Directions, edited, principal_directions
from graf.models.generator import Generator
from graf.models.occupancy import ObjectRenderer
from graf.pictures.captions import numbered
from graf.pictures.outputs import as_uint8, picture, write_image, write_video
from graf.pictures.sampling import sample_objects
from graf.pictures.sheets import blend
from graf.pictures.sweep import VIDEO_FRAMES
from graf.rays import depth_bounds

import numpy as np
import torch
import trimesh
from torch import Tensor

LARGEST_SEED = 999  # of a slider, whose steps a mouse can still hit
KINDS = {"colour": "rgb", "before CCSR": "nerf", "depth": "depth", "opacity": "opacity"}  # words, by `outputs.picture`
NARROWEST = 1 / 4  # width by height of a window, and the inverse; one beyond it is shown in part
SMOOTH_FPS = 12  # aimed at while something moves
RESTING_PIXELS = 256
MESH_CELLS = 96  # along a side, of the mesh in the window and in files
DIRECTIONS, FARTHEST_SD = 5, 3.0  # principal directions of each part, and how far an object is moved along one
CAMERAS_SHOWN = 24  # more of them hide the object


@dataclasses.dataclass(frozen=True)
class Model:
    """A generator after `step` training steps, the checkpoint it was read from, and the folder for saved files.

    found: latents (Z,) and class () of the objects in files, by the files' names.
    """

    checkpoint: Path
    generator: Generator
    step: int
    out: Path
    found: Mapping[str, tuple[Tensor, Tensor]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def directions(self) -> Directions:
        """The generator's principal directions, found on first use: the work of seconds."""
        return principal_directions(self.generator, DIRECTIONS)


@dataclasses.dataclass(frozen=True)
class ViewState:
    """The object that one browser shows.

    seed, to_seed: the object is interpolated from the first to the second, by the shares shape and appearance in [0, 1], and
    truncated; then it is moved by shape_sd and appearance_sd, standard deviations along the first principal directions. found:
    the name of an object of `Model.found`, which takes the place of the first seed's; others mean none. kind: of KINDS; beside:
    a second picture of another kind. pose_c2w: (3, 4), None for that of `side_pose`. within: keep the camera in
    the elevations of training. aspect: width / height of the browser's window.
    """

    seed: int = 0
    to_seed: int = 1
    found: str | None = None
    shape: float = 0.0
    appearance: float = 0.0
    truncation: float = 1.0
    class_index: int = 0
    shape_sd: tuple[float, ...] = ()
    appearance_sd: tuple[float, ...] = ()
    kind: str = "colour"
    beside: str | None = None
    pose_c2w: Tensor | None = None
    within: bool = True
    aspect: float = 1.0

    def checked(self, n_classes: int = 1) -> "ViewState":
        """The state with all values clamped to their ranges: browsers can send anything."""
        pose = self.pose_c2w
        usable = pose is not None and pose.shape == (3, 4) and bool(pose.isfinite().all())
        return ViewState(
            seed=round(_within(self.seed, 0, LARGEST_SEED)),
            to_seed=round(_within(self.to_seed, 0, LARGEST_SEED)),
            found=self.found if isinstance(self.found, str) else None,
            shape=_within(self.shape, 0, 1),
            appearance=_within(self.appearance, 0, 1),
            truncation=_within(self.truncation, 0, 1, otherwise=1),
            class_index=round(_within(self.class_index, 0, n_classes - 1)),
            shape_sd=_moved(self.shape_sd),
            appearance_sd=_moved(self.appearance_sd),
            kind=self.kind if self.kind in KINDS else "colour",
            beside=self.beside if self.beside in KINDS else None,
            pose_c2w=pose if usable else None,
            within=bool(self.within),
            aspect=_within(self.aspect, NARROWEST, 1 / NARROWEST, otherwise=1),
        )

    @property
    def object_of(self) -> tuple:
        """All values that the object depends on."""
        moved = self.shape_sd, self.appearance_sd
        return self.seed, self.to_seed, self.found, self.shape, self.appearance, self.truncation, self.class_index, *moved


class ObjectView:
    """Renders the states of one browser, which must be `checked`. Caches the last object, whose next view is cheaper."""

    def __init__(self, model: Model):
        self.model = model
        self.data = model.generator.config.data
        self._renderer: tuple[tuple, ObjectRenderer] | None = None
        self.n_classes = model.generator.n_classes
        names = tuple(model.generator.class_names)
        self.classes = names if len(set(names)) == self.n_classes else tuple(numbered(self.n_classes, "class"))

    def latents(self, state: ViewState) -> Tensor:
        """(1, Z) latents of the state's object."""
        generator = self.model.generator
        ends = [sample_objects(generator, 1, seed)[0] for seed in (state.seed, state.to_seed)]
        if state.found in self.model.found:
            ends[0] = self.model.found[state.found][0][None]
        return state.truncation * mixed(*ends, state.shape, state.appearance, generator.config.z_dist)

    def generator(self, state: ViewState) -> Generator:
        """The model's generator, which moves objects along its principal directions as the state says."""
        if not any((*state.shape_sd, *state.appearance_sd)):
            return self.model.generator
        directions = self.model.directions
        shape, appearance = (
            amounts[: len(directions[part].shares)]  # a model may have fewer directions than there are sliders
            for part, amounts in (("shape", state.shape_sd), ("appearance", state.appearance_sd))
        )
        return edited(self.model.generator, directions, shape, appearance)

    def pose(self, state: ViewState) -> Tensor:
        """pose_c2w (3, 4) of the state's camera, moved to a distance from which the object can be seen and, where the state is
        `within`, to an elevation of the config's range."""
        data = self.data
        if state.pose_c2w is None:
            return side_pose(data)
        pose = state.pose_c2w.float()
        distance, (nearest, farthest) = float(pose[:, 3].norm()), camera_distances(data)
        azimuth_deg, v = azimuth_and_v(pose)
        low, high = data.v_range if state.within else (0.0, 1.0)
        if nearest <= distance <= farthest and low <= float(v) <= high:
            return pose
        if distance < 1e-6:  # in the middle of the object, where no direction is outwards
            return side_pose(data)
        return poses_at(azimuth_deg, v.clamp(low, high), _within(distance, nearest, farthest))

    def picture(self, state: ViewState, side: int) -> np.ndarray:
        """The window's picture (H, W, 3) uint8: a square of `side` pixels, or two side by side, padded to the state's aspect.

        side: a multiple of ccsr.scale_factor.
        """
        squares = self.squares(state, self.pose(state)[None], side)
        aspect = state.aspect / len(squares)
        panes = [padded(square[0].movedim(0, -1).numpy(), aspect, self.surround(kind)) for kind, square in squares.items()]
        return np.concatenate(panes, axis=1)

    def squares(self, state: ViewState, poses: Tensor, side: int) -> dict[str, Tensor]:
        """Pictures (V, 3, side, side) uint8 of the state's object from cameras (V, 3, 4), by the state's one or two kinds."""
        rendering = self._renderer_of(state).render(poses, side)
        near, far = (float(bound[0]) for bound in depth_bounds(poses[:1], freed(self.data)))
        kinds = [state.kind] + [state.beside] * (state.beside is not None)
        return {kind: picture(rendering, KINDS[kind], near, far) for kind in kinds}

    def surround(self, kind: str) -> np.ndarray:
        """Colour (3,) uint8 around a square of that kind: the background, black around depth and opacity."""
        is_colour = KINDS[kind] in ("rgb", "nerf")
        return as_uint8(torch.tensor(self.data.background) * 2 - 1).numpy() if is_colour else np.zeros(3, np.uint8)

    def mesh(self, state: ViewState) -> trimesh.Trimesh:
        """The surface of the state's object. Raises NoSurface where it has none."""
        return extract_mesh(self.generator(state), self.latents(state), torch.tensor([state.class_index]), MESH_CELLS)

    def _renderer_of(self, state: ViewState) -> ObjectRenderer:
        if self._renderer is None or self._renderer[0] != state.object_of:
            generator = copy.copy(self.generator(state))  # the weights are shared
            generator.config = dataclasses.replace(generator.config, data=freed(self.data))
            made = ObjectRenderer(generator, self.latents(state), torch.tensor([state.class_index]), fast=True)
            self._renderer = state.object_of, made
        return self._renderer[1]

    def caption(self, state: ViewState) -> str:
        """Azimuth and elevation of the camera, and whether training had cameras there."""
        azimuth, v = (float(value) for value in azimuth_and_v(self.pose(state)))
        left, right = (360 * u for u in self.data.u_range)
        high, low, elevation = map(elevation_of_v, (*self.data.v_range, v))
        around = "all around" if right - left >= 360 else f"{left:.0f}° to {right:.0f}°"
        seen = (azimuth - left + 0.5) % 360 <= right - left + 1 and low - 0.5 <= elevation <= high + 0.5
        return f"azimuth {azimuth:.0f}° (trained {around}), elevation {elevation:.0f}° (trained {low:.0f}° to {high:.0f}°)" + (
            "" if seen else ", beyond what was trained"
        )

    def save_picture(self, state: ViewState, side: int) -> list[Path]:
        """Write the state's squares beside each other as the next free picture_NNNN.png of the model's folder."""
        squares = self.squares(state, self.pose(state)[None], side)
        with reserved_path(self.model.out, "picture", (".png",)) as path:
            return [write_image(path.with_suffix(".png"), torch.cat([square[0] for square in squares.values()], dim=-1))]

    def save_video(self, state: ViewState, side: int) -> Iterator[float | list[Path]]:
        """Write a turn around the object as the next free video_NNNN.mp4.

        Yields the share that is done after each frame, so that others can be served meanwhile, and at last the file.
        """
        frames = []
        for pose in rotation_poses(VIDEO_FRAMES, self.data):
            frames.append(torch.cat([square[0] for square in self.squares(state, pose[None], side).values()], dim=-1))
            yield len(frames) / VIDEO_FRAMES
        with reserved_path(self.model.out, "video", (".mp4",)) as path:
            file = write_video(path.with_suffix(".mp4"), torch.stack(frames))
        yield [file]

    def save_mesh(self, state: ViewState) -> list[Path]:
        """Write the object's surface as the next free mesh_NNNN.ply, .obj and .glb. Raises NoSurface."""
        mesh = self.mesh(state)
        with reserved_path(self.model.out, "mesh", SUFFIXES) as path:
            return write_mesh(mesh, path)

    def save_latents(self, state: ViewState) -> list[Path]:
        """Write the object's latents, class and camera, with the checkpoint's name, as the next free latents_NNNN.json."""
        kept = ("pose_c2w", "aspect", "class_index")
        shown = {f.name: getattr(state, f.name) for f in dataclasses.fields(state) if f.name not in kept}
        what = self.model.generator, self.latents(state)[0], state.class_index, self.model.checkpoint, self.model.step
        with reserved_path(self.model.out, "latents", (".json",)) as path:
            return [write_latents(path.with_suffix(".json"), *what, **shown, pose_c2w=self.pose(state).tolist())]


def mixed(first: Tensor, second: Tensor, shape: float, appearance: float, config: LatentConfig) -> Tensor:
    """Latents (1, Z) between the first and the second; the shape and appearance codes have a share in [0, 1] each."""
    cut = config.dim - config.dim_appearance
    shapes, appearances = (blend(first, second, torch.tensor([[share]]), config) for share in (shape, appearance))
    return torch.cat([shapes[:, :cut], appearances[:, cut:]], dim=-1)


def camera_distances(data: DataConfig) -> tuple[float, float]:
    """The nearest and farthest distance, in scene units from the origin, of a camera that has the whole object, all that lies
    between near and far, in front of it."""
    farthest = data.radius[1]
    return min(1.05 * (farthest - data.near), data.radius[0]), 3 * farthest


def freed(data: DataConfig) -> DataConfig:
    """The config with a range of radii, for which `depth_bounds` moves near and far with the camera's distance."""
    return dataclasses.replace(data, radius=(min(0.999 * data.radius[1], data.radius[0]), data.radius[1]))


def padded(square: np.ndarray, aspect: float, colour: np.ndarray) -> np.ndarray:
    """A square (S, S, 3) uint8 in the middle of a pane (H, W, 3) of that colour (3,) and aspect, width / height."""
    side = len(square)
    height, width = round(side * max(1, 1 / aspect)), round(side * max(1, aspect))
    pane = np.empty((height, width, 3), np.uint8)
    pane[:] = colour
    top, left = (height - side) // 2, (width - side) // 2
    pane[top : top + side, left : left + side] = square
    return pane


def vertical_fov(data: DataConfig, aspect: float) -> float:
    """Vertical field of view, in radians, of a window of that aspect, width / height, that holds the picture's square."""
    half = math.tan(math.radians(data.fov) / 2)
    if data.orthographic:  # the field of view that fits at the object's distance
        half = (data.far - data.near) / 2 / data.radius[1]
    return 2 * math.atan(half * max(1, 1 / aspect))


def sides(config: Config) -> tuple[int, ...]:
    """Sides in pixels of pictures, ascending: data.imsize halved and doubled, in multiples of CCSR's scale."""
    scale, size = config.rendered_scale, config.data.imsize
    return tuple(sorted({max(scale, round(size * factor / scale) * scale) for factor in (1 / 4, 1 / 2, 1, 2, 4, 8)}))


def resting_side(choices: Sequence[int]) -> int:
    """Side of a picture at rest: the smallest of the ascending choices with all the pixels that a window can show."""
    return next((side for side in choices if side >= RESTING_PIXELS), choices[-1])


def moving_side(choices: Sequence[int], still: int, seconds_per_pixel: float) -> int:
    """Side of a moving picture: the largest of the ascending choices, at most `still`, that reaches SMOOTH_FPS."""
    fitting = [side for side in choices if side <= still and side**2 * seconds_per_pixel * SMOOTH_FPS <= 1]
    return max(fitting, default=choices[0])


@contextlib.contextmanager
def reserved_path(folder: Path, stem: str, suffixes: Sequence[str]) -> Iterator[Path]:
    """`free_path`, reserved against other threads and processes by an empty file of the first suffix, which the block replaces.

    If the block fails, its files are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        path = free_path(folder, stem, suffixes)
        with contextlib.suppress(FileExistsError):  # another one was faster
            path.with_suffix(suffixes[0]).touch(exist_ok=False)
            break
    try:
        yield path
    except BaseException:
        for suffix in suffixes:
            path.with_suffix(suffix).unlink(missing_ok=True)
        raise


def free_path(folder: Path, stem: str, suffixes: Sequence[str]) -> Path:
    """folder/stem_NNNN, with the first number for which there is no file with any of the suffixes."""
    paths = (folder / f"{stem}_{number:04d}" for number in itertools.count(1))
    return next(path for path in paths if not any(path.with_suffix(suffix).exists() for suffix in suffixes))


def training_views(config: Config, n: int = CAMERAS_SHOWN) -> list[tuple[Tensor, np.ndarray]]:
    """pose_c2w (3, 4) and pixels (H, W, 3) uint8 of at most n training images, evenly chosen.

    Raises DataError where the data set is missing, GrafError where its cameras are not known.
    """
    dataset = build_dataset(colours_only(config))
    if not dataset.posed:
        raise GrafError("the training images have no known cameras, so there are none to show")
    index = torch.linspace(0, len(dataset) - 1, min(n, len(dataset))).round().long().tolist()
    return [(dataset.labels.pose_c2w[i], dataset.read(i)[:3].movedim(0, -1).numpy()) for i in index]


def turned(pose_c2w: Tensor, degrees: float) -> Tensor:
    """pose_c2w (3, 4) turned about the world's z axis, counter-clockwise seen from above."""
    angle = math.radians(degrees)
    rotation = torch.eye(3)
    rotation[:2, :2] = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return rotation @ pose_c2w


def _moved(amounts: Sequence[float]) -> tuple[float, ...]:
    return tuple(_within(amount, -FARTHEST_SD, FARTHEST_SD, otherwise=0.0) for amount in amounts[:DIRECTIONS])


def _within(value: float, low: float, high: float, otherwise: float | None = None) -> float:
    """The value clamped to [low, high]; `otherwise`, by default low, if it is not a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return low if otherwise is None else otherwise
    return min(max(value, low), high)
